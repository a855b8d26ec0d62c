"""A report for a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ...printing import columns
from ..choice import grouped_lines
from ..report import Contract, Edit, Report
from . import text_layers, words

WIDE, TITLE = 100, 26          # columns, and most of them for what was edited
_STYLES = {"breaking": "1;31", "warning": "1;33", "info": "36", "+": "32", "-": "31", "~": "33", ">": "34"}


def text(report: Report, color: bool = False, full: bool = False, summary: bool = False, by: str = "edit") -> str:
    """The report as lines of text; one line an edit, and indented lines of what to know of it. `full` lists consequences and tensors;
    `by` is one of `choice.ORDERS`."""
    label = (report.head or report.base).label if report.head or report.base else ""  # type: ignore[union-attr]
    if report.base is None or report.head is None:
        return _alone(report)
    if not report.changed:
        said = f" ({'; '.join(report.notes)})" if report.notes else " (formatting only)" if report.base.label != report.head.label else ""
        return "\n".join([f"{label}: no architectural change{said}", *report.diagnostics, *text_layers.summary(report.layers),
                          *text_layers.lines(report.layers)]) + "\n"
    head = f"nnspec diff  {report.base.label} -> {report.head.label}"
    lines = [_fit(head, f"structure {report.base.structure[:8]} -> {report.head.structure[:8]}", "  ")]
    lines += _verdicts(report)
    if not summary:
        lines += ["", *_costs(report), "", *(_edits(report, color, full) if by == "edit" else grouped_lines(report, by))]
    if full:
        lines += ["", *_tensors(report)]
    lines += text_layers.lines(report.layers)
    if summary:
        lines += ["", words.tally(report)]
    lines += [f"note: {n}" for n in (*report.notes, *report.diagnostics)]
    return "\n".join(lines) + "\n"


def _alone(report: Report) -> str:
    side = report.head or report.base
    assert side is not None
    return f"{side.label}: {'added' if report.base is None else 'removed'} spec: {side.parameters:,} parameters, {side.tensors:,} tensors\n"


def _verdicts(report: Report) -> Iterator[str]:
    v = report.verdict
    yield f"  function    {words.FUNCTION[v.function]}"
    share = words.share(report)
    yield _fit(f"  checkpoint  {v.checkpoint:<10}  {words.tensors(report)}", f"({share})", "  ", 14) if share else \
        f"  checkpoint  {v.checkpoint:<10}  {words.tensors(report)}"
    yield from textwrap.wrap(words.loads(report), WIDE, initial_indent=" " * 14, subsequent_indent=" " * 14)
    yield from text_layers.summary(report.layers)
    if v.silent:
        yield from textwrap.wrap(words.unseen(report), WIDE, initial_indent="  silent      ", subsequent_indent=" " * 14)
    yield from _contracts("interface", v.interface)
    yield from _contracts("cache", v.cache)


def _contracts(name: str, found: tuple[Contract, ...]) -> Iterator[str]:
    alike: dict[tuple[str, str, str], list[str]] = {}
    for c in found:
        alike.setdefault((*words.ends(c), c.level), []).append(words.named(c))
    for k, ((before, after, level), names) in enumerate(alike.items()):
        what = f"{words.listed(names)}: " if names[0] else ""
        line = f"  {name if k == 0 else '':<10}  {level:<10}  {what}{before}"
        for part in _fit(line, f"-> {after}", " ", 26).split("\n"):
            yield from textwrap.wrap(part, WIDE, subsequent_indent=" " * 26, drop_whitespace=True) or [part]


def _costs(report: Report) -> list[str]:
    rows = [("  cost @ " + words.at(report), "before", "after", "delta", "")]
    shown = words.rows(report)
    for m in shown:
        delta = "0" if m.delta == 0 else words.signed(words.amount(m, m.delta), m.delta)
        rows.append((f"    {words.METRICS[m.name]}", words.amount(m, m.before), words.amount(m, m.after), delta, words.percent(m)))
    lines = columns(rows, frozenset({1, 2, 3, 4}))
    notes = ["", *(m.note for m in shown)]
    return [f"{x}  {_clip(note, WIDE - len(x) - 2)}".rstrip() if note and len(x) < WIDE - 12 else x
            for x, note in zip(lines, notes, strict=True)]


def _edits(report: Report, color: bool, full: bool) -> Iterator[str]:
    yield f"  {words.tally(report)}{', in this order' if len(report.edits) > 1 else ''}"
    cells = [(e.symbol, e.title, words.change(e), words.signed(f"{e.deltas.get('parameters', 0):,}", e.deltas.get("parameters")), e.level,
              str(e.head or e.base or "")) for e in report.edits]
    wide = [max((len(c[i]) for c in cells), default=0) for i in range(6)]
    wide[1] = min(wide[1], TITLE)
    rest = WIDE - 2 - sum(wide[i] for i in (0, 1, 3, 4)) - 2 * 4          # columns left of the values, without places
    beside = wide[2] + 2 + wide[5] <= rest                              # all places stand on the lines of their edits, or none does
    wide[2] = min(wide[2], rest)
    for e, c in zip(report.edits, cells, strict=True):
        shown = [_paint(c[0], c[0], color), _clip(c[1], wide[1]), _clip(c[2], wide[2]), f"{c[3]:>{wide[3]}}",
                 _paint(f"{c[4]:<{wide[4]}}", c[4], color), *([c[5]] if beside else [])]
        yield ("  " + "  ".join(shown)).rstrip()
        yield from _below(e, full, "" if beside else c[5])


def _below(e: Edit, full: bool, place: str) -> Iterator[str]:
    matched = f" ({'as declared' if e.evidence == 'declared' else f'matched by {e.evidence}'})" if e.evidence != "path" else ""
    said = [*([place] if place else []), f"{e.rule}: {words.places(e.where, 3)}{matched}"]
    if unseen := words.silent(e):
        said.append(unseen)
    if e.conversion:
        said.append(f"{e.checkpoint}: {e.conversion.text}")
    line = ""
    for text in (*said, *e.notes):
        joined = f"{line}; {text}" if line else text
        if len(joined) > WIDE - 6 and line:
            yield from textwrap.wrap(line, WIDE, initial_indent=" " * 6, subsequent_indent=" " * 8)
            joined = text
        line = joined
    yield from textwrap.wrap(line, WIDE, initial_indent=" " * 6, subsequent_indent=" " * 8)
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


def _fit(line: str, more: str, between: str, indent: int = 13) -> str:
    """Both on one line where they fit, else on two."""
    return f"{line}{between}{more}" if len(line) + len(between) + len(more) <= WIDE else f"{line}\n{' ' * indent}{more}"


def _clip(text: str, wide: int) -> str:
    return f"{text:<{wide}}" if len(text) <= wide else text[:wide - 1] + "…"


def _paint(text: str, key: str, color: bool) -> str:
    return f"\x1b[{_STYLES[key]}m{text}\x1b[0m" if color else text
