"""Small specs whose checkpoints are brought over, weights for them, and what their modules compute."""

import torch
from nnspec.model import Model
from safetensors.torch import save_file

from .pairs import DEPTH, GPT2, KV, NORM, POSITION, WINDOW, compiled, edited

HEADS = ', as: "b t (h d) -> b h t d", h: heads'
ATTENTION = "{block: multi_head_attention, heads: heads, causal: true}"
FFN = "{block: plain_ffn, hidden: 36, activation: gelu_tanh}"
PACKED = """
blocks:
  packed_attention:
    settings: {heads: int, width: int}
    inputs: {in: "float[B, S, width]"}
    graph:
      qkv: {op: linear, in: in, width: 3 * width}
      parts: {op: split, in: qkv, into: 3}
      q: {op: rearrange, in: parts.0, as: "b t (h d) -> b h t d", h: heads}
      k: {op: rearrange, in: parts.1, as: "b t (h d) -> b h t d", h: heads}
      v: {op: rearrange, in: parts.2, as: "b t (h d) -> b h t d", h: heads}
      attended: {op: attention, query: q, key: k, value: v, causal: true}
      joined: {op: rearrange, in: attended, as: "b h t d -> b t (h d)"}
      output: {op: linear, in: joined, width: width}
"""
FUSED_FFN = """
blocks:
  fused_ffn:
    settings: {hidden: int, width: int}
    inputs: {in: "float[B, S, width]"}
    graph:
      both: {op: linear, in: in, width: 2 * hidden, bias: false}
      parts: {op: split, in: both, into: 2}
      active: {op: activate, in: parts.0, function: silu}
      product: {op: multiply, in: [active, parts.1]}
      down: {op: linear, in: product, width: width, bias: false}
"""


def small(text):
    """A spec of the fifteen pairs with small odd sizes and four layers."""
    for old, new in (("50257", "101"), ("50304", "107"), ("768", "24"), ("3072", "36"), ("1024", "33"), ("2048", "20"),
                     ("window: 256", "window: 5"), ("layers: 12, heads", "layers: 4, heads"), ("layers: 16, heads", "layers: 6, heads")):
        text = text.replace(old, new)
    return text.lstrip()


