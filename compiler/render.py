"""Diagnostics as text: for a terminal, as JSON, and as GitHub annotations. No other module makes such text."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .lang.diagnostic import Diagnostic, Label
from .lang.source import Source

_STYLES = {"error": "1;31", "warning": "1;33", "secondary": "1;34", "gutter": "1;34", "note": "1", "headline": "1"}
_TAB = 4
_MIN_TEXT = 20  # columns left to a source line or a note, however narrow the terminal
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def render(items: Iterable[Diagnostic], width: int = 100, color: bool = False) -> str:
    """The diagnostics for a terminal of `width` columns, with a closing line that counts them; empty for none."""
    items = list(items)
    paint = _Paint(color)
    blocks = ["\n".join(_block(d, width, paint)) for d in items]
    return "\n\n".join([*blocks, counts(items)]) + "\n" if items else ""


def render_json(items: Iterable[Diagnostic]) -> str:
    """The diagnostics as one JSON object. Lines and columns count from 1; the end is exclusive."""
    items = list(items)
    data = {
        "errors": sum(d.severity == "error" for d in items),
        "warnings": sum(d.severity == "warning" for d in items),
        "diagnostics": [{
            "code": d.code, "severity": d.severity, "headline": d.headline,
            "labels": [_label_data(x) for x in d.labels], "notes": list(d.notes), "helps": list(d.helps),
        } for d in items],
    }
    return json.dumps(data, indent=2) + "\n"


def render_github(items: Iterable[Diagnostic]) -> str:
    """The diagnostics as GitHub workflow commands, one a line, shown by GitHub beside the lines of a pull request."""
    return "".join(f"::{d.severity} {_github_place(d)}::{_github(_github_message(d), '')}\n" for d in items)


def counts(items: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`"""
    kinds = [d.severity for d in items]
    numbers = [(kinds.count(kind), kind) for kind in ("error", "warning") if kind in kinds]
    return ", ".join(f"{n:,} {kind}{'s' if n > 1 else ''}" for n, kind in numbers)


