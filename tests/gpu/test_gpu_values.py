"""Files for CUDA against PyTorch: on a GPU, both there; and the same comparison of the same files on the CPU, which shows that it compares.

Weights are stirred, rows padded, one row sees nothing; sizes are odd, long and short.
"""

import copy

import nnspec
import numpy as np
import onnxruntime
import pytest
import torch
import zoo
from device import missing, on_gpu

NAMES = ["transformer-base", "bert-base", "gpt2", "additive-seq2seq", "hard/gemma2", "hard/t5", "llama-3-8b"]
# Share of the largest value: float16 keeps 11 bits, bfloat16 8. ONNX Runtime multiplies float32 with 11 bits (TF32) unless it is told
# otherwise, and PyTorch does not.
TOLERANCES = {"float32": 1e-4, "float32 with TF32": 1e-2, "float16": 1.5e-2, "bfloat16": 8e-2}
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


def cases(name):
    batch, *others = zoo.free(name)
    sizes = [dict(zip(others, ns, strict=False)) for ns in ((17, 19, 23), (1, 1, 1), (129, 67, 3))]
    return [{batch: rows} | s for rows in (1, 3) for s in sizes]


def on(device, name, arrays):
    """The outputs of the spec's module there, by name."""
    module = copy.deepcopy(zoo.stirred(name)).to(device)
    with torch.no_grad():
        made = module(**{k: torch.from_numpy(v).to(device) for k, v in arrays.items()})
    return {k: v.cpu().numpy() for k, v in (made if isinstance(made, dict) else {zoo.outputs(name)[0]: made}).items()}


def compare(name, folder, dtype, device, run):
    """`run(artifact, arrays)` against the float32 module on the same device, in every case."""
    zoo.model(name).export(folder, weights=zoo.stirred(name), target="ort-cuda", dtype=dtype.split()[0], certify="none")
    artifact = nnspec.runtime.open(folder, device)
    for k, sizes in enumerate(cases(name)):
        arrays = zoo.draw(name, sizes, seed=k)
        want = on(device, name, arrays)
        rtol = TOLERANCES[dtype]
        zoo.close(run(artifact, arrays), want, rtol, rtol / 1000, f"{name} in {dtype} on {device} at {sizes}")


def called(artifact, arrays):
    return artifact(**arrays)


def without_tf32(artifact, arrays):
    """The outputs of a session that multiplies in whole float32."""
    cuda = artifact.provider == "CUDAExecutionProvider"
    providers = [("CUDAExecutionProvider", {"use_tf32": "0"})] if cuda else []
    session = onnxruntime.InferenceSession(artifact.folder / "model.onnx", providers=[*providers, "CPUExecutionProvider"])
    assert session.get_providers()[0] == artifact.provider
    values = session.run([x.held for x in artifact.outputs], artifact.feeds(arrays))
    return dict(zip([x.name for x in artifact.outputs], values, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_float32(name, device, tmp_path):
    compare(name, tmp_path, "float32 with TF32", device, called)
    compare(name, tmp_path, "float32", device, without_tf32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_float16(name, device, tmp_path):
    compare(name, tmp_path, "float16", device, called)


@on_gpu
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name, tmp_path):
    compare(name, tmp_path, "bfloat16", "cuda", called)


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tensors_on_the_gpu_give_what_arrays_give(dtype, tmp_path):
    zoo.model("gpt2").export(tmp_path, weights=zoo.stirred("gpt2"), target="ort-cuda", dtype=dtype, certify="none")
    artifact = nnspec.runtime.open(tmp_path, "cuda")
    arrays = zoo.draw("gpt2", {"B": 3, "S": 17})
    want = artifact(**arrays)
    tensors = {k: torch.from_numpy(v).to("cuda") for k, v in arrays.items()}
    torch.cuda.synchronize()
    for name, value in artifact.on_device(**tensors).items():
        np.testing.assert_array_equal(torch.from_dlpack(value).cpu().numpy(), want[name])


@on_gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kernels_are_read_from_the_run(name, dtype, tmp_path):
    proof = zoo.model(name).export(tmp_path, weights=zoo.stirred(name), target="ort-cuda", dtype=dtype, certify="none", prove=True).proof
    assert (proof["how"], proof["status"], proof["shortfalls"]) == ("ran", "passed", [])


def test_why_values_are_not_computed_on_a_gpu_is_said():
    reason = missing()
    if reason is None:
        assert torch.cuda.is_available()
    else:
        assert "runs on CPUExecutionProvider" in reason or "PyTorch finds no GPU" in reason
