"""Routed branches in ONNX: the MoE kernel of ONNX Runtime, rows gathered for each expert, every expert on every row."""

import math
import sys

import nnspec
import numpy as np
import onnx
import pytest
import torch
import transformers
from nnspec import runtime
from nnspec.backends.onnx import emit, write
from nnspec.checkpoints.weight_file import Deferred
from nnspec.lang.diagnostic import Diagnostics
from nnspec.pipeline import front
from onnx import numpy_helper
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

TARGETS = ("ort-cpu", "ort-cuda", "portable")
HEAD = """
nnspec: 1
name: small
use: [ffn]
sizes: {experts: 5, k: 2, width: 8, hidden: 12}
inputs: {x: "float[B, S, width]"}
"""
# weights that do not sum to 1, of which some are 0
SIGMOID = """
graph:
  score: {op: linear, in: x, width: experts, bias: false}
  chance: {op: relu, in: score}
  pick: {op: top_k, in: chance, k: k}
  weight: {op: scale, in: pick.values, by: 2.5}
  mix: {branch: experts, block: expert, in: x, route: {weights: weight, indices: pick.indices}}
outputs: {mix: mix}
"""
SOFTMAX = SIGMOID.replace("op: relu", "op: softmax")
GIVEN = """
graph:
  mix: {branch: experts, block: expert, in: x, route: {weights: w, indices: chosen}}
outputs: {mix: mix}
"""
PLAIN = """
blocks:
  expert:
    inputs: {in: "float[*b, D]"}
    graph:
      inner: {op: linear, in: in, width: 12, bias: BIAS}
      act: {op: ACT, in: inner}
      out: {op: linear, in: act, width: D, bias: BIAS}
"""
GATED = """
blocks:
  expert:
    inputs: {in: "float[*b, D]"}
    graph: {inside: {block: gated_ffn, in: in, hidden: 12, width: 8, activation: ACT, bias: BIAS}}
"""


erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x * sigmoid(x), "identity": lambda x: x, "tanh": np.tanh,
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}


def linear(p, path, x):
    return x @ p[f"{path}.weight"].T + p.get(f"{path}.bias", 0)


def plain_expert(p, path, x, act):
    return linear(p, f"{path}.out", ACTIVATIONS[act](linear(p, f"{path}.inner", x)))


def gated_expert(p, path, x, act):
    path = f"{path}.inside"
    return linear(p, f"{path}.down", ACTIVATIONS[act](linear(p, f"{path}.gate", x)) * linear(p, f"{path}.up", x))


def mixed(expert, x, weights, indices):
    """The sum row by row, in float64."""
    rows = x.reshape(-1, x.shape[-1])
    out = [sum(w * expert(int(i), row) for w, i in zip(ws, chosen, strict=True))
           for row, ws, chosen in zip(rows, weights.reshape(len(rows), -1), indices.reshape(len(rows), -1), strict=True)]
    return np.stack(out).reshape(*x.shape[:-1], -1)


