"""Attention of a chunk over a cache, in the step form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .attention import Attention
from .attention_forms import INT32, apart, flat, repeat_heads, repeats_of
from .attention_source import ATTEND, ATTENTION_WEIGHTS, CAUSAL, VISIBLE_KEYS
from .base import Form, Op, Site, Types, attribute, tensor
from .emission import positions
from .streaming import SLOTS, chunk, slots


@dataclass(frozen=True)
class CachedAttention(Op):
    """Causal attention of a chunk over a cache that it is in already: query i of row b is at past[b] + i. See `attention`."""

    name = "attention"
    signature = ("query: float[B H N d]; key: float[B G C d]; value: float[B G C v]; past: int64[B]; keep?: bool[*k]; "
                 "score_bias?: float[*s] -> out: float[B H N v]; weights: float[B H N C]")
    site = True

    window: int | None = attribute("int", None, "how many keys a query sees at most, its own included")
    scale: float | None = attribute("float", None, "factor of the scores; 1/sqrt(d) when not given")
    softcap: float | None = attribute("float", None, "bound of the scores before the bias")
    ring: bool = attribute("bool", False, "whether the cache is a ring")
    first: bool = attribute("bool", False, "whether nothing reads its caches before it, since the chunk was written into them")

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        return Attention.flops(self._dense(), inputs, outputs)

    def _dense(self) -> Attention:
        """The same attention where a mask says what is seen."""
        return Attention(scale=self.scale, softcap=self.softcap)

    def torch(self, t: Any, **ports: Any) -> Any:
        C, N = t.outputs[1].shape[3], t.outputs[0].shape[2]
        ring = {"ring": True} if self.ring else {}
        past, query = ports["past"], ports["query"]
        slot = t.let("slot", t.helper(SLOTS)(past, t.size(C), t.size(N), **ring)[:, None, None])
        at = t.let("at", (past[:, None] + t.torch.arange(t.size(N), device=past.device))[:, None, :, None])
        seen = slot <= at
        seen = seen & (slot > at - self.window) if self.window is not None else seen
        keep = ports.get("keep")
        if self.ring:
            seen = seen & (slot >= 0)
        if keep is not None:
            missing = 4 - len(tensor(t.inputs, "keep").shape)
            seen = seen & (keep[(slice(None), *[None] * missing)] if missing else keep)
        seen = t.let("seen", seen)
        settings = {k: getattr(self, k) for k in ("scale", "softcap") if getattr(self, k) is not None}
        masks = {"keep": seen} | ({"score_bias": ports["score_bias"]} if ports.get("score_bias") is not None else {})
        t.helper(VISIBLE_KEYS)
        repeats = repeats_of(t.inputs)
        if "weights" in t.used or self.softcap is not None:
            weights = t.let("weights", t.helper(ATTENTION_WEIGHTS)(query, ports["key"], **settings, **masks))
            value = ports["value"]
            return weights @ (value if repeats.value == 1 else value.repeat_interleave(t.size(repeats), 1)), weights
        t.helper(CAUSAL)
        return t.helper(ATTEND)(query, ports["key"], ports["value"], **settings, **masks), None

    def forms(self) -> tuple[Form, ...]:
        """The forms of `attention` with a mask, and before them those that need none."""
        ort, cpu = frozenset({"ort-cuda", "ort-cpu"}), frozenset({"ort-cpu"})
        dense = [replace(form, name=form.name, when=_as_attention(form), emit=_masked(form)) for form in self._dense().forms()
                 if form.name.startswith("Attention") or form.name == "decomposed"]
        return (Form("GroupQueryAttention on the cache", cpu, _why_not_grouped, CachedAttention._grouped),
                Form("Attention-24 on the cache", ort, _why_not_lean, CachedAttention._lean), *dense)

    def _grouped(self, g: Any, **ports: Any) -> Any:
        """com.microsoft GroupQueryAttention, which writes the chunk into the caches itself, in place of the nodes that did."""
        end = _end(g, ports["past"])
        ends = g.once(("cache ends", end.name), lambda: g.op("Cast", end, to=INT32))
        last = g.once(("cache last", end.name), lambda: g.op("Sub", ends, g.const([1], "int32")))
        total = g.once(("cache total", end.name), lambda: g.op("ReduceMax", ends, keepdims=0))
        caches = ports["key"], ports["value"]
        (old_key, key, _), (old_value, value, _) = map(g.take_back, caches)
        out, _, _ = g.op("GroupQueryAttention", *flat(g, (ports["query"], key, value)), old_key, old_value, last, total, outputs=3,
                         gives=caches, domain="com.microsoft", num_heads=g.outputs[0].shape[1].value,
                         kv_num_heads=tensor(g.inputs, "key").shape[1].value, scale=self.scale, softcap=self.softcap)
        return apart(g, out), None

    def _lean(self, g: Any, **ports: Any) -> Any:
        """ai.onnx Attention: valid keys per row put the corner of `is_causal` at the end of the row."""
        end = _end(g, ports["past"])
        key, value = ports["key"], ports["value"]
        cuda = g.target == "ort-cuda" and g.dtype == "float32"
        if cuda and tensor(g.inputs, "key").shape[1] != tensor(g.inputs, "query").shape[1]:
            key, value = (repeat_heads(g, x, port, repeats_of(g.inputs)) for x, port in ((key, "key"), (value, "value")))
        return g.op("Attention", ports["query"], key, value, None, None, None, end, is_causal=1, scale=self.scale,
                    softcap=self.softcap), None

    def seen(self, g: Any, past: Any, keep: Any) -> Any:
        """bool [B 1 N C]: the slots that queries see."""
        N, C = tensor(g.inputs, "query").shape[2], tensor(g.inputs, "key").shape[2]

        def make() -> Any:
            at = g.op("Unsqueeze", chunk(g, past, N), g.ints(1, 3))
            slot = g.op("Unsqueeze", slots(g, past, N, C), g.ints(1, 2)) if self.ring else positions(g, C)
            mask = g.op("LessOrEqual", slot, at)
            if self.window is not None:
                mask = g.op("And", mask, g.op("Greater", slot, g.op("Sub", at, g.ints(self.window))))
            return g.op("And", mask, g.op("GreaterOrEqual", slot, g.ints(0))) if self.ring else mask
        mask = g.once(("cache seen", past.name, N, C, self.window, self.ring), make)
        if keep is None:
            return mask
        missing = range(1, 5 - len(tensor(g.inputs, "keep").shape))
        return g.op("And", mask, g.op("Unsqueeze", keep, g.ints(*missing)) if missing else keep)


def _end(g: Any, past: Any) -> Any:
    """int64 [B]: how many slots are in use once the chunk is there."""
    return g.once(("cache end", past.name), lambda: g.op("Add", past, g.size(tensor(g.inputs, "query").shape[2])))


def _why_not_grouped(op: CachedAttention, site: Site) -> str | None:
    if why := _why_not_lean(op, site):
        return why
    if not op.first:
        return "it writes the chunk into the caches itself, and something reads them before"
    query, key, value = (tensor(site.inputs, port).shape for port in ("query", "key", "value"))
    if query[1].value is None or key[1].value is None:
        return "its heads must be a known number"
    if (query[3].value or 1) % 8 or query[3] != value[3]:
        return f"it takes heads as wide as their values, a multiple of 8, and these are {query[3]} and {value[3]} wide"
    return None


def _why_not_lean(op: CachedAttention, site: Site) -> str | None:
    if "weights" in site.used:
        return "its weights are used, which the fused kernels do not give"
    for what, there in (("a window", op.window is not None), ("a score bias", site.inputs.get("score_bias") is not None),
                        ("a mask", site.inputs.get("keep") is not None)):
        if there:
            return f"{what} needs a dense mask"
    if site.target == "ort-cuda" and any((tensor(site.inputs, p).shape[3].value or 0) % 8 for p in ("query", "value")):
        return "CUDA's fused kernels take heads whose width is a multiple of 8"
    return None


def _dense_inputs(inputs: Types) -> Types:
    B, _, N, _ = tensor(inputs, "query").shape
    mask = TensorType("bool", (B, Dim.const(1), N, tensor(inputs, "key").shape[2]))
    return {k: inputs.get(k) for k in ("query", "key", "value", "score_bias")} | {"length": None, "keep": mask}


def _as_attention(form: Form) -> Any:
    return lambda op, site: form.when(op._dense(), replace(site, inputs=_dense_inputs(site.inputs)))


def _masked(form: Form) -> Any:
    def emit(op: CachedAttention, g: Any, **ports: Any) -> Any:
        keep = op.seen(g, ports["past"], ports.get("keep"))
        g.inputs = _dense_inputs(g.inputs)
        given = {k: ports.get(k) for k in ("query", "key", "value", "score_bias")}
        return form.emit(op._dense(), g, **given, length=None, keep=keep)
    return emit
