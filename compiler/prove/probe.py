"""A process of its own that runs an artifact on CUDA: `python -m nnspec.prove.probe FOLDER CASES PREFIX`.

ONNX Runtime prints the attention kernels it chooses; a line `case K` stands before those of each case. The line `end JSON` tells
the active provider, and the kernels that ran on the CPU with the types and shapes of what they gave.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import onnxruntime

from ..runtime.data import random_inputs
from ..runtime.session import open as open_artifact


def main(folder: str, cases: str, prefix: str) -> None:
    artifact = open_artifact(folder, "cuda", allow_fallback=True, profile=prefix)
    if artifact.provider == "CUDAExecutionProvider":
        for k, sizes in enumerate(json.loads(cases)):
            _line(f"case {k}")
            given = random_inputs(artifact.manifest, sizes)
            if artifact.manifest.stream is not None:            # whole chunks at the start of their rows
                given |= {"past": 0 * given["past"], "new_length": 0 * given["new_length"] + sizes["N"]}
            artifact(**{k: v for k, v in given.items() if k in {x.name for x in artifact.inputs}})
    _line("end " + json.dumps({"provider": artifact.provider, "runtime": f"ONNX Runtime {onnxruntime.__version__}",
                               "on_cpu": _on_cpu(artifact.end_profile())}))


def _line(text: str) -> None:
    """Unbuffered, as ONNX Runtime's lines are."""
    os.write(1, f"{text}\n".encode())


def _on_cpu(profile: Path) -> list[dict[str, Any]]:
    events = [e for e in json.loads(profile.read_text(encoding="utf-8")) if e["name"].endswith("_kernel_time")]
    return [{"node": e["name"].removesuffix("_kernel_time"), "op": e["args"]["op_name"], "outputs": e["args"]["output_type_shape"]}
            for e in events if e["args"]["provider"] == "CPUExecutionProvider"]


if __name__ == "__main__":
    main(*sys.argv[1:])
