"""Comparison of named results with a reference, without broadcasting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

LARGEST_HALF = 65504.0                          # float16
LARGEST = 3.38e38                               # just below the largest bfloat16, 3.3895e38, and float32, 3.4028e38


@dataclass(frozen=True)
class Summary:
    """How far an array is from its reference, over the elements where both are ordinary numbers.

    NaN, +Inf, -Inf and the largest finite numbers of a dtype, which fill masked scores, are not: `nonfinite` is the index of the
    first element where one of them stands on one side only. `max_abs` is the largest absolute error, `max_rel` that error divided
    by `scale`, the largest absolute value of the reference; `worst` is its index (None when nothing could be compared), with the
    two values there.
    """

    max_abs: float
    max_rel: float
    worst: tuple[int, ...] | None
    got: float | None
    want: float | None
    scale: float
    nonfinite: tuple[int, ...] | None


@dataclass(frozen=True)
class Difference:
    """One output that differs: what about it, in words, and the numbers where both sides could be compared."""

    name: str
    kind: Literal["missing", "unexpected", "shape", "dtype", "nonfinite", "values"]
    text: str
    summary: Summary | None = None


def compare(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], rtol: float, atol: float) -> list[Difference]:
    """The outputs that differ from the reference `want`, in its order.

    Floats agree within `atol + rtol * max|want|`, with NaN, Inf and the dtype's largest numbers at the same places; integers and
    booleans agree exactly.
    Shapes must be equal and both dtypes of one kind: nothing is broadcast or converted between kinds.
    """
    found = [_compare(name, np.asarray(got[name]), np.asarray(want[name]), rtol, atol) if name in got
             else Difference(name, "missing", f"`{name}` is missing") for name in want]
    extra = [Difference(name, "unexpected", f"`{name}` is not in the reference") for name in got if name not in want]
    return [d for d in (*found, *extra) if d is not None]


def measure(got: np.ndarray, want: np.ndarray) -> Summary:
    """The distance of an array from a reference of the same shape and kind. Raises ValueError when they are not."""
    if got.shape != want.shape or _kind(got) != _kind(want):
        raise ValueError(f"{got.dtype}{list(got.shape)} and {want.dtype}{list(want.shape)} cannot be compared")
    a, b = got.astype(np.float64), want.astype(np.float64)
    kinds, others = _special(got), _special(want)
    finite, same = (kinds == 0) & (others == 0), kinds == others
    nonfinite = None if same.all() else _index(np.argmin(same), a.shape)
    scale = float(np.max(np.abs(b), where=finite, initial=0.0))
    if not finite.any():
        return Summary(0.0, 0.0, None, None, None, scale, nonfinite)
    error = np.abs(np.subtract(a, b, where=finite, out=np.zeros(a.shape)))
    worst = _index(np.argmax(np.where(finite, error, -1.0)), a.shape)
    largest = float(error[worst])
    relative = largest / scale if scale else float("inf" if largest else 0)
    return Summary(largest, relative, worst, float(a[worst]), float(b[worst]), scale, nonfinite)


def share_beyond(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> float:
    """The share of elements that differ by more than `atol + rtol * max|want|`."""
    scale = measure(got, want).scale
    return float(np.mean(np.abs(got.astype(np.float64) - want.astype(np.float64)) > atol + rtol * scale)) if got.size else 0.0


def _compare(name: str, got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> Difference | None:
    if got.shape != want.shape:
        return Difference(name, "shape", f"`{name}` has shape {list(got.shape)}, the reference {list(want.shape)}")
    if _kind(got) != _kind(want):
        return Difference(name, "dtype", f"`{name}` is {got.dtype.name}, the reference {want.dtype.name}")
    s = measure(got, want)
    if s.nonfinite is not None:
        i = s.nonfinite
        return Difference(name, "nonfinite", f"`{name}` is {got[i]!s} at {list(i)}, the reference {want[i]!s}", s)
    exact = _kind(want) != "float"
    if exact and (got != want).any():
        i = _index(np.argmax(got != want), got.shape)
        count = int((got != want).sum())
        return Difference(name, "values", f"`{name}` is {got[i]!s} at {list(i)}, the reference {want[i]!s}; "
                          f"{count} of {got.size} differ", s)
    if not exact and s.max_abs > atol + rtol * s.scale:
        return Difference(name, "values", f"`{name}` is {s.got:.6g} at {list(s.worst or ())}, the reference {s.want:.6g}: off by "
                          f"{s.max_abs:.3g}, allowed {atol + rtol * s.scale:.3g}", s)
    return None


def _special(array: np.ndarray) -> np.ndarray:
    """int8: 0 for ordinary numbers, +-1 for the largest finite ones of the dtype, +-2 for Inf, 3 for NaN."""
    x = array.astype(np.float64)
    if _kind(array) != "float":
        return np.zeros(x.shape, np.int8)
    limit = LARGEST_HALF if array.dtype == np.float16 else LARGEST
    codes = np.sign(x, where=~np.isnan(x), out=np.zeros(x.shape)) * ((np.abs(x) >= limit).astype(np.int8) + np.isinf(x))
    return np.where(np.isnan(x), 3, codes).astype(np.int8)


def _kind(array: np.ndarray) -> str:
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        return "float"
    return "int" if array.dtype.kind in "iu" else array.dtype.name


def _index(flat: np.intp, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
