"""The graph: frozen regions of nodes with integer ids in topological order.

A region is closed: its nodes refer to its own arguments and to each other, never to an outer region. What a body
needs from outside arrives as an argument. Control nodes (`Call`, `Repeat`, `Scan`, `Branch`) hold regions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..lang.source import Span
from .dimension import Dim

Shape = tuple[Dim, ...]
ARGUMENT = -1


@dataclass(frozen=True, slots=True)
class TensorType:
    """dtype is `float` (the model's), `int64`, `bool`, or `float32` in a model of any dtype (tables of frequencies); `optional`
    values may be absent at run time."""

    dtype: str
    shape: Shape
    optional: bool = False

    def __str__(self) -> str:
        dims = ", ".join(str(d) for d in self.shape)
        return f"{'optional ' if self.optional else ''}{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class Value:
    """Output `output` of node `node`, or argument `output` of the region when `node` is ARGUMENT."""

    node: int
    output: int = 0


Input = Value | tuple[Value, ...] | None          # of a port: one value, those of a list port, or absent


def mapped(given: Input, move: Callable[[Value], Value]) -> Input:
    """What a port is given, with every value moved."""
    if isinstance(given, tuple):
        return tuple(map(move, given))
    return None if given is None else move(given)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where an object was written: its span, and the spans of the nodes that expanded into it, innermost first."""

    span: Span
    chain: tuple[Span, ...] = ()

    def inside(self, outer: Span) -> Origin:
        return Origin(self.span, (*self.chain, outer))


@dataclass(frozen=True)
class Argument:
    name: str
    type: TensorType


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an op or a control form.

    `name` is the node's path inside its region (`query`, `query.weight`; empty for the body of `repeat: n, op: x`).
    `inputs` maps ports to values, to tuples of values for list ports, or to None where a port is absent.
    """

    id: int
    name: str
    op: Any
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...]
    types: tuple[TensorType, ...]
    origin: Origin

    @property
    def values(self) -> Iterator[Value]:
        for given in self.inputs.values():
            if isinstance(given, tuple):
                yield from given
            elif given is not None:
                yield given

    def output(self, name: str) -> Value:
        return Value(self.id, self.outputs.index(name))


class Values:
    """What a region and its builder know of their values."""

    arguments: Sequence[Argument]
    nodes: Sequence[Node]

    def type(self, value: Value) -> TensorType:
        if value.node == ARGUMENT:
            return self.arguments[value.output].type
        return self.nodes[value.node].types[value.output]

    def typed(self, given: Input) -> TensorType | tuple[TensorType, ...] | None:
        """The type of what a port is given, those of a list port, or None where it is absent."""
        if isinstance(given, tuple):
            return tuple(map(self.type, given))
        return None if given is None else self.type(given)

    def port_types(self, inputs: Mapping[str, Input]) -> dict[str, TensorType | tuple[TensorType, ...] | None]:
        """The types of what a node's ports are given."""
        return {port: self.typed(given) for port, given in inputs.items()}

    def label(self, value: Value) -> str:
        """The value as a person would write it: `encoder` or `encoder.state`."""
        if value.node == ARGUMENT:
            return self.arguments[value.output].name
        node = self.nodes[value.node]
        return node.name if value.output == 0 else f"{node.name}.{node.outputs[value.output]}"


@dataclass(frozen=True, eq=False)
class Region(Values):
    """A graph with arguments and named outputs; `name` is the block it was made from."""

    name: str
    arguments: tuple[Argument, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, Value], ...]
    origin: Origin
    about: str = ""

    def argument(self, name: str) -> Value:
        return Value(ARGUMENT, next(i for i, a in enumerate(self.arguments) if a.name == name))

    def output(self, name: str) -> Value:
        return dict(self.outputs)[name]

    def reached(self, values: Iterable[Value]) -> frozenset[int]:
        """The nodes that some values depend on, by id."""
        found = {v.node for v in values}
        for node in reversed(self.nodes):
            if node.id in found:
                found |= {v.node for v in node.values}
        return frozenset(found)

    def uses(self) -> frozenset[Value]:
        """Every value that a node or an output of this region reads."""
        return frozenset(v for n in self.nodes for v in n.values) | {v for _, v in self.outputs}


