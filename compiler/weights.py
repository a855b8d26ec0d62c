"""Weight files: safetensors, NumPy archives and PyTorch state dicts, whole or in shards, read one tensor at a time."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from .lang.diagnostic import Diagnostic, Diagnostics, diagnostic, suggest
from .weight_names import match_weights

__all__ = ["WeightFile", "match_weights", "open_weights"]

READABLE = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
            "uint64", "uint32", "uint16", "uint8", "bool")
# https://github.com/huggingface/safetensors, "Format"
_SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
                "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
                "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64"}
_MAX_HEADER = 100_000_000
_TORCH = (".pt", ".pth", ".bin")
_SUFFIXES = (".safetensors", ".npz", *_TORCH)
_INDEX = ".index.json"
_SHARD = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})(\.\w+)")
# What trainers keep beside the weights of a model.
_OTHERS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "rng_state.pth")
# What reading the bytes of a damaged file or archive raises.
_DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
_EXPECTED = f"expected {', '.join(_SUFFIXES)}, an index of shards (*{_INDEX}), or a folder that holds exactly one of them"


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: its shape, dtype and how to read it (bfloat16 as uint16 bits or float32)."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]


class WeightFile:
    """Named tensors of a file or of its shards; close it, or use it in a `with` block."""

    def __init__(self, path: Path, tensors: dict[str, Stored], close: Callable[[], None] = lambda: None):
        self.path, self._tensors, self._close = path, tensors, close

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def dtype(self, name: str) -> str:
        """The dtype in the file: `float32`, `float16`, `bfloat16`, `int64`, ..."""
        return self._stored(name).dtype

    def read(self, name: str) -> np.ndarray:
        """The tensor, bfloat16 as the float32 it stands for. Raises `Diagnostics` (code `bad-weights`)."""
        stored = self._stored(name)
        if stored.dtype not in READABLE:
            _fail(f"tensor `{name}` of `{self.path}` is {stored.dtype}", f"expected one of {', '.join(READABLE)}",
                  "convert it to float32 or bfloat16 before saving")
        try:
            array = stored.load()
        except _DAMAGE as error:
            _fail(f"tensor `{name}` of `{self.path}` cannot be read: {_first(error)}",
                  f"expected {stored.dtype} {list(stored.shape)}", "the file changed or is damaged: save or copy it again")
        if stored.dtype == "bfloat16" and array.dtype == np.uint16:
            return (array.reshape(-1).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(stored.shape)
        return array

    def close(self) -> None:
        self._close()

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stored(self, name: str) -> Stored:
        if name not in self._tensors:
            raise Diagnostics([diagnostic("bad-weights", f"`{self.path}` holds no tensor `{name}`",
                                          help=suggest(name, self._tensors, "tensors"))])
        return self._tensors[name]


def open_weights(path: str | os.PathLike[str]) -> WeightFile:
    """Open a weight file (`.safetensors`, `.npz`, `.pt`, `.pth`, `.bin`), an index of shards, or a folder with one of them.

    Only names, shapes and dtypes are read; nothing is unpickled but tensors. Raises `Diagnostics` (code `bad-weights`).
    """
    path = Path(path)
    if not path.exists():
        _fail(f"no weights at `{path}`", _EXPECTED)
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(_INDEX):
        return _open_index(path)
    readers = {".safetensors": _open_safetensors, ".npz": _open_npz, **dict.fromkeys(_TORCH, _open_torch)}
    if path.suffix not in readers:
        _fail(f"`{path}` is no weight file", _EXPECTED,
              'save with safetensors.torch.save_file(module.state_dict(), "weights.safetensors")')
    try:
        return readers[path.suffix](path)
    except OSError as error:
        _fail(f"`{path}` cannot be read: {error.strerror or error}", _EXPECTED)


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
                _damaged(path, "its tensors overlap or leave a gap")
            end = last
        if end != size:
            _damaged(path, f"it has {size:,} bytes, its header describes {end:,}")
    except BaseException:
        file.close()
        raise
    return WeightFile(path, tensors, file.close)


def _header(path: Path, file: BufferedReader, size: int) -> tuple[dict[str, Any], int]:
    start = 8 + int.from_bytes(file.read(8), "little")
    if size < 10 or start > min(size, _MAX_HEADER):
        _damaged(path, f"it has {size:,} bytes, not enough for its header" if size >= 10 else f"it has only {size} bytes")
    try:
        header = json.loads(file.read(start - 8).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _damaged(path, f"its header is not JSON: {error}")
    if not isinstance(header, dict):
        _damaged(path, "its header is not an object")
    return header, start


def _entry(path: Path, body: _Body, name: str, entry: Any) -> tuple[Stored, tuple[int, int]]:
    keys = {"dtype", "shape", "data_offsets"}
    if not (isinstance(entry, dict) and entry.keys() == keys and isinstance(entry["dtype"], str)
            and _counts(entry["shape"]) and _counts(entry["data_offsets"]) and len(entry["data_offsets"]) == 2):
        _damaged(path, f"the header's entry for `{name}` has not the form {{dtype, shape, data_offsets}}")
    first, last = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = _SAFETENSORS.get(entry["dtype"], entry["dtype"])
    stored = np.dtype(np.uint16 if dtype == "bfloat16" else dtype).newbyteorder("<") if dtype in READABLE else None
    if last < first or stored is not None and last - first != stored.itemsize * int(np.prod(shape, dtype=object)):
        _damaged(path, f"tensor `{name}` has {last - first:,} bytes, which is not {dtype} {list(shape)}")
    return Stored(shape, dtype, lambda: body.read(first, shape, stored)), (body.start + first, body.start + last)


def _open_npz(path: Path) -> WeightFile:
    file = path.open("rb")
    try:
        archive = _archive(path, file)
        tensors: dict[str, Stored] = {}
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name in tensors:
                _damaged(path, f"it holds `{name}` twice")
            tensors[name] = _npz_entry(path, archive, name, member)
    except BaseException:
        file.close()
        raise
    return WeightFile(path, tensors, file.close)


def _archive(path: Path, file: BufferedReader) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except _DAMAGE as error:
        _damaged(path, f"it is not a zip archive: {_first(error)}")


def _npz_entry(path: Path, archive: zipfile.ZipFile, name: str, member: str) -> Stored:
    def load() -> np.ndarray:
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    try:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            size = archive.getinfo(member).file_size - file.tell()
    except _DAMAGE as error:
        _damaged(path, f"its member `{member}` is not an array: {_first(error)}")
    if dtype.hasobject:
        _fail(f"`{path}` holds Python objects under `{name}`", "expected arrays of numbers; objects are never unpickled",
              "save plain arrays: numpy.savez(path, **{name: array})")
    if size != dtype.itemsize * int(np.prod(shape, dtype=object)):
        _damaged(path, f"`{name}` has {size:,} bytes, which is not {dtype.name} {list(shape)}")
    return Stored(shape, dtype.name, load)


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
            _damaged(path, f"torch finds no state dict in it ({type(error).__name__})")
        _fail(f"`{path}` holds code or Python objects, which are refused: `{refused[1]}`",
              "expected a state dict: names and tensors, nothing else",
              "where you trust the file, load it there and save its tensors: torch.save(module.state_dict(), path)")
    tensors = {name: _torch_entry(value.detach()) for name, value in _state_dict(path, state, torch.Tensor).items()}
    return WeightFile(path, tensors, tensors.clear)


def _torch_entry(tensor: Any) -> Stored:
    def load() -> np.ndarray:
        if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_meta:
            raise ValueError(f"it is {'quantized' if tensor.is_quantized else 'not a dense tensor in memory'}")
        return (tensor.float() if dtype == "bfloat16" else tensor).contiguous().numpy()

    dtype = str(tensor.dtype).removeprefix("torch.")
    return Stored(tuple(tensor.shape), dtype, load)


def _state_dict(path: Path, state: Any, tensor: type) -> dict[str, Any]:
    """The mapping of names to tensors: the file's own, or the only one under `state_dict` or `model_state_dict`."""
    if not isinstance(state, dict):
        _fail(f"`{path}` holds a {type(state).__name__}", "expected a state dict: names and tensors",
              "torch.save(module.state_dict(), path)")
    inner = {k: v for k, v in state.items() if isinstance(v, dict) and any(isinstance(t, tensor) for t in v.values())}
    own = any(isinstance(v, tensor) for v in state.values())
    if not own and len(inner) == 1 and next(iter(inner)) in ("state_dict", "model_state_dict"):
        state = next(iter(inner.values()))
    elif inner:
        _fail(f"`{path}` holds more than a state dict: tensors under {', '.join(f'`{k}`' for k in inner)}",
              "expected names and tensors, or those under `state_dict` or `model_state_dict` alone",
              f'save the part you mean: torch.save(checkpoint["{next(iter(inner))}"], path)')
    odd = [k for k, v in state.items() if not (isinstance(k, str) and isinstance(v, tensor | int | float | str | None))]
    found = {k: v for k, v in state.items() if isinstance(v, tensor)}
    if odd or not found:
        _fail(f"`{path}` holds no tensors" if not found else f"`{path}` holds `{odd[0]}`, a {type(state[odd[0]]).__name__}",
              "expected a state dict: names and tensors", "torch.save(module.state_dict(), path)")
    return found


