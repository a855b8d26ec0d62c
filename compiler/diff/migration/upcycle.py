"""Mixtures of experts made of one block: where each expert is a copy, and the weights of those that are chosen sum to one, the mixture
computes what the block did, whatever its router says (Komatsuzaki et al. 2022, arXiv:2212.05055, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import ARGUMENT, Branch, Call, Node, Region, Value, bodies, walk
from ...ir.parameters import is_parameter
from ..graphs.concepts import NORMS, name_of, routed, transparent
from ..graphs.matching import source

# Ops that compute each row of a value from that row alone; with others an expert sees other rows than the block did.
BY_ROW = frozenset({"linear", "activate", "multiply", "add", "subtract", "scale", "dropout", "parameter", "constant", "layer_norm",
                    "rms_norm", "relu", "gelu", "silu", "tanh", "sigmoid"})
POSITIVE = ("softmax", "sigmoid", "exp")


def neutral(region: Region, node: Node) -> bool:
    """Whether a routed branch gives what each of its experts would, were they equal: its weights sum to one, and rows are treated alone."""
    if not (isinstance(node.op, Branch) and node.op.route):
        return False
    weights = node.inputs.get("route.weights")
    alone = all(_by_row(n) for body in bodies(node) for _, _, n in walk(body))
    single = all(len(body.arguments) == 1 for body in node.op.bodies)
    return alone and single and isinstance(weights, Value) and _one(region, source(region, weights), len(node.op.schedule))


def _by_row(node: Node) -> bool:
    axis = getattr(node.op, "axis", -1)
    return isinstance(node.op, Call) or name_of(node) in BY_ROW and (name_of(node) not in NORMS or axis in (-1, None))


def _one(region: Region, value: Value, experts: int) -> bool:
    """Whether the last axis of a value sums to one."""
    node = region.nodes[value.node] if value.node != ARGUMENT else None
    if node is None:
        return False
    if name_of(node) == "softmax":
        return _last(node) and node.inputs.get("keep") is None
    if name_of(node) == "top_k":
        return node.op.k == experts and value.output == 0 and _one(region, source(region, node.inputs["in"]), experts)  # type: ignore[arg-type]
    if name_of(node) == "divide":
        given = node.inputs["in"]
        parts = [source(region, v) for v in given] if isinstance(given, tuple) else []
        return len(parts) == 2 and _total(region, parts[0], parts[1]) and _positive(region, parts[0])
    return False


def _total(region: Region, part: Value, total: Value) -> bool:
    """Whether one value is the sum of the other along its last axis."""
    node = region.nodes[total.node] if total.node != ARGUMENT else None
    return node is not None and name_of(node) == "sum" and node.inputs.get("keep") is None and bool(node.op.keep_axis) \
        and _last(node) and source(region, node.inputs["in"]) == part  # type: ignore[arg-type]


def _positive(region: Region, value: Value) -> bool:
    """Whether no number of a value is zero or less."""
    node = region.nodes[value.node] if value.node != ARGUMENT else None
    if node is None or value.output != 0:
        return False
    if name_of(node) == "top_k":
        return bool(node.op.largest) and _positive(region, source(region, node.inputs["in"]))  # type: ignore[arg-type]
    return name_of(node) in POSITIVE and node.inputs.get("keep") is None or \
        name_of(node) == "activate" and node.op.function in POSITIVE


def _last(node: Node) -> bool:
    axes = node.op.axis if isinstance(node.op.axis, tuple | list) else (node.op.axis,)
    return list(axes) in ([-1], [len(node.types[0].shape) - 1])


def router(region: Region, node: Node) -> Iterator[Node]:
    """The parameters that say which experts are chosen, and how they are weighed."""
    todo = [v for p in ("route.weights", "route.indices") if isinstance(v := node.inputs.get(p), Value)]
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if value.node == ARGUMENT or value.node in seen:
            continue
        seen.add(value.node)
        maker = region.nodes[value.node]
        if is_parameter(maker):
            yield maker
        todo += maker.values


def upcycled(region: Region) -> bool:
    """Whether a block is a neutral mixture and nothing else, once dropout is left out."""
    node = routed(region)
    return node is not None and neutral(region, node) and len(region.outputs) == 1 \
        and source(region, region.outputs[0][1]) == Value(node.id, 0) and not transparent(node)
