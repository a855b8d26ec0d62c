"""What an artifact's CUDA session does with its sites, at two lengths, as data for the manifest."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.dimension import Dimension
from ..runtime.manifest import Manifest, read
from .build import LIBRARIES, Missing, standin

ROWS, LENGTHS = 3, (128, 511)                     # 511: an odd length, which kernels with masks cannot take as it is
STEPS = ((1, 64), (5, 520), (1, 2048))           # new positions of a step, and slots of its caches
FUSED = {"FLASH_ATTENTION": "FLASH", "EFFICIENT_ATTENTION": "EFFICIENT", "CUDNN_FLASH_ATTENTION": "CUDNN",
         "TRT_FUSED_ATTENTION": "TRT", "TRT_FLASH_ATTENTION": "TRT", "TRT_CROSS_ATTENTION": "TRT", "TRT_CAUSAL_ATTENTION": "TRT"}
RAN, SELECTED = "ran", "selected (dry run)"
WHOLE = frozenset({"int64", "int32", "bool"})
_KERNEL = re.compile(r"Node=(\S+) .*SdpaKernel=(\w+)")


@dataclass(frozen=True)
class Found:
    """One run of the probe: the kernel of each node in each case, what ran on the CPU, and why it stopped, if it did."""

    how: str
    runtime: str
    kernels: tuple[Mapping[str, str], ...]
    on_cpu: tuple[Mapping[str, Any], ...]
    error: str | None = None


def ready() -> None:
    """Raises `Missing` where there is neither a GPU nor what a dry run needs."""
    if not _gpu():
        standin()


def prove(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The proof of an artifact folder. Raises `Missing` where there is neither a GPU nor what a dry run needs.

    `how` is `ran` where a session of this artifact has an active GPU, else `selected (dry run)`. `status` is `failed` where a site of a
    fused form gets a kernel that is not one of `FUSED`, or where a node on the CPU does more than compute sizes; `shortfalls` say so.
    `kernels` counts those of all cases, `sites` lists each site's by case.
    """
    folder, manifest = Path(folder), read(folder)
    cases = cases_of(manifest)
    found = observe(folder, cases)
    names = [" ".join(f"{k}={v}" for k, v in c.items()) for c in cases]
    sites = _sites(manifest, found.kernels)
    short = [found.error] if found.error else [s for site in sites for s in _site_shortfalls(site, names)] + _strays(found.on_cpu)
    kernels = Counter(FUSED.get(k, str(k)) for site in sites for k in site["kernels"] if k)
    return {"status": "failed" if short else "passed", "how": found.how, "runtime": found.runtime, "cases": names,
            "kernels": dict(sorted(kernels.items())), "sites": sites, "shortfalls": short}


def observe(folder: Path, cases: list[dict[str, int]]) -> Found:
    """What a session of an artifact does on CUDA, in a run or in a dry run. Raises `Missing`."""
    return (_probe(folder, cases, {}, RAN) if _gpu() else None) or _dry(folder, cases)


def cases_of(manifest: Manifest) -> list[dict[str, int]]:
    """Two lengths, or one where bounds leave no other; of a step, new positions and slots, with 511 of whatever else is free."""
    if manifest.stream is None:
        shortest, longest = (case(manifest, n) for n in LENGTHS)
        return [shortest] if shortest == longest else [shortest, longest]
    slots = {s.capacity for s in manifest.stream.states if s.capacity}
    return [{n: new if n == "N" else size if n in slots else k for n, k in case(manifest, LENGTHS[1]).items()} for new, size in STEPS]