def chosen(chance, k):
    indices = np.argsort(-chance, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(chance, indices, -1), indices


def spec(folder, *parts, **words):
    text = "".join(parts)
    for key, value in words.items():
        text = text.replace(key, value)
    (folder / "spec.yaml").write_text(text.lstrip())
    return folder / "spec.yaml"


def weights_of(model, seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(v.shape).astype(np.float32) * 0.5 for k, v in model.module(seed=0).state_dict().items()}


def agree(path, folder, feeds, want, target="ort-cpu", form=None, dtype="float32", atol=1e-5, arrays=None):
    """ONNX Runtime and PyTorch both give `want(parameters)`; the first in the form said. Returns the model's operators."""
    model = nnspec.load(path)
    arrays = arrays or weights_of(model)
    expected = want({k: v.astype(np.float64) for k, v in arrays.items()})
    module = model.module(seed=0).eval()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()})
    with torch.no_grad():
        np.testing.assert_allclose(module(**{k: torch.from_numpy(v) for k, v in feeds.items()}).numpy(), expected, atol=1e-5, rtol=1e-5)
    emitted = emit(front(path).lowered(), target, dtype)
    write(emitted, folder, arrays.__getitem__)
    if form is not None:
        assert {s["form"] for s in emitted.sites if s["op"] == "moe"} == {form}, emitted.sites
    halves = {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    got = next(iter(runtime.open(folder)(**halves).values()))
    np.testing.assert_allclose(got.astype(np.float64), expected, atol=atol, rtol=atol)
    return emitted


def rows(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def routed(expert, act, gate, k=2, scale=2.5):
    """What the spec with that gate means: numbers of its parameters."""
    def want(feeds):
        def of(p):
            x = feeds["x"].astype(np.float64)
            score = x @ p["score.weight"].T
            chance = np.maximum(score, 0) if gate == "relu" else np.exp(score) / np.exp(score).sum(-1, keepdims=True)
            weights, indices = chosen(chance, k)
            return mixed(lambda i, row: expert(p, f"mix.{i}", row, act), x, weights * scale, indices)
        return of
    return want


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize(("act", "form"), [("relu", "MoE"), ("silu", "MoE"), ("identity", "MoE"), ("gelu_tanh", "MoE"),
                                           ("gelu", "gathered"), ("tanh", "gathered")])
def test_two_matrices(tmp_path, act, form, bias):
    feeds = {"x": rows(3, 5, 8)}
    want = routed(plain_expert, act, "relu")(feeds)
    path = spec(tmp_path, HEAD, SIGMOID, PLAIN, ACT=act, BIAS=bias)
    agree(path, tmp_path / "out", feeds, want, form=form)
    agree(path, tmp_path / "out", feeds, want, "portable", "dense")
    agree(path, tmp_path / "out", feeds, want, "ort-cuda", "MoE" if act in ("relu", "silu", "identity") else "dense")


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize(("act", "form"), [("silu", "MoE"), ("gelu", "gathered"), ("sigmoid", "gathered")])
def test_gated_experts(tmp_path, monkeypatch, act, form, bias):
    monkeypatch.setitem(ACTIVATIONS, "sigmoid", sigmoid)
    feeds = {"x": rows(2, 4, 8)}
    want = routed(gated_expert, act, "relu")(feeds)
    path = spec(tmp_path, HEAD, SIGMOID, GATED, ACT=act, BIAS=bias)
    for target, taken in zip(TARGETS, (form, "MoE" if form == "MoE" else "dense", "dense"), strict=True):
        agree(path, tmp_path / "out", feeds, want, target, taken)


@pytest.mark.parametrize(("b", "s"), [(1, 1), (1, 7), (4, 33)])
@pytest.mark.parametrize(("experts", "k"), [(1, 1), (3, 1), (4, 4), (7, 3)])
def test_numbers_of_rows_and_experts(tmp_path, b, s, experts, k):
    """Odd widths too, which the kernel for the CPU takes."""
    head = HEAD.replace("experts: 5, k: 2, width: 8", f"experts: {experts}, k: {k}, width: 5")
    feeds = {"x": rows(b, s, 5)}
    for gate, text in (("relu", SIGMOID), ("softmax", SOFTMAX)):
        path = spec(tmp_path, head, text, PLAIN, ACT="relu", BIAS="true")
        agree(path, tmp_path / "out", feeds, routed(plain_expert, "relu", gate, k)(feeds), form="MoE")


@pytest.mark.parametrize("axes", ["", "B, ", "B, S, T, "])
def test_axes_of_rows(tmp_path, axes):
    feeds = {"x": rows(*(6, 2, 3)[:axes.count(",")], 8)}
    path = spec(tmp_path, HEAD.replace("B, S, ", axes), SIGMOID, PLAIN, ACT="relu", BIAS="true")
    for target, form in zip(TARGETS, ("MoE", "MoE", "dense"), strict=True):
        agree(path, tmp_path / "out", feeds, routed(plain_expert, "relu", "relu")(feeds), target, form)


def given(weights, k=2):
    """A routed branch whose weights are the op `weights` of an input, and what they are."""
    head = HEAD.replace("width]\"}", f"width]\", given: \"float[B, S, {k}]\", chosen: \"int64[B, S, {k}]\"}}")
    return head + GIVEN.replace("graph:", f"graph:\n  w: {weights}").replace("\n\n", "\n")


@pytest.mark.parametrize("target", TARGETS)
def test_any_weights_that_are_not_negative(tmp_path, target):
    """Zeros, rows of zeros, one expert twice, sums far from 1, numbers far apart."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 6, 3)).astype(np.float32)
    weights[0] *= 1e3
    weights[1] *= 1e-4
    weights[2, :, 0] = 1e-9
    weights[3, :3] = -1
    weights[0, 0] = [1e-30, 3e4, 0]
    indices = rng.integers(0, 5, (4, 6, 3))
    indices[0, 1] = 2
    feeds = {"x": rows(4, 6, 8), "given": weights, "chosen": indices}
    path = spec(tmp_path, given("{op: relu, in: given}", 3), PLAIN, ACT="silu", BIAS="true")

    def want(p):
        return mixed(lambda i, row: plain_expert(p, f"mix.{i}", row, "silu"), feeds["x"].astype(np.float64),
                     np.maximum(weights, 0).astype(np.float64), indices)
    emitted = agree(path, tmp_path / "out", feeds, want, target, "dense" if target == "portable" else "MoE")
    if target != "portable":
        assert "Log" in {n.op_type for n in emitted.model.graph.node}


def test_weights_of_either_sign_are_not_given_to_the_kernel(tmp_path):
    weights, indices = rows(2, 5, 2, seed=8), np.random.default_rng(1).integers(0, 5, (2, 5, 2))
    feeds = {"x": rows(2, 5, 8), "given": weights, "chosen": indices}
    path = spec(tmp_path, given("{op: tanh, in: given}"), PLAIN, ACT="relu", BIAS="false")

    def want(p):
        return mixed(lambda i, row: plain_expert(p, f"mix.{i}", row, "relu"), feeds["x"].astype(np.float64),
                     np.tanh(weights.astype(np.float64)), indices)
    emitted = agree(path, tmp_path / "out", feeds, want, "ort-cpu", "gathered")
    assert emitted.sites[0]["missed"] == [
        {"form": "MoE", "reason": "the routing weights may be negative, by `w` (Tanh), and those of the kernel are a softmax's"}]


SIGNS = {"{op: softmax, in: given}": True, "{op: sigmoid, in: given}": True, "{op: multiply, in: [given, given]}": True, "given": False,
         "{op: scale, in: given, by: 2}": False, "{op: maximum, in: [given, 0.5]}": True, "{op: add, in: [given, 1]}": False,
         "{op: clip, in: given, low: 0}": True, "{op: clip, in: given, low: -1, high: 1}": False}


@pytest.mark.parametrize("weights", SIGNS)
def test_signs_follow_from_the_graph(tmp_path, weights):
    text = given("{op: identity, in: given}" if weights == "given" else weights)
    emitted = emit(front(spec(tmp_path, text, PLAIN, ACT="relu", BIAS="false")).lowered(), "ort-cpu")
    assert (emitted.sites[0]["form"] == "MoE") == SIGNS[weights]


MIXTRAL = """
graph: {mixed: {block: sparse_ffn, in: x, experts: experts, top_k: k,
                expert: {block: gated_ffn, hidden: hidden, activation: silu, bias: false}}}
outputs: {mixed: mixed}
"""


@pytest.mark.parametrize(("target", "dtype", "form"), [
    ("ort-cpu", "float32", "MoE"), ("ort-cuda", "float32", "MoE"), ("portable", "float32", "dense"), ("ort-cpu", "float16", "gathered"),
    ("portable", "float16", "dense")])
def test_equals_the_block_of_mixtral(tmp_path, target, dtype, form):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(hidden_size=8, intermediate_size=12, num_local_experts=5, num_experts_per_tok=2)
    block = MixtralSparseMoeBlock(config).eval()
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.5)
    state = {k: v.detach().numpy() for k, v in block.state_dict().items()}
    arrays = {"mixed.score.weight": state["gate.weight"]}
    for e in range(5):
        both = state["experts.gate_up_proj"][e]
        arrays |= {f"mixed.mix.{e}.gate.weight": both[:12].copy(), f"mixed.mix.{e}.up.weight": both[12:].copy(),
                   f"mixed.mix.{e}.down.weight": state["experts.down_proj"][e].copy()}
    x = rows(3, 11, 8)
    with torch.no_grad():
        theirs = block(torch.from_numpy(x))
    theirs = (theirs[0] if isinstance(theirs, tuple) else theirs).numpy()
    emitted = agree(spec(tmp_path, HEAD, MIXTRAL), tmp_path / "out", {"x": x}, lambda p: theirs, target, form, dtype,
                    1e-5 if dtype == "float32" else 2e-2, arrays)
    kinds = [n.op_type for n in emitted.model.graph.node]
    if form == "MoE":                       # softmax, choice and scaling are the kernel's
        assert kinds == ["MatMul", "Reshape", "MoE", "Identity"]


def test_the_logits_of_a_softmax_are_not_taken_for_those_of_part_of_it(tmp_path):
    """Chances that were changed before the choice, or whose sum is of others, go through the logarithm."""
    changed = SOFTMAX.replace("pick: {op: top_k, in: chance,", "odd: {op: scale, in: chance, by: 3}\n  pick: {op: top_k, in: odd,")
    path = spec(tmp_path, HEAD, changed, PLAIN, ACT="relu", BIAS="true")
    feeds = {"x": rows(2, 3, 8)}
    emitted = agree(path, tmp_path / "out", feeds, routed(plain_expert, "relu", "softmax", scale=7.5)(feeds), form="MoE")
    assert "Log" in {n.op_type for n in emitted.model.graph.node}
    path = spec(tmp_path, HEAD, SOFTMAX.replace("by: 2.5", "by: 1"), PLAIN, ACT="relu", BIAS="true")
    agree(path, tmp_path / "out", feeds, routed(plain_expert, "relu", "softmax", scale=1)(feeds), form="MoE")


SHARED = """
graph:
  deep: {repeat: 3, block: layer, in: x}
outputs: {deep: deep}
blocks:
  layer:
    inputs: {in: "float[B, S, D]"}
    graph:
      routed: {block: sparse_ffn, in: in, experts: 4, top_k: 2, expert: {block: gated_ffn, hidden: 7, activation: silu, bias: false}}
      shared: {block: plain_ffn, in: in, hidden: 9}
      out: {op: add, in: [in, routed, shared]}
"""


def test_in_a_repeat_beside_an_expert_for_all(tmp_path):
    def want(p):
        x = feeds["x"].astype(np.float64)
        for n in range(3):
            at = f"deep.{n}"
            score = x @ p[f"{at}.routed.score.weight"].T
            weights, indices = chosen(np.exp(score), 2)

            def expert(i, row, at=at):
                e = f"{at}.routed.mix.{i}"
                return linear(p, f"{e}.down", ACTIVATIONS["silu"](linear(p, f"{e}.gate", row)) * linear(p, f"{e}.up", row))
            routed = mixed(expert, x, weights / weights.sum(-1, keepdims=True), indices)
            x = x + routed + linear(p, f"{at}.shared.down", np.maximum(linear(p, f"{at}.shared.up", x), 0))
        return x
    feeds = {"x": rows(2, 9, 8)}
    arrays = {k: v * 0.5 for k, v in weights_of(nnspec.load(spec(tmp_path, HEAD, SHARED))).items()}
    for target, form in (("ort-cpu", "MoE"), ("portable", "dense")):
        emitted = agree(tmp_path / "spec.yaml", tmp_path / target, feeds, want, target, form, arrays=arrays)
        assert len(emitted.sites) == 3
        held = {r.name: r for r in emitted.weights}
        assert sum(np.prod(r.shape) for r in held.values()) == sum(v.size for v in arrays.values())


NORMED = """
blocks:
  expert:
    inputs: {in: "float[*b, D]"}
    graph:
      norm: {op: NORM, in: in}
      up: {op: linear, in: norm, width: 12}
      act: {op: gelu, in: up}
      down: {op: linear, in: act, width: 6}
      out: {op: softmax, in: down}
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_gathered_experts_without_rows(tmp_path, norm, dtype):
    path = spec(tmp_path, HEAD, SIGMOID, NORMED, NORM=norm)
    model = nnspec.load(path)
    arrays = weights_of(model)
    module = model.module(seed=0).eval()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()})
    emitted = emit(front(path).lowered(), "ort-cpu", dtype)
    write(emitted, tmp_path / "out", arrays.__getitem__)
    assert [s["form"] for s in emitted.sites if s["op"] == "moe"] == ["gathered"]
    for shape in ((1, 1, 8), (3, 5, 8)):
        x = rows(*shape)
        with torch.no_grad():
            want = module(x=torch.from_numpy(x)).numpy()
        got = runtime.open(tmp_path / "out")(x=x.astype(dtype))["mix"]
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float32), want, atol=1e-5 if dtype == "float32" else 3e-2)


