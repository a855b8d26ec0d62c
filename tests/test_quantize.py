"""Integer weights: what the file holds, what it computes, what the manifest says of the change, and what stays as it was."""

import json
import sys

import nnspec
import numpy as np
import onnx
import pytest
import torch
import zoo
from nnspec import runtime
from nnspec.artifacts.plan import Quantization
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.decoder import decoder
from nnspec.runtime.errors import ArtifactError
from nnspec.runtime.manifest import read
from onnx import numpy_helper

BITS = {"int4": 4, "int8": 8}


def products(folder, name="model.onnx"):
    """Every MatMulNBits node of a file, in loops too, with its arrays and settings."""
    model = onnx.load(folder / name)
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}

    def walk(graph):
        for node in graph.node:
            if node.op_type == "MatMulNBits":
                yield node, [held[n] for n in node.input[1:]], {a.name: a.i for a in node.attribute}
            for attribute in node.attribute:
                yield from walk(attribute.g)
    return [*walk(model.graph)]


def dequantised(numbers, scales, zeros, settings):
    """[o, i] floats of a product's arrays, unpacked here."""
    outputs, blocks = scales.shape
    if settings["bits"] == 4:
        numbers = np.stack([numbers & 15, numbers >> 4], -1).reshape(outputs, blocks, -1)
        zeros = np.stack([zeros & 15, zeros >> 4], -1).reshape(outputs, -1)[:, :blocks]
    floats = (numbers.astype(np.float32) - zeros[..., None].astype(np.float32)) * scales[..., None].astype(np.float32)
    return floats.reshape(outputs, -1)[:, :settings["K"]]


def path(node):
    return next(p.value for p in node.metadata_props if p.key == "nnspec.path")


def replaced(name, folder):
    """The module with the weights that the file's integers stand for, and how many there are."""
    module = zoo.stir(zoo.model(name).module(seed=1))
    state, count = module.state_dict(), 0
    for node, arrays, settings in products(folder):
        floats, scales, under = dequantised(*arrays, settings), arrays[1], path(node)
        weights = [k for k in state if k.startswith(under) and k.endswith(".weight") and state[k].dim() == 2 and "." not in
                   k.removeprefix(under).removesuffix(".weight").lstrip(".")]
        weights = [k for k in weights if not (under.endswith("attention") and k.endswith("output.weight"))]
        weights = [k for k in weights if not (under.endswith("ffn") and k.endswith("down.weight"))]
        own = torch.cat([state[k] for k in weights]).numpy()
        assert own.shape == floats.shape, (under, weights)
        step = np.repeat(scales, settings["block_size"], -1)[:, :own.shape[1]]
        assert (np.abs(own - floats) <= 1.01 * step).all() and np.abs(own - floats).max() > 0
        for key, part in zip(weights, np.split(floats, np.cumsum([len(state[k]) for k in weights])[:-1]), strict=True):
            state[key].copy_(torch.from_numpy(part))
            count += 1
    return module, count


@pytest.mark.parametrize("name, kind, block", [
    ("gpt2", "int4", 32), ("llama-3-8b", "int4", 16), ("llama-3-8b", "int8", 32), ("bert-base", "int8", 128),
    ("hard/t5", "int8", 16), ("hard/moe", "int4", 16)])
def test_the_file_computes_what_its_integers_say(tmp_path, name, kind, block):
    manifest = zoo.model(name).export(tmp_path, weights=zoo.stirred(name), quantize=Quantization(kind, block))
    module, count = replaced(name, tmp_path)
    assert count == manifest.quantization["weights"] > 7
    arrays = zoo.draw(name, {"B": 3, "S": 9, "T": 7})
    got = runtime.open(tmp_path, verify=True)(**arrays)
    given = [torch.from_numpy(arrays[a]) for a in manifest.input_names]
    with torch.no_grad():
        made = module(*given)
    made = made if isinstance(made, dict) else {manifest.outputs[0].name: made}
    for key, want in made.items():
        np.testing.assert_allclose(got[key], want.numpy(), atol=2e-4 * float(want.abs().max()))


def stored(folder, manifest):
    return sum(np.prod(t.dims, dtype=int) * {1: 4, 2: 1, 10: 2, 16: 2}[t.data_type] for t in onnx.load(
        folder / manifest.model.file, load_external_data=False).graph.initializer if t.external_data or ":" in t.name or "." in t.name
        and "/" not in t.name)


