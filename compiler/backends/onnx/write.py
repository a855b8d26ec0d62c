"""An artifact folder: one data file of weights named by its content, the model, and last the manifest."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import ModelProto, TensorProto

from ... import __version__
from ...ir.parameters import count
from ...lang.diagnostic import Diagnostics, diagnostic
from ...runtime.manifest import NAME, DataFile, Manifest, ModelFile, encode
from .builder import ELEMENT, Recipe
from .emit import Emitted
from .interface import interface
from .recipes import RECIPES, bfloat16_bits

MODEL = "model.onnx"
INLINE = 1024                     # bytes below which a weight stays in the model file
ALIGN, LARGE = 64, 1 << 20        # tensors of LARGE bytes start at a page, so that they can be mapped
PAGE = 4096
CHUNK = 1 << 22                   # numbers converted at a time
_OURS = re.compile(r"weights-[0-9a-f]{16}\.bin")

Tensors = Callable[[str], np.ndarray]


def write(emitted: Emitted, folder: str | os.PathLike[str], tensors: Tensors, *,
          certificate: Mapping[str, Any] | None = None) -> Manifest:
    """Write `folder/model.onnx`, its weights and `folder/manifest.json`; returns the manifest.

    `tensors` gives the parameter at a path, a float array of the spec's shape; each is asked for when it is written and not
    kept. Files appear whole and the manifest last; data files of an earlier export are removed after it. A failure leaves
    the folder as it was. Raises Diagnostics: `cannot-write`, `checkpoint-mismatch` for a parameter of another shape,
    `bad-weights` for one that does not fit the dtype, and what `tensors` raises.
    """
    folder = Path(folder)
    inputs, outputs = interface(emitted)
    made = _folders(folder)
    try:
        with ExitStack() as stack:
            staged = Staged(folder)
            stack.callback(staged.clean)
            model, data = _weights(emitted, staged, tensors)
            text = model.SerializeToString(deterministic=True)
            structure, identity = emitted.hashes
            manifest = Manifest(
                name=emitted.graph.name, form="full", target=emitted.target, dtype=emitted.dtype,
                producer=f"nnspec {__version__}", model=ModelFile(MODEL, hashlib.sha256(text).hexdigest()), data=data,
                inputs=inputs, outputs=outputs, structure=structure, identity=identity, parameters=count(emitted.graph),
                sites=emitted.sites, certificate=certificate)
            staged.add(MODEL, text)
            staged.add(NAME, encode(manifest).encode())
            staged.commit()
    except BaseException as error:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()
        if isinstance(error, OSError):
            raise _unwritable(folder, error) from None
        raise
    _remove_old(folder, {d.file for d in data})
    return manifest


def _folders(folder: Path) -> list[Path]:
    """Make the folder; returns what was made, innermost first."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    if folder.exists() and not folder.is_dir():
        raise Diagnostics([diagnostic("cannot-write", f"`{folder}` is a file, and an artifact is a folder",
                                      help="give the name of a folder, new or existing")])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return missing


def _unwritable(folder: Path, error: OSError) -> Diagnostics:
    return Diagnostics([diagnostic("cannot-write", f"`{folder}` cannot be written: {error.strerror or error}",
                                   note="the folder is as it was before",
                                   help="give a folder that can be written, with enough space")])


def _remove_old(folder: Path, kept: set[str]) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in kept:
            with suppress(OSError):     # another program may hold it open; the manifest does not name it any more
                path.unlink()


