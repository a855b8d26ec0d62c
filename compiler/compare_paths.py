"""Every value of a graph by path, and the graph with some of them as outputs.

A value is the path of its node, with the number of a copy where the folded graph has `{i}`: `layers.3.attention.query`; `layers.3` is
what copy 3 gives, and `attended.weights` an output beside the first. Inside a scan a value is that of all steps, stacked in time. The
experts of a routed mixture see rows in an order of their own, so only the mixture itself has a path.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .ir.builder import RegionBuilder
from .ir.dimension import Dim
from .ir.graph import ARGUMENT, Branch, Call, Control, Graph, Node, Origin, Region, Repeat, Scan, TensorType, Value, fresh, join, mapped
from .ir.parameters import is_parameter
from .ops.layout import Take
from .ops.values import Full

Step = tuple[int, int]                           # a node that holds regions, and which copy
Want = tuple[tuple[Step, ...], Value]


@dataclass(frozen=True)
class Place:
    """A value: its path, where it is, and the node that makes it."""

    path: str
    steps: tuple[Step, ...]
    value: Value
    type: TensorType
    origin: Origin
    what: str                                    # the op or block
    again: bool = False                          # whether it is what a node inside gives

    @property
    def key(self) -> Want:
        """The same for all paths of one value."""
        return self.steps, self.value


def places(graph: Graph) -> list[Place]:
    """Every value, in the order in which they are computed, a block after what is inside it; one has several paths."""
    return list(_inside(graph.root, "", ()))


def by_path(known: Sequence[Place]) -> dict[str, Place]:
    """The places by path; where a block and a node inside it claim one, the node has it."""
    return {place.path: place for place in reversed(known)}


def outputs(graph: Graph, known: Sequence[Place]) -> dict[str, Place]:
    """The model's outputs by name."""
    at = {place.key: place for place in reversed(known)}
    return {name: at[(), value] for name, value in graph.root.outputs if ((), value) in at}


def _inside(region: Region, path: str, steps: tuple[Step, ...]) -> Iterator[Place]:
    for node in region.nodes:
        if is_parameter(node):
            continue
        here, op = join(path, node.name), node.op
        if isinstance(op, Call):
            yield from _inside(op.body, here, (*steps, (node.id, 0)))
        elif isinstance(op, Scan):
            yield from _over_time(region, node, _inside(op.body, here, (*steps, (node.id, 0))))
        elif isinstance(op, Repeat) or isinstance(op, Branch) and not op.route:
            for copy, k in enumerate(op.schedule):
                yield from _copy(op.bodies[k], f"{here}.{copy}", (*steps, (node.id, copy)))
        for k, name in enumerate(node.outputs):
            for spelled in (here, f"{here}.{name}", f"{here}.output") if k == 0 else (f"{here}.{name}",):
                if not node.types[k].optional:
                    yield Place(spelled, steps, Value(node.id, k), node.types[k], node.origin, _called(node), isinstance(op, Control))


def _copy(region: Region, path: str, steps: tuple[Step, ...]) -> Iterator[Place]:
    """The values of one copy; what it gives has the path of the copy itself."""
    yield from _inside(region, path, steps)
    for k, (name, value) in enumerate(region.outputs):
        if value.node != ARGUMENT and not region.type(value).optional:
            node = region.nodes[value.node]
            for spelled in (path, f"{path}.{name}") if k == 0 else (f"{path}.{name}",):
                yield Place(spelled, steps, value, region.type(value), node.origin, region.name, True)


def _over_time(region: Region, scan: Node, steps: Iterator[Place]) -> Iterator[Place]:
    """The values of a scan's body, stacked: those with axes enough, and with rows where these end at different times."""
    op, length = scan.op, scan.inputs.get("scan.length")
    rows = region.type(length).shape[0] if isinstance(length, Value) else None
    for place in steps:
        shape = place.type.shape
        if len(shape) >= op.axis and (rows is None or rows in shape):
            yield replace(place, type=_stacked(op, place.type))


def _stacked(op: Scan, kind: TensorType) -> TensorType:
    return replace(kind, shape=(*kind.shape[:op.axis], op.extent, *kind.shape[op.axis:]))


def _called(node: Node) -> str:
    bodies = getattr(node.op, "bodies", ())
    return bodies[0].name if bodies else node.op.name


def expose(graph: Graph, wanted: Sequence[Place]) -> tuple[Graph, list[str]]:
    """The graph with the wanted values as further outputs, and their names."""
    region, names = _grow(graph.root, [p.key for p in wanted], {n for n, _ in graph.root.outputs})
    return replace(graph, root=region), names


