"""A report for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator

from ..printing import columns
from . import words
from .report import Contract, Edit, Report

_STYLES = {"breaking": "1;31", "warning": "1;33", "info": "36", "+": "32", "-": "31", "~": "33", ">": "34"}
FUNCTION = {"identical": "identical", "equal-up-to-names": "equal up to names", "training-only": "the same at inference",
            "changed": "changed"}


def text(report: Report, color: bool = False, full: bool = False, summary: bool = False) -> str:
    """The report as lines of text; one line an edit, and indented lines of what to know of it. `full` lists consequences and tensors."""
    label = (report.head or report.base).label if report.head or report.base else ""  # type: ignore[union-attr]
    if report.base is None or report.head is None:
        return _alone(report)
    if not report.changed:
        said = f" ({'; '.join(report.notes)})" if report.notes else " (formatting only)" if report.base.label != report.head.label else ""
        return "\n".join([f"{label}: no architectural change{said}", *report.diagnostics]) + "\n"
    lines = [f"nnspec diff  {report.base.label} -> {report.head.label}",
             f"             structure {report.base.structure[:8]} -> {report.head.structure[:8]}", ""]
    lines += _verdicts(report)
    if not summary:
        lines += ["", *_costs(report), "", *_edits(report, color, full)]
    if full:
        lines += ["", *_tensors(report)]
    lines += ["", words.tally(report), *(f"note: {n}" for n in (*report.notes, *report.diagnostics))]
    return "\n".join(lines) + "\n"


def _alone(report: Report) -> str:
    side = report.head or report.base
    assert side is not None
    return f"{side.label}: {'added' if report.base is None else 'removed'} spec: {side.parameters:,} parameters, {side.tensors:,} tensors\n"


def _verdicts(report: Report) -> Iterator[str]:
    v = report.verdict
    yield f"  function    {FUNCTION[v.function]}"
    yield f"  checkpoint  {v.checkpoint:<10}  {words.tensors(report)}"
    yield f"              {'':<10}  {words.loads(report)}"
    if v.silent:
        n = len(v.silent)
        yield f"  silent      {n} edit{'s' if n > 1 else ''} that no load notices: names and shapes fit, and the function is another"
    yield from _contracts("interface", v.interface)
    yield from _contracts("cache", v.cache)


def _contracts(name: str, found: tuple[Contract, ...]) -> Iterator[str]:
    for k, c in enumerate(found):
        what = "" if name == "cache" else f"{c.name}: "
        yield f"  {name if k == 0 else '':<10}  {c.level:<10}  {what}{c.before or 'none'}"
        yield f"  {'':<10}  {'':<10}    -> {c.after or 'none'}"


def _costs(report: Report) -> list[str]:
    rows = [("  cost @ " + words.at(report), "before", "after", "delta", "")]
    for m in words.rows(report):
        delta = "0" if m.delta == 0 else words.signed(words.amount(m, m.delta), m.delta)
        rows.append((f"    {words.METRICS[m.name]}", words.amount(m, m.before), words.amount(m, m.after), delta, words.percent(m)))
    return columns(rows, frozenset({1, 2, 3, 4}))


def _edits(report: Report, color: bool, full: bool) -> Iterator[str]:
    n = len(report.edits)
    yield f"  {n} edit{'s' if n != 1 else ''}, in this order"
    cells = [(e.symbol, e.title, words.change(e), words.signed(f"{e.deltas.get('parameters', 0):,}", e.deltas.get("parameters")), e.level,
              str(e.head or e.base or "")) for e in report.edits]
    wide = [min(max(len(c[i]) for c in cells), (1, 26, 38, 16, 8, 40)[i]) for i in range(6)]
    for e, c in zip(report.edits, cells, strict=True):
        shown = [_paint(c[0], c[0], color), _clip(c[1], wide[1]), _clip(c[2], wide[2]), f"{c[3]:>{wide[3]}}",
                 _paint(f"{c[4]:<{wide[4]}}", c[4], color), c[5]]
        yield ("  " + "  ".join(shown)).rstrip()
        yield from _below(e, full)


def _below(e: Edit, full: bool) -> Iterator[str]:
    where = words.places(e.where, 3)
    yield f"      {e.rule}: {where}" + (f" (matched by {e.evidence})" if e.evidence != "path" else "")
    if e.checkpoint == "silent":
        yield "      silent: an old checkpoint loads and computes something else"
    if e.conversion:
        yield f"      checkpoint {e.checkpoint}: {e.conversion.text}"
    yield from (f"      {n}" for n in e.notes)
    if full:
        for f in e.consequences:
            yield f"      . {f.rule}  {f.where}  {words.value(f.before)} -> {words.value(f.after)}"
        for t in e.tensors:
            yield f"      . {t.status}  {t.head or t.base}  {list(t.before or ())} -> {list(t.after or ())}  x{t.count}"


def _tensors(report: Report) -> Iterator[str]:
    yield "  tensors"
    shown = [(t.status, str(t.base or ""), str(t.head or ""), str(list(t.before)) if t.before is not None else "",
              str(list(t.after)) if t.after is not None else "", f"x{t.count}") for t in report.tensors if t.status != "kept"]
    yield from ("    " + line for line in columns(shown))


def _clip(text: str, wide: int) -> str:
    return f"{text:<{wide}}" if len(text) <= wide else text[:wide - 1] + "…"


def _paint(text: str, key: str, color: bool) -> str:
    return f"\x1b[{_STYLES[key]}m{text}\x1b[0m" if color else text
