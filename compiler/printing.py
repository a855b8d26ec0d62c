"""Reports of the command line: what was exported, what a run gave, what the library holds."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a progress bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track
    yield from track(items, description=what, console=Console(stderr=True), transient=True)


@contextmanager
def counted(call: Callable[[str], T], total: int, what: str) -> Iterator[tuple[Callable[[str], T], Callable[[], None]]]:
    """The call, which moves a progress bar up to `total` where standard error is a terminal, and one that ends the bar before."""
    if not sys.stderr.isatty():
        yield call, lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def one(path: str) -> T:
            bar.advance(task)
            return call(path)
        yield one, bar.stop


def columns(rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as aligned text, two spaces between columns."""
    made = [list(r) for r in rows]
    if not made:
        return []
    wide = [max(len(r[i]) for r in made) for i in range(len(made[0]))]
    cell = lambda i, c: f"{c:>{wide[i]}}" if i in right else f"{c:<{wide[i]}}"  # noqa: E731
    return ["  ".join(cell(i, c) for i, c in enumerate(r)).rstrip() for r in made]


def size(n: int) -> str:
    """Bytes in words, as everywhere."""
    from .costs.quantity import short
    return short(n, "B")


def export_report(manifest: Any, folder: Path, all_sites: bool) -> str:
    """Files, forms and certificate of one export."""
    lines = [f"{manifest.name}: {manifest.parameters:,} parameters, {manifest.dtype}, for {manifest.target}"]
    names = [manifest.model.file, *([manifest.prefix.model.file] if manifest.prefix else []), *(d.file for d in manifest.data)]
    names.append("manifest.json")
    rows = [(str(folder / name), size((folder / name).stat().st_size)) for name in names]
    lines += ["  " + line for line in columns(rows, frozenset({1}))]
    lines += _stream(manifest.stream) if manifest.stream else []
    lines += _sites((*manifest.sites, *(manifest.prefix.sites if manifest.prefix else ())), all_sites)
    return "\n".join([*lines, *_certificate(manifest), *_quantization(manifest.quantization), *_proof(manifest.proof, all_sites)]) + "\n"


def _stream(stream: Any) -> list[str]:
    """What a step model keeps between its steps."""
    grown = sum(s.bytes for s in stream.states)
    limit = f", up to {stream.limit:,}" if stream.limit else ""
    kinds = ", ".join(f"{n} {kind}" for kind in ("append", "ring", "carry") if (n := sum(s.kind == kind for s in stream.states)))
    return [f"  steps along {stream.along}{limit}; state: {kinds or 'none'}; {grown:,} bytes a position and row"]


def _sites(sites: Sequence[Mapping[str, Any]], everything: bool) -> list[str]:
    if not sites:
        return []
    counts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for s in sites:
        counts.setdefault((str(s["op"]), str(s["form"])), []).append(s)
    lines = ["  forms"]
    lines += ["    " + line for line in columns([(op, form, f"x{len(found)}") for (op, form), found in counts.items()])]
    if everything:
        for s in sites:
            lines.append(f"    {s['path']}: {s['form']}")
            lines += [f"      not {r['form']}: {r['reason']}" for r in s["missed"]]
    return lines


def _certificate(manifest: Any) -> list[str]:
    found = manifest.certificate
    if manifest.form == "no-weights":
        return ["  without weights (--no-weights): not certified, and nothing can run it"]
    if found is None or found.get("status") == "none":
        return ["  not certified (--certify none)"]
    wrong = found.get("differences", ())
    head = f"certificate {found['status']}: {found['cases']} cases against {found['against']} on {found['on'] or 'no provider'}, "
    head += f"{len(wrong)} differences" if wrong else (
        f"largest difference {found['max_abs']:.1e} ({found['max_rel']:.0e} of the largest value; allowed {found['rtol']:.0e})")
    if "flipped" in found:
        head += f"; near ties went the other way in {found['flipped']:.1%} of the numbers (allowed 2%)"
    overflow = [f"may differ on CUDA: at {found['overflow']}"] if "overflow" in found else []
    told = [line for d in (*wrong, *overflow, *found.get("nan", ())) for line in textwrap.wrap(d, 94)]
    return [*textwrap.wrap(head, 98, initial_indent="  ", subsequent_indent="    "), *(f"    {d}" for d in told),
            *([f"    {found['note']}"] if "note" in found else [])]


