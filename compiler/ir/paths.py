"""Paths through the graph, by networkx: how many ops must run one after another."""

from __future__ import annotations

import networkx as nx

from .graph import Branch, Call, Node, Region, Repeat, Scan
from .parameters import is_parameter


def longest_path(region: Region) -> int:
    """Ops on the longest chain of dependencies; a repeat counts its copies, a scan one step."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((node.id, {"ops": _ops(node)}) for node in region.nodes)
    graph.add_edges_from((v.node, node.id) for node in region.nodes for v in node.values if v.node >= 0)
    longest: dict[int, int] = {}
    for k in nx.topological_sort(graph):
        longest[k] = graph.nodes[k]["ops"] + max((longest[p] for p in graph.predecessors(k)), default=0)
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
