"""Regions with other arguments: in another order, or without optional ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...ir.flat import pruned
from ...ir.graph import ARGUMENT, Branch, Call, Control, Input, Node, Region, Repeat, Scan, Value, mapped
from ...ops.values import Full

MASKS = ("length_mask", "and", "or", "not")          # ops whose result is absent where all that they read is


def ordered(region: Region, names: Iterable[str]) -> Region:
    """The region with these of its arguments, in this order; no node reads another."""
    old = [a.name for a in region.arguments]
    places = [old.index(n) for n in names]
    moves = {p: Value(ARGUMENT, k) for k, p in enumerate(places)}

    def moved(v: Value) -> Value:
        return moves[v.output] if v.node == ARGUMENT else v

    nodes = tuple(replace(n, inputs={k: mapped(v, moved) for k, v in n.inputs.items()}) for n in region.nodes)
    arguments = tuple(region.arguments[p] for p in places)
    return replace(region, arguments=arguments, nodes=nodes, outputs=tuple((n, moved(v)) for n, v in region.outputs))


def without(region: Region, names: Iterable[str]) -> Region:
    """The region with some of its optional arguments left out, and all that is absent for it."""
    lost = set(names)
    gone = _absent(region, lost)
    nodes = tuple(_cut(n, gone) if any(v in gone for v in n.values) else n for n in region.nodes)
    return ordered(pruned(replace(region, nodes=nodes)), (a.name for a in region.arguments if a.name not in lost))


def shortened(op: Control, names: set[str]) -> Control:
    """A block, copies or a loop without some of the optional arguments of its bodies."""
    if not names:
        return op
    if isinstance(op, Scan):
        return replace(op, body=without(op.body, names), length=op.length and "scan.length" not in names)
    if isinstance(op, Call):
        return replace(op, body=without(op.body, names))
    assert isinstance(op, Branch | Repeat)
    return replace(op, bodies=tuple(without(b, names) for b in op.bodies))


def _absent(region: Region, names: set[str]) -> set[Value]:
    """What is absent without these arguments."""
    gone = {Value(ARGUMENT, k) for k, a in enumerate(region.arguments) if a.name in names}
    for node in region.nodes:
        read = list(node.values)
        if getattr(node.op, "name", "") in MASKS and read and all(v in gone for v in read):
            gone.add(Value(node.id))
        elif isinstance(node.op, Call) and any(v in gone for v in read):
            body, inner = node.op.body, _absent(node.op.body, {p for p, v in node.inputs.items() if v in gone})
            gone |= {Value(node.id, k) for k, o in enumerate(node.outputs) if body.output(o) in inner}
    return gone


def _cut(node: Node, gone: set[Value]) -> Node:
    def left(given: Input) -> Input:
        if isinstance(given, tuple):
            return tuple(v for v in given if v not in gone)
        return None if given in gone else given

    op, inputs = node.op, {port: left(given) for port, given in node.inputs.items()}
    if isinstance(op, Control):
        lost = {p for p, v in inputs.items() if v is None}
        return replace(node, op=shortened(op, lost), inputs={p: v for p, v in inputs.items() if p not in lost})
    if op.name == "fill_absent":
        return replace(node, op=Full(value=op.value, shape=node.types[0].shape, dtype=node.types[0].dtype), inputs={})
    return replace(node, inputs=inputs)
