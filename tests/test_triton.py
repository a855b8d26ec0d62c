"""Models in Triton's repository: config.pbtxt is read by Triton's own schema, and what it says is held against the file it names."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import nnspec
import numpy as np
import onnxruntime as ort
import pytest
import torch
import zoo
from google.protobuf import text_format
from nnspec import runtime
from nnspec.artifacts import triton as export_triton
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics

DTYPES = {"TYPE_INT64": "tensor(int64)", "TYPE_BOOL": "tensor(bool)", "TYPE_FP32": "tensor(float)", "TYPE_FP16": "tensor(float16)"}


@pytest.fixture(scope="session")
def schema():
    """The module of Triton's model_config.proto, out of the wheel of its client, which is not installed."""
    place = Path(__file__).parent.parent / "build" / "triton"
    if not (found := [*place.glob("tritonclient-*.whl")]):
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(place), "tritonclient==2.*"]
        done = subprocess.run(fetch, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            pytest.skip(f"pip cannot fetch tritonclient: {done.stderr.strip().splitlines()[-1]}")
        found = [*place.glob("tritonclient-*.whl")]
    source = place / "model_config_pb2.py"
    with zipfile.ZipFile(found[0]) as wheel:
        source.write_bytes(wheel.read("tritonclient/grpc/model_config_pb2.py"))
    spec = importlib.util.spec_from_file_location("model_config_pb2", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def read(schema):
    return lambda folder: text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), schema.ModelConfig())


def full_shape(tensor, batched):
    """The shape that the server gives to the model."""
    dims = [*tensor.reshape.shape] if tensor.HasField("reshape") else [*tensor.dims]
    return [-1, *dims] if batched else dims


def agrees(config, folder):
    """Names, types and shapes of the config are those of the file that it names."""
    session = ort.InferenceSession(folder / "1" / config.default_model_filename, providers=["CPUExecutionProvider"])
    for told, held in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert {x.name for x in told} == {x.name for x in held}
        for x in told:
            real = next(h for h in held if h.name == x.name)
            kind = x.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[x.data_type].name
            assert DTYPES[kind] == real.type
            assert full_shape(x, config.max_batch_size > 0) == [d if isinstance(d, int) else -1 for d in real.shape]
            assert len(x.dims) > 0


@pytest.mark.parametrize("name", ["additive-seq2seq", "bert-base", "gpt2", "transformer-base", "vit-base-patch16-224", "hard/moe"])
def test_models_in_batches(read, tmp_path, name):
    model = zoo.model(name)
    manifest = model.export(tmp_path, weights=zoo.stirred(name), target="triton", max_batch=9)
    folder = tmp_path / model.name
    config = read(folder)
    assert (config.name, config.backend, config.max_batch_size) == (model.name, "onnxruntime", 9)
    assert config.HasField("dynamic_batching") and manifest.certificate["status"] == "passed"
    assert [g.kind for g in config.instance_group] == [config.instance_group[0].KIND_CPU]
    agrees(config, folder)


def test_the_artifact_is_an_artifact(tmp_path):
    manifest = zoo.model("gpt2").export(tmp_path, init=3, target="triton", certify="none")
    opened = runtime.open(tmp_path / "gpt2" / "1", verify=True)
    assert opened.manifest == manifest
    tokens = np.random.default_rng(0).integers(0, 43, (2, 5))
    want = zoo.model("gpt2").module(seed=3)
    np.testing.assert_allclose(opened(tokens=tokens)["logits"], want(torch.from_numpy(tokens)).detach().numpy(), atol=1e-5)


def spec(tmp_path, text):
    (tmp_path / "spec.yaml").write_text("nnspec: 1\nname: made\n" + text)
    return nnspec.load(tmp_path / "spec.yaml")


NO_BATCH = {
    "rows that change each other": 'inputs: {x: "float[B, 5]"}\n'
                                   'graph: {m: {op: mean, in: x, axis: 0, keep_axis: true}, y: {op: subtract, in: [x, m]}}\n',
    "rows on another axis": 'inputs: {x: "float[S, B, 5]", y: "float[B, 5]"}\ngraph: {y2: {op: add, in: [x, y]}}\n',
    "an input without rows": 'inputs: {x: "float[B, 5]", t: "float[]"}\ngraph: {y: {op: multiply, in: [x, t]}}\n',
    "a result without rows": 'inputs: {x: "float[B, 5]"}\ngraph: {y: {op: mean, in: x, axis: [0, 1]}}\n',
    "rows that are a size elsewhere": 'inputs: {x: "float[B, B]"}\ngraph: {y: {op: relu, in: x}}\n',
    "rows of two kinds": 'inputs: {x: "float[B, 5]", z: "float[C, 5]"}\ngraph: {y: {op: relu, in: x}, w: {op: relu, in: z}}\n',
    "fixed rows": 'inputs: {x: "float[4, 5]"}\ngraph: {y: {op: relu, in: x}}\n',
}


