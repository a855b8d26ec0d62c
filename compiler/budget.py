"""The `budget:` section: limits that a model must keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .ir.evaluate import evaluate
from .ir.graph import Graph
from .ir.parameters import count, parameter_table
from .lang.diagnostic import Diagnostic, Sink, diagnostic, fault, suggest
from .lang.expression import parse_expression
from .lang.source import Span
from .lang.tree import Mapping as TreeMapping
from .lang.tree import Scalar

KINDS = ("parameters",)
LISTED = 3


def over(graph: Graph, budget: TreeMapping | None, sink: Sink) -> list[Diagnostic]:
    """What the model exceeds, with the largest contributors. Bad budgets go to `sink`."""
    found = []
    for entry in budget or ():
        with sink.catch():
            if entry.key.text not in KINDS:
                raise fault("unknown-key", f"`budget` has no key `{entry.key.text}`", entry.key.span,
                            help=suggest(entry.key.text, KINDS, "keys"))
            limit = _number(entry.value, graph.sizes)
            have = count(graph)
            if have > limit:
                found.append(diagnostic("over-budget", f"the model has {have:,} parameters, and its budget is {limit:,}", entry.value.span,
                                        note=[f"{n:>15,}  {path}" for path, n in _largest(graph)]))
    return found


def _number(value: Any, sizes: Mapping[str, Any]) -> int:
    if not isinstance(value, Scalar):
        raise fault("bad-attribute", "a budget is a number", value.span)

    def find(name: str, span: Span) -> Any:
        if name not in sizes:
            raise fault("unknown-name", f"no size is called `{name}`", span, help=suggest(name, sizes, "sizes"))
        return sizes[name]
    found = evaluate(parse_expression(value.text, value.span), find)
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
        raise fault("bad-attribute", f"a budget is a number, not `{found}`", value.span)
    return int(found)


def _largest(graph: Graph) -> list[tuple[str, int]]:
    """The parameters that hold most, and how many numbers each holds in all its copies."""
    sizes = [(p.path, p.elements) for p in parameter_table(graph)]
    return sorted(sizes, key=lambda x: -x[1])[:LISTED]
