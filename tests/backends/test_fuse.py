"""Neighbours are joined where one kernel does their work, and only there."""

import sys
from collections import Counter

import nnspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from nnspec.backends.onnx import emit, write
from nnspec.checkpoints import weight_file
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics
from safetensors.torch import save_file

SMALL = {"gpt2": {"layers": 2, "width": 32, "heads": 2, "hidden": 40, "vocab": 31},
         "llama-3-8b": {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 40, "vocab": 31},
         "bert-base": {"layers": 2, "width": 24, "heads": 3, "hidden": 40, "vocab": 31}}


def load(name):
    known = nnspec.load(name).graph.sizes
    return nnspec.load(name, {k: v for k, v in SMALL[name].items() if k in known})


def ops(model, target="ort-cpu", without=()):
    return Counter(n.op_type for n in emit(model.lowered, target, "float32", without).model.graph.node)


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_gpt2_is_left_with_what_it_computes(target):
    found = ops(load("gpt2"), target, ["length", "keep"])
    joined = 5 if target == "ort-cuda" else 0                                             # 2 a layer and the last
    assert (found["SkipLayerNormalization"], found["LayerNormalization"]) == (joined, 5 - joined)
    assert found["FastGelu"] == 2 and found["Gelu"] == 0
    assert found["Transpose"] == 1 and found["Reshape"] == 0                              # the tied table's; heads need none
    # The biases of q, k and v, packed on CUDA; where norms stand alone also two projections' biases, two sums a layer and positions.
    assert found["Add"] == (2 if joined else 2 * 3 + 1 + 2 * 4)
    assert (found["MatMul"], found["Split"]) == ((2 * 4 + 1, 2) if joined else (2 * 6 + 1, 0))


def test_rotary_positions_keep_heads_flat():
    found = ops(load("llama-3-8b"), "ort-cpu", ["length", "keep"])
    assert found["RotaryEmbedding"] == 4 and found["Transpose"] == found["Reshape"] == 0
    assert found["RMSNormalization"] == 5
    assert ops(load("llama-3-8b"), "ort-cuda", ["length", "keep"])["SkipSimplifiedLayerNormalization"] == 4


def test_the_portable_file_has_plain_operators_only():
    assert not {"SkipLayerNormalization", "FastGelu", "BiasGelu"} & set(ops(load("gpt2"), "portable"))


def feeds_of(session, rng):
    """Random inputs: 3 rows of 7 positions, one of no length."""
    made = {}
    for i in session.get_inputs():
        shape = (3, 7)[:len(i.shape)]
        made[i.name] = rng.random(shape) > 0.3 if i.type == "tensor(bool)" else rng.integers(0, 2 if i.name == "segments" else 31, shape)
        made[i.name] = np.array([7, 0, 4]) if i.name == "length" else made[i.name]
    return made


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("without", [(), ("keep",), ("keep", "length")], ids="-".join)
def test_fused_and_plain_files_agree(name, dtype, without, tmp_path):
    """At a typical length of 2048 the CPU gets operators that have no mask, where they are legal."""
    model = load(name)
    state = model.module(seed=1).state_dict()
    without = [w for w in without if any(a.name == w for a in model.graph.root.arguments)]
    out, seen = [], set()
    for target, typical in (("ort-cpu", None), ("ort-cpu", {"S": 2048}), ("ort-cuda", None), ("portable", None)):
        emitted = emit(model.lowered, target, dtype, without, typical=typical)
        seen |= {n.op_type for n in emitted.model.graph.node}
        write(emitted, tmp_path / target, lambda p: state[p].numpy() + 0.01)
        session = ort.InferenceSession(str(tmp_path / target / "model.onnx"), providers=["CPUExecutionProvider"])
        out.append(session.run(None, feeds_of(session, np.random.default_rng(3)))[0].astype(np.float64))
    scale = np.abs(out[-1]).max()
    for fused in out[:-1]:
        np.testing.assert_allclose(fused, out[-1], atol=scale * (2e-6 if dtype == "float32" else 4e-3))
    if "keep" in without:
        assert "GroupQueryAttention" in seen


