"""Whether the rows of a batch stay apart: in a step each of them may be at another position."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Control, Node, Region, Scan, TensorType, Value, bodies
from ...ops.base import Op, Types

# Ops whose signature names rows with a letter, and the axis that they are.
OWN = {"rnn": 0, "lstm": 0, "gru": 0, "conv1d": 0, "conv2d": 0, "max_pool1d": 0, "average_pool1d": 0, "max_pool2d": 0,
       "average_pool2d": 0, "delay": 0, "position": 0, "length_mask": 0, "rnn_cell": 0, "lstm_cell": 0, "gru_cell": 0}

WHOLE = ("causal_mask", "first_of")          # read extents alone, or hand a value on


def mixing(region: Region, rows: Dim, moving: frozenset[Value], live: frozenset[int]) -> Iterator[tuple[Node, str]]:
    """The nodes of a region that bring rows of moving values together, and where. `rows` is the size of a batch."""
    known: dict[object, bool] = {}                       # by all that it depends on: copies of a layer are alike
    for node in region.nodes:
        if node.id not in live or not any(v in moving for v in node.values):
            continue
        if isinstance(node.op, Control):
            for body in bodies(node):
                for inner, _ in mixing(body, rows, _inside(node, body, moving), frozenset(n.id for n in body.nodes)):
                    yield node, f"in `{inner.name}`"
            if isinstance(node.op, Scan) and node.op.extent == rows:
                yield node, "as steps"
        elif node.op.name not in WHOLE:
            key = (node.op, node.types, *((v in moving, region.type(v)) for v in node.values), *node.inputs)
            if key not in known:
                known[key] = _mixes(node, region, rows, moving)
            if known[key]:
                yield node, ""


def _inside(node: Node, body: Region, moving: frozenset[Value]) -> frozenset[Value]:
    """The moving values of a body: what it is given of them, what goes round in a scan, and what is made of those."""
    given = {name: v for name, v in node.inputs.items() if isinstance(v, Value)}
    carried = getattr(node.op, "carry", ())
    found = {Value(ARGUMENT, k) for k, a in enumerate(body.arguments)
             if a.name in carried or a.name not in given or given[a.name] in moving}
    for n in body.nodes:
        if any(v in found for v in n.values):
            found |= {Value(n.id, k) for k in range(len(n.outputs))}
    return frozenset(found)


def _mixes(node: Node, region: Region, rows: Dim, moving: frozenset[Value]) -> bool:
    types = region.port_types(node.inputs)
    covered: set[tuple[str, int]] = set()
    for k, type in enumerate(node.types):
        axes = [a for a, d in enumerate(type.shape) if d == rows]
        if len(axes) > 1:
            return True
        for axis in axes:
            found = follow_row(node.op, types, node.types, axis, k)
            if found is None:
                return True
            covered |= set(found.items())
    for port, given in node.inputs.items():
        labelled = [(f"{port}.{i}", v) for i, v in enumerate(given)] if isinstance(given, tuple) else [(port, given)]
        for label, value in labelled:
            if value in moving and any((label, a) not in covered for a, d in enumerate(region.type(value).shape) if d == rows):
                return True
    return False


def follow_row(op: Op, types: Types, outputs: tuple[TensorType, ...], axis: int, output: int) -> dict[str, int] | None:
    """As `follow`, for ops whose signature has a letter for rows too."""
    if op.name not in OWN:
        return op.follow(types, outputs, axis, output)
    states = len(outputs[output].shape) == 3 and output > 0
    if axis != (1 if states else 0):
        return None
    first = {port: 0 for port, t in types.items() if isinstance(t, TensorType)}
    return first | {port: 1 for port in ("state", "cell") if port in first and len(types[port].shape) == 3}  # type: ignore[union-attr]
