"""Weight files: safetensors, NumPy archives and PyTorch state dicts, whole or in shards, read one tensor at a time."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from .weight_file import DAMAGE, READABLE, Stored, WeightFile, damaged, fail, first
from .weight_folder import CONVERT, EXPECTED, INDEX, PICKLES, TORCH, open_folder, open_index, unique
from .weight_names import match_weights

__all__ = ["WeightFile", "match_weights", "open_weights"]

# https://github.com/huggingface/safetensors, "Format"
_SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
                "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
                "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64"}
_MAX_HEADER = 100_000_000


def open_weights(path: str | os.PathLike[str]) -> WeightFile:
    """Open a weight file (`.safetensors`, `.npz`, `.pt`, `.pth`, `.bin`), an index of shards, or a folder with one of them.

    Only names, shapes and dtypes are read. A PyTorch file is read only where it is named itself, and holds tensors alone: in a
    folder, model.safetensors or its shards are taken, and pickles alone are refused. Raises `Diagnostics` (code `bad-weights`).
    """
    path = Path(path)
    if not path.exists():
        fail(f"no weights at `{path}`", EXPECTED)
    try:
        if path.is_dir():
            return open_folder(path, open_weights)
        if path.name.endswith(INDEX):
            return open_index(path, open_weights)
        return _reader(path)(path)
    except OSError as error:
        fail(f"`{path}` cannot be read: {error.strerror or error}", EXPECTED)


def _reader(path: Path) -> Callable[[Path], WeightFile]:
    readers = {".safetensors": _open_safetensors, ".npz": _open_npz, **dict.fromkeys(TORCH, _open_torch)}
    if path.suffix not in readers and path.suffix in PICKLES:
        fail(f"`{path}` is a pickle, which may hold code", "expected safetensors or npz; it is not opened", CONVERT)
    if path.suffix not in readers:
        fail(f"`{path}` is no weight file", EXPECTED, 'save with safetensors.torch.save_file(module.state_dict(), "weights.safetensors")')
    return readers[path.suffix]


@dataclass(frozen=True)
class _Body:
    """The bytes of a safetensors file after its header; reads may come from several threads."""

    file: BufferedReader
    start: int
    lock: Lock

    def read(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> np.ndarray:
        array = np.empty(shape, dtype)
        with self.lock:
            self.file.seek(self.start + offset)
            count = self.file.readinto(array.reshape(-1).view(np.uint8).data) if array.size else 0
        if count != array.nbytes:
            raise EOFError("the file ends early")
        return array


def _open_safetensors(path: Path) -> WeightFile:
    file = path.open("rb")
    try:
        size = path.stat().st_size
        header, start = _header(path, file, size)
        body = _Body(file, start, Lock())
        tensors, spans = {}, []
        for name, entry in header.items():
            if name != "__metadata__":
                tensors[name], span = _entry(path, body, name, entry)
                spans.append(span)
        end = start
        for first, last in sorted(spans):
            if first != end:
                damaged(path, "its tensors overlap or leave a gap")
            end = last
        if end != size:
            damaged(path, f"it has {size:,} bytes, its header describes {end:,}")
    except BaseException:
        file.close()
        raise
    return WeightFile(path, tensors, file.close)


def _header(path: Path, file: BufferedReader, size: int) -> tuple[dict[str, Any], int]:
    start = 8 + int.from_bytes(file.read(8), "little")
    if size < 10 or start > min(size, _MAX_HEADER):
        damaged(path, f"it has {size:,} bytes, not enough for its header" if size >= 10 else f"it has only {size} bytes")
    try:
        header = json.loads(file.read(start - 8).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        damaged(path, f"its header is not JSON: {error}")
    if not isinstance(header, dict):
        damaged(path, "its header is not an object")
    return header, start


def _entry(path: Path, body: _Body, name: str, entry: Any) -> tuple[Stored, tuple[int, int]]:
    keys = {"dtype", "shape", "data_offsets"}
    if not (isinstance(entry, dict) and entry.keys() == keys and isinstance(entry["dtype"], str)
            and _counts(entry["shape"]) and _counts(entry["data_offsets"]) and len(entry["data_offsets"]) == 2):
        damaged(path, f"the header's entry for `{name}` has not the form {{dtype, shape, data_offsets}}")
    first, last = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = _SAFETENSORS.get(entry["dtype"], entry["dtype"])
    stored = np.dtype(np.uint16 if dtype == "bfloat16" else dtype).newbyteorder("<") if dtype in READABLE else None
    if last < first or stored is not None and last - first != stored.itemsize * int(np.prod(shape, dtype=object)):
        damaged(path, f"tensor `{name}` has {last - first:,} bytes, which is not {dtype} {list(shape)}")
    part = (lambda at, end: body.read(first + at * stored.itemsize, (end - at,), stored)) if stored is not None else None
    return Stored(shape, dtype, lambda: body.read(first, shape, stored), part), (body.start + first, body.start + last)


def _open_npz(path: Path) -> WeightFile:
    file = path.open("rb")
    try:
        archive = _archive(path, file)
        tensors: dict[str, Stored] = {}
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name in tensors:
                damaged(path, f"it holds `{name}` twice")
            tensors[name] = _npz_entry(path, archive, name, member)
    except BaseException:
        file.close()
        raise
    return WeightFile(path, tensors, file.close)


def _archive(path: Path, file: BufferedReader) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except DAMAGE as error:
        damaged(path, f"it is not a zip archive: {first(error)}")


def _npz_entry(path: Path, archive: zipfile.ZipFile, name: str, member: str) -> Stored:
    def load() -> np.ndarray:
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    try:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, columns_first, dtype = read(file)
            start = file.tell()
            size = archive.getinfo(member).file_size - start
    except DAMAGE as error:
        damaged(path, f"its member `{member}` is not an array: {first(error)}")
    if dtype.hasobject:
        fail(f"`{path}` holds Python objects under `{name}`", "expected arrays of numbers; objects are never unpickled",
              "save plain arrays: numpy.savez(path, **{name: array})")
    if size != dtype.itemsize * int(np.prod(shape, dtype=object)):
        damaged(path, f"`{name}` has {size:,} bytes, which is not {dtype.name} {list(shape)}")
    return Stored(shape, dtype.name, load, None if columns_first else _Member(archive, member, start, dtype).read)


@dataclass
class _Member:
    """The numbers of an array in an archive; the member stays open, as one read goes on where the last one ended."""

    archive: zipfile.ZipFile
    name: str
    start: int
    dtype: np.dtype[Any]
    file: IO[bytes] | None = None
    lock: Lock = field(default_factory=Lock)

    def read(self, start: int, stop: int) -> np.ndarray:
        with self.lock:
            self.file = self.file or self.archive.open(self.name)
            self.file.seek(self.start + start * self.dtype.itemsize)
            held = self.file.read((stop - start) * self.dtype.itemsize)
        if len(held) != (stop - start) * self.dtype.itemsize:
            raise EOFError("the file ends early")
        return np.frombuffer(held, self.dtype)


def _open_torch(path: Path) -> WeightFile:
    import torch

    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # the format of torch >= 1.6, the only one that can be mapped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # torch reports damaged files by many classes
        refused = re.search(r"GLOBAL (\S+) was not", str(error))
        if not refused:
            # The message is not passed on whole: it advises to load the file without this safety.
            damaged(path, f"torch finds no state dict in it ({type(error).__name__})")
        fail(f"`{path}` holds code or Python objects, which are refused: `{refused[1]}`",
              "expected a state dict: names and tensors, nothing else",
              "where you trust the file, load it there and save its tensors: torch.save(module.state_dict(), path)")
    tensors = {name: _torch_entry(value.detach()) for name, value in _state_dict(path, state, torch.Tensor).items()}
    return WeightFile(path, tensors, tensors.clear)


def _torch_entry(tensor: Any) -> Stored:
    dense = str(tensor.layout) == "torch.strided" and not tensor.is_quantized and not tensor.is_meta

    def array(held: Any) -> np.ndarray:
        if not dense:
            raise ValueError(f"it is {'quantized' if tensor.is_quantized else 'not a dense tensor in memory'}")
        return (held.float() if dtype == "bfloat16" else held).contiguous().numpy()

    dtype = str(tensor.dtype).removeprefix("torch.")
    flat = tensor.view(-1) if dense and tensor.is_contiguous() else None
    return Stored(tuple(tensor.shape), dtype, lambda: array(tensor),
                  None if flat is None else lambda start, stop: array(flat[start:stop]))


def _state_dict(path: Path, state: Any, tensor: type) -> dict[str, Any]:
    """The mapping of names to tensors: the file's own, or the only one under `state_dict` or `model_state_dict`."""
    if not isinstance(state, dict):
        fail(f"`{path}` holds a {type(state).__name__}", "expected a state dict: names and tensors",
              "torch.save(module.state_dict(), path)")
    inner = {k: v for k, v in state.items() if isinstance(v, dict) and any(isinstance(t, tensor) for t in v.values())}
    own = any(isinstance(v, tensor) for v in state.values())
    if not own and len(inner) == 1 and next(iter(inner)) in ("state_dict", "model_state_dict"):
        state = next(iter(inner.values()))
    elif inner:
        fail(f"`{path}` holds more than a state dict: tensors under {', '.join(f'`{k}`' for k in inner)}",
              "expected names and tensors, or those under `state_dict` or `model_state_dict` alone",
              f'save the part you mean: torch.save(checkpoint["{next(iter(inner))}"], path)')
    odd = [k for k, v in state.items() if not (isinstance(k, str) and isinstance(v, tensor | int | float | str | None))]
    found = {k: v for k, v in state.items() if isinstance(v, tensor)}
    if odd or not found:
        fail(f"`{path}` holds no tensors" if not found else f"`{path}` holds `{odd[0]}`, a {type(state[odd[0]]).__name__}",
              "expected a state dict: names and tensors", "torch.save(module.state_dict(), path)")
    return found


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)
