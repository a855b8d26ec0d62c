"""Whether a value over queries and keys is surely 0, or false, where the key comes after the query."""

from __future__ import annotations

from ...ir.graph import ARGUMENT, Control, Node, Region, Value
from ...ops.base import axis_of
from ...ops.shapes import mask_axes
from .facts import Facts

KEEPS = frozenset({"dropout", "scale", "cast", "multiply", "stop_gradient", "rearrange", "cache", "identity", "and", "expand"})
AT_MOST = {"less_equal": (0, 1), "less": (0, 1), "greater_equal": (1, 0), "greater": (1, 0)}     # which input is the key's position


def causal(region: Region, facts: Facts, value: Value, axes: tuple[int, ...]) -> bool:
    """`axes` are those of queries and keys."""
    if value.node == ARGUMENT:
        return False
    node = region.nodes[value.node]
    if isinstance(node.op, Control):
        return False
    name = node.op.name
    if name == "causal_mask":
        return tuple(axes) == (1, 2)
    if name in AT_MOST:
        return _compared(region, facts, node, axes)
    if name == "attention":
        return bool(node.op.causal) and value.output == 1 and tuple(axes) == (2, 3)
    if name == "softmax":
        keep = node.inputs.get("keep")
        over = axis_of(len(node.types[0].shape), node.op.axis)
        return isinstance(keep, Value) and over == axes[1] and _through(region, facts, node, "keep", keep, axes)
    if name in KEEPS:
        given = node.inputs["in"]
        listed = [(f"in.{i}", v) for i, v in enumerate(given)] if isinstance(given, tuple) else [("in", given)]
        return any(isinstance(v, Value) and _through(region, facts, node, label, v, axes) for label, v in listed)
    return False


def _through(region: Region, facts: Facts, node: Node, label: str, value: Value, axes: tuple[int, ...]) -> bool:
    """Whether one input is causal, and lies on both axes."""
    types = {k: tuple(region.type(v) for v in g) if isinstance(g, tuple) else None if g is None else region.type(g)
             for k, g in node.inputs.items()}
    if node.op.name == "softmax":
        over = mask_axes(node.op, types)
        if not set(axes) <= set(over):
            return False
        return causal(region, facts, value, tuple(over.index(a) for a in axes))
    found = [node.op.follow(types, node.types, axis) for axis in axes]
    if any(f is None or label not in f for f in found):
        return False
    return causal(region, facts, value, tuple(f[label] for f in found if f is not None))


def _compared(region: Region, facts: Facts, node: Node, axes: tuple[int, ...]) -> bool:
    """Whether a comparison says that the key's position is at most the query's."""
    given = node.inputs["in"]
    assert isinstance(given, tuple)
    key, query = (given[k] for k in AT_MOST[node.op.name])
    rank = len(node.types[0].shape)

    def lies(value: Value, axis: int) -> bool:
        own = facts.of(value)
        return len(own) == 1 and own[0] - len(region.type(value).shape) == axis - rank and _plain(region, value)
    return lies(key, axes[1]) and lies(query, axes[0])


def _plain(region: Region, value: Value) -> bool:
    """Whether a value is positions themselves, at most with other axes."""
    while value.node != ARGUMENT:
        node = region.nodes[value.node]
        if isinstance(node.op, Control):
            return False
        if node.op.name == "position":
            return node.inputs.get("keep") is None
        given = node.inputs.get("in")
        if node.op.name == "first_of" and isinstance(given, tuple):
            given = given[0]
        if node.op.name not in ("rearrange", "expand", "first_of") or not isinstance(given, Value):
            return False
        value = given
    return False