REFUSED = {
    "experts share": (SIGMOID.replace("block: expert,", "block: expert, share: i // 2,"), PLAIN, "experts share their weights"),
    "another width": (SIGMOID, PLAIN.replace("width: D", "width: 6"), "give 6"),
    "no matrices": (SIGMOID, PLAIN + "      end: {op: tanh, in: out}\n",
                    "result is no `linear`"),
    "neither": (SIGMOID.replace("block: expert,", "op: linear, width: 8,"), "", "no two matrices"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_is_not_for(tmp_path, case):
    text, block, reason = REFUSED[case]
    emitted = emit(front(spec(tmp_path, HEAD, text, block, ACT="relu", BIAS="true")).lowered(), "ort-cpu")
    (site,) = [s for s in emitted.sites if s["op"] == "moe"]
    assert site["form"] == "gathered" and reason in site["missed"][0]["reason"]


def test_widths_of_cuda(tmp_path):
    path = spec(tmp_path, HEAD, SIGMOID, PLAIN, ACT="relu", BIAS="true")
    graph = front(path).lowered()
    (wide,), (half,) = (emit(graph, "ort-cuda", dtype).sites for dtype in ("float32", "float16"))
    assert wide["form"] == "MoE" and half["form"] == "dense" and "multiples of 8" in half["missed"][0]["reason"]


def test_the_contract(tmp_path):
    path = spec(tmp_path, HEAD + "expect: {moe: fused}\n", MIXTRAL)
    manifest = nnspec.load(path).export(tmp_path / "out", init=1, target="ort-cpu")
    assert [(s["path"], s["op"], s["form"], s["fused"]) for s in manifest.sites] == [("mixed.mix", "moe", "MoE", True)]
    assert manifest.certificate["status"] == "passed"
    nnspec.load(path).export(tmp_path / "portable", init=1, target="portable", certify="none")
    path = spec(tmp_path, HEAD + "expect: {mixed.mix: MoE}\n", MIXTRAL.replace("activation: silu", "activation: gelu"))
    with pytest.raises(Diagnostics) as caught:
        nnspec.load(path).export(tmp_path / "gelu", init=1, target="ort-cpu")
    assert "not `MoE`: the kernel's gate is silu, and here it is gelu" in caught.value.items[0].notes


def test_packed_experts_are_those_of_the_parameters(tmp_path):
    graph = front(spec(tmp_path, HEAD, MIXTRAL)).lowered()
    arrays = weights_of(nnspec.load(tmp_path / "spec.yaml"))
    asked = []

    def tensors(path):
        asked.append(path)
        return arrays[path]
    emitted = emit(graph, "ort-cpu")
    write(emitted, tmp_path / "out", tensors)
    assert sorted(asked) == sorted(arrays)                                         # each once
    model = onnx.load(tmp_path / "out" / "model.onnx")
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    node = next(n for n in model.graph.node if n.op_type == "MoE")
    first, second = held[node.input[2]], held[node.input[4]]
    for e in range(5):
        at = f"mixed.mix.{e}"
        assert np.array_equal(first[e, ::2], arrays[f"{at}.gate.weight"]) and np.array_equal(first[e, 1::2], arrays[f"{at}.up.weight"])
        assert np.array_equal(second[e], arrays[f"{at}.down.weight"])


def test_large_experts_are_read_piece_by_piece(tmp_path, monkeypatch):
    """Of tensors still in their file no more is read at a time than is converted at a time, and no more often than once."""
    monkeypatch.setattr(sys.modules[write.__module__], "CHUNK", 40)
    arrays = weights_of(nnspec.load(spec(tmp_path, HEAD.replace("width: 8", "width: 7"), MIXTRAL)))
    reads = []

    def tensors(path):
        def read(start, stop):
            reads.append(stop - start)
            return arrays[path].reshape(-1)[start:stop]
        return Deferred(arrays[path].shape, read)
    write(emit(front(tmp_path / "spec.yaml").lowered(), "ort-cpu"), tmp_path / "deferred", tensors)
    write(emit(front(tmp_path / "spec.yaml").lowered(), "ort-cpu"), tmp_path / "plain", arrays.__getitem__)
    assert {p.name: p.read_bytes() for p in (tmp_path / "deferred").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "plain").iterdir()}
    assert max(reads) <= 40 and sum(reads) < 1.5 * sum(v.size for v in arrays.values())


def test_half_precision_has_small_weights(tmp_path):
    """Weights of 1/1000 have logarithms of which float16 would lose two digits; relative to the largest it keeps them."""
    weights = np.abs(rows(2, 30, 2, seed=5)) * 1e-3
    feeds = {"x": rows(2, 30, 8), "given": weights, "chosen": np.random.default_rng(1).integers(0, 5, (2, 30, 2))}
    path = spec(tmp_path, given("{op: relu, in: given}"), PLAIN.replace("width: 12", "width: 16"), ACT="relu", BIAS="false")
    graph, arrays = front(path).lowered(), weights_of(nnspec.load(path))
    emitted = emit(graph, "ort-cuda", "float16")
    assert emitted.sites[0]["form"] == "MoE"
    write(emitted, tmp_path / "out", arrays.__getitem__)
    got = runtime.open(tmp_path / "out")(x=feeds["x"].astype("f2"), given=weights.astype("f2"), chosen=feeds["chosen"])["mix"]
    want = mixed(lambda i, row: plain_expert(arrays, f"mix.{i}", row, "relu"), feeds["x"], weights, feeds["chosen"])
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


IN_SCAN = """
graph:
  steps: {scan: step, along: S, each: {x: x}, carry: {h: start}}
outputs: {y: steps.y}
blocks:
  step:
    inputs: {x: "float[B, D]", h: "float[B, D]"}
    graph:
      sum: {op: add, in: [x, h]}
      score: {op: linear, in: sum, width: 4, bias: false}
      chance: {op: softmax, in: score}
      pick: {op: top_k, in: chance, k: 2}
      y: {branch: 4, block: plain_ffn, in: sum, hidden: 6, route: {weights: pick.values, indices: pick.indices}}
    outputs: {y: y, h: y}
"""


@pytest.mark.parametrize(("target", "form"), [("ort-cpu", "MoE"), ("ort-cpu", "gathered"), ("portable", "dense")])
def test_in_the_step_of_a_scan(tmp_path, target, form):
    head = HEAD.replace("width]\"}", "width]\", start: \"float[B, width]\"}")
    text = IN_SCAN if form != "gathered" else IN_SCAN.replace("hidden: 6,", "hidden: 6, activation: gelu,")
    act = "gelu" if form == "gathered" else "relu"
    feeds = {"x": rows(3, 5, 8) * 0.3, "start": rows(3, 8, seed=9)}

    def want(p):
        p = {k: v * 1.0 for k, v in p.items()}
        h, out = feeds["start"].astype(np.float64), []
        for t in range(5):
            s = feeds["x"][:, t] + h
            score = np.exp(s @ p["steps.score.weight"].T)
            w, i = chosen(score / score.sum(-1, keepdims=True), 2)
            h = mixed(lambda e, row: linear(p, f"steps.y.{e}.down", ACTIVATIONS[act](linear(p, f"steps.y.{e}.up", row))), s, w, i)
            out.append(h)
        return np.stack(out, axis=1)
    path = spec(tmp_path, head, text)
    arrays = {k: v * 0.5 for k, v in weights_of(nnspec.load(path)).items()}
    agree(path, tmp_path / "out", feeds, want, target, form, arrays=arrays)