@pytest.mark.parametrize("without", [["keep"], ["keep", "length"]], ids="-".join)
def test_heads_stay_flat_around_every_kind_of_attention(without):
    for name, target, dtype, typical, kind in (
            ("gpt2", "ort-cpu", "float32", None, "Attention"), ("gpt2", "ort-cuda", "float32", None, "Attention"),
            ("gpt2", "ort-cpu", "float32", {"S": 1024}, "GroupQueryAttention"),
            ("llama-3-8b", "ort-cpu", "float16", None, "GroupQueryAttention"),
            ("llama-3-8b", "ort-cpu", "float32", {"S": 4096}, "GroupQueryAttention"),
            ("llama-3-8b", "ort-cuda", "float16", None, "Attention")):
        found = Counter(n.op_type for n in emit(load(name).lowered, target, dtype, without, typical=typical).model.graph.node)
        assert found[kind] == 2 and found["Reshape"] == 0, (name, target)
        assert found["Transpose"] == (1 if name == "gpt2" else 0)                          # the tied table's
        assert found["Where"] == (0 if "length" in without else 2)


def test_multi_head_attention_is_flat_too(tmp_path):
    model = load("bert-base")
    emitted = emit(model.lowered, "ort-cpu", "float32", ["length"], typical={"S": 1024})
    found = Counter(n.op_type for n in emitted.model.graph.node)
    assert found["MultiHeadAttention"] == 2 and found["Transpose"] == found["Reshape"] == found["Attention"] == 0
    site = next(s for s in emitted.sites if s["op"] == "attention")
    assert site["form"] == "MultiHeadAttention" and site["fused"]
    assert site["missed"] == [{"form": "Attention-24", "reason":
                               "MultiHeadAttention is faster on the CPU from 1024 keys on, and S = 1024 is typical"}]


PROJECTIONS = """
nnspec: 1
inputs: {{x: "float[B, S, 6]"}}
graph:
  some: {{block: two, in: x}}
outputs: {{a: some.a, b: some.b}}
blocks:
  two:
    inputs: {{in: "float[B, S, 6]"}}
    graph:
      a: {{op: linear, in: in, width: {width}{a}}}
      b: {{op: linear, in: in, width: 5{b}}}
    outputs: {{a: a, b: b}}
"""


def packed(model):
    return [r for r in emit(model.lowered, "ort-cuda").weights if r.kind in ("packed", "joined")]


@pytest.mark.parametrize(("width", "a", "b", "kinds"), [
    (3, "", "", ["packed", "joined"]), (3, ", bias: false", ", bias: false", ["packed"]), (3, ", bias: false", "", []),
    (5, "", ", weight: a.weight, bias: a.bias", []), (5, "", ", weight: a.weight", [])])
def test_projections_of_one_value_are_packed_where_nothing_else_reads_their_weights(tmp_path, width, a, b, kinds):
    (tmp_path / "spec.yaml").write_text(PROJECTIONS.lstrip().format(width=width, a=a, b=b))
    model = nnspec.load(tmp_path / "spec.yaml")
    assert [r.kind for r in packed(model)] == kinds
    if kinds:
        assert packed(model)[0].shape == (6, width + 5) and packed(model)[0].parameters == ("some.a.weight", "some.b.weight")
    assert model.export(tmp_path / "out", init=2, target="ort-cuda").certificate["status"] == "passed"


def test_what_is_packed_in_the_library():
    assert [r.parameters for r in packed(load("llama-3-8b"))][:2] == [
        tuple(f"layers.0.attention.{p}.weight" for p in ("query", "key", "value")),
        tuple(f"layers.0.ffn.{p}.weight" for p in ("gate", "up"))]
    assert [r.kind for r in packed(load("bert-base"))] == ["packed", "joined"] * 2


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("float16", "float32")])
def test_packed_weights_stream(tmp_path, monkeypatch, dtypes):
    """Large tensors are read some numbers at a time, and the file has the same bytes."""
    (tmp_path / "spec.yaml").write_text(PROJECTIONS.lstrip().format(width=301, a="", b="").replace("6]", "57]"))
    model = nnspec.load(tmp_path / "spec.yaml")
    state = model.module(seed=3).state_dict()
    file = tmp_path / "w.safetensors"
    save_file({n: t.to(getattr(torch, dtypes["some.a" in n])) for n, t in state.items()}, file)
    whole = model.export(tmp_path / "whole", weights=file, certify="none", target="ort-cuda")
    read, plain = [], weight_file.WeightFile.deferred

    def deferred(self, *given):
        found = plain(self, *given)
        return found and weight_file.Deferred(found.shape, lambda *at: read.append(at) or found.read(*at))

    monkeypatch.setattr(weight_file, "LARGE", 200)
    monkeypatch.setattr(sys.modules["nnspec.backends.onnx.write"], "CHUNK", 1009)
    monkeypatch.setattr(weight_file.WeightFile, "deferred", deferred)
    streamed = model.export(tmp_path / "streamed", weights=file, certify="none", target="ort-cuda")
    assert streamed == whole and len(read) > 10 and max(stop - start for start, stop in read) <= 1009


