"""Tensors whose parts differ in size, there and back."""

import numpy as np
import pytest
from nnspec.lang.diagnostic import Diagnostics
from nnspec.model import load
from safetensors.numpy import load_file, save_file

SPEC = """\
nnspec: 1
use: [attention]
sizes: {{width: 12, heads: 6, kv_heads: {kv_heads}}}
inputs: {{x: "float[B, S, width]"}}
graph:
  layers: {{repeat: 2, block: multi_head_attention, in: x, heads: heads, kv_heads: kv_heads, output_bias: false}}
outputs: {{y: layers}}
checkpoint:
  tensors:
    "layers.{{i}}.[query, key, value].weight": {{from: "h.{{i}}.qkv.weight", as: "{weight}"{sizes}}}
    "layers.{{i}}.[query, key, value].bias": {{from: "h.{{i}}.qkv.bias", as: "{bias}"{sizes}}}
    "layers.{{i}}.output.weight": "h.{{i}}.out.weight"
"""
JOINED = {"weight": "(q + k + v) i -> q i, k i, v i", "bias": "(q + k + v) -> q, k, v", "sizes": ""}
TURNED = {**JOINED, "weight": "i (q + k + v) -> q i, k i, v i"}
GROUPED = {"weight": "(g (q + k + v) d) i -> (g q d) i, (g k d) i, (g v d) i", "bias": "(g (q + k + v) d) -> (g q d), (g k d), (g v d)",
           "sizes": ", g: kv_heads, d: width / heads"}


def spec(folder, kv_heads=2, **form):
    (folder / "spec.yaml").write_text(SPEC.format(kv_heads=kv_heads, **{**JOINED, **form}))
    return folder / "spec.yaml"


def packed(query, key, value, form, groups):
    """[q, k, v] in one, as numpy joins them."""
    if form is GROUPED:
        parts = [x.reshape(groups, -1, 2, *x.shape[1:]) for x in (query, key, value)]
        return np.concatenate(parts, 1).reshape(-1, *query.shape[1:])
    joined = np.concatenate([query, key, value])
    return joined.T if form is TURNED else joined


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("form", [JOINED, TURNED, GROUPED], ids=["joined", "turned", "grouped"])
def test_parts_of_several_sizes(tmp_path, form, kv_heads):
    rng = np.random.default_rng(kv_heads)
    ours, theirs = {}, {}
    for i in range(2):
        made = {n: rng.standard_normal((rows, 12)).astype("float32")
                for n, rows in (("query", 12), ("key", 2 * kv_heads), ("value", 2 * kv_heads))}
        made |= {n: x for n, x in [("output", rng.standard_normal((12, 12)).astype("float32"))]}
        bias = {n: rng.standard_normal(made[n].shape[0]).astype("float32") for n in ("query", "key", "value")}
        ours |= {f"layers.{i}.{n}.weight": x for n, x in made.items()} | {f"layers.{i}.{n}.bias": x for n, x in bias.items()}
        theirs |= {f"h.{i}.qkv.weight": packed(*(made[n] for n in bias), form, kv_heads), f"h.{i}.out.weight": made["output"],
                   f"h.{i}.qkv.bias": packed(*bias.values(), form if form is GROUPED else JOINED, kv_heads)}
    save_file({k: np.ascontiguousarray(v) for k, v in theirs.items()}, tmp_path / "theirs.safetensors")
    model = load(spec(tmp_path, kv_heads, **form))
    state = {k: v.numpy() for k, v in model.module(weights=tmp_path / "theirs.safetensors").state_dict().items()}
    assert state.keys() == ours.keys() and all(np.array_equal(state[k], ours[k]) for k in ours)
    model.export_weights(tmp_path / "theirs.safetensors", tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == theirs.keys() and all(np.array_equal(back[k], theirs[k]) for k in back)


@pytest.mark.parametrize(("weight", "said"), [
    ("(q + k + v) i -> q i, k i", "sums 3 parts and gives 2 results"),
    ("q + k + v i -> q i, k i, v i", "has `+` elsewhere than in one sum of names on the left"),
    ("(q + k) i -> q i, k i", "the pattern has 2 parts, and the key 3 parameters"),
    ("(q + k + v) i -> i q, k i, v i", "the parts order their axes differently"),
    ("(q + i) k -> q k, i k, k i", "sums 2 parts and gives 3 results"),
    ("(g (q + k + v)) i -> (g q) i, (g k) i, (g v) i", "(g v) i` does not give the shapes"),
    ("(q + k + v) i -> q i, k, v i", "the pattern `(q + k + v) i -> q i, k, v i`"),
])
def test_what_is_wrong_with_a_sum(tmp_path, weight, said):
    with pytest.raises(Diagnostics) as found:
        load(spec(tmp_path, weight=weight))
    assert [d.code for d in found.value.items] == ["bad-checkpoint"] * len(found.value.items)
    assert any(said in d.headline for d in found.value.items), [d.headline for d in found.value.items]
