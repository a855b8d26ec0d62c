"""What claims are run with: PyTorch, and ONNX Runtime on the CPU. Both take parameters by path and give outputs by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...artifacts.export import arguments
from ...compare_paths import Place, expose, places
from ...ir.graph import Graph
from ...lang.diagnostic import Diagnostics
from ...runtime.errors import ArtifactError
from ...stages.hoist import hoist
from ...stages.simplify import simplify

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Graph, Arrays, Sequence[Arrays], str], list[dict[str, np.ndarray]]]
TORCH, ONNX = "PyTorch", "ONNX Runtime"
LOST = 1e30                     # the difference where one side alone is no finite number, which JSON cannot say


class NotRun(Exception):
    """Why an engine could not run a model."""


def run_torch(graph: Graph, state: Arrays, cases: Sequence[Arrays], dtype: str) -> list[dict[str, np.ndarray]]:
    """The outputs of the module of a graph, for each case of inputs."""
    import torch

    from ...backends.torch import build
    kind = getattr(torch, dtype)
    module = build(simplify(hoist(graph)), seed=0, dtype=kind)
    module.load_state_dict({path: torch.from_numpy(np.ascontiguousarray(array)) for path, array in state.items()})
    module.eval()
    return [_called(module, graph, arrays, kind) for arrays in cases]


def _called(module: Any, graph: Graph, arrays: Arrays, kind: Any) -> dict[str, np.ndarray]:
    import torch
    given = []
    for name in arguments(graph):
        tensor = torch.from_numpy(np.asarray(arrays[name])) if name in arrays else None
        given.append(tensor.to(kind) if tensor is not None and tensor.is_floating_point() else tensor)
    with torch.no_grad():
        out = module(*given)
    named = out if isinstance(out, dict) else {graph.root.outputs[0][0]: out}
    return {name: value.numpy() for name, value in named.items()}


def run_onnx(graph: Graph, state: Arrays, cases: Sequence[Arrays], dtype: str) -> list[dict[str, np.ndarray]]:
    """The outputs of the ONNX file of a graph, as it is exported for the CPU, for each case of inputs. Raises `NotRun`."""
    from ... import runtime
    from ...backends.onnx import emit, write
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = emit(simplify(hoist(graph)), "ort-cpu", dtype)
            write(made, folder, lambda path: state[path].astype(dtype))
            artifact = runtime.open(folder)
            names = {file: name for name, file in made.outputs.items()}
            taken = {x.name for x in artifact.inputs}
            given = [{n: a for n, a in arrays.items() if n in taken} for arrays in cases]
            return [{names.get(k, k): v for k, v in artifact(**arrays).items()} for arrays in given]
    except Diagnostics as wrong:
        raise NotRun(wrong.items[0].headline) from None
    except ArtifactError as wrong:
        raise NotRun(wrong.headline) from None


ENGINES: Mapping[str, Run] = {TORCH: run_torch, ONNX: run_onnx}


@dataclass(frozen=True)
class Difference:
    """Two sets of outputs over some cases: the largest difference of the output that differs most, and its largest number."""

    max_abs: float = 0.0
    scale: float = 0.0
    wrong: str = ""

    @property
    def max_rel(self) -> float:
        return self.max_abs / self.scale if self.scale else 0.0

    def within(self, tolerance: float) -> bool:
        """Whether it is at most `tolerance` of the largest number, and every output has the shape of before."""
        return self.max_abs <= tolerance * max(self.scale, 1e-30) and not self.wrong


def difference(before: Sequence[Arrays], after: Sequence[Arrays]) -> Difference:
    """The largest difference over the cases. Entries that only the longer side has are not compared."""
    worst: dict[str, tuple[float, float]] = {}
    wrong = ""
    for one, other in zip(before, after, strict=True):
        for name in one:
            if name not in other or one[name].dtype.kind != "f":
                continue
            a, b = one[name], other[name]
            if a.ndim != b.ndim or any(m > n for m, n in zip(a.shape, b.shape, strict=True)):
                wrong = f"`{name}` is {list(b.shape)}, and was {list(a.shape)}"
            if a.ndim == b.ndim:
                there = tuple(slice(0, min(n)) for n in zip(a.shape, b.shape, strict=True))
                now = _largest(a[there], b[there])
                worst[name] = (max(now[0], worst.get(name, now)[0]), max(now[1], worst.get(name, now)[1]))
    found = max(worst.values(), key=lambda w: w[0] / (w[1] or 1e-30), default=(0.0, 0.0))
    return Difference(*found, wrong)


def _largest(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The largest difference of two arrays of one shape, and the largest number of the first; NaN on both sides agrees."""
    if not a.size:
        return 0.0, 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(np.subtract(a, b, dtype=np.float64)))
    return float(np.nan_to_num(apart, nan=LOST, posinf=LOST).max()), float(np.nan_to_num(np.abs(a), posinf=0.0).max())


def diverging(before: Graph, after: Graph, states: tuple[Arrays, Arrays], arrays: Arrays, dtype: str, tolerance: float) -> str:
    """The first node of `after`, in the order in which they run, whose value is not that of the node of its path before; empty where no
    such node has another value of the same shape."""
    ours = {p.path: p for p in places(before) if not p.again}
    both: dict[Any, tuple[Place, Place]] = {}
    for p in places(after):
        if not p.again and p.path in ours and p.type.dtype == ours[p.path].type.dtype == "float":
            both.setdefault(p.key, (ours[p.path], p))
    if not both:
        return ""
    values = []
    for k, graph in enumerate((before, after)):
        grown, names = expose(graph, [pair[k] for pair in both.values()])
        (found,) = run_torch(grown, states[k], [arrays], dtype)
        values.append([found[n] for n in names])
    for (_, place), a, b in zip(both.values(), *values, strict=True):
        if a.shape == b.shape and not Difference(*_largest(a, b)).within(tolerance):
            return f"{place.path} ({(place.origin.chain or (place.origin.span,))[-1].place})"
    return ""
