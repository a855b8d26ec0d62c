"""Our parameters back under foreign names: the rules of `checkpoint:` backwards, one tensor in memory at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import replacing
from ..ir.parameters import state_shapes
from ..lang.diagnostic import Diagnostics, Sink, diagnostic
from ..printing import progress
from ..runtime.convert import Unfit, convert
from .rules import Foreign, Source, sources
from .weight_file import Deferred, numbers

if TYPE_CHECKING:
    from ..model import Model

# https://github.com/huggingface/safetensors, "Format"
NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

Read = Callable[[str], "np.ndarray | Deferred"]


@dataclass(frozen=True)
class Target:
    """A tensor to write: the parameters that it is made of, in order; `copies` are others that must give the same one."""

    name: str
    source: Source
    paths: tuple[str, ...]
    dtype: str
    copies: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Written:
    """What `export_weights` wrote."""

    path: Path
    tensors: int
    bytes: int


def export_weights(model: Model, given: Any, path: Path, dtype: str | None, prefix: str | None, like: str | Path | None) -> Written:
    """See `Model.export_weights`."""
    if path.suffix != ".safetensors":
        raise Diagnostics([diagnostic("cannot-write", f"weights are written as safetensors, and `{path}` has another ending",
                                      help="give a name that ends in .safetensors")])
    if dtype is not None and dtype not in WIDTHS:
        raise Diagnostics([diagnostic("bad-command", f"there is no dtype `{dtype}` for weights", help=f"one of {', '.join(WIDTHS)}")])
    if prefix is not None and like is not None:
        raise Diagnostics([diagnostic("bad-command", "names start with a prefix, or are those of another file, not both",
                                      help="leave out `prefix` or `like`")])
    with ExitStack() as stack:
        read, dtypes, names = _reader(model, given, stack)
        if prefix is not None:
            names = {}
        if like is not None:
            from .weights import open_weights
            names = model.loader(stack.enter_context(open_weights(like))).names
        targets = _targets(model, dtypes if dtype is None else dict.fromkeys(dtypes, dtype), prefix or "", names)
        header, size = file_header([(t.name, t.dtype, t.source.shape) for t in targets])
        with replacing(path) as file:
            file.write(header)
            for target in progress(targets, "writing"):
                for piece in _bytes(target, read, model):
                    file.write(piece)
    return Written(path, len(targets), len(header) + size)


def _reader(model: Model, given: Any, stack: ExitStack) -> tuple[Read, dict[str, str], Mapping[str, str]]:
    """A function from a path of ours to its array, bfloat16 as float32, the dtypes by path, and the names in a foreign file."""
    if isinstance(given, str | os.PathLike):
        from .weights import open_weights
        file = stack.enter_context(open_weights(given))
        loader = model.loader(file)
        dtypes = {path: file.dtype(name) for path, name in loader.names.items()}
        return lambda path: loader(path, whole=False), dtypes, loader.names if loader.foreign else {}
    from ..artifacts.export import given_module, read_tensor
    state = given_module(model, given).state_dict()
    kinds = {path: str(state[path].dtype).removeprefix("torch.") for path in state_shapes(model.graph)}
    return lambda path: read_tensor(state[path]), kinds, {}


def _targets(model: Model, dtypes: Mapping[str, str], prefix: str, names: Mapping[str, str]) -> list[Target]:
    """The tensors to write, those of the widest dtype first so that each lies at a multiple of its width."""
    foreign: Foreign = model.foreign
    sink = Sink()
    made = sources(foreign.rules, state_shapes(model.graph), sink, idle="warning")
    sink.check()
    groups: dict[str, dict[tuple[int, int], list[tuple[str, Source]]]] = {}
    for path, source in made.items():
        rule = (id(source.rule), source.part)
        groups.setdefault(names.get(path, prefix + source.names[0]), {}).setdefault(rule, []).append((path, source))
    targets = [_target(name, parts, dtypes, sink) for name, parts in groups.items()]
    sink.check()
    return sorted((t for t in targets if t), key=lambda t: -WIDTHS[t.dtype])


def _target(name: str, parts: Mapping[tuple[int, int], list[tuple[str, Source]]], dtypes: Mapping[str, str],
            sink: Sink) -> Target | None:
    """Parameters of one rule make the tensor; those of other rules, which read the same one, must give it again."""
    ways: list[tuple[tuple[str, ...], Source]] = []
    for rule in dict.fromkeys(rule for rule, _ in parts):
        held = {part: found for (r, part), found in parts.items() if r == rule}
        source = next(iter(held.values()))[0][1]
        if source.rule and (lost := [p for k, p in enumerate(source.rule.paths) if k not in held and source.parts > 1]):
            sink.add(diagnostic("bad-checkpoint", f"`{name}` cannot be written: it holds `{lost[0]}` too, which the model has not",
                                source.rule.key.span, help="give the rule's other parameters tensors of their own"))
            return None
        ways += [(tuple(p for p, _ in row), source) for row in zip(*(held[k] for k in sorted(held)), strict=True)]
    paths, source = ways[0]
    kinds = {dtypes[p] for p in paths}
    dtype = kinds.pop() if len(kinds) == 1 else "float64" if "float64" in kinds else "float32"
    return Target(name, source, paths, dtype, tuple(other for other, _ in ways[1:]))


def file_header(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """The header of a safetensors file with tensors of these names, dtypes and shapes, and how many bytes follow it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in tensors:
        end = at + prod(shape) * WIDTHS[dtype]
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def _bytes(target: Target, read: Read, model: Model) -> Iterator[memoryview]:
    """The numbers in C order and their dtype, some at a time; tensors whose numbers are moved are made whole."""
    for other in target.copies:
        _check_same(target, other, read)
    if target.source.start is not None:
        for path in target.paths:
            for piece in numbers(read(path)):
                yield converted(piece, target.dtype, path)
        return
    source = target.source
    whole = source.joined(np.asarray(read(p)) for p in target.paths) if source.cut else source.back(_stacked(target.paths, read))
    for piece in numbers(whole):
        yield converted(piece, target.dtype, target.paths[0])


