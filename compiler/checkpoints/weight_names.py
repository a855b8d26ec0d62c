"""Matching the tensors of a weight file to a model's parameters by name and shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, permutations
from math import prod
from typing import Protocol

from ..lang.diagnostic import Diagnostics, diagnostic, nearest

Shape = tuple[int, ...]
_LINES = 6
_AXES = ((), ("n",), ("o", "i"), ("o", "i", "k"), ("o", "i", "h", "w"))
_INDICES = re.compile(r"(?<![^.])\d+(?![^.])")

# Buffers that frameworks save and that hold nothing learned: name pattern, and what its shape must be.
_BUFFERS: tuple[tuple[re.Pattern[str], Callable[[Shape], bool]], ...] = (
    (re.compile(r"(.*\.)?(position_ids|token_type_ids)"), lambda s: len(s) == 2 and s[0] == 1),
    (re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"), lambda s: True),
    (re.compile(r"(.*\.)?(attn|attention)\.bias"), lambda s: len(s) == 4 and s[:2] == (1, 1) and s[2] == s[3]),
    (re.compile(r"(.*\.)?masked_bias"), lambda s: s in ((), (1,))),
    (re.compile(r"(.*\.)?num_batches_tracked"), lambda s: s == ()),
)


class Tensors(Protocol):
    """What matching needs of a weight file."""

    def names(self) -> list[str]: ...
    def shape(self, name: str) -> Shape: ...


@dataclass(frozen=True)
class Origin:
    """The rule of the spec that wants a tensor: its key, its pattern, and the names that the tensor may have."""

    key: str
    pattern: str | None
    names: tuple[str, ...]


def match_weights(wanted: Mapping[str, Shape], file: Tensors, rename: Mapping[str, str] | None = None,
                  origins: Mapping[str, Origin] | None = None) -> dict[str, str]:
    """The file's tensor for each wanted parameter; `rename` gives the file's name where it differs from ours.

    Two parameters may share a tensor. `origins` are the rules that want them, where it is foreign tensors that are wanted.
    Raises `Diagnostics` with one `checkpoint-mismatch`: tensors that are missing, unexpected (saved buffers such as causal masks
    are not) or of another shape.
    """
    rename, origins = rename or {}, origins or {}
    match = {ours: rename.get(ours, ours) for ours in wanted}
    held = {name: tuple(file.shape(name)) for name in file.names()}
    missing = {ours: theirs for ours, theirs in match.items() if theirs not in held}
    shaped = {ours: held[theirs] for ours, theirs in match.items() if theirs in held and held[theirs] != tuple(wanted[ours])}
    used = set(match.values())
    unexpected = [n for n, shape in held.items() if n not in used and not is_buffer(n, shape)]
    if not (missing or shaped or unexpected):
        return match
    spare = fold((n, "") for n in unexpected)
    notes = [
        *_lines("missing", fold((n, _missing(n, missing[n], wanted[n], origins.get(n))) for n in missing), dict(spare)),
        *_lines("unexpected", fold((n, str(list(held[n]))) for n in unexpected)),
        *_lines("another shape", fold((n, _shapes(tuple(wanted[n]), s, origins.get(n))) for n, s in shaped.items())),
    ]
    counts = ((len(missing), "missing"), (len(unexpected), "unexpected"), (len(shaped), "of another shape"))
    differences = ", ".join(f"{n:,} {text}" for n, text in counts if n)
    headline = f"`{getattr(file, 'path', 'the weights')}` does not fit the model: {differences}"
    hint = _prefixed(missing.values(), unexpected, bool(origins))
    raise Diagnostics([diagnostic("checkpoint-mismatch", headline, note=notes, help=hint)])


def is_buffer(name: str, shape: Shape) -> bool:
    """Whether a saved tensor is a constant that a framework saved along, such as GPT-2's causal mask."""
    return any(pattern.fullmatch(name) and fits(shape) for pattern, fits in _BUFFERS)


