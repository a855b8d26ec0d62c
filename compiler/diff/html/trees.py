"""`Report -> rows`: the trees of both sides beside each other, each row with what happened there and the edits that did it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any, Literal

from ..formats.words import value
from ..graphs.align import align
from ..report import Edit, Outline, Report, TensorChange, Where, ranges

Mark = Literal["same", "changed", "added", "removed", "moved", "renamed"]
ASIDE = ("interface.", "checkpoint.")                   # rules whose `where` is no path of the graph


@dataclass
class Row:
    """A node on both sides, or on one. `edits` count from 1."""

    base: Outline | None
    head: Outline | None
    mark: Mark
    children: list[Row] = field(default_factory=list)
    edits: list[int] = field(default_factory=list)

    @property
    def node(self) -> Outline:
        found = self.head or self.base
        assert found is not None
        return found

    @property
    def changes(self) -> int:
        """How many rows below it changed; one that came, went or moved counts once."""
        return sum((c.mark != "same") + (0 if c.mark in ("added", "removed", "moved") else c.changes) for c in self.children)

    def walk(self) -> Iterator[Row]:
        yield self
        for c in self.children:
            yield from c.walk()


def rows(report: Report) -> list[Row]:
    """The rows; none where a side has no tree to show."""
    sides = [s.outline for s in (report.base, report.head) if s is not None]
    if not all(sides):
        return []
    old, new = (s.outline if s else () for s in (report.base, report.head))
    renames = {c.where.pattern: str(c.before) for e in report.edits for c in e.consequences if c.rule == "node.renamed"}
    found = _beside(old, new, renames)
    _mark(found, report.edits)
    return found


def key(where: Where) -> str:
    """A path without copies, as links say it: `layers.attention`."""
    return ".".join(p for p in where.pattern.split(".") if p and p != "{i}")


# which node stands beside which


def _beside(old: Sequence[Outline], new: Sequence[Outline], renames: Mapping[str, str]) -> list[Row]:
    if any(o.is_body for o in (*old, *new)):
        return _bodies(old, new, renames)
    return _nodes(old, new, renames)


def _nodes(old: Sequence[Outline], new: Sequence[Outline], renames: Mapping[str, str]) -> list[Row]:
    """Nodes of one region, in an order that keeps both."""
    theirs = {o.name for o in new}
    now = {renames[o.where.pattern]: o.name for o in new if o.where.pattern in renames}
    now = {a: b for a, b in now.items() if a not in theirs}
    a, b = [now.get(o.name, o.name) for o in old], [o.name for o in new]
    out: list[Row] = []
    for what, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if what == "equal":
            out += [_pair(x, y, now, renames) for x, y in zip(old[i:j], new[k:m], strict=True)]
        else:
            out += [_alone(o, "base", "moved" if n in b else "removed") for o, n in zip(old[i:j], a[i:j], strict=True)]
            out += [_alone(o, "head", "moved" if n in a else "added") for o, n in zip(new[k:m], b[k:m], strict=True)]
    return out


def _pair(x: Outline, y: Outline, now: Mapping[str, str], renames: Mapping[str, str]) -> Row:
    reads = {p: ", ".join(now.get(w, w) for w in text.split(", ")) for p, text in x.reads.items()}
    alike = (x.what, x.shape, dict(x.attributes), reads) == (y.what, y.shape, dict(y.attributes), dict(y.reads))
    mark: Mark = "renamed" if x.name != y.name and not y.is_body else "same" if alike else "changed"
    return Row(x, y, mark, _beside(x.children, y.children, renames))


def _alone(o: Outline, side: Literal["base", "head"], mark: Mark) -> Row:
    below = [_alone(c, side, mark) for c in o.children]
    if len(below) == 1 and o.children[0].is_body:
        below = below[0].children
    return Row(o if side == "base" else None, o if side == "head" else None, mark, below)


def _bodies(old: Sequence[Outline], new: Sequence[Outline], renames: Mapping[str, str]) -> list[Row]:
    """Copies of a repeat: those of one body on both sides are one row, and none where all copies are alike."""
    ours, theirs = ({i: k for k, o in enumerate(side) for i in o.where.copies[-1]} for side in (old, new))
    signs = [[_sign(side[of[i]]) for i in sorted(of)] for side, of in ((old, ours), (new, theirs))]
    found = align(*signs)
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in found.pairs:
        groups.setdefault((ours[i], theirs[j]), []).append((i, j))
    pairs = [(p[0][1], _pair(_named(old[k], [i for i, _ in p]), _named(new[m], [j for _, j in p]), {}, renames))
             for (k, m), p in groups.items()]
    lone = [*_lone(old, ours, found.removed, "base", signs[1]), *_lone(new, theirs, found.added, "head", signs[0])]
    if len(pairs) == 1:
        return [*pairs[0][1].children, *(r for _, r in lone)]
    return [r for _, r in sorted([*pairs, *lone], key=lambda x: x[0])]


def _lone(side: Sequence[Outline], of: Mapping[int, int], copies: Iterable[int], which: Literal["base", "head"],
          others: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Copies that one side has. Those like others of the model are not shown again."""
    by: dict[int, list[int]] = {}
    for i in copies:
        by.setdefault(of[i], []).append(i)
    for k, mine in by.items():
        body = _named(side[k], mine)
        rest = [i for i in side[k].where.copies[-1] if i not in mine]
        if rest or _sign(side[k]) in others:
            same = f"same as [{ranges(tuple(rest))}]" if rest else "same as copies of the other side"
            body = replace(body, what=f"{body.what}, {same}", children=())
        yield mine[0], _alone(body, which, "added" if which == "head" else "removed")


