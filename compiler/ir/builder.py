"""Build regions: append typed nodes, and capture values of outer regions as extra arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .graph import ARGUMENT, Argument, Input, Node, Origin, Region, TensorType, Value, Values, fresh


class RegionBuilder(Values):
    """A region under construction.

    `captured` maps values of the parent builder to this region's arguments; `names` gives those their names, and is shared by
    sibling bodies.
    """

    def __init__(self, name: str, origin: Origin, parent: RegionBuilder | None = None, names: dict[Value, str] | None = None):
        self.name, self.origin, self.parent, self.about = name, origin, parent, ""
        self.arguments: list[Argument] = []
        self.nodes: list[Node] = []
        self.captured: dict[Value, Value] = {}
        self.names = {} if names is None else names
        self.taken: set[str] = set()

    def argument(self, name: str, type: TensorType) -> Value:
        self.arguments.append(Argument(name, type))
        self.taken.add(name)
        return Value(ARGUMENT, len(self.arguments) - 1)

    def add(self, name: str, op: Any, inputs: Mapping[str, Input], outputs: Sequence[str], types: Sequence[TensorType],
            origin: Origin) -> Node:
        node = Node(len(self.nodes), name, op, dict(inputs), tuple(outputs), tuple(types), origin)
        self.nodes.append(node)
        return node

    def capture(self, value: Value, owner: RegionBuilder) -> Value:
        """`value` of `owner`, this builder or one around it, as a value of this builder."""
        if owner is self:
            return value
        assert self.parent is not None, "the owner is not around this region"
        outer = self.parent.capture(value, owner)
        if outer not in self.captured:
            self.captured[outer] = self.argument(self._name(outer), self.parent.type(outer))
        return self.captured[outer]

    def _name(self, outer: Value) -> str:
        assert self.parent is not None
        if outer not in self.names:
            parts = self.parent.label(outer).rsplit(".", 2)
            name = "_".join(p for p in parts if p) or "captured"
            self.names[outer] = fresh(name, self.taken | set(self.names.values()))
        return self.names[outer]

    def captures(self) -> dict[str, Value]:
        """Argument name -> parent value, for the control node that holds this region."""
        return {self.arguments[mine.output].name: outer for outer, mine in self.captured.items()}

    def finish(self, outputs: Sequence[tuple[str, Value]]) -> Region:
        return Region(self.name, tuple(self.arguments), tuple(self.nodes), tuple(outputs), self.origin, self.about)
