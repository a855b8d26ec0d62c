"""Masks (bool, True = keep) and what they are for: softmax, log_softmax, mask_fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar

from ..ir.graph import Shape, TensorType
from .base import Op, OpFault, Types, attribute, axis_of, tensor, tensors
from .elementwise import Pointwise
from .emission import LOWEST, Number, number, positions, spelled
from .shapes import aligned, broadcast, check_dtypes, items, listed, mask_axes, masked, onnx_mask, torch_mask


def may_be_absent(given: Any) -> bool:
    """Whether a port has nothing, or a value that may be absent at run time."""
    return given is None or given.optional


def unless_absent(t: Any, port: str, value: Any, result: Any, otherwise: Any = None) -> Any:
    """`otherwise if value is None else result`; just `result` where the value is always there."""
    return t.either(t.missing(value), otherwise, result) if tensor(t.inputs, port).optional else result


@dataclass(frozen=True)
class LengthMask(Op):
    """True at the first `in[b]` positions of row b: right padding. S is axis 1 of `like`. Absent where `in` is."""

    name = "length_mask"
    signature = "in?: int64[B]; like: [B S *rest] -> bool[B S]"

    def absent(self, inputs: Types) -> bool:
        return may_be_absent(inputs.get("in"))

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        return (replace(super().infer(inputs)[0], optional=self.absent(inputs)),)

    def torch(self, t: Any, **ports: Any) -> Any:
        length = ports["in"]
        if length is None:
            return None
        steps = t.torch.arange(t.size(t.outputs[0].shape[1]), device=ports["like"].device)
        return unless_absent(t, "in", length, steps < length[:, None])

    def onnx(self, g: Any, **ports: Any) -> Any:
        if ports["in"] is None:
            return None
        return g.op("Less", positions(g, g.outputs[0].shape[1]), g.op("Unsqueeze", ports["in"], g.ints(1)))


JOIN = '''
def {name}(*masks):
    """The masks that are there joined by `{symbol}`; None when there is none."""
    joined = None
    for mask in masks:
        if mask is not None:
            joined = mask if joined is None else joined {symbol} mask
    return joined
'''


class Join(Op):
    """Base of `and` and `or`, with numpy broadcasting. Absent terms are dropped; the shape stays that of all terms."""

    signature = "in?: bool[*s d] -> bool[*s d]"
    variadic = frozenset({"in"})
    symbol: ClassVar[str]
    onnx_type: ClassVar[str]

    def absent(self, inputs: Types) -> bool:
        return all(may_be_absent(term) for term in tensors(inputs, "in"))

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        given = items(inputs, "in", self)
        check_dtypes(self, inputs)
        terms = [(label, type) for label, type in given if type is not None]
        if not terms:
            raise OpFault("bad-attribute", f"every input of `{self.name}` is absent", ports={"in": "nothing here is wired"})
        return (TensorType("bool", broadcast(self, terms), optional=self.absent(inputs)),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return aligned(listed(inputs, "in"), axis, len(outputs[0].shape))

    def shape_of(self, types: Sequence[TensorType]) -> Shape:
        return broadcast(self, [("in", type) for type in types])

    def torch(self, t: Any, **ports: Any) -> Any:
        there = [(x, type) for x, type in zip(ports["in"], t.inputs["in"], strict=True) if x is not None]
        always, shape = [type for _, type in there if not type.optional], t.outputs[0].shape
        if len(always) == len(there):
            return reduce(lambda a, b: a & b if self.symbol == "&" else a | b, [x for x, _ in there])
        if len(there) == 1 and there[0][1].shape == shape:
            return there[0][0]
        joined = t.helper(JOIN.format(name=f"join_{self.name}", symbol=self.symbol))(*(x for x, _ in there))
        if always and self.shape_of(always) == shape or all(type.shape == shape for _, type in there):
            return joined
        if always:
            return joined.expand(*t.shape(shape))
        joined = t.let("joined", joined)
        return t.either(t.missing(joined), None, joined.expand(*t.shape(shape)))

    def onnx(self, g: Any, **ports: Any) -> Any:
        there = [(x, type) for x, type in zip(ports["in"], g.inputs["in"], strict=True) if x is not None]
        if not there:
            return None
        joined = reduce(lambda a, b: g.op(self.onnx_type, a, b), [x for x, _ in there])
        shape = g.outputs[0].shape
        return joined if self.shape_of([type for _, type in there]) == shape else g.op("Expand", joined, g.shape(shape))


@dataclass(frozen=True)
class And(Join):
    """True where every mask that is there is true. Absent when all are absent."""

    name, symbol, onnx_type = "and", "&", "And"


@dataclass(frozen=True)
class Or(Join):
    """True where some mask that is there is true. Absent when all are absent."""

    name, symbol, onnx_type = "or", "|", "Or"


@dataclass(frozen=True)
class Not(Op):
    """True where the mask is false. Absent where the mask is."""

    name = "not"
    signature = "in?: bool[*b] -> bool[*b]"

    def absent(self, inputs: Types) -> bool:
        return may_be_absent(inputs.get("in"))

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if inputs.get("in") is None:
            raise OpFault("bad-attribute", "the input of `not` is absent", ports={"in": "nothing is wired here"})
        check_dtypes(self, inputs)
        return (replace(super().infer(inputs)[0], optional=self.absent(inputs)),)

    def torch(self, t: Any, **ports: Any) -> Any:
        return unless_absent(t, "in", ports["in"], ~ports["in"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        return None if ports["in"] is None else g.op("Not", ports["in"])


@dataclass(frozen=True)
class CausalMask(Op):
    """True where the query (axis 1) may see the key (axis 2): key <= query. S is axis 1 of `like`."""

    name = "causal_mask"
    signature = "like: [B S *rest] -> bool[1 S S]"

    def torch(self, t: Any, **ports: Any) -> Any:
        size, like = t.size(t.outputs[0].shape[1]), ports["like"]
        return t.torch.ones(1, size, size, dtype=t.torch.bool, device=like.device).tril()

    def onnx(self, g: Any, **ports: Any) -> Any:
        size = g.outputs[0].shape[1]
        steps = positions(g, size)
        return g.once(("causal", size), lambda: g.op("LessOrEqual", steps, g.op("Unsqueeze", steps, g.ints(0, 2))))


MASKED_SOFTMAX = '''
def masked_softmax(x, keep, dim):
    """Softmax over the kept entries; the others are 0, and so is a row that keeps none."""
    weights = torch.softmax(x.masked_fill(~keep, torch.finfo(x.dtype).min), dim)
    return weights.masked_fill(~keep, 0)
'''
MASKED_LOG_SOFTMAX = '''
def masked_log_softmax(x, keep, dim):
    """Logarithm of the softmax over the kept entries; the others are the lowest finite number."""
    lowest = torch.finfo(x.dtype).min
    return torch.log_softmax(x.masked_fill(~keep, lowest), dim).masked_fill(~keep, lowest)
'''


@dataclass(frozen=True)
class Softmax(Pointwise):
    """exp(x) over its sum along `axis`, formed in float32. `keep` restricts it: a row that keeps nothing gives zeros.

    A mask of lower rank keeps its first axis first and its last axes last: [B, S] masks [B, H, T, S] as [B, 1, 1, S].
    """

    name = "softmax"
    signature = "in: float[*b]; keep?: bool[*k] -> float[*b]"
    onnx_type: ClassVar[str] = "Softmax"
    helper: ClassVar[str] = MASKED_SOFTMAX

    axis: int = attribute("int", -1, "the axis that sums to one")

    def rest(self, dtype: str) -> float:
        """What entries that are not kept are."""
        return 0.0

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        out = super().infer(inputs)
        axis_of(len(out[0].shape), self.axis)
        mask_axes(self, inputs)
        return out

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return None if axis_of(len(outputs[0].shape), self.axis) == axis else masked(self, inputs, axis)

    def torch(self, t: Any, **ports: Any) -> Any:
        x, keep = ports["in"], ports["keep"]
        whole = getattr(t.torch, self.name)(x, self.axis)
        if keep is None:
            return whole
        mask = torch_mask(t, keep, mask_axes(self, t.inputs), len(t.outputs[0].shape))
        return unless_absent(t, "keep", keep, t.helper(self.helper)(x, mask, self.axis), whole)

    def onnx(self, g: Any, **ports: Any) -> Any:
        x, keep = g.to_f32(ports["in"]), ports["keep"]
        if keep is None:
            return g.from_f32(g.op(self.onnx_type, x, axis=self.axis))
        mask = onnx_mask(g, keep, mask_axes(self, g.inputs), len(g.outputs[0].shape))
        kept = g.op(self.onnx_type, g.op("Where", mask, x, g.number(LOWEST["float32"], "float32")), axis=self.axis)
        return g.op("Where", mask, g.from_f32(kept), g.number(self.rest(g.dtype), g.dtype))


@dataclass(frozen=True)
class LogSoftmax(Softmax):
    """The logarithm of the softmax along `axis`, formed in float32. `keep` restricts it, aligned as in `softmax`.

    Entries that are not kept, and so all of a row that keeps nothing, are the lowest finite number of the dtype: their
    exponential is 0 as in `softmax`, and no infinity reaches a loss.
    """

    name = "log_softmax"
    onnx_type = "LogSoftmax"
    helper = MASKED_LOG_SOFTMAX

    axis: int = attribute("int", -1, "the axis whose exponentials sum to one")

    def rest(self, dtype: str) -> float:
        return LOWEST[dtype]


@dataclass(frozen=True)
class MaskFill(Pointwise):
    """x where `keep` is true, else `value`; x itself where `keep` is absent. The mask is aligned as in `softmax`."""

    name = "mask_fill"
    signature = "in: number[*b]; keep?: bool[*k] -> [*b]"

    value: Number | None = attribute("number", None, "what replaces the rest; the lowest finite value of the dtype when left out")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        out = super().infer(inputs)
        mask_axes(self, inputs)
        if out[0].dtype == "int64" and isinstance(self.value, float):
            raise OpFault("dtype-mismatch", f"an int64 input cannot be filled with {self.value}", attribute="value",
                           ports={"in": "this is int64"}, help="write a whole number")
        return out

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return masked(self, inputs, axis)

    def torch(self, t: Any, **ports: Any) -> Any:
        x, keep = ports["in"], ports["keep"]
        if keep is None:
            return x
        info = t.torch.finfo if t.outputs[0].dtype == "float" else t.torch.iinfo
        value = info(x.dtype).min if self.value is None else spelled(t, self.value)
        mask = torch_mask(t, keep, mask_axes(self, t.inputs), len(t.outputs[0].shape))
        return unless_absent(t, "keep", keep, x.masked_fill(~mask, value), x)

    def onnx(self, g: Any, **ports: Any) -> Any:
        if ports["keep"] is None:
            return ports["in"]
        dtype = g.outputs[0].dtype
        value = LOWEST[g.dtype if dtype == "float" else dtype] if self.value is None else self.value
        mask = onnx_mask(g, ports["keep"], mask_axes(self, g.inputs), len(g.outputs[0].shape))
        return g.op("Where", mask, ports["in"], number(g, value, dtype))


OPS = (LengthMask, And, Or, Not, CausalMask, Softmax, LogSoftmax, MaskFill)
