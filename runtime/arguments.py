"""The check of a call's arrays against the manifest, before ONNX Runtime sees them; every problem is found in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .convert import Unfit, convert
from .dimension import Dimension
from .errors import ArtifactError, check, suggest
from .manifest import Input, Manifest


@dataclass(frozen=True)
class _Seen:
    """Where the size of a dimension was first read."""

    size: int
    input: str
    axis: int


@dataclass
class _Call:
    """The state of one check: arrays that fit their dtype, sizes read so far, problems."""

    manifest: Manifest
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: dict[str, _Seen] = field(default_factory=dict)
    problems: list[ArtifactError] = field(default_factory=list)

    def wrong(self, headline: str, notes: str | tuple[str, ...] = (), helps: str | tuple[str, ...] = ()) -> None:
        self.problems.append(ArtifactError("bad-inputs", headline, notes, helps))


def prepare(manifest: Manifest, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Check arrays (numpy, or nested Python lists) and cast them to the dtypes of the manifest's inputs.

    Exact casts are made (int32 to int64, float16 to float32), Python numbers fit any float, and float32 is rounded to float16 and
    bfloat16; bfloat16 arrays come back as their uint16 bits. Raises `ArtifactErrors` (code `bad-inputs`): names, dtypes, ranks,
    lengths of axes, bounds, ids and lengths.
    """
    call = _Call(manifest)
    _names(call, arrays)
    given = [x for x in manifest.inputs if x.name in arrays and not (x.optional and arrays[x.name] is None)]
    for x in given:
        try:
            call.arrays[x.name] = convert(arrays[x.name], x.dtype)
        except Unfit as unfit:
            call.wrong(f"input `{x.name}` {unfit.headline}", f"expected {_declared(x)}", unfit.helps)
    for x in _shapes(call, {name: np.shape(array) for name, array in call.arrays.items()}):
        _values(call, x, call.arrays[x.name])
    return _complete(call, given)


