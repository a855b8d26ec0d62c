"""The certificate of a step form: chunks of every kind against the whole PyTorch module, position by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.graph import Graph
from ..printing import progress
from ..runtime.data import random_inputs
from ..runtime.decoder import Decoder, decoder
from ..runtime.errors import ArtifactError
from ..runtime.manifest import Input, Manifest, Output, read
from .certify import TOLERANCES, Case, Findings, reference, sentence

CAPACITY = "C"                     # the axis of outputs over every position so far
WAYS = ("one chunk", "one by one", "ragged chunks")


def certify_step(folder: Path, module: Any, graph: Graph, arguments: Sequence[str], whole: Sequence[Input], dtype: str) -> dict[str, Any]:
    """Run both on the same inputs; returns what goes into the manifest.

    `module` is the whole model in float32 on the CPU, `arguments` its inputs in order, `whole` what they must satisfy. Each case is run
    in one chunk, position by position, and in random chunks that differ from row to row.
    """
    (rtol, atol), found = TOLERANCES[dtype], Findings()
    manifest, provider, cases = read(folder), "", []
    try:
        opened = decoder(folder)
        provider = opened.provider
        cases = list(_cases(manifest, whole))
        for k, (case, way) in enumerate(progress([(c, w) for c in cases for w in WAYS], "certifying")):
            arrays = _inputs(manifest, whole, case, k)
            try:
                want = reference(module, arguments, arrays, replace(manifest, outputs=_outputs(graph)))
                got = run(opened, arrays, case.sizes[manifest.stream.along], way, seed=k)  # type: ignore[union-attr]
            except ArtifactError as error:
                found.wrong.append(f"{case}, {way}: {sentence(error)}")
            else:
                want = {name: want[name] for name in got}
                found.add(replace(case, way=way), got, want, rtol, atol)
    except ArtifactError as error:
        found.wrong.append(sentence(error))
    differences = found.differences()
    return {"status": "failed" if differences else "passed", "against": "PyTorch float32, whole sequences", "on": provider,
            "cases": len(cases) * len(WAYS), "rtol": rtol, "atol": atol, **found.worst, "largest": str(cases[-1]) if cases else "",
            **({"differences": differences[:20]} if differences else {}), **({"nan": [*found.nan.values()]} if found.nan else {})}


def run(opened: Decoder, arrays: Mapping[str, np.ndarray], length: int, way: str, seed: int) -> dict[str, np.ndarray]:
    """What the step form gives for whole sequences, put together from its chunks."""
    stream, random = opened.stream, np.random.default_rng(seed)
    rows = len(arrays[stream.chunk[0]])
    before = {k: v for k, v in arrays.items() if k not in (*stream.chunk, *stream.dropped)}
    running = opened.start(rows, capacity=8, **(before if opened.manifest.prefix else {}))
    whole: dict[str, np.ndarray] = {}
    done = np.zeros(rows, int)
    while (done < length).any():
        left = length - done
        valid = {"one chunk": left, "one by one": np.minimum(left, 1)}.get(way)
        valid = random.integers(0, np.minimum(left, 3) + 1) if valid is None else valid
        size = max(1, int(valid.max()))
        out = running.step(valid, **{name: _chunk(arrays[name], done, valid, size) for name in stream.chunk})
        for x in opened.outputs:
            if "N" in x.shape:
                _put(whole, x, out[x.name], (done, valid), length)
            else:                       # a final state: the last one stays
                whole[x.name] = out[x.name]
        done = done + valid
    return running.still | whole


def _put(whole: dict[str, np.ndarray], output: Output, chunk: np.ndarray, rows: tuple[np.ndarray, np.ndarray], length: int) -> None:
    """Put what a chunk gives into its place in the whole output; an axis over every position so far gets the length of the whole."""
    axis = output.shape.index("N")
    for k, size in enumerate(output.shape):
        if size == CAPACITY:
            chunk = np.take(chunk, np.arange(min(length, chunk.shape[k])), k)
            chunk = np.pad(chunk, [(0, length - n if a == k else 0) for a, n in enumerate(chunk.shape)])
    full = whole.setdefault(output.name, np.full((*chunk.shape[:axis], length, *chunk.shape[axis + 1:]), np.nan, np.float32))
    for row, (at, n) in enumerate(zip(*rows, strict=True)):
        np.moveaxis(full[row], axis - 1, 0)[at:at + n] = np.moveaxis(chunk[row], axis - 1, 0)[:n]


def _chunk(array: np.ndarray, done: np.ndarray, valid: np.ndarray, size: int) -> np.ndarray:
    """The next entries of each row, filled up with its last one."""
    at = np.minimum(done[:, None] + np.minimum(np.arange(size), np.maximum(valid[:, None] - 1, 0)), array.shape[1] - 1)
    return array[np.arange(len(array))[:, None], at]


def _cases(manifest: Manifest, whole: Sequence[Input]) -> Iterator[Case]:
    """Batch 1 and 3, and lengths of the stream; other dimensions get neighbouring sizes."""
    stream = manifest.stream
    assert stream is not None
    names = list(dict.fromkeys(d.name for x in whole for d in x.dimensions if d.name))
    batch, others = names[0], [n for n in names[1:] if n != stream.along]
    bounds = {k: v for x in whole for k, v in x.bounds.items()}
    least = {k: v for x in whole for k, v in x.least.items()}
    seen = set()
    for rows, length in ((1, 1), (3, 2), (1, 7), (3, 7), (3, 33)):
        sizes = {batch: rows, stream.along: min(length, stream.limit or length)}
        sizes |= {n: max(least.get(n, 1), min(length + k + 1, bounds.get(n, length + k + 1))) for k, n in enumerate(others)}
        if str(sizes) not in seen:
            seen.add(str(sizes))
            yield Case(sizes, False)


def _inputs(manifest: Manifest, whole: Sequence[Input], case: Case, seed: int) -> dict[str, np.ndarray]:
    """Random inputs of the whole model, without those that the step form drops."""
    dropped = manifest.stream.dropped if manifest.stream else ()
    kept = tuple(x for x in whole if x.name not in dropped or not x.optional)
    arrays = random_inputs(replace(manifest, inputs=kept), case.sizes, seed)
    for x in kept:
        if x.name in dropped:               # a length that must be given: whole rows
            arrays[x.name][:] = case.sizes[manifest.stream.along]  # type: ignore[union-attr]
    return arrays


def _outputs(graph: Graph) -> tuple[Output, ...]:
    return tuple(Output(name, "float32", tuple(str(d) for d in graph.root.type(v).shape)) for name, v in graph.root.outputs)