def test_what_the_manifest_says(tmp_path):
    model, module = zoo.model("llama-3-8b"), zoo.stirred("llama-3-8b")
    plain = model.export(tmp_path / "plain", weights=module)
    manifest = model.export(tmp_path / "int4", weights=module, quantize="int4")
    assert manifest == read(tmp_path / "int4") and plain.quantization is None
    told = manifest.quantization
    assert (told["kind"], told["block"], told["skipped"], told["shared"]) == ("int4", 32, [], [])
    assert told["weights"] == 2 * 7 + 1
    assert told["bytes"] == {"before": 4 * model.parameters, "after": stored(tmp_path / "int4", manifest)}
    assert told["bytes"]["after"] < told["bytes"]["before"] / 2
    far = told["outputs"]["logits"]
    assert 0 < far["mean_abs"] < far["max_abs"] and 0 < far["max_rel"] < 1
    assert manifest.certificate["status"] == "passed" and manifest.certificate["max_rel"] < 1e-4
    assert manifest.certificate["note"] == "of the model before its weights were quantised"
    assert sorted(p.name.partition("-")[0] for p in (tmp_path / "int4").iterdir()) == ["manifest.json", "model.onnx", "weights"]


def test_more_bits_change_less(tmp_path):
    far = {}
    for kind in BITS:
        manifest = zoo.model("gpt2").export(tmp_path / kind, weights=zoo.stirred("gpt2"), quantize=kind, certify="none")
        far[kind] = manifest.quantization["outputs"]["logits"]
    assert far["int8"]["max_abs"] < far["int4"]["max_abs"] / 5 and far["int8"]["mean_abs"] < far["int4"]["mean_abs"] / 5


def test_tied_weights_are_there_once(tmp_path):
    manifest = zoo.model("gpt2").export(tmp_path, weights=zoo.stirred("gpt2"), quantize="int8", certify="none")
    held = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer
    assert [(t.name, [*t.dims]) for t in held if "embed" in t.name] == [("embed.weight", [43, 24])]
    assert manifest.quantization["shared"] == ["embed.weight"]


def test_nodes_keep_their_paths_and_names(tmp_path):
    model, module = zoo.model("gpt2"), zoo.stirred("gpt2")
    model.export(tmp_path / "plain", weights=module, certify="none")
    model.export(tmp_path / "int4", weights=module, quantize="int4", certify="none")
    nodes = [[(n.name, *sorted((p.key, p.value) for p in n.metadata_props)) for n in onnx.load(
        tmp_path / k / "model.onnx", load_external_data=False).graph.node] for k in ("plain", "int4")]
    assert nodes[0] == nodes[1]
    assert {path(n) for n, _, _ in products(tmp_path / "int4")} == {
        f"layers.{k}.{p}" for k in (0, 1) for p in
        ("attention.query", "attention.key", "attention.value", "attention.output", "ffn.up", "ffn.down")}


def test_layers_that_are_skipped(tmp_path):
    module = zoo.stirred("llama-3-8b")
    manifest = zoo.model("llama-3-8b").export(tmp_path, weights=module, certify="none",
                                              quantize=Quantization("int4", skip=("logits", "layers.*.ffn", "layers.1.attention.key")))
    assert {path(n) for n, _, _ in products(tmp_path)} == {
        f"layers.{k}.attention.{p}" for k in (0, 1) for p in ("query", "key", "value", "output")} - {"layers.1.attention.key"}
    assert manifest.quantization["skipped"] == ["logits", "layers.*.ffn", "layers.1.attention.key"]
    assert manifest.quantization["weights"] == 7


def test_paths_that_hold_nothing_are_told_together(tmp_path):
    with pytest.raises(Diagnostics) as caught:
        zoo.model("gpt2").export(tmp_path / "out", init=0, quantize=Quantization("int4", skip=("layers.0.fnn", "layers.7")))
    assert [d.code for d in caught.value.items] == ["unknown-path"] * 2
    assert "layers.0.ffn" in str(caught.value.items[0].helps)
    assert not (tmp_path / "out").exists()


