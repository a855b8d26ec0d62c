"""Scaled dot-product attention over heads, and how its masks are written for each target."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import Shape, TensorType
from ..ir.signature import spell
from .attention_source import ATTEND, ATTENTION_WEIGHTS, CAUSAL, VISIBLE_KEYS, mask_of, one_mask
from .base import ALL_TARGETS, Form, Op, OpFault, Site, Types, attribute, tensor
from .emission import LOWEST, positions


@dataclass(frozen=True)
class Attention(Op):
    """softmax(softcap(scale q k^T) + score_bias, over the visible keys) v (Vaswani et al. 2017, arXiv:1706.03762, section 3.2).

    H is a multiple of G: query head h reads key head h*G//H (Ainslie et al. 2023, arXiv:2305.13245). A key is visible where

    - `length` int64[B], the valid keys of a row, at most S: its position is below it (right padding),
    - `keep` bool [B S], [B T S] or [B H T S], where T and H may be 1: it is True,
    - `causal`: its position is at most the query's, both counted from 0 whatever T and S are,
    - `window` (with `causal`): it is among the last `window` keys up to and with the query's own,

    all hold. With `causal` queries and keys share their positions, so that `length` counts both: a query at or past it is
    padding, as its key is, and sees nothing. (The valid queries see no padding by causality alone, hence no mask is needed.)
    A query that sees nothing gives zeros. `softcap` c: c tanh(x / c), before the bias (Gemma 2, arXiv:2408.00118, section 2).
    `score_bias` broadcasts to [B H T S]. The default scale is 1/sqrt(d). Scores and softmax are computed in float32 at least.
    """

    name = "attention"
    signature = ("query: float[B H T d]; key: float[B G S d]; value: float[B G S v]; length?: int64[B]; keep?: bool[*k]; "
                 "score_bias?: float[*s] -> out: float[B H T v]; weights: float[B H T S]")
    site = True

    causal: bool = attribute("bool", False, "a query sees the keys up to its own position")
    window: int | None = attribute("int", None, "how many keys a causal query sees at most, its own included")
    scale: float | None = attribute("float", None, "factor of the scores; 1/sqrt(d) when not given")
    softcap: float | None = attribute("float", None, "bound of the scores before the bias")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        self._check_attributes()
        outputs = super().infer(inputs)
        B, H, T, S = outputs[1].shape
        G = tensor(inputs, "key").shape[1]
        if H.exact_div(G) is None:
            raise OpFault("shape-mismatch", f"{H} query heads cannot share {G} key heads evenly",
                          ports={"query": f"{H} heads", "key": f"{G} heads"},
                          help="the number of query heads must be a multiple of the number of key and value heads")
        if keep := inputs.get("keep"):
            _check_broadcast("keep", keep, {2: (B, S), 3: (B, T, S), 4: (B, H, T, S)})
        if bias := inputs.get("score_bias"):
            _check_broadcast("score_bias", bias, {4: (B, H, T, S)})
        return outputs

    def _check_attributes(self) -> None:
        if self.window is not None and not self.causal:
            raise OpFault("bad-attribute", "`window` needs `causal: true`", attribute="window",
                          help="for a window on both sides pass a `keep` mask")
        for name, value in (("window", self.window), ("scale", self.scale), ("softcap", self.softcap)):
            if value is not None and not 0 < value < float("inf"):
                raise OpFault("bad-attribute", f"`{name}` is {value}, not a positive number", attribute=name)

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        B, H, T, S = outputs[1].shape
        if self.window is not None:
            S = Dim.const(self.window if S.value is None else min(self.window, S.value))
        return 2 * B * H * T * S * (tensor(inputs, "query").shape[3] + outputs[0].shape[3])

    def torch(self, t: Any, **ports: Any) -> Any:
        query, key, value = ports["query"], ports["key"], ports["value"]
        settings: dict[str, Any] = {"causal": True} if self.causal else {}
        settings |= {k: getattr(self, k) for k in ("window", "scale", "softcap") if getattr(self, k) is not None}
        masks = {p: ports[p] for p in ("length", "keep", "score_bias") if ports.get(p) is not None}
        repeats = _repeats(t.inputs)
        if "weights" in t.used or self.softcap is not None:
            t.helper(VISIBLE_KEYS)
            weights = t.let("weights", t.helper(ATTENTION_WEIGHTS)(query, key, **settings, **masks))
            return weights @ (value if repeats.value == 1 else value.repeat_interleave(t.size(repeats), 1)), weights
        scale = {} if self.scale is None else {"scale": self.scale}
        if self.causal and masks.keys() == {"length"} and self.window is None:
            return t.helper(CAUSAL)(query, key, value, masks["length"], **scale), None
        if not self.causal and repeats.value == 1 and one_mask(t.inputs, masks):
            mask = t.let("mask", mask_of(t, key, **masks))
            return t.F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **scale), None
        if masks or self.window is not None:
            t.helper(VISIBLE_KEYS), t.helper(CAUSAL)
            return t.helper(ATTEND)(query, key, value, **settings, **masks), None
        plain = ({"is_causal": True} if self.causal else {}) | scale
        plain |= {} if repeats.value == 1 else {"enable_gqa": True}
        return t.F.scaled_dot_product_attention(query, key, value, **plain), None

    def forms(self) -> tuple[Form, ...]:
        return (Form("Attention-24", frozenset({"ort-cuda", "ort-cpu"}), _why_not_as_it_is, Attention._fused),
                Form("Attention-24 on wider heads", frozenset({"ort-cuda"}), _why_not_fused, Attention._wider),
                Form("decomposed", ALL_TARGETS, lambda op, site: None, Attention._decomposed, fused=False))

    def _fused(self, g: Any, query: Any, key: Any, value: Any, **masks: Any) -> Any:
        """ai.onnx Attention. Right padding alone is `nonpad_kv_seqlen`, causality alone `is_causal`: no mask."""
        length, keep, bias = (masks.get(p) for p in ("length", "keep", "score_bias"))
        T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))
        dense = keep is not None or bias is not None or self.window is not None or (self.causal and T != S)
        cuda = g.target == "ort-cuda"
        mask = None
        if dense:
            mask = _dense(self, g, length, keep, bias)
            if cuda:    # the memory-efficient kernel takes a mask only where S is a multiple of 4
                key, value = (_pad_keys(g, x, port) for x, port in ((key, "key"), (value, "value")))
                mask = _pad_mask(g, mask, S, bias is not None)
        repeats = _repeats(g.inputs)
        if cuda and repeats.value != 1 and (dense or g.dtype == "float32"):    # only the flash kernel groups heads
            key, value = (_repeat_heads(g, x, port, repeats) for x, port in ((key, "key"), (value, "value")))
        nonpad = length if not dense and not self.causal else None
        out = g.op("Attention", query, key, value, mask, None, None, nonpad, scale=self.scale, softcap=self.softcap,
                   is_causal=1 if self.causal and not dense else None)
        rows = None if dense else _rows(self, g, length)
        return (out if rows is None else g.op("Where", rows, out, g.number(0.0))), None

    def _wider(self, g: Any, query: Any, key: Any, value: Any, **masks: Any) -> Any:
        """Heads filled up to a multiple of 8 with zeros, which add nothing to the scores and are cut off the result."""
        d, v = (tensor(g.inputs, port).shape[3].value for port in ("query", "value"))
        assert d is not None and v is not None, "or the form before is legal"
        wide = {port: _widened(g, x, port) for port, x in (("query", query), ("key", key), ("value", value))}
        g.inputs = {**g.inputs, **{port: type for port, (_, type) in wide.items()}}
        op = self if self.scale is not None else replace(self, scale=d ** -0.5)
        out, _ = op._fused(g, *(x for x, _ in wide.values()), **masks)
        return (g.op("Slice", out, g.ints(0), g.ints(v), g.ints(3)) if v % 8 else out), None

    def _decomposed(self, g: Any, query: Any, key: Any, value: Any, **masks: Any) -> Any:
        """MatMul, Softmax in float32, MatMul; grouped heads lie along T, so that keys and values are not copied."""
        length, keep, bias = (masks.get(p) for p in ("length", "keep", "score_bias"))
        B, H, T, S = g.outputs[1].shape
        G, repeats = tensor(g.inputs, "key").shape[1], _repeats(g.inputs)

        def grouped(x: Any, width: Dim) -> Any:
            return x if repeats.value == 1 else g.op("Reshape", x, g.shape((B, G, repeats * T, width)))

        def apart(x: Any, width: Dim) -> Any:
            return x if repeats.value == 1 else g.op("Reshape", x, g.shape((B, H, T, width)))

        d = tensor(g.inputs, "query").shape[3]
        scaled = g.op("Mul", g.to_f32(query), _scale(self, g, d))
        turned = g.op("Transpose", g.to_f32(key), perm=[0, 1, 3, 2])
        scores = apart(g.op("MatMul", grouped(scaled, d), turned), S)
        if self.softcap is not None:
            cap = g.number(self.softcap, "float32")
            scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, cap)), cap)
        added = _added(self, g, length, keep, bias)
        if added is not None:
            scores = g.op("Add", scores, added)
        weights = g.from_f32(g.op("Softmax", scores, axis=-1))
        seeing = _seeing(self, g, length, keep)
        gate_weights = seeing is not None and "weights" in g.used
        if gate_weights:
            weights = g.op("Where", seeing, weights, g.number(0.0))
        out = apart(g.op("MatMul", grouped(weights, S), value), g.outputs[0].shape[3])
        if seeing is not None and not gate_weights:
            out = g.op("Where", seeing, out, g.number(0.0))
        return out, weights


def _why_not_fused(op: Attention, site: Site) -> str | None:
    return "its weights are used, which the fused kernels do not give" if "weights" in site.used else None


def _why_not_as_it_is(op: Attention, site: Site) -> str | None:
    odd = [port for port in ("query", "value") if (tensor(site.inputs, port).shape[3].value or 0) % 8]
    if not odd or site.target != "ort-cuda":
        return _why_not_fused(op, site)
    width = tensor(site.inputs, odd[0]).shape[3]
    return f"heads of {' and '.join(odd)} are {width} wide, and CUDA's fused kernels take multiples of 8"


def _widened(g: Any, x: Any, port: str) -> tuple[Any, TensorType]:
    """[B H T d] with d filled up to a multiple of 8, and its type."""
    *axes, d = tensor(g.inputs, port).shape
    missing = -(d.value or 0) % 8
    if not missing:
        return x, tensor(g.inputs, port)
    zeros = g.once(("attention zeros", *axes, missing), lambda: g.op("Expand", g.number(0.0), g.shape((*axes, missing))))
    return g.op("Concat", x, zeros, axis=3), TensorType("float", (*axes, d + missing))


def _check_broadcast(port: str, given: Any, wanted: dict[int, Shape]) -> None:
    """Each axis of `given` is 1 or the size that the pattern of its rank says; the last axis is S."""
    want = wanted.get(len(given.shape))
    if want is None:
        ways = " or ".join(spell(shape) for shape in wanted.values())
        raise OpFault("rank-mismatch", f"`{port}` of `attention` is {spell(given.shape)}, expected {ways}",
                      ports={port: f"{len(given.shape)} axes"})
    for i, (have, size) in enumerate(zip(given.shape, want, strict=True)):
        if have != size and (have != 1 or i == len(want) - 1):
            raise OpFault("shape-mismatch", f"`{port}` of `attention` is {spell(given.shape)}, expected {spell(want)}",
                          ports={port: f"axis {i} is {have}", "query" if i < len(want) - 1 else "key": f"expects {size}"},
                          help="an axis of size 1 other than the last is repeated")


def _repeats(inputs: Types) -> Dim:
    """How many query heads share a key head."""
    found = tensor(inputs, "query").shape[1].exact_div(tensor(inputs, "key").shape[1])
    assert found is not None, "held by infer"
    return found


def _scale(op: Attention, g: Any, d: Dim) -> Any:
    if op.scale is not None or d.value is not None:
        return g.number(op.scale if op.scale is not None else d.value ** -0.5, "float32")    # type: ignore[operator]
    return g.op("Reciprocal", g.op("Sqrt", g.op("Cast", g.scalar(d), to=1)))


# Masks in ONNX: booleans, made once for every distinct set of inputs and shared by the layers that ask for the same.

def _column(g: Any, size: Dim) -> Any:
    """int64 [size 1]: the positions of queries."""
    return g.once(("attention column", size), lambda: g.op("Unsqueeze", positions(g, size), g.ints(1)))


def _rows(op: Attention, g: Any, length: Any) -> Any:
    """bool [B 1 T 1]: queries that are not padding; None where that is not told."""
    if length is None or not op.causal:
        return None
    T = tensor(g.inputs, "query").shape[2]
    return g.once(("attention rows", length.name, T), lambda: g.op("Less", _column(g, T), _each_row(g, length)))


def _each_row(g: Any, length: Any) -> Any:
    """int64 [B 1 1 1]."""
    return g.once(("attention length", length.name), lambda: g.op("Unsqueeze", length, g.ints(1, 2, 3)))


def _band(op: Attention, g: Any) -> Any:
    """bool [T S]: keys up to the query's position, `window` of them."""
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))

    def make() -> Any:
        seen = g.op("LessOrEqual", positions(g, S), _column(g, T))
        if op.window is None:
            return seen
        return g.op("And", seen, g.op("Greater", positions(g, S), g.op("Sub", _column(g, T), g.ints(op.window))))

    return g.once(("attention band", T, S, op.window), make)


