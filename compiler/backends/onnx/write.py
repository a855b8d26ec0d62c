"""An artifact folder: one data file of weights named by its content, the model, and last the manifest."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from ... import __version__
from ...checkpoints.weight_file import Deferred, Turned
from ...checkpoints.weight_names import fold
from ...ir.graph import ARGUMENT
from ...ir.parameters import state_shapes
from ...lang.diagnostic import Diagnostics, diagnostic
from ...runtime.convert import narrow_bfloat16
from ...runtime.manifest import FULL, NAME, NO_WEIGHTS, STEP, DataFile, Input, Manifest, ModelFile, Part, encode
from ...runtime.steps import Stream
from .builder import ELEMENT, Recipe
from .emit import Emitted
from .interface import interface
from .packing import parts
from .recipes import RECIPES, STREAMED

MODEL, PREFIX = "model.onnx", "prefix.onnx"
OTHERS = (PREFIX, "genai_config.json")          # of some exports
NEW_LENGTH, CHUNKED = "new_length", "N"              # of step models
ABSENT = "weights-left-out.bin"     # the file that a model without weights would have
INLINE = 1024                     # bytes below which a weight stays in the model file
ALIGN, LARGE = 64, 1 << 20        # tensors of LARGE bytes start at a page, so that they can be mapped
PAGE = 4096
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
CHUNK = 1 << 22                   # numbers converted at a time
_OURS = re.compile(r"weights-[0-9a-f]{16}\.bin")

Tensors = Callable[[str], np.ndarray | Deferred]
Check = Callable[[Path], Mapping[str, Any]]


def write(emitted: Emitted, folder: str | os.PathLike[str], tensors: Tensors | None, check: Check | None = None,
          stream: Stream | None = None, prefix: Emitted | None = None, beside: Mapping[str, str] | None = None,
          form: str | None = None) -> Manifest:
    """Write `folder/model.onnx`, its weights and `folder/manifest.json`; returns the manifest. A step model has its `stream`, and
    perhaps a `prefix` model beside it, over the same weights. `beside` are texts of further files by name; `form` is what the manifest says
    of another than these.

    `tensors` gives the parameter at a path, a float array of the spec's shape or a tensor still in its file; each is asked for
    when it is written and not kept. None leaves the weights out: the model names their places in a file that is not there, and
    the manifest says so. `check` is given the artifact while it still lies in a folder of its own, and returns
    fields of the manifest: `certificate`, `proof`. Then the files appear whole, one after another, the manifest last; data
    files of an earlier export are removed after it. A failure, of `check` too, leaves the folder as it was. Raises
    Diagnostics: `cannot-write`, `checkpoint-mismatch` for a parameter of another shape, `bad-weights` for one that does not fit
    the dtype or is not finite, and what `tensors` and `check` raise.
    """
    folder = Path(folder)
    with staging(folder) as staged:
        manifest = _stage(emitted, staged, tensors, stream, prefix, form or (STEP if stream else FULL))
        if check is not None:
            manifest = replace(manifest, **check(staged))
            (staged / NAME).write_bytes(encode(manifest).encode())
        for name, text in (beside or {}).items():
            (staged / name).write_text(text, encoding="utf-8")
        kept = [*(d.file for d in manifest.data), *([PREFIX] if prefix is not None else []), *(beside or {})]
        with alone(folder):
            _commit(staged, folder, [*kept, MODEL, NAME])
            _remove_old(folder, set(kept))
    return manifest


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A place inside `folder`, which is made, for files that are to appear in it whole. Where anything fails, the folders that were made
    go again. Raises Diagnostics (`cannot-write`) for what the system refuses."""
    made = _make_folders(folder)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    except BaseException as error:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()
        if isinstance(error, OSError):
            raise _unwritable(folder, error) from None
        raise


def _stage(emitted: Emitted, staged: Path, tensors: Tensors | None, stream: Stream | None, prefix: Emitted | None,
           form: str) -> Manifest:
    models = [emitted] if prefix is None else [emitted, prefix]
    made, data = _no_weights(models) if tensors is None else _weights(models, staged, tensors)
    files = []
    for name, model in zip((MODEL, PREFIX), made, strict=False):
        text = model.SerializeToString(deterministic=True)
        (staged / name).write_bytes(text)
        files.append(ModelFile(name, hashlib.sha256(text).hexdigest()))
    inputs, outputs = interface(emitted)
    if stream is not None:
        inputs = tuple(replace(x, length_of=CHUNKED) if x.name == NEW_LENGTH else x for x in inputs)
    structure, identity = emitted.hashes
    manifest = Manifest(
        name=emitted.graph.name, form=NO_WEIGHTS if tensors is None else form, target=emitted.target,
        dtype=emitted.dtype, producer=f"nnspec {__version__}", model=files[0], data=data, inputs=inputs, outputs=outputs,
        structure=structure, identity=identity, parameters=_parameters(models), sites=emitted.sites, stream=stream,
        prefix=None if prefix is None else _prefix_part(prefix, files[1], inputs))
    (staged / NAME).write_bytes(encode(manifest).encode())
    return manifest