def _quantization(found: Mapping[str, Any] | None) -> list[str]:
    """What integer weights changed."""
    if found is None:
        return []
    before, after = (size(found["bytes"][k]) for k in ("before", "after"))
    lines = [f"  quantised to {found['kind']} in blocks of {found['block']}: {found['weights']} weights; {before} became {after} in all"]
    worst = max(found["outputs"].items(), key=lambda item: item[1]["max_rel"], default=None)
    if worst is not None:
        name, far = worst
        lines.append(f"    `{name}` changes by at most {far['max_abs']:.1e} ({far['max_rel']:.0e} of the largest value), "
                     f"on average {far['mean_abs']:.1e}")
    if told := found.get("perplexity"):
        lines.append(f"    perplexity {told['before']:.4f} before, {told['after']:.4f} after, over {told['ids']:,} ids")
    kept = [*(f"`{p}`, read elsewhere too" for p in found["shared"]), *(f"`{p}`, skipped" for p in found["skipped"])]
    return [*lines, *(f"    as before: {k}" for k in kept)]


def _proof(found: Mapping[str, Any] | None, everything: bool) -> list[str]:
    """Which attention kernels run on CUDA, or are selected in a dry run."""
    if found is None:
        return []
    kernels = ", ".join(f"{kernel} x{n}" for kernel, n in found["kernels"].items()) or "no attention kernels"
    lines = [f"  proof {found['status']}: {kernels} {found['how']}, {found['runtime']}, at {' and '.join(dict.fromkeys(found['cases']))}"]
    if everything:
        lines += ["    " + line for line in columns([(s["path"], s["form"], *(k or "none" for k in s["kernels"])) for s in found["sites"]])]
    return lines + [f"    {s}" for s in found["shortfalls"]]


def run_report(provider: str, inputs: Mapping[str, Any], rows: Sequence[Any], output: Path | None) -> str:
    """The active provider, and a row for each output; at most 100 columns where names are not longer."""
    import numpy as np
    given = ", ".join(f"{k} {list(np.shape(v))}".replace(", ", ",\xa0") for k, v in inputs.items())
    lines = [x.replace("\xa0", " ") for x in textwrap.wrap(f"{provider} ran with {given}", 100, subsequent_indent="  ")]
    number = lambda x: "" if x is None else f"{x:.5g}"  # noqa: E731
    for most in (4, 2, 1):                         # first values, as many as there is room for
        table = [("output", "dtype", "shape", "min", "mean", "max", "first")]
        table += [(r.name, r.dtype, str(list(r.shape)), *map(number, (r.min, r.mean, r.max)), " ".join(map(number, r.first[:most])))
                  for r in rows]
        shown = ["  " + line for line in columns(table, frozenset({3, 4, 5}))]
        if max(map(len, shown)) <= 100:
            break
    return "\n".join([*lines, *shown, *([f"  wrote {output}"] if output else [])]) + "\n"


def profile_report(found: Sequence[Any], rows: int = 40) -> str:
    """A row for each path, longest first; at most 100 columns."""
    table = [("ms", "share", "calls", "path", "operators")]
    table += [(f"{s.milliseconds:.3f}", f"{s.share:.1%}", f"{s.calls:g}", _short(s.path, 48), ", ".join(s.operators)) for s in found[:rows]]
    lines = [f"  {_short(line, 98)}" for line in columns(table, frozenset({0, 1, 2}))]
    if len(found) > rows:
        rest = found[rows:]
        lines.append(f"  and {len(rest)} more paths: {sum(s.milliseconds for s in rest):.3f} ms; --depth N joins them")
    return "\n".join([f"{sum(s.milliseconds for s in found):.3f} ms in operators per run", *lines]) + "\n"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width - 4] + " ..."


def library() -> str:
    """Models, blocks and ops that come with nnspec."""
    from .lang.tree import Mapping as TreeMapping
    from .lang.tree import Scalar
    from .library import BLOCKS, MODELS
    from .ops.registry import FAMILIES
    from .stages.parse import load
    lines = ["models"]
    rows = []
    for path in sorted(MODELS.glob("*.yaml")):
        about = load(path)[1].get("about")
        rows.append((path.stem, " ".join(about.text.split()) if isinstance(about, Scalar) else ""))
    lines += ["  " + (line if len(line) <= 98 else line[:94].rsplit(" ", 1)[0] + " ...") for line in columns(rows)]
    lines += ["", "blocks (use: [FILE])"]
    for path in sorted(BLOCKS.glob("*.yaml")):
        blocks = load(path)[1].get("blocks")
        names = blocks.keys() if isinstance(blocks, TreeMapping) else []
        lines += _listed(path.stem, names)
    lines += ["", "ops"]
    for family in FAMILIES:
        lines += _listed(family[0].__module__.rsplit(".", 1)[-1], [op.name for op in family])
    return "\n".join(lines) + "\n"


def _listed(head: str, names: Iterable[str]) -> list[str]:

    return textwrap.wrap(", ".join(names), 98, initial_indent=f"  {head}: ", subsequent_indent="    ")
