"""Axis patterns: `b s (h d) -> b h s d`, after einops (Rogozhnikov 2022, "Einops: Clear and Reliable Tensor Manipulations
with Einstein-like Notation"), and the few shape helpers that several families share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import Shape
from .base import OpFault

Size = Dim | int
REST = "..."
Axis = str | tuple[str, ...]     # a name, `...`, or the names in parentheses, outermost first; () is an axis of size 1


@dataclass(frozen=True)
class AxisPattern:
    """`a, b -> c`: the axes of each operand and of the result."""

    text: str
    inputs: tuple[tuple[Axis, ...], ...]
    output: tuple[Axis, ...]


@dataclass(frozen=True)
class Regroup:
    """A rearrangement of one tensor: split axes, permute what results, merge neighbours.

    `split[i]` holds the sizes that input axis i splits into (none: an axis of size 1 that is dropped); `order` permutes the
    pieces; `merge[j]` counts the pieces that result axis j takes (0: a new axis of size 1).
    """

    split: tuple[Shape, ...]
    order: tuple[int, ...]
    merge: tuple[int, ...]

    @property
    def pieces(self) -> Shape:
        return tuple(d for group in self.split for d in group)

    @property
    def permuted(self) -> Shape:
        return tuple(self.pieces[i] for i in self.order)

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        sizes = iter(self.permuted)
        return tuple(product([next(sizes) for _ in range(n)]) for n in self.merge)


def as_dim(size: Size) -> Dim:
    return size if isinstance(size, Dim) else Dim.const(size)


def subscript(axis: int, rank: int, key: Any) -> tuple[Any, ...]:
    """The Python index that applies `key` to one axis: `x[:, key]`, or `x[..., key]` for the last of several."""
    return (..., key) if axis == rank - 1 and rank > 1 else (*[slice(None)] * axis, key)


def replaced(shape: Shape, axis: int, *sizes: Dim) -> Shape:
    """`shape` with one axis replaced by none, one or several."""
    return (*shape[:axis], *sizes, *shape[axis + 1:])


def product(sizes: Sequence[Dim]) -> Dim:
    total = Dim.const(1)
    for d in sizes:
        total = total * d
    return total


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> AxisPattern:
    """Read a pattern; raises OpFault("bad-attribute") that says what is wrong with it."""
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise _wrong(text, "has no single `->` between what is given and what is wanted")
    return AxisPattern(text, tuple(_axes(part, text) for part in left.split(",")), _axes(right, text))


def names_of(axes: Sequence[Axis]) -> Iterator[str]:
    """Every name of one side, groups flattened, `...` included."""
    for axis in axes:
        yield from (axis,) if isinstance(axis, str) else axis


def regroup(pattern: AxisPattern, shape: Shape, given: Mapping[str, Dim]) -> Regroup:
    """How `pattern` rearranges a tensor of `shape`; `given` are the sizes of named axes. Raises OpFault."""
    _check_names(pattern, given)
    for name, size in given.items():
        if size.value is not None and size.value < 1:
            raise OpFault("bad-attribute", f"axis `{name}` has a size of at least 1, not {size}", attribute=name)
    left, right = _unroll(pattern, len(shape))
    sizes = dict(given)
    for i, axis in enumerate(left):
        _solve(pattern, i, axis, shape[i], sizes)
    pieces = list(names_of(left))
    split = tuple(tuple(sizes[n] for n in ((axis,) if isinstance(axis, str) else axis)) for axis in left)
    order = tuple(pieces.index(n) for n in names_of(right))
    return Regroup(split, order, tuple(1 if isinstance(axis, str) else len(axis) for axis in right))


def _axes(text: str, whole: str) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    group: list[str] | None = None
    for word in re.findall(r"\.\.\.|[A-Za-z_]\w*|\S", text):
        if word == "(" and group is None:
            group = []
        elif word == ")" and group is not None:
            axes.append(tuple(group))
            group = None
        elif word == "1":
            if group is None:
                axes.append(())
        elif word == REST or word[0].isalpha() or word[0] == "_":
            axes.append(word) if group is None else group.append(word)
        else:
            raise _wrong(whole, f"has `{word}` where an axis name, `1`, `...` or `( )` may stand")
    if group is not None:
        raise _wrong(whole, "has a `(` without its `)`")
    if list(names_of(axes)).count(REST) > 1:
        raise _wrong(whole, "has `...` twice on one side")
    return tuple(axes)


def _check_names(pattern: AxisPattern, given: Mapping[str, Dim]) -> None:
    if len(pattern.inputs) != 1:
        raise _wrong(pattern.text, "rearranges one tensor, so it has no `,`")
    left, right = (list(names_of(side)) for side in (pattern.inputs[0], pattern.output))
    for side in (left, right):
        twice = next((n for n in side if side.count(n) > 1), None)
        if twice:
            raise _wrong(pattern.text, f"has `{twice}` twice on one side")
    odd = sorted(set(left) ^ set(right))
    if odd:
        raise _wrong(pattern.text, f"has `{odd[0]}` on one side only", help="new axes of size 1 are written `1`; "
                     "`expand` repeats, `mean` and `sum` remove")
    if any(isinstance(axis, tuple) and REST in axis for axis in pattern.inputs[0]):
        raise _wrong(pattern.text, "has `...` inside `( )` on the left, where its sizes cannot be told")
    for name in given:
        if name not in left:
            raise OpFault("bad-attribute", f"`{name}` is no axis of `{pattern.text}`", attribute=name,
                          help="a size belongs to a name in the pattern")


def _unroll(pattern: AxisPattern, rank: int) -> tuple[list[Axis], list[Axis]]:
    """Both sides with `...` replaced by as many names as it stands for."""
    left, right = pattern.inputs[0], pattern.output
    rest = rank - len(left) + 1 if REST in left else 0
    if rest < 0 or (REST not in left and rank != len(left)):
        least = "at least " if REST in left else ""
        raise OpFault("rank-mismatch", f"`{pattern.text}` takes {least}{len(left) - (REST in left)} axes, not {rank}",
                      ports={"in": f"has {rank} axes"}, attribute="as")
    names = tuple(f"{REST}{i}" for i in range(rest))

    def unroll(axes: tuple[Axis, ...]) -> list[Axis]:
        out: list[Axis] = []
        for axis in axes:
            if axis == REST:
                out += names
            elif isinstance(axis, tuple) and REST in axis:
                at = axis.index(REST)
                out.append((*axis[:at], *names, *axis[at + 1:]))
            else:
                out.append(axis)
        return out

    return unroll(left), unroll(right)


def _solve(pattern: AxisPattern, index: int, axis: Axis, size: Dim, sizes: dict[str, Dim]) -> None:
    """Find the one unknown size of a group, and check the rest against the axis."""
    names = (axis,) if isinstance(axis, str) else axis
    shown = axis if isinstance(axis, str) else f"({' '.join(axis)})" if axis else "1"
    unknown = [n for n in names if n not in sizes]
    if len(unknown) > 1:
        raise OpFault("bad-attribute", f"the sizes of `{'` and `'.join(unknown)}` in `{shown}` are unknown", attribute="as",
                      ports={"in": f"axis {index} is {size}"}, help=f"give all but one of them, such as `{unknown[0]}: 8`")
    known = product([sizes[n] for n in names if n in sizes])
    if unknown:
        found = size.exact_div(known)
        if found is None:
            raise OpFault("shape-mismatch", f"`{shown}` of `{pattern.text}` splits {size}, which {known} does not divide",
                          ports={"in": f"axis {index} is {size}"}, attribute="as")
        sizes[unknown[0]] = found
    elif known != size:
        raise OpFault("shape-mismatch", f"`{shown}` of `{pattern.text}` is {known}, but the axis is {size}",
                      ports={"in": f"axis {index} is {size}"}, attribute="as")


def _wrong(text: str, what: str, help: str | None = None) -> OpFault:
    return OpFault("bad-attribute", f"the pattern `{text}` {what}", attribute="as", help=help)


def reshape(g: Any, x: Any, have: Shape, want: Shape) -> Any:
    """ONNX: `x` of shape `have` as `want`, with Unsqueeze, Squeeze or a constant Reshape where that will do."""
    if have == want:
        return x
    for op, small, large in (("Unsqueeze", have, want), ("Squeeze", want, have)):
        ones = _added_ones(small, large)
        if ones is not None:
            return g.op(op, x, g.ints(*ones))
    values: list[int | None] = []
    for i, d in enumerate(want):
        kept = d.value is None and i < len(have) and have[i] == d
        values.append(0 if kept else d.value)        # 0 copies the size of the same axis
    kept_any = any(v == 0 for v in values)
    if None not in values and not any(d.value == 0 for d in want):
        return g.op("Reshape", x, g.ints(*values))
    if values.count(None) == 1 and not kept_any:     # -1 is told only by sizes that cannot be 0
        return g.op("Reshape", x, g.ints(*(-1 if v is None else v for v in values)))
    return g.op("Reshape", x, g.shape(want), allowzero=1)


def _added_ones(small: Shape, large: Shape) -> list[int] | None:
    """The axes of size 1 that `large` has over `small`, or None when they differ in more."""
    ones, at = [], 0
    for i, d in enumerate(large):
        if at < len(small) and small[at] == d:
            at += 1
        elif d.value == 1:
            ones.append(i)
        else:
            return None
    return ones if at == len(small) else None