def _named(o: Outline, copies: Sequence[int]) -> Outline:
    """A body, and what is in it, of some of its copies."""
    mine, level = tuple(copies), len(o.where.copies) - 1

    def narrow(x: Outline) -> Outline:
        where = Where(x.where.pattern, (*x.where.copies[:level], mine, *x.where.copies[level + 1:]))
        return replace(x, where=where, children=tuple(map(narrow, x.children)))

    return replace(narrow(o), name=f"[{ranges(mine)}]")


def _sign(o: Outline) -> str:
    """Equal for two outlines that say the same, wherever they stand."""
    return repr((o.what if not o.is_body else "", o.shape, dict(o.attributes), dict(o.reads), [(c.name, _sign(c)) for c in o.children]))


# what the edits did


def _mark(found: Sequence[Row], edits: Sequence[Edit]) -> None:
    """Gives each row its edits."""
    index: dict[str, list[Row]] = {}
    for row in (r for top in found for r in top.walk()):
        for o in {id(o): o for o in (row.base, row.head) if o is not None}.values():
            index.setdefault(o.where.pattern, []).append(row)
    for n, e in enumerate(edits, 1):
        for where in _places(e):
            for row in _nearest(index, where):
                if n not in row.edits:
                    row.edits.append(n)
                if row.mark == "same":
                    row.mark = "changed"


def _places(e: Edit) -> Iterator[Where]:
    yield from (c.where for c in e.consequences if not c.rule.startswith(ASIDE))
    yield from (w for t in e.tensors if t.status != "kept" for w in _owners(t))


def _owners(t: TensorChange) -> Iterator[Where]:
    """The nodes that make a tensor."""
    for w in dict.fromkeys((t.base, t.head)):
        if w is not None:
            yield Where(w.pattern.rpartition(".")[0] or w.pattern, w.copies)


def _nearest(index: Mapping[str, list[Row]], where: Where) -> list[Row]:
    """The rows at a path; of a path that has none, those of the nearest one above."""
    pattern = where.pattern
    while pattern:
        near = [r for r in index.get(pattern, ()) if _meets(r, where)]
        if near:
            return near
        pattern = pattern.rpartition(".")[0]
    return []


def _meets(row: Row, where: Where) -> bool:
    """Whether a row stands for some of the copies."""
    return any(o.where.meets(where) for o in (row.base, row.head) if o is not None)


# as data


def data(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for the page; a row that is the same on both sides says it once."""
    out = []
    for r in found:
        sides = [None if o is None else _side(o) for o in (r.base, r.head)]
        made: dict[str, Any] = {"k": key(r.node.where), "m": r.mark, "e": r.edits, "d": r.changes, "c": data(r.children)}
        out.append(made | ({"s": sides[1]} if sides[0] == sides[1] else {"b": sides[0], "h": sides[1]}))
    return out


def _side(o: Outline) -> dict[str, Any]:
    attributes = [[k, value(v)] for k, v in o.attributes.items()]
    return {"n": o.name, "w": o.what, "s": o.shape, "p": f"{o.parameters:,}" if o.parameters else "", "a": attributes,
            "r": [[p, text] for p, text in o.reads.items()], "at": str(o.where)}

