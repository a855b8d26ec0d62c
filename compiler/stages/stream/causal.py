"""Whether a value over queries and keys is surely 0, or false, where the key comes after the query."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.graph import ARGUMENT, Control, Node, Region, Value
from ...ops.base import axis_of, tensors
from ...ops.shapes import mask_axes
from .facts import Facts

KEEPS = frozenset({"dropout", "scale", "cast", "multiply", "stop_gradient", "rearrange", "cache", "identity", "and", "expand"})
AT_MOST = {"less_equal": (0, 1), "less": (0, 1), "greater_equal": (1, 0), "greater": (1, 0)}     # which input is the key's position
LOW = -1e4                                           # of masks that are added; float16 ends at -65504


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
        return axis_of(len(node.types[0].shape), node.op.axis) == axes[1] and weighted(region, facts, node, axes)
    if name == "mask_fill" and node.op.value == 0 and isinstance(keep := node.inputs.get("keep"), Value):
        return _through(region, facts, node, "keep", keep, axes)
    if name in KEEPS:
        given = node.inputs["in"]
        listed = [(f"in.{i}", v) for i, v in enumerate(given)] if isinstance(given, tuple) else [("in", given)]
        return any(isinstance(v, Value) and _through(region, facts, node, label, v, axes) for label, v in listed)
    return False


def weighted(region: Region, facts: Facts, node: Node, axes: tuple[int, ...]) -> bool:
    """Whether a softmax gives nothing to keys that come after the query: its `keep` says so, or what is in it."""
    keep, given = node.inputs.get("keep"), node.inputs["in"]
    assert isinstance(given, Value)
    return (isinstance(keep, Value) and _through(region, facts, node, "keep", keep, axes)) or hidden(region, facts, given, axes)


def hidden(region: Region, facts: Facts, value: Value, axes: tuple[int, ...]) -> bool:
    """Whether scores are surely so low that a softmax gives 0, where the key comes after the query."""
    node = region.nodes[value.node] if value.node != ARGUMENT else None
    if node is None or isinstance(node.op, Control):
        return False
    if node.op.name == "mask_fill":
        low, keep = node.op.value is None or _low(node.op.value), node.inputs.get("keep")
        return low and isinstance(keep, Value) and _through(region, facts, node, "keep", keep, axes)
    if node.op.name == "where":
        keep, other = node.inputs["keep"], node.inputs["in"][1]  # type: ignore[index]
        return _low(_constant(region, other)) and isinstance(keep, Value) and _through(region, facts, node, "keep", keep, axes)
    if node.op.name in ("add", "rearrange", "expand", "cache", "dropout", "stop_gradient"):
        given = node.inputs["in"]
        listed = [(f"in.{i}", v) for i, v in enumerate(given)] if isinstance(given, tuple) else [("in", given)]
        return any(isinstance(v, Value) and _through(region, facts, node, label, v, axes, hidden) for label, v in listed)
    return False


def _low(value: object) -> bool:
    return isinstance(value, int | float) and value <= LOW


def _constant(region: Region, value: Value) -> object:
    """The number that a value is everywhere, or None."""
    op = region.nodes[value.node].op if value.node != ARGUMENT else None
    return getattr(op, "value", None) if getattr(op, "name", "") in ("full", "constant") else None


def summed(region: Region, facts: Facts, node: Node, label: str, axis: int) -> bool:
    """Whether the sum of a contraction over an axis of one of its inputs has weights that are 0 where the key comes after the query."""
    labels = [f"in.{k}" for k in range(len(tensors(region.port_types(node.inputs), "in")))] if node.op.name in ("einsum", "matmul") else []
    for other, value in zip(labels, node.inputs["in"] if labels else (), strict=True):  # type: ignore[arg-type]
        own = facts.of(value)
        over = _contracted(region, node, label, axis, other)
        if len(own) == 2 and over in own:
            query = own[0] if over == own[1] else own[1]
            if causal(region, facts, value, (query, over)):
                return True
    return False


def _contracted(region: Region, node: Node, label: str, axis: int, other: str) -> int | None:
    """The axis of the input `other` that is summed over together with an axis of the input `label`."""
    types = tensors(region.port_types(node.inputs), "in")
    if node.op.name == "einsum":
        sides = node.op.sides(region.port_types(node.inputs))
        letter, there = sides[_number(label)][axis], sides[_number(other)]
        return there.index(letter) if letter in there else None
    ranks = [len(t.shape) for t in types]
    over = [ranks[0] - 1, ranks[1] - 2]
    return over[_number(other)] if over[_number(label)] == axis else None


def _number(label: str) -> int:
    return int(label.removeprefix("in."))


def _through(region: Region, facts: Facts, node: Node, label: str, value: Value, axes: tuple[int, ...],
             of: Callable[[Region, Facts, Value, tuple[int, ...]], bool] | None = None) -> bool:
    """Whether one input is causal (or what `of` says), and lies on both axes."""
    types = region.port_types(node.inputs)
    if node.op.name == "softmax":
        over = mask_axes(node.op, types)
        if not set(axes) <= set(over):
            return False
        return causal(region, facts, value, tuple(over.index(a) for a in axes))
    found = [node.op.follow(types, node.types, axis) for axis in axes]
    if any(f is None or label not in f for f in found):
        return False
    return (of or causal)(region, facts, value, tuple(f[label] for f in found if f is not None))


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