SPEC = """
nnspec: 1
inputs: {{x: "float[B, S, 6]", y: "float[B, S, 6]", row: "float[1, S, 6]"}}
graph:
  sum: {{op: add, in: {pair}}}
  norm: {{op: layer_norm, in: sum}}
  more: {{op: add, in: [norm, sum]}}
outputs: {outputs}
"""


@pytest.mark.parametrize(("pair", "outputs", "joined"), [
    ("[x, y]", "[more]", True), ("[x, y]", "[more, sum]", True), ("[x, row]", "[more]", False)])
def test_a_sum_that_others_read_stays(pair, outputs, joined, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.format(pair=pair, outputs=outputs))
    model = nnspec.load(path)
    found = ops(model, "ort-cuda")
    assert found["SkipLayerNormalization"] == joined and found["LayerNormalization"] == (not joined)
    assert model.export(tmp_path / "out", init=0, target="ort-cuda").certificate["status"] == "passed"


def test_typical_sizes_are_given_by_name(tmp_path, capsys):
    command = ["export", "gpt2", "-o", str(tmp_path / "out"), "--no-weights", "--sites", "--without", "keep", "--typical"]
    for name, size in SMALL["gpt2"].items():
        command[2:2] = ["--set", f"{name}={size}"]
    with pytest.raises(SystemExit) as done:
        main([*command, "B=2, S=1024"])
    shown = capsys.readouterr().out
    assert not done.value.code and "attended: GroupQueryAttention" in shown
    assert "not Attention-24: causal GroupQueryAttention is faster on the CPU from 1024 keys on, and S = 1024 is typical" in shown
    for wrong, told in (("T=9", "the model has no free dimension `T` to have a typical size"), ("S=x", "`--typical S=x` is not DIM=N"),
                        ("S=0", "a number of at least 1"), ("S=2,S=3", "given twice")):
        with pytest.raises(SystemExit) as done:
            main([*command, wrong])
        assert done.value.code == 2 and told in capsys.readouterr().err


LARGE = """
nnspec: 1
inputs: {x: "float[B, S, 4]", keep: "bool[B, S, 4]"}
graph:
  hidden: {op: mask_fill, in: x, keep: keep, value: -1e9}
  large: {op: scale, in: hidden, by: 1e6, round: dtype}
  fine: {op: scale, in: large, by: 1e6}
  ends: {op: scale, in: fine, by: -65504.0, round: dtype}
  all: {repeat: 2, block: more, in: ends}
outputs: {y: all}
blocks:
  more:
    inputs: {in: "float[B, S, 4]"}
    graph: {up: {op: scale, in: in, by: 7e4, round: dtype}}
    outputs: {out: up}
"""


@pytest.mark.filterwarnings("error")
def test_numbers_of_a_spec_that_float16_cannot_hold_are_told(tmp_path):
    """Every one at its line, those of copies once; bfloat16 and float32 hold them."""
    (tmp_path / "spec.yaml").write_text(LARGE.lstrip())
    model = nnspec.load(tmp_path / "spec.yaml")
    for target in ("ort-cuda", "ort-cpu", "portable"):
        with pytest.raises(Diagnostics) as found:
            emit(model.lowered, target, "float16")
        assert [(d.code, d.labels[0].span.line) for d in found.value.items] == [("number-too-large", n) for n in (4, 5, 13)]
        assert found.value.items[0].headline == "`mask_fill` needs -1e+09 in float16, which ends at 65504"
        assert "bfloat16 or float32" in found.value.items[0].helps[0]
        emit(model.lowered, target)
    emit(model.lowered, "ort-cuda", "bfloat16")


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_silu_becomes_one_kernel(target, tmp_path):
    """ONNX Runtime joins Sigmoid and Mul to QuickGelu in float32, also where gate and up are packed."""
    model = load("llama-3-8b")
    state = model.module(seed=1).state_dict()
    write(emit(model.lowered, target, "float32", ["keep"]), tmp_path, lambda p: state[p].numpy())
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    found = Counter(n.op_type for n in onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node)
    assert found["QuickGelu"] == 2 and found["Sigmoid"] == 0
