"""Limits that a model must keep: the `budget:` section of a spec and `--budget NAME=LIMIT` of commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..ir.evaluate import evaluate
from ..ir.graph import Graph
from ..lang.diagnostic import Diagnostic, Sink, diagnostic, fault, suggest
from ..lang.expression import parse_expression
from ..lang.source import Span
from ..lang.tree import Mapping as TreeMapping
from ..lang.tree import Scalar, Tree
from ..stages.hoist import hoist
from ..stages.simplify import simplify
from .quantity import amount, size

if TYPE_CHECKING:
    from .table import Costs, CostTable

LISTED = 3
PLACE = ("limit", "at")


@dataclass(frozen=True)
class Limit:
    """The most that a model may have of a metric, at sizes and in a dtype (those of `nnspec cost` where nothing is said).

    `spans` are where its parts are written in a spec: `name`, `limit`, `dtype` and the free dimensions.
    """

    name: str
    most: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str | None = None
    spans: Mapping[str, Span] = field(default_factory=dict)


def over(graph: Graph, budget: TreeMapping | None, sink: Sink) -> list[Diagnostic]:
    """What the model exceeds of its spec's `budget:`, with the largest contributors. Bad budgets go to `sink`."""
    if not budget:
        return []
    from .table import CostTable  # it knows how to decode, which only a budget pays for
    table, found = CostTable(simplify(hoist(graph))), []
    for entry in budget:
        with sink.catch():
            found += exceeded(table, _limit(entry.key, entry.value, graph.sizes))
    return found


def exceeded(table: CostTable, limit: Limit) -> list[Diagnostic]:
    """One diagnostic where the model is over a limit. Raises Fault for a metric, size or dtype that the model does not have."""
    from .memory import BYTES
    from .table import DTYPE
    if limit.dtype is not None and limit.dtype not in BYTES:
        raise fault("bad-attribute", f"`{limit.dtype}` is no dtype of a model", limit.spans.get("dtype"),
                    help=suggest(limit.dtype, BYTES, "dtypes"))
    try:
        costs = table.at(limit.sizes, limit.dtype or DTYPE)
    except KeyError as unknown:
        from .cost import free_dimensions
        raise fault("unknown-name", f"the model has no free dimension `{unknown.args[0]}`", limit.spans.get(unknown.args[0]),
                    help=suggest(str(unknown.args[0]), free_dimensions(table.graph), "dimensions")) from None
    return exceeds(costs, limit)


def exceeds(costs: Costs, limit: Limit) -> list[Diagnostic]:
    """The same where the sizes are chosen."""
    from .table import FIXED, METRICS, largest
    if limit.name not in METRICS:
        raise fault("unknown-key", f"`budget` has no key `{limit.name}`", limit.spans.get("name"),
                    help=suggest(limit.name, METRICS, "keys"))
    metric, table = METRICS[limit.name], costs.table
    bounds = {b.symbol: b.limit for b in table.graph.bounds}
    for name, n in costs.sizes.items():
        if n > bounds.get(name, n):
            raise fault("bad-attribute", f"`{name}` is at most {bounds[name]:,} in this model, not {n:,}", limit.spans.get(name))
    have = metric.value(costs)
    if have is None:
        raise fault("cannot-stream", f"there is no `{limit.name}` to limit", limit.spans.get("name"), note=str(table.step),
                    help="take it out of the budget: the model cannot be run step by step")
    if have <= limit.most:
        return []
    at = " ".join(f"{k}={n}" for k, n in costs.sizes.items())
    where = (f" at {at}" if at and limit.name not in FIXED | {"weight_bytes"} else "") + (f" in {costs.dtype}" if metric.unit else "")
    headline = f"the model has {have:,} {metric.about}{where}, and its budget is {limit.most:,}"
    return [diagnostic("over-budget", headline, limit.spans.get("limit"),
                       note=[f"{n:>15,}  {path}" for path, n in largest(metric.parts(costs), LISTED)])]


def check(table: CostTable, limits: Iterable[Limit]) -> list[Diagnostic]:
    """What the model exceeds of several limits. Raises Fault."""
    return [d for limit in limits for d in exceeded(table, limit)]


def _limit(key: Scalar, value: Tree, sizes: Mapping[str, Any]) -> Limit:
    """An entry of `budget:`, `NAME: LIMIT` or `NAME: {limit: LIMIT, at: {S: 8192, dtype: float16}}`."""
    if not isinstance(value, TreeMapping):
        return Limit(key.text, _number(value, sizes), spans={"name": key.span, "limit": value.span})
    for entry in value:
        if entry.key.text not in PLACE:
            raise fault("unknown-key", f"a budget has no key `{entry.key.text}`", entry.key.span,
                        help=suggest(entry.key.text, PLACE, "keys"))
    most, at = value.get("limit"), value.get("at")
    if most is None:
        raise fault("missing-key", f"the budget of `{key.text}` has no `limit`", value.span, help="`{limit: 2GiB, at: {S: 8192}}`")
    if at is not None and not isinstance(at, TreeMapping):
        raise fault("bad-attribute", "`at` maps free dimensions to sizes, and `dtype` to a dtype", at.span, help="`at: {B: 1, S: 8192}`")
    entries = {e.key.text: e.value for e in at or ()}
    dtype = entries.pop("dtype", None)
    if dtype is not None and not isinstance(dtype, Scalar):
        raise fault("bad-attribute", "`dtype` is the name of a dtype", dtype.span)
    spans = {name: written.span for name, written in (*entries.items(), ("limit", most), *([("dtype", dtype)] if dtype else []))}
    found = {name: _number(written, sizes, positions=True) for name, written in entries.items()}
    return Limit(key.text, _number(most, sizes), found, dtype.text if dtype else None, {**spans, "name": key.span})


def _number(value: Tree, sizes: Mapping[str, Any], positions: bool = False) -> int:
    """An amount such as 2GiB (of an axis, 2k), or an expression over the sizes."""
    if not isinstance(value, Scalar):
        raise fault("bad-attribute", "a budget is a number", value.span)
    try:
        return size(value.text) if positions else amount(value.text)
    except ValueError:
        pass

    def find(name: str, span: Span) -> Any:
        if name not in sizes:
            raise fault("unknown-name", f"no size is called `{name}`", span, help=suggest(name, sizes, "sizes"))
        return sizes[name]
    found = evaluate(parse_expression(value.text, value.span), find)
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
        raise fault("bad-attribute", f"a budget is a number, not `{found}`", value.span)
    return int(found)
