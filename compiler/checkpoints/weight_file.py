"""An open weight file: named tensors, read whole or, where they are large, some numbers at a time."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..lang.diagnostic import Diagnostics, diagnostic, suggest

READABLE = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
            "uint64", "uint32", "uint16", "uint8", "bool")
# What reading the bytes of a damaged file or archive raises.
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
LARGE = 1 << 24                  # numbers above which a tensor stays in its file
CHUNK = 1 << 22                  # numbers compared, copied or converted at a time
PASSES = 8                       # times a file is read at most for a transposed tensor


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: its shape, dtype and how to read it (bfloat16 as uint16 bits or float32).

    `part(start, stop)` reads these numbers of it in C order; None where only the whole can be read.
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]
    part: Callable[[int, int], np.ndarray] | None = None


@dataclass(frozen=True)
class Deferred:
    """A large tensor that is still in its file. `np.asarray` reads the whole; `read(start, stop)` gives numbers in C order."""

    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(0, int(np.prod(self.shape))).reshape(self.shape), dtype)

    @property
    def T(self) -> Turned:                                                             # noqa: N802
        return Turned(self)

    def pieces(self, numbers: int) -> Iterator[np.ndarray]:
        """The numbers in C order, so many at a time: [numbers] each."""
        total = int(np.prod(self.shape))
        for start in range(0, total, numbers):
            yield self.read(start, min(start + numbers, total))


@dataclass(frozen=True)
class Turned:
    """A deferred matrix transposed: [o, i] -> [i, o]."""

    source: Deferred

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape[::-1]

    def pieces(self, numbers: int) -> Iterator[np.ndarray]:
        """Rows in their order, [rows, o] each: as many as have `numbers`, or more where the file would be read too often."""
        o, i = self.source.shape
        width, step = max(numbers // o, -(-i // PASSES), 1), max(numbers // i, 1)
        for left in range(0, i, width):
            block = None
            for top in range(0, o, step):
                rows = self.source.read(top * i, min(top + step, o) * i).reshape(-1, i)
                block = np.empty((min(width, i - left), o), rows.dtype) if block is None else block
                block[:, top:top + step] = rows[:, left:left + width].T
            if block is not None:
                yield block


def numbers(array: np.ndarray | Deferred) -> Iterator[np.ndarray]:
    """All numbers in C order, some at a time: [n] each."""
    if isinstance(array, Deferred):
        yield from array.pieces(CHUNK)
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield flat[start:start + CHUNK]


class WeightFile:
    """Named tensors of a file or of its shards; close it, or use it in a `with` block."""

    def __init__(self, path: Path, tensors: dict[str, Stored], close: Callable[[], None] = lambda: None):
        self.path, self._tensors, self._close = path, tensors, close

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored(name).shape

    def dtype(self, name: str) -> str:
        """The dtype in the file: `float32`, `float16`, `bfloat16`, `int64`, ..."""
        return self.stored(name).dtype

    def read(self, name: str) -> np.ndarray:
        """The tensor, bfloat16 as the float32 it stands for. Raises `Diagnostics` (code `bad-weights`)."""
        return self._read(name, lambda stored: stored.load())

    def deferred(self, name: str, start: int, shape: tuple[int, ...]) -> Deferred | None:
        """A tensor of `shape` from number `start` of `name` on, to be read while the file is open; None where `read` does as well."""
        part = self.stored(name).part
        if part is None or np.prod(shape, dtype=object) <= LARGE:
            return None
        return Deferred(shape, lambda first, last: self._read(name, lambda _: part(start + first, start + last)))

    def differ(self, a: str, b: str) -> str | None:
        """What differs between two tensors, in words; None where they are equal bit for bit. Read some numbers at a time."""
        one, two = self.stored(a), self.stored(b)
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            return f"`{a}` is {one.dtype} {list(one.shape)}, `{b}` {two.dtype} {list(two.shape)}"
        total = int(np.prod(one.shape, dtype=object))
        step = CHUNK if one.part and two.part else max(total, 1)
        for start in range(0, total, step):
            stop = min(start + step, total)
            left, right = (self._read(n, lambda s: (s.part(start, stop) if s.part else s.load()).reshape(-1)) for n in (a, b))  # noqa: B023
            bits = (left.view(np.uint8) != right.view(np.uint8)).reshape(len(left), -1).any(1)
            if bits.any():
                k = int(np.argmax(bits))
                at = [int(i) for i in np.unravel_index(start + k, one.shape)]
                return f"the first difference is at {at}: {left[k]!s} in `{a}`, {right[k]!s} in `{b}`"
        return None

    def close(self) -> None:
        self._close()

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, name: str, load: Callable[[Stored], np.ndarray]) -> np.ndarray:
        stored = self.stored(name)
        if stored.dtype not in READABLE:
            fail(f"tensor `{name}` of `{self.path}` is {stored.dtype}", f"expected one of {', '.join(READABLE)}",
                 "convert it to float32 or bfloat16 before saving")
        try:
            array = load(stored)
        except DAMAGE as error:
            fail(f"tensor `{name}` of `{self.path}` cannot be read: {first(error)}",
                 f"expected {stored.dtype} {list(stored.shape)}", "the file changed or is damaged: save or copy it again")
        if stored.dtype == "bfloat16" and array.dtype == np.uint16:
            return (array.reshape(-1).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(array.shape)
        return array

    def stored(self, name: str) -> Stored:
        """Where the tensor is. Raises `Diagnostics` (code `bad-weights`) with the nearest names."""
        if name not in self._tensors:
            raise Diagnostics([diagnostic("bad-weights", f"`{self.path}` holds no tensor `{name}`",
                                          help=suggest(name, self._tensors, "tensors"))])
        return self._tensors[name]


def first(error: Exception) -> str:
    """The first line of an exception's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def damaged(path: Path, why: str) -> NoReturn:
    fail(f"`{path}` is not a {path.suffix} file, or is damaged: {why}",
         f"expected the format that its ending {path.suffix} names", "save, copy or download it again")


def fail(headline: str, note: str, help: str | tuple[str, ...] = ()) -> NoReturn:  # noqa: A002
    raise Diagnostics([diagnostic("bad-weights", headline, note=note, help=help)])
