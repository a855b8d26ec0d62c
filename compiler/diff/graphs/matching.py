"""Which node of one region is which of another: by a declared rename, by name, by an equal and unique hash, by likeness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...ir.graph import ARGUMENT, Branch, Call, Control, Graph, Node, Region, Repeat, Scan, Value, bodies, walk
from ...ir.parameters import is_parameter, makers, owning_copies, parameter_table
from ...ir.text import structure_hash
from .concepts import name_of, transparent

LIKE, LEAST, MOST = 0.5, 3, 50          # likeness of two blocks, nodes that they have at least, blocks of a region that are compared


@dataclass
class Matched:
    """Ids of nodes of the first region to those of the second, and how each that changed its name was found."""

    nodes: dict[int, int] = field(default_factory=dict)
    arguments: dict[int, int] = field(default_factory=dict)
    evidence: dict[int, str] = field(default_factory=dict)
    truncated: bool = False

    def value(self, v: Value) -> Value | None:
        """The value of the second region that stands for one of the first."""
        table = self.arguments if v.node == ARGUMENT else self.nodes
        to = table.get(v.output if v.node == ARGUMENT else v.node)
        return None if to is None else Value(ARGUMENT, to) if v.node == ARGUMENT else Value(to, v.output)


@lru_cache(maxsize=4096)
def body_hash(region: Region) -> str:
    """Hash of a region's function, without names."""
    return structure_hash(Graph("", region))


def control_text(op: Any) -> str:
    """What a control form says beside its bodies."""
    return str({k: getattr(op, k) for k in ("schedule", "share", "axis", "backward", "route") if hasattr(op, k)})


@lru_cache(maxsize=65536)
def fingerprint(region: Region, node: Node) -> str:
    """Hash text of one node with all that it holds, without its name and what it reads."""
    if isinstance(node.op, Control):
        return "|".join([type(node.op).__name__, control_text(node.op), *map(body_hash, bodies(node))])
    owned = [str(t) for n in region.nodes if makers(region).get(n.id) is node for t in n.types]
    return "|".join([repr(node.op), *owned, *map(str, node.types)])


def essence(region: Region) -> tuple[str, ...]:
    """The ops of a region and the shapes of its parameters, whatever rows it is given."""
    return tuple(repr(n.op) for n in region.nodes if not isinstance(n.op, Control))


@lru_cache(maxsize=1024)
def live(region: Region) -> frozenset[int]:
    """The nodes that an output depends on."""
    return region.reached(v for _, v in region.outputs)


def plain_nodes(region: Region) -> list[Node]:
    """The nodes that are told: parameters that an op made are told with it."""
    owned = makers(region)
    return [n for n in region.nodes if n.id not in owned]


def match(a: Region, b: Region, declared: Mapping[str, str], by_hash: bool = True) -> Matched:
    """The nodes of two regions; `declared` maps new names to old ones."""
    found = Matched(arguments=paired_arguments(a, b))
    left, right = {n.name: n for n in plain_nodes(a)}, {n.name: n for n in plain_nodes(b)}

    def pair(old: Node, new: Node, how: str) -> None:
        found.nodes[old.id] = new.id
        if how != "path":
            found.evidence[old.id] = how
        left.pop(old.name)
        right.pop(new.name)

    for new, old in declared.items():
        if new in right and old in left and new not in left:
            pair(left[old], right[new], "declared")
    for name in [n for n in left if n in right]:
        pair(left[name], right[name], "path")
    if by_hash:
        _by_hash(a, b, left, right, pair)
        found.truncated = _by_likeness(left, right, pair)
    _parameters(a, b, found)
    return found


def paired_arguments(a: Region, b: Region) -> dict[int, int]:
    """The arguments of one region to those of another: by name, and those that are left by their types in order."""
    names = {x.name: k for k, x in enumerate(b.arguments)}
    out = {k: names.pop(x.name) for k, x in enumerate(a.arguments) if x.name in names}
    rest = [k for k in range(len(a.arguments)) if k not in out]
    left = list(names.values())
    if len(rest) == len(left) and all(a.arguments[i].type == b.arguments[j].type for i, j in zip(rest, left, strict=True)):
        out |= dict(zip(rest, left, strict=True))
    return out