def test_nothing_left_to_quantise(tmp_path):
    with pytest.raises(Diagnostics, match="no linear layer is left"):
        zoo.model("gpt2").export(tmp_path / "out", init=0, quantize=Quantization("int4", skip=("layers",)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["additive-seq2seq", "hard/t5", "hard/moe", "vit-base-patch16-224", "whisper-tiny"])
def test_models_of_all_kinds(tmp_path, name):
    """Products inside of loops, of several models, of images."""
    manifest = zoo.model(name).export(tmp_path, weights=zoo.stirred(name), quantize=Quantization("int8", 16))
    assert manifest.certificate["status"] == "passed"
    for far in manifest.quantization["outputs"].values():
        assert 0 < far["mean_abs"] < 0.02 * far["max_abs"] / far["max_rel"]
    assert len({n for node, _, _ in products(tmp_path) for n in node.input[1:]}) % 3 == 0


@pytest.mark.parametrize("name", ["llama-3-8b", "transformer-base"])
def test_step_forms(tmp_path, name):
    """Both models of a step form read the same integers; what they give is what the whole form with integers gives."""
    model, module = zoo.model(name), zoo.stirred(name)
    whole = model.export(tmp_path / "whole", weights=module, quantize="int8", certify="none")
    step = model.export(tmp_path / "step", weights=module, form="step", quantize="int8")
    assert step.certificate["status"] == "passed" and products(tmp_path / "step")
    assert step.quantization["weights"] == whole.quantization["weights"]
    if step.prefix:
        assert products(tmp_path / "step", "prefix.onnx")
    far = step.quantization["outputs"]
    assert far and all(0 < f["max_rel"] < 0.2 for f in far.values())
    if name == "llama-3-8b":
        tokens = zoo.draw(name, {"B": 2, "S": 7})["tokens"]
        got = decoder(tmp_path / "step").start(2).step(tokens=tokens)["logits"]
        want = runtime.open(tmp_path / "whole")(tokens=tokens)["logits"]
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("target", ["genai", "triton"])
def test_packages(tmp_path, target):
    model, module = zoo.model("llama-3-8b"), zoo.stirred("llama-3-8b")
    manifest = model.export(tmp_path, weights=module, target=target, quantize="int4", **({"stop": (3,)} if target == "genai" else {}))
    folder = tmp_path if target == "genai" else tmp_path / model.name / "1"
    assert manifest.certificate["status"] == "passed" and len(products(folder)) > 8
    assert 0 < manifest.quantization["outputs"]["logits"]["max_rel"] < 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(tmp_path, dtype):
    manifest = zoo.model("llama-3-8b").export(tmp_path, weights=zoo.stirred("llama-3-8b"), target="ort-cuda", dtype=dtype, quantize="int4")
    assert manifest.certificate["status"] == "passed"
    assert 0 < manifest.quantization["outputs"]["logits"]["max_rel"] < 1
    kinds = {t.name.rpartition(":")[2]: t.data_type for t in onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer
             if ":" in t.name}
    assert kinds == {"numbers": 2, "zeros": 2, "scales": 10 if dtype == "float16" else 16}
    assert ("bfloat16" in manifest.certificate["note"]) == (dtype == "bfloat16")


def test_models_too_large_to_be_certified_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("nnspec.artifacts.export.LARGEST", 1000)
    manifest = zoo.model("gpt2").export(tmp_path, weights=zoo.stirred("gpt2"), quantize="int8")
    assert "twin" in manifest.certificate["note"] and manifest.quantization["outputs"]["logits"]["max_abs"] > 0


def perplexity(call, tokens):
    total, count = 0.0, 0
    for row in tokens:
        given = torch.log_softmax(torch.as_tensor(call(row[None]))[0].double(), -1)
        for at in range(len(row) - 1):
            total -= float(given[at, row[at + 1]])
            count += 1
    return float(np.exp(total / count))


@pytest.mark.parametrize("form", ["full", "step", "genai"])
def test_perplexities(tmp_path, form):
    model, module = zoo.model("qwen3-0.6b"), zoo.stirred("qwen3-0.6b")
    tokens = np.random.default_rng(5).integers(0, 47, (3, 21))
    np.savez(tmp_path / "ids.npz", tokens=tokens)
    (tmp_path / "ids.json").write_text(json.dumps({"tokens": tokens.tolist()}))
    how = {"target": "genai", "stop": (3,)} if form == "genai" else {"form": form}
    for ids in ("ids.npz", "ids.json"):
        manifest = model.export(tmp_path / "out", weights=module, certify="none", quantize=Quantization("int4", ids=tmp_path / ids), **how)
        told = manifest.quantization["perplexity"]
        assert told["ids"] == 60
        with torch.no_grad():
            assert told["before"] == pytest.approx(perplexity(lambda row: module(torch.from_numpy(row)), tokens), rel=1e-4)
    if form == "full":
        artifact = runtime.open(tmp_path / "out")
        assert told["after"] == pytest.approx(perplexity(lambda row: artifact(tokens=row)["logits"], tokens), rel=1e-6)
    assert told["after"] != pytest.approx(told["before"], rel=1e-6)


@pytest.mark.parametrize("text, told", [
    ('{"ids": [[1, 2]]}', "holds no `tokens`"), ('{"tokens": [[1]]}', "at least 2"), ('{"tokens": [[1.5, 2]]}', "with integers"),
    ("{", "cannot be read"), (None, "no file"), ('{"tokens": [[1, 99]]}', "99")])
def test_ids_that_cannot_be(tmp_path, text, told):
    if text:
        (tmp_path / "ids.json").write_text(text)
    with pytest.raises((Diagnostics, ArtifactError, runtime.ArtifactErrors), match=told):
        zoo.model("gpt2").export(tmp_path / "out", init=0, certify="none", quantize=Quantization("int4", ids=tmp_path / "ids.json"))
    assert not (tmp_path / "out").exists()


def test_a_perplexity_of_no_language_model(tmp_path):
    (tmp_path / "ids.json").write_text('{"tokens": [[1, 2]]}')
    with pytest.raises(Diagnostics, match="this is none"):
        zoo.model("additive-seq2seq").export(tmp_path / "out", init=0, quantize=Quantization("int4", ids=tmp_path / "ids.json"))


def test_without_the_package_of_the_quantiser(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    with pytest.raises(Diagnostics) as caught:
        zoo.model("gpt2").export(tmp_path / "out", init=0, quantize="int4")
    assert "nnspec[quantize]" in caught.value.items[0].helps[0]


@pytest.mark.parametrize("arguments, told", [
    (["--quantize", "int4", "--block", "24"], "cannot have 24 numbers"),
    (["--quantize", "int4", "--target", "portable"], "this export is portable"),
    (["--block", "32"], "`--block` goes with `--quantize`"),
    (["--skip", "logits"], "`--skip` goes with `--quantize`"),
    (["--ids", "ids.npz"], "`--ids` goes with `--quantize`"),
    (["--quantize", "int4", "--target", "ort-cuda", "--prove"], "kernels of a quantised model are not proven"),
])
def test_bad_commands(tmp_path, capsys, arguments, told):
    with pytest.raises(SystemExit) as done:
        main(["export", "gpt2", "--init", "0", "-o", str(tmp_path / "out"), *arguments])
    assert done.value.code == 2 and told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_must_be_there(tmp_path):
    with pytest.raises(Diagnostics, match="needs weights"):
        zoo.model("gpt2").export(tmp_path / "out", no_weights=True, quantize="int4")
    with pytest.raises(Diagnostics, match="int3"):
        zoo.model("gpt2").export(tmp_path / "out", init=0, quantize="int3")


def test_what_is_printed(tmp_path, capsys):
    np.savez(tmp_path / "ids.npz", tokens=np.random.default_rng(2).integers(0, 43, (2, 9)))
    sizes = [f"--set={k}={v}" for k, v in zoo.MODELS["gpt2"].items()]
    with pytest.raises(SystemExit) as done:
        main(["export", "gpt2", *sizes, "--init", "3", "--quantize", "int8", "--ids", str(tmp_path / "ids.npz"), "--skip", "layers.0.ffn",
              "-o", str(tmp_path / "out")])
    out = capsys.readouterr().out
    assert not done.value.code
    for part in ("quantised to int8 in blocks of 32: 10 weights", "`logits` changes by at most", "perplexity", "over 16 ids",
                 "as before: `embed.weight`, read elsewhere too", "as before: `layers.0.ffn`, skipped"):
        assert part in out


def test_a_failure_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    model = zoo.model("gpt2")
    model.export(tmp_path, init=1, certify="none")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fails(*given):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr("nnspec.artifacts.quantize.measured", fails)
    with pytest.raises(Diagnostics, match="No space left"):
        model.export(tmp_path, init=2, quantize="int4", certify="none")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert nnspec.runtime.open(tmp_path, verify=True)
