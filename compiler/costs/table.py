"""All costs of a model at given sizes: what `nnspec cost` prints and what a budget is held against."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..ir.dimension import Dim
from ..ir.graph import Graph
from ..ir.parameters import count, parameter_table
from ..ir.twin import Times, twin
from ..lang.diagnostic import Diagnostics
from ..stages.stream import StepForm, step_form
from .cost import active, flop_parts, formula, sizes_of
from .memory import BYTES, Peak, peak_activation
from .streaming import cache, decode_sizes, row_axis

Parts = tuple[tuple[str, int], ...]
DTYPE = "float16"


@dataclass(frozen=True)
class Metric:
    """One number that a budget may limit. `parts` say what it is made of, by path."""

    about: str
    unit: str
    value: Callable[[Costs], int | None]
    parts: Callable[[Costs], Parts]


class CostTable:
    """The costs of a lowered graph. What depends on no size is found once."""

    def __init__(self, graph: Graph):
        self.graph = graph

    @cached_property
    def parameters(self) -> int:
        return count(self.graph)

    @cached_property
    def active(self) -> int:
        return active(self.graph)

    @cached_property
    def tensors(self) -> Parts:
        return tuple((p.path, p.elements) for p in parameter_table(self.graph))

    @cached_property
    def formula(self) -> Dim:
        """The FLOPs of a pass in the free dimensions."""
        return formula(self.graph)

    @cached_property
    def step(self) -> StepForm | str:
        """The step form of a twin with one copy of each body, or why there is none."""
        try:
            return step_form(self._twin)
        except Diagnostics as found:
            return found.items[0].headline

    @cached_property
    def _twin(self) -> Graph:
        return twin(self.graph)

    def whole(self, parts: Iterable[tuple[str, int]]) -> Parts:
        """What the parts of the twin stand for, copies folded."""
        times = Times(self.graph.root, self._twin.root)
        return folded((path, n * times(path)) for path, n in parts)

    def at(self, sizes: Mapping[str, int] | None = None, dtype: str = DTYPE) -> Costs:
        """The costs at sizes of free dimensions. Raises KeyError for one that the model does not have."""
        return Costs(self, sizes_of(self.graph, sizes or {}), dtype)


@dataclass(frozen=True)
class Costs:
    """The costs at `sizes` and in a dtype. Numbers of decoding are None where the model cannot be run step by step.

    `flops` are those of one pass over all rows; `decode_flops` those of one new position of one row with the size of the stream's axis
    behind it, and `cache_bytes` what all rows keep then.
    """

    table: CostTable
    sizes: Mapping[str, int]
    dtype: str

    @property
    def parameters(self) -> int:
        return self.table.parameters

    @property
    def active(self) -> int:
        return self.table.active

    @property
    def weight_bytes(self) -> int:
        return self.parameters * BYTES[self.dtype]

    @cached_property
    def flop_parts(self) -> Parts:
        return folded(flop_parts(self.table.graph, self.sizes))

    @property
    def flops(self) -> int:
        return _total(self.flop_parts)

    @property
    def formula(self) -> Dim:
        return self.table.formula

    @property
    def length(self) -> int | None:
        """Positions of the stream."""
        return None if isinstance(self.table.step, str) else self.sizes[self.table.step.along]

    @cached_property
    def decode_parts(self) -> Parts | None:
        form = self.table.step
        if isinstance(form, str):
            return None
        return self.table.whole(flop_parts(form.step, decode_sizes(form, self.sizes[form.along], self.sizes)))

    @property
    def decode_flops(self) -> int | None:
        return None if self.decode_parts is None else _total(self.decode_parts)

    @cached_property
    def cache_parts(self) -> Parts | None:
        form = self.table.step
        if isinstance(form, str):
            return None
        rows = (row_axis(form) or Dim.const(1)).evaluate(self.sizes)
        return self.table.whole((name, n * rows) for name, n in cache(form, self.sizes, BYTES[self.dtype]).held(self.sizes[form.along]))

    @property
    def cache_bytes(self) -> int | None:
        return None if self.cache_parts is None else _total(self.cache_parts)

    @property
    def cache_position(self) -> int | None:
        """Bytes that the cache of one row grows by with a position, while no window is full."""
        form = self.table.step
        if isinstance(form, str):
            return None
        return _total(self.table.whole((name, n) for name, n, kept in cache(form, self.sizes, BYTES[self.dtype]).parts if kept != 0))

    @cached_property
    def peak(self) -> Peak:
        return peak_activation(self.table.graph, self.sizes, self.dtype)

    @property
    def total_bytes(self) -> int:
        """Weights, cache and the peak of activations together."""
        return self.weight_bytes + (self.cache_bytes or 0) + self.peak.bytes


METRICS: dict[str, Metric] = {
    "parameters": Metric("parameters", "", lambda c: c.parameters, lambda c: c.table.tensors),
    "active_parameters": Metric("active parameters", "", lambda c: c.active, lambda c: c.table.tensors),
    "weight_bytes": Metric("bytes of weights", "B", lambda c: c.weight_bytes,
                           lambda c: tuple((p, n * BYTES[c.dtype]) for p, n in c.table.tensors)),
    "flops": Metric("FLOPs of a pass", "", lambda c: c.flops, lambda c: c.flop_parts),
    "decode_flops": Metric("FLOPs a new position", "", lambda c: c.decode_flops, lambda c: c.decode_parts or ()),
    "cache_bytes": Metric("bytes of cache", "B", lambda c: c.cache_bytes, lambda c: c.cache_parts or ()),
    "activation_bytes": Metric("bytes of activations at their peak", "B", lambda c: c.peak.bytes, lambda c: folded(c.peak.held)),
    "total_bytes": Metric("bytes of weights, cache and activations", "B", lambda c: c.total_bytes,
                          lambda c: (("weights", c.weight_bytes), ("cache", c.cache_bytes or 0), ("activations", c.peak.bytes))),
}
FIXED = frozenset({"parameters", "active_parameters"})             # the same at all sizes and in every dtype


def folded(parts: Iterable[tuple[str, int]]) -> Parts:
    """Parts with the numbers of copies as `{i}`, and those of one path added up."""
    found: dict[str, int] = {}
    for path, n in parts:
        key = re.sub(r"(?<![^.])\d+(?![^.])", "{i}", path)
        found[key] = found.get(key, 0) + n
    return tuple(found.items())


def largest(parts: Iterable[tuple[str, int]], most: int | None = None) -> list[tuple[str, int]]:
    return sorted(parts, key=lambda part: -part[1])[:most]


def _total(parts: Parts) -> int:
    return sum(n for _, n in parts)
