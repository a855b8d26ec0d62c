"""Conversion of one argument to the dtype of its input, only where that loses nothing a caller would miss."""

from __future__ import annotations

from typing import Any

import numpy as np

_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float"}


class Unfit(Exception):
    """The argument cannot become the wanted dtype; the headline continues a sentence that names it."""

    def __init__(self, headline: str, helps: str | tuple[str, ...] = ()):
        self.headline, self.helps = headline, helps
        super().__init__(headline)


def convert(value: Any, dtype: str) -> np.ndarray:
    """The value as an array of `dtype`; bfloat16 as its bits in uint16. Raises `Unfit`."""
    literal = isinstance(value, list | tuple | int | float | bool)
    array = _array(value)
    if array.dtype.name == "bfloat16":
        array = widen_bfloat16(array.view(np.uint16))
    if literal and array.size == 0:
        array = array.astype(np.float32 if "float" in dtype else dtype)
    kind = _KINDS.get(array.dtype.kind)
    if kind is None:
        what = {"U": "text", "S": "bytes", "O": "Python objects", "M": "dates", "m": "times", "c": "complex numbers"}
        raise Unfit(f"holds {what.get(array.dtype.kind, array.dtype.name)}, not numbers or booleans")
    wanted = "bool" if dtype == "bool" else "int" if dtype.startswith("int") else "float"
    if kind != wanted and not (literal and kind == "int" and wanted == "float"):
        words = {"bool": "true and false", "int": "whole numbers", "float": "numbers"}[wanted]
        raise Unfit(f"is {array.dtype.name}, expected {dtype}",
                    f"write {words}" if literal else f'cast it where it is made: `.astype("{_numpy(dtype)}")`')
    if wanted == "float":
        return _floats(array, dtype, literal)
    return array if wanted == "bool" else _integers(array, dtype, literal)


def narrow_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, to nearest even; the result is uint16 bits of the same shape."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).reshape(np.shape(array))
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bits (uint16), exactly, of the same shape."""
    return (np.atleast_1d(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(bits.shape)


def _array(value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        ragged = "inhomogeneous" in str(error)
        raise Unfit("is not rectangular: its rows have different lengths" if ragged else f"is not an array: {error}",
                    "pad the rows to one length" if ragged else ()) from None
    if array.dtype == object and array.size and all(isinstance(x, int) for x in array.flat):
        raise Unfit("has a number beyond 64 bits")
    if array.dtype == object:
        raise Unfit(f"is {type(value).__name__}, which is not an array of numbers")
    return array


def _integers(array: np.ndarray, dtype: str, literal: bool) -> np.ndarray:
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype, copy=False)
    info = np.iinfo(dtype)
    if literal and array.min() >= info.min and array.max() <= info.max:
        return array.astype(dtype)
    raise Unfit(f"is {array.dtype.name}, which does not fit {dtype}", f'cast it where it is made: `.astype("{dtype}")`')


def _floats(array: np.ndarray, dtype: str, literal: bool) -> np.ndarray:
    width = {"float16": 2, "bfloat16": 2, "float32": 4}[dtype]
    if not literal and array.dtype.itemsize > 4:
        raise Unfit(f"is {array.dtype.name}, expected {dtype}", f'cast it where it is made: `.astype("{_numpy(dtype)}")`')
    with np.errstate(over="ignore"):
        single = array.astype(np.float32, copy=False)
        made = single.astype(np.float16, copy=False) if dtype == "float16" else single
    bits = narrow_bfloat16(single) if dtype == "bfloat16" else None
    back = widen_bfloat16(bits) if bits is not None else made
    lost = np.isinf(back) & np.isfinite(array) if array.dtype.itemsize > width or bits is not None else np.zeros((), bool)
    if lost.any():
        index = tuple(int(i) for i in np.argwhere(lost)[0])
        raise Unfit(f"has {array[index]!s} at index {list(index)}, which is too large for {dtype}")
    return made if bits is None else bits


def _numpy(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype
