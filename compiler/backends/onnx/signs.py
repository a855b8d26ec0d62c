"""What the nodes before a value tell of its numbers: whether they can be negative, and whose softmax they are."""

from __future__ import annotations

from onnx import NodeProto, numpy_helper

from .builder import Builder, Val

POSITIVE = frozenset({"Softmax", "Sigmoid", "Relu", "Exp", "Abs", "Softplus", "Sqrt", "HardSigmoid"})
# those whose result has the signs of their first input, and those whose result is not negative where no input is
MOVES = frozenset({"TopK", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Gather", "GatherElements", "GatherND", "Slice",
                   "Expand", "Identity", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "Split"})
KEEPS = frozenset({"Add", "Mul", "Div", "Min", "Max", "Concat", "Sum"})


def maker(g: Builder, name: str) -> NodeProto | None:
    """The node that gives a value, in this graph or one around it."""
    scope: Builder | None = g
    while scope is not None:
        found = next((n for n in reversed(scope.nodes) if name in n.output), None)
        if found is not None:
            return found
        scope = scope.parent
    return None


def may_be_negative(g: Builder, name: str) -> str | None:
    """The value because of which `name` cannot be said to have no negative number; None where it has none."""
    node = maker(g, name)
    if node is None:
        constant = next((t for t in g.store.initializers if t.name == name), None)
        return None if constant is not None and (numpy_helper.to_array(constant) >= 0).all() else name
    if node.domain:
        return name
    if node.op_type in POSITIVE:
        return None
    if node.op_type == "Mul" and node.input[0] == node.input[1]:
        return None
    if node.op_type == "Max":
        found = [may_be_negative(g, n) for n in node.input]
        return found[0] if all(found) else None
    if node.op_type == "Clip" and len(node.input) > 1 and node.input[1] and may_be_negative(g, node.input[1]) is None:
        return None
    if node.op_type in MOVES:
        return may_be_negative(g, node.input[0]) if name == node.output[0] or node.op_type == "Split" else name
    if node.op_type in KEEPS or node.op_type == "Where":
        inputs = node.input[1:] if node.op_type == "Where" else node.input
        return next(filter(None, (may_be_negative(g, n) for n in inputs)), None)
    return name


def softmax_logits(g: Builder, weights: Val, indices: Val, rank: int) -> tuple[Val, bool] | None:
    """The logits whose softmax's largest on the last of `rank` axes are `weights`, and whether those were divided by their sum."""
    last = (-1, rank - 1)
    chosen = _cast_from(g, weights.name)
    normalized = False
    node = maker(g, chosen)
    if node is not None and node.op_type == "Div":
        chosen, total = _cast_from(g, node.input[0]), maker(g, _cast_from(g, node.input[1]))
        if total is None or not _sums(g, total, chosen, last):
            return None
        node, normalized = maker(g, chosen), True
    if node is None or node.op_type != "TopK" or list(node.output) != [chosen, indices.name]:
        return None
    how = _attributes(node)
    chances = maker(g, _cast_from(g, node.input[0]))
    if not how.get("largest", 1) or how.get("axis", -1) not in last:
        return None
    if chances is None or chances.op_type != "Softmax" or _attributes(chances).get("axis", -1) not in last:
        return None
    return Val(_cast_from(g, chances.input[0])), normalized


def _sums(g: Builder, node: NodeProto, name: str, last: tuple[int, int]) -> bool:
    """Whether a node sums a value over its last axis and keeps it."""
    how = _attributes(node)
    axes = next((t for t in g.store.initializers if len(node.input) > 1 and t.name == node.input[1]), None)
    return (node.op_type == "ReduceSum" and _cast_from(g, node.input[0]) == name and how.get("keepdims", 1) == 1
            and axes is not None and numpy_helper.to_array(axes).tolist() in ([a] for a in last))


def _cast_from(g: Builder, name: str) -> str:
    """The value that casts between float types were made of."""
    node = maker(g, name)
    while node is not None and node.op_type == "Cast" and (before := maker(g, node.input[0])) is not None:
        name, node = node.input[0], before
    return name


def _attributes(node: NodeProto) -> dict[str, int]:
    return {a.name: a.i for a in node.attribute}
