"""What goes in and out of a model: inputs may ask for less, outputs may give more."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Graph
from .report import Contract, Level


def contracts(a: Graph, b: Graph) -> list[Contract]:
    """The changes of the interface from `a` to `b`."""
    return [*_inputs(a, b), *_bounds(a, b), *_outputs(a, b)]


def _inputs(a: Graph, b: Graph) -> Iterator[Contract]:
    ours, theirs = ({x.name: x.type for x in g.root.arguments} for g in (a, b))
    for name in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(name), theirs.get(name)
        if old is None and new is not None:
            word = "optional-input" if new.optional else "input"
            yield Contract(f"interface.{word}-added", name, None, str(new), "info" if new.optional else "breaking")
        elif new is None and old is not None:
            word = "optional-input" if old.optional else "input"
            yield Contract(f"interface.{word}-removed", name, str(old), None, "breaking")
        elif str(old) != str(new):
            easier = str(new) == f"optional {old}"
            yield Contract("interface.input-changed", name, str(old), str(new), "info" if easier else "breaking")


def _bounds(a: Graph, b: Graph) -> Iterator[Contract]:
    ours, theirs = ({x.symbol: x.limit for x in g.bounds} for g in (a, b))
    there = [{s for x in g.root.arguments for d in x.type.shape for s in d.symbols()} for g in (a, b)]
    for symbol in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(symbol), theirs.get(symbol)
        if old != new and symbol in there[0] & there[1]:
            level: Level = "info" if new is None or (old is not None and new > old) else "breaking"
            said = [None if limit is None else f"{symbol} <= {limit}" for limit in (old, new)]
            yield Contract("interface.input-bound-changed", symbol, said[0], said[1], level)


def _outputs(a: Graph, b: Graph) -> Iterator[Contract]:
    ours, theirs = ({name: g.root.type(v) for name, v in g.root.outputs} for g in (a, b))
    for name in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(name), theirs.get(name)
        if old is None:
            yield Contract("interface.output-added", name, None, str(new), "info")
        elif new is None:
            yield Contract("interface.output-removed", name, str(old), None, "breaking")
        elif str(old) != str(new):
            yield Contract("interface.output-changed", name, str(old), str(new), "breaking")