def fold(items: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join names that differ in one index and share their text: `layers.{0..11}.norm.weight`."""
    rows = [(tuple(name.split(".")), text) for name, text in items]
    for axis in range(max((len(parts) for parts, _ in rows), default=0)):
        groups: dict[object, list[str]] = {}
        for parts, text in rows:
            groups.setdefault(_group(parts, text, axis), []).append(parts[axis] if axis < len(parts) else "")
        firsts = {_group(parts, text, axis): (parts, text) for parts, text in reversed(rows)}
        rows = [((*firsts[key][0][:axis], _range(seen), *firsts[key][0][axis + 1:]) if len(seen) > 1 else firsts[key][0],
                 firsts[key][1]) for key, seen in groups.items()]
    return [(".".join(parts), text) for parts, text in rows]


def _group(parts: tuple[str, ...], text: str, axis: int) -> object:
    index = axis < len(parts) and parts[axis].isdecimal()
    return (parts[:axis], parts[axis + 1:], text) if index else (parts, text)


def _range(indices: list[str]) -> str:
    numbers = sorted({int(i) for i in indices})
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return "{" + ",".join(f"{r[0]}..{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs) + "}"


def _lines(what: str, rows: list[tuple[str, str]], spare: Mapping[str, str] | None = None) -> list[str]:
    shown = rows if len(rows) <= _LINES else rows[: _LINES - 1]
    lines = []
    for name, text in shown:
        near = nearest(name, spare) if spare else None
        lines.append(f"{what}: `{name}` {text}" + (f"; nearest in the file: `{near}`" if near else ""))
    if len(rows) > len(shown):
        lines.append(f"{what}: ... and {len(rows) - len(shown)} more lines like these")
    return lines


def _missing(ours: str, theirs: str, shape: Shape, origin: Origin | None) -> str:
    if origin is not None:
        others = [n for n in origin.names if n != ours]
        names = f" (or `{_INDICES.sub('{i}', '`, `'.join(others))}`)" if others else ""
        return f"{list(shape)}{names}, for `{origin.key}`"
    return f"{list(shape)}" + (f", expected in the file as `{_INDICES.sub('{i}', theirs)}`" if theirs != ours else "")


def _shapes(wanted: Shape, found: Shape, origin: Origin | None) -> str:
    text = f"should be {list(wanted)}, is {list(found)}"
    pattern = fitting(wanted, found, origin.pattern if origin else None)
    if pattern is None:
        return text
    turned = ", matches if transposed" if len(wanted) == 2 and found == wanted[::-1] else ""
    left, _, right = (side.strip() for side in pattern.partition("->"))
    if left == right:
        return f"{text}{turned}: write no `as:`"
    return f"{text}{turned}: write `as: \"{left} -> {right}\"`" if origin else text + (turned or f", matches as `{left} -> {right}`")


def fitting(wanted: Shape, found: Shape, pattern: str | None = None) -> str | None:
    """The one pattern that takes a tensor of shape `found` where `pattern` asks for `wanted`: other orders of axes, or neighbours
    that are merged. None where there is none, or several."""
    names = _AXES[len(found)] if len(found) < len(_AXES) else None
    if names is None:
        return None
    orders = [p for p in permutations(range(len(wanted))) if tuple(wanted[k] for k in p) == found]
    if len(orders) == 1:
        left, _, right = (pattern or f"{' '.join(names)} -> {' '.join(names)}").partition("->")
        axes = re.findall(r"\([^)]*\)|\S+", left)
        return f"{' '.join(axes[k] for k in orders[0])} -> {right.strip()}" if len(axes) == len(wanted) else None
    merged = _merge(wanted, found, names) if pattern is None and not orders else None
    return None if merged is None else f"{' '.join(names)} -> {merged}"


def _merge(wanted: Shape, found: Shape, names: tuple[str, ...]) -> str | None:
    """How neighbouring axes of `found` join to `wanted`: `a (b c)`."""
    groups, at = [], 0
    for size in wanted:
        stop = at + 1
        while stop < len(found) and (prod(found[at:stop]) != size or found[stop] == 1):
            stop += 1
        if prod(found[at:stop]) != size:
            return None
        groups.append(" ".join(names[at:stop]) if stop == at + 1 else f"({' '.join(names[at:stop])})")
        at = stop
    return " ".join(groups) if at == len(found) else None


def _prefixed(missing: Iterable[str], unexpected: Iterable[str], foreign: bool) -> tuple[str, ...]:
    """A help line when every missing name stands in the file behind one prefix (`module.`, `_orig_mod.`)."""
    names, spare = list(missing), set(unexpected)
    found = [n.removesuffix(names[0]) for n in spare if names and n.endswith(f".{names[0]}")]
    prefix = next((p for p in sorted(found) if all(f"{p}{n}" in spare for n in names)), None)
    if not prefix:
        return ()
    way = f"write `prefix: {prefix}` under `checkpoint:`" if foreign else "save the inner module's state_dict()"
    return (f"the file's names begin with `{prefix}`: {way}",)