def _by_hash(a: Region, b: Region, left: dict[str, Node], right: dict[str, Node], pair: Any) -> None:
    """Nodes whose hash no other node that is left has; of several, as many on both sides, in order."""
    ours: dict[str, list[Node]] = {}
    theirs: dict[str, list[Node]] = {}
    for region, nodes, table in ((a, left, ours), (b, right, theirs)):
        for n in nodes.values():
            table.setdefault(fingerprint(region, n), []).append(n)
    for key, olds in ours.items():
        news = theirs.get(key, [])
        if len(olds) == len(news):
            for old, new in zip(olds, news, strict=True):
                pair(old, new, "hash" if len(olds) == 1 else "hash, in order")


def _by_likeness(left: dict[str, Node], right: dict[str, Node], pair: Any) -> bool:
    """Blocks with much in common, the likest first; True where there are too many to try."""
    olds, news = [n for n in left.values() if bodies(n)], [n for n in right.values() if bodies(n)]
    scored = [(likeness(x, y)[0], x, y) for x in olds[:MOST] for y in news[:MOST] if type(x.op) is type(y.op)
              and not (_holds(x, y) or _holds(y, x))]
    for score, x, y in sorted(scored, key=lambda s: (-s[0], s[1].name, s[2].name)):
        if score >= LIKE and x.name in left and y.name in right:
            pair(x, y, "similarity")
    return max(len(olds), len(news)) > MOST


def _holds(outer: Node, inner: Node) -> bool:
    """Whether a block is inside another, so that this one is around it, and does not stand for it."""
    return isinstance(inner.op, Call) and any(isinstance(n.op, Call) and body_hash(n.op.body) == body_hash(inner.op.body)
                                              for body in bodies(outer) for _, _, n in walk(body))


@lru_cache(maxsize=4096)
def _contents(x: Region | Node) -> tuple[Counter[str], Counter[str]]:
    """The kinds of all nodes inside, and their hashes, children without theirs."""
    kinds: Counter[str] = Counter()
    exact: Counter[str] = Counter()
    for body in (x,) if isinstance(x, Region) else bodies(x):
        for _, region, n in walk(body):
            kinds[name_of(n) or type(n.op).__name__] += 1
            exact[type(n.op).__name__ if isinstance(n.op, Control) else fingerprint(region, n)] += 1
    return kinds, exact


def size(x: Region | Node) -> int:
    """Nodes inside; one for an op."""
    return _contents(x)[0].total() if isinstance(x, Region) or bodies(x) else 1


def likeness(x: Region | Node, y: Region | Node) -> tuple[float, float]:
    """What two blocks have in common, of 1 (Dice's coefficient of their nodes): by kinds, and by hashes; 0 where one is small."""
    if min(size(x), size(y)) < LEAST:
        return 0.0, 0.0
    kinds, exact = (2 * (a & b).total() / (a.total() + b.total()) for a, b in zip(_contents(x), _contents(y), strict=True))
    return kinds, exact


def _parameters(a: Region, b: Region, found: Matched) -> None:
    """Parameters that ops made, by their ops and ports."""
    ours, theirs = makers(a), {n.name: k for k, n in ((k, b.nodes[k]) for k in makers(b))}
    for k, op in ours.items():
        to = found.nodes.get(op.id)
        if to is not None:
            name = b.nodes[to].name + a.nodes[k].name[len(op.name):] if op.name else a.nodes[k].name
            if name in theirs:
                found.nodes[k] = theirs[name]


def source(region: Region, given: Value) -> Value:
    """The value that an input comes from, through nodes that pass it on at inference."""
    while given.node >= 0 and transparent(region.nodes[given.node]):
        inner = region.nodes[given.node].inputs["in"]
        assert isinstance(inner, Value)
        given = inner
    return given


def parameters_of(region: Region, node: Node) -> Iterator[tuple[str, tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    """(path pattern in the region, copies, shape) of every parameter that a node holds or made."""
    op = node.op
    if isinstance(op, Call | Scan):
        for e in parameter_table(Graph("", op.body)):
            yield _under(node.name, e.path), e.copies, e.shape
    elif isinstance(op, Repeat | Branch):
        for k, body in enumerate(op.bodies):
            if owners := owning_copies(op, k):
                for e in parameter_table(Graph("", body)):
                    yield _under(_under(node.name, "{i}"), e.path), (owners, *e.copies), e.shape
    else:
        owned = makers(region)
        for n in region.nodes:
            if owned.get(n.id) is node or (n is node and is_parameter(n)):
                yield n.name, (), tuple(d.value or 0 for d in n.types[0].shape)


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
