"""Step forms run in chunks, in PyTorch and in ONNX Runtime, and put together into what the whole graph gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from nnspec.artifacts.export import arguments
from nnspec.backends.torch import build
from nnspec.stages.stream import StepForm

WAYS = ("one chunk", "one by one", "ragged chunks")


def schedule(way: str, rows: int, length: int, seed: int = 0) -> list[np.ndarray]:
    """How many positions of each row every chunk has. Ragged chunks have rows without any."""
    rng, left, made = np.random.default_rng(seed), np.full(rows, length), []
    while left.any():
        valid = {"one chunk": left, "one by one": np.minimum(left, 1)}.get(way)
        valid = rng.integers(0, np.minimum(left, 4) + 1) if valid is None else valid
        made.append(valid.copy())
        left = left - valid
    return made


def piece(array: np.ndarray, done: np.ndarray, valid: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """The next entries of each row, with entries of other positions behind its valid ones."""
    at = np.where(np.arange(size) < valid[:, None], done[:, None] + np.arange(size), rng.integers(0, array.shape[1], (len(done), size)))
    return array[np.arange(len(array))[:, None], at]


@dataclass
class Put:
    """Outputs of chunks, row by row, in their places."""

    length: int
    whole: dict[str, np.ndarray]

    def add(self, outputs: dict[str, np.ndarray], axes: dict[str, tuple[int, ...]], done: np.ndarray, valid: np.ndarray) -> None:
        for name, (axis, *more) in axes.items():
            got = outputs[name]
            if more:                                # over every position so far: as many as the whole has
                got = np.take(got, np.arange(min(self.length, got.shape[more[0]])), more[0])
                got = np.pad(got, [(0, self.length - n if k == more[0] else 0) for k, n in enumerate(got.shape)])
            shape = (*got.shape[:axis], self.length, *got.shape[axis + 1:])
            full = self.whole.setdefault(name, np.zeros(shape, got.dtype))
            for row, (at, n) in enumerate(zip(done, valid, strict=True)):
                np.moveaxis(full[row], axis - 1, 0)[at:at + n] = np.moveaxis(got[row], axis - 1, 0)[:n]


class TorchStepper:
    """The two modules of a step form, with the parameters of the whole module."""

    def __init__(self, form: StepForm, module: torch.nn.Module):
        self.form, state = form, module.state_dict()
        self.step, self.prefix = (None if graph is None else fitted(graph, state) for graph in (form.step, form.prefix))
        self.axes = {name: tuple(k for k, d in enumerate(form.step.root.type(v).shape) if str(d) in ("N", "C"))
                     for name, v in form.step.root.outputs if name not in {s.name for s in form.states}}

    def __call__(self, arrays: dict[str, np.ndarray], length: int, way: str, seed: int = 0) -> dict[str, np.ndarray]:
        form, rng = self.form, np.random.default_rng(seed)
        rows = arrays[form.chunk[0]].shape[0]
        chunks = schedule(way, rows, length, seed)
        size = max(int(v.max()) for v in chunks)
        before = {} if self.prefix is None else call(self.prefix, form.prefix, arrays)
        sizes = {s.layout.capacity: s.layout.window - 1 + size if s.layout.ring else length + size for s in form.states if s.layout}
        sizes |= {str(d): rows for d in form.states[0].type.shape[:1]} if form.states else {}
        types = {a.name: a.type for a in form.step.root.arguments}
        sizes |= {str(d): n for name in form.fixed for d, n in zip(types[name].shape, before[name].shape, strict=True)}
        state = {s.name: before[s.start] if s.start else junk(s, sizes, rng) for s in form.states}
        inner = {*form.fixed, *(s.start for s in form.states)}
        put, done, last = Put(length, {}), np.zeros(rows, int), {}
        for valid in chunks:
            n = max(1, int(valid.max()))
            given = {name: piece(arrays[name], done, valid, n, rng) for name in form.chunk}
            fixed = {name: before[name] for name in form.fixed}
            made = call(self.step, form.step, given | fixed | state | {"new_length": valid.astype(np.int64)})
            assert {k: v.shape for k, v in state.items()} == {k: made[k].shape for k in state}
            state = {k: made[k] for k in state}
            put.add(made, {k: v for k, v in self.axes.items() if v}, done, valid)
            last = {k: made[k] for k, v in self.axes.items() if not v}
            done = done + valid
        return {k: v for k, v in before.items() if k not in inner} | last | put.whole


def junk(state: Any, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    """A state before the first position: caches hold anything, the others zeros."""
    shape = tuple(sizes.get(str(d), d.value) for d in state.type.shape)
    if state.kind not in ("append", "ring"):
        return np.zeros(shape, {"int64": np.int64, "bool": np.bool_}.get(state.type.dtype, np.float32))
    return rng.normal(size=shape).astype(np.float32) if state.type.dtype == "float" else rng.integers(0, 2, shape).astype(
        np.int64 if state.type.dtype == "int64" else np.bool_)


def fitted(graph: Any, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The module of a graph with those of the parameters that it has."""
    module = build(graph, seed=0)
    module.load_state_dict({name: state[name] for name in module.state_dict()})
    return module.eval()


def call(module: torch.nn.Module, graph: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name. Inputs go by position, those that are not given are absent."""
    with torch.no_grad():
        made = module(*(None if arrays.get(name) is None else torch.from_numpy(arrays[name]) for name in arguments(graph)))
    named = made if isinstance(made, dict) else {graph.root.outputs[0][0]: made}
    return {k: v.detach().numpy() for k, v in named.items()}


def run_decoder(opened: Any, arrays: dict[str, np.ndarray], length: int, way: str, seed: int = 0,
                capacity: int = 8) -> tuple[dict[str, np.ndarray], Any]:
    """The whole outputs of an artifact, put together, and its state at the end."""
    stream, rng = opened.stream, np.random.default_rng(seed)
    rows = arrays[stream.chunk[0]].shape[0]
    prefix = opened.manifest.prefix
    names = {x.name for x in opened._prefix.inputs} if prefix else set()
    running = opened.start(rows, capacity=capacity, **{k: arrays[k] for k in names if k in arrays})
    put, done, last = Put(length, {}), np.zeros(rows, int), {}
    axes = {x.name: tuple(k for k, d in enumerate(x.shape) if d in ("N", "C")) for x in opened.outputs}
    for valid in schedule(way, rows, length, seed):
        n = max(1, int(valid.max()))
        made = running.step(valid, **{name: piece(arrays[name], done, valid, n, rng) for name in stream.chunk})
        put.add(made, {k: v for k, v in axes.items() if v}, done, valid)
        last = {k: made[k] for k, v in axes.items() if not v}
        done = done + valid
    return running.still | last | put.whole, running
