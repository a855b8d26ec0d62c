"""Nodes that moved into a block, or out of one, are the same nodes."""

import pytest

from .pairs import GPT2, edited, report

FLAT = GPT2.replace("50257", "101").replace("768", "24").replace("3072", "36").replace("1024", "33")
NODES = "  norm: {op: layer_norm, in: layers, eps: 1e-5}\n  logits: {op: linear, in: norm, weight: embed.weight, bias: false}\n"
HELD = '''blocks:
  head:
    inputs: {in: "float[B, S, W]", table: "float[V, W]"}
    graph:
      norm: {op: layer_norm, in: in, eps: 1e-5}
      scores: {op: linear, in: norm, weight: table, bias: false}
'''
WRAPPED = edited(FLAT, f"{NODES} -> " + "  logits: {block: head, in: layers, table: embed.weight}\n", "outputs: -> " + HELD + "outputs:")


@pytest.mark.parametrize("base, head, names", [(FLAT, WRAPPED, {"norm.weight": "logits.norm.weight", "norm.bias": "logits.norm.bias"}),
                                               (WRAPPED, FLAT, {"logits.norm.weight": "norm.weight", "logits.norm.bias": "norm.bias"})])
def test_nodes_move_into_a_block_and_out(base, head, names):
    r = report(base, head)
    assert r.verdict.function == "equal-up-to-names" and r.verdict.checkpoint == "renamed" and r.level == "warning"
    assert [e.rule for e in r.edits] == ["node.moved"]
    assert r.count("new") == r.count("dropped") == 0 and r.count("renamed") == 2
    assert dict(k for t in r.tensors if t.status == "renamed" for k in t.renames()) == names
    assert "node.moved" in {c.rule for e in report(base, edited(head, "layers: 12 -> layers: 13")).edits for c in e.consequences}


def test_what_moved_and_changed_is_no_move():
    r = report(FLAT, edited(WRAPPED, "      norm: {op: layer_norm, in: in, eps: 1e-5} ->       norm: {op: layer_norm, in: in, eps: 1e-3}"))
    assert r.verdict.function == "changed" and r.level == "breaking" and all(e.rule != "node.moved" for e in r.edits)


def test_a_block_inside_the_copies():
    layer = '''blocks:
  layer:
    inputs: {in: "float[B, S, W]"}
    graph:
      attention: {block: multi_head_attention, in: in, heads: 12, causal: true}
      sum: {op: add, in: [in, attention]}
      up: {op: linear, in: sum, width: 36}
      go: {op: activate, in: up, function: relu}
      down: {op: linear, in: go, width: W}
      out: {op: add, in: [sum, down]}
'''
    base = edited(FLAT, "block: pre_norm_layer -> block: layer", "    norm: {op: layer_norm, eps: 1e-5}\n -> ",
                  "    attention: {block: multi_head_attention, heads: heads, causal: true}\n -> ",
                  "    ffn: {block: plain_ffn, hidden: 36, activation: gelu_tanh}\n -> ", ", heads: 12} -> }",
                  "outputs: -> " + layer + "outputs:")
    head = edited(base, "      up: {op: linear, in: sum, width: 36}\n      go: {op: activate, in: up, function: relu}\n"
                  "      down: {op: linear, in: go, width: W}\n      out: {op: add, in: [sum, down]}\n -> "
                  "      ffn: {block: plain_ffn, in: sum, hidden: 36, activation: relu}\n      out: {op: add, in: [sum, ffn]}\n")
    r = report(base, head)
    assert r.verdict.function == "equal-up-to-names" and r.verdict.checkpoint == "renamed"
    assert r.count("renamed") == 48 and r.count("new") == r.count("dropped") == 0
    names = dict(k for t in r.tensors if t.status == "renamed" for k in t.renames())
    assert names["layers.7.up.weight"] == "layers.7.ffn.up.weight" and names["layers.7.down.bias"] == "layers.7.ffn.down.bias"


def test_keys_and_values_are_told_apart():
    attention = "    attention: {block: multi_head_attention, heads: heads, causal: true}\n"
    held = '''blocks:
  mine:
    inputs: {in: "float[B, S, W]"}
    graph:
      inner: {block: multi_head_attention, in: in, heads: 12, causal: true}
'''
    head = edited(FLAT, f"{attention} -> " + "    attention: {block: mine}\n", "outputs: -> " + held + "outputs:")
    r = report(FLAT, edited(head, ", heads: 12} -> }"))
    assert r.verdict.function == "equal-up-to-names" and r.count("renamed") == 96
    names = dict(k for t in r.tensors if t.status == "renamed" for k in t.renames())
    assert all(new == old.replace("attention.", "attention.inner.") for old, new in names.items())
