"""Export for Triton Inference Server: a model in a repository, `NAME/config.pbtxt` beside `NAME/1/` with an artifact, for its backend
`onnxruntime`.

The server puts the rows of several requests into one run where every input and output has rows on its first axis and a run shows that
rows do not change each other. Otherwise a request is a run, with whole shapes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import runtime
from ..backends.onnx.write import MODEL, alone, staging
from ..lang.diagnostic import Diagnostics, diagnostic
from ..runtime.compare import compare
from ..runtime.data import random_inputs
from ..runtime.manifest import Input, Manifest, Output
from .certify import TOLERANCES
from .plan import Plan

CONFIG, VERSION = "config.pbtxt", "1"
MAX_BATCH = 32
ROWS = 3                                # of the run that is compared with runs of one row
TYPES = {"int64": "TYPE_INT64", "int32": "TYPE_INT32", "bool": "TYPE_BOOL", "float32": "TYPE_FP32", "float16": "TYPE_FP16"}
KINDS = {"ort-cpu": "KIND_CPU", "ort-cuda": "KIND_GPU"}

Check = Callable[[Path], Mapping[str, Any]] | None


def place(repository: Path, name: str, plan: Plan, check: Check, files: Callable[[Path, Check], Manifest]) -> Manifest:
    """Write the model `name` into the repository, or in the place of the one that is there; other models and versions stay.

    `files` writes an artifact into a folder; returns its manifest. A failure leaves the repository as it was. Raises Diagnostics.
    """
    if name in ("", ".", "..") or set(name) & set("/\\"):
        raise Diagnostics([diagnostic("bad-command", f"Triton names a model as its folder, and `{name}` names none",
                                      help="give the spec another `name:`")])
    folder = repository / name
    with staging(folder) as staged:
        manifest = files(staged / VERSION, check)
        limit = batch(staged / VERSION, manifest, plan.max_batch or MAX_BATCH)
        (staged / CONFIG).write_text(config(name, manifest, plan.target, limit), encoding="utf-8")
        with alone(folder):
            _swap(staged, folder, (VERSION, CONFIG))
    return manifest


def _swap(staged: Path, folder: Path, names: Sequence[str]) -> None:
    """Move files and folders into their places, what was there out of them; all of it back when one cannot be moved."""
    moved: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        os.rename(source, target)
        moved.append((source, target))
    try:
        for name in names:
            if (folder / name).exists():
                move(folder / name, staged / f"{name}.old")
            move(staged / name, folder / name)
    except BaseException:
        for source, target in reversed(moved):
            os.rename(target, source)
        raise


def batch(folder: Path, manifest: Manifest, most: int) -> int:
    """The largest batch that requests may be put together to; 0 where they may not."""
    named: list[Input | Output] = [*manifest.inputs, *manifest.outputs]
    axes = {x.shape[0] if x.shape else None for x in named}
    rows = axes.pop()
    if axes or not isinstance(rows, str) or not rows.isidentifier():
        return 0
    if any(rows in _symbols(entry) for x in named for entry in x.shape[1:]) or manifest.least.get(rows, 1) > 1:
        return 0
    bound = min([most, *(x.bounds[rows] for x in manifest.inputs if rows in x.bounds)])
    return bound if _independent(folder, manifest, rows, min(ROWS, bound)) else 0


def _symbols(entry: int | str) -> set[str]:
    return set() if isinstance(entry, int) else set("".join(c if c.isalnum() or c == "_" else " " for c in entry).split())


def _independent(folder: Path, manifest: Manifest, name: str, rows: int) -> bool:
    """Whether a run of several rows gives what runs of one row give."""
    artifact = runtime.open(folder)
    arrays = random_inputs(manifest, {name: rows}, seed=0)
    together = artifact(**arrays)
    alone = [artifact(**{k: v[row:row + 1] for k, v in arrays.items()}) for row in range(rows)]
    rtol, atol = TOLERANCES[manifest.dtype]
    if any(len(v) != (rows if a is together else 1) for a in (together, *alone) for v in a.values()):
        return False
    return not compare({k: np.concatenate([a[k] for a in alone]) for k in together}, together, rtol, atol)


def config(name: str, manifest: Manifest, target: str, limit: int) -> str:
    """The text of config.pbtxt. With a `limit` the first axis of every shape is left to the server."""
    lines = [f"name: {_text(name)}", 'backend: "onnxruntime"', f"default_model_filename: {_text(MODEL)}", f"max_batch_size: {limit}"]
    for kind, tensors in (("input", manifest.inputs), ("output", manifest.outputs)):
        for x in tensors:
            lines += [f"{kind} {{", *_tensor(x, bool(limit)), "}"]
    lines += ["instance_group {", "  count: 1", f"  kind: {KINDS[target]}", "}"]
    return "\n".join([*lines, *(["dynamic_batching {", "}"] if limit else [])]) + "\n"


def _tensor(x: Input | Output, batched: bool) -> list[str]:
    """Optional inputs are as needed as others: the file has them, and the server fills nothing in."""
    dims = [d if isinstance(d, int) else -1 for d in (x.shape[1:] if batched else x.shape)]
    held = x.held if isinstance(x, Output) else x.name
    lines = [f"  name: {_text(held)}", f"  data_type: {TYPES[x.dtype]}", *(f"  dims: {d}" for d in dims or [1])]
    return lines if dims else [*lines, "  reshape {", "  }"]


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
