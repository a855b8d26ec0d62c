"""What a model costs: parameters and floating-point operations, as formulas and at given sizes.

FLOPs are 2 x the multiply-accumulates of contractions, heads included; attention counts every query with every key, or with those of
its window. A scan counts its steps, a repeat its copies, a routed branch the copies that each row is sent to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..ir.dimension import Dim
from ..ir.graph import Branch, Call, Graph, Input, Node, Region, Repeat, Scan, TensorType, Value, join
from ..ir.parameters import count, parameter_table

ROWS, LENGTH = 1, 1024          # sizes that are not given: the first free dimension, the others (within their bounds)


@dataclass(frozen=True)
class Cost:
    """The cost at `sizes`. `formula` is the FLOPs in the free dimensions; `parts` are FLOPs by path, in graph order."""

    sizes: Mapping[str, int]
    parameters: int
    active: int
    flops: int
    formula: Dim
    parts: tuple[tuple[str, int], ...]


def cost(graph: Graph, sizes: Mapping[str, int] | None = None) -> Cost:
    """The cost of one forward pass. `sizes` name free dimensions; raises KeyError for one the model does not have."""
    at = sizes_of(graph, sizes or {})
    parts = flop_parts(graph, at)
    return Cost(at, count(graph), active(graph), sum(n for _, n in parts), formula(graph), parts)


def formula(graph: Graph) -> Dim:
    """The FLOPs of one pass in the free dimensions."""
    return sum((d for _, d in _parts(graph.root, "", {})), Dim.const(0))


def sizes_of(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """Every free dimension: as given, else one row, and 1024 or the bound of the others. Raises KeyError for one that is not there."""
    free = free_dimensions(graph)
    unknown = set(given) - set(free)
    if unknown:
        raise KeyError(min(unknown))
    limits = {b.symbol: b.limit for b in graph.bounds}
    return {name: given.get(name, ROWS if k == 0 else min(LENGTH, limits.get(name, LENGTH))) for k, name in enumerate(free)}


def flop_parts(graph: Graph, sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """FLOPs of one pass by path, where `sizes` names every free dimension."""
    fixed = {name: Dim.const(n) for name, n in sizes.items()}
    return tuple((path, int(d.value or 0)) for path, d in _parts(graph.root, "", fixed))


def flops(graph: Graph, sizes: Mapping[str, int]) -> int:
    """FLOPs of one pass, where `sizes` names every free dimension."""
    return sum(n for _, n in flop_parts(graph, sizes))


def free_dimensions(graph: Graph) -> list[str]:
    """The free dimensions in the order in which the inputs name them."""
    return list(dict.fromkeys(s for a in graph.root.arguments for d in a.type.shape for s in sorted(d.symbols())))


def _parts(region: Region, path: str, sizes: Mapping[str, Dim]) -> Iterator[tuple[str, Dim]]:
    """FLOPs of every node that has some, copies folded: `layers.{i}.ffn.up` counts all layers."""
    for node in region.nodes:
        here, op = join(path, node.name), node.op
        if isinstance(op, Call):
            yield from _parts(op.body, here, sizes)
        elif isinstance(op, Scan):
            steps = _at(op.extent, sizes)
            yield from ((p, d * steps) for p, d in _parts(op.body, here, sizes))
        elif isinstance(op, Repeat | Branch):
            for k, body in enumerate(op.bodies):
                times = _times(region, node, k)
                yield from ((p, d * times) for p, d in _parts(body, join(here, "{i}"), sizes))
        else:
            flops = op.flops({port: _typed(region, given, sizes) for port, given in node.inputs.items()},
                             tuple(_sized(t, sizes) for t in node.types))
            if flops != 0:
                yield here, flops


def _times(region: Region, node: Node, body: int) -> int:
    """How often a body runs on all rows: the copies that use it, or the copies that each row is routed to."""
    copies = node.op.schedule.count(body)
    if isinstance(node.op, Branch) and node.op.route:
        return _chosen(region, node) * copies // len(node.op.schedule)
    return copies


def _chosen(region: Region, node: Node) -> int:
    """How many copies a row of a routed branch is sent to."""
    indices = node.inputs["route.indices"]
    assert isinstance(indices, Value)
    return min(region.type(indices).shape[-1].value or len(node.op.schedule), len(node.op.schedule))


def _typed(region: Region, given: Input, sizes: Mapping[str, Dim]) -> TensorType | tuple[TensorType, ...] | None:
    if isinstance(given, tuple):
        return tuple(_sized(region.type(v), sizes) for v in given)
    return None if given is None else _sized(region.type(given), sizes)


def _sized(type: TensorType, sizes: Mapping[str, Dim]) -> TensorType:
    return replace(type, shape=tuple(_at(d, sizes) for d in type.shape)) if sizes else type


def _at(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    return dim.substitute(sizes) if sizes and dim.value is None else dim


def active(graph: Graph) -> int:
    """Parameters that one row uses: of routed copies, those it is sent to."""
    return count(graph) - sum(_idle(graph.root, 1))


def _idle(region: Region, copies: int) -> Iterator[int]:
    for node in region.nodes:
        op = node.op
        if isinstance(op, Call | Scan):
            yield from _idle(op.body, copies)
        elif isinstance(op, Repeat | Branch):
            for k, body in enumerate(op.bodies):
                owners = sum(op.schedule[i] == k for i in op.owners)
                yield from _idle(body, copies * owners)
            if isinstance(op, Branch) and op.route:
                held = [sum(p.elements for p in parameter_table(Graph("", body))) for body in op.bodies]
                whole = sum(held[op.schedule[i]] for i in op.owners)
                yield copies * (whole - whole * _chosen(region, node) // len(op.schedule))
