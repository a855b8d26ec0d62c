"""How a model runs in steps, as its manifest says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import Fields

NEW, NEW_LENGTH = "N", "new_length"          # a step's dimension of new positions, and its input that says how many are valid
WANTED, ASKED = "wanted", "K"                # an input that says of which new positions K outputs are given, [B, K]
KINDS = ("clock", "append", "ring", "carry")
FUNCTIONS = ("cos", "sin")
DTYPES = ("int64", "int32", "bool", "float32", "float16", "bfloat16")
Shape = tuple[int | str, ...]
Told = tuple[str, Shape]                     # dtype and shape


@dataclass(frozen=True)
class State:
    """What a step model reads and writes under one name, at first zeros, or what the prefix model gives as `start`.

    `kind`: `clock`, int64 [B], the positions behind each row; `append`, a cache with position p in slot p of `axis`; `ring`, one
    with position p in slot p mod its size, which is at least `window` - 1 + N for chunks of N; `carry`, a running state.
    `capacity` is the dimension of a cache's axis, `batch` the axis of rows; a position of a row takes `bytes` of a cache that grows.
    """

    name: str
    kind: str
    dtype: str
    shape: Shape
    batch: int
    axis: int | None = None
    capacity: str | None = None
    window: int | None = None
    start: str | None = None
    bytes: int = 0


@dataclass(frozen=True)
class Table:
    """An input [slots, frequencies] that is the same from step to step: `factor` x `function` (cos or sin) of slot x frequency."""

    name: str
    function: str
    frequencies: tuple[float, ...]
    factor: float


@dataclass(frozen=True)
class Stream:
    """How a model runs in steps along the axis `along`: `chunk` are its inputs for N new positions, `fixed` those that the prefix
    model gives; `dropped` inputs of the whole model are not needed; no row gets longer than `limit`. With `by_row` a run of several
    positions, where there are some before them already, takes one row. `tables` have a row for every slot of the caches that grow."""

    along: str
    chunk: tuple[str, ...]
    fixed: tuple[str, ...]
    states: tuple[State, ...]
    dropped: tuple[str, ...] = ()
    limit: int | None = None
    by_row: bool = False
    tables: tuple[Table, ...] = ()


def read_stream(x: Fields | None) -> Stream | None:
    """What the `stream` of a manifest says; what is wrong in it is told by `x`."""
    if x is None:
        return None
    return Stream(x.text("along"), x.texts("chunk"), x.texts("fixed"), tuple(map(_state, x.children("states"))), x.texts("dropped"),
                  x.take("limit", int, None, optional=True), x.take("by_row", bool, False, optional=True),
                  tuple(map(_table, x.children("tables"))))


def _table(x: Fields) -> Table:
    return Table(x.text("name"), x.one_of("function", FUNCTIONS), x.numbers("frequencies"), x.number("factor"))


def _state(x: Fields) -> State:
    def maybe(key: str, kind: type) -> Any:
        return x.take(key, kind, None, optional=True)
    return State(x.text("name"), x.one_of("kind", KINDS), x.one_of("dtype", DTYPES), x.shape("shape"), x.count("batch"),
                 maybe("axis", int), maybe("capacity", str), maybe("window", int), maybe("start", str), x.count("bytes"))


def stream_problems(stream: Stream, inputs: Mapping[str, Told], outputs: Mapping[str, Told], given: Sequence[str]) -> list[str]:
    """What is wrong with it beside a model's inputs and outputs, and those that the prefix model gives."""
    problems = list[str]()
    named = [*stream.chunk, *stream.fixed, *(s.name for s in stream.states), *(t.name for t in stream.tables)]
    problems += [f"`stream` names `{n}`, which is no input" for n in named if n not in inputs]
    problems += [f"input `{n}` is not of the chunk, nor fixed, nor a state" for n in inputs if n not in (*named, NEW_LENGTH, WANTED)]
    problems += [f"`stream` takes `{n}` from the prefix model, which does not give it"
                 for n in (*stream.fixed, *(s.start for s in stream.states if s.start)) if n not in given]
    problems += [f"`stream` has {len(c)} states of the kind clock, expected 1"
                 for c in [[s for s in stream.states if s.kind == "clock"]] if len(c) != 1 and stream.states]
    rows = {s.shape[s.batch] for s in stream.states if s.batch < len(s.shape)}
    if len(rows) > 1:
        problems.append(f"`stream` has states with rows on axes of {' and '.join(sorted(map(str, rows)))}, expected one size")
    if stream.limit is not None and stream.limit < 1:
        problems.append(f"`stream.limit` is {stream.limit}, expected a number from 1")
    for state in stream.states:
        problems += [f"state `{state.name}` {told}" for told in _state_problems(state, inputs.get(state.name), outputs.get(state.name))]
    return problems


def _state_problems(state: State, told: Told | None, written: Told | None) -> list[str]:
    found, rank = [], len(state.shape)
    if told is not None and told != (state.dtype, state.shape):
        found.append("differs from the input of its name in dtype or shape")
    if written is None or written[0] != state.dtype:
        found.append(f"is no output of {state.dtype}")
    if state.batch >= rank or state.axis is not None and not (0 <= state.axis < rank and state.axis != state.batch):
        found.append(f"has {rank} axes, its rows on axis {state.batch} and its positions on axis {state.axis}")
    elif (state.kind in ("append", "ring")) != (state.axis is not None) \
            or state.capacity != (None if state.axis is None else state.shape[state.axis]):
        found.append(f"is of the kind {state.kind}, with positions on axis {state.axis} and the capacity {state.capacity}")
    if (state.kind == "ring") != (state.window is not None) or state.window is not None and state.window < 1:
        found.append(f"is of the kind {state.kind}, with the window {state.window}")
    return found
