"""`rows -> drawings`: what is wired to what in every region that changed, both sides in one picture. Distinct regions are drawn once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...render import clean
from ..formats.words import value
from ..report import Outline, Report, Where
from .layout import Wire, layout
from .trees import Mark, Row, key

MOST, DRAWINGS = 40, 12         # boxes of one drawing, and drawings
LETTERS, LETTER, LINE, PADDING = 30, 7.3, 17.0, 11.0            # of text in boxes: most letters of a line, and sizes in pixels
FACTS, EDITS = 3, 3             # differences and edits that a box tells
OUTPUT = "▸ "                   # before the name of an output


@dataclass
class Box:
    """A node of a region, one of its inputs or outputs, or a run of nodes that are left out. Lines are (base, head), None on a side that
    has none."""

    kind: str                                   # node, input, output, fold
    name: tuple[str | None, str | None]
    mark: Mark
    row: Row | None = None
    lines: list[tuple[str | None, str | None]] = field(default_factory=list)

    @property
    def tag(self) -> str:
        """The edits that touched it."""
        edits = self.row.edits if self.row else []
        return " ".join(f"#{n}" for n in edits[:EDITS]) + ("…" if len(edits) > EDITS else "")

    @property
    def size(self) -> tuple[float, float]:
        longest = max(_letters(*line) for line in (self.name, *self.lines))
        sign = 2 if self.mark != "same" else 0
        letters = max(longest, _letters(*self.name) + sign + (len(self.tag) + 1 if self.tag else 0))
        return round(letters * LETTER + 2 * PADDING, 1), round((1 + len(self.lines)) * LINE + 2 * PADDING - 6, 1)


@dataclass
class Region:
    """What is drawn: boxes in an order that both sides keep, and wires (source, target) with the ports of each side that they go to."""

    place: str
    what: tuple[str | None, str | None]         # the block of each side
    others: list[str]                           # more places that look just so
    boxes: list[Box]
    wires: dict[tuple[int, int], tuple[list[str], list[str]]]
    left: int = 0                               # nodes that are not drawn


def drawings(report: Report, rows: Sequence[Row]) -> dict[str, Any]:
    """The drawings for the page, the model's own first, and how many there is no room for."""
    found: dict[str, Region] = {}
    for region in _regions(report, rows):
        sign = repr(([(b.kind, b.name, b.mark, b.lines) for b in region.boxes], region.wires))
        if sign in found:
            found[sign].others.append(region.place)
        else:
            found[sign] = region
    drawn = [_drawing(_within(r)) for r in list(found.values())[:DRAWINGS]]
    return {"drawings": drawn, "more": max(len(found) - DRAWINGS, 0)}


def _regions(report: Report, rows: Sequence[Row]) -> Iterator[Region]:
    """Every region with a change of its own, outer ones first."""
    tops = [Outline(Where(""), "", "", children=s.outline, outputs=s.outputs) if s else None for s in (report.base, report.head)]
    yield from _inside(rows, tops[0], tops[1])


def _inside(rows: Sequence[Row], base: Outline | None, head: Outline | None) -> Iterator[Region]:
    nodes = [r for r in rows if not r.node.is_body]
    region = _region(nodes, _body(base, nodes, 0), _body(head, nodes, 1))
    if any(b.mark != "same" for b in region.boxes) or any(bool(a) != bool(b) for a, b in region.wires.values()):
        yield region
    for row in rows:
        if row.base and row.head and row.children:
            yield from _inside(row.children, row.base, row.head)


def _body(o: Outline | None, rows: Sequence[Row], side: int) -> Outline | None:
    """The outline whose children the rows are: itself, or one of its bodies."""
    bodies = [c for c in o.children if c.is_body] if o else []
    if not bodies:
        return o
    inside = [x for r in rows if (x := (r.base, r.head)[side]) is not None]
    level = len(bodies[0].where.copies) - 1
    copies = {i for x in inside for i in x.where.copies[level]} if inside else set()
    return next((b for b in bodies if copies & {*b.where.copies[level]}), bodies[0])


# a region as boxes and wires


def _region(rows: Sequence[Row], base: Outline | None, head: Outline | None) -> Region:
    sides = [[(n, o) for n, r in enumerate(rows) if (o := (r.base, r.head)[k]) is not None] for k in (0, 1)]
    numbers = [{o.name: n for n, o in side} for side in sides]
    reads: list[tuple[int, str, int | str, str]] = []           # side, what is read, by which box or output, at which port
    for k, side in enumerate(sides):
        reads += [(k, label, n, port) for n, o in side for port, text in o.reads.items() for label in text.split(", ")]
        whole = (base, head)[k]
        reads += [(k, label, name, "") for name, label in (whole.outputs if whole else {}).items()]
    inputs = _ends(((k, label.partition(".")[0]) for k, label, _, _ in reads if _named(label, numbers[k]) is None), "input")
    outputs = _ends(((k, to) for k, _, to, _ in reads if isinstance(to, str)), "output")
    names = list(inputs)
    after = {n: len(inputs) + len(rows) + i for i, n in enumerate(outputs)}
    wires: dict[tuple[int, int], tuple[list[str], list[str]]] = {}
    for k, label, to, port in reads:
        source = _named(label, numbers[k])
        a = names.index(label.partition(".")[0]) if source is None else source + len(inputs)
        b = after[to] if isinstance(to, str) else to + len(inputs)
        if a < b:                               # a scan reads what it gave a step before: that is no way of the picture
            wires.setdefault((a, b), ([], []))[k].append(port)
    there = head or base
    what = (base.what if base else None, head.what if head else None)
    return Region(str(there.where) if there else "", what, [], [*inputs.values(), *map(_node, rows), *outputs.values()], wires)


