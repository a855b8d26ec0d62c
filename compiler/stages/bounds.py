"""`typed Graph -> diagnostics`: tables of positions against the lengths that the inputs promise."""

from __future__ import annotations

from ..ir.dimension import Dim
from ..ir.graph import Graph, Node, Region, Value, walk
from ..lang.diagnostic import Label, Sink, diagnostic
from ..lang.source import Span


def check_bounds(graph: Graph, sink: Sink) -> None:
    """A table that positions are looked up in must be as long as the longest input; without a bound that is a warning."""
    limits = {b.symbol: b for b in graph.bounds}
    seen: set[tuple[Span, str]] = set()
    for path, region, node in walk(graph.root):
        length, rows = _looked_up(region, node)
        if length is None or rows is None or (node.origin.span, str(length)) in seen:
            continue
        seen.add((node.origin.span, str(length)))
        free = sorted(length.symbols())
        at = Label((node.origin.span, *node.origin.chain)[-1], f"`{path}` has {rows} rows")
        loose = [s for s in free if s not in limits]
        if loose:
            sink.add(diagnostic("unbounded-positions", f"nothing bounds `{loose[0]}`, and its positions are looked up in a table", at,
                                severity="warning",
                                help=f"write `{loose[0]} <= {rows}` in the input that has it; longer inputs would fail"))
        elif (most := length.evaluate({s: limits[s].limit for s in free})) > rows:
            sink.add(diagnostic("unbounded-positions", f"positions run to {most}, and the table they are looked up in has {rows} rows", at,
                                *(Label(limits[s].span, "up to here") for s in free),
                                help=f"lower the bound to {rows}, or make the table longer"))


def _looked_up(region: Region, node: Node) -> tuple[Dim | None, int | None]:
    """The number of positions and of rows, where a node looks positions up in a table."""
    given = node.inputs.get("in") if getattr(node.op, "name", "") == "embedding" else None
    if not isinstance(given, Value) or given.node < 0 or getattr(region.nodes[given.node].op, "name", "") != "position":
        return None, None
    table = node.inputs["weight"]
    assert isinstance(table, Value)
    return region.type(given).shape[-1], region.type(table).shape[0].value