def _pairs(op: Attention, g: Any, length: Any, keep: Any) -> Any:
    """bool, 2 or 4 axes that broadcast to [B H T S]: the keys that queries see, padding queries aside; None: all."""
    parts = [_band(op, g)] if op.causal else []
    if length is not None and not op.causal:
        S = tensor(g.inputs, "key").shape[2]
        parts.append(g.once(("attention keys", length.name, S), lambda: g.op("Less", positions(g, S), _each_row(g, length))))
    if keep is not None:
        axes = range(1, 5 - len(tensor(g.inputs, "keep").shape))
        parts.append(g.once(("attention keep", keep.name), lambda: g.op("Unsqueeze", keep, g.ints(*axes))) if axes else keep)
    return _all(g, parts)


def _all(g: Any, parts: list[Any]) -> Any:
    """The conjunction of masks, None of no masks."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return g.once(("attention all", *(p.name for p in parts)), lambda: g.op("And", _all(g, parts[:-1]), parts[-1]))


def _dense(op: Attention, g: Any, length: Any, keep: Any, bias: Any) -> Any:
    """The mask of ai.onnx Attention, [1|B 1|H T S]: bool, or float where there is a bias.

    Causality is in the mask and not in `is_causal`: padding S would move the corner it is counted from. What is hidden
    has the dtype's lowest number, since -inf leaves kernels to deal with -inf - -inf. But on the CPU ONNX Runtime may run
    float16 attention in float32, where -65504 is a score like others and a row of them has a softmax; -inf gives 0 there.
    """
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))
    mask = _all(g, [m for m in (_pairs(op, g, length, keep), _rows(op, g, length)) if m is not None])
    if bias is not None and mask is not None:
        shown, lowest = mask, g.number(-math.inf if g.dtype == "float16" and g.target == "ort-cpu" else LOWEST[g.dtype])
        mask = g.once(("attention merged", mask.name, bias.name), lambda: g.op("Where", shown, bias, lowest))
    elif bias is not None:
        mask = bias
    full = op.causal and (keep is not None or length is not None)    # [T S] and 4 axes
    if full or (bias is not None and tensor(g.inputs, "score_bias").shape[2] == T):
        return mask
    return g.once(("attention full", mask.name, T, S), lambda: g.op("Expand", mask, g.shape((1, 1, T, S))))


def _added(op: Attention, g: Any, length: Any, keep: Any, bias: Any) -> Any:
    """float32 to add to the scores: the bias, and float32's lowest number where a key is hidden; None: nothing."""
    pairs = _pairs(op, g, length, keep)
    if bias is not None:
        bias = g.once(("attention bias", bias.name), lambda: g.to_f32(bias)) if g.dtype != "float32" else bias
    if pairs is None:
        return bias
    shown = g.number(0.0, "float32") if bias is None else bias
    lowest = g.number(LOWEST["float32"], "float32")
    return g.once(("attention added", pairs.name, shown.name), lambda: g.op("Where", pairs, shown, lowest))


