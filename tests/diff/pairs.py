"""The fifteen pairs: the edits of a GPT-2 that a right comparison must tell exactly."""

from nnspec.diff.compare import compare
from nnspec.lang.source import Source
from nnspec.pipeline import front
from nnspec.stages.parse import load, parse

GPT2 = """
nnspec: 1
name: gpt2
use: [attention, ffn, layers, positions]
sizes: {vocab: 50257, width: 768, layers: 12, heads: 12}
inputs: {tokens: "int64[B, S <= 1024]"}
graph:
  embed: {op: embedding, in: tokens, entries: vocab, width: width}
  placed: {block: learned_positions, in: embed, entries: 1024}
  layers:
    repeat: layers
    block: pre_norm_layer
    in: placed
    norm: {op: layer_norm, eps: 1e-5}
    attention: {block: multi_head_attention, heads: heads, causal: true}
    ffn: {block: plain_ffn, hidden: 3072, activation: gelu_tanh}
  norm: {op: layer_norm, in: layers, eps: 1e-5}
  logits: {op: linear, in: norm, weight: embed.weight, bias: false}
outputs: {logits: logits}
"""


def edited(text, *changes):
    """The text with each `old -> new` done, which must be there."""
    for change in changes:
        old, new = change.split(" -> ", 1)
        assert old in text, old
        text = text.replace(old, new)
    return text


NORM = ("op: layer_norm -> op: rms_norm",)
POSITION = ("  placed: {block: learned_positions, in: embed, entries: 1024}\n -> ", "in: placed -> in: embed",
            "causal: true} -> causal: true, position: rope}", "S <= 1024 -> S")
KV = ("heads: heads, -> heads: heads, kv_heads: 4,",)
MLP = ("{block: plain_ffn, hidden: 3072, activation: gelu_tanh} -> {block: gated_ffn, hidden: 2048, activation: silu, bias: false}",)
DEPTH = ("layers: 12 -> layers: 16",)
MODERN = edited(GPT2, *NORM, *POSITION, *KV, *MLP, *DEPTH)
WINDOW = edited(GPT2, "activation: gelu_tanh}\n -> activation: gelu_tanh}\n    pattern: [{}, {attention: {window: 256}}]\n")


def compiled(text, name="spec.yaml"):
    """A spec from its text."""
    source = Source(name, text.lstrip("\n"))
    return front(name, opened_by=lambda path: (source, parse(source)) if str(path) == name else load(path))


def report(base, head, **more):
    """What changed from one text to another."""
    return compare(compiled(base), compiled(head), ("base.yaml", "head.yaml"), **more)
