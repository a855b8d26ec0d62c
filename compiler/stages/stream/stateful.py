"""The rules of ops that carry a state from one position to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ir.dimension import Dim
from ...ir.graph import Node, Scan, TensorType, Value
from ...ops.base import axis_of
from ...ops.convolution import Conv1d
from ...ops.elementwise import Add
from ...ops.layout import Concat, Slice
from ...ops.streaming import Narrow, Widen
from .arguments import shortened
from .derive import Deriver, Forms
from .each import each, sized
from .facts import holds
from .state import behind, carried, recent


def scan(d: Deriver, node: Node, output: int) -> Value:
    """A scan along T: its carries are state."""
    op, T = node.op, d.facts.symbol
    if op.backward:
        raise d.refuse(node, f"walks `{T}` from its end")
    if holds(op.body, T):
        raise d.refuse(node, f"reads values of every position along `{T}` in its steps")
    if (node.id, ()) not in d.nodes:
        inputs: dict[str, Any] = {}
        for name, given in node.inputs.items():
            if name in op.carry:
                argument = next(a for a in op.body.arguments if a.name == name)
                assert isinstance(given, Value)
                inputs[name] = carried(d, node, name, argument.type, given)
            elif name != "scan.length" and isinstance(given, Value) and given not in d.facts.left:
                inputs[name] = d.chunked(given) if name in op.each else d.constant(given)
        inputs["scan.length"] = d.new_length
        left = shortened(op, {k for k, v in node.inputs.items() if v in d.facts.left})
        assert isinstance(left, Scan)
        made = replace(left, extent=d.chunk, length=True)
        sizes = {T: d.chunk}
        outputs = list(node.outputs)
        types = [sized(t, sizes) for t in node.types]
        for argument_name, result in op.carry.items():
            if f"last.{result}" not in outputs:
                outputs.append(f"last.{result}")
                types.append(next(a.type for a in op.body.arguments if a.name == argument_name))
        d.nodes[node.id, ()] = at = d.put(node.name, made, inputs, outputs, types, node.origin)
        for argument_name, result in op.carry.items():
            d.after[f"{node.name}.{argument_name}"] = at.output(f"last.{result}")
    return Value(d.nodes[node.id, ()].id, output)


def recurrent(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    """rnn, lstm, gru: their states."""
    op = node.op
    _second(d, node, "in")
    if op.direction != "forward":
        raise d.refuse(node, f"reads `{d.facts.symbol}` backwards", "write `direction: forward`")
    if (node.id, ()) not in d.nodes:
        given = node.inputs["in"]
        assert isinstance(given, Value)
        inputs: dict[str, Any] = {k: d.constant(v) for k, v in node.inputs.items() if k in op.parameters() and isinstance(v, Value)}
        inputs |= {"in": d.chunked(given), "length": d.new_length}
        for k, name in enumerate(op.states):
            start = node.inputs.get(name)
            known = isinstance(start, Value) and start not in d.facts.left
            inputs[name] = carried(d, node, name, node.types[k + 1], start if known else None)  # type: ignore[arg-type]
        ordered = {k: inputs.get(k) for k in node.inputs} | inputs
        types = d.infer(op, ordered)
        d.nodes[node.id, ()] = made = d.put(node.name, op, ordered, node.outputs, types, node.origin)
        for k, name in enumerate(op.states):
            d.after[f"{node.name}.{name}"] = Value(made.id, k + 1)
    return Value(d.nodes[node.id, ()].id, output)


def conv1d(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """A causal convolution keeps the last dilation * (kernel - 1) inputs."""
    if d.facts.axes(node.types[0]) != (1,) or d.facts.of(node.inputs["in"]) != (1,):  # type: ignore[arg-type]
        return each(d, node, output, forms)
    op: Conv1d = node.op
    (dilation,), (stride,) = op.each("dilation", op.dilation, 1), op.each("stride", op.stride, 1)
    kernel = d.region.type(node.inputs["weight"]).shape[2].value  # type: ignore[arg-type]
    assert kernel is not None
    if stride != 1 or (not op.causal and kernel > 1):
        raise d.refuse(node, "sees later positions" if not op.causal else "has a stride", "write `causal: true`, without a stride")
    inputs: dict[str, Any] = {k: d.constant(v) for k, v in node.inputs.items() if k != "in" and isinstance(v, Value)}
    wide = recent(d, node, dilation * (kernel - 1))
    inputs = {k: inputs.get(k) for k in node.inputs} | {"in": wide}
    return d.apply(Value(node.id), replace(op, causal=False, padding="valid"), inputs)


def _second(d: Deriver, node: Node, port: str) -> None:
    """Raises Refused unless T is the second axis of an input, and no other."""
    given = node.inputs[port]
    assert isinstance(given, Value)
    if d.facts.of(given) != (1,):
        raise d.refuse(node, f"has `{d.facts.symbol}` on another axis than the second", "put it behind the rows with `rearrange`")


def delay(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    _second(d, node, "in")
    wide = recent(d, node, node.op.by)
    return d.apply(Value(node.id), Slice(axis=1, stop=d.chunk), {"in": wide})


def cumsum(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """A cumulative sum carries the sum so far."""
    type, op = node.types[0], node.op
    axis = axis_of(len(type.shape), op.axis)
    if d.facts.axes(type) != (axis,):
        return each(d, node, output, forms)
    if op.reverse:
        raise d.refuse(node, f"adds up `{d.facts.symbol}` from its end")
    if axis != 1:
        raise d.refuse(node, "adds up along an axis that is not the second", "put the stream axis behind the rows with `rearrange`")
    given = node.inputs["in"]
    assert isinstance(given, Value)
    new, like = d.present(given, (None,)), Value(node.id)
    real = type.dtype == "float"                     # added up in float32, as the whole is
    new = d.apply(like, Widen(), {"in": new}, "wide") if real else new
    one = TensorType("float32" if real else type.dtype, (type.shape[0], Dim.const(1), *type.shape[2:]))
    before = carried(d, node, "sum", one, None)
    kept = [d.out.type(new)]                         # float32, which specs have no sums of
    total = d.add(like, replace(op, exclusive=False), {"in": new}, kept, "chunk")
    whole = d.add(like, Add(), {"in": (total, before)}, kept, "total")
    sums = d.apply(like, Concat(axis=1), {"in": (before, whole)}, "sums")
    d.after[f"{node.name}.sum"] = behind(d, like, sums, 1)
    found = d.apply(like, Slice(axis=1, stop=d.chunk), {"in": sums}, "before") if op.exclusive else whole
    return d.apply(like, Narrow(), {"in": found}) if real else found
