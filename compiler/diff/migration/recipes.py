"""How one tensor of a new checkpoint is made of those of an old one: a tree of steps over arrays, large tensors read in pieces."""

from __future__ import annotations

import zlib
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
    "fill": "one number everywhere", "random": "random numbers around zero", "start": "started anew", "none": "no way"}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A tensor of `shape`: `op` is of OPS, `name` the old tensor of a `source`, or the new one of a `random`; `index` [rows] or
    [rows, g] are rows of the parts one below the other, `value` what a `fill` is filled with, or the standard deviation of a `random`,
    `text` says it in words."""

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

    from ...checkpoints.weight_file import CHUNK, numbers
    if recipe.op == "source" or not recipe.shape:
        yield from numbers(read(recipe.name) if recipe.op == "source" else made(recipe, read))
        return
    if recipe.op == "copy":
        yield from pieces(recipe.parts[0], read)
        return
    held = {name: read(name) for name in recipe.sources()}
    step = max(CHUNK // max(prod(recipe.shape[1:]), 1), 1)
    for start in range(0, recipe.shape[0], step):
        yield taken(recipe, held.__getitem__, np.arange(start, min(start + step, recipe.shape[0]))).reshape(-1)


def made(recipe: Recipe, read: Read) -> np.ndarray:
    """The new tensor, whole."""
    import numpy as np
    if recipe.op == "source":
        return np.asarray(read(recipe.name))
    if not recipe.shape:
        return made(recipe.parts[0], read) if recipe.parts else np.full((), recipe.value, np.float32)
    held = {name: np.asarray(read(name)) for name in recipe.sources()}
    return taken(recipe, held.__getitem__, np.arange(recipe.shape[0]))


def taken(recipe: Recipe, read: Read, rows: np.ndarray) -> np.ndarray:
    """Rows of the new tensor, [n] -> [n, ...]: no more of the old ones is read than they need."""
    import numpy as np
    op, shape = recipe.op, (len(rows), *recipe.shape[1:])
    if op == "source":
        return _rows(read(recipe.name), rows)
    if op == "fill":
        return np.full(shape, recipe.value, np.float32)
    if op == "random":
        return np.stack([_drawn(recipe, int(row)) for row in rows]) if len(rows) else np.zeros(shape, np.float32)
    if op in ("rows", "repeat-rows"):
        rows = recipe.index[rows]
    if op == "mean-rows":
        return _means(recipe, read, recipe.index[rows])
    if op == "more-rows":
        rows = rows % sum(p.shape[0] for p in recipe.parts)
    if op == "pad-rows":
        inside = rows < sum(p.shape[0] for p in recipe.parts)
        old = _joined(recipe, read, rows[inside])
        if inside.all():
            return old
        padded = np.zeros(shape, old.dtype)
        padded[inside] = old
        return padded
    x = _joined(recipe, read, rows)
    if op == "cut-columns":
        return x[:, :recipe.shape[1]]
    if op == "pad-columns":
        return np.concatenate([x, np.zeros((len(x), recipe.shape[1] - x.shape[1]), x.dtype)], 1)
    assert op in ("copy", "rows", "repeat-rows", "cut-rows", "more-rows"), op
    return x


def _rows(array: Any, rows: np.ndarray) -> np.ndarray:
    """Rows of a tensor, those that follow each other in one read where it is still in its file."""
    import numpy as np
    if isinstance(array, np.ndarray):
        straight = len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows) and bool((np.diff(rows) == 1).all())
        return array[rows[0]:rows[-1] + 1] if straight else array[rows]
    width = prod(array.shape[1:])
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    if not len(rows):
        return np.empty((0, *array.shape[1:]), array.read(0, 1).dtype)
    runs = [array.read(int(run[0]) * width, (int(run[-1]) + 1) * width) for run in np.split(rows, cuts)]
    found = np.concatenate(runs) if len(runs) != 1 else runs[0]
    return found.reshape(len(rows), *array.shape[1:])


def _joined(recipe: Recipe, read: Read, rows: np.ndarray) -> np.ndarray:
    """Rows of the parts one below the other."""
    import numpy as np
    if len(recipe.parts) == 1:
        return taken(recipe.parts[0], read, rows)
    first, found = 0, []
    for part in recipe.parts:
        mine = (rows >= first) & (rows < first + part.shape[0])
        found.append((mine, taken(part, read, rows[mine] - first)) if mine.any() else (mine, None))
        first += part.shape[0]
    there = [x for _, x in found if x is not None]
    if len(there) == 1:
        return there[0]
    out = np.empty((len(rows), *recipe.parts[0].shape[1:]), np.result_type(*there) if there else np.float32)
    for mine, x in found:
        if x is not None:
            out[mine] = x
    return out


def _means(recipe: Recipe, read: Read, index: np.ndarray) -> np.ndarray:
    """Means of rows, [n, g] -> [n, ...]."""
    import numpy as np
    total, dtype = None, None
    for column in index.T:
        x = _joined(recipe, read, column)
        total, dtype = x.astype(np.float64) if total is None else np.add(total, x, out=total), x.dtype
    assert total is not None and dtype is not None
    return np.divide(total, index.shape[1], out=total).astype(dtype)


def _drawn(recipe: Recipe, row: int) -> np.ndarray:
    """One row of random numbers, always the same for the same tensor and row."""
    import numpy as np
    of = np.random.default_rng([zlib.crc32(recipe.name.encode()), row])
    return (recipe.value * of.standard_normal(recipe.shape[1:])).astype(np.float32)