@dataclass
class Staged:
    """Files written under other names in the folder, renamed all together; what they replace comes back when that fails."""

    folder: Path
    files: dict[str, Path] = field(default_factory=dict)       # final name -> written file
    spare: list[Path] = field(default_factory=list)

    def open(self) -> tuple[BinaryIO, Path]:
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".export-", suffix=".tmp")
        self.spare.append(Path(name))
        return os.fdopen(handle, "w+b"), Path(name)

    def add(self, name: str, content: bytes) -> None:
        file, path = self.open()
        with file:
            file.write(content)
        self.files[name] = path

    def commit(self) -> None:
        undo: list[tuple[Path, Path | None]] = []
        try:
            for name, path in self.files.items():
                final = self.folder / name
                path.chmod(0o644)
                undo.append((final, self._backup(final)))
                os.replace(path, final)
        except BaseException:
            for final, old in reversed(undo):
                if old is not None:
                    os.replace(old, final)
                else:
                    final.unlink(missing_ok=True)
            raise

    def _backup(self, final: Path) -> Path | None:
        if not final.exists():
            return None
        file, path = self.open()
        file.close()
        path.unlink()
        try:
            os.link(final, path)
        except OSError:             # a file system without hard links
            shutil.copyfile(final, path)
        return path

    def clean(self) -> None:
        for path in self.spare:
            path.unlink(missing_ok=True)


# weights


def _weights(emitted: Emitted, staged: Staged, tensors: Tensors) -> tuple[ModelProto, tuple[DataFile, ...]]:
    """The model with its initializers, and the file of those that are not inside it."""
    model = ModelProto()
    model.CopyFrom(emitted.model)
    width = 4 if emitted.dtype == "float32" else 2
    placed: list[tuple[TensorProto, int, int]] = []
    file, path = staged.open()
    digest, at = hashlib.sha256(), 0
    with file:
        for recipe in emitted.weights:
            held = model.graph.initializer.add(name=recipe.name, data_type=ELEMENT[emitted.dtype], dims=recipe.shape)
            size = width * int(np.prod(recipe.shape, dtype=np.int64))
            pieces = _bytes(_make(emitted, recipe, tensors), recipe, emitted.dtype)
            if size < INLINE:
                held.raw_data = b"".join(bytes(p) for p in pieces)
                continue
            gap = -at % (PAGE if size >= LARGE else ALIGN)
            placed.append((held, at + gap, size))
            for piece in (bytes(gap), *pieces) if gap else pieces:
                file.write(piece)
                digest.update(piece)
            at += gap + size
    if not placed:
        return model, ()
    name = f"weights-{digest.hexdigest()[:16]}.bin"
    staged.files[name] = path
    for held, offset, size in placed:
        held.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", str(offset)), ("length", str(size))):
            held.external_data.add(key=key, value=value)
    return model, (DataFile(name, at, digest.hexdigest()),)


def _make(emitted: Emitted, recipe: Recipe, tensors: Tensors) -> np.ndarray:
    arrays = []
    for path in recipe.parameters:
        array = np.asarray(tensors(path))
        if array.shape != emitted.shapes[path]:
            raise Diagnostics([diagnostic("checkpoint-mismatch", f"parameter `{path}` should be {list(emitted.shapes[path])}, "
                                          f"and the weights give {list(array.shape)}", help="use weights of this spec")])
        arrays.append(array)
    made = RECIPES[recipe.kind](arrays, dict(recipe.settings))
    assert made.shape == recipe.shape, f"{recipe.name}: made {made.shape}, said {recipe.shape}"
    return made


def _bytes(array: np.ndarray, recipe: Recipe, dtype: str) -> Iterator[memoryview | bytes]:
    """The numbers in C order and the model's dtype, some rows at a time."""
    if array.ndim == 0:
        array = array.reshape(1)
    rows = max(1, CHUNK * len(array) // max(array.size, 1))
    for start in range(0, len(array), rows):
        part = array[start:start + rows]
        yield _converted(part, recipe, dtype).reshape(-1).view(np.uint8).data


def _converted(part: np.ndarray, recipe: Recipe, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return np.ascontiguousarray(bfloat16_bits(part))
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(part, np.float32 if dtype == "float32" else np.float16)
    if part.dtype.itemsize > made.dtype.itemsize and not np.isfinite(made).all():
        lost = np.isinf(made) & np.isfinite(part)
        if lost.any():
            raise Diagnostics([diagnostic(
                "bad-weights", f"parameter `{recipe.parameters[0]}` holds {part[lost].flat[0]!s}, which is too large for {dtype}",
                help="export it in bfloat16 or float32")])
    return made
