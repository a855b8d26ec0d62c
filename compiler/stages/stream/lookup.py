"""Indices that positions tell: behind the end of a row they are 0, where a table may have no entry for them."""

from __future__ import annotations

from typing import Any

from ...ir.graph import ARGUMENT, Node, Value
from ...ops.elementwise import GreaterEqual, Less, Where
from ...ops.layout import Rearrange
from ...ops.masks import And, LengthMask
from ...ops.streaming import SlotPositions
from ...ops.values import Constant
from .derive import Deriver, Form, Forms

INDICES = {"embedding": "in", "gather": "index", "scatter_add": "index"}


def inside(d: Deriver, node: Node, inputs: dict[str, Any], asked: dict[str, Forms]) -> dict[str, Any]:
    """The inputs of a look-up, its index 0 where there is no position yet."""
    port = INDICES.get(node.op.name, "")
    given = node.inputs.get(port)
    if given not in d.facts.timed or inputs[port] is None:
        return inputs
    assert isinstance(given, Value)
    rank, index = len(d.region.type(given).shape), inputs[port]
    like = Value(node.id)
    for axis, form in zip(d.facts.of(given), asked[port], strict=True):
        if axis == 0 or d.region.type(given).shape[0] != d.rows:
            continue
        pattern = " ".join("b" if k == 0 else "t" if k == axis else "1" for k in range(rank))
        mask = valid(d, form)
        wide = mask if rank == 2 else d.apply(like, Rearrange(pattern=f"b t -> {pattern}"), {"in": mask}, "inside")
        zero = d.apply(like, Constant(value=0, dtype="int64"), {}, "zero")
        index = d.apply(like, Where(), {"keep": wide, "in": (index, zero)}, "index")
    return inputs | {port: index}


def valid(d: Deriver, form: Form) -> Value:
    """bool [B, N] or [B, C]: whether there is a position, at the end of this chunk."""
    if form not in d.valid:
        first = next(k for k, a in enumerate(d.region.arguments) if d.facts.axes(a.type) and a.name not in d.facts.dropped)
        like, chunk = Value(ARGUMENT, 0), d.present(Value(ARGUMENT, first), (None,))
        if form is None:
            d.valid[form] = d.apply(like, LengthMask(), {"in": d.new_length, "like": chunk}, "valid")
        else:
            op = SlotPositions(capacity=d.size(form), ring=form.ring)
            slots = d.add(like, op, {"past": d.past, "like": chunk}, list(d.infer(op, {"past": d.past, "like": chunk})), "slots")
            ended = d.apply(like, Rearrange(pattern="b -> b 1"), {"in": d.ended}, "ends")
            seen = d.apply(like, Less(), {"in": (slots, ended)}, "filled")
            if form.ring:
                zero = d.apply(like, Constant(value=0, dtype="int64"), {}, "zero")
                seen = d.apply(like, And(), {"in": (seen, d.apply(like, GreaterEqual(), {"in": (slots, zero)}, "begun"))}, "filled")
            d.valid[form] = seen
    return d.valid[form]
