"""What one side has and the other has not, held against each other wherever it stands: blocks that moved into a wrapper, out of one, or to
another place of a stack, as they were or edited on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...ir.graph import Branch, Call, Control, Graph, Node, Region, Repeat, bodies, join
from ...ir.parameters import is_parameter, makers, owning_copies, parameter_table
from ..report import Where
from . import concepts
from .matching import LEAST, LIKE, MOST, body_hash, essence, fingerprint, likeness, parameters_of, plain_nodes, size
from .place import below, copy


@dataclass(eq=False)
class Stray:
    """A node of one side, or some copies of a stack (`node` is None then), with all that is inside. `where` is its place, `own` that of the
    copies that hold parameters, None where nothing is matched for a checkpoint; `body` is what a block, or each of the copies, does."""

    region: Region
    node: Node | None
    where: Where
    own: Where | None
    body: Region | None = None
    inside: list[Stray] = field(default_factory=list)
    other: Stray | None = None                  # what it is on the other side

    @property
    def whole(self) -> Region | Node:
        return self.body if self.body is not None else self.node  # type: ignore[return-value]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for what does the same, in as many copies."""
        if self.body is not None:
            return "body", body_hash(self.body), self.where.count
        assert self.node is not None
        return "node", fingerprint(self.region, self.node), self.where.count

    @property
    def held(self) -> bool:
        """Whether it has parameters or is a block, so that it is worth to be found again."""
        return self.body is not None or any(True for _ in parameters_of(self.region, self.node))  # type: ignore[arg-type]

    @property
    def spilled(self) -> bool:
        """Whether all that is inside was found elsewhere, so that nothing of its own is left."""
        return self.other is None and bool(self.inside) and all(s.other is not None or s.spilled for s in self.inside)

    def all(self) -> Iterator[Stray]:
        yield self
        for s in self.inside:
            yield from s.all()

    def tensors(self) -> Iterator[tuple[Where, tuple[int, ...]]]:
        """(place, shape) of its parameters, without those of what was found on the other side."""
        if self.other is not None:
            return
        if self.inside and (self.node is None or isinstance(self.node.op, Call | Repeat | Branch)):
            for s in self.inside:
                yield from s.tensors()
            return
        top = self.own if self.own is not None else self.where
        if self.node is None:
            for e in parameter_table(Graph("", self.body)) if self.body is not None else ():
                yield Where(join(top.pattern, e.path), (*top.copies, *e.copies)), e.shape
            return
        for rest, copies, shape in self.below():
            yield Where(join(top.pattern, rest), (*top.copies, *copies)), shape

    def below(self) -> Iterator[tuple[str, tuple[tuple[int, ...], ...], tuple[int, ...]]]:
        """(path from here, copies, shape) of the parameters of a node."""
        assert self.node is not None
        for path, copies, shape in parameters_of(self.region, self.node):
            yield path[len(self.node.name):].removeprefix("."), copies, shape


def stray(region: Region, node: Node, where: Where, own: Where | None) -> Stray:
    """A node with what is inside."""
    op = node.op
    found = Stray(region, node, where, own, op.body if isinstance(op, Call) else None)
    if isinstance(op, Call):
        found.inside = _inside(op.body, where, own)
    elif isinstance(op, Repeat | Branch):
        found.inside = [lone(op, k, tuple(i for i, b in enumerate(op.schedule) if b == k), where, own) for k in range(len(op.bodies))]
    return found


def lone(op: Repeat | Branch, body: int, copies: tuple[int, ...], where: Where, own: Where | None) -> Stray:
    """Some copies of one body of a stack."""
    mine = tuple(i for i in copies if i in set(owning_copies(op, body)))
    here, held = copy(where, copies), copy(own, mine) if own is not None else None
    return Stray(op.bodies[body], None, here, held, op.bodies[body], _inside(op.bodies[body], here, held))


def _inside(region: Region, where: Where, own: Where | None) -> list[Stray]:
    return [stray(region, n, below(where, n.name), below(own, n.name) if own is not None else None) for n in plain_nodes(region)]


@dataclass(frozen=True)
class Pair:
    """Two strays that are one thing: `exact` where they do the same, `sure` where nothing else could be meant."""

    old: Stray
    new: Stray
    exact: bool
    sure: bool
    declared: bool = False

    @property
    def certain(self) -> bool:
        """Whether tensors may go by it."""
        return self.declared or self.exact and self.sure

    @property
    def how(self) -> str:
        return "declared" if self.declared else "similarity" if not self.exact else "hash" if self.sure else "hash, in order"


def paired(gone: Iterable[Stray], come: Iterable[Stray], swaps: Iterable[tuple[Stray, Stray]],
           names: Mapping[str, Mapping[str, str]]) -> tuple[list[Pair], bool]:
    """What moved, the largest first, and whether there was too much to try: by equal hashes, then by likeness; copies of stacks whole,
    before what is inside them. Of those that stand in each other's place (`swaps`) ops are looked for inside blocks too. `names` are
    declared renames, by the name of the block: new to old."""
    found: list[Pair] = []
    ours, theirs = list(gone), list(come)
    _declared(ours, theirs, names, found)
    for old, new in swaps:
        _equal([old], [new], lambda s: s.held, found)
    _equal(ours, theirs, lambda s: s.node is None, found)
    truncated = _like(ours, theirs, lambda s: s.node is None, found)
    _equal(ours, theirs, lambda s: size(s.whole) >= LEAST and s.held, found)
    truncated |= _like(ours, theirs, lambda s: s.body is not None or isinstance(s.node.op, Control), found)  # type: ignore[union-attr]
    _equal(ours, theirs, lambda s: s.body is None and s.held, found, named=True)
    return found, truncated