def _grow(region: Region, wants: Sequence[Want], held: Container[str]) -> tuple[Region, list[str]]:
    """The region with an output for each wanted value; those `held` serve where they are the value itself."""
    builder = RegionBuilder(region.name, region.origin)
    builder.about = region.about
    for a in region.arguments:
        builder.argument(a.name, a.type)
    moved = {Value(ARGUMENT, i): Value(ARGUMENT, i) for i in range(len(region.arguments))}
    found: dict[Want, Value] = {}
    for node in region.nodes:
        inner = [w for w in dict.fromkeys(wants) if w[0] and w[0][0][0] == node.id]
        op, names = _deeper(node, inner) if inner else (node.op, [])
        outs, types = _outputs(node, op) if inner else (node.outputs, node.types)
        made = builder.add(node.name, op, {k: mapped(v, moved.__getitem__) for k, v in node.inputs.items()}, outs, types, node.origin)
        moved |= {Value(node.id, k): made.output(name) for k, name in enumerate(node.outputs)}
        for want, name in zip(inner, names, strict=True):
            found[want] = _taken(builder, made, name, want[0][0][1])
    ends = {n: moved[v] for n, v in region.outputs}
    here = {v: n for n, v in reversed(ends.items()) if n in held}
    for value in (found[want] if want[0] else moved[want[1]] for want in wants):
        if value not in here:
            here[value] = fresh("shown", ends)
            ends[here[value]] = value
    return builder.finish([*ends.items()]), [here[found[want] if want[0] else moved[want[1]]] for want in wants]


def _deeper(node: Node, wants: Sequence[Want]) -> tuple[Any, list[str]]:
    """A control form whose bodies give the wanted values too, and the names of the outputs that hold them."""
    op = node.op
    if isinstance(op, Call | Scan):
        body, names = _grow(op.body, [(steps[1:], value) for steps, value in wants], node.outputs)
        return replace(op, body=body), names
    inner: dict[tuple[int, Want], str] = {}
    stacked = {n.removeprefix("all.") for n in node.outputs if n.startswith("all.")}
    bodies, taken = list(op.bodies), {n for b in op.bodies for n, _ in b.outputs}
    for k, body in enumerate(op.bodies):
        mine = list(dict.fromkeys((steps[1:], value) for steps, value in wants if op.schedule[steps[0][1]] == k))
        grown, names = _grow(body, mine, stacked)
        own, spelled = {n for n, _ in body.outputs}, dict[str, str]()
        for want, name in zip(mine, names, strict=True):
            inner[k, want] = spelled[name] = spelled.get(name) or (name if name in own else fresh("shown", taken))
            taken.add(inner[k, want])
        bodies[k] = replace(grown, outputs=tuple((spelled.get(n, n), v) for n, v in grown.outputs))
    new = {name: k for (k, _), name in inner.items() if name not in {n for n, _ in op.bodies[0].outputs}}
    for name, k in new.items():
        kind = bodies[k].type(bodies[k].output(name))
        bodies = [b if j == k else _filled(b, name, kind) for j, b in enumerate(bodies)]
    order = [*(n for n, _ in op.bodies[0].outputs), *new]
    bodies = [replace(b, outputs=tuple((n, b.output(n)) for n in order)) for b in bodies]
    return replace(op, bodies=tuple(bodies)), [inner[op.schedule[s[0][1]], (s[1:], v)] for s, v in wants]


def _filled(region: Region, name: str, kind: TensorType) -> Region:
    """A body that has no such value gives zeros in its place, since copies are stacked."""
    full = Full(value=False if kind.dtype == "bool" else 0, shape=kind.shape, dtype=kind.dtype)
    node = Node(len(region.nodes), fresh(name, {n.name for n in region.nodes}), full, {}, ("out",), (kind,), region.origin)
    return replace(region, nodes=(*region.nodes, node), outputs=(*region.outputs, (name, Value(node.id))))


def _outputs(node: Node, op: Any) -> tuple[tuple[str, ...], tuple[TensorType, ...]]:
    """A control node's outputs: those of the body, then copies stacked (`all.x`) or last carries (`last.x`)."""
    types = dict(zip(node.outputs, node.types, strict=True))
    region = op.bodies[0]
    new = {n: region.type(v) for n, v in region.outputs if n not in {m for m, _ in node.op.bodies[0].outputs}}
    later = [n for n in node.outputs if n.startswith(("all.", "last."))]
    types |= {f"all.{n}": replace(t, shape=(Dim.const(len(op.schedule)), *t.shape)) for n, t in new.items()} if not isinstance(
        op, Call | Scan) else {}
    if isinstance(op, Scan):
        new = {n: _stacked(op, t) for n, t in new.items()}
    types |= new
    plain = [n for n in node.outputs if n not in later] + ([] if isinstance(op, Branch) else list(new))
    stacked = [] if isinstance(op, Call | Scan) else [f"all.{n}" for n in new]
    names = (*plain, *later, *stacked)
    return names, tuple(types[n] for n in names)


def _taken(builder: RegionBuilder, node: Node, name: str, copy: int) -> Value:
    """The value of one copy."""
    if isinstance(node.op, Call | Scan):
        return node.output(name)
    stacked = node.output(f"all.{name}")
    kind = builder.type(stacked)
    taken = {n.name for n in builder.nodes}
    take = builder.add(fresh(f"shown_{copy}", taken), Take(axis=0, at=copy), {"in": stacked}, ("out",),
                       (replace(kind, shape=kind.shape[1:]),), node.origin)
    return Value(take.id)
