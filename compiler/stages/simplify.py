"""`typed Graph -> typed Graph`: drop the arguments of inner regions that nothing reads.

Hoisting and absent masks leave them behind. Nodes, names and parameters that a person wrote stay.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import ARGUMENT, Branch, Call, Graph, Input, Node, Region, Repeat, Scan, Value, mapped


def simplify(graph: Graph) -> Graph:
    """The graph without idle arguments; those of the model itself stay."""
    return replace(graph, root=_inside(graph.root))


def _inside(region: Region) -> Region:
    return replace(region, nodes=tuple(_node(n) for n in region.nodes))


def _node(node: Node) -> Node:
    op = node.op
    if isinstance(op, Call | Scan):
        body = _inside(op.body)
        kept = _kept([body], {*op.carry, *op.each} if isinstance(op, Scan) else set())
        return replace(node, op=replace(op, body=_without(body, kept)), inputs=_inputs(node, [body], kept))
    if isinstance(op, Repeat | Branch):
        bodies = [_inside(b) for b in op.bodies]
        kept = _kept(bodies, {*op.carry, *op.each, *(["in"] if isinstance(op, Branch) and op.route else [])})
        return replace(node, op=replace(op, bodies=tuple(_without(b, kept) for b in bodies)), inputs=_inputs(node, bodies, kept))
    return node


def _kept(bodies: list[Region], always: set[str]) -> set[str]:
    """Names of arguments that some body reads, or that the control node itself moves."""
    read = {b.arguments[v.output].name for b in bodies for v in b.uses() if v.node == ARGUMENT}
    return read | always


def _inputs(node: Node, bodies: list[Region], kept: set[str]) -> dict[str, Input]:
    idle = {a.name for b in bodies for a in b.arguments} - kept
    return {k: v for k, v in node.inputs.items() if k not in idle}


def _without(region: Region, kept: set[str]) -> Region:
    numbers = [i for i, a in enumerate(region.arguments) if a.name in kept]
    if len(numbers) == len(region.arguments):
        return region
    places = {Value(ARGUMENT, i): Value(ARGUMENT, k) for k, i in enumerate(numbers)}

    def moved(value: Value) -> Value:
        return places.get(value, value)

    nodes = tuple(replace(n, inputs={k: mapped(x, moved) for k, x in n.inputs.items()}) for n in region.nodes)
    return replace(region, arguments=tuple(region.arguments[i] for i in numbers), nodes=nodes,
                   outputs=tuple((n, moved(v)) for n, v in region.outputs))
