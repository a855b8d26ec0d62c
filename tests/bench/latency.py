"""CPU latency of whole models, every contender in turn within each round: our ONNX file, torch's exports of our PyTorch module at
opset 20 and 23, the first of them through ONNX Runtime's own optimizer of transformers, inductor, and PyTorch eager. Module and
weights are the same, so the outputs must be too: that is checked before anything is timed."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nnspec
import numpy as np
import onnxruntime as ort
import torch
from nnspec.backends.onnx import emit, write
from nnspec.runtime.session import SLOWER_ON_CPU

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], list[np.ndarray]]       # the outputs in the spec's order
SHAPES = [(batch, length) for batch in (1, 8) for length in (16, 128, 512)]
QUICK = [(1, 16), (1, 128), (8, 128)]
SECONDS, ROUNDS = 5.0, (3, 9)       # of one point: as many rounds as fit, within these
MINUTES = 8.0                       # of all models, the same for each: points that come later are left out
IDS = 2900                          # below every vocabulary here


@dataclass(frozen=True)
class Measured:
    """A library spec at sizes that a small machine runs, the inputs it is given, and what the public optimizer calls its kind."""

    spec: str
    sizes: Mapping[str, int]
    inputs: tuple[str, ...]
    kind: str | None = None
    loops: bool = False             # over steps in Python, which exporters and inductor unroll
    most: int = 8 * 512             # tokens of its largest point


MODELS = {
    "gpt2": Measured("gpt2", {"layers": 4, "vocab": 5000}, ("tokens",), "gpt2"),
    "bert-base": Measured("bert-base", {"layers": 4, "vocab": 5000}, ("tokens", "segments"), "bert"),
    "transformer-base": Measured("transformer-base", {"layers": 2, "vocab": 5000}, ("source", "target")),
    "llama-like": Measured("llama-3-8b", {"width": 768, "layers": 12, "heads": 12, "kv_heads": 4, "hidden": 2048, "vocab": 16000},
                           ("tokens",), most=1024),                                            # 100M, 24M of them embeddings
    "additive-seq2seq": Measured(
        "additive-seq2seq", {"source_vocab": 3000, "target_vocab": 3000, "embed": 256, "hidden": 256, "align": 256},
        ("source", "source_length", "target"), loops=True, most=1024),
}


def compare_all(names: list[str], quick: bool = False) -> Iterator[tuple[str, dict[str, float]]]:
    """(model and shape, our time / that of each other contender); prints the times behind the ratios."""
    for name in names:
        measured = MODELS[name]
        model = nnspec.load(measured.spec, measured.sizes)
        print(f"  {name}: {model.parameters / 1e6:.1f} million parameters", flush=True)
        end = time.perf_counter() + 60 * MINUTES / len(names)
        with tempfile.TemporaryDirectory() as scratch:
            runs = contenders(model, measured, Path(scratch))
            for batch, length in QUICK if quick else SHAPES:
                point = f"{name} B={batch} S={length}"
                if batch * length > measured.most or measured.loops and length > 128:
                    continue
                if time.perf_counter() > end:
                    print(f"    {point} is left out: the time of this model is up", flush=True)
                    continue
                times = rounds(runs, arrays(model, measured.inputs, batch, length))
                print(f"    {point}: " + ", ".join(f"{who} {t * 1e3:.2f} ms" for who, t in times.items()), flush=True)
                yield point, {who: times["nnspec"] / t for who, t in times.items() if who != "nnspec"}
        torch.compiler.reset()


def arrays(model: nnspec.Model, inputs: tuple[str, ...], batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    for a in model.graph.root.arguments:
        if a.name in inputs:
            ids = rng.integers(0, 2 if a.name == "segments" else IDS, (batch, length))
            made[a.name] = np.full(batch, length) if len(a.type.shape) == 1 else ids
    return made


def contenders(model: nnspec.Model, measured: Measured, folder: Path) -> dict[str, Run]:
    """By name; what cannot be made here is left out with a line that says why."""
    module = model.module(seed=0)
    state = module.state_dict()
    names = [n for n, _ in model.graph.root.outputs]
    absent = [a.name for a in model.graph.root.arguments if a.type.optional and a.name not in measured.inputs]
    write(emit(model.lowered, "ort-cpu", "float32", absent), folder / "ours", lambda p: state[p].numpy())
    runs = {"nnspec": session(folder / "ours" / "model.onnx", SLOWER_ON_CPU)}       # as nnspec.runtime opens it
    example = {k: torch.from_numpy(v) for k, v in arrays(model, measured.inputs, 2, 16).items()}

    def attempt(who: str, make: Callable[[], Run]) -> None:
        try:
            runs[who] = make()
        except Exception as failed:         # whatever an exporter or a compiler raises
            print(f"    {who} is left out: {type(failed).__name__}: {str(failed).strip().partition(chr(10))[0][:160]}", flush=True)

    for opset in (20, 23):
        attempt(f"torch opset {opset}", lambda opset=opset: session(exported(module, example, folder / f"torch{opset}.onnx", opset)))
    if measured.kind:
        attempt("ORT optimizer", lambda: session(optimized(folder / "torch20.onnx", measured.kind, model.graph.sizes)))
    if measured.loops:
        print("    inductor is left out: it unrolls loops over steps, for each length anew")
    else:
        attempt("inductor", lambda: compiled(module, example, names))
    runs["eager"] = lambda feeds: called(module, feeds, names)
    return runs


def exported(module: torch.nn.Module, example: dict[str, torch.Tensor], path: Path, opset: int) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(module, (), str(path), kwargs=example, dynamo=True, opset_version=opset, verbose=False,
                          dynamic_shapes={k: {i: torch.export.Dim.DYNAMIC for i in range(v.dim())} for k, v in example.items()})
    return path


def optimized(path: Path, kind: str, sizes: Mapping[str, Any]) -> Path:
    """The file after onnxruntime.transformers.optimizer, which is told heads and width; prints what it fused."""
    from onnxruntime.transformers import optimizer
    made = optimizer.optimize_model(str(path), model_type=kind, num_heads=sizes["heads"], hidden_size=sizes["width"], opt_level=0)
    fused = {op: n for op, n in made.get_fused_operator_statistics().items() if n}
    print(f"    ORT optimizer fuses {', '.join(f'{n} {op}' for op, n in fused.items()) or 'nothing'}", flush=True)
    out = path.with_suffix(".optimized.onnx")
    made.save_model_to_file(str(out))
    return out


def compiled(module: torch.nn.Module, example: dict[str, torch.Tensor], names: list[str]) -> Run:
    """torch.compile for free sizes; compiling needs a C++ compiler, and is done here and at the first batch of one row."""
    made = torch.compile(module, dynamic=True)
    called(made, {k: v.numpy() for k, v in example.items()}, names)
    return lambda feeds: called(made, feeds, names)


def session(path: Path, without: list[str] | None = None) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    made = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=without)
    names = [i.name for i in made.get_inputs()]
    return lambda feeds: made.run(None, dict(zip(names, feeds.values(), strict=True)) if set(names) != set(feeds) else feeds)


def called(module: Callable[..., Any], feeds: Feeds, names: list[str]) -> list[np.ndarray]:
    with torch.no_grad():
        made = module(**{k: torch.from_numpy(v) for k, v in feeds.items()})
    return [made[n].numpy() for n in names] if isinstance(made, dict) else [made.numpy()]


def rounds(runs: dict[str, Run], feeds: Feeds) -> dict[str, float]:
    """Median seconds of each; who goes first changes from round to round, since each finds the cores as the last left them.

    The first round warms up and is held against ours; a contender that fails in it is left out of this point.
    """
    first, outputs = time.perf_counter(), {}
    for who, run in runs.items():
        try:
            outputs[who] = run(feeds)
        except Exception as failed:         # a size that its graph does not take
            print(f"    {who} is left out here: {str(failed).strip().partition(chr(10))[0][:160]}", flush=True)
    for who, theirs in outputs.items():
        for a, b in zip(outputs["nnspec"], theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-3 * float(np.abs(b).max()), rtol=0, err_msg=f"nnspec and {who} differ")
    order, times = [(who, runs[who]) for who in outputs], {who: [] for who in outputs}
    start = time.perf_counter()
    for _, run in order:
        run(feeds)
    each = time.perf_counter() - start
    for k in range(min(max(int((SECONDS - (start - first)) / each), ROUNDS[0]), ROUNDS[1])):
        order = [*order[1:], order[0]] if k % 2 else order[::-1]
        for who, run in order:
            start = time.perf_counter()
            run(feeds)
            times[who].append(time.perf_counter() - start)
    return {who: statistics.median(t) for who, t in times.items()}
