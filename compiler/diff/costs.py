"""Facts of one model that a comparison subtracts: parameters, operations, memory, and what decoding keeps. Copies stay folded.

They are those of `nnspec cost`, of the graph that every target is made from; what decoding keeps is told of one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..costs.cost import free_dimensions
from ..costs.memory import BYTES
from ..costs.streaming import cache
from ..costs.table import CostTable
from ..ir.graph import Graph
from ..ir.signature import spell
from ..stages.hoist import hoist
from ..stages.simplify import simplify
from ..stages.stream import StepForm
from .report import Metric

UNITS = {"parameters": "numbers", "active": "numbers", "weights": "bytes", "flops": "FLOPs", "decode": "FLOPs", "cache": "bytes",
         "peak": "bytes"}


@dataclass(frozen=True)
class Facts:
    """`metrics` by name, None where there is none; `layout` are the folded states of decoding, and `why` why there are none; `peak` is
    the node that runs when activations peak."""

    metrics: Mapping[str, int | None]
    layout: tuple[tuple[str, str], ...]
    sizes: Mapping[str, int]
    why: str = ""
    peak: str = ""


def facts(graph: Graph, sizes: Mapping[str, int], dtype: str = "float16") -> Facts:
    """The facts at sizes of free dimensions; those that the model does not have are left out."""
    free = free_dimensions(graph)
    table = CostTable(simplify(hoist(graph)))
    found = table.at({k: v for k, v in sizes.items() if k in free}, dtype)
    metrics = {"parameters": found.parameters, "active": found.active, "weights": found.weight_bytes, "flops": found.flops,
               "decode": found.decode_flops, "cache": None, "peak": found.peak.bytes}
    if isinstance(table.step, str):
        return Facts(metrics, (), found.sizes, table.step, found.peak.path)
    held = table.whole(cache(table.step, found.sizes, BYTES[dtype]).held(found.sizes[table.step.along]))
    return Facts(metrics | {"cache": sum(n for _, n in held)}, _layout(table.step, table), found.sizes, "", found.peak.path)


def _layout(form: StepForm, table: CostTable) -> tuple[tuple[str, str], ...]:
    """The states of one row, folded: `12 x float[B, 12, C, 64]`."""
    folded: dict[tuple[str, str], int] = {}
    for s in form.states:
        if s.kind != "clock":
            window = s.layout.window if s.layout else None
            what = f"{s.type.dtype}{spell(s.type.shape)}" + (f", last {window}" if window else "")
            key = re.sub(r"(?<![^.])\d+(?![^.])", "{i}", s.name), what
            folded[key] = folded.get(key, 0) + sum(n for _, n in table.whole([(s.name, 1)]))
    return tuple((name, f"{n} x {what}") for (name, what), n in folded.items())


def metrics(before: Facts, after: Facts) -> tuple[Metric, ...]:
    """Every metric on both sides."""
    places = [f"at {p}" for p in dict.fromkeys((before.peak, after.peak)) if p]
    return tuple(Metric(n, unit, before.metrics[n], after.metrics[n], ", then ".join(places) if n == "peak" else "")
                 for n, unit in UNITS.items())
