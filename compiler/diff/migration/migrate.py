"""An old checkpoint brought over to a new spec: the key map executed, one tensor in memory at a time, and written whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checkpoints.export_weights import WIDTHS, converted, file_header
from ...checkpoints.weight_file import numbers
from ...checkpoints.weights import open_weights
from ...files import replacing
from ...lang.diagnostic import CheckFailed, Diagnostic, Diagnostics, diagnostic
from ...model import Model
from ...pipeline import Compiled
from ...printing import columns, progress, size
from ..compare import compare
from ..replay import replay
from ..report import Report
from .keys import REFUSED, SILENT, KeyMap, Move, key_map
from .recipes import KINDS, Read, Recipe, pieces
from .verify import MEASURED, SAME, Checked, edit_checked, whole_checked

SHOWN = 12                      # reasons told of one edit


@dataclass(frozen=True)
class Migrated:
    """What was written; `checked` are the claims that were run."""

    path: Path
    bytes: int
    keys: KeyMap
    checked: tuple[Checked, ...]

    def text(self) -> str:
        """The summary: what was written, what became of the tensors, edit by edit, and what was verified."""
        keys = self.keys
        counts = [(keys.count(k), k) for k in KINDS[:-1]] + [(keys.count(REFUSED), "started anew"), (len(keys.dropped), "dropped")]
        lines = [f"wrote {self.path}: {len(keys.recipes):,} tensors, {size(self.bytes)}",
                 "  " + ", ".join(f"{n:,} {k}" for n, k in counts if n)]
        lines += columns([(f"  {m.title}", "started anew" if m.kind == REFUSED else m.kind, _said(m)) for m in keys.moves])
        for checked in self.checked:
            lines.append(f"  {checked.what}: {checked.said}")
            lines += [f"    {ran}" for ran in checked.runs]
        return "\n".join(lines) + "\n"


def keyed(base: Compiled, head: Compiled, labels: tuple[str, str]) -> tuple[KeyMap, Report]:
    """The key map between two specs, and the comparison that names its edits."""
    report = compare(base, head, labels)
    steps = replay(base, head)[0] if report.edits else []
    return key_map(base.graph, head.graph, steps, report.edits), report


def migrate(old: Path, base: Compiled, head: Compiled, path: Path, labels: tuple[str, str], dtype: str | None = None,
            allow: frozenset[str] = frozenset(), init: int | None = None, run: bool = True, keymap: Path | None = None) -> Migrated:
    """Write the checkpoint `old` of `base` as one of `head`, under our own names, to the .safetensors file `path`.

    Edits that keep the function and those that need training after them are carried out; the first are verified by running both
    models, unless `run` is False. `allow` may hold `silent`: edits that no tensor follows are passed over. `init` is the seed that
    tensors are started with that nothing can be made into. A dtype that is not given is that of the old tensors. `keymap` is a file that
    says how some or all tensors are made. Raises CheckFailed (`cannot-migrate`) with every edit that cannot be followed, and where a claim
    does not hold; Diagnostics (`checkpoint-mismatch`, `bad-weights`, `bad-keymap`, `cannot-write`) with all that is wrong with a file. A
    failure leaves `path` as it was.
    """
    if path.suffix != ".safetensors":
        raise Diagnostics([diagnostic("cannot-write", f"weights are written as safetensors, and `{path}` has another ending",
                                      help="give a name that ends in .safetensors")])
    keys, report = keyed(base, head, labels)
    if keymap is not None:
        from .keymap_read import mapped
        keys = mapped(keys, report, keymap)
    _check(keys, allow, init)
    with open_weights(old) as file:
        loader = Model(base).loader(file)
        read: Read = lambda name: loader(name, whole=False)  # noqa: E731
        checked = tuple(_verified(base, head, keys, read)) if run else ()
        if wrong := [c for c in checked if c.holds is False and c.claim == SAME]:
            raise CheckFailed([diagnostic("cannot-migrate", f"the function is not kept: {c}",
                                          help="the key map is as a file says: see what it makes otherwise" if keys.by else
                                          "please report it: the key map claims that it is") for c in wrong])
        kinds = {p: file.dtype(n) for p, n in loader.names.items()}
        common = Counter(kinds.values()).most_common(1)[0][0] if kinds else "float32"
        recipes = _started(keys.recipes, init)
        dtypes = {p: dtype or next((kinds[n] for n in r.sources()), common) for p, r in recipes.items()}
        written = _write(path, recipes, dtypes, read, _starts(head, recipes, init))
    return Migrated(path, written, keys, checked)


def _write(path: Path, recipes: Mapping[str, Recipe], dtypes: Mapping[str, str], read: Read, starts: Mapping[str, Any]) -> int:
    """Tensors of the widest dtype first, so that each lies at a multiple of its width; returns the bytes of the file."""
    order = sorted(recipes, key=lambda p: -WIDTHS[dtypes[p]])
    header, size_ = file_header([(p, dtypes[p], recipes[p].shape) for p in order])
    with replacing(path) as file:
        file.write(header)
        for name in progress(order, "migrating"):
            found = numbers(starts[name]) if name in starts else pieces(recipes[name], read)
            for piece in found:
                file.write(converted(piece, dtypes[name], name))
    return len(header) + size_


def _started(recipes: Mapping[str, Recipe], init: int | None) -> dict[str, Recipe]:
    """The recipes; those that lead nowhere start anew, and those that are random too where there is a seed."""
    anew = {p for p, r in recipes.items() if r.worst == REFUSED or r.op == "random" and init is not None}
    return {p: replace(r, op="start", parts=()) if p in anew else r for p, r in recipes.items()}


def _starts(head: Compiled, recipes: Mapping[str, Recipe], init: int | None) -> dict[str, Any]:
    """The tensors that start anew, as a new model has them."""
    names = [p for p, r in recipes.items() if r.op == "start"]
    if not names:
        return {}
    state = Model(head).module(seed=init).state_dict()
    return {n: state[n].detach().numpy() for n in names}


def _verified(base: Compiled, head: Compiled, keys: KeyMap, read: Read) -> Iterator[Checked]:
    """What must hold: the whole with the weights of the file where no edit changes it, else every edit that keeps the function."""
    if keys.kind in ("same", "renamed", "exact"):
        yield whole_checked(base.graph, head.graph, keys, read)
        return
    if keys.by:
        yield Checked(keys.by, MEASURED, None, note="not every edit keeps the function")
        return
    for move in keys.moves:
        if move.step is not None and move.kind in ("same", "renamed", "exact"):
            yield edit_checked(move)


def _check(keys: KeyMap, allow: frozenset[str], init: int | None) -> None:
    """Raise with every edit that cannot be followed."""
    found: list[Diagnostic] = []
    for m in keys.moves:
        if m.kind == SILENT and SILENT not in allow:
            found.append(_refusal(m, "changes the function, and every tensor still fits",
                                  "with `--allow silent` the tensors stay as they are, for a model that is trained on"))
        elif m.kind == REFUSED and init is None:
            found.append(_refusal(m, "has tensors that no old one can be made into",
                                  "with `--init SEED` they start as in a new model"))
    lost = [p for p, r in keys.recipes.items() if r.worst == REFUSED]
    if lost and init is None and not any(m.kind == REFUSED for m in keys.moves):
        found.append(diagnostic("cannot-migrate", f"{len(lost):,} tensors have none that they could be made of",
                                note=[f"`{p}`" for p in lost[:SHOWN]]))
    if found:
        raise CheckFailed(found)


def _refusal(m: Move, what: str, help_: str) -> Diagnostic:
    more = len(m.why) - SHOWN
    notes = [*m.why[:SHOWN], *([f"... and {more} more"] if more > 0 else [])]
    at = f" ({m.place})" if m.place else ""
    return diagnostic("cannot-migrate", f"the edit `{m.title}`{at} {what}", note=notes, help=help_)


def _said(m: Move) -> str:
    """What was done for an edit, in words."""
    made = m.plan.recipes.values() if m.plan else ()
    texts = list(dict.fromkeys(r.why for r in made if r.why and r.worst != REFUSED))
    if m.plan is not None and m.plan.dropped:
        n = len(m.plan.dropped)
        texts.append(f"{n} tensor{'s' if n > 1 else ''} dropped")
    return "; ".join(texts[:3]) + ("; ..." if len(texts) > 3 else "")
