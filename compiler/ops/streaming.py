"""What only the step form has: chunks of positions, and caches that grow.

A cache has room for C positions, of which row b has filled `past[b]`; a chunk brings N more. Where a cache is a ring, position
p lies in slot p mod C and the last C positions are there. No spec names these ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from .base import ALL_TARGETS, Form, Op, attribute, tensor
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
        return chunk(g, ports["past"], g.outputs[0].shape[1])


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
            return slots(g, ports["past"], tensor(g.inputs, "like").shape[1], C)
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
        at = chunk(g, ports["past"], new[self.axis])
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


def chunk(g: Any, past: Any, N: Dim) -> Any:
    """int64 [B N]: `past` and the positions after it."""
    def make() -> Any:
        made = g.op("Add", g.op("Unsqueeze", past, g.ints(1)), positions(g, N))
        g.note_clock(made)
        return made
    return g.once(("chunk", past.name, N), make)


def slots(g: Any, past: Any, N: Dim, C: Dim) -> Any:
    """int64 [B C]: the position in each slot of a ring."""
    def make() -> Any:
        last = g.op("Slice", chunk(g, past, N), g.ints(-1), g.ints(2**63 - 1), g.ints(1))        # past + N - 1, on the device
        return g.op("Sub", last, g.op("Mod", g.op("Sub", last, positions(g, C)), g.size(C)))
    return g.once(("ring slots", past.name, N, C), make)
