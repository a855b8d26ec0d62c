"""What looks like a bias or like heads side by side, and is not: vectors that broadcast, and heads that lie along time."""

import numpy as np
import pytest
import zoo

VECTOR = "b%s: {op: parameter, shape: '[%d]', init: {normal: 1}}"
AFTER = {"gelu": "{op: activate, function: gelu, in: sum}", "gelu tanh": "{op: activate, function: gelu_tanh, in: sum}",
         "skip": "{op: layer_norm, in: {op: add, in: [sum, x]}}", "rms skip": "{op: rms_norm, in: {op: add, in: [x, sum]}}"}
FUSED = ["ort-cpu", "ort-cuda"]


def agree(written, arrays):
    ways = dict(written.runs(arrays, targets=FUSED))
    want = ways.pop("PyTorch")
    for target, got in ways.items():
        zoo.close(got, want, 1e-4, 1e-6, target)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("wide, entries", [(16, 1), (1, 16), (16, 16)])
def test_only_a_vector_as_wide_as_a_value_is_its_bias(tmp_path, after, wide, entries):
    """One number added to every entry, and one column that a vector widens, against a bias."""
    nodes = [VECTOR % ("", entries), f"l: {{op: linear, in: x, width: {wide}, bias: false}}", "sum: {op: add, in: [l, b]}",
             f"y: {AFTER[after]}"]
    written = zoo.Written(tmp_path, 'x: "float[B, T, 16]"', "\n  ".join(nodes), "{y: y}")
    agree(written, {"x": np.random.default_rng(0).normal(size=(3, 7, 16)).astype(np.float32)})


def test_projections_with_one_number_for_all_entries_are_packed_without_it(tmp_path):
    nodes = [line for c in "qkv" for line in (VECTOR % (c, 1), f"{c}: {{op: linear, in: x, width: 6, bias: false}}",
                                              f"{c}2: {{op: add, in: [{c}, b{c}]}}")]
    written = zoo.Written(tmp_path, 'x: "float[B, T, 5]"', "\n  ".join([*nodes, "y: {op: add, in: [q2, k2, v2]}"]), "{y: y}")
    agree(written, {"x": np.random.default_rng(0).normal(size=(3, 7, 5)).astype(np.float32)})


@pytest.mark.parametrize("causal", ["true", "false"])
@pytest.mark.parametrize("apart", ["b t (h d) -> b h t d", "b t (d h) -> b h t d", "b (t h) d -> b h t d", "b (h t) d -> b h t d"])
@pytest.mark.parametrize("joined", ["b h t d -> b t (h d)", "b h t d -> b t (d h)", "b h t d -> b (t h) d", "b h t d -> b (h t) d"])
def test_heads_on_any_axis(tmp_path, causal, apart, joined):
    """Only those of the last axis, whole heads one after the other, are what kernels take side by side."""
    along = "(t h)" in apart or "(h t)" in apart
    nodes = [line for c in "qkv" for line in (f"{c}l: {{op: linear, in: x, width: {8 if along else 32}}}",
                                              f"{c}: {{op: rearrange, in: {c}l, as: '{apart}', h: 4}}")]
    nodes += [f"a: {{op: attention, query: q, key: k, value: v, causal: {causal}}}", f"y: {{op: rearrange, in: a, as: '{joined}'}}"]
    written = zoo.Written(tmp_path, f'x: "float[B, {"4*T" if along else "T"}, 8]"', "\n  ".join(nodes), "{y: y}")
    agree(written, {"x": np.random.default_rng(0).normal(size=(3, 28 if along else 7, 8)).astype(np.float32)})
