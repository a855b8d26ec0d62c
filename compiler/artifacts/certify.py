"""The certificate: an exported folder against the PyTorch module, over a sweep of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import runtime
from ..ir.graph import Graph, walk
from ..printing import progress
from ..runtime.compare import compare, measure, share_beyond
from ..runtime.data import random_inputs
from ..runtime.manifest import Manifest, read
from .overflow import first_overflow

SWEEP = 256
TOLERANCES = {"float32": (1e-4, 1e-5), "float16": (2e-2, 2e-3)}       # |got - want| <= atol + rtol * max|want|
FLIPPED = 0.02                  # share of numbers that may differ in half precision where the model chooses: near ties go either way
CHOICES = frozenset({"top_k", "argmax"})


@dataclass(frozen=True)
class Case:
    """One comparison: sizes, and which row of lengths and masks is emptied."""

    sizes: Mapping[str, int]
    empty: bool
    without: tuple[str, ...] = ()
    way: str = ""                               # how a step form was run

    def __str__(self) -> str:
        left_out = f" without {' and '.join(self.without)}" if self.without else ""
        return " ".join(f"{k}={v}" for k, v in self.sizes.items()) + (" with an empty row" if self.empty else "") + left_out + (
            f" in {self.way}" if self.way else "")


@dataclass
class Findings:
    """What the cases showed: differences, the largest one, and which outputs were ever a number."""

    worst: dict[str, Any] = field(default_factory=lambda: {"max_abs": 0.0, "max_rel": 0.0})
    wrong: list[str] = field(default_factory=list)
    nan: dict[str, str] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    chooses: bool = False                       # in half precision, by scores that may tie
    flipped: float = 0.0                        # the largest share of numbers that another choice changed

    def add(self, case: Case, got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], rtol: float, atol: float) -> None:
        for d in compare(got, want, rtol, atol):
            share = share_beyond(got[d.name], want[d.name], rtol, atol) if d.kind == "values" and self.chooses else 1.0
            if share > FLIPPED:
                self.wrong.append(f"{case}: {d.text}")
            else:
                self.flipped = max(self.flipped, share)
        for name, right in want.items():
            if name in got and got[name].shape == right.shape and got[name].dtype.kind == right.dtype.kind:
                found = measure(got[name], right)
                if found.max_abs >= self.worst["max_abs"]:
                    self.worst |= {"max_abs": found.max_abs, "max_rel": found.max_rel, "output": name, "case": str(case)}
            if np.isnan(right).any():
                self.nan.setdefault(name, f"`{name}` holds NaN in PyTorch too, at {case}")
            if np.isfinite(right).any() or not right.size:
                self.numbers.add(name)

    def differences(self) -> list[str]:
        return self.wrong + [f"`{name}` was not a finite number in any case" for name in self.nan if name not in self.numbers]


def chooses(graph: Graph) -> bool:
    """Whether a model picks entries by their scores, as routers do."""
    return any(getattr(node.op, "name", "") in CHOICES for _, _, node in walk(graph.root))


def certify(folder: Path, module: Any, arguments: Sequence[str], dtype: str, full: bool, choosing: bool = False) -> dict[str, Any]:
    """Run both on the same inputs; returns what goes into the manifest.

    `module` is in float32 on the CPU, `arguments` the inputs in the order of its `forward`. A file that does not load or run is a
    difference. NaN on both sides agrees, but is told; an output that was never a number in any case proves nothing, and fails. The
    first case in which float16 differs, or else one of middle size, is run again node by node to find what overflows: CPUs compute in
    float32 between some nodes, so what differs nowhere here may do so on CUDA, and `overflow` tells it. With `choosing` a share of FLIPPED
    of the numbers may differ in half precision, and `flipped` says how many do.
    """
    (rtol, atol), overflow, watched = TOLERANCES[dtype], [], None
    manifest, found, provider = read(folder), Findings(chooses=choosing and dtype != "float32"), ""
    cases = list(sweep(manifest, full))
    try:
        artifact = runtime.open(folder)
        provider = artifact.provider
        for k, case in enumerate(progress(cases, "certifying")):
            arrays = inputs(manifest, case, seed=k)
            try:
                got, want = artifact(**arrays), reference(module, arguments, arrays, manifest)
            except runtime.ArtifactError as error:
                found.wrong.append(f"{case}: {sentence(error)}")
            except Exception as error:      # whatever a module raises
                found.wrong.append(f"{case}: PyTorch fails: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
            else:
                agreed = not found.wrong
                found.add(case, got, want, rtol, atol)
                if agreed and found.wrong or not found.wrong and k == len(cases) // 2:
                    watched = case, arrays
        overflow = [f"{watched[0]}: {t}" for t in _traced(artifact, watched[1])] if dtype == "float16" and watched else []
    except runtime.ArtifactError as error:
        found.wrong.append(sentence(error))
    differences = found.differences()
    differences = [*overflow, *differences] if differences else []
    status = "failed" if differences else "passed"
    return {"status": status, "against": "PyTorch float32", "on": provider, "cases": len(cases), "rtol": rtol, "atol": atol,
            **found.worst, "largest": str(cases[-1]), **({"differences": differences[:20]} if differences else {}),
            **({"flipped": found.flipped} if found.flipped else {}),
            **({"overflow": overflow[0]} if overflow and not differences else {}), **({"nan": [*found.nan.values()]} if found.nan else {})}


def _traced(artifact: runtime.Artifact, arrays: Mapping[str, np.ndarray]) -> list[str]:
    try:
        overflow = first_overflow(artifact, arrays)
    except Exception as error:          # whatever ONNX Runtime raises
        return [f"it cannot be run node by node to find what overflows: {str(error).partition(chr(10))[0]}"]
    return [overflow] if overflow else []


def sentence(error: runtime.ArtifactError) -> str:
    """What went wrong, and all that is known about it, on one line."""
    return "; ".join((error.headline, *error.notes))


def sweep(manifest: Manifest, full: bool) -> Iterator[Case]:
    """Batch 1 and 3; lengths 1, 2, an odd one and min(maximum, 256), or the maximum; padded and empty rows; optional inputs left out.

    The first free dimension is the batch; the others get neighbouring sizes, so that none hides behind another.
    """
    batch, *lengths = [*manifest.free_names] or [""]
    bounds: dict[str, int] = {}
    scale: dict[str, int] = {}
    for x in manifest.inputs:
        bounds |= x.bounds
        for d in x.dimensions:
            if d.name is not None:
                scale[d.name] = max(scale.get(d.name, 1), d.scale)
    masked = any(x.length_of or (x.dtype == "bool" and len(x.shape) > 1) for x in manifest.inputs)
    least, without = manifest.least, tuple(x.name for x in manifest.inputs if x.neutral)
    seen = set()
    for rows, n, empty in [(1, 1, False), (3, 2, False), (1, 7, False), (3, 7, False), (3, 7, True), (1, SWEEP, False), (3, SWEEP, False)]:
        sizes = {batch: min(max(rows, least.get(batch, 1)), bounds.get(batch, rows))} if batch else {}
        for k, name in enumerate(lengths):
            top = bounds.get(name, max(SWEEP, 1) if n == SWEEP else n + k)
            wanted = (bounds.get(name, SWEEP) if full else SWEEP) if n == SWEEP else n + k
            sizes[name] = max(1, least.get(name, 1), min(wanted // scale.get(name, 1) if n == SWEEP else wanted, top))
        cases = [Case(sizes, empty and masked)]
        if without and (rows, n, empty) == (3, 7, False):
            cases.append(Case(sizes, False, without))
        for case in cases:
            if str(case) not in seen:
                seen.add(str(case))
                yield case


def inputs(manifest: Manifest, case: Case, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; an empty row has length 0 and a mask that is False throughout."""
    arrays = random_inputs(manifest, case.sizes, seed)
    if case.empty:
        for x in manifest.inputs:
            if x.length_of or (x.dtype == "bool" and len(x.shape) > 1):
                arrays[x.name][-1] = 0
    return {name: array for name, array in arrays.items() if name not in case.without}


def reference(module: Any, arguments: Sequence[str], arrays: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, np.ndarray]:
    """The module's outputs by name; inputs are given by position, as `forward` may spell their names differently."""
    import torch
    given = []
    for name in arguments:
        tensor = torch.from_numpy(np.asarray(arrays[name])) if name in arrays else None
        given.append(tensor.float() if tensor is not None and tensor.is_floating_point() else tensor)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            out = module(*given)
    finally:
        for part, mode in modes.items():
            part.training = mode
    named = out if isinstance(out, dict) else {manifest.outputs[0].name: out}
    return {name: value.detach().numpy() for name, value in named.items()}
