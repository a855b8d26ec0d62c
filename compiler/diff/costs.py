"""Facts of one model that a comparison subtracts: parameters, operations, and what decoding keeps. Copies stay folded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..costs.cost import cost
from ..ir.graph import Graph
from ..ir.signature import spell
from ..ir.twin import Times, twin
from ..lang.diagnostic import Diagnostics
from ..stages.hoist import hoist
from ..stages.simplify import simplify
from ..stages.stream import StepForm, step_form
from ..stages.stream.form import CHUNK

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
NAMES = {"parameters": "parameters", "active": "active parameters", "weights": "weight bytes", "flops": "prefill FLOPs",
         "decode": "decode FLOPs/token", "cache": "cache bytes"}
LENGTH = 1024


@dataclass(frozen=True)
class Facts:
    """`metrics` by name, None where there is none; `layout` are the folded states of decoding, and `why` why there are none."""

    metrics: Mapping[str, int | None]
    layout: tuple[tuple[str, str], ...]
    sizes: Mapping[str, int]
    why: str = ""


def facts(graph: Graph, sizes: Mapping[str, int], dtype: str = "float16") -> Facts:
    """The facts at sizes of free dimensions; those that the model does not have are left out."""
    free = {s for a in graph.root.arguments for d in a.type.shape for s in d.symbols()}
    found = cost(graph, {k: v for k, v in sizes.items() if k in free})
    metrics: dict[str, int | None] = {"parameters": found.parameters, "active": found.active,
                                      "weights": found.parameters * BYTES[dtype], "flops": found.flops}
    try:
        lowered = simplify(hoist(graph))
        small = twin(lowered)
        form = step_form(small)
    except Diagnostics as wrong:
        return Facts(metrics | {"decode": None, "cache": None}, (), found.sizes, wrong.items[0].headline)
    length = found.sizes.get(form.along, LENGTH)
    times = Times(lowered.root, small.root)
    layout, kept = _states(form, times, length, BYTES[dtype])
    return Facts(metrics | {"decode": _decode(form, times, length), "cache": kept}, layout, found.sizes)


def _states(form: StepForm, times: Times, length: int, half: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """The states of one row, folded, and their bytes."""
    rows = form.states[0].type.shape[0] if form.states else None
    kept = 0
    folded: dict[tuple[str, str], int] = {}
    for s in form.states:
        if s.kind == "clock":
            continue
        n = times(s.name)
        numbers = prod(d.value or 1 for k, d in enumerate(s.type.shape) if k != s.axis and d != rows)
        window = s.layout.window if s.layout else None
        slots = 1 if s.kind == "carry" else min(length, window or length)
        kept += n * numbers * slots * {"float": half, "float32": 4, "int64": 8, "bool": 1}[s.type.dtype]
        what = f"{s.type.dtype}{spell(s.type.shape)}" + (f", last {window}" if window else "")
        key = re.sub(r"(?<![^.])\d+(?![^.])", "{i}", s.name), what
        folded[key] = folded.get(key, 0) + n
    return tuple((name, f"{n} x {what}") for (name, what), n in folded.items()), kept


def _decode(form: StepForm, times: Times, length: int) -> int:
    """FLOPs of one new position of one row with `length` behind it."""
    layouts = {s.layout for s in form.states if s.layout}
    at = {layout.capacity: min(length, layout.window or length) for layout in layouts}
    free = {s for a in form.step.root.arguments for d in a.type.shape for s in d.symbols()}
    rows = form.states[0].type.shape[0].symbols() if form.states else set()
    sizes = {s: 1 if s in rows else at.get(s, length) for s in free} | {CHUNK: 1}
    return sum(times(path) * n for path, n in cost(form.step, {k: v for k, v in sizes.items() if k in free}).parts)
