"""The smallest sizes that a model can be run with: ONNX Runtime fails on empty tensors, or ends the process, in some ops."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.dimension import Dim
from ...ir.graph import Control, Graph, Node, Region, TensorType, Value

# ONNX Runtime 1.31: empty inputs of recurrent layers end the process, of the others are an error.
WHOLE = frozenset({"rnn", "lstm", "gru", "attention", "group_norm"})
WINDOWS = frozenset({"conv1d", "conv2d", "max_pool1d", "max_pool2d", "average_pool1d", "average_pool2d"})
REDUCED = frozenset({"mean", "max", "min", "argmax"})       # nothing has no mean and no maximum
SEARCHED = 4096


def least(graph: Graph) -> dict[str, int]:
    """The smallest size of each free dimension that has one above 0."""
    found: dict[str, int] = {}
    for dim in dict.fromkeys(_filled(graph.root)):
        symbols = dim.symbols()
        if len(symbols) == 1:
            (name,) = symbols
            smallest = next((n for n in range(SEARCHED) if dim.evaluate({name: n}) >= 1), 0)
            if smallest:
                found[name] = max(smallest, found.get(name, 0))
    return found


def _filled(region: Region) -> Iterator[Dim]:
    """The sizes that must not be 0."""
    for node in region.nodes:
        if isinstance(node.op, Control):
            for body in node.op.bodies:
                yield from _filled(body)
        elif node.op.name in WHOLE:
            yield from (d for type in _types(region, node) for d in type.shape)
        elif node.op.name in WINDOWS:
            yield from node.types[0].shape
        elif node.op.name in REDUCED:
            (type, *_) = _types(region, node)
            axes = node.op.axis if isinstance(node.op.axis, tuple) else (node.op.axis,)
            yield from (type.shape[axis] for axis in axes)


def _types(region: Region, node: Node) -> list[TensorType]:
    return [region.type(v) for v in node.inputs.values() if isinstance(v, Value)] + list(node.types)