def case(manifest: Manifest, length: int) -> dict[str, int]:
    """Sizes of the free dimensions: the first is the batch, the others make axes of about `length`, within their bounds."""
    bounds = {name: n for x in manifest.inputs for name, n in x.bounds.items()}
    scale: dict[str, int] = {}
    for d in (d for x in manifest.inputs for d in x.dimensions if isinstance(d, Dimension)):
        if d.name is not None:
            scale[d.name] = max(scale.get(d.name, 1), d.scale)
    sizes = [ROWS if k == 0 else max(1, length // scale[n]) for k, n in enumerate(manifest.free_names)]
    return {n: min(size, bounds.get(n, size)) for n, size in zip(manifest.free_names, sizes, strict=True)}


def _gpu() -> bool:
    """Whether a driver finds a device, so that a session may; whether one is active, the session itself tells."""
    try:
        return ctypes.CDLL(LIBRARIES[0]).cuInit(0) == 0
    except (OSError, AttributeError):
        return False


def _dry(folder: Path, cases: list[dict[str, int]]) -> Found:
    paths = [str(standin()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    found = _probe(folder, cases, {"LD_LIBRARY_PATH": os.pathsep.join(paths)}, SELECTED)
    if found is None:
        raise Missing("this ONNX Runtime does not load its CUDA provider over the stand-in device",
                      "use a version of onnxruntime-gpu that is made for CUDA 13")
    return found


def _probe(folder: Path, cases: list[dict[str, int]], settings: Mapping[str, str], how: str) -> Found | None:
    """Run the probe; None where CUDA is not active in it."""
    environment = {**os.environ, "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1", **settings}
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "nnspec.prove.probe", str(folder), json.dumps(cases), str(Path(scratch) / "profile")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Found(how, "ONNX Runtime", (), (), "the model does not run on CUDA: " + _reason(done))
    return read_probe(done.stdout, how)


def read_probe(text: str, how: str) -> Found | None:
    """What the probe printed, on a GPU or over the stand-in; None where CUDA is not active in it."""
    kernels: list[dict[str, str]] = []
    end: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("case "):
            kernels.append({})
        elif line.startswith("end "):
            end = json.loads(line.removeprefix("end "))
        elif kernels and (match := _KERNEL.search(line)):
            kernels[-1][match.group(1)] = match.group(2)
    if not end:
        return Found(how, "ONNX Runtime", (), (), "the model does not run on CUDA: the probe ended early")
    return Found(how, end["runtime"], tuple(kernels), tuple(end["on_cpu"])) if end["provider"] == "CUDAExecutionProvider" else None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The headline and the notes of the error that ended the probe."""
    lines = done.stderr.strip().splitlines()
    start = max((i for i, line in enumerate(lines) if "ArtifactError" in line), default=len(lines) - 1)
    return " ".join(line.strip() for line in lines[start:])[:2000] or f"it ended with {done.returncode}"


def _sites(manifest: Manifest, kernels: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The attention sites, each with its kernel in every case; None where ONNX Runtime named none."""
    paths = [{node.rpartition("/")[0]: kernel for node, kernel in found.items()} for found in kernels]
    return [{"path": s["path"], "line": s["line"], "form": s["form"], "kernels": [found.get(s["path"]) for found in paths]}
            for s in manifest.sites if s["op"] == "attention"]


def _site_shortfalls(site: Mapping[str, Any], cases: Iterable[str]) -> list[str]:
    """A decomposed site claims no kernel."""
    if site["form"] == "decomposed":
        return []
    return [f"`{site['path']}` ({site['line']}) gets {kernel or 'no attention kernel'} at {at}"
            for at, kernel in zip(cases, site["kernels"], strict=True) if kernel not in FUSED]


def _strays(on_cpu: Iterable[Mapping[str, Any]]) -> list[str]:
    """Nodes on the CPU that give more than whole numbers on one axis at most."""
    found: dict[str, str] = {}
    for event in on_cpu:
        if more := [f"{kind}{shape}" for kind, shape in beyond_sizes(event)]:
            found.setdefault(event["node"], f"{event['op']} `{event['node']}` runs on the CPU and gives {', '.join(more)}")
    return list(found.values())



def beyond_sizes(event: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """(dtype, shape) of what a node gives that is more than sizes."""
    return [(kind, shape) for out in event["outputs"] for kind, shape in out.items() if kind not in WHOLE or len(shape) > 1]
