"""Pairs of specs with edits that people make once in a while: what stood in one place stands in another, or in several."""

from .pairs import GPT2, edited

FLAT = edited(GPT2, "50257 -> 101", "768 -> 24", "3072 -> 36", "1024 -> 33", "layers: 12, heads -> layers: 4, heads")
CHAIN = """
nnspec: 1
name: chain
use: [attention, ffn, layers, positions]
sizes: {vocab: 101, width: 24}
inputs: {tokens: "int64[B, S]"}
blocks:
  residual:
    slots: {inner: "float[B, S, W] -> float[B, S, W]"}
    inputs: {in: "float[B, S, W]"}
    graph:
      norm: {op: layer_norm, in: in}
      inner: {slot: inner, in: norm}
      out: {op: add, in: [in, inner]}
  mixer:
    inputs: {in: "float[B, S, W]"}
    graph:
      up: {op: linear, in: in, width: 3 * W}
      active: {op: activate, in: up, function: relu}
      down: {op: linear, in: active, width: W}
graph:
  embed: {op: embedding, in: tokens, entries: vocab, width: width}
  attn: {block: multi_head_attention, in: embed, heads: 4, causal: true}
  mix: {block: mixer, in: attn}
  norm: {op: layer_norm, in: mix}
  logits: {op: linear, in: norm, width: vocab}
outputs: {logits: logits}
"""
SUM = edited(CHAIN, "norm: {op: layer_norm, in: mix} -> both: {op: add, in: [mix, attn, embed]}\n  norm: {op: layer_norm, in: both}")
TWICE = edited(CHAIN, "mix: {block: mixer, in: attn} -> mix: {block: mixer, in: attn}\n  mid: {block: mixer, in: mix}",
               "norm: {op: layer_norm, in: mix} -> norm: {op: layer_norm, in: mid}")
WRAPPED = edited(CHAIN, "mix: {block: mixer, in: attn} -> mix: {block: residual, in: attn, inner: {block: mixer}}")
BOXED = edited(WRAPPED, "mix: {block: residual -> boxed: {block: residual", "in: mix} -> in: boxed}")
PAIR = """  pair:
    inputs: {in: "float[B, S, W]"}
    graph:
      a: {block: mixer, in: in}
      b: {block: mixer, in: a}
"""
TOGETHER = edited(TWICE, f"  mixer:\n -> {PAIR}  mixer:\n", "in: mid} -> in: boxed}",
                  "  mix: {block: mixer, in: attn}\n  mid: {block: mixer, in: mix}\n ->   boxed: {block: pair, in: attn}\n")
HEAD = """blocks:
  head:
    inputs: {in: "float[B, S, W]", table: "float[V, W]"}
    graph:
      norm: {op: layer_norm, in: in, eps: 1e-5}
      mix: {block: plain_ffn, in: norm, hidden: 40}
      scores: {op: linear, in: mix, weight: table, bias: false}
outputs:"""
OUTSIDE = edited(FLAT, "  logits: {op: linear, in: norm, weight ->   mix: {block: plain_ffn, in: norm, hidden: 40}\n"
                       "  logits: {op: linear, in: mix, weight")
INSIDE = edited(FLAT, f"outputs: -> {HEAD}", "  norm: {op: layer_norm, in: layers, eps: 1e-5}\n  logits: {op: linear, in: norm, weight: "
                "embed.weight, bias: false}\n ->   logits: {block: head, in: layers, table: embed.weight}\n")
HALF = """  more:
    repeat: 2
    block: pre_norm_layer
    in: layers
    norm: {op: layer_norm, eps: 1e-5}
    attention: {block: multi_head_attention, heads: heads, causal: true}
    ffn: {block: plain_ffn, hidden: 36, activation: gelu_tanh}
"""
HALVES = edited(FLAT, f"  norm: {{op: layer_norm, in: layers -> {HALF}  norm: {{op: layer_norm, in: more", "repeat: layers -> repeat: 2",
                "layers: 4, -> ")
TWO_HEADS = edited(FLAT, "outputs: {logits: logits} ->   second: {op: linear, in: layers, weight: embed.weight, bias: false}\n"
                         "outputs: {logits: logits, second: second}")
STACK = edited(CHAIN, "  attn: {block: multi_head_attention, in: embed, heads: 4, causal: true}\n  mix: {block: mixer, in: attn}\n -> "
               "  layers: {repeat: 5, block: residual, in: embed, inner: {block: mixer}}\n",
               "layer_norm, in: mix -> layer_norm, in: layers")
BESIDE = edited(CHAIN, "mix: {block: mixer, in: attn} -> mix: {branch: 3, block: mixer, in: attn}\n  total: {op: sum, in: mix, axis: 0}",
                "layer_norm, in: mix -> layer_norm, in: total")
