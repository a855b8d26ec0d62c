"""`typed Graph -> typed Graph`: move what does not change from step to step out of scan bodies.

A node moves when all it reads comes from arguments that are the same for every step. It keeps its path, so a moved
`attend.keys` of the scan `decoder` becomes the node `decoder.attend.keys`. Parameters move with what reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.builder import RegionBuilder
from ..ir.graph import ARGUMENT, Branch, Call, Graph, Input, Node, Region, Repeat, Scan, Value, join
from ..ops.registry import OPS

PARAMETER = OPS["parameter"]


def hoist(graph: Graph) -> Graph:
    """Every scan of the graph with its invariants outside."""
    return replace(graph, root=_region(graph.root))


def _region(region: Region) -> Region:
    if not any(_has_scan(n) for n in region.nodes):
        return region
    builder = _copy_frame(region)
    moved: dict[Value, Value] = {Value(ARGUMENT, i): Value(ARGUMENT, i) for i in range(len(region.arguments))}
    for node in region.nodes:
        inputs = {k: _renamed(v, moved) for k, v in node.inputs.items()}
        op = node.op
        if isinstance(op, Scan):
            op, more = _scan(replace_op(op), node, inputs, builder)
            inputs |= more
        elif isinstance(op, Call):
            op = Call(_region(op.body))
        elif isinstance(op, Repeat | Branch):
            op = replace(op, bodies=tuple(_region(b) for b in op.bodies))
        made = builder.add(node.name, op, inputs, node.outputs, node.types, node.origin)
        for k in range(len(node.outputs)):
            moved[Value(node.id, k)] = Value(made.id, k)
    return builder.finish([(n, moved[v]) for n, v in region.outputs])


def replace_op(op: Scan) -> Scan:
    """Inner scans first, so that what is fixed for them may move further."""
    return replace(op, body=_region(op.body))


def _scan(op: Scan, node: Node, inputs: Mapping[str, Input], outer: RegionBuilder) -> tuple[Scan, dict[str, Input]]:
    changing = {*op.carry, *op.each}
    fixed = {i: v for i, a in enumerate(op.body.arguments) if a.name not in changing and isinstance(v := inputs.get(a.name), Value)}
    body, extra = _extract(op.body, fixed, outer, node.name)
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
            name, n = region.label(value).replace(".", "_"), 2
            while name in inner.taken:
                name, n = f"{region.label(value).replace('.', '_')}_{n}", n + 1
            extra[name] = known[value]
            kept[value] = inner.argument(name, region.type(value))
        return kept[value]

    for node in region.nodes:
        if _movable(node, known) and (not isinstance(node.op, PARAMETER) or node.id in owners):
            made = outer.add(join(path, node.name), node.op, {k: _renamed(v, known) for k, v in node.inputs.items()}, node.outputs,
                             node.types, node.origin)
            known |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
            continue
        op, more = node.op, {}
        if isinstance(op, Call):
            given = {i: known[v] for i, a in enumerate(op.body.arguments) if isinstance(v := node.inputs.get(a.name), Value) and v in known}
            body, lifted = _extract(op.body, given, outer, join(path, node.name))
            op, more = Call(body), {k: _enter(v, k, outer, inner, extra) for k, v in lifted.items()}
        inputs = {k: _mapped(v, inside) for k, v in node.inputs.items()} | more
        made = inner.add(node.name, op, inputs, node.outputs, node.types, node.origin)
        kept |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
    return inner.finish([(n, inside(v)) for n, v in region.outputs]), extra


def _enter(value: Input, hint: str, outer: RegionBuilder, inner: RegionBuilder, extra: dict[str, Input]) -> Value:
    """Bring a value that a nested call moved out into the region between."""
    assert isinstance(value, Value)
    for name, have in extra.items():
        if have == value:
            return Value(ARGUMENT, next(i for i, a in enumerate(inner.arguments) if a.name == name))
    name, n = hint, 2
    while name in inner.taken:
        name, n = f"{hint}_{n}", n + 1
    extra[name] = value
    return inner.argument(name, outer.type(value))


def _movable(node: Node, known: Mapping[Value, Value]) -> bool:
    if getattr(node.op, "random", False) or _random(node):
        return False
    return all(v in known for v in node.values)


def _random(node: Node) -> bool:
    """Whether training draws random numbers anywhere inside: then each step must draw its own."""
    bodies = node.op.bodies if isinstance(node.op, Call | Repeat | Branch | Scan) else ()
    return any(getattr(n.op, "random", False) or _random(n) for b in bodies for n in b.nodes)


def _parameters_to_move(region: Region, known: set[Value]) -> set[int]:
    """Parameters that some moving node reads."""
    params = {Value(n.id): n.id for n in region.nodes if isinstance(n.op, PARAMETER) and not any(True for _ in n.values)}
    reach, owners = set(known) | set(params), set()
    for node in region.nodes:
        if Value(node.id) in params:
            continue
        reads = list(node.values)
        if all(v in reach for v in reads) and not getattr(node.op, "random", False) and not _random(node):
            reach |= {Value(node.id, k) for k in range(len(node.outputs))}
            owners |= {params[v] for v in reads if v in params}
    return owners


def _has_scan(node: Node) -> bool:
    op = node.op
    return isinstance(op, Scan) or (isinstance(op, Call | Repeat | Branch) and any(_has_scan(n) for b in op.bodies for n in b.nodes))


def _copy_frame(region: Region) -> RegionBuilder:
    builder = RegionBuilder(region.name, region.origin)
    builder.about = region.about
    for a in region.arguments:
        builder.argument(a.name, a.type)
    return builder


def _renamed(given: Input, names: Mapping[Value, Value]) -> Input:
    return _mapped(given, names.__getitem__)


def _mapped(given: Input, move: object) -> Input:
    if isinstance(given, tuple):
        return tuple(move(v) for v in given)  # type: ignore[operator]
    return None if given is None else move(given)  # type: ignore[operator]
