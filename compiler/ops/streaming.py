"""What only the step form has: chunks of positions, caches that grow, attention over a cache.

A cache has room for C positions, of which row b has filled `past[b]`; a chunk brings N more. Where a cache is a ring, position
p lies in slot p mod C and the last C positions are there. No spec names these ops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .attention import Attention
from .attention_forms import repeat_heads, repeats_of
from .attention_source import ATTEND, ATTENTION_WEIGHTS, CAUSAL, VISIBLE_KEYS
from .base import ALL_TARGETS, Form, Op, Site, Types, attribute, tensor
from .emission import positions

SLOTS = '''
def slot_positions(past, size, new, ring=False):
    """The position that each slot of a cache holds after `new` more [B, C]; below 0, or at or past the end: none."""
    slot = torch.arange(size, device=past.device)
    if not ring:
        return slot.expand(len(past), size)
    last = past[:, None] + (new - 1)
    return last - (last - slot) % size
'''

APPEND = '''
def append(cache, new, past, axis, ring=False):
    """The cache with `new` written at `past` of each row, along `axis`."""
    at = past[:, None] + torch.arange(new.shape[axis], device=past.device)
    if ring:
        at = at % cache.shape[axis]
    shape = [len(past), *[1] * (new.dim() - 1)]
    shape[axis] = new.shape[axis]
    return cache.scatter(axis, at.view(shape).expand_as(new), new)
'''


@dataclass(frozen=True)
class ChunkPositions(Op):
    """The positions of a chunk: `past` and those after it."""

    name = "chunk_positions"
    signature = "past: int64[B]; like: [B N *rest] -> int64[B N]"

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["past"][:, None] + t.torch.arange(t.size(t.outputs[0].shape[1]), device=ports["past"].device)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return _chunk(g, ports["past"], g.outputs[0].shape[1])


@dataclass(frozen=True)
class SlotPositions(Op):
    """The position that each slot of a cache holds once the chunk is in it."""

    name = "slot_positions"
    signature = "past: int64[B]; like: [B N *rest]; -> int64[B C]"

    capacity: Dim = attribute("dim", doc="slots")
    ring: bool = attribute("bool", False, "whether the oldest are overwritten")

    def known(self) -> dict[str, Dim | int]:
        return {"C": self.capacity}

    def torch(self, t: Any, **ports: Any) -> Any:
        ring = {"ring": True} if self.ring else {}
        size, new = t.size(self.capacity), t.size(tensor(t.inputs, "like").shape[1])
        return t.helper(SLOTS)(ports["past"], size, new, **ring)

    def onnx(self, g: Any, **ports: Any) -> Any:
        B, C = g.outputs[0].shape
        if self.ring:
            return _slots(g, ports["past"], tensor(g.inputs, "like").shape[1], C)
        return g.once(("slots", B, C), lambda: g.op("Expand", positions(g, C), g.shape((B, C))))


@dataclass(frozen=True)
class Append(Op):
    """A cache with a chunk written at `past` of each row (TensorScatter of ONNX)."""

    name = "append"
    signature = "cache: [*c]; in: [*b]; past: int64[B] -> [*c]"

    axis: int = attribute("int", doc="the axis of positions")
    ring: bool = attribute("bool", False, "whether the oldest entries are overwritten")

    def torch(self, t: Any, **ports: Any) -> Any:
        ring = {"ring": True} if self.ring else {}
        return t.helper(APPEND)(ports["cache"], ports["in"], ports["past"], self.axis, **ring)

    def forms(self) -> tuple[Form, ...]:
        return (Form("TensorScatter", frozenset({"ort-cuda", "ort-cpu"}), lambda op, site: None, Append._whole),
                Form("ScatterElements", ALL_TARGETS, lambda op, site: None, Append._elements, fused=False))

    def _whole(self, g: Any, **ports: Any) -> Any:
        mode = "circular" if self.ring else "linear"
        return g.op("TensorScatter", ports["cache"], ports["in"], ports["past"], axis=self.axis, mode=mode)

    def _elements(self, g: Any, **ports: Any) -> Any:
        new, C = tensor(g.inputs, "in").shape, tensor(g.inputs, "cache").shape[self.axis]
        at = _chunk(g, ports["past"], new[self.axis])
        at = g.op("Mod", at, g.size(C)) if self.ring else at
        ones = [i for i in range(1, len(new)) if i != self.axis]
        at = g.op("Unsqueeze", at, g.ints(*ones)) if ones else at
        return g.op("ScatterElements", ports["cache"], g.op("Expand", at, g.shape(new)), ports["in"], axis=self.axis)


@dataclass(frozen=True)
class Widen(Op):
    """Floats in float32: running sums lose digits in half precision."""

    name = "widen"
    signature = "in: float[*b] -> float32[*b]"

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"].float()

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.to_f32(ports["in"])


@dataclass(frozen=True)
class Narrow(Op):
    """Float32 in the model's dtype."""

    name = "narrow"
    signature = "in: float32[*b] -> float[*b]"

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"].to(t.dtype)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.from_f32(ports["in"])


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
        """The forms of `attention` with a mask, and before them the one that needs none."""
        ort = frozenset({"ort-cuda", "ort-cpu"})
        dense = [replace(form, name=form.name, when=_as_attention(form), emit=_masked(form)) for form in self._dense().forms()
                 if form.name.startswith("Attention") or form.name == "decomposed"]
        return (Form("Attention-24 on the cache", ort, _why_not_lean, CachedAttention._lean), *dense)

    def _lean(self, g: Any, **ports: Any) -> Any:
        """ai.onnx Attention: valid keys per row put the corner of `is_causal` at the end of the row."""
        end = g.once(("cache end", ports["past"].name), lambda: g.op("Add", ports["past"], g.size(tensor(g.inputs, "query").shape[2])))
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
            at = g.op("Unsqueeze", _chunk(g, past, N), g.ints(1, 3))
            slot = g.op("Unsqueeze", _slots(g, past, N, C), g.ints(1, 2)) if self.ring else positions(g, C)
            mask = g.op("LessOrEqual", slot, at)
            if self.window is not None:
                mask = g.op("And", mask, g.op("Greater", slot, g.op("Sub", at, g.ints(self.window))))
            return g.op("And", mask, g.op("GreaterOrEqual", slot, g.ints(0))) if self.ring else mask
        mask = g.once(("cache seen", past.name, N, C, self.window, self.ring), make)
        if keep is None:
            return mask
        missing = range(1, 5 - len(tensor(g.inputs, "keep").shape))
        return g.op("And", mask, g.op("Unsqueeze", keep, g.ints(*missing)) if missing else keep)


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


def _chunk(g: Any, past: Any, N: Dim) -> Any:
    """int64 [B N]: `past` and the positions after it."""
    return g.once(("chunk", past.name, N), lambda: g.op("Add", g.op("Unsqueeze", past, g.ints(1)), positions(g, N)))


def _slots(g: Any, past: Any, N: Dim, C: Dim) -> Any:
    """int64 [B C]: the position in each slot of a ring."""
    def make() -> Any:
        last = g.op("Slice", _chunk(g, past, N), g.ints(-1), g.ints(2**63 - 1), g.ints(1))        # past + N - 1, on the device
        return g.op("Sub", last, g.op("Mod", g.op("Sub", last, positions(g, C)), g.size(C)))
    return g.once(("ring slots", past.name, N, C), make)
