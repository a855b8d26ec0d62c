import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nnspec import runtime
from nnspec.runtime import ArtifactError, manifest, random_inputs
from nnspec.runtime.manifest import Input, Output
from tiny import finish, make_manifest, node, save_model

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
FLOAT, INT64, BOOL, BFLOAT16 = (getattr(onnx.TensorProto, k) for k in ("FLOAT", "INT64", "BOOL", "BFLOAT16"))
info = onnx.helper.make_tensor_value_info


def expected(inputs, weights):
    return weights["table"][inputs["tokens"]] @ weights["kernel"] + inputs["residual"]


def test_import_is_light():
    code = ("import sys, nnspec.runtime as r; r.load_inputs, r.Manifest, r.open, r.decoder.decoder, r.generate.generate; "
            "sys.exit(str([m for m in ('onnx', 'onnxruntime', 'torch') if m in sys.modules]) if any("
            "m in sys.modules for m in ('onnx', 'onnxruntime', 'torch')) else 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_runs_and_agrees_with_numpy(artifact, weights):
    model = runtime.open(artifact, threads=1)
    assert model.provider == "CPUExecutionProvider"
    assert [x.name for x in model.inputs] == ["tokens", "residual", "length"]
    assert [x.name for x in model.outputs] == ["hidden", "total"]
    inputs = random_inputs(model.manifest, {"B": 3, "S": 5}, seed=2)
    outputs = model(**inputs)
    np.testing.assert_allclose(outputs["hidden"], expected(inputs, weights), rtol=1e-5, atol=1e-6)
    assert outputs["total"].tolist() == [2 * n for n in inputs["length"].tolist()]


def test_an_artifact_says_what_it_is(artifact):
    assert repr(runtime.open(artifact)).endswith(" on CPUExecutionProvider: tokens, residual, length -> hidden, total>")


def test_runs_after_the_folder_moved_and_from_elsewhere(artifact, weights, tmp_path, monkeypatch):
    inputs = random_inputs(manifest.read(artifact))
    shutil.move(artifact, tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    outputs = runtime.open(Path("..") / "moved", verify=True)(**inputs)
    np.testing.assert_allclose(outputs["hidden"], expected(inputs, weights), rtol=1e-5, atol=1e-6)


def test_many_threads(artifact, weights):
    model = runtime.open(artifact, threads=1)
    calls = [random_inputs(model.manifest, {"B": 1 + i % 3}, seed=i) for i in range(24)]
    with ThreadPoolExecutor(4) as pool:
        for inputs, outputs in zip(calls, pool.map(lambda x: model(**x), calls), strict=True):
            np.testing.assert_allclose(outputs["hidden"], expected(inputs, weights), rtol=1e-5, atol=1e-6)


def test_bad_arrays_never_reach_the_model(artifact):
    model = runtime.open(artifact)
    with pytest.raises(ArtifactError) as caught:
        model(**random_inputs(model.manifest) | {"tokens": np.full((2, 7), 11)})
    assert caught.value.code == "bad-inputs"


def test_all_missing_files_are_named(artifact):
    files = [p for p in artifact.iterdir() if p.name != "manifest.json"]
    for path in files:
        path.unlink()
    with pytest.raises(ArtifactError) as caught:
        runtime.open(artifact)
    assert {i.headline for i in caught.value.items} == {f"`{p}` is missing" for p in files}


def test_changed_files_are_found(artifact):
    data = next(artifact.glob("weights-*.bin"))
    blob = bytearray(data.read_bytes())
    blob[3] ^= 1
    data.write_bytes(blob)
    runtime.open(artifact)
    with pytest.raises(ArtifactError, match="is not the file that was exported"):
        runtime.open(artifact, verify=True)
    data.write_bytes(blob[:-4])
    with pytest.raises(ArtifactError, match="has 164 bytes, expected 168"):
        runtime.open(artifact)
    (artifact / "model.onnx").write_bytes((artifact / "model.onnx").read_bytes() + b"\x00")
    with pytest.raises(ArtifactError) as caught:
        runtime.open(artifact)
    assert len(caught.value.items) == 2


def test_cuda_on_a_host_without_it_is_an_error_and_says_what_runs(artifact, capfd, weights):
    import onnxruntime

    asked = onnxruntime.InferenceSession(artifact / "model.onnx", providers=["CUDAExecutionProvider"])
    if asked.get_providers()[0] == "CUDAExecutionProvider":
        pytest.skip("this host has CUDA")
    capfd.readouterr()
    with pytest.raises(ArtifactError) as caught:
        runtime.open(artifact, device="cuda")
    error = caught.value
    assert error.code == "device-not-active"
    assert error.notes == ("requested: CUDAExecutionProvider", "active: CPUExecutionProvider")
    assert "onnxruntime-gpu[cuda,cudnn]" in error.helps[0]
    model = runtime.open(artifact, device="cuda", allow_fallback=True)
    assert model.provider == "CPUExecutionProvider"
    inputs = random_inputs(model.manifest)
    np.testing.assert_allclose(model(**inputs)["hidden"], expected(inputs, weights), rtol=1e-5, atol=1e-6)
    assert capfd.readouterr() == ("", "")


def test_unknown_device(artifact):
    with pytest.raises(ArtifactError) as caught:
        runtime.open(artifact, device="cudo")
    assert caught.value.helps == ("did you mean `cuda`?",)


def write(folder: Path, nodes, inputs, outputs, initializers=()) -> Path:
    """An artifact with inputs `(name, shape, type, dtype)`."""
    save_model(folder, nodes, [info(n, t, s) for n, s, t, _ in inputs], [info(n, t, s) for n, s, t, _ in outputs], initializers)
    return finish(folder, make_manifest(inputs=tuple(Input(n, d, tuple(s)) for n, s, _, d in inputs),
                                        outputs=tuple(Output(n, d, tuple(s)) for n, s, _, d in outputs)))


X = ("x", ["B", 3], FLOAT, "float32")
Y = ("y", ["B", 2], FLOAT, "float32")


def load_error(folder: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        runtime.open(folder)
    assert caught.value.code == "load-failed"
    return caught.value


def test_a_failing_run_names_path_and_line(tmp_path, capfd):
    shape = onnx.helper.make_tensor("shape", INT64, [2], [-1, 2])
    folder = write(tmp_path, [node("Identity", ["x"], "i", "first", 3),
                              node("Reshape", ["i", "shape"], "y", "layers.3.attention.query", 8)],
                   [X], [Y], [shape])
    model = runtime.open(folder)
    assert model(x=np.arange(6, dtype=np.float32).reshape(2, 3))["y"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ArtifactError) as caught:
        model(x=np.ones((3, 3), np.float32))
    error = caught.value
    assert error.code == "run-failed"
    assert "Reshape of `layers.3.attention.query` (tiny.yaml:8) fails" in error.headline
    assert "Input shape:{3,3}" in error.notes[1]
    assert "/onnxruntime_src" not in str(error)
    assert capfd.readouterr().err == ""


def test_load_errors_name_path_and_line(tmp_path):
    kernel = onnx.helper.make_tensor("w", FLOAT, [2, 2], [1.0, 2, 3, 4])
    error = load_error(write(tmp_path, [node("MatMul", ["x", "w"], "y", "layers.1.up", 5)], [X], [Y], [kernel]))
    assert "MatMul of `layers.1.up` (tiny.yaml:5) fails" in error.headline
    assert "Incompatible dimensions" in error.notes[1]
    error = load_error(write(tmp_path, [node("Strange", ["x"], "y", "odd", 6, domain="com.example")], [X], [Y]))
    assert "Strange of `odd` (tiny.yaml:6) fails" in error.headline


def test_a_model_without_kernel_and_a_file_that_is_no_model(tmp_path):
    kernel = onnx.helper.make_tensor("w", BFLOAT16, [3, 2], [1.0, 2, 3, 4, 5, 6])
    folder = write(tmp_path, [node("MatMul", ["x", "w"], "y", "layers.2.down", 5)],
                   [("x", ["B", 3], BFLOAT16, "bfloat16")], [("y", ["B", 2], BFLOAT16, "bfloat16")], [kernel])
    assert "`layers.2.down`" in load_error(folder).headline
    (folder / "model.onnx").write_bytes(b"garbage" * 9)
    finish(folder, make_manifest())
    assert "rotobuf parsing failed" in load_error(folder).notes[0]


def test_errors_inside_a_subgraph_are_found(tmp_path):
    shape = onnx.helper.make_tensor("shape", INT64, [2], [-1, 2])
    inner = [node("Reshape", ["x", "shape"], "inner", "branch.then", 11)]
    graphs = [onnx.helper.make_graph(inner, n, [], [info("inner", FLOAT, None)]) for n in ("then", "else")]
    choose = ("choose", [], BOOL, "bool")
    folder = write(tmp_path, [node("If", ["choose"], "y", "branch", 10, then_branch=graphs[0], else_branch=graphs[1])],
                   [X, choose], [Y], [shape])
    with pytest.raises(ArtifactError, match=r"Reshape of `branch.then` \(tiny.yaml:11\) fails"):
        runtime.open(folder)(x=np.ones((3, 3), np.float32), choose=True)


def test_bfloat16_goes_in_and_out(tmp_path):
    kind = ("bfloat16", BFLOAT16)
    folder = write(tmp_path, [node("Identity", ["x"], "y", "same", 3), node("Cast", ["x"], "z", "wide", 4, to=FLOAT)],
                   [("x", ["B", 3], kind[1], kind[0])], [("y", ["B", 3], kind[1], kind[0]), ("z", ["B", 3], FLOAT, "float32")])
    x = np.random.default_rng(1).standard_normal((5, 3), np.float32)
    outputs = runtime.open(folder)(x=x)
    assert outputs["y"].dtype == np.float32
    np.testing.assert_array_equal(outputs["y"], outputs["z"])
    np.testing.assert_allclose(outputs["y"], x, rtol=2**-8)
    assert (outputs["y"] != x).any()


def test_optional_inputs_are_left_out_when_the_model_allows_it(tmp_path):
    kind = onnx.helper.make_optional_type_proto(onnx.helper.make_tensor_type_proto(FLOAT, ["B"]))
    has = node("OptionalHasElement", ["x"], "y", "has", 3)
    save_model(tmp_path, [has], [onnx.helper.make_value_info("x", kind)], [info("y", BOOL, [])])
    x, y = Input("x", "float32", ("B",), optional=True), Output("y", "bool", ())
    model = runtime.open(finish(tmp_path, make_manifest(inputs=(x,), outputs=(y,))))
    assert not model()["y"]
    assert model(x=np.ones(3, np.float32))["y"]


def test_an_optional_input_that_the_model_needs(artifact):
    made = manifest.read(artifact)
    manifest.write(artifact, replace(made, inputs=(*made.inputs[:2], replace(made.inputs[2], optional=True))))
    model = runtime.open(artifact)
    arrays = random_inputs(model.manifest)
    del arrays["length"]
    with pytest.raises(ArtifactError, match="this model was exported with it"):
        model(**arrays)


def test_manifest_and_model_must_agree(artifact):
    made = manifest.read(artifact)
    wrong = replace(made, inputs=(replace(made.inputs[0], dtype="int32"), *made.inputs[2:]),
                    outputs=(*made.outputs, Output("logits", "float32", ("B",))))
    manifest.write(artifact, wrong)
    with pytest.raises(ArtifactError) as caught:
        runtime.open(artifact)
    assert [i.headline for i in caught.value.items] == [
        "input `tokens` of `manifest.json` is int32; in `model.onnx` it is int64",
        "input `residual` of `model.onnx` is not in `manifest.json`",
        "output `logits` of `manifest.json` is float32; in `model.onnx` it does not exist",
    ]


def test_profile(artifact, tmp_path):
    model = runtime.open(artifact, profile=tmp_path / "prof")
    model(**random_inputs(model.manifest))
    path = model.end_profile()
    assert path.parent == tmp_path
    assert "layers.3.attention.query/MatMul" in path.read_text()
    with pytest.raises(ArtifactError, match="no folder"):
        runtime.open(artifact, profile=tmp_path / "nowhere" / "prof")


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_threads_that_no_machine_has(artifact, threads):
    with pytest.raises(ArtifactError) as found:
        runtime.open(artifact, threads=threads)
    assert found.value.code == "load-failed" and f"`threads` cannot be {threads}" in found.value.headline


@pytest.mark.parametrize(("shape", "text"), [(("B",), "is [B]"), (("B", "S", 4), "is [B, S, 4]")])
def test_a_manifest_edited_by_hand_is_compared_with_the_model(artifact, shape, text):
    held = manifest.read(artifact)
    tokens, residual, length = held.inputs
    manifest.write(artifact, replace(held, inputs=(tokens, replace(residual, shape=shape), length)))
    with pytest.raises(ArtifactError) as found:
        runtime.open(artifact)
    assert found.value.code == "bad-artifact" and text in found.value.headline and "in `model.onnx` it is [B, S, 3]" in found.value.headline
