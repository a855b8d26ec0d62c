"""Neighbours are joined where one kernel does their work, and only there."""

from collections import Counter

import nnspec
import numpy as np
import onnxruntime as ort
import pytest
from nnspec.backends.onnx import emit, write

SMALL = {"gpt2": {"layers": 2, "width": 24, "heads": 3, "hidden": 40, "vocab": 31},
         "llama-3-8b": {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 40, "vocab": 31},
         "bert-base": {"layers": 2, "width": 24, "heads": 3, "hidden": 40, "vocab": 31}}


def load(name):
    known = nnspec.load(name).graph.sizes
    return nnspec.load(name, {k: v for k, v in SMALL[name].items() if k in known})


def ops(model, target="ort-cpu", without=()):
    return Counter(n.op_type for n in emit(model.lowered, target, "float32", without).model.graph.node)


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_gpt2_is_left_with_what_it_computes(target):
    found = ops(load("gpt2"), target, ["length"])
    joined = 5 if target == "ort-cuda" else 0                                             # 2 a layer and the last
    assert (found["SkipLayerNormalization"], found["LayerNormalization"]) == (joined, 5 - joined)
    assert found["FastGelu"] == 2 and found["Gelu"] == 0
    assert found["Transpose"] == 1 and found["Reshape"] == 0                              # the tied table's; heads need none
    assert found["Add"] == 2 * 3 + (0 if joined else 1 + 2 * 4)    # the biases of q, k and v; where norms stand alone, two
                                                                   # projections' biases and two sums a layer, and positions


def test_rotary_positions_keep_heads_flat():
    found = ops(load("llama-3-8b"), "ort-cpu", ["length"])
    assert found["RotaryEmbedding"] == 4 and found["Transpose"] == found["Reshape"] == 0
    assert found["RMSNormalization"] == 5
    assert ops(load("llama-3-8b"), "ort-cuda", ["length"])["SkipSimplifiedLayerNormalization"] == 4


def test_the_portable_file_has_plain_operators_only():
    assert not {"SkipLayerNormalization", "FastGelu", "BiasGelu"} & set(ops(load("gpt2"), "portable"))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fused_and_plain_files_agree(name, dtype, tmp_path):
    model = load(name)
    state = model.module(seed=1).state_dict()
    out = []
    for target in ("ort-cpu", "ort-cuda", "portable"):
        write(emit(model.lowered, target, dtype), tmp_path / target, lambda p: state[p].numpy() + 0.01)
        session = ort.InferenceSession(str(tmp_path / target / "model.onnx"), providers=["CPUExecutionProvider"])
        feeds = {i.name: np.array([7, 4, 1]) if len(i.shape) == 1 else
                 np.random.default_rng(3).integers(0, 2 if i.name == "segments" else 31, (3, 7)) for i in session.get_inputs()}
        out.append(session.run(None, feeds)[0].astype(np.float64))
    scale = np.abs(out[2]).max()
    for fused in out[:2]:
        np.testing.assert_allclose(fused, out[2], atol=scale * (2e-6 if dtype == "float32" else 4e-3))


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
