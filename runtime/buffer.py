"""Memory that ONNX Runtime reads and writes in place from run to run, open to numpy between runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .convert import narrow_bfloat16, widen_bfloat16
from .dimension import parse

if TYPE_CHECKING:
    import onnxruntime

_BFLOAT16 = 16                   # onnx.TensorProto.BFLOAT16
_LINE = 64                       # bytes of a line of the CPU's cache
_NUMPY = {"bfloat16": np.dtype(np.uint16)}


class Buffer:
    """One tensor, with the bits of bfloat16 as uint16. On the CPU `array` is its memory, elsewhere None."""

    def __init__(self, array: np.ndarray, dtype: str, device: str = "cpu"):
        array = np.ascontiguousarray(array)
        self.dtype, self.device, self.shape = dtype, device, array.shape
        self.value: onnxruntime.OrtValue = _values().ortvalue_from_numpy(array, device)     # shares the memory on the CPU
        self.array = array if device == "cpu" else None

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: str, device: str = "cpu") -> Buffer:
        """Zeros, on the CPU at a multiple of 64 bytes: rows that begin inside of cache lines are read twice by wide instructions."""
        kind = stored(dtype)
        count = math.prod(shape)
        raw = np.zeros(count * kind.itemsize + _LINE, np.uint8)
        start = -raw.__array_interface__["data"][0] % _LINE
        return cls(raw[start:start + count * kind.itemsize].view(kind).reshape(shape), dtype, device)

    @classmethod
    def of(cls, array: np.ndarray, dtype: str, device: str = "cpu") -> Buffer:
        """A copy of numbers; those of bfloat16 come as float32, or as their bits."""
        bits = dtype == "bfloat16" and array.dtype != np.uint16
        return cls(narrow_bfloat16(array) if bits else np.array(array, stored(dtype)), dtype, device)

    def read(self) -> np.ndarray:
        """What is held: on the CPU the memory itself, else a copy."""
        return self.value.numpy() if self.array is None else self.array

    def write(self, array: np.ndarray) -> None:
        """Put in an array of the same shape, of what `read` gives."""
        if self.array is None:
            self.value.update_inplace(np.ascontiguousarray(array, stored(self.dtype)))
        else:
            self.array[...] = array

    def numbers(self) -> np.ndarray:
        """What `read` gives, bfloat16 as float32."""
        return widen_bfloat16(self.read()) if self.dtype == "bfloat16" else self.read()

    def bind_input(self, binding: Any, name: str) -> None:
        if self.dtype == "bfloat16":            # numpy has no such type: by address, under ONNX's number of it
            binding.bind_input(name, self.device, 0, _BFLOAT16, self.shape, self.value.data_ptr())
        else:
            binding.bind_ortvalue_input(name, self.value)

    def bind_output(self, binding: Any, name: str) -> None:
        if self.dtype == "bfloat16":
            binding.bind_output(name, self.device, 0, _BFLOAT16, self.shape, self.value.data_ptr())
        else:
            binding.bind_ortvalue_output(name, self.value)


@cache
def _values() -> type[onnxruntime.OrtValue]:
    from onnxruntime import OrtValue
    return OrtValue


@cache
def stored(dtype: str) -> np.dtype:
    """The numpy type that holds it."""
    return _NUMPY.get(dtype) or np.dtype(dtype)


def sized(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The lengths of a shape's axes, None where the sizes do not tell one."""
    lengths = []
    for entry in shape:
        try:
            length = parse(entry).size(sizes)
        except ValueError:                      # a polynomial
            return None
        if length is None:
            return None
        lengths.append(length)
    return tuple(lengths)
