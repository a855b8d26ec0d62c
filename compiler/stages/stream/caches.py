"""Which attention is the first to read its caches, so that its kernel may write the chunk into them."""

from __future__ import annotations

from dataclasses import replace

from ...ir.graph import ARGUMENT, Node, Region, Value
from ...ops.cached_attention import CachedAttention
from ...ops.streaming import Append


def first_readers(region: Region) -> Region:
    """The region with `first` set where no node before an attention reads the two caches that it does."""
    first: dict[Value, int] = {}
    for node in region.nodes:
        for value in node.values:
            first.setdefault(value, node.id)

    def marked(node: Node) -> Node:
        if not isinstance(node.op, CachedAttention):
            return node
        caches = {v for v in (node.inputs["key"], node.inputs["value"]) if isinstance(v, Value) and v.node != ARGUMENT}
        own = len(caches) == 2 and all(isinstance(region.nodes[v.node].op, Append) and first[v] == node.id for v in caches)
        return replace(node, op=replace(node.op, first=True)) if own else node

    return replace(region, nodes=tuple(map(marked, region.nodes)))
