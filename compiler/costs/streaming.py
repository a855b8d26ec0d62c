"""What `nnspec show --streaming` prints: whether a model can be run step by step, what it keeps between steps, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from ..ir.dimension import Dim
from ..ir.graph import Graph
from ..ir.signature import spell
from ..printing import columns, size
from ..stages.stream.form import CHUNK, PAST, State, StepForm
from .cost import flops, sizes_of

HALF = 2                        # bytes of a float in half precision, in which models are mostly served


@dataclass(frozen=True)
class Cache:
    """Bytes of the state of one row: per position of caches that grow, and of what does not grow, rings with their whole windows.
    `parts` are the states but for the clock: name, bytes of one position or of all, positions kept (None: all that are; 0: it has none)."""

    position: int
    still: int
    parts: tuple[tuple[str, int, int | None], ...] = ()

    def bytes(self, length: int) -> int:
        return self.still + self.position * length

    def held(self, length: int) -> tuple[tuple[str, int], ...]:
        """Bytes of each state with `length` positions behind, of which a ring keeps those of its window."""
        return tuple((name, n * (length if kept is None else min(kept, length) if kept else 1)) for name, n, kept in self.parts)


def cache(form: StepForm, sizes: Mapping[str, int], width: int = HALF) -> Cache:
    """What a row keeps between steps, where a float has `width` bytes and free dimensions these `sizes`; a ring counts with the keys of
    its window."""
    parts = [(s, _numbers(s, row_axis(form), sizes, width), None if s.kind == "append" else (s.layout.window or 0) if s.layout else 0)
             for s in form.states]
    return Cache(sum(n for _, n, kept in parts if kept is None), sum(n * (kept or 1) for _, n, kept in parts if kept is not None),
                 tuple((s.name, n, kept) for s, n, kept in parts if s.kind != "clock"))


def row_axis(form: StepForm) -> Dim | None:
    """The size of the axis of rows; None without state."""
    return form.states[0].type.shape[0] if form.states else None


def _numbers(state: State, rows: Dim | None, sizes: Mapping[str, int], width: int) -> int:
    """Bytes of one row, of one position where there are several."""
    numbers = prod(d.evaluate(sizes) for k, d in enumerate(state.type.shape) if k != state.axis and d != rows)
    return numbers * {"float": width, "float32": 4, "int64": 8, "bool": 1}[state.type.dtype]


def decode_sizes(form: StepForm, length: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the step model for one new position of one row with `length` behind it; `sizes` are those of the whole model."""
    at = {s.layout.capacity: min(length, s.layout.window or length) for s in form.states if s.layout}
    free = {s for a in form.step.root.arguments for d in a.type.shape for s in d.symbols()}
    found = dict(sizes) | at | {CHUNK: 1}
    rows = row_axis(form)
    if rows is not None:
        found |= dict.fromkeys(rows.symbols(), 1)
    return {k: v for k, v in found.items() if k in free}


def streaming(graph: Graph, form: StepForm) -> str:
    """The report as text."""
    limits = [b.limit for b in graph.bounds if b.symbol == form.along]
    sizes = sizes_of(graph, {})
    top, one = sizes[form.along], decode_sizes(form, sizes[form.along], sizes)
    others = "".join(f", {k}={sizes[k]}" for k in one if k in sizes and k not in (row_axis(form) or Dim.const(1)).symbols())
    kept, lines = cache(form, sizes), [f"{graph.name} can be run step by step along {form.along}"
                                + (f", up to {min(limits):,} positions" if limits else "")]
    arguments = {a.name: a.type for a in form.step.root.arguments}
    rows = [("chunk", name, str(arguments[name])) for name in form.chunk]
    rows += [("fixed", name, f"{what}, from the prefix model") for name, what in _folded((n, str(arguments[n])) for n in form.fixed)]
    rows += [("left out", ", ".join(form.dropped), "packed left, `new_length` is how many are new")] if form.dropped else []
    rows += [("state", name, what) for name, what in _folded((s.name, _what(s)) for s in form.states)]
    shown = [(kind if k == 0 or rows[k - 1][0] != kind else "", *rest) for k, (kind, *rest) in enumerate(rows)]
    lines += ["", *("  " + line for line in columns(shown))]
    if form.states:
        lines += ["", f"  state of a row   {kept.position:,} bytes a position" + (f" and {size(kept.still)}" if kept.still else "")
                  + f" in half precision: {size(kept.bytes(top))} at {form.along}={top}{others}"]
    return "\n".join([*lines, f"  a new position   {flops(form.step, one):,} FLOPs at {form.along}={top}{others}"]) + "\n"


def _folded(named: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names with their copies folded, and what each is."""
    found: dict[tuple[str, str], int] = {}
    for name, what in named:
        key = re.sub(r"(?<![^.])\d+(?![^.])", "{i}", name), what
        found[key] = found.get(key, 0) + 1
    return [(name, what + (f", x {n}" if n > 1 else "")) for (name, what), n in found.items()]


def _what(state: State) -> str:
    kinds = {"append": "cache", "ring": f"ring of a window of {state.layout.window if state.layout else ''}", "carry": "carried"}
    if state.name == PAST:
        return "positions behind each row"
    start = "" if state.start is None else ", starts as the prefix model says"
    return f"{kinds[state.kind]}, {state.type.dtype}{spell(state.type.shape)}{start}"