def _stacked(paths: Sequence[str], read: Read) -> np.ndarray:
    """The parameters on a new first axis, in the widest of their dtypes."""
    first = np.asarray(read(paths[0]))
    if len(paths) == 1:
        return first[None]
    made = np.empty((len(paths), *first.shape), first.dtype)
    for k, path in enumerate(paths):
        array = first if k == 0 else np.asarray(read(path))
        if np.promote_types(made.dtype, array.dtype) != made.dtype:
            made = made.astype(np.promote_types(made.dtype, array.dtype))
        made[k] = array
    return made


def _check_same(target: Target, other: tuple[str, ...], read: Read) -> None:
    for a, b in zip(target.paths, other, strict=True):
        pairs = zip(numbers(read(a)), numbers(read(b)), strict=True)
        if not all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in pairs):
            raise Diagnostics([diagnostic("checkpoint-mismatch", f"`{a}` and `{b}` would be one tensor `{target.name}`, and they differ",
                                          target.source.rule.key.span if target.source.rule else None,
                                          help="give each parameter a foreign name of its own")])


def converted(piece: np.ndarray, dtype: str, path: str) -> memoryview:
    """The bytes of some numbers. Those that were bfloat16 keep their bits."""
    if dtype == "bfloat16" and piece.dtype == np.float32:
        bits = np.ascontiguousarray(piece).view(np.uint32)
        if not (bits & np.uint32(0xFFFF)).any():
            return (bits >> np.uint32(16)).astype("<u2").view(np.uint8).data
    if piece.dtype == np.dtype(dtype if dtype != "bfloat16" else "V2"):
        return np.ascontiguousarray(piece).astype(piece.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
    try:
        with np.errstate(over="ignore"):
            made = piece.astype(np.float64) if dtype == "float64" else convert(piece.astype(np.float32), dtype)
    except Unfit as unfit:
        raise Diagnostics([diagnostic("bad-weights", f"parameter `{path}` {unfit.headline}",
                                      help="write bfloat16 or float32, which reach further")]) from None
    return np.ascontiguousarray(made).view(np.uint8).data
