"""A step model with its state: rows of sequences that grow a few positions at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ArtifactError, check
from .manifest import STEP, Manifest, State, read
from .origin import explain
from .session import PROVIDERS, Artifact, load, open

if TYPE_CHECKING:
    import onnxruntime

PAST, NEW_LENGTH = "past", "new_length"
CAPACITY, PIECE = 64, 512         # slots at the start, and most positions of one run
_ELEMENTS = {"float32": np.float32, "float16": np.float16, "int64": np.int64, "bool": np.bool_}


class Decoder:
    """A step artifact ready to run; `decoder` opens it. `start` makes the state of a batch, which is used by one thread at a time."""

    def __init__(self, folder: Path, manifest: Manifest, step: Artifact, prefix: Artifact | None):
        assert manifest.stream is not None
        self.folder, self.manifest, self.stream = folder, manifest, manifest.stream
        self._step, self._prefix = step, prefix
        self.provider = step.provider
        self.device = "cuda" if step.provider == PROVIDERS["cuda"] else "cpu"
        self.outputs = tuple(x for x in step.outputs if x.name not in {s.name for s in self.stream.states})

    @property
    def limit(self) -> int | None:
        """The most positions that a row may have."""
        return self.stream.limit

    def start(self, rows: int | None = None, capacity: int = CAPACITY, **inputs: Any) -> Running:
        """The state before the first position: `rows` of them, or as many as the `inputs` of the prefix model have.

        `still` of the result holds the outputs of the model that do not grow. Raises `ArtifactErrors` (code `bad-inputs`).
        """
        given: dict[str, Any] = {}
        if self._prefix is not None:
            given = self._prefix(**inputs)
            first = next(np.shape(v)[0] for k, v in inputs.items() if v is not None)
            if rows is not None and rows != first:
                raise ArtifactError("bad-inputs", f"`rows` is {rows}, and the inputs have {first} rows")
            rows = first
        elif inputs:
            raise ArtifactError("bad-inputs", f"the model has no prefix, and takes no `{next(iter(inputs))}` before its steps",
                                "what comes step by step is given to `step`")
        if rows is None or rows < 1:
            raise ArtifactError("bad-inputs", "how many rows there are is not told", helps="give `rows`, at least 1")
        return Running(self, rows, capacity, given)


class Running:
    """The state of a batch of sequences. `past` int64 [B] is how many positions each row has behind it."""

    def __init__(self, decoder: Decoder, rows: int, capacity: int, given: Mapping[str, np.ndarray]):
        self.decoder, self.rows = decoder, rows
        stream = decoder.stream
        self.past = np.zeros(rows, np.int64)
        self.capacity = _rounded(capacity)
        names = {x.name for x in decoder.manifest.prefix.outputs} if decoder.manifest.prefix else set()
        inner = {*stream.fixed, *(s.start for s in stream.states if s.start)}
        self.still = {k: given[k] for k in names - inner}
        self._fixed = {k: given[k] for k in stream.fixed}
        self._values: dict[str, onnxruntime.OrtValue] = {}
        self._spare: dict[str, onnxruntime.OrtValue] = {}
        for state in stream.states:
            self._put(state, given[state.start] if state.start else np.zeros(self._shape(state), _ELEMENTS[state.dtype]))
        self._bindings: list[Any] = []
        self._turn = 0

    def step(self, new_length: Any = None, **chunk: Any) -> dict[str, np.ndarray]:
        """Run N more positions; returns the outputs for them. `new_length` int64 [B] says how many of each row are valid (all), the
        first ones; outputs behind them are not defined.

        Raises `ArtifactErrors` (code `bad-inputs`), before anything is run: names, shapes, dtypes, ids, rows that get too long.
        """
        count = next((np.shape(chunk[k])[1] for k in self.decoder.stream.chunk if np.ndim(chunk.get(k)) > 1), 1)
        length = np.full(self.rows, count, np.int64) if new_length is None else np.asarray(new_length, np.int64)
        arrays = self._checked(chunk, length, count)
        if count <= PIECE:
            return self._run(arrays, length, count)
        pieces = []
        for at in range(0, count, PIECE):
            part = {k: v[:, at:at + PIECE] for k, v in arrays.items()}
            size = min(PIECE, count - at)
            pieces.append(self._run(part, np.clip(length - at, 0, size), size))
        return {x.name: np.concatenate([p[x.name] for p in pieces], x.shape.index("N")) for x in self.decoder.outputs if "N" in x.shape}

    def reorder(self, rows: Any) -> None:
        """Row b becomes a copy of row `rows[b]`, as beams do."""
        index = np.asarray(rows, np.int64)
        if np.array_equal(index, np.arange(self.rows)):
            return
        for state in self.decoder.stream.states:
            self._put(state, np.take(self._values[state.name].numpy(), index, axis=state.batch))
        self._fixed = {k: self._rows_of(k, v, index) for k, v in self._fixed.items()}
        self.past, self.rows = self.past[index], len(index)
        self._bindings = []

    def forget(self, past: Any) -> None:
        """Go back: row b has `past[b]` positions behind it, no more than now. Carried states cannot go back."""
        kinds = {s.kind for s in self.decoder.stream.states}
        if "carry" in kinds or "ring" in kinds:
            raise ArtifactError("bad-inputs", "this model carries a state that cannot go back", helps="start again")
        self.past = np.minimum(np.asarray(past, np.int64), self.past)
        self._put(next(s for s in self.decoder.stream.states if s.kind == "clock"), self.past)
        self._bindings = []

    # inside

    def _rows_of(self, name: str, value: np.ndarray, index: np.ndarray) -> np.ndarray:
        shape = next(x.shape for x in self.decoder.manifest.inputs if x.name == name)
        symbol = self.decoder.stream.states[0].shape[0] if self.decoder.stream.states else "B"
        return np.take(value, index, axis=shape.index(symbol)) if symbol in shape else value

    def _checked(self, chunk: Mapping[str, Any], length: np.ndarray, count: int) -> dict[str, np.ndarray]:
        from .arguments import prepare
        stream, manifest = self.decoder.stream, self.decoder.manifest
        outer = {*stream.chunk, NEW_LENGTH}
        shown = replace(manifest, inputs=tuple(x for x in manifest.inputs if x.name in outer))
        arrays = prepare(shown, {**chunk, NEW_LENGTH: length})
        problems = []
        if length.shape != (self.rows,):
            problems.append(ArtifactError("bad-inputs", f"the chunk has {len(length)} rows, and the batch {self.rows}"))
        elif stream.limit is not None and (long := np.flatnonzero(self.past + length > stream.limit)).size:
            row = int(long[0])
            problems.append(ArtifactError("bad-inputs", f"row {row} would have {int(self.past[row] + length[row])} positions, and the model "
                                          f"takes at most {stream.limit}", f"`{stream.along}` is bounded in the spec"))
        check(problems)
        return {k: v for k, v in arrays.items() if k != NEW_LENGTH}

    def _run(self, arrays: Mapping[str, np.ndarray], length: np.ndarray, count: int) -> dict[str, np.ndarray]:
        self._reserve(int(self.past.max()) + count, count)
        binding = self._binding()
        for name, array in arrays.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        binding.bind_cpu_input(NEW_LENGTH, length)
        for x in self.decoder.outputs:
            binding.bind_output(x.held, "cpu")
        try:
            self.decoder._step._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's errors have no common class of their own
            raise explain("run-failed", "the step model fails", self.decoder._step._model, error) from None
        self._values, self._spare = {**self._values, **self._spare}, {k: self._values[k] for k in self._spare}
        self._turn ^= 1
        self.past = self.past + length
        found = dict(zip(self._order, binding.get_outputs(), strict=True))
        return {x.name: found[x.held].numpy() for x in self.decoder.outputs}

    def _binding(self) -> Any:
        """State bound once for each side of the states that alternate."""
        if not self._bindings:
            self._bindings = [None, None]
            self._turn = 0
        if self._bindings[self._turn] is None:
            binding = self.decoder._step._session.io_binding()
            held = {x.name: x.held for x in self.decoder._step.outputs}
            for name, array in self._fixed.items():
                binding.bind_cpu_input(name, array)
            for name, value in self._values.items():
                binding.bind_ortvalue_input(name, value)
                binding.bind_ortvalue_output(held[name], self._spare.get(name, value))
            self._bindings[self._turn] = binding
            self._order = [*(held[n] for n in self._values), *(x.held for x in self.decoder.outputs)]
        return self._bindings[self._turn]

    def _shape(self, state: State) -> tuple[int, ...]:
        sizes = {state.capacity: self._slots(state)}
        return tuple(n if isinstance(n, int) else sizes.get(n, self.rows) for n in state.shape)

    def _slots(self, state: State) -> int:
        if state.window is None:
            return self.capacity
        return min(self.capacity, _rounded(state.window - 1 + PIECE))

    def _put(self, state: State, array: np.ndarray) -> None:
        from onnxruntime import OrtValue
        array = np.ascontiguousarray(array)
        self._values[state.name] = OrtValue.ortvalue_from_numpy(array, self.decoder.device)
        if state.kind in ("carry", "clock"):
            self._spare[state.name] = OrtValue.ortvalue_from_numpy(array.copy(), self.decoder.device)

    def _reserve(self, needed: int, count: int) -> None:
        """Room for `needed` positions: twice what there was, so that copying does not add up."""
        if needed <= self.capacity:
            return
        old = {s.name: self._slots(s) for s in self.decoder.stream.states}
        self.capacity = _rounded(max(2 * self.capacity, needed))
        for state in self.decoder.stream.states:
            if state.axis is None or self._slots(state) == old[state.name]:
                continue
            wide = np.zeros(self._shape(state), _ELEMENTS[state.dtype])
            wide[(*[slice(None)] * state.axis, slice(old[state.name]))] = self._values[state.name].numpy()
            self._put(state, wide)
        self._bindings = []


def decoder(folder: str | os.PathLike[str], device: str = "cpu", **options: Any) -> Decoder:
    """Open a step artifact (`nnspec export --form step`) on `cpu` or `cuda`; `options` are those of `open`. Raises as `open` does."""
    manifest = read(folder)
    if manifest.form != STEP or manifest.stream is None:
        raise ArtifactError("bad-artifact", f"`{os.fspath(folder)}` holds no step model", f"its form is {manifest.form}",
                            "export it with `--form step`")
    step = open(folder, device, **options)
    options.pop("verify", None)
    prefix = load(step.folder, manifest.prefixed, device, **options) if manifest.prefixed is not None else None
    return Decoder(step.folder, manifest, step, prefix)


def _rounded(n: int) -> int:
    """A multiple of 8, which every fused kernel takes."""
    return -(-n // 8) * 8
