"""What several families emit: numbers in the right precision, positions along an axis."""

from __future__ import annotations

import struct
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType

Number = int | float | Dim

LOWEST = {"float32": -3.4028234663852886e38, "float16": -65504.0, "bfloat16": -3.3895313892515355e38, "int64": -(2**63)}


def plain(value: Number) -> Number:
    """A number of Python, unless it is a free dimension."""
    return value.value if isinstance(value, Dim) and value.value is not None else value


def spelled(t: Any, value: Number) -> Any:
    """Source of a number: a literal, or the size of a free dimension."""
    value = plain(value)
    return t.size(value) if isinstance(value, Dim) else value


def number(g: Any, value: Number, dtype: str = "float") -> Any:
    """Scalar constant of `dtype`, or a free dimension as one."""
    value = plain(value)
    if isinstance(value, Dim):
        return g.cast(g.scalar(value), dtype, "int64")
    return g.const(int(value), "int64") if dtype == "int64" else g.number(value, dtype)


def exact(value: Number, dtype: str) -> bool:
    """Whether a number survives rounding to a half-precision dtype; every one counts as exact in float32."""
    value = plain(value)
    if dtype == "float32" or isinstance(value, Dim):
        return dtype == "float32"
    try:
        if dtype == "float16":
            return bool(struct.unpack("<e", struct.pack("<e", value))[0] == value)
        bits = struct.pack("<f", value)
    except OverflowError:
        return False
    return bool(struct.unpack("<f", bits)[0] == value) and bits[:2] == b"\0\0"


def with_number(g: Any, op_type: str, x: Any, value: Number, rounded: bool = False) -> Any:
    """op(x, value) of a float x: in float32 where the model's dtype would round the number and it should not."""
    if rounded or exact(value, g.dtype):
        return g.op(op_type, x, number(g, value))
    return g.from_f32(g.op(op_type, g.to_f32(x), number(g, value, "float32")))


def widened(g: Any, x: Any, dtype: str = "float") -> tuple[Any, Any]:
    """A value for an op that has no kernel for bfloat16, in float32 where the model is bfloat16, and what casts a result back."""
    through = dtype == "float" and g.dtype == "bfloat16"
    return (g.to_f32(x), g.from_f32) if through else (x, lambda out: out)


def positions(g: Any, size: Dim | int) -> Any:
    """int64 [size]: 0, 1, ..., made once."""
    zero, one = g.const(0, "int64"), g.const(1, "int64")
    return g.once(("positions", size), lambda: g.op("Range", zero, g.scalar(size), one))


def padded(g: Any, x: Any, type: TensorType, sizes: tuple[Dim | int, Dim | int], value: float, axis: int) -> Any:
    """`value` before and after along one axis; joined on for whole numbers on CUDA, which has no Pad for them.

    Pads are told of every axis: with a list of axes, ONNX Runtime 1.31 breaks the Pad when it moves a Transpose past it.
    """
    axis %= len(type.shape)
    outer, inner = type.shape[:axis], type.shape[axis + 1:]
    wide, back = widened(g, x, type.dtype)
    fill = g.number(value, type.dtype if wide is x else "float32")
    if type.dtype == "float" or g.target != "ort-cuda":
        ends = [(*[0] * len(outer), size, *[0] * len(inner)) for size in sizes]
        return back(g.op("Pad", wide, g.shape((*ends[0], *ends[1])), fill))
    before, after = (None if size == 0 else g.op("Expand", fill, g.shape((*outer, size, *inner))) for size in sizes)
    return g.op("Concat", *(part for part in (before, x, after) if part is not None), axis=axis)
