"""Chunks of positions: their shapes, long ones in parts, and what comes out of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from .errors import ArtifactError, suggest
from .manifest import Output
from .steps import NEW


def number_from(value: Any, least: int) -> TypeGuard[int]:
    """Whether a value is a whole number, `least` or more."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def growing(outputs: Collection[Output], names: Sequence[str] | None) -> tuple[Output, ...]:
    """The outputs that have positions, or those named of them. Raises `ArtifactError` (code `bad-inputs`) for a name that is none."""
    found = {x.name: x for x in outputs if NEW in x.shape}
    if names is None:
        return tuple(found.values())
    for name in (names := [names] if isinstance(names, str) else names):
        if name not in found:
            raise ArtifactError("bad-inputs", f"the model has no output `{name}` that grows", helps=suggest(name, found, "outputs"))
    return tuple(x for x in found.values() if x.name in names)


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an input, none where it is not rectangular, which is told when it is checked."""
    try:
        return np.shape(value)
    except ValueError:
        return ()


def rows_first(array: np.ndarray, output: Output, row: int | str) -> np.ndarray:
    """[B, N, ...] of an output that has its rows and its positions on any axes; `row` is the dimension of rows."""
    return np.moveaxis(array, (output.shape.index(row), output.shape.index(NEW)), (0, 1))


def pieces(arrays: Mapping[str, np.ndarray], length: np.ndarray, count: int,
            piece: int) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray, int, int]]:
    """A long chunk in parts: the arrays, how many positions of each row are valid, how many there are, and where the part starts."""
    for at in range(0, max(count, 1), piece):
        size = min(piece, count - at)
        yield {k: v[:, at:at + size] for k, v in arrays.items()}, np.clip(length - at, 0, size), size, at


def rounded(n: int) -> int:
    """A multiple of 8, which every fused kernel takes."""
    return -(-n // 8) * 8
