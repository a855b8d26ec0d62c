"""What is known of the values of a laid-out graph along the stream axis T, before anything is derived."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Control, Node, Region, Scan, TensorType, Value, bodies
from ...ir.parameters import is_parameter

CLOCKS = frozenset({"position"})
SOURCES = frozenset({"position", "causal_mask", "length_mask"})     # ops that read the extents of `like` alone


@dataclass
class Facts:
    """`symbol` is the name of T. `dropped` are arguments that the step form does without, and `absent` those of them that it was told to
    leave out."""

    region: Region
    symbol: str
    dropped: frozenset[str]
    absent: frozenset[str] = frozenset()

    @cached_property
    def lengths(self) -> frozenset[str]:
        """Arguments that count valid positions along T."""
        return frozenset(a.name for k, a in enumerate(self.region.arguments) if a.type.dtype == "int64" and len(a.type.shape) == 1
                         and any(self._counts(n, Value(ARGUMENT, k)) for n in self.region.nodes))

    def _counts(self, node: Node, value: Value) -> bool:
        if isinstance(node.op, Scan):
            return node.inputs.get("scan.length") == value and node.op.extent == self.T
        if isinstance(node.op, Control):
            return False
        if node.op.name == "length_mask":
            return node.inputs.get("in") == value and self.axes(node.types[0]) != ()
        if node.inputs.get("length") != value:
            return False
        over = node.inputs["key" if node.op.name == "attention" else "in"]
        return isinstance(over, Value) and self.axes(self.region.type(over)) != ()

    @cached_property
    def T(self) -> Dim:
        return Dim.symbol(self.symbol)

    def axes(self, type: TensorType) -> tuple[int, ...]:
        """The axes that are T."""
        return tuple(k for k, d in enumerate(type.shape) if d == self.T)

    def of(self, value: Value) -> tuple[int, ...]:
        return self.axes(self.region.type(value))

    def touches(self, type: TensorType) -> bool:
        """Whether a shape has T in it, in any way."""
        return any(self.symbol in d.symbols() for d in type.shape)

    @cached_property
    def moving(self) -> frozenset[Value]:
        """The values that depend on T: on entries along it, or on how long it is."""
        found: set[Value] = set()
        for k, a in enumerate(self.region.arguments):
            if self.touches(a.type) or a.name in self.lengths:
                found.add(Value(ARGUMENT, k))
        for node in self.region.nodes:
            if self._moves(node, found):
                found |= {Value(node.id, k) for k in range(len(node.outputs))}
        return frozenset(found)

    def _moves(self, node: Node, found: set[Value]) -> bool:
        if is_parameter(node):
            return False
        if any(v in found for v in node.values) or any(map(self.touches, node.types)):
            return True
        return not isinstance(node.op, Control) and self.symbol in numbers(node.op)

    @cached_property
    def gone(self) -> frozenset[Value]:
        """What is absent in the step form: the arguments that it does without, and masks made of nothing else."""
        return self._without(self.dropped)

    @cached_property
    def left(self) -> frozenset[Value]:
        """What is absent because arguments are left out."""
        return self._without(self.absent)

    def _without(self, names: frozenset[str]) -> frozenset[Value]:
        found = {Value(ARGUMENT, k) for k, a in enumerate(self.region.arguments) if a.name in names}
        for node in self.region.nodes:
            if not isinstance(node.op, Control) and node.op.name in ("length_mask", "and", "or", "not"):
                given = node.inputs.get("in")
                terms = given if isinstance(given, tuple) else (given,)
                if all(v is None or v in found for v in terms):
                    found.add(Value(node.id))
        return frozenset(found)

    @cached_property
    def clocked(self) -> frozenset[Value]:
        """The moving values that depend on nothing but positions, and those that depend on marked caches beside."""
        found: set[Value] = set()
        for node in self.region.nodes:
            if isinstance(node.op, Control) or not all(d.symbols() <= {self.symbol} or self.symbol not in d.symbols()
                                                       for t in node.types for d in t.shape):
                continue
            outs = {Value(node.id, k) for k in range(len(node.outputs))}
            moving = [v for v in node.values if v in self.moving]
            rooted = node.op.name == "cache" or (node.op.name in CLOCKS and node.inputs.get("keep") in (None, *self.gone))
            if rooted or (moving and node.op.name not in SOURCES and all(v in found for v in moving)):
                found |= outs & self.moving
        return frozenset(found)

    @cached_property
    def timed(self) -> frozenset[Value]:
        """The moving values that positions go into, but for buckets, of which each has its entry in any table."""
        found: set[Value] = set()
        for node in self.region.nodes:
            name = "" if isinstance(node.op, Control) else node.op.name
            if name in CLOCKS or (name != "relative_bucket" and any(v in found for v in node.values)):
                found |= {Value(node.id, k) for k in range(len(node.outputs))} & self.moving
        return frozenset(found)

    @cached_property
    def rows(self) -> Dim:
        """How many rows there are: the first axis of what comes in chunks."""
        return next(a.type.shape[0] for a in self.region.arguments if self.axes(a.type) and a.name not in self.dropped)

    @cached_property
    def inputless(self) -> frozenset[Value]:
        """The values that no input tells anything of: made of parameters and constants. They may have rows where only chunks do."""
        found: set[Value] = set()
        told = any(self.rows in a.type.shape for a in self.region.arguments if not self.touches(a.type) and a.name not in self.dropped)
        for node in self.region.nodes:
            free = any(d.value is None and (told or d != self.rows) for t in node.types for d in t.shape)
            if is_parameter(node) or (not free and all(v in found for v in node.values) and not bodies(node)):
                found |= {Value(node.id, k) for k in range(len(node.outputs))}
        return frozenset(found)


def numbers(op: Any) -> frozenset[str]:
    """The free dimensions that the attributes of an op name."""
    found: set[str] = set()

    def look(x: Any) -> None:
        if isinstance(x, Dim):
            found.update(x.symbols())
        elif isinstance(x, tuple | list):
            for y in x:
                look(y)
    for f in fields(op):
        look(getattr(op, f.name))
    return frozenset(found)


def holds(region: Region, symbol: str) -> bool:
    """Whether a type or a number inside a region has the dimension."""
    if any(symbol in numbers(n.op) for n in region.nodes if not isinstance(n.op, Control)):
        return True
    types = [a.type for a in region.arguments] + [t for n in region.nodes for t in n.types]
    if any(symbol in d.symbols() for t in types for d in t.shape):
        return True
    return any(holds(b, symbol) for n in region.nodes for b in bodies(n))