COPIES = {"A": "{}", "B": "{attention: {window: 5}}", "C": "{ffn: {hidden: 40}}", "c": "{ffn: {hidden: 44}}",
          "D": "{attention: {softcap: 30}}", "d": "{attention: {softcap: 20}}"}


def stack(copies):
    """A stack of these copies, a letter each."""
    pattern = f"    pattern: [{', '.join(COPIES[c] for c in copies)}]\n"
    return edited(FLAT, f"activation: gelu_tanh}}\n -> activation: gelu_tanh}}\n{pattern}", f"layers: 4 -> layers: {len(copies)}")


RELU = "function: relu -> function: gelu"
PAIRS = {
    "two blocks change places": (CHAIN, edited(
        CHAIN, "attn: {block: multi_head_attention, in: embed, -> attn: {block: multi_head_attention, in: mix, ",
        "mix: {block: mixer, in: attn} -> mix: {block: mixer, in: embed}", "layer_norm, in: mix} -> layer_norm, in: attn}")),
    "a residual around a block": (CHAIN, WRAPPED),
    "around and edited": (CHAIN, edited(WRAPPED, RELU)),
    "around and smaller": (CHAIN, edited(WRAPPED, "width: 3 * W -> width: 2 * W")),
    "around, under another name": (CHAIN, BOXED),
    "two equal blocks into one": (TWICE, TOGETHER),
    "two equal blocks into one, edited": (TWICE, edited(TOGETHER, RELU)),
    "into a wrapper": (OUTSIDE, INSIDE),
    "into a wrapper, edited": (OUTSIDE, edited(INSIDE, "hidden: 40} -> hidden: 40, activation: silu}")),
    "a stack in two": (FLAT, HALVES),
    "a stack in two, the second edited": (FLAT, edited(
        HALVES, "in: layers\n    norm: {op: layer_norm, eps: 1e-5} -> in: layers\n    norm: {op: layer_norm, eps: 1e-3}")),
    "a copy to the end, edited": (stack("DCAAA"), stack("CAAAd")),
    "a copy to the end, resized": (stack("CBAAD"), stack("BAADc")),
    "another period": (stack("ABABAB"), stack("AABAAB")),
    "the order turned round": (stack("ABCD"), stack("DCBA")),
    "a block becomes three": (CHAIN, edited(CHAIN, "mix: {block: mixer, in: attn} -> mix: {repeat: 3, block: mixer, in: attn}")),
    "two names change places": (CHAIN, edited(
        CHAIN, "  attn: {block: multi_head_attention, in: embed, ->   mix: {block: multi_head_attention, in: embed,",
        "  mix: {block: mixer, in: attn} ->   attn: {block: mixer, in: mix}", "layer_norm, in: mix} -> layer_norm, in: attn}")),
    "names move on": (TWICE, edited(
        TWICE, "mid: {block: mixer, in: mix} -> end: {block: mixer, in: mid}",
        "mix: {block: mixer, in: attn} -> mid: {block: mixer, in: attn}", "layer_norm, in: mid} -> layer_norm, in: end}")),
    "tied to another": (TWO_HEADS, edited(TWO_HEADS, "norm, weight: embed.weight, bias -> norm, width: vocab, bias",
                                          "layers, weight: embed.weight -> layers, weight: logits.weight")),
    "tied twice": (edited(TWO_HEADS, "weight: embed.weight -> width: vocab"), TWO_HEADS),
    "pairs of copies share": (FLAT, edited(FLAT, "    in: placed\n ->     in: placed\n    share: i // 2\n")),
    "inlined": (CHAIN, edited(CHAIN, "  mix: {block: mixer, in: attn}\n ->   up: {op: linear, in: attn, width: 3 * width}\n"
                              "  active: {op: activate, in: up, function: relu}\n  mix: {op: linear, in: active, width: width}\n")),
    "the last layer out of its stack": (STACK, edited(
        STACK, "repeat: 5 -> repeat: 4", "  norm: {op: layer_norm, in: layers ->   last: {block: residual, in: layers, inner: "
        "{block: mixer}}\n  norm: {op: layer_norm, in: last")),
    "a residual inside of copies": (STACK, edited(STACK, "inner: {block: mixer} -> inner: {block: residual, inner: {block: mixer}}")),
    "everything goes": (CHAIN, """
nnspec: 1
name: chain
sizes: {vocab: 101}
inputs: {tokens: "int64[B, S]"}
graph: {logits: {op: embedding, in: tokens, entries: vocab, width: vocab}}
outputs: {logits: logits}
"""),
    "side by side, then in depth": (BESIDE, edited(CHAIN, "mix: {block: mixer, in: attn} -> mix: {repeat: 3, block: mixer, in: attn}")),
    "a term less": (SUM, edited(SUM, "[mix, attn, embed] -> [mix, embed]")),
    "joined in another order": (edited(SUM, "op: add, in: [mix -> op: concat, in: [mix"),
                                edited(SUM, "op: add, in: [mix, attn -> op: concat, in: [attn, mix")),
}
