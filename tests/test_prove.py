"""`--prove`: sizes of its cases, what it says where something is missing, and how a report shows it. The kernels: tests/gpu."""

import json
from types import SimpleNamespace

import nnspec
import pytest
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics
from nnspec.printing import export_report
from nnspec.prove import Missing, standin
from nnspec.prove import proof as proofs
from nnspec.prove.proof import LENGTHS, case, cases_of, read_probe
from nnspec.runtime.manifest import read

SPEC = """
nnspec: 1
inputs: {x: "float[B, 2*S, 4]", y: "float[B, T <= 300]"}
graph: {out: {op: linear, in: x, width: 3}, twice: {op: add, in: [y, y]}}
outputs: [out, twice]
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC.lstrip())
    return nnspec.load("spec.yaml")


def test_cases_keep_bounds_and_multiples(spec):
    spec.export("out", init=1, certify="none")
    assert [case(read("out"), n) for n in LENGTHS] == [{"B": 3, "S": 64, "T": 128}, {"B": 3, "S": 255, "T": 300}]


def test_a_case_is_not_run_twice(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC.replace("2*S", "2*S <= 40").replace("300", "30"))
    nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=1, certify="none")
    assert cases_of(read(tmp_path / "out")) == [{"B": 3, "S": 20, "T": 30}]


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr("nnspec.prove.proof._gpu", lambda: False)


def test_what_is_missing_is_said_before_any_work(spec, tmp_path, monkeypatch, capsys, without_gpu):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as done:
        main(["export", "spec.yaml", "--init", "1", "-o", "out", "--target", "ort-cuda", "--prove"])
    out, err = capsys.readouterr()
    assert (done.value.code, out) == (2, "")
    assert err == """\
error[cannot-prove]: kernels cannot be proven: there is no g++ here
    = help: install g++, and the headers with `pip install 'nnspec[prove]'`

1 error
"""
    assert not (tmp_path / "out").exists()


def test_each_part_may_be_missing(monkeypatch):
    monkeypatch.setattr("nnspec.prove.build.shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("nnspec.prove.build.importlib.util.find_spec", lambda name: None)
    with pytest.raises(Missing, match="this ONNX Runtime has no CUDA provider"):
        standin()
    monkeypatch.setattr("nnspec.prove.build._provider", lambda: "libonnxruntime_providers_cuda.so")
    with pytest.raises(Missing, match="the headers of CUDA 13 are not installed") as found:
        standin()
    assert "pip install 'nnspec[prove]'" in found.value.help


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def printed(provider, *kernels, on_cpu=()):
    """What a probe prints: kernels of each case, among lines of others, and the end."""
    lines = ["Operator=Attention Node=warm/Attention DataType=fp16 SdpaKernel=MATH", "a line of a library"]
    for k, found in enumerate(kernels):
        lines += [f"case {k}", *(f"Operator=Attention Node={n} DataType=fp16 SdpaKernel={kind}" for n, kind in found.items()), ""]
    end = {"provider": provider, "runtime": "ONNX Runtime 1", "on_cpu": list(on_cpu)}
    return "\n".join([*lines, "end " + json.dumps(end), "goodbye"])


def test_a_probe_is_read():
    first, second = {"a/Attention": "FLASH_ATTENTION", "b.0/Attention": "MATH"}, {"a/Attention": "CUDNN_FLASH_ATTENTION"}
    found = read_probe(printed(CUDA, first, second, on_cpu=[{"node": "x"}]), "ran")
    assert (found.how, found.runtime, found.error) == ("ran", "ONNX Runtime 1", None)
    assert found.kernels == (first, second) and found.on_cpu == ({"node": "x"},)
    assert read_probe(printed(CPU, first), "ran") is None
    assert "ended early" in read_probe("case 0\nOperator=Attention Node=a SdpaKernel=MATH", "ran").error


ATTENDS = """
nnspec: 1
inputs: {x: "float[B, S, 16]"}
graph:
  heads: {op: rearrange, in: x, as: "b s (h d) -> b h s d", h: 2}
  attended: {op: attention, query: heads, key: heads, value: heads}
outputs: [attended]
"""


@pytest.mark.parametrize(("active", "how", "kernels"), [(CUDA, "ran", {"CUDNN": 1, "TRT": 1}), (CPU, "selected (dry run)", {"FLASH": 2})])
def test_a_session_with_an_active_gpu_is_read_and_else_the_dry_run(tmp_path, monkeypatch, active, how, kernels):
    """A driver that finds a device is not enough: the session of the artifact must have it."""
    (tmp_path / "spec.yaml").write_text(ATTENDS.lstrip())
    nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=1, target="ort-cuda", certify="none")
    node = "attended/Attention"
    real = printed(active, {node: "TRT_FLASH_ATTENTION"}, {node: "CUDNN_FLASH_ATTENTION"})
    dry = printed(CUDA, {node: "FLASH_ATTENTION"}, {node: "FLASH_ATTENTION"})
    asked = []

    def run(command, env, **more):
        asked.append(env["ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"])
        return SimpleNamespace(returncode=0, stderr="", stdout=dry if "/standin" in env.get("LD_LIBRARY_PATH", "") else real)

    monkeypatch.setattr(proofs.subprocess, "run", run)
    monkeypatch.setattr(proofs, "_gpu", lambda: True)
    monkeypatch.setattr(proofs, "standin", lambda: tmp_path / "standin")
    proof = proofs.prove(tmp_path / "out")
    assert (proof["status"], proof["how"], proof["kernels"], proof["shortfalls"]) == ("passed", how, kernels, [])
    assert asked == ["1"] * (1 if active == CUDA else 2)


def test_a_run_that_fails_on_a_gpu_is_a_failed_proof(spec, tmp_path, monkeypatch):
    spec.export("out", init=1, certify="none")
    monkeypatch.setattr(proofs, "_gpu", lambda: True)
    failed = SimpleNamespace(returncode=1, stdout="", stderr="ArtifactError: out of memory")
    monkeypatch.setattr(proofs.subprocess, "run", lambda *a, **k: failed)
    proof = proofs.prove("out")
    assert (proof["status"], proof["how"]) == ("failed", "ran") and "out of memory" in proof["shortfalls"][0]


def test_only_cuda_is_proven(spec):
    with pytest.raises(Diagnostics) as found:
        spec.export("out", init=1, prove=True)
    assert [d.headline for d in found.value.items] == ["`--prove` finds kernels of CUDA, and this export is for ort-cpu"]


def test_the_report(spec, tmp_path):
    manifest = spec.export("out", init=1, certify="none")
    proof = {"status": "failed", "how": "selected (dry run)", "runtime": "ONNX Runtime 1", "cases": ["B=3 S=128", "B=3 S=511"],
             "kernels": {"FLASH": 1, "MATH": 1}, "shortfalls": ["`a` (line 3) gets MATH at B=3 S=511"],
             "sites": [{"path": "a", "line": 3, "form": "Attention-24", "kernels": ["FLASH_ATTENTION", "MATH"]}]}
    shown = export_report(SimpleNamespace(**{**vars(manifest), "proof": proof}), tmp_path / "out", all_sites=True)
    assert shown.endswith("""
  proof failed: FLASH x1, MATH x1 selected (dry run), ONNX Runtime 1, at B=3 S=128 and B=3 S=511
    a  Attention-24  FLASH_ATTENTION  MATH
    `a` (line 3) gets MATH at B=3 S=511
""")
    assert "proof" not in export_report(manifest, tmp_path / "out", all_sites=True)
