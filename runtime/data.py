"""Arrays in and out of a run: files of inputs, random inputs that satisfy a manifest, a table of results."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import ArtifactError, check, suggest
from .manifest import GENAI, Input, Manifest
from .steps import ASKED, NEW, WANTED

_DEFAULTS = {"B": 2, "S": 7}
_ODD = (5, 3, 9, 11, 13)
_FIRST = 4


class Row(NamedTuple):
    """One output in a table; the statistics are None for empty arrays."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    min: float | None
    mean: float | None
    max: float | None
    first: tuple[float | int | bool, ...]


def load_inputs(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read named inputs: arrays of an `.npz` file, or nested lists of a `.json` object.

    Raises `ArtifactError` (code `bad-inputs`); arrays of Python objects are refused, never unpickled.
    """
    path = Path(path)
    readers = {".npz": _load_npz, ".json": _load_json}
    if path.suffix not in readers:
        raise ArtifactError("bad-inputs", f"`{path}` is no file of inputs", "expected a name that ends in .npz or .json",
                            'write one with numpy.savez("inputs.npz", name=array, ...)')
    try:
        return readers[path.suffix](path)
    except FileNotFoundError:
        raise ArtifactError("bad-inputs", f"no file `{path}`") from None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ArtifactError("bad-inputs", f"`{path}` cannot be read as {path.suffix}", str(error)) from None


def random_inputs(manifest: Manifest, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Random arrays for every input, optional ones too; the same for the same seed.

    Ids lie in their range, lengths in 1..axis with one row full, every row of a mask has a True, floats are normal (float32 for
    bfloat16 inputs). A dimension that `sizes` does not give is 2 for B, 7 for S and odd for others, but not below the smallest
    size that the model takes nor above the largest. States of a step model are empty, with room for its N new positions.
    Raises `ArtifactError` (code `bad-inputs`) for unknown, negative or excessive sizes, for a negative seed, and for inputs that
    do not fit in memory.
    """
    known = _sizes(manifest, sizes or {})
    if seed < 0:
        raise ArtifactError("bad-inputs", f"the seed cannot be {seed}", "a seed is a number from 0")
    rng = np.random.default_rng(seed)
    try:
        empty = {s.name for s in manifest.stream.states if s.start is None} if manifest.stream else ()
        made = {x.name: _zeros(x, known) if x.name in empty else _random(x, known, rng) for x in manifest.inputs}
        if manifest.stream and WANTED in made:
            made[WANTED][:] = np.arange(known[ASKED]) % max(known[NEW], 1)              # every position, in order
        return made
    except (ValueError, MemoryError, OverflowError):
        told = ", ".join(f"{k}={v}" for k, v in known.items())
        raise ArtifactError("bad-inputs", f"inputs of the sizes {told} do not fit in memory") from None


def save_npz(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to an `.npz` file, the same bytes for equal arrays; any name is allowed.

    Raises `ArtifactError` (code `cannot-write`).
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ArtifactError("cannot-write", f"`{path}` cannot be written: there is no folder `{path.parent}`")
    scratch = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(scratch, "w") as archive:
            for name, array in arrays.items():
                # A ZipInfo without a time is dated 1980; numpy.savez takes no array called `file`.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        os.replace(scratch, path)
    except (OSError, ValueError) as error:
        scratch.unlink(missing_ok=True)
        raise ArtifactError("cannot-write", f"`{path}` cannot be written: {error}") from None


def table(outputs: Mapping[str, np.ndarray]) -> list[Row]:
    """One row an output, computed in float64; `first` holds the first values in row-major order."""
    return [_row(name, np.asarray(array)) for name, array in outputs.items()]


def _load_npz(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive of arrays" if path.stat().st_size else "it is empty")
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _load_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError('expected an object of named arrays, such as {"tokens": [[3, 1, 4]]}')
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an input is given twice")
    return made


def _sizes(manifest: Manifest, given: Mapping[str, int]) -> dict[str, int]:
    problems, known = [], {}
    for name, size in given.items():
        if name not in manifest.free_names:
            problems.append(ArtifactError("bad-inputs", f"no input has a dimension `{name}`",
                                          helps=suggest(name, manifest.free_names, "dimensions")))
        elif size < 0:
            problems.append(ArtifactError("bad-inputs", f"`{name}` cannot be {size}", "a size is a number from 0"))
    odd = iter(_ODD * (1 + len(manifest.free_names)))
    for name in manifest.free_names:
        bounds = [x.bounds[name] for x in manifest.inputs if name in x.bounds]
        if name == NEW and manifest.stream and manifest.stream.limit:
            bounds.append(manifest.stream.limit)
        bound = min(bounds, default=None)
        size = given[name] if name in given else max(_DEFAULTS.get(name) or next(odd), manifest.least.get(name, 0))
        if bound is not None and size > bound and name in given:
            problems.append(ArtifactError("bad-inputs", f"`{name}` is {size}, but the model takes at most {bound}"))
        known[name] = size if bound is None or name in given else min(size, bound)
    for state in manifest.stream.states if manifest.stream else ():
        if state.capacity in known:             # the manifest's inputs may be some of the model's
            if state.capacity not in given:
                known[state.capacity] = max((state.window or 1) - 1 + known[NEW], known[state.capacity])
            elif given[state.capacity] < known[NEW]:
                problems.append(ArtifactError("bad-inputs", f"`{state.capacity}` is {given[state.capacity]}, but `{state.name}` needs "
                                              f"{known[NEW]} at least", f"it holds the {known[NEW]} new positions, `{NEW}`"))
    check(problems)
    if ASKED in known and ASKED not in given and manifest.stream:
        known[ASKED] = known[NEW]
    if manifest.form == GENAI and "total" not in given:
        known["total"] = known["P"] + known["N"]
    return known


def _random(x: Input, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = tuple(d.size(sizes) or 0 for d in x.dimensions)
    if x.dtype == "bool":
        mask = rng.random(shape) < 0.7
        if mask.size and mask.ndim:
            np.put_along_axis(mask, rng.integers(0, shape[-1], (*shape[:-1], 1)), True, axis=-1)
        return mask
    if x.length_of is not None:
        return _lengths(shape, sizes[x.length_of], rng).astype(x.dtype)
    if x.dtype.startswith("int"):
        return rng.integers(0, max(1, x.ids(sizes) or 3), shape, dtype=x.dtype)
    return np.asarray(rng.standard_normal(shape), np.float16 if x.dtype == "float16" else np.float32)


def _zeros(x: Input, sizes: dict[str, int]) -> np.ndarray:
    return np.zeros([d.size(sizes) or 0 for d in x.dimensions], np.float32 if x.dtype == "bfloat16" else x.dtype)


def _lengths(shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> np.ndarray:
    lengths = rng.integers(min(1, axis), axis + 1, shape)
    if lengths.size:
        lengths.flat[rng.integers(lengths.size)] = axis
    return lengths


def _row(name: str, array: np.ndarray) -> Row:
    first = tuple(array.reshape(-1)[:_FIRST].tolist())
    if not array.size:
        return Row(name, array.dtype.name, array.shape, None, None, None, first)
    wide = array.astype(np.float64)
    return Row(name, array.dtype.name, array.shape, float(wide.min()), float(wide.mean()), float(wide.max()), first)
