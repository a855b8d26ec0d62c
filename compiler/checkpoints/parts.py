"""Patterns for tensors whose parts differ in size: `(q + k + v) i -> q i, k i, v i`, as einx (https://github.com/fferflo/einx)
writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..ir.dimension import Dim
from ..ops.base import OpFault
from ..ops.patterns import names_of, parse_pattern, regroup

_SUM = re.compile(r"\(\s*([A-Za-z_]\w*(?:\s*\+\s*[A-Za-z_]\w*)+)\s*\)")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """Parts that lie one after the other along an axis: a tensor of `shape`, whose axes split to sizes `split`, of which `axis` is
    cut at `ends` (0 first), and how the axes of each part are permuted."""

    shape: Shape
    split: Shape
    order: tuple[int, ...]
    axis: int
    ends: tuple[int, ...]


def patterns(text: str) -> list[tuple[str, str]]:
    """The name that each part has in the sum, and the part's own pattern: `q`, `q i -> q i`. Empty without a `+`. Raises OpFault."""
    if "+" not in text:
        return []
    left, _, right = text.partition("->")
    sums, results = _SUM.findall(left), right.split(",")
    if len(sums) != 1 or "+" in _SUM.sub("", text):
        raise OpFault("bad-attribute", f"the pattern `{text}` has `+` elsewhere than in one sum of names on the left",
                      help='write the sum in parentheses: `"(q + k + v) i -> q i, k i, v i"`')
    names = [name.strip() for name in sums[0].split("+")]
    if len(names) != len(results):
        raise OpFault("bad-attribute", f"the pattern `{text}` sums {len(names)} parts and gives {len(results)} results",
                      help="write one result for each part, with commas between")
    made = [(name, f"{_SUM.sub(name, left).strip()} -> {result.strip()}") for name, result in zip(names, results, strict=True)]
    for _, one in made:
        parse_pattern(one)
    return made


def cut(text: str, shapes: Sequence[Shape], sizes: Mapping[str, int]) -> Cut:
    """How the pattern takes parameters of these shapes from one tensor. Raises OpFault."""
    dims = {name: Dim.const(size) for name, size in sizes.items()}
    splits: list[Shape] = []
    orders: set[tuple[int, ...]] = set()
    for (_, one), shape in zip(made := patterns(text), shapes, strict=True):
        left, _, right = one.partition("->")
        back = regroup(parse_pattern(f"{right} -> {left}"), tuple(map(Dim.const, shape)),
                       {n: d for n, d in dims.items() if re.search(rf"\b{n}\b", one)})
        splits.append(tuple(d.value or 0 for d in back.permuted))
        orders.add(tuple(back.order.index(k) for k in range(len(back.order))))
    if len(orders) > 1:
        raise OpFault("bad-attribute", "the parts order their axes differently", help="write the axes of every result in one order")
    axis = list(names_of(parse_pattern(f"{right} -> {left}").output)).index(made[-1][0])
    rest = {s[:axis] + s[axis + 1:] for s in splits}
    if len(rest) > 1:
        raise OpFault("bad-attribute", f"the parts differ in more than the axis of the sum: {', '.join(str(list(s)) for s in splits)}")
    ends = tuple(sum(s[axis] for s in splits[:k]) for k in range(len(splits) + 1))
    split = (*splits[0][:axis], ends[-1], *splits[0][axis + 1:])
    at, merged = 0, list[int]()
    for count in back.merge:
        merged.append(prod(split[at:at + count]))
        at += count
    return Cut(tuple(merged), split, orders.pop(), axis, ends)