def put(text, *changes):
    """The text with each (old, new) done, which must be there."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


PLAIN = small(GPT2)
GQA = small(edited(GPT2, *KV))
JOINED = put(PLAIN, (ATTENTION, "{block: packed_attention, heads: heads}")) + PACKED
WOVEN = put(JOINED, ("parts: {op: split, in: qkv, into: 3}",
                     'each: {op: rearrange, in: qkv, as: "b t (h s d) -> s b h t d", h: heads, s: 3}'),
            *((f"{n}: {{op: rearrange, in: parts.{i}{HEADS}}}",
               f"p{i}: {{op: slice, in: each, axis: 0, start: {i}, stop: {i + 1}}}\n"
               f"      {n}: {{op: rearrange, in: p{i}, as: '1 b h t d -> b h t d'}}") for i, n in enumerate("qkv")))
JOINED_GQA = put(JOINED, ("width: 3 * width", "width: width + 2 * width // 3"), ("into: 3", "widths: [width, width // 3, width // 3]"),
                 *((f"{n}: {{op: rearrange, in: parts.{i}{HEADS}}}", f"{n}: {{op: rearrange, in: parts.{i}{HEADS} // 3}}")
                   for i, n in ((1, "k"), (2, "v"))))
GATED = put(PLAIN, (FFN, "{block: gated_ffn, hidden: 20, activation: silu, bias: false}"))
FUSED = put(PLAIN, (FFN, "{block: fused_ffn, hidden: 20}")) + FUSED_FFN
DEEPER = small(edited(GPT2, *DEPTH))
UNTIED = put(PLAIN, (", weight: embed.weight", ", width: vocab"))
WIDER = put(PLAIN, ("vocab: 101", "vocab: 107"))
LONGER = put(PLAIN, ("entries: 33", "entries: 47"), ("S <= 33", "S <= 47"))
HIDDEN = put(PLAIN, ("hidden: 36", "hidden: 45"))
RENAMED = put(PLAIN, ("  embed: {op", "  tokens_embed: {op"), ("in: embed,", "in: tokens_embed,"), ("embed.weight", "tokens_embed.weight"))
SHARED = put(PLAIN, ("    in: placed\n", "    in: placed\n    share: 0\n"))
UNBIASED = put(PLAIN, (ATTENTION, ATTENTION[:-1] + ", bias: false, output_bias: true}"))
RMS = small(edited(GPT2, *NORM))
ROPE = small(edited(GPT2, *POSITION))
WINDOWED = small(WINDOW)
POST = put(PLAIN, ("pre_norm_layer", "post_norm_layer"))
EIGHT = put(PLAIN, ("heads: 12}", "heads: 8}"))

EXACT = {                                  # name: (from, to), the function is kept
    "repeat heads": (GQA, PLAIN), "join q, k, v": (PLAIN, JOINED), "split q, k, v": (JOINED, PLAIN), "weave by heads": (PLAIN, WOVEN),
    "unweave": (WOVEN, PLAIN), "weave what was joined": (JOINED, WOVEN), "join grouped": (GQA, JOINED_GQA),
    "split and repeat": (JOINED_GQA, PLAIN),
    "join gate and up": (GATED, FUSED), "split gate and up": (FUSED, GATED), "more layers": (PLAIN, DEEPER), "untie": (PLAIN, UNTIED),
    "more words": (PLAIN, WIDER), "more positions": (PLAIN, LONGER), "wider ffn": (PLAIN, HIDDEN), "rename": (PLAIN, RENAMED),
    "wider output": (UNTIED, put(UNTIED, (", width: vocab", ", width: vocab + 6"))), "unshare": (SHARED, PLAIN),
    "biases": (UNBIASED, PLAIN), "two at once": (GQA, put(DEEPER, ("vocab: 101", "vocab: 107"))),
}
APPROX = {
    "mean of heads": (PLAIN, GQA), "mean and join": (PLAIN, JOINED_GQA), "fewer layers": (DEEPER, PLAIN), "tie": (UNTIED, PLAIN),
    "fewer words": (WIDER, PLAIN), "narrower ffn": (HIDDEN, PLAIN), "other norm": (PLAIN, RMS), "norm back": (RMS, PLAIN),
    "rope": (PLAIN, ROPE), "no biases": (PLAIN, UNBIASED),
}
SILENT = {"window": (PLAIN, WINDOWED), "post-norm": (PLAIN, POST), "heads": (PLAIN, EIGHT),
          "eps": (PLAIN, put(PLAIN, ("eps: 1e-5", "eps: 1e-2"))), "activation": (PLAIN, put(PLAIN, ("gelu_tanh", "relu")))}
REFUSED = {"gated ffn": (PLAIN, GATED), "learned positions": (ROPE, PLAIN), "width": (PLAIN, put(PLAIN, ("width: 24", "width: 36")))}


def model(text, name="spec.yaml"):
    return Model(compiled(text, name))


def weights(text, seed=1):
    """A state dict with every number moved off its start."""
    module = model(text).module(seed=seed)
    torch.manual_seed(seed)
    return {k: v + 0.1 * torch.randn_like(v) for k, v in module.state_dict().items()}


def saved(path, text, dtype=torch.float32, seed=1):
    held = {k: v.to(dtype).contiguous() for k, v in weights(text, seed).items()}
    save_file(held, path)
    return held


def outputs(text, state, rows=3, length=7):
    """Logits of a model with these weights, for ids that every vocabulary has."""
    module = model(text).module(seed=0).double()
    module.load_state_dict(state)
    ids = torch.randint(0, 101, (rows, length), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        out = module(ids)
    return out["logits"] if isinstance(out, dict) else out
