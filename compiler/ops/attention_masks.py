"""The masks of attention in ONNX: booleans, made once for every distinct set of inputs and shared by the layers that ask for the same."""

from __future__ import annotations

import math
from typing import Any

from ..ir.dimension import Dim
from .base import tensor
from .emission import LOWEST, positions


def _column(g: Any, size: Dim) -> Any:
    """int64 [size 1]: the positions of queries."""
    return g.once(("attention column", size), lambda: g.op("Unsqueeze", positions(g, size), g.ints(1)))


def rows(op: Any, g: Any, length: Any) -> Any:
    """bool [B 1 T 1]: queries that are not padding; None where that is not told."""
    flat = flat_rows(op, g, length)
    return flat and g.once(("attention rows", flat.name), lambda: g.op("Unsqueeze", flat, g.ints(1)))


def flat_rows(op: Any, g: Any, length: Any) -> Any:
    """bool [B T 1]: `rows` for heads that lie in the last axis."""
    if length is None or not op.causal:
        return None
    T = tensor(g.inputs, "query").shape[2]
    end = g.once(("attention end", length.name), lambda: g.op("Unsqueeze", length, g.ints(1, 2)))
    return g.once(("attention flat rows", length.name, T), lambda: g.op("Less", _column(g, T), end))


def filled(g: Any, length: Any) -> Any:
    """bool [B 1 1]: rows that have keys at all."""
    end = g.once(("attention end", length.name), lambda: g.op("Unsqueeze", length, g.ints(1, 2)))
    return g.once(("attention filled", length.name), lambda: g.op("Greater", end, g.const(0, "int64")))


def _each_row(g: Any, length: Any) -> Any:
    """int64 [B 1 1 1]."""
    return g.once(("attention length", length.name), lambda: g.op("Unsqueeze", length, g.ints(1, 2, 3)))


def _band(op: Any, g: Any) -> Any:
    """bool [T S]: keys up to the query's position, `window` of them."""
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))

    def make() -> Any:
        seen = g.op("LessOrEqual", positions(g, S), _column(g, T))
        if op.window is None:
            return seen
        return g.op("And", seen, g.op("Greater", positions(g, S), g.op("Sub", _column(g, T), g.ints(op.window))))

    return g.once(("attention band", T, S, op.window), make)


def _pairs(op: Any, g: Any, length: Any, keep: Any) -> Any:
    """bool, 2 or 4 axes that broadcast to [B H T S]: the keys that queries see, padding queries aside; None: all."""
    parts = [_band(op, g)] if op.causal else []
    if length is not None and not op.causal:
        S = tensor(g.inputs, "key").shape[2]
        parts.append(g.once(("attention keys", length.name, S), lambda: g.op("Less", positions(g, S), _each_row(g, length))))
    if keep is not None:
        axes = range(1, 5 - len(tensor(g.inputs, "keep").shape))
        parts.append(g.once(("attention keep", keep.name), lambda: g.op("Unsqueeze", keep, g.ints(*axes))) if axes else keep)
    return _all(g, parts)


def _all(g: Any, parts: list[Any]) -> Any:
    """The conjunction of masks, None of no masks."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return g.once(("attention all", *(p.name for p in parts)), lambda: g.op("And", _all(g, parts[:-1]), parts[-1]))


def dense(op: Any, g: Any, length: Any, keep: Any, bias: Any) -> Any:
    """The mask of ai.onnx Attention, [1|B 1|H T S]: bool, or float where there is a bias.

    Causality is in the mask and not in `is_causal`: padding S would move the corner it is counted from. What is hidden
    has the dtype's lowest number, since -inf leaves kernels to deal with -inf - -inf. But on the CPU ONNX Runtime may run
    float16 attention in float32, where -65504 is a score like others and a row of them has a softmax; -inf gives 0 there.
    """
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))
    mask = _all(g, [m for m in (_pairs(op, g, length, keep), rows(op, g, length)) if m is not None])
    if bias is not None and mask is not None:
        shown, lowest = mask, g.number(-math.inf if g.dtype == "float16" and g.target == "ort-cpu" else LOWEST[g.dtype])
        mask = g.once(("attention merged", mask.name, bias.name), lambda: g.op("Where", shown, bias, lowest))
    elif bias is not None:
        mask = bias
    full = op.causal and (keep is not None or length is not None)    # [T S] and 4 axes
    if full or (bias is not None and tensor(g.inputs, "score_bias").shape[2] == T):
        return mask
    return g.once(("attention full", mask.name, T, S), lambda: g.op("Expand", mask, g.shape((1, 1, T, S))))


def added(op: Any, g: Any, length: Any, keep: Any, bias: Any) -> Any:
    """float32 to add to the scores: the bias, and float32's lowest number where a key is hidden; None: nothing."""
    pairs = _pairs(op, g, length, keep)
    if bias is not None:
        bias = g.once(("attention bias", bias.name), lambda: g.to_f32(bias)) if g.dtype != "float32" else bias
    if pairs is None:
        return bias
    shown = g.number(0.0, "float32") if bias is None else bias
    lowest = g.number(LOWEST["float32"], "float32")
    return g.once(("attention added", pairs.name, shown.name), lambda: g.op("Where", pairs, shown, lowest))


def seeing(op: Any, g: Any, length: Any, keep: Any) -> Any:
    """bool [1|B 1|H 1|T 1]: queries that see a key; None where all surely do."""
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))
    parts = []
    if keep is not None or (length is not None and not op.causal) or (op.window is not None and T != S):
        pairs = _pairs(op, g, length, keep)

        def some() -> Any:
            most = g.op("ReduceMax", g.op("Cast", pairs, to=1), g.ints(-1), keepdims=1)
            return g.op("Cast", most, to=9)

        parts.append(g.once(("attention seeing", pairs.name), some))
    inside = rows(op, g, length)
    return _all(g, parts if inside is None else [*parts, inside])
