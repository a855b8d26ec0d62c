"""`Graph -> tuple[Outline, ...]`: the folded tree of one side of a comparison, which layouts show beside that of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import prod
from typing import Any

from ..ir.graph import Branch, Call, Graph, Input, Node, Region, Repeat, Scan, join
from ..ir.parameters import is_parameter, makers
from ..ir.signature import spell
from ..show import total
from .graphs.concepts import plain
from .graphs.place import copy
from .report import Outline, Where, ranges


def outline(graph: Graph) -> tuple[Outline, ...]:
    """Nodes in the order of the spec, outer ones with those inside."""
    return tuple(_nodes(graph.root, Where("")))


def _nodes(region: Region, at: Where) -> Iterator[Outline]:
    owners = makers(region)
    for node in region.nodes:
        if node.id in owners:
            continue
        where = Where(join(at.pattern, node.name), at.copies)
        made = [p for p in region.nodes if p.id in owners and owners[p.id] is node]
        size = total(node) + sum(_size(p) for p in ([node] if is_parameter(node) else made))
        reads = {port: text for port, given in node.inputs.items()
                 if (text := _label(region, given, {p.id for p in made}))}
        yield Outline(where, node.name or "(each)", _what(node), spell(node.types[0].shape), size, _attributes(node), reads,
                      tuple(_inside(node, where)), outputs(node.op.body) if isinstance(node.op, Call | Scan) else {})


def outputs(region: Region) -> dict[str, str]:
    """What each output of a region is."""
    return {name: region.label(value) or "(each)" for name, value in region.outputs}


def _inside(node: Node, where: Where) -> Iterator[Outline]:
    op = node.op
    if isinstance(op, Call | Scan):
        yield from _nodes(op.body, where)
    elif isinstance(op, Repeat | Branch):
        for k, body in enumerate(op.bodies):
            copies = tuple(i for i, b in enumerate(op.schedule) if b == k)
            inside = tuple(_nodes(body, copy(where, copies)))
            yield Outline(copy(where, copies), f"[{ranges(copies)}]", body.name, "", sum(x.parameters for x in inside), children=inside,
                          outputs=outputs(body))


def _what(node: Node) -> str:
    op = node.op
    if isinstance(op, Call):
        return op.body.name
    if isinstance(op, Scan):
        return f"scan of {op.body.name}"
    if isinstance(op, Repeat | Branch):
        names = " | ".join(dict.fromkeys(b.name for b in op.bodies))
        return f"{'x' if isinstance(op, Repeat) else '|| '}{len(op.schedule)} {names}"
    return str(op.name)


def _attributes(node: Node) -> dict[str, Any]:
    """What was said of an op that is not its default."""
    op = node.op
    if isinstance(op, Scan):
        return {"along": str(op.extent)} | ({"backward": True} if op.backward else {})
    if isinstance(op, Repeat | Branch):
        return {"sets of parameters": len(op.owners)} if len(op.owners) != len(op.schedule) else {}
    if isinstance(op, Call):
        return {}
    owned = set(op.parameters())
    return {f.metadata.get("key") or f.name: plain(value) for f in dataclasses.fields(op)
            if (value := getattr(op, f.name)) is not None and value != f.default and f.name not in owned and f.name != "shape"}


def _label(region: Region, given: Input, own: set[int]) -> str:
    """The values that a port is given; empty where there are none, or where the op made them."""
    values = given if isinstance(given, tuple) else () if given is None else (given,)
    return ", ".join(region.label(v) or "(each)" for v in values if v.node not in own)


def _size(node: Node) -> int:
    return prod(d.value or 0 for d in node.types[0].shape)
