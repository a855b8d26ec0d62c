"""A small twin of a large model: the same bodies, each run once."""

from __future__ import annotations

from dataclasses import replace

from .graph import Branch, Call, Graph, Node, Region, Repeat, Scan


def twin(graph: Graph) -> Graph:
    """The graph with one copy of each distinct body of its repeats; what reads single copies keeps all of them."""
    return replace(graph, root=_region(graph.root))


def _region(region: Region) -> Region:
    read = region.uses()
    return replace(region, nodes=tuple(_node(n, {n.outputs[v.output] for v in read if v.node == n.id}) for n in region.nodes))


def _node(node: Node, used: set[str]) -> Node:
    op = node.op
    if isinstance(op, Call | Scan):
        return replace(node, op=replace(op, body=_region(op.body)))
    if isinstance(op, Branch):
        return replace(node, op=replace(op, bodies=tuple(map(_region, op.bodies))))
    if not isinstance(op, Repeat):
        return node
    made = replace(op, bodies=tuple(map(_region, op.bodies)))
    if op.each or any(o.startswith("all.") for o in used):
        return replace(node, op=made)
    kept = [op.schedule.index(k) for k in dict.fromkeys(op.schedule)]
    return replace(node, op=replace(made, schedule=tuple(op.schedule[i] for i in kept), share=tuple(range(len(kept)))))