def _declared(gone: list[Stray], come: list[Stray], names: Mapping[str, Mapping[str, str]], found: list[Pair]) -> None:
    """Nodes whose old name is said, where only one of that name is gone."""
    for new in [s for s in _free(come) if s.node is not None]:
        assert new.node is not None
        scope = "" if new.where.pattern == new.node.name else new.region.name
        was = names.get(scope, {}).get(new.node.name)
        olds = [s for s in _free(gone) if s.node is not None and s.node.name == was and _kind(s) is _kind(new)] if was else []
        if len(olds) == 1 and _open(olds[0], gone) and _open(new, come):
            _join(olds[0], new, olds[0].key == new.key, True, found, True)


def _free(tops: Iterable[Stray]) -> Iterator[Stray]:
    """What is not found yet, outer ones first."""
    for s in tops:
        if s.other is None:
            yield s
            yield from _free(s.inside)


def _equal(gone: list[Stray], come: list[Stray], which: Callable[[Stray], bool], found: list[Pair], named: bool = False) -> None:
    """Pairs of the same key; of several, as many on both sides, in order, which is not sure."""
    def groups(tops: list[Stray]) -> dict[Any, list[Stray]]:
        out: dict[Any, list[Stray]] = {}
        for s in _free(tops):
            if which(s):
                out.setdefault((*s.key, _name(s)) if named else s.key, []).append(s)
        return out

    theirs = groups(come)
    for key, olds in sorted(groups(gone).items(), key=lambda g: -size(g[1][0].whole)):
        olds, news = ([s for s in group if _open(s, tops)] for group, tops in ((olds, gone), (theirs.get(key, []), come)))
        if len(olds) == len(news):
            for old, new in zip(olds, news, strict=True):
                _join(old, new, True, len(olds) == 1, found)


def _name(s: Stray) -> str:
    return s.where.pattern.rpartition(".")[2]


def _open(s: Stray, tops: list[Stray]) -> bool:
    """Whether neither it, nor what it is in, nor what is in it is found yet."""
    return all(x.other is None for x in s.all()) and any(s is x for x in _free(tops))


def _like(gone: list[Stray], come: list[Stray], which: Callable[[Stray], bool], found: list[Pair]) -> bool:
    """Blocks with much in common, the likest first; True where there are too many to try."""
    def blocks(tops: list[Stray]) -> list[Stray]:
        return [s for s in _free(tops) if which(s) and all(x.other is None for x in s.all())]

    olds, news = blocks(gone), blocks(come)
    scored = [(likeness(x.whole, y.whole), x, y) for x in olds[:MOST] for y in news[:MOST] if _kind(x) is _kind(y)
              and x.where.count == y.where.count]
    ranked = sorted((s for s in scored if s[0][0] >= LIKE), key=lambda s: (-sum(s[0]), -size(s[1].whole), str(s[1].where), str(s[2].where)))
    for score, old, new in ranked:
        if _open(old, gone) and _open(new, come):
            rivals = [x for other, x, y in ranked if other == score and (x is old) != (y is new) and _open(x, gone) and _open(y, come)]
            if not rivals:
                _join(old, new, False, False, found)
    return max(len(olds), len(news)) > MOST


def _kind(s: Stray) -> type:
    return Call if s.body is not None else type(s.node.op)  # type: ignore[union-attr]


def _join(old: Stray, new: Stray, exact: bool, sure: bool, found: list[Pair], declared: bool = False) -> None:
    old.other, new.other = new, old
    found.append(Pair(old, new, exact, sure, declared))


# wrappers


def wrapped(a: Region, b: Region) -> tuple[str, Region, bool] | None:
    """The path in `b` of the only block that is `a`, or that is more like `a` than `b` is, and whether it is `a`."""
    inside = [s for n in plain_nodes(b) for s in stray(b, n, Where(n.name), None).all() if s.node is not None and s.body is not None]
    same = [s for s in inside if body_hash(s.body) == body_hash(a)]  # type: ignore[arg-type]
    if size(a) < LEAST or len(same) > 1:
        return None
    outer = likeness(a, b)
    like = same or [s for s in inside if (one := likeness(a, s.body))[0] >= LIKE and one > outer]  # type: ignore[arg-type]
    return (like[0].where.pattern, like[0].body, bool(same)) if len(like) == 1 else None  # type: ignore[return-value]


def same_inside(a: Region, b: Region) -> str:
    """Whether each expert of a new mixture is the old block, or the other way round."""
    for outer, inner, text in ((b, a, "each expert has the structure of the old block: copy its weights into every expert"),
                               (a, b, "the new block has the structure of one expert")):
        experts = concepts.routed(outer)
        if experts is not None and all(essence(x) == essence(inner) for x in bodies(experts)):
            return text
    return ""


def loose(region: Region, matched: Iterable[int]) -> set[int]:
    """Parameters that go with an op that is not matched: they are told with it."""
    there = set(matched)
    return {k for k, op in makers(region).items() if op.id not in there}


def controls(old: Node, new: Node) -> bool:
    """Whether a block, or copies, stand where an op stood, or the other way round."""
    return bool(bodies(old)) != bool(bodies(new)) and not is_parameter(old) and not is_parameter(new)


def copies_said(node: Node, what: str) -> str:
    """`3 copies of relu 72, side by side`"""
    op = node.op
    if isinstance(op, Repeat | Branch):
        n = len(op.schedule)
        return f"{n} {'copies' if n > 1 else 'copy'} of {what}, {'in depth' if isinstance(op, Repeat) else 'side by side'}"
    return f"{'one' if isinstance(op, Call) else 'a scan of'} {what}"