def prepare_tensors(manifest: Manifest, found: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """Check the dtype and shape of tensors that stay where they are; their numbers are not looked at.

    Returns arrays for the neutral inputs that were left out. Raises as `prepare` does.
    """
    call = _Call(manifest)
    _names(call, found)
    given = [x for x in manifest.inputs if x.name in found]
    for x in given:
        if found[x.name][0] != x.dtype:
            call.wrong(f"input `{x.name}` is {found[x.name][0]}", f"expected {_declared(x)}", "tensors on a device are not converted")
    _shapes(call, {name: shape for name, (_, shape) in found.items()})
    return _complete(call, given)


def _shapes(call: _Call, shapes: Mapping[str, tuple[int, ...]]) -> list[Input]:
    """Read the sizes from the shapes; returns the inputs whose shape fits."""
    shaped = [x for x in call.manifest.inputs if x.name in shapes and _rank(call, x, shapes[x.name])]
    good = [x for x in shaped if _axes(call, x, shapes[x.name])]
    _bounds(call)
    return good


def _complete(call: _Call, given: list[Input]) -> dict[str, np.ndarray]:
    """Raise what is wrong, or fill in the neutral inputs."""
    for x in call.manifest.inputs:
        if x.neutral and x not in given:
            _neutral(call, x)
    check(call.problems)
    return call.arrays


def _neutral(call: _Call, x: Input) -> None:
    """Fill in what was left out: its fill, or a mask or lengths that hide nothing."""
    sizes = {name: seen.size for name, seen in call.sizes.items()}
    sized = [d.size(sizes) for d in x.dimensions]
    shape = [n for n in sized if n is not None]
    value = x.fill if x.fill is not None else sizes.get(x.length_of) if x.length_of else True
    if len(shape) == len(sized) and value is not None:
        call.arrays[x.name] = np.full(shape, value, x.dtype)
    elif not call.problems:
        call.wrong(f"input `{x.name}` is missing, and no other input tells its size", f"expected {_declared(x)}")


def _declared(x: Input) -> str:
    return f"`{x.name}`: {x.dtype}[{', '.join(str(d) for d in x.dimensions)}]"


def _names(call: _Call, arrays: Mapping[str, Any]) -> None:
    known = call.manifest.input_names
    missing = [x for x in call.manifest.inputs if not x.optional and x.name not in arrays]
    for name in arrays:
        if name not in known:
            call.wrong(f"the model has no input `{name}`", helps=suggest(name, [x.name for x in missing] or known, "inputs"))
    for x in missing:
        call.wrong(f"input `{x.name}` is missing", f"expected {_declared(x)}")


def _rank(call: _Call, x: Input, shape: tuple[int, ...]) -> bool:
    if len(shape) == len(x.shape):
        return True
    helps = ("a single row still needs its batch axis: `x[None]`",) if len(shape) == len(x.shape) - 1 else ()
    call.wrong(f"input `{x.name}` has {_axes_text(len(shape))}, expected {len(x.shape)}",
               (f"expected {_declared(x)}", f"found shape {list(shape)}"), helps)
    return False


def _axes(call: _Call, x: Input, shape: tuple[int, ...]) -> bool:
    before = len(call.problems)
    for axis, (dimension, length) in enumerate(zip(x.dimensions, shape, strict=True)):
        where = f"axis {axis} of input `{x.name}`"
        if dimension.name is None:
            if length != dimension.offset:
                call.wrong(f"{where} has length {length}, expected {dimension.offset}", f"expected {_declared(x)}")
            continue
        size = dimension.solve(length)
        if size is None:
            call.wrong(f"{where} has length {length}, which {_unsolved(dimension)}",
                       f"expected {_declared(x)}")
            continue
        seen = call.sizes.setdefault(dimension.name, _Seen(size, x.name, axis))
        if seen.size != size:
            first = next(y for y in call.manifest.inputs if y.name == seen.input)
            call.wrong(f"inputs `{seen.input}` and `{x.name}` disagree about `{dimension.name}`: {seen.size} and {size}",
                       (f"`{dimension.name}` = {seen.size} from axis {seen.axis} of {_declared(first)}",
                        f"`{dimension.name}` = {size} from axis {axis} of {_declared(x)}"))
    return len(call.problems) == before


def _unsolved(dimension: Dimension) -> str:
    if dimension.offset:
        return f"is not `{dimension}` for any `{dimension.name}` from 0"
    return f"is not divisible by {dimension.scale}"


def _bounds(call: _Call) -> None:
    """Sizes above what the inputs promise, or below what the model can run with."""
    limits: dict[str, int] = {}
    for x in call.manifest.inputs:
        for name, bound in x.bounds.items():
            limits[name] = min(bound, limits.get(name, bound))
    for name, bound in limits.items():
        seen = call.sizes.get(name)
        if seen and seen.size > bound:
            call.wrong(f"`{name}` is {seen.size}, but the model takes at most {bound}",
                       f"`{name}` is read from axis {seen.axis} of input `{seen.input}`",
                       "shorten or split the input, or export a model with a larger bound")
    for name, smallest in call.manifest.least.items():
        seen = call.sizes.get(name)
        if seen and seen.size < smallest:
            call.wrong(f"`{name}` is {seen.size}, but the model needs at least {smallest}",
                       f"`{name}` is read from axis {seen.axis} of input `{seen.input}`",
                       "leave the call out where there is nothing to compute" if seen.size == 0 else "pad the input")


def _values(call: _Call, x: Input, array: np.ndarray) -> None:
    if x.ids_below is not None:
        below = x.ids({name: seen.size for name, seen in call.sizes.items()})
        limit = np.iinfo(array.dtype).max if below is None else below - 1
        told = f", and `{x.ids_below}` = {below}" if isinstance(x.ids_below, str) else ""
        _range(call, x, array, limit, f"ids of `{x.name}` lie in [0, {x.ids_below}){told}")
    if x.length_of is not None:
        seen = call.sizes.get(x.length_of)
        limit = seen.size if seen else np.iinfo(array.dtype).max
        whose = f" = {seen.size}, axis {seen.axis} of input `{seen.input}`" if seen else ""
        _range(call, x, array, limit, f"`{x.name}` holds lengths along `{x.length_of}`{whose}; 0 is allowed")


def _range(call: _Call, x: Input, array: np.ndarray, largest: int, note: str) -> None:
    bad = (array < 0) | (array > largest)
    if not bad.any():
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    where = f"row {index[0]}" if len(index) == 1 else f"index {list(index)}"
    value = int(array[index])
    what = "is negative" if value < 0 else f"is above {largest}"
    count = int(bad.sum())
    more = (f"{count} values in all are out of range",) if count > 1 else ()
    call.wrong(f"input `{x.name}` has {value} at {where}, which {what}", (note, *more))


def _axes_text(count: int) -> str:
    return f"{count} axis" if count == 1 else f"{count} axes"
