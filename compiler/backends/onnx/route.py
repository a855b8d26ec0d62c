"""Mixture of experts where no kernel does it: every expert on every row, mixed by the weights of its rows."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Branch, TensorType
from .builder import Builder, Val
from .entries import Entries, Place, Run, present


def route(at: Place, op: Branch, type: TensorType, given: Entries, run: Run) -> Val:
    """sum over k of weights[.., k] * expert[indices[.., k]](in) for each row of `in`; the experts see the rows as one axis."""
    g, line = at.g, at.g.line
    flat = op.bodies[0].arguments[op.bodies[0].argument("in").output].type
    reshaped = len(type.shape) != len(flat.shape)
    rows = present(g, given["in"])
    if reshaped:
        rows = g.op("Reshape", rows, g.shape(flat.shape), allowzero=1)
    shares = _shares(g, len(op.schedule), present(g, given["route.weights"]), present(g, given["route.indices"]), reshaped)
    mixed: Val | None = None
    for i, body in enumerate(op.schedule):
        region = op.bodies[body]
        name = region.outputs[0][0]
        made = run(at.copy(i, op.share[i]), region, {**given, "in": rows}, frozenset({name}))
        g.path, g.line = at.path, line
        part = g.op("Mul", present(g, made[name]), shares[i])
        mixed = part if mixed is None else g.op("Add", mixed, part)
    assert mixed is not None
    return g.op("Reshape", mixed, g.shape(type.shape), allowzero=1) if reshaped else mixed


def _shares(g: Builder, experts: int, weights: Val, indices: Val, reshaped: bool) -> tuple[Val, ...]:
    """[rows 1] for each expert: its weight in each row, 0 where the row is not sent to it. Weights and indices are [.. k]."""
    wide = g.op("Unsqueeze", indices, g.ints(-1))
    chosen = g.op("Equal", wide, g.const(np.arange(experts, dtype=np.int64)))
    each = g.op("Where", chosen, g.op("Unsqueeze", weights, g.ints(-1)), g.number(0.0))
    table = g.op("ReduceSum", each, g.ints(-2), keepdims=0)
    if reshaped:
        table = g.op("Reshape", table, g.ints(-1, experts))
    return g.op("Split", table, outputs=experts, axis=-1, num_outputs=experts) if experts > 1 else (table,)
