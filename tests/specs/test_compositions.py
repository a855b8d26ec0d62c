"""Small specs of unusual shape: PyTorch and ONNX Runtime agree at odd sizes, at 1 and at 0, with one row or three."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import zoo
from nnspec import load, runtime
from nnspec.runtime.data import random_inputs

FOLDER = Path(__file__).parent / "compositions"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SIZES = [(1, 7), (3, 5), (3, 1), (1, 1), (3, 9)]          # the batch, and the first other size; the next ones are 2 larger each


@cache
def compiled(name):
    """The model and its module, every parameter away from its start."""
    model = load(FOLDER / f"{name}.yaml")
    return model, zoo.stir(model.module(seed=1))


def sizes_of(manifest, rows, n):
    first, *others = manifest.free_names or ("",)
    sizes = {first: rows} | {d: n + 2 * k if n > 1 else 1 for k, d in enumerate(others)}
    return {d: max(size, manifest.least.get(d, 0)) for d, size in sizes.items() if d}


def inputs_of(manifest, rows, n, seed):
    """Random inputs; with three rows the second one sees nothing and the last has length 1."""
    arrays = random_inputs(manifest, sizes_of(manifest, rows, n), seed)
    for x in manifest.inputs:
        if rows == 3 and (x.length_of or x.dtype == "bool") and arrays[x.name].shape[:1] == (3,):
            arrays[x.name][1] = 0
            if x.length_of:
                arrays[x.name][2] = 1
    return arrays


def reference(model, module, arrays):
    """Inputs go by position: those that may be absent come last."""
    names = [a.name for a in sorted(model.graph.root.arguments, key=lambda a: a.type.optional)]
    with torch.no_grad():
        made = module(*(torch.from_numpy(np.asarray(arrays[name])) for name in names))
    named = made if isinstance(made, dict) else {model.graph.root.outputs[0][0]: made}
    return {name: value.detach().numpy() for name, value in named.items()}


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda", "portable"])
@pytest.mark.parametrize("name", NAMES)
def test_module_and_onnx_agree(name, target, tmp_path):
    model, module = compiled(name)
    manifest = model.export(tmp_path / "out", weights=module, target=target, certify="sweep" if target == "ort-cpu" else "none")
    assert manifest.certificate["status"] == ("passed" if target == "ort-cpu" else "none"), manifest.certificate
    artifact = runtime.open(tmp_path / "out")
    for seed, (rows, n) in enumerate(SIZES):
        arrays = inputs_of(manifest, rows, n, seed)
        want = reference(model, module, arrays)
        got = artifact(**arrays)
        zoo.close(got, want, 2e-5, 2e-6, f"{name} for {target} with {rows} rows of {n}")
        assert {k: v.dtype for k, v in got.items()} == {k: v.dtype for k, v in want.items()}


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_nothing_agree_or_are_refused(name, tmp_path):
    """0 along any one dimension, in a process of its own: ONNX Runtime may end it."""
    model, module = compiled(name)
    manifest = model.export(tmp_path / "out", weights=module, certify="none")
    for empty in manifest.free_names:
        child = os.fork()
        if child == 0:
            os._exit(nothing(model, module, tmp_path / "out", {d: 3 + k for k, d in enumerate(manifest.free_names)} | {empty: 0}))
        assert os.waitpid(child, 0)[1] == 0, f"{name} with {empty} = 0"


def nothing(model, module, folder, sizes):
    """0 where both agree, or the call is refused before ONNX Runtime sees it."""
    torch.set_num_threads(1)
    artifact = runtime.open(folder, threads=1)
    arrays = random_inputs(artifact.manifest, sizes)
    try:
        got = artifact(**arrays)
    except runtime.ArtifactError as error:
        return 0 if error.code == "bad-inputs" else print(error) or 1
    try:
        zoo.close(got, reference(model, module, arrays), 2e-5, 2e-6)
    except BaseException as error:
        return print(error) or 1
    return 0
