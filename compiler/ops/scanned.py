"""A GRU as loops, for CUDA, which has no kernel with the reset gate before the state's matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import tensor
from .cells import gru_nodes
from .emission import positions


def casts(g: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """To what a layer runs in and back: float32 in bfloat16 models, as no recurrent kernel takes that."""
    return (g.to_f32, g.from_f32) if g.dtype == "bfloat16" else (lambda v: v, lambda v: v)


def scanned(op: Any, g: Any, **ports: Any) -> Any:
    """A loop in each layer and direction; as `native`, it has time first and runs bfloat16 models in float32."""
    wide, narrow = casts(g)
    length, start = ports.get("length"), ports.get("state")
    B, S, _ = tensor(g.inputs, "in").shape
    start = g.op("Expand", g.number(0.0), g.shape((op.layers * op.directions, B, op.hidden))) if start is None else start
    valid = None if length is None else g.once(("valid", length.name, S), lambda: g.op(
        "Less", g.op("Unsqueeze", positions(g, S), g.ints(1)), length))                  # [S B]
    x, start, finals = g.op("Transpose", wide(ports["in"]), perm=[1, 0, 2]), wide(start), []
    for k in range(op.layers):
        outs = []
        for j in range(op.directions):
            names = op.names(k, j)
            weight_ih, weight_hh, *biases = (ports[name] for name in names)
            gates = g.op("MatMul", x, wide(g.transposed(weight_ih, tensor(g.inputs, names[0]).shape)))
            weights = {"weight_hh": wide(weight_hh)}
            if biases:
                gates, weights["bias_hh"] = g.op("Add", gates, wide(biases[0])), wide(biases[1])
            first = g.op("Gather", start, g.const(k * op.directions + j, "int64"), axis=0)
            out, last = _looped(op, g, gates, first, valid, weights, backward=bool(j) or op.direction == "backward")
            outs.append(out)
            finals.append(g.op("Unsqueeze", last, g.ints(0)))
        x = outs[0] if len(outs) == 1 else g.op("Concat", *outs, axis=-1)
    final = finals[0] if len(finals) == 1 else g.op("Concat", *finals, axis=0)
    return g.op("Transpose", narrow(x), perm=[1, 0, 2]), narrow(final)


def _looped(op: Any, g: Any, gates: Any, start: Any, valid: Any, weights: dict[str, Any], backward: bool) -> tuple[Any, Any]:
    """Outputs [S B h] and the last state [B h], from the input's gates [S B 3*h]; `valid` [S B] is false past a row's end."""
    B = tensor(g.inputs, "in").shape[0]
    kind = "float32" if g.dtype == "bfloat16" else "float"
    state = TensorType(kind, (B, Dim.const(op.hidden)))
    each = [(gates, TensorType(kind, (B, Dim.const(3 * op.hidden))))]
    if valid is not None:
        valid = g.once(("column", valid.name), lambda: g.op("Unsqueeze", valid, g.ints(2)))
        each.append((valid, TensorType("bool", (B, Dim.const(1)))))

    def step(body: Any, states: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
        new = gru_nodes(body, op.reset, op.hidden, given[0], states[0], weights)
        return (new if len(given) == 1 else body.op("Where", given[1], new, states[0]),)

    last, out = g.loop([start], [state], each, step, backward)
    return out if valid is None else g.op("Where", valid, out, g.number(0.0, kind)), last
