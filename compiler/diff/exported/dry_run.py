"""Where a session of ONNX Runtime on CUDA places the nodes of both sides, and its attention kernels: from a dry run, or a run on a GPU.

Weights do not matter to either, so those of specs are zeros.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...ir.parameters import count
from ...pipeline import Compiled
from ...prove import FUSED, Found, Missing, beyond_sizes, cases_of, observe, ready
from ...runtime.manifest import FULL, NAME, STEP, read
from .providers import CPU, Placed

LARGEST = 400_000_000           # parameters of a spec that is run
FLOATS = {"float": "float32", "double": "float64"}


class NoRun(Exception):
    """Why a side was not run."""


@dataclass(frozen=True)
class Seen:
    """What one side does: nodes left to the CPU that do more than compute sizes, the attention kernel of each site (of several cases, all),
    and how that was found."""

    placed: tuple[Placed, ...]
    kernels: Mapping[str, str]
    how: str


def seen(given: str | None, compiled: Compiled, target: str, dtype: str) -> Seen:
    """One side: the exported model at `given`, or the spec as it would be exported. Raises `NoRun`, and Diagnostics as an export does."""
    try:
        ready()
        if given is not None:
            return _artifact(Path(given) if Path(given).is_dir() else Path(given).parent, given)
        if count(compiled.graph) > LARGEST:
            raise NoRun(f"a model of {count(compiled.graph):,} parameters is not run")
        from ...backends.onnx import emit, write
        with tempfile.TemporaryDirectory() as folder:
            made = emit(compiled.lowered(), target, dtype)
            write(made, folder, lambda path: np.zeros(made.shapes[path], np.float32))
            return _artifact(Path(folder), "it")
    except Missing as why:
        raise NoRun(str(why)) from None


def _artifact(folder: Path, name: str) -> Seen:
    manifest = read(folder) if (folder / NAME).is_file() else None
    if manifest is None or manifest.form not in (FULL, STEP) or Path(name).suffix == ".onnx" and Path(name).name != manifest.model.file:
        raise NoRun(f"`{name}` is no model with a manifest and weights")
    found = observe(folder, cases_of(manifest))
    if found.error:
        raise NoRun(found.error)
    return Seen(_placed(found), _kernels(found), f"{found.how}, {found.runtime}")


def _placed(found: Found) -> tuple[Placed, ...]:
    """The nodes on the CPU, each once."""
    out: dict[str, Placed] = {}
    for event in found.on_cpu:
        if kinds := [FLOATS.get(kind, kind) for kind, _ in beyond_sizes(event)]:
            path = event["node"].rpartition("/")[0] or event["node"]
            out.setdefault(event["node"], Placed(path, event["op"], ", ".join(dict.fromkeys(kinds)), CPU))
    return tuple(out.values())


def _kernels(found: Found) -> dict[str, str]:
    out: dict[str, dict[str, None]] = {}
    for case in found.kernels:
        for node, kernel in case.items():
            out.setdefault(node.rpartition("/")[0] or node, {})[FUSED.get(kernel, kernel)] = None
    return {path: " and ".join(kernels) for path, kernels in out.items()}
