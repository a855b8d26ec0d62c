"""Scaled dot-product attention over heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import Shape, TensorType
from ..ir.signature import spell
from . import attention_forms
from .attention_source import ATTEND, ATTENTION_WEIGHTS, CAUSAL, VISIBLE_KEYS, mask_of, one_mask
from .base import Form, Op, OpFault, Types, attribute, tensor


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

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        """Rows and queries are loops; keys are what is summed over."""
        if axis not in (0, 2):
            return None
        found = {port: axis for port in (("query", "key", "value", "length", "keep") if axis == 0 else ("query",))}
        masks = [(port, len(tensor(inputs, port).shape)) for port in ("keep", "score_bias") if inputs.get(port) is not None]
        found |= {port: rank - 2 for port, rank in masks if axis == 2 and rank > 2 and tensor(inputs, port).shape[rank - 2] != 1}
        found |= {port: 0 for port, rank in masks if axis == 0 and rank == 4 and tensor(inputs, port).shape[0] != 1}
        return {port: k for port, k in found.items() if inputs.get(port) is not None}

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
        repeats = attention_forms.repeats_of(t.inputs)
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
        return attention_forms.forms()


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


OPS = (Attention,)
