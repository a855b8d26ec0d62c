"""A step model with its state: rows of sequences that grow a few positions at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import prepare
from .bound import Bound
from .buffer import Buffer, stored
from .chunks import growing, number_from, pieces, rounded, rows_first, shape_of
from .convert import Unfit, convert
from .dimension import parse
from .errors import ArtifactError, check
from .manifest import NO_WEIGHTS, STEP, Manifest, Output, read
from .origin import explain
from .session import PROVIDERS, Artifact, load, open
from .steps import ASKED, NEW, NEW_LENGTH, WANTED, State

CAPACITY, PIECE = 64, 512         # slots at the start, and most positions of one run
_FIRST = np.zeros((1, 1), np.int64)          # the only position of a chunk, in every row
_FEWEST, _NUMBERS = 32, 1 << 24   # positions and numbers of one run when only the last position is asked for


class Decoder:
    """A step artifact ready to run; `decoder` opens it. `start` makes the state of a batch, which is used by one thread at a time."""

    def __init__(self, folder: Path, manifest: Manifest, step: Artifact, prefix: Artifact | None):
        assert manifest.stream is not None
        self.folder, self.manifest, self.stream = folder, manifest, manifest.stream
        self._step, self._prefix = step, prefix
        self.provider = step.provider
        self.device = "cuda" if step.provider == PROVIDERS["cuda"] else "cpu"
        states = {s.name for s in self.stream.states}
        self.row = next((s.shape[s.batch] for s in self.stream.states), "B")           # the dimension of rows
        self._told = {x.name: x.shape for x in step.outputs}
        self.outputs = tuple(replace(x, shape=tuple(NEW if n == ASKED else n for n in x.shape))
                             for x in step.outputs if x.name not in states)
        self.chunk = tuple(x for x in manifest.inputs if x.name in (*self.stream.chunk, NEW_LENGTH))
        clocks = {s.name for s in self.stream.states if s.kind == "clock"}
        self.held = tuple(s for s in self.stream.states if s.name not in clocks)        # tensors; what a clock says, `Running.past` says
        self._clock = next(iter(clocks), "")
        self._small = tuple(x for x in manifest.inputs if x.name in (*self.stream.chunk, NEW_LENGTH, WANTED, self._clock))
        self._tables: dict[int, dict[str, Buffer]] = {}
        self._idle: list[Running] = []                # a state that nobody uses any more, for the next one of its size
        self._held = {x.name: x.held for x in step.outputs}
        self._asked = replace(manifest, inputs=self.chunk)

    @property
    def limit(self) -> int | None:
        """The most positions that a row may have."""
        return self.stream.limit

    def __repr__(self) -> str:
        return f"<Decoder {self.manifest.name} along {self.stream.along}: {', '.join(self.stream.chunk)} -> " \
               f"{', '.join(x.name for x in self.outputs)}>"

    def rows_of(self, inputs: Mapping[str, Any]) -> int | None:
        """How many rows the inputs of the prefix model have, where one of them tells."""
        for x in self.manifest.prefix.inputs if self.manifest.prefix else ():
            shape = shape_of(inputs.get(x.name))
            if self.row in x.shape and len(shape) == len(x.shape):
                return int(shape[x.shape.index(self.row)])
        return None

    def check_rows(self, rows: int) -> None:
        """Raises `ArtifactError` (code `bad-inputs`) where the model always has another number of rows."""
        if isinstance(self.row, int) and rows != self.row:
            raise ArtifactError("bad-inputs", f"there would be {rows} rows, and the model always has {self.row}",
                                helps="write a free size such as `B` in the spec, and export it again")

    def tables(self, slots: int) -> dict[str, Buffer]:
        """cos or sin of position x frequency for every slot [C, f], in float32 as in the graph; those of the last size are kept."""
        if slots not in self._tables and self.stream.tables:
            dtypes, at = {x.name: x.dtype for x in self.manifest.inputs}, np.arange(slots, dtype=np.float32)[:, None]
            waves = {t.name: getattr(np, t.function)(at * np.array(t.frequencies, np.float32)) * np.float32(t.factor)
                     for t in self.stream.tables}
            self._tables = {slots: {name: Buffer.of(wave, dtypes[name], self.device) for name, wave in waves.items()}}
        return self._tables.get(slots, {})

    def start(self, rows: int | None = None, capacity: int = CAPACITY, **inputs: Any) -> Running:
        """The state before the first position: `rows` of them, or as many as the `inputs` of the prefix model have.

        `still` of the result holds the outputs of the model that do not grow. Raises `ArtifactErrors` (code `bad-inputs`).
        """
        given: dict[str, Any] = {}
        if self._prefix is not None:
            given = self._prefix(**inputs)
            found = self.rows_of(inputs)
            if None not in (rows, found) and rows != found:
                raise ArtifactError("bad-inputs", f"`rows` is {rows}, and the inputs have {found} rows")
            rows = found if rows is None else rows
        elif inputs:
            raise ArtifactError("bad-inputs", f"the model has no prefix, and takes no `{next(iter(inputs))}` before its steps",
                                "what comes step by step is given to `step`")
        if not number_from(rows, 1):
            raise ArtifactError("bad-inputs", "how many rows there are is not told", helps="give `rows`, a whole number from 1")
        self.check_rows(rows)
        if not number_from(capacity, 1):
            raise ArtifactError("bad-inputs", f"`capacity` is {capacity!r}", "expected slots of a cache, a whole number from 1")
        try:
            idle = self._idle.pop()
        except IndexError:
            return Running(self, rows, capacity, given)
        fits = (idle.rows, idle.capacity) == (rows, rounded(capacity))
        return idle.restart() if fits else Running(self, rows, capacity, given)

    def bound(self, outputs: Sequence[Output]) -> Bound:
        """The step model with some of its outputs and none of its state bound."""
        return Bound(self._step._session, self._small, {x.name: (x.held, x.dtype, self._told[x.name]) for x in outputs})

    def done(self, running: Running) -> None:
        """Leave the memory of a state to the next one, where no prefix model fills it anew; nobody may use it after that."""
        if self._prefix is None:
            self._idle[:] = [running]


class Running:
    """The state of a batch of sequences. `past` int64 [B] is how many positions each row has behind it."""

    def __init__(self, decoder: Decoder, rows: int, capacity: int, given: Mapping[str, np.ndarray]):
        self.decoder, self.rows = decoder, rows
        stream = decoder.stream
        self.past = np.zeros(rows, np.int64)
        self.capacity = rounded(capacity)
        self.expected: int | None = decoder.limit      # what a row is known not to outgrow, where that is known
        names = {x.name for x in decoder.manifest.prefix.outputs} if decoder.manifest.prefix else set()
        inner = {*stream.fixed, *(s.start for s in stream.states if s.start)}
        self.still = {k: given[k] for k in names - inner}
        inputs = {x.name: x for x in decoder.manifest.inputs}
        self._row = decoder.row
        self._fixed = {k: Buffer.of(given[k], inputs[k].dtype, decoder.device) for k in stream.fixed}
        self._sizes = {e: n for k, b in self._fixed.items() for e, n in zip(inputs[k].shape, b.shape, strict=True) if isinstance(e, str)}
        self._source = np.arange(rows)             # the row at the start that each row comes from
        self._states: dict[str, Buffer] = {}
        self._spare: dict[str, Buffer] = {}
        for state in decoder.held:
            self._put(state, given[state.start] if state.start else None)
        self._kept: dict[tuple[Any, ...], list[Bound | None]] = {}
        self._one: tuple[Sequence[Output], Bound, Mapping[str, np.ndarray]] | None = None        # single positions, ready to go on
        self._turn = 0

    def restart(self) -> Running:
        """Back to before the first position."""
        self.past, self._source, self.expected = np.zeros(self.rows, np.int64), np.arange(self.rows), self.decoder.limit
        for state in self.decoder.held:
            if state.kind == "carry":
                self._states[state.name].write(np.zeros(self._shape(state), stored(state.dtype)))
        return self

    def step(self, new_length: Any = None, **chunk: Any) -> dict[str, np.ndarray]:
        """Run N more positions; returns the outputs for them. `new_length` int64 [B] says how many of each row are valid (all), the
        first ones; outputs behind them are not defined.

        Raises `ArtifactErrors` (code `bad-inputs`), before anything is run: names, shapes, dtypes, ids, rows that get too long.
        """
        arrays, length, count = self._checked(new_length, chunk)
        outputs = self.decoder.outputs
        found: dict[str, list[np.ndarray]] = {x.name: [] for x in outputs}
        for part, new, size, _ in pieces(arrays, length, count, PIECE):
            for name, array in self._run(part, new, size, outputs, np.tile(np.arange(size), (self.rows, 1))).items():
                found[name].append(array.copy())
        return {x.name: np.concatenate(found[x.name], x.shape.index(NEW)) if NEW in x.shape else found[x.name][-1] for x in outputs}

    def extend(self, new_length: Any = None, outputs: Sequence[str] | None = None, **chunk: Any) -> dict[str, np.ndarray]:
        """Run N more positions; returns the outputs (all, or those named) at the last valid one of each row: [B, ...], without the axis N.

        Long chunks need no memory for the outputs of every position. Rows without a valid position give zeros. Raises as `step` does.
        """
        arrays, length, count = self._checked(new_length, chunk)
        wanted = growing(self.decoder.outputs, outputs)
        told = self.decoder._told
        wide = max((int(np.prod([n for n in x.shape if isinstance(n, int)])) for x in wanted if NEW in told[x.name]), default=1)
        last: dict[str, np.ndarray] = {}
        for part, new, size, at in pieces(arrays, length, count, min(PIECE, max(_FEWEST, _NUMBERS // (wide * self.rows)))):
            rows, ends = np.flatnonzero((at < length) & (length <= at + size)), np.minimum(np.maximum(length - 1 - at, 0), size - 1)
            found = self._run(part, new, size, wanted, ends[:, None])
            for x in wanted:
                by_row = rows_first(found[x.name], x, self._row)
                held = last.setdefault(x.name, np.zeros((self.rows, *by_row.shape[2:]), by_row.dtype))
                held[rows] = by_row[rows, ends[rows] if NEW in told[x.name] else 0]
        return last

    def advance(self, name: str, ids: np.ndarray, length: np.ndarray, outputs: Sequence[Output]) -> dict[str, np.ndarray]:
        """Run one more position of the chunk's only input, unchecked: ids int64 [B], `length` int64 [B] of 0 and 1, no row beyond
        the limit. Returns the outputs [B, 1, ...] in memory that the next run overwrites."""
        ready = self._one
        if ready is None or ready[0] is not outputs or max(self.past.tolist()) >= self.capacity:
            made = self._run({name: ids[:, None]}, length, 1, tuple(outputs), _FIRST)
            bound = self._kept[True, *map(id, outputs)][0]
            self._one = None if self._spare or bound is None or bound.memory is None else (outputs, bound, bound.memory)
            return made
        _, bound, memory = ready
        memory[name][:, 0] = ids
        memory[NEW_LENGTH][:] = length
        if self.decoder._clock:
            memory[self.decoder._clock][:] = self.past
        self._go(bound)
        self.past = self.past + length
        return bound.results()

    def reorder(self, rows: Any) -> None:
        """Row b becomes a copy of row `rows[b]`, as beams do; there may be more or fewer of them than before."""
        index = self._whole(rows, "rows")
        if not len(index) or index.min() < 0 or index.max() >= self.rows:
            raise ArtifactError("bad-inputs", f"`rows` is {index.tolist()}", f"expected rows of the batch, in [0, {self.rows})")
        self.decoder.check_rows(len(index))
        same = len(index) == self.rows
        if same and np.array_equal(index, np.arange(self.rows)):
            return
        used = int(self.past.max(initial=0))
        for state in self.decoder.held:
            self._move(state, index, used, same)
        source = self._source[index]
        if not np.array_equal(source, self._source):
            inputs = {x.name: x for x in self.decoder.manifest.inputs}
            for name, held in self._fixed.items():
                if self._row in inputs[name].shape:
                    moved = np.take(held.read(), index, axis=inputs[name].shape.index(self._row))
                    self._fixed[name] = Buffer(moved, held.dtype, held.device)
            self._unbind()
        self._source, self.past, self.rows = source, self.past[index], len(index)
        if not same:
            self._unbind()

    def forget(self, past: Any) -> None:
        """Go back: row b has `past[b]` positions behind it, no more than now. Carried states cannot go back."""
        kinds = {s.kind for s in self.decoder.stream.states}
        if "carry" in kinds or "ring" in kinds:
            raise ArtifactError("bad-inputs", "this model carries a state that cannot go back", helps="start again")
        back = self._whole(past, "past")
        if len(back) != self.rows or back.min() < 0:
            raise ArtifactError("bad-inputs", f"`past` is {back.tolist()}", f"expected a number from 0 for each of {self.rows} rows")
        self.past = np.minimum(back, self.past)

    # inside

    def _whole(self, value: Any, name: str) -> np.ndarray:
        try:
            array = convert(value, "int64")
        except Unfit as unfit:
            raise ArtifactError("bad-inputs", f"`{name}` {unfit.headline}", helps=unfit.helps) from None
        if array.ndim != 1:
            raise ArtifactError("bad-inputs", f"`{name}` has {array.ndim} axes, expected 1")
        return array

    def _checked(self, new_length: Any, chunk: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
        stream = self.decoder.stream
        count = next((shape[1] for shape in map(shape_of, map(chunk.get, stream.chunk)) if len(shape) > 1), 1)
        given = np.full(self.rows, count, np.int64) if new_length is None else new_length
        arrays = prepare(self.decoder._asked, {**chunk, NEW_LENGTH: given})
        length = np.asarray(arrays[NEW_LENGTH])
        problems = []
        if length.shape != (self.rows,):
            problems.append(ArtifactError("bad-inputs", f"the chunk has {len(length)} rows, and the batch {self.rows}"))
        elif stream.limit is not None and (long := np.flatnonzero(self.past + length > stream.limit)).size:
            found = int((self.past + length)[long[0]])
            problems.append(ArtifactError("bad-inputs", f"row {long[0]} would have {found} positions, and the model takes at most "
                                          f"{stream.limit}", f"`{stream.along}` is bounded in the spec"))
        check(problems)
        self._reserve(int(self.past.max()) + count)        # once, so that axes of slots are of one length in all pieces
        return {k: v for k, v in arrays.items() if k != NEW_LENGTH}, length, count

    def _run(self, arrays: Mapping[str, np.ndarray], length: np.ndarray, count: int, outputs: tuple[Output, ...],
             wanted: np.ndarray) -> dict[str, np.ndarray]:
        """Run a chunk; returns outputs for the positions `wanted` int64 [B, K] of it, those that the model cannot choose for all N."""
        self._reserve(max(self.past.tolist()) + count)
        if self.decoder.stream.by_row and count > 1 and self.rows > 1 and self.past.any():
            return self._row_by_row(arrays, length, count, outputs, wanted)
        run = self._ready(arrays, count, outputs, wanted.shape[1])
        given = {**arrays, NEW_LENGTH: length, WANTED: wanted, self.decoder._clock: self.past}
        for name, held in run.inputs.items():
            held.write(given[name])
        self._go(run)
        if self._spare:
            self._states, self._spare = {**self._states, **self._spare}, {k: self._states[k] for k in self._spare}
            self._turn ^= 1
        self.past = self.past + length
        return run.results()

    def _unbind(self) -> None:
        """Bind everything anew before the next run: memory or sizes of the state are others now."""
        self._kept, self._one = {}, None

    def _go(self, bound: Bound) -> None:
        try:
            self.decoder._step._session.run_with_iobinding(bound.binding)
        except Exception as error:  # ONNX Runtime's errors have no common class of their own
            raise explain("run-failed", "the step model fails", self.decoder._step._model, error) from None

    def _row_by_row(self, arrays: Mapping[str, np.ndarray], length: np.ndarray, count: int, outputs: tuple[Output, ...],
                    wanted: np.ndarray) -> dict[str, np.ndarray]:
        """As `_run`, each row as a batch of its own."""
        found = []
        for row in range(self.rows):
            one = self._alone(row)
            made = one._run({k: v[row:row + 1] for k, v in arrays.items()}, length[row:row + 1], count, outputs, wanted[row:row + 1])
            found.append({k: v.copy() for k, v in made.items()})
            for state in self.decoder.held:
                held = self._states[state.name]
                array = held.read()
                np.moveaxis(array, state.batch, 0)[row] = np.moveaxis(one._states[state.name].read(), state.batch, 0)[0]
                if held.array is None:
                    held.write(array)
        self.past = self.past + length
        return {x.name: np.concatenate([f[x.name] for f in found], x.shape.index(self._row)) if self._row in x.shape else found[0][x.name]
                for x in outputs}

    def _alone(self, row: int) -> Running:
        """A copy of one row."""
        one = copy(self)
        one._fixed, one._states, one._spare = dict(self._fixed), dict(self._states), dict(self._spare)
        one._unbind()
        one.reorder([row])
        return one

    def _ready(self, arrays: Mapping[str, np.ndarray], count: int, outputs: tuple[Output, ...], asked: int) -> Bound:
        """Everything bound, once for each side of the states that alternate: single positions apart from longer chunks."""
        sides = self._kept.setdefault((count == 1, *map(id, outputs)), [None, None])          # the outputs are those of the decoder
        run = sides[self._turn]
        if run is None:
            run = sides[self._turn] = self.decoder.bound(outputs)
            for name, held in (*self._fixed.items(), *self.decoder.tables(self.capacity).items()):
                held.bind_input(run.binding, name)
            for name, held in self._states.items():
                held.bind_input(run.binding, name)
                self._spare.get(name, held).bind_output(run.binding, self.decoder._held[name])
        shapes = [a.shape for a in arrays.values()]
        if run.fits != (count, asked, shapes):
            run.fits = (count, asked, shapes)
            capacities = {s.capacity: self._slots(s) for s in self.decoder.held if s.capacity}
            sizes = {**self._sizes, str(self._row): self.rows, NEW: count, ASKED: asked, **capacities}
            told = {NEW_LENGTH: (self.rows,), WANTED: (self.rows, asked), self.decoder._clock: (self.rows,)}
            run.fit(dict(zip(arrays, shapes, strict=True)) | told, sizes)
        return run

    def _shape(self, state: State) -> tuple[int, ...]:
        sizes = {**self._sizes, str(self._row): self.rows, str(state.capacity): self._slots(state)}
        return tuple(parse(n).size(sizes) or 0 for n in state.shape)

    def _slots(self, state: State) -> int:
        if state.window is None:
            return self.capacity
        return min(self.capacity, rounded(state.window - 1 + PIECE))

    def _put(self, state: State, array: np.ndarray | None) -> None:
        """The memory of a state, with these numbers or zeros in it."""
        for held in (self._states, self._spare) if state.kind == "carry" else (self._states,):       # read while they are written
            held[state.name] = Buffer.zeros(self._shape(state), state.dtype, self.decoder.device) if array is None else \
                Buffer.of(array, state.dtype, self.decoder.device)

    def _move(self, state: State, index: np.ndarray, used: int, same: bool) -> None:
        """The rows of one state; on the CPU in place, and only those that change, up to the last slot in use."""
        held = self._states[state.name]
        if not (same and held.array is not None):
            moved = np.take(held.read(), index, axis=state.batch)
            if same:
                held.write(moved)
            else:
                self._put(state, moved)
            return
        array = np.moveaxis(held.array, state.batch, 0)
        if state.kind == "append" and state.axis is not None:
            axis = state.axis + (state.axis < state.batch)
            array = array[(*[slice(None)] * axis, slice(used))]
        rows = np.flatnonzero(index != np.arange(len(index)))
        array[rows] = array[index[rows]]

    def _reserve(self, needed: int) -> None:
        """Room for `needed` positions: twice what there was, so that copying does not add up."""
        if needed <= self.capacity:
            return
        old = {s.name: self._slots(s) for s in self.decoder.stream.states}
        self.capacity = rounded(max(min(2 * self.capacity, self.expected or 2 * self.capacity), needed))
        for state in self.decoder.held:
            if state.axis is None or self._slots(state) == old[state.name]:
                continue
            held = self._states[state.name].read()
            wide = np.zeros(self._shape(state), held.dtype)
            wide[(*[slice(None)] * state.axis, slice(old[state.name]))] = held
            self._put(state, wide)
        self._unbind()


def decoder(folder: str | os.PathLike[str], device: str = "cpu", **options: Any) -> Decoder:
    """Open a step artifact (`nnspec export --form step`) on `cpu` or `cuda`; `options` are those of `open`. Raises as `open` does."""
    manifest = read(folder)
    step = open(folder, device, **options) if manifest.form in (STEP, NO_WEIGHTS) else None      # without weights it says so
    if step is None or manifest.stream is None:
        raise ArtifactError("bad-artifact", f"`{os.fspath(folder)}` holds no step model", f"its form is {manifest.form}",
                            "export it with `--form step`")
    options.pop("verify", None)
    prefix = load(step.folder, manifest.prefixed, device, **options) if manifest.prefixed is not None else None
    return Decoder(step.folder, manifest, step, prefix)
