"""State that goes from step to step: carries, and the last inputs of a window."""

from __future__ import annotations

from ...ir.dimension import Dim
from ...ir.graph import Node, TensorType, Value
from ...ops.elementwise import Add, Equal, Where
from ...ops.indexing import Gather
from ...ops.layout import Concat, Rearrange
from ...ops.values import Constant, Range
from .derive import Deriver
from .form import State


def carried(d: Deriver, node: Node, name: str, type: TensorType, start: Value | None) -> Value:
    """The value of a carry before the step. A start that only parameters and constants tell is put in where nothing is past."""
    label = f"{node.name}.{name}"
    if start is None or _zeros(d, start):
        return d.state(State(label, "carry", type))
    if start in d.facts.moving:
        raise d.refuse(node, f"starts from `{d.region.label(start)}`, which is known at the end of `{d.facts.symbol}` only")
    if start not in d.facts.inputless:
        return d.state(State(label, "carry", type), start)
    before, first = d.state(State(label, "carry", type)), d.constant(start)
    assert first is not None
    like = Value(node.id)
    new = d.apply(like, Equal(), {"in": (d.past, d.apply(like, Constant(value=0, dtype="int64"), {}, "zero"))}, "new")
    axis = 1 if len(type.shape) == 3 and type.shape[0] != d.rows else 0
    pattern = " ".join("b" if k == axis else "1" for k in range(len(type.shape)))
    rows = d.apply(like, Rearrange(pattern=f"b -> {pattern}"), {"in": new}, "new_rows")
    return d.apply(like, Where(), {"keep": rows, "in": (first, before)}, name)


def _zeros(d: Deriver, value: Value) -> bool:
    node = d.region.nodes[value.node] if value.node >= 0 else None
    return node is not None and getattr(node.op, "name", "") in ("full", "constant") and node.op.value == 0


def recent(d: Deriver, node: Node, count: int) -> Value:
    """The last `count` inputs before the chunk, and the chunk: [B, count + N, ...]."""
    given = node.inputs["in"]
    assert isinstance(given, Value)
    type = d.region.type(given)
    new = d.present(given, (None,))
    if count == 0:
        return new
    kept = TensorType(type.dtype, (type.shape[0], Dim.const(count), *type.shape[2:]))
    before = d.state(State(f"{node.name}.recent", "carry", kept))
    like = Value(node.id)
    wide = d.apply(like, Concat(axis=1), {"in": (before, new)}, "window")
    d.after[f"{node.name}.recent"] = behind(d, like, wide, count)
    return wide


def behind(d: Deriver, like: Value, wide: Value, count: int) -> Value:
    """The `count` entries of [B, count + N, ...] up to the last valid one of each row."""
    steps = d.apply(like, Range(to=Dim.const(count)), {}, "steps")
    rows = d.apply(like, Rearrange(pattern="b -> b 1"), {"in": d.new_length}, "ends")
    index = d.apply(like, Add(), {"in": (rows, steps)}, "kept")
    return d.apply(like, Gather(axis=1, batch=1), {"in": wide, "index": index}, "after")