@dataclass(frozen=True, eq=False)
class Call:
    """One copy of a block. The node's inputs are named after the body's arguments."""

    body: Region

    @property
    def bodies(self) -> tuple[Region, ...]:
        return (self.body,)


@dataclass(frozen=True, eq=False)
class Repeat:
    """Copies in depth. Copy i runs `bodies[schedule[i]]` with the parameters of copy `share[i]`.

    `carry` maps an argument to the body output that feeds it in the next copy; the node's input of that name is its
    start. `each` maps an argument to the index that each copy takes on the leading axis of the node's input.
    Node outputs: every body output (of the last copy), then `all.x`, stacked on a new leading axis.
    """

    bodies: tuple[Region, ...]
    schedule: tuple[int, ...]
    share: tuple[int, ...]
    carry: Mapping[str, str]
    each: Mapping[str, tuple[int, ...]]

    @property
    def owners(self) -> tuple[int, ...]:
        """The copies that own parameters, in order."""
        return tuple(sorted(set(self.share)))


@dataclass(frozen=True, eq=False)
class Branch:
    """Copies side by side with the same inputs; node outputs are `all.x`, or the routed mixture when `route`.

    A routed branch has inputs `route.weights` float[*b, k] and `route.indices` int64[*b, k] beside the body's. `carry` is
    empty: nothing goes from copy to copy.
    """

    bodies: tuple[Region, ...]
    schedule: tuple[int, ...]
    share: tuple[int, ...]
    each: Mapping[str, tuple[int, ...]]
    route: bool = False
    carry: Mapping[str, str] = field(default_factory=dict)

    @property
    def owners(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.share)))


@dataclass(frozen=True, eq=False)
class Scan:
    """Copies in time, along axis `axis` (1 for [B, T, ...]) of every `each` input.

    Outputs: every body output stacked along `axis`, then `last.x` for the final value of each carried output.
    With an input `scan.length` int64[B], steps at or past a row's length leave its carries alone and give zeros.
    """

    body: Region
    axis: int
    extent: Dim
    carry: Mapping[str, str]
    each: tuple[str, ...]
    length: bool = False
    backward: bool = False

    @property
    def bodies(self) -> tuple[Region, ...]:
        return (self.body,)


Control = Call | Repeat | Branch | Scan          # the ops of nodes that hold regions


@dataclass(frozen=True)
class Bound:
    """What an input promises about one free dimension: `S <= limit`."""

    symbol: str
    limit: int
    span: Span


@dataclass(frozen=True, eq=False)
class Graph:
    """The whole model: its root region, and what was said about its interface."""

    name: str
    root: Region
    about: str = ""
    bounds: tuple[Bound, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)


def join(*parts: str) -> str:
    """A path from its parts; empty parts vanish."""
    return ".".join(p for p in parts if p)


def fresh(base: str, taken: Container[str]) -> str:
    """`base`, or `base_2`, `base_3`, ... where that is taken."""
    name, n = base, 2
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    return name


def bodies(node: Node) -> tuple[Region, ...]:
    """The distinct regions that a node holds; none for an op."""
    return node.op.bodies if isinstance(node.op, Control) else ()


def walk(region: Region, path: str = "") -> Iterator[tuple[str, Region, Node]]:
    """Every node of the folded graph with its path pattern (`layers.{i}.query`), outer before inner."""
    for node in region.nodes:
        here = join(path, node.name)
        yield here, region, node
        op = node.op
        if isinstance(op, Repeat | Branch):
            for body in op.bodies:
                yield from walk(body, join(here, "{i}"))
        elif isinstance(op, Call | Scan):
            yield from walk(op.body, here)