@pytest.mark.parametrize("why", NO_BATCH)
def test_models_whose_rows_cannot_be_put_together(read, tmp_path, why):
    graph = NO_BATCH[why]
    model = spec(tmp_path, graph + f"outputs: [{'y, w' if 'w:' in graph else 'y2' if 'y2' in graph else 'y'}]\n")
    model.export(tmp_path / "out", init=0, target="triton")
    config = read(tmp_path / "out" / "made")
    assert config.max_batch_size == 0 and not config.HasField("dynamic_batching")
    agrees(config, tmp_path / "out" / "made")


def test_a_bounded_batch(read, tmp_path):
    spec(tmp_path, 'inputs: {x: "float[B <= 6, S]"}\ngraph: {y: {op: relu, in: x}}\noutputs: [y]\n').export(
        tmp_path / "out", init=0, target="triton")
    assert read(tmp_path / "out" / "made").max_batch_size == 6


def test_an_output_named_like_an_input(read, tmp_path):
    text = 'inputs: {tokens: "float[B, 5]"}\ngraph: {y: {op: relu, in: tokens}}\noutputs: {tokens: y}\n'
    spec(tmp_path, text).export(tmp_path / "out", init=0, target="triton")
    config = read(tmp_path / "out" / "made")
    assert ([x.name for x in config.input], [x.name for x in config.output]) == (["tokens"], ["tokens.out"])
    agrees(config, tmp_path / "out" / "made")


def test_halves_are_for_cuda(read, tmp_path):
    zoo.model("gpt2").export(tmp_path, weights=zoo.stirred("gpt2"), target="triton", dtype="float16")
    config = read(tmp_path / "gpt2")
    assert [g.kind for g in config.instance_group] == [config.instance_group[0].KIND_GPU]
    agrees(config, tmp_path / "gpt2")


def test_optional_inputs_are_needed_or_left_out(read, tmp_path):
    zoo.model("gpt2").export(tmp_path, init=1, target="triton", certify="none", without=("keep", "length"))
    assert [x.name for x in read(tmp_path / "gpt2").input] == ["tokens"]
    zoo.model("gpt2").export(tmp_path, init=1, target="triton", certify="none")
    inputs = read(tmp_path / "gpt2").input
    assert {x.name for x in inputs} == {"tokens", "keep", "length"} and not any(x.optional for x in inputs)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_other_models_and_versions_stay(tmp_path):
    model = zoo.model("gpt2")
    model.export(tmp_path, init=1, target="triton", certify="none")
    for kept in ("other/1/model.onnx", "other/config.pbtxt", "gpt2/2/model.onnx", "gpt2/labels.txt"):
        (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / kept).write_text(kept)
    before = files(tmp_path)
    model.export(tmp_path, init=2, target="triton", certify="none")
    after = files(tmp_path)
    changed = {k for k in after if after[k] != before.get(k)}
    assert {k.partition("-")[0] for k in changed} == {"gpt2/1/manifest.json", "gpt2/1/model.onnx", "gpt2/1/weights"}
    assert len(after) == len(before)


@pytest.mark.parametrize("there, at", [(False, 1), (False, 2), (True, 1), (True, 2), (True, 3), (True, 4)])
def test_a_failure_leaves_all_as_it_was(tmp_path, monkeypatch, there, at):
    model = zoo.model("gpt2")
    if there:
        model.export(tmp_path / "out", init=1, target="triton", certify="none")
    before, calls = files(tmp_path), []

    def rename(source, target, real=export_triton.os.rename):
        calls.append(source)
        if len(calls) == at:
            raise OSError(28, "No space left on device")
        real(source, target)
    monkeypatch.setattr(export_triton.os, "rename", rename)
    with pytest.raises(Diagnostics, match="No space left"):
        model.export(tmp_path / "out", init=2, target="triton", certify="none")
    assert files(tmp_path) == before
    assert (tmp_path / "out").exists() == there


@pytest.mark.parametrize("arguments, told", [
    (["--form", "step"], "its state would travel with every request"),
    (["--dtype", "bfloat16"], "takes and gives no bfloat16"),
    (["--stop", "3"], "go with `--target genai`"),
    (["--max-batch", "0"], "--max-batch"),
])
def test_bad_commands(tmp_path, capsys, arguments, told):
    sizes = [f"--set={k}={v}" for k, v in zoo.MODELS["gpt2"].items()]
    with pytest.raises(SystemExit) as done:
        main(["export", "gpt2", *sizes, "--init", "0", "--target", "triton", "-o", str(tmp_path / "out"), *arguments])
    assert done.value.code == 2 and told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_printed(tmp_path, capsys):
    sizes = [f"--set={k}={v}" for k, v in zoo.MODELS["gpt2"].items()]
    for _ in range(2):
        with pytest.raises(SystemExit) as done:
            main(["export", "gpt2", *sizes, "--init", "0", "--target", "triton", "-o", str(tmp_path)])
        assert not done.value.code
        out = capsys.readouterr().out
        assert str(tmp_path / "gpt2" / "1" / "model.onnx") in out
    assert "the export that was there is replaced" in out
