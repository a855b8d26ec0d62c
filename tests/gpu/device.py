"""Whether a GPU runs here: a session says so, not the list of providers that ONNX Runtime was built with."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import nnspec
import pytest
import torch
from nnspec import runtime

SPEC = """
nnspec: 1
inputs: {x: "float[B, 3]"}
graph: {out: {op: linear, in: x, width: 3}}
outputs: {out: out}
"""


@cache
def missing() -> str | None:
    """Why values cannot be computed on a GPU here; None where they can."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "spec.yaml"
        path.write_text(SPEC.lstrip())
        nnspec.load(path).export(Path(scratch) / "out", init=1, target="ort-cuda", certify="none")
        active = runtime.open(Path(scratch) / "out", "cuda", allow_fallback=True).provider
    if active != runtime.session.PROVIDERS["cuda"]:
        return f"no GPU is active: a session that asks for CUDA runs on {active}"
    return None if torch.cuda.is_available() else "this PyTorch finds no GPU to compare with"


on_gpu = pytest.mark.skipif(missing() is not None, reason=str(missing()))
