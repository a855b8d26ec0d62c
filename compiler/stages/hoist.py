"""`typed Graph -> typed Graph`: move what does not change from step to step out of scan bodies.

A node moves when all it reads comes from arguments that are the same for every step. It keeps its path, so a moved
`attend.keys` of the scan `decoder` becomes the node `decoder.attend.keys`. Parameters move with what reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.builder import RegionBuilder
from ..ir.graph import ARGUMENT, Branch, Call, Graph, Input, Node, Region, Repeat, Scan, Value, bodies, fresh, join, mapped
from ..ir.parameters import is_parameter


def hoist(graph: Graph) -> Graph:
    """Every scan of the graph with its invariants outside."""
    return replace(graph, root=_region(graph.root))


def _region(region: Region) -> Region:
    if not any(_has_scan(n) for n in region.nodes):
        return region
    builder = _copy_frame(region)
    moved: dict[Value, Value] = {Value(ARGUMENT, i): Value(ARGUMENT, i) for i in range(len(region.arguments))}
    for node in region.nodes:
        inputs = {k: mapped(v, moved.__getitem__) for k, v in node.inputs.items()}
        op = node.op
        if isinstance(op, Scan):
            op, lifted = _scan(op, node, inputs, builder)
            inputs |= lifted
        elif isinstance(op, Call):
            op = Call(_region(op.body))
        elif isinstance(op, Repeat | Branch):
            op = replace(op, bodies=tuple(_region(b) for b in op.bodies))
        made = builder.add(node.name, op, inputs, node.outputs, node.types, node.origin)
        for k in range(len(node.outputs)):
            moved[Value(node.id, k)] = Value(made.id, k)
    return builder.finish([(n, moved[v]) for n, v in region.outputs])


def _scan(op: Scan, node: Node, inputs: Mapping[str, Input], outer: RegionBuilder) -> tuple[Scan, dict[str, Input]]:
    """The scan without its invariants, and its new inputs. Inner scans first, so that what is fixed for them may move further."""
    body, changing = _region(op.body), {*op.carry, *op.each}
    fixed = {i: v for i, a in enumerate(body.arguments) if a.name not in changing and isinstance(v := inputs.get(a.name), Value)}
    body, extra = _extract(body, fixed, outer, node.name)
    return replace(op, body=body), extra


def _extract(region: Region, fixed: Mapping[int, Value], outer: RegionBuilder, path: str) -> tuple[Region, dict[str, Input]]:
    """Move the nodes that depend on `fixed` arguments alone to `outer`; returns what is left and its new inputs."""
    known: dict[Value, Value] = {Value(ARGUMENT, i): v for i, v in fixed.items()}
    owners = _parameters_to_move(region, set(known))
    inner = _copy_frame(region)
    kept: dict[Value, Value] = {Value(ARGUMENT, i): Value(ARGUMENT, i) for i in range(len(region.arguments))}
    extra: dict[str, Input] = {}

    def inside(value: Value) -> Value:
        if value not in kept:
            name = fresh(region.label(value).replace(".", "_"), inner.taken)
            extra[name] = known[value]
            kept[value] = inner.argument(name, region.type(value))
        return kept[value]

    for node in region.nodes:
        if _movable(node, known) and (not is_parameter(node) or node.id in owners):
            outside = {k: mapped(v, known.__getitem__) for k, v in node.inputs.items()}
            made = outer.add(join(path, node.name), node.op, outside, node.outputs, node.types, node.origin)
            known |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
            continue
        op, more = node.op, {}
        if isinstance(op, Call):
            given = {i: known[v] for i, a in enumerate(op.body.arguments) if isinstance(v := node.inputs.get(a.name), Value) and v in known}
            body, lifted = _extract(op.body, given, outer, join(path, node.name))
            op, more = Call(body), {k: _enter(v, k, outer, inner, extra) for k, v in lifted.items()}
        inputs = {k: mapped(v, inside) for k, v in node.inputs.items()} | more
        made = inner.add(node.name, op, inputs, node.outputs, node.types, node.origin)
        kept |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
    return inner.finish([(n, inside(v)) for n, v in region.outputs]), extra


def _enter(value: Input, hint: str, outer: RegionBuilder, inner: RegionBuilder, extra: dict[str, Input]) -> Value:
    """Bring a value that a nested call moved out into the region between."""
    assert isinstance(value, Value)
    for name, have in extra.items():
        if have == value:
            return next(Value(ARGUMENT, i) for i, a in enumerate(inner.arguments) if a.name == name)
    name = fresh(hint, inner.taken)
    extra[name] = value
    return inner.argument(name, outer.type(value))


def _movable(node: Node, known: Mapping[Value, Value]) -> bool:
    return not _random(node) and all(v in known for v in node.values)


def _random(node: Node) -> bool:
    """Whether training draws random numbers, here or anywhere inside: then each step must draw its own."""
    return getattr(node.op, "random", False) or any(_random(n) for b in bodies(node) for n in b.nodes)


def _parameters_to_move(region: Region, known: set[Value]) -> set[int]:
    """Parameters that some moving node reads."""
    params = {Value(n.id): n.id for n in region.nodes if is_parameter(n) and not any(True for _ in n.values)}
    reach, owners = set(known) | set(params), set()
    for node in region.nodes:
        if Value(node.id) in params:
            continue
        reads = list(node.values)
        if all(v in reach for v in reads) and not _random(node):
            reach |= {Value(node.id, k) for k in range(len(node.outputs))}
            owners |= {params[v] for v in reads if v in params}
    return owners


def _has_scan(node: Node) -> bool:
    return isinstance(node.op, Scan) or any(_has_scan(n) for b in bodies(node) for n in b.nodes)


def _copy_frame(region: Region) -> RegionBuilder:
    builder = RegionBuilder(region.name, region.origin)
    builder.about = region.about
    for a in region.arguments:
        builder.argument(a.name, a.type)
    return builder
