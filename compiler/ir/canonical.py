"""One order for graphs that differ only in the order they were written in, found without looking at names.

Nodes and arguments are numbered as a walk from the outputs, ports in order, first leaves them. What no output needs comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .graph import ARGUMENT, Call, Control, Node, Region, Scan, Value, mapped


def canonical(region: Region) -> Region:
    """The same region, its nodes and arguments renumbered, and those of every region inside it."""
    nodes = [_node(n) for n in region.nodes]
    order, arguments = _walk([v for _, v in region.outputs], nodes)
    order += sorted(set(range(len(nodes))) - set(order))
    rest = sorted(set(range(len(region.arguments))) - set(arguments), key=lambda i: str(region.arguments[i].type))
    places = {old: new for new, old in enumerate(order)}, {old: new for new, old in enumerate([*arguments, *rest])}

    def moved(v: Value) -> Value:
        return Value(v.node, places[1][v.output]) if v.node == ARGUMENT else Value(places[0][v.node], v.output)

    made = tuple(replace(nodes[k], id=i, inputs={p: mapped(x, moved) for p, x in nodes[k].inputs.items()}) for i, k in enumerate(order))
    return replace(region, nodes=made, arguments=tuple(region.arguments[i] for i in [*arguments, *rest]),
                   outputs=tuple((name, moved(v)) for name, v in region.outputs))


def _walk(ends: list[Value], nodes: list[Node]) -> tuple[list[int], list[int]]:
    """Ids of the nodes and numbers of the arguments that `ends` need, in the order that a walk from them leaves them."""
    done: dict[int, None] = {}
    arguments: dict[int, None] = {}
    stack: list[tuple[int, Iterator[Value]]] = [(ARGUMENT, iter(ends))]
    entered = set()
    while stack:
        node, values = stack[-1]
        for v in values:
            if v.node == ARGUMENT:
                arguments[v.output] = None
            elif v.node not in entered:
                entered.add(v.node)
                stack.append((v.node, nodes[v.node].values))
                break
        else:
            stack.pop()
            if node != ARGUMENT:
                done[node] = None
    return [*done], [*arguments]


def _node(node: Node) -> Node:
    """The node with canonical bodies and its ports in order: those of an op by name, of a control node as its bodies number them."""
    op = node.op
    if not isinstance(op, Control):
        return replace(node, inputs={p: node.inputs[p] for p in sorted(node.inputs)})
    bodies = tuple(map(canonical, op.bodies))
    ports = list(dict.fromkeys([a.name for b in bodies for a in b.arguments] + sorted(node.inputs)))
    sort = lambda x: {p: x[p] for p in ports if p in x}  # noqa: E731
    changes: dict[str, Any] = {"body": bodies[0]} if isinstance(op, Call | Scan) else {"bodies": bodies}
    if not isinstance(op, Call):
        changes |= {"carry": sort(op.carry), "each": tuple(p for p in ports if p in op.each) if isinstance(op, Scan) else sort(op.each)}
    return replace(node, op=replace(op, **changes), inputs=sort(node.inputs))