def _prefix_part(prefix: Emitted, file: ModelFile, step: tuple[Input, ...]) -> Part:
    """The prefix model; what it only hands on is a length, or ids, of what the step model says."""
    inputs, outputs = interface(prefix)
    names, told = [a.name for a in prefix.graph.root.arguments], {x.name: x for x in step}
    handed = {names[v.output]: told[o] for o, v in prefix.graph.root.outputs if v.node == ARGUMENT and o in told}
    free = {str(n) for x in inputs for n in x.shape}

    def known(x: Input) -> Input:
        other = handed.get(x.name, x)
        length = other.length_of if other.length_of in free else None
        below = other.ids_below if isinstance(other.ids_below, int) or other.ids_below in free else None
        return replace(x, length_of=x.length_of or length, ids_below=below if x.ids_below is None else x.ids_below)
    return Part(file, tuple(known(x) for x in inputs), outputs, prefix.sites)


def _parameters(models: list[Emitted]) -> int:
    """Numbers in the parameters of all models; what several read counts once."""
    shapes = {path: shape for m in models for path, shape in state_shapes(m.graph).items()}
    return sum(prod(shape) for shape in shapes.values())


def _make_folders(folder: Path) -> list[Path]:
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
        if (_OURS.fullmatch(path.name) or path.name in OTHERS) and path.name not in kept:
            with suppress(OSError):     # another program may hold it open; the manifest does not name it any more
                path.unlink()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder against other exports into it, where the system can: files of two must not mix."""
    try:
        import fcntl
    except ImportError:             # Windows, which cannot lock a folder
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _commit(staged: Path, folder: Path, names: list[str]) -> None:
    """Move the files in their order; what they replace comes back when one cannot be moved."""
    undo: list[tuple[Path, Path | None]] = []
    try:
        for name in names:
            final = folder / name
            undo.append((final, _backup(final, staged / f"{name}.old")))
            os.replace(staged / name, final)
    except BaseException:
        for final, old in reversed(undo):
            if old is not None:
                os.replace(old, final)
            else:
                final.unlink(missing_ok=True)
        raise


def _backup(final: Path, spare: Path) -> Path | None:
    if not final.exists():
        return None
    try:
        os.link(final, spare)
    except OSError:                 # a file system without hard links
        shutil.copyfile(final, spare)
    return spare


# weights


def _weights(models: list[Emitted], staged: Path, tensors: Tensors) -> tuple[list[ModelProto], tuple[DataFile, ...]]:
    """The models with their initializers, and the file of those that are not inside them; what several read is there once."""
    made = [_copy(m) for m in models]
    placed: list[tuple[TensorProto, int, int]] = []
    known: dict[Any, tuple[bytes, int]] = {}              # what a weight is made of -> its bytes, or where it lies in the file
    path, wrong = staged / "weights", Unfit(models[0].dtype)
    digest, at = hashlib.sha256(), 0
    with path.open("wb") as file:
        for emitted, model in zip(models, made, strict=True):
            for recipe in emitted.weights:
                held = model.graph.initializer.add(name=recipe.name, data_type=ELEMENT[recipe.element or emitted.dtype], dims=recipe.shape)
                size, same = _size(emitted, recipe), (recipe.kind, recipe.parameters, recipe.settings)
                if same not in known:
                    pieces = _parts(emitted, recipe, tensors, wrong)
                    if size < INLINE:
                        known[same] = b"".join(bytes(p) for p in pieces), 0
                    else:
                        gap = _gap(at, size)
                        known[same] = b"", at + gap
                        for piece in chain((bytes(gap),), pieces):
                            file.write(piece)
                            digest.update(piece)
                        at += gap + size
                if size < INLINE:
                    held.raw_data = known[same][0]
                else:
                    placed.append((held, known[same][1], size))
    wrong.check()
    if not placed:
        path.unlink()
        return made, ()
    name = f"weights-{digest.hexdigest()[:16]}.bin"
    path.rename(staged / name)
    for held, offset, size in placed:
        _place(held, name, offset, size)
    return made, (DataFile(name, at, digest.hexdigest()),)


def _copy(emitted: Emitted) -> ModelProto:
    model = ModelProto()
    model.CopyFrom(emitted.model)
    return model


def _no_weights(models: list[Emitted]) -> tuple[list[ModelProto], tuple[DataFile, ...]]:
    """The models with the places of their initializers, and no file."""
    made, at = [_copy(m) for m in models], 0
    for emitted, model in zip(models, made, strict=True):
        for recipe in emitted.weights:
            held = model.graph.initializer.add(name=recipe.name, data_type=ELEMENT[recipe.element or emitted.dtype], dims=recipe.shape)
            size = _size(emitted, recipe)
            at += _gap(at, size)
            _place(held, ABSENT, at, size)
            at += size
    return made, ()


def _size(emitted: Emitted, recipe: Recipe) -> int:
    """The bytes of a weight."""
    return BYTES[recipe.element or emitted.dtype] * int(np.prod(recipe.shape, dtype=np.int64))


def weight_bytes(models: Iterable[Emitted]) -> int:
    """The bytes of all weights of models that share a file; what several read counts once."""
    return sum({(r.kind, r.parameters, r.settings): _size(m, r) for m in models for r in m.weights}.values())


def _gap(at: int, size: int) -> int:
    """The bytes to leave free before a weight."""
    return -at % (PAGE if size >= LARGE else ALIGN)


def _place(held: TensorProto, name: str, offset: int, size: int) -> None:
    held.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", str(offset)), ("length", str(size))):
        held.external_data.add(key=key, value=value)


def _make(emitted: Emitted, recipe: Recipe, tensors: Tensors) -> np.ndarray | Deferred | Turned:
    arrays = []
    for path in recipe.parameters:
        array = tensors(path)
        array = array if isinstance(array, Deferred) and recipe.kind in STREAMED else np.asarray(array)
        if array.shape != emitted.shapes[path]:
            raise Diagnostics([diagnostic("checkpoint-mismatch", f"parameter `{path}` should be {list(emitted.shapes[path])}, "
                                          f"and the weights give {list(array.shape)}", help="use weights of this spec")])
        arrays.append(array)
    made = RECIPES[recipe.kind](arrays, dict(recipe.settings))
    assert made.shape == recipe.shape, f"{recipe.name}: made {made.shape}, said {recipe.shape}"
    return made


def _parts(emitted: Emitted, recipe: Recipe, tensors: Tensors, wrong: Unfit) -> Iterator[memoryview | bytes]:
    for part in parts(recipe):
        yield from _bytes(_make(emitted, part, tensors), part, emitted.dtype, wrong)


def _bytes(array: np.ndarray | Deferred | Turned, recipe: Recipe, dtype: str, wrong: Unfit) -> Iterator[memoryview | bytes]:
    """The numbers in C order and the model's dtype, some rows at a time."""
    if not isinstance(array, np.ndarray):
        for piece in array.pieces(CHUNK):
            yield from _bytes(piece, recipe, dtype, wrong)
        return
    if array.ndim == 0:
        array = array.reshape(1)
    rows = max(1, CHUNK * len(array) // max(array.size, 1))
    for start in range(0, len(array), rows):
        part = array[start:start + rows]
        yield _converted(part, recipe, wrong).reshape(-1).view(np.uint8).data


def _converted(part: np.ndarray, recipe: Recipe, wrong: Unfit) -> np.ndarray:
    if recipe.element:
        return np.ascontiguousarray(part, recipe.element)
    if wrong.dtype == "bfloat16":
        wrong.look(part, part, recipe)
        return np.ascontiguousarray(narrow_bfloat16(part))
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(part, np.float32 if wrong.dtype == "float32" else np.float16)
    wrong.look(part, made, recipe)
    return made


@dataclass
class Unfit:
    """Parameters with numbers that the file cannot hold: found while they are written, told all at once."""

    dtype: str
    found: dict[tuple[str, str], str] = field(default_factory=dict)

    def look(self, given: np.ndarray, made: np.ndarray, recipe: Recipe) -> None:
        if np.isfinite(made).all():
            return
        name = " or ".join(f"`{p}`" for p in recipe.parameters)
        lost = np.isinf(made) & np.isfinite(given)
        kind, where = ("large", lost) if lost.any() else ("infinite", ~np.isfinite(given))
        self.found.setdefault((name, kind), str(given[where].flat[0]))

    def check(self) -> None:
        """Raises Diagnostics (`bad-weights`) that name every parameter found, copies of one layer together."""
        wrong = []
        wider = "export it in bfloat16 or float32" if self.dtype == "float16" else "the file was saved in a wider format: use other weights"
        for kind, what, help in (("large", f"too large for {self.dtype}", wider),
                                 ("infinite", "not finite", "training diverged, or the file is damaged: use other weights")):
            names = [name for name, k in self.found if k == kind]
            if names:
                first = f"{names[0]} holds {self.found[names[0], kind]}"
                notes = [name for name, _ in fold((n, "") for n in names)] if len(names) > 1 else []
                headline = f"parameter {first}, which is {what}" if len(names) == 1 else f"{len(names)} parameters are {what}: {first}"
                wrong.append(diagnostic("bad-weights", headline, note=notes[:8], help=help))
        if wrong:
            raise Diagnostics(wrong)