class _Paint:
    """Wraps text in ANSI colours, or leaves it as it is."""

    def __init__(self, color: bool):
        self.color = color

    def __call__(self, style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color and text else text


@dataclass(frozen=True)
class _Mark:
    """A label on one line: its columns on the screen, from 0."""

    start: int
    stop: int
    text: str
    primary: bool


@dataclass(frozen=True)
class _Page:
    """How much room the gutter and the text have."""

    gutter: int
    room: int
    paint: _Paint
    severity: str

    def row(self, number: str, text: str) -> str:
        return self.paint("gutter", f"  {number:>{self.gutter}} |") + (f" {text}" if text.strip() else "")


def _block(d: Diagnostic, width: int, paint: _Paint) -> Iterator[str]:
    yield paint(d.severity, f"{d.severity}[{d.code}]") + paint("headline", f": {_line(d.headline)}")
    labels = list(dict.fromkeys(d.labels))
    gutter = max((len(str(x.span.line)) for x in labels), default=1)
    page = _Page(gutter, max(width - gutter - 5, _MIN_TEXT), paint, d.severity)
    sources = list(dict.fromkeys(x.span.source for x in labels))
    for source in sources:
        here = [x for x in labels if x.span.source is source]
        arrow = "-->" if source is sources[0] else ":::"
        yield paint("gutter", f" {arrow}") + f" {_line(str(here[0].span))}"
        yield from _snippet(source, here, labels[0], page)
    for kind, texts in (("note", d.notes), ("help", d.helps)):
        for text in texts:
            yield from _remark(kind, clean(text), page)


def _snippet(source: Source, labels: list[Label], primary: Label, page: _Page) -> Iterator[str]:
    lines: dict[int, list[Label]] = {}
    for label in labels:
        lines.setdefault(label.span.line, []).append(label)
    for number in sorted(lines):
        raw = source.line(number)
        shown, columns = _layout(raw)
        marks = [_mark(x, columns, x is primary) for x in lines[number]]
        for group in _groups(marks, page.room):
            offset, text = _clip(shown, group, page.room)
            yield page.row(str(number), text)
            for mark in group:
                yield from _underline(mark, offset, page)


def _mark(label: Label, columns: list[int], primary: bool) -> _Mark:
    """Where a label stands on its first line; an empty span still gets one column."""
    last = len(columns) - 1
    start = min(label.span.column - 1, last)
    stop = min(start + max(label.span.stop - label.span.start, 0), last)
    return _Mark(columns[start], max(columns[stop], columns[start] + 1), _line(label.text), primary)


def _groups(marks: list[_Mark], room: int) -> list[list[_Mark]]:
    """Marks that fit into one view of a line, the rightmost first; far apart ones need the line twice."""
    groups: list[list[_Mark]] = []
    for mark in sorted(marks, key=lambda m: (m.start, not m.primary)):
        if groups and mark.stop - groups[-1][0].start <= room - 8:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return [sorted(g, key=lambda m: (-m.start, not m.primary)) for g in groups]


def _clip(shown: list[str], marks: list[_Mark], room: int) -> tuple[int, str]:
    """The part of a line around its marks that fits into `room` columns, and what to subtract from their columns."""
    if len(shown) <= room:
        return 0, "".join(shown)
    first, last = min(m.start for m in marks), max(m.stop for m in marks)
    inner = room - 8  # for the dots on both sides
    start = max(0, min(first - max(inner - (last - first), 0) // 2, len(shown) - inner))
    head, cells = "... " if start else "", shown[start : start + inner]
    if cells[0] == "":  # the second half of a wide character
        cells[0] = " "
    if start + inner < len(shown) and shown[start + inner] == "":
        cells[-1] = " "
    tail = " ..." if start + inner < len(shown) else ""
    return start - len(head), head + "".join(cells).rstrip() + tail


def _underline(mark: _Mark, offset: int, page: _Page) -> Iterator[str]:
    start = mark.start - offset
    length = max(1, min(mark.stop - offset, page.room) - start)
    style = page.severity if mark.primary else "secondary"
    line = ("^" if mark.primary else "-") * length
    text = textwrap.wrap(mark.text, max(page.room - start - length - 1, 1), break_long_words=False, break_on_hyphens=False)
    if len(text) <= 1 and start + length + 1 + len(mark.text) <= page.room:
        yield page.row("", " " * start + page.paint(style, f"{line} {mark.text}".rstrip()))
        return
    yield page.row("", " " * start + page.paint(style, line))
    indent = max(0, min(start, page.room - len(mark.text)))
    for row in textwrap.wrap(mark.text, page.room, break_long_words=False, break_on_hyphens=False):
        yield page.row("", " " * indent + page.paint(style, row))


def _remark(kind: str, text: str, page: _Page) -> Iterator[str]:
    """`= note: ...`, wrapped; line breaks in the text are kept."""
    margin = " " * (page.gutter + 3)
    head = f"= {kind}: "
    for i, line in enumerate(text.split("\n")):
        for j, row in enumerate(_wrap(line, page.room - len(head) + 2)):
            if i == j == 0:
                yield f"{margin}{page.paint('gutter', '=')} {page.paint('note', f'{kind}:')} {row}"
            else:
                yield (margin + " " * len(head) + row).rstrip()


def _wrap(line: str, room: int) -> list[str]:
    """A line in rows; runs of spaces are kept when it fits."""
    return [line] if len(line) <= room else textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)


def _layout(raw: str) -> tuple[list[str], list[int]]:
    """The screen cells of a line (a wide character takes two, the second empty) and each character's column."""
    cells: list[str] = []
    columns = []
    for c in raw:
        columns.append(len(cells))
        if c == "\t":
            cells += [" "] * _TAB
        elif _UNPRINTABLE.match(c):
            cells.append("\ufffd")
        elif unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf"):
            if cells:
                cells[-1] += c
        else:
            cells += [c, ""] if unicodedata.east_asian_width(c) in "WF" else [c]
    columns.append(len(cells))
    return cells, columns


def clean(text: str) -> str:
    """Text from a file must not steer what shows it: tabs become spaces, control and direction characters their escapes."""
    text = text.replace("\t", " " * _TAB)
    return _UNPRINTABLE.sub(lambda m: m.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def _line(text: str) -> str:
    return clean(text).replace("\n", " ")


def _label_data(label: Label) -> dict[str, object]:
    span = label.span
    end_line, end_column = span.source.position(span.stop)
    return {"file": span.source.name, "line": span.line, "column": span.column, "end_line": end_line,
            "end_column": end_column, "text": label.text}


def _github_place(d: Diagnostic) -> str:
    title = f"title={_github(d.code, ':,')}"
    if not d.labels:
        return title
    span = d.labels[0].span
    file = re.sub(r"^[^:]+:\./", "", span.source.name)         # of a commit, `REF:./FILE`, the file
    return f"file={_github(file, ':,')},line={span.line},col={span.column},{title}"


def _github_message(d: Diagnostic) -> str:
    where = [f"{x.span}: {x.text}" for x in d.labels if x.text]
    return "\n".join([d.headline, *where, *(f"note: {x}" for x in d.notes), *(f"help: {x}" for x in d.helps)])


def _github(text: str, also: str) -> str:
    """Escapes as the workflow command parser of GitHub Actions undoes them."""
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + also else c for c in text)