def _seeing(op: Attention, g: Any, length: Any, keep: Any) -> Any:
    """bool [1|B 1|H 1|T 1]: queries that see a key; None where all surely do."""
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))
    parts = []
    if keep is not None or (length is not None and not op.causal) or (op.window is not None and T != S):
        pairs = _pairs(op, g, length, keep)

        def some() -> Any:
            most = g.op("ReduceMax", g.op("Cast", pairs, to=1), g.ints(-1), keepdims=1)
            return g.op("Cast", most, to=9)

        parts.append(g.once(("attention seeing", pairs.name), some))
    rows = _rows(op, g, length)
    return _all(g, parts if rows is None else [*parts, rows])


def _pad(g: Any, x: Any, before: Any, S: Dim, after: Any, *, fill: Any) -> Any:
    """`x` of shape [*before S *after], int64 vectors, with S filled up to a multiple of 4 (Pad has no bfloat16 kernel)."""
    if S.value is not None and S.value % 4 == 0:
        return x

    def filling() -> Any:
        missing = g.once(("attention missing", S), lambda: g.op("Mod", g.op("Sub", g.ints(0), g.size(S)), g.ints(4)))
        return g.op("Expand", fill, g.op("Concat", before, missing, *after, axis=0))

    made = g.once(("attention filling", before.name, S, *(v.name for v in after), fill.name), filling)
    return g.once(("attention padded", x.name), lambda: g.op("Concat", x, made, axis=-1 - len(after)))


def _pad_keys(g: Any, x: Any, port: str) -> Any:
    B, G, S, d = tensor(g.inputs, port).shape
    return _pad(g, x, g.shape((B, G)), S, (g.size(d),), fill=g.number(0.0))


def _pad_mask(g: Any, mask: Any, S: Dim, biased: bool) -> Any:
    before = g.once(("attention mask shape", mask.name), lambda: g.op("Shape", mask, end=3))
    return _pad(g, mask, before, S, (), fill=g.number(LOWEST[g.dtype]) if biased else g.const(False))


def _repeat_heads(g: Any, x: Any, port: str, repeats: Dim) -> Any:
    """[B G s d] -> [B H s d], each head `repeats` times in a row."""
    G, d = tensor(g.inputs, port).shape[1], tensor(g.inputs, port).shape[3]
    wide = g.op("Expand", g.op("Unsqueeze", x, g.ints(2)), g.shape((1, 1, repeats, 1, 1)))
    return g.op("Reshape", wide, g.shape((0, G * repeats, -1, d)))


OPS = (Attention,)
