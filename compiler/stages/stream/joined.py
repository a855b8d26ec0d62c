"""Positions of the stream that are joined with others into one axis, which no step could walk: said where it happens."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.dimension import Dim
from ...ir.graph import Control, Node, Region, Value
from ...lang.diagnostic import Diagnostic, diagnostic
from ...ops.base import axis_of
from .derive import places

ONE = ("let one input hold both along `{T}`: what comes first is its first positions, such as a prompt's",
       "where the two are of different kinds, give each an input along `{T}` and choose between them with `where`")
SHIFT = "to move positions by one, write `op: delay`"


def joined(nodes: Iterable[tuple[str, Region, Node]], symbols: Iterable[str]) -> dict[int, Diagnostic]:
    """By node: each `concat` that joins positions along one of the symbols with other ones, the last such symbol being the stream's."""
    found, free = {}, list(symbols)
    for path, region, node in nodes:
        if isinstance(node.op, Control) or node.op.name != "concat":
            continue
        axis = axis_of(len(node.types[0].shape), node.op.axis)
        sizes = [region.type(v).shape[axis] for v in node.values]
        T = next((s for s in reversed(free) if Dim.symbol(s) in sizes), None)
        if axis == 0 or T is None:
            continue
        others = [str(x) for x in sizes if x != Dim.symbol(T)] or [T]
        more = " and ".join(f"`{x}`" for x in others)
        help = [text.format(T=T) for text in ONE] if any(not x.isdigit() for x in others) else [SHIFT]
        found[node.id] = diagnostic(
            "cannot-stream", f"`{path}` cannot be computed step by step along `{T}`", *places(node.origin),
            note=f"`concat` joins positions along `{T}` with {more} more, and a step takes those of `{T}`",
            help=help)
    return found


def behind(region: Region, nodes: Iterable[int]) -> set[int]:
    """The nodes that depend on one of these, with them."""
    found = set(nodes)
    for node in region.nodes:
        if any(isinstance(v, Value) and v.node in found for v in node.values):
            found.add(node.id)
    return found
