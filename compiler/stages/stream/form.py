"""What the step form of a model is: two graphs over the same parameters, and the state between their runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.graph import Graph, TensorType


@dataclass(frozen=True)
class Layout:
    """Where a cache keeps positions: slot p of `capacity`, or of a ring that holds the last of them for a window of keys."""

    capacity: str                               # the free dimension that its size is
    window: int | None = None

    @property
    def ring(self) -> bool:
        return self.window is not None


@dataclass(frozen=True)
class State:
    """A tensor that a step reads and writes.

    `kind`: `clock` (int64[B], how many positions each row has behind it), `append` and `ring` (caches, with their `layout` and the
    `axis` of positions), `carry` (a running state). It starts at zeros, or where `start` says so, as that output of the prefix model.
    """

    name: str
    kind: str
    type: TensorType
    axis: int | None = None
    layout: Layout | None = None
    start: str | None = None


@dataclass(frozen=True, eq=False)
class StepForm:
    """`step` takes a chunk of N positions of the axis `along`, what the prefix model gave (`fixed`) and the state.

    Its inputs: `chunk` inputs with N for the axis; `new_length` int64[B], the valid positions of each row; `past` and the other states;
    `fixed`. Its outputs: those of the model that have the axis, then the states under their names. `prefix` is None where nothing is
    fixed; `told` is the whole graph with its outputs, which says what inputs of the prefix mean where only steps read them. `dropped` are
    inputs of the model that the step form does without: masks and lengths of the stream itself, and what was to be left out.
    """

    along: str
    prefix: Graph | None
    step: Graph
    chunk: tuple[str, ...]
    fixed: tuple[str, ...]
    states: tuple[State, ...]
    dropped: tuple[str, ...]
    told: Graph | None = None


NEW_LENGTH, PAST, CHUNK = "new_length", "past", "N"
WANTED, ASKED = "wanted", "K"                # an input of emitted steps, and the free dimension of how many positions it asks for
SLOTS, RING = "C", "R"                       # the free dimensions of caches
DIMENSIONS = frozenset({CHUNK, ASKED, SLOTS, RING})
