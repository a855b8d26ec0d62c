"""CPU latency of whole models, every contender in turn within each round: our ONNX file, torch's exports of our PyTorch module
at opset 20 and 23, and PyTorch eager. The module and the weights are the same, so the outputs must be too."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nnspec
import numpy as np
import onnxruntime as ort
import torch
from nnspec.backends.onnx import emit, write
from nnspec.runtime.session import SLOWER_ON_CPU

MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gpt2": ({"layers": 4, "vocab": 5000}, ("tokens",)),
    "bert-base": ({"layers": 4, "vocab": 5000}, ("tokens", "segments")),
    "transformer-base": ({"layers": 2, "vocab": 5000}, ("source", "target")),
    "additive-seq2seq": ({"source_vocab": 3000, "target_vocab": 3000, "embed": 256, "hidden": 256, "align": 256},
                         ("source", "source_length", "target")),
}
SHAPES = [(1, 16), (1, 128), (1, 512), (8, 16), (8, 128)]
ROUNDS = 9


def compare_all() -> Iterator[tuple[str, float]]:
    """(what, our time / the best other time) for each model and shape; prints the table behind each ratio."""
    for name, (sizes, inputs) in MODELS.items():
        known = {k: v for k, v in sizes.items() if k in nnspec.load(name).graph.sizes}
        model = nnspec.load(name, known)
        with tempfile.TemporaryDirectory() as scratch:
            runs = contenders(model, inputs, Path(scratch))
            for batch, length in SHAPES:
                if name == "additive-seq2seq" and length > 128:
                    continue
                feeds = arrays(model, inputs, batch, length)
                times = rounds(runs, feeds)
                best = min(t for who, t in times.items() if who != "nnspec")
                print(f"    {name} B={batch} S={length}: " + ", ".join(f"{who} {t * 1e3:.2f} ms" for who, t in times.items()))
                yield f"{name} B={batch} S={length}", times["nnspec"] / best


def arrays(model: nnspec.Model, inputs: tuple[str, ...], batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for a in model.graph.root.arguments:
        if a.name in inputs:
            ids = rng.integers(0, 2 if a.name == "segments" else 2900, (batch, length))
            made[a.name] = np.full(batch, length) if len(a.type.shape) == 1 else ids
    return made


def contenders(model: nnspec.Model, inputs: tuple[str, ...], folder: Path) -> dict[str, Callable[[dict[str, np.ndarray]], Any]]:
    module = model.module(seed=0)
    state = module.state_dict()
    absent = [a.name for a in model.graph.root.arguments if a.type.optional and a.name not in inputs]
    write(emit(model.lowered, "ort-cpu", "float32", absent), folder / "ours", lambda p: state[p].numpy())
    runs = {"nnspec": session(folder / "ours" / "model.onnx", SLOWER_ON_CPU)}       # as nnspec.runtime opens it
    example = {k: torch.from_numpy(v) for k, v in arrays(model, inputs, 2, 16).items()}
    for opset in (20, 23):
        path = folder / f"torch{opset}.onnx"
        try:
            torch.onnx.export(module, (), str(path), kwargs=example, dynamo=True, opset_version=opset, verbose=False,
                              dynamic_shapes={k: {i: torch.export.Dim.DYNAMIC for i in range(v.dim())} for k, v in example.items()})
            runs[f"torch opset {opset}"] = session(path)
        except Exception as failed:
            print(f"    torch.onnx.export at opset {opset} failed: {type(failed).__name__}")
    runs["eager"] = lambda feeds: eager(module, feeds)
    return runs


def session(path: Path, without: list[str] | None = None) -> Callable[[dict[str, np.ndarray]], Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    made = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=without)
    names = [i.name for i in made.get_inputs()]
    return lambda feeds: made.run(None, dict(zip(names, feeds.values(), strict=True)) if set(names) != set(feeds) else feeds)


def eager(module: torch.nn.Module, feeds: dict[str, np.ndarray]) -> Any:
    with torch.inference_mode():
        return module(**{k: torch.from_numpy(v) for k, v in feeds.items()})


def rounds(runs: dict[str, Callable[[dict[str, np.ndarray]], Any]], feeds: dict[str, np.ndarray]) -> dict[str, float]:
    """Median seconds of each; who goes first changes from round to round, since each finds the cores as the last left them."""
    times: dict[str, list[float]] = {who: [] for who in runs}
    order = list(runs.items())
    for k in range(ROUNDS + 1):
        order = [*order[1:], order[0]] if k % 2 else order[::-1]
        for who, run in order:
            start = time.perf_counter()
            run(feeds)
            if k > 0:
                times[who].append(time.perf_counter() - start)
    return {who: statistics.median(t) for who, t in times.items()}