def _open_index(path: Path) -> WeightFile:
    try:
        index = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
        places = index["weight_map"]
        if not all(isinstance(s, str) and Path(s).name == s and Path(s).suffix in _SUFFIXES for s in places.values()):
            raise ValueError("a shard is not the name of a weight file beside it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _fail(f"`{path}` is not an index of shards: {error!s}", 'expected {"weight_map": {tensor: file}}')
    merged = _open_shards(path, [path.parent / shard for shard in sorted(set(places.values()))])
    held = set(merged.names())
    lost = [n for n in places if n not in held]
    if lost:
        merged.close()
        _fail(f"no shard of `{path}` holds {_some(lost)}", "expected each tensor of the index in its shard",
              "download or save the shards again")
    return merged


def _open_shards(path: Path, shards: list[Path]) -> WeightFile:
    missing = [s for s in shards if not s.is_file()]
    if missing:
        _fail(f"`{path}` lacks {len(missing)} of {len(shards)} shards: {_some([s.name for s in missing])}",
              f"expected them in `{shards[0].parent}`", "download or copy the missing files")
    files: list[WeightFile] = []
    problems: list[Diagnostic] = []
    tensors: dict[str, Stored] = {}
    homes: dict[str, str] = {}
    for shard in shards:
        try:
            files.append(open_weights(shard))
        except Diagnostics as error:
            problems += error.items
            continue
        twice = [n for n in files[-1].names() if n in homes]
        if twice:
            problems.append(diagnostic("bad-weights", f"`{shard}` and `{homes[twice[0]]}` both hold {_some(twice)}",
                                       note="expected each tensor in one shard", help="remove the shards of another save"))
        for name in files[-1].names():
            tensors[name], homes[name] = files[-1]._stored(name), shard.name

    def close() -> None:
        for file in files:
            file.close()

    if problems:
        close()
        raise Diagnostics(problems)
    return WeightFile(path, tensors, close)


def _open_folder(folder: Path) -> WeightFile:
    found = sorted(p for p in folder.iterdir()
                   if (p.suffix in _SUFFIXES or p.name.endswith(_INDEX)) and p.name not in _OTHERS and p.is_file())
    parts = {p: m for p in found if (m := _SHARD.fullmatch(p.name))}
    whole = [p for p in found if p not in parts]
    sets = {(m[1], m[3], m[4]) for m in parts.values()}
    if len(whole) == 1 and all(whole[0].name == f"{stem}{suffix}{_INDEX}" for stem, _, suffix in sets):
        return open_weights(whole[0])
    if whole or len(sets) != 1:
        held = f"several: {_some([p.name for p in found])}" if found else "none"
        _fail(f"`{folder}` should hold one weight file, it holds {held}", _EXPECTED, "name the file itself" if found else ())
    stem, count, suffix = next(iter(sets))
    return _open_shards(folder, [folder / f"{stem}-{i:0{len(count)}}-of-{count}{suffix}" for i in range(1, int(count) + 1)])


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [k for k, _ in pairs]
        raise ValueError(f"`{next(n for n in names if names.count(n) > 1)}` is given twice")
    return made


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(f"`{n}`" for n in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _damaged(path: Path, why: str) -> NoReturn:
    _fail(f"`{path}` is not a {path.suffix} file, or is damaged: {why}",
          f"expected the format that its ending {path.suffix} names", "save, copy or download it again")


def _fail(headline: str, note: str, help: str | tuple[str, ...] = ()) -> NoReturn:  # noqa: A002
    raise Diagnostics([diagnostic("bad-weights", headline, note=note, help=help)])
