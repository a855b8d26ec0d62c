"""`--prove`: sizes of its cases, what it says where something is missing, and how a report shows it. The kernels: tests/gpu."""

from types import SimpleNamespace

import nnspec
import pytest
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics
from nnspec.printing import export_report
from nnspec.prove import Missing, standin
from nnspec.prove.proof import LENGTHS, case
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