def _named(label: str, numbers: Mapping[str, int]) -> int | None:
    """The box that a value is from: `encoder.state` is of `encoder`."""
    while label not in numbers and "." in label:
        label = label.rpartition(".")[0]
    return numbers.get(label)


def _ends(found: Iterator[tuple[int, str]], kind: str) -> dict[str, Box]:
    """The inputs or outputs of a region; one that a side lacks came or went."""
    there: dict[str, set[int]] = {}
    for side, name in found:
        there.setdefault(name, set()).add(side)
    out = {}
    for name, sides in there.items():
        mark: Mark = "same" if sides == {0, 1} else "added" if sides == {1} else "removed"
        shown = _cut(name if kind == "input" else OUTPUT + name)
        out[name] = Box(kind, (shown if mark != "added" else None, shown if mark != "removed" else None), mark)
    return out


def _node(row: Row) -> Box:
    o = row.node
    names = tuple(_cut(s.name) if s else None for s in (row.base, row.head))
    box = Box("node", (names[0], names[1]), row.mark, row)
    if row.base is None or row.head is None:
        lines = [_cut(x) for x in (o.what, o.shape) if x]
        box.lines = [(x, None) if row.head is None else (None, x) for x in lines]
        return box
    a, b = _said(row.base), _said(row.head)
    differ = [n for n in dict.fromkeys((*a, *b)) if a.get(n) != b.get(n)]
    shown = list(dict.fromkeys(["", *differ[:FACTS], *(["shape"] if b.get("shape") else [])]))
    for n in shown:
        box.lines += _line(_fact(n, a.get(n)), _fact(n, b.get(n)))
    if len(differ) > FACTS:
        more = f"and {len(differ) - FACTS} more"
        box.lines.append((more, more))
    return box


def _said(o: Outline) -> dict[str, str]:
    """What a side says of a node; its op has no name."""
    return {"": o.what, "shape": o.shape} | {n: value(v) for n, v in o.attributes.items()}


def _fact(name: str, text: str | None) -> str | None:
    return None if not text else _cut(text if name in ("", "shape") else f"{name} {text}")


def _line(old: str | None, new: str | None) -> list[tuple[str | None, str | None]]:
    """One line where both are alike or fit beside each other, else two."""
    if old is None or new is None or _letters(old, new) <= LETTERS:
        return [(old, new)] if old or new else []
    return [(old, None), (None, new)]


def _letters(old: str | None, new: str | None) -> int:
    return len(old or "") + len(new or "") + 5 if old and new and old != new else len(old or new or "") + (0 if old and new else 2)


def _cut(text: str) -> str:
    text = clean(text)
    return text if len(text) <= LETTERS - 2 else f"{text[:LETTERS - 3]}…"


# no more than fits


def _within(region: Region) -> Region:
    """A region of at most MOST boxes: runs that neither changed nor touch a change are one box, and what is still too much is left out."""
    if len(region.boxes) <= MOST:
        return region
    near = {k for k, b in enumerate(region.boxes) if b.mark != "same"}
    near |= {k for ends, (a, b) in region.wires.items() if bool(a) != bool(b) for k in ends}
    near |= {k for ends in region.wires if near & {*ends} for k in ends}
    runs: list[list[int]] = []
    for k, box in enumerate(region.boxes):
        inner = k not in near and box.kind == "node"
        if inner and runs and runs[-1][-1] == k - 1 and k - 1 not in near and region.boxes[k - 1].kind == "node":
            runs[-1].append(k)
        else:
            runs.append([k])
    kept = runs[:MOST]
    now = {k: n for n, run in enumerate(kept) for k in run}
    wires: dict[tuple[int, int], tuple[list[str], list[str]]] = {}
    for (a, b), ports in region.wires.items():
        if a in now and b in now and now[a] != now[b]:
            both = wires.setdefault((now[a], now[b]), ([], []))
            for mine, more in zip(both, ports, strict=True):
                mine.extend(more)
    boxes = [region.boxes[r[0]] if len(r) == 1 else _fold(len(r)) for r in kept]
    return Region(region.place, region.what, region.others, boxes, wires, sum(map(len, runs[MOST:])))


def _fold(count: int) -> Box:
    text = f"⋯ {count} unchanged"
    return Box("fold", (text, text), "same")


# as data


def _drawing(region: Region) -> dict[str, Any]:
    pairs = list(region.wires)
    marks = [_mark(*region.wires[p]) for p in pairs]
    last = frozenset(k for k, b in enumerate(region.boxes) if b.kind == "output")
    drawn = layout([b.size for b in region.boxes], [Wire(a, b, m) for (a, b), m in zip(pairs, marks, strict=True)], last)
    boxes = [_box(b, at) for b, at in zip(region.boxes, drawn.boxes, strict=True)]
    wires = [{"from": a, "to": b, "m": m, "d": [list(p) for p in points],
              "ports": [", ".join(filter(None, side)) for side in region.wires[a, b]]}
             for (a, b), m, points in zip(pairs, marks, drawn.wires, strict=True)]
    return {"place": region.place, "what": list(region.what), "others": region.others, "size": [drawn.width, drawn.height],
            "boxes": boxes, "wires": wires,
            "left": region.left}


def _mark(base: Sequence[str], head: Sequence[str]) -> str:
    return "same" if base and head else "added" if head else "removed"


def _box(b: Box, at: tuple[float, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {"at": list(at), "kind": b.kind, "m": b.mark, "lines": [list(b.name), *map(list, b.lines)]}
    if b.row is not None:
        made |= {"k": key(b.row.node.where), "e": b.row.edits, "tag": b.tag}
    return made

