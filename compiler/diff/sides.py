"""The two sides that a user names, compared: specs by what they mean, lock files by what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..costs.cost import free_dimensions
from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic
from ..lang.source import Source
from ..pipeline import Compiled
from .compare import compare, states
from .costs import UNITS
from .graphs.fold import fold_tensors
from .layers import Asked
from .lock import ENDING, Lock, of, parse_lock, read_lock
from .renames import renamed
from .report import Consequence, Contract, Edit, Metric, Report, Side, TensorChange, Verdict, Where
from .sources import blob, from_top, opened
from .verdict import strict_load

UNTOLD = "a lock file holds facts, not the graph: edits cannot be told apart"


def compared(base: str, head: str, sizes: Mapping[str, int] | None = None, dtype: str = "float16", asked: Asked | None = None,
             names: Mapping[str, str] | None = None) -> Report:
    """What changed between two things that a user names, with what is `asked` for beside it; `names` are renames. Raises
    Diagnostics with all that is wrong with either."""
    found: list[Lock | Compiled] = []
    wrong: list[Diagnostic] = []
    for given in (base, head):
        try:
            found.append(_lock(given) if given.endswith(ENDING) else opened(given))
        except Diagnostics as fault:
            wrong += fault.items
    if wrong:
        raise Diagnostics(wrong)
    a, b = found
    asked = asked or Asked()
    if isinstance(a, Lock) or isinstance(b, Lock):
        if asked.graphs:
            raise Diagnostics([diagnostic("bad-lock", "a lock file holds facts, not the graph that this needs",
                                          help="give the specs themselves")])
        made = compare_locks(a if isinstance(a, Lock) else of(a), b if isinstance(b, Lock) else of(b), (base, head))
        return made if asked.checkpoint is None else replace(made, layers={"checkpoint": asked.held(a, b, made)})
    if names:
        b = renamed(a, b, names)
    if asked.loose:
        sizes = had(sizes, a, b)
    made = compare(a, b, (base, head), sizes, dtype)
    return replace(made, layers={**made.layers, **asked((base, head), a, b, made)})


def had(sizes: Mapping[str, int] | None, *specs: Compiled | None) -> dict[str, int]:
    """The sizes of dimensions that one of the specs has."""
    there = {name for s in specs if s is not None for name in free_dimensions(s.graph)}
    return {name: n for name, n in (sizes or {}).items() if name in there}


def _lock(given: str) -> Lock:
    ref, colon, inside = given.partition(":")
    if colon and len(ref) > 1 and not Path(given).exists():
        return parse_lock(Source(given, blob(ref, from_top(inside))))
    return read_lock(Path(given))


def compare_locks(a: Lock, b: Lock, labels: tuple[str, str]) -> Report:
    """What two lock files say differently."""
    tensors = tuple(_tensors(a, b))
    interface = tuple([*_contracts("input", a.inputs, b.inputs), *_contracts("output", a.outputs, b.outputs)])
    cache = tuple(states(a.state, b.state))
    edits: tuple[Edit, ...] = ()
    if a.identity != b.identity or interface:
        edits = (_edit(a, b, labels, tensors, bool(interface)),)
    function = "identical" if a.identity == b.identity else "equal-up-to-names" if a.structure == b.structure else "changed"
    checkpoint = edits[0].checkpoint if edits else "same"
    verdict = Verdict(function, checkpoint, tuple(e.id for e in edits if e.checkpoint == "silent"), interface, cache)
    metrics = tuple(Metric(n, unit, a.metrics[n], b.metrics[n]) for n, unit in UNITS.items())
    notes = ("costs are told at different sizes",) if a.sizes != b.sizes else ()
    return Report(_side(a, labels[0]), _side(b, labels[1]), verdict, edits, tensors, metrics, {**a.sizes, **b.sizes}, notes,
                  (UNTOLD,) if edits else ())


def _edit(a: Lock, b: Lock, labels: tuple[str, str], tensors: tuple[TensorChange, ...], interface: bool) -> Edit:
    same = a.structure == b.structure
    found = Consequence("node.renamed" if same else "model.changed", Where(""), None, None)
    kept = any(t.status == "kept" for t in tensors)
    fits = strict_load(tensors)
    checkpoint = ("same" if fits else "renamed") if same else "silent" if fits else "partial" if kept else "none"
    deltas = {n: y - x for n, x in a.metrics.items() if (y := b.metrics[n]) is not None and x is not None}
    return Edit(found.rule, "breaking" if interface or not same else "warning", "~", "model", a.structure, b.structure, (found.where,), (),
                None, None, ("checkpoint", *([] if same else ["numerics"]), *(["interface"] if interface else [])), checkpoint, (found,),
                tuple(t for t in tensors if t.status != "kept"), deltas)


def _tensors(a: Lock, b: Lock) -> list[TensorChange]:
    ours, theirs = ({path: (w.pattern, shape) for w, shape in x.tensors.items() for path in w.paths()} for x in (a, b))
    rows = []
    for path in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(path), theirs.get(path)
        status = "new" if old is None else "dropped" if new is None else "kept" if old[1] == new[1] else "reshaped"
        pattern = (new or old or ("", ()))[0]
        where = Where(pattern, _index(pattern, path))
        rows.append(TensorChange(status, where if old else None, where if new else None, old and old[1], new and new[1]))  # type: ignore[arg-type]
    return fold_tensors(rows)


def _index(pattern: str, path: str) -> tuple[tuple[int, ...], ...]:
    return tuple((int(n),) for p, n in zip(pattern.split("."), path.split("."), strict=True) if p == "{i}")


def _contracts(kind: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Contract]:
    out = []
    for name in dict.fromkeys((*a, *b)):
        old, new = a.get(name), b.get(name)
        if old != new:
            what = "added" if old is None else "removed" if new is None else "changed"
            optional = "optional-" if what != "changed" and (old or new or "").startswith("optional ") else ""
            mild = what == "added" and (kind == "output" or optional)
            out.append(Contract(f"interface.{optional}{kind}-{what}", name, old, new, "info" if mild else "breaking"))
    return out


def _side(lock: Lock, label: str) -> Side:
    return Side(label, lock.name, lock.structure, lock.identity, lock.metrics["parameters"] or 0, sum(w.count for w in lock.tensors))
