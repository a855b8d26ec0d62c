"""Paths through the graph: how many ops must run one after another."""

from __future__ import annotations

from .graph import Branch, Call, Node, Region, Repeat, Scan
from .parameters import is_parameter


def longest_path(region: Region) -> int:
    """Ops on the longest chain of dependencies; a repeat counts its copies, a scan one step."""
    longest: dict[int, int] = {}
    for node in region.nodes:                                   # in topological order
        longest[node.id] = _ops(node) + max((longest[v.node] for v in node.values if v.node >= 0), default=0)
    return max(longest.values(), default=0)


def _ops(node: Node) -> int:
    op = node.op
    if isinstance(op, Call | Scan):
        return longest_path(op.body)
    if isinstance(op, Repeat):
        lengths = [longest_path(b) for b in op.bodies]
        return sum(lengths[k] for k in op.schedule)
    if isinstance(op, Branch):
        return max(map(longest_path, op.bodies))
    return 0 if is_parameter(node) else 1
