"""The prefix model: what is fixed before the first step, and what its inputs mean to the whole graph."""

from __future__ import annotations

from dataclasses import replace

from ...ir.flat import pruned
from ...ir.graph import ARGUMENT, Graph, Value
from .arguments import ordered
from .facts import Facts

Wanted = list[tuple[str, Value]]


def prefix(flat: Graph, facts: Facts, wanted: Wanted) -> Graph | None:
    """The graph of what is fixed, None where nothing is."""
    if not wanted:
        return None
    root = pruned(replace(flat.root, outputs=tuple(wanted)))
    read = {v.output for n in root.nodes for v in n.values if v.node == ARGUMENT}
    return replace(flat, root=ordered(root, [
        a.name for k, a in enumerate(root.arguments)
        if not facts.axes(a.type) and (a.name not in facts.dropped or a.name in facts.absent and k in read)]))


def meaning(flat: Graph, facts: Facts, wanted: Wanted) -> Graph | None:
    """The whole graph with the outputs of the prefix. Values that only an input which the step form does without may make absent count as
    there: they say nothing of the prefix's inputs."""
    if not wanted:
        return None
    root = flat.root
    arguments = tuple(replace(a, type=replace(a.type, optional=a.type.optional and a.name not in facts.dropped)) for a in root.arguments)
    optional = {Value(ARGUMENT, k): a.type.optional for k, a in enumerate(arguments)}
    nodes = []
    for node in root.nodes:
        may = all(optional[v] for v in node.values)
        types = tuple(replace(t, optional=t.optional and may) for t in node.types)
        optional |= {Value(node.id, k): t.optional for k, t in enumerate(types)}
        nodes.append(replace(node, types=types))
    return replace(flat, root=replace(root, arguments=arguments, nodes=tuple(nodes), outputs=tuple(wanted)))
