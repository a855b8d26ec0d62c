"""How one tensor of a new checkpoint is made of those of an old one: a tree of steps over arrays, large tensors read in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
KINDS = ("same", "renamed", "exact", "approx", "refused")               # from harmless to worst
# op -> what it does; `rows` are entries of the first axis, `columns` of the second
OPS = {
    "source": "the tensor itself", "copy": "the tensor again", "rows": "rows of it, or of several tensors",
    "mean-rows": "means of its rows", "repeat-rows": "its rows, some of them several times",
    "pad-rows": "rows of zeros behind it", "cut-rows": "its first rows",
    "more-rows": "its rows, then the first of them again", "pad-columns": "columns of zeros behind it", "cut-columns": "its first columns",
    "fill": "one number everywhere", "start": "started anew", "none": "no way"}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A tensor of `shape`: `op` is of OPS, `name` the old tensor of a `source`; `index` [rows] or [rows, g] are rows of the parts one below
    the other, `value` what a `fill` is filled with, `text` says it in words."""

    op: str
    shape: Shape
    kind: str
    parts: tuple[Recipe, ...] = ()
    name: str = ""
    index: Any = None
    value: float = 0.0
    text: str = ""

    def sources(self) -> list[str]:
        """The old tensors that it is made of, each once."""
        if self.op == "source":
            return [self.name]
        return list(dict.fromkeys(n for p in self.parts for n in p.sources()))

    @property
    def worst(self) -> str:
        """The kind of the whole tree."""
        return max((self.kind, *(p.worst for p in self.parts)), key=KINDS.index)

    def steps(self) -> Iterator[Recipe]:
        """What is done, the first first; sources are not told."""
        for p in self.parts:
            yield from p.steps()
        if self.op != "source":
            yield self

    @property
    def why(self) -> str:
        """What is done, in words."""
        return "; ".join(dict.fromkeys(s.text for s in self.steps() if s.text))


def source(name: str, shape: Shape) -> Recipe:
    """An old tensor as it is."""
    return Recipe("source", shape, "same", name=name)


Read = Callable[[str], "Any"]


def pieces(recipe: Recipe, read: Read) -> Iterator[np.ndarray]:
    """The numbers of the new tensor in C order, some at a time: [n] each. `read` gives an old tensor, which may still be in its file."""
    import numpy as np

    from ..checkpoints.weight_file import CHUNK, numbers
    if recipe.op == "source":
        yield from numbers(read(recipe.name))
    elif recipe.op == "copy":
        yield from pieces(recipe.parts[0], read)
    elif recipe.op == "pad-rows" and recipe.parts[0].op == "source":
        part = recipe.parts[0]
        dtype = None
        for piece in numbers(read(part.name)):
            dtype = piece.dtype
            yield piece
        left = prod(recipe.shape) - prod(part.shape)
        for start in range(0, left, CHUNK):
            yield np.zeros(min(CHUNK, left - start), dtype or np.float32)
    else:
        yield from numbers(made(recipe, read))


def made(recipe: Recipe, read: Read) -> np.ndarray:
    """The new tensor, whole."""
    import numpy as np
    if recipe.op == "source":
        return np.asarray(read(recipe.name))
    parts = [made(p, read) for p in recipe.parts]
    if recipe.op == "fill":
        dtype = parts[0].dtype if parts else np.float32
        return np.full(recipe.shape, recipe.value, dtype)
    x = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if recipe.op == "copy":
        return x
    rows = recipe.shape[0]
    if recipe.op in ("rows", "repeat-rows"):
        return x[recipe.index]
    if recipe.op == "mean-rows":
        return _means(x, recipe.index)
    if recipe.op == "cut-rows":
        return x[:rows]
    if recipe.op == "more-rows":
        return x[np.arange(rows) % len(x)]
    if recipe.op == "pad-rows":
        return np.concatenate([x, np.zeros((rows - len(x), *x.shape[1:]), x.dtype)])
    if recipe.op == "cut-columns":
        return x[:, :recipe.shape[1]]
    assert recipe.op == "pad-columns", recipe.op
    return np.concatenate([x, np.zeros((len(x), recipe.shape[1] - x.shape[1]), x.dtype)], 1)


def _means(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Means of rows, [rows, g] -> [rows, ...], so many at a time that little is held twice."""
    import numpy as np
    out = np.empty((len(index), *x.shape[1:]), x.dtype)
    for k in range(0, len(index), 256):
        out[k:k + 256] = x[index[k:k + 256]].mean(1, dtype=np.float64)
    return out
