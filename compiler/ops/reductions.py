"""Reductions along axes, cumulative sums, and the L2 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import Op, Types, attribute, axis_of, tensor
from .elementwise import Pointwise
from .emission import LOWEST, number, widened
from .masks import unless_absent
from .shapes import axes_of, check_dtypes, mask_axes, masked, onnx_mask, torch_mask


@dataclass(frozen=True)
class Reduce(Op):
    """Base of reductions over one axis or several."""

    signature = "in: number[*b] -> [*r]"
    onnx_type: ClassVar[str]
    torch_name: ClassVar[str]

    axis: int | tuple[int, ...] = attribute("ints", -1, "the axis, or a list of axes, that goes")
    keep_axis: bool = attribute("bool", False, "leave the reduced axes with size 1")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        whole = tensor(inputs, "in")
        axes = axes_of(len(whole.shape), self.axis)
        if "keep" in self.ports():
            mask_axes(self, inputs, leading=True)
        kept = [(i, Dim.const(1) if i in axes else d) for i, d in enumerate(whole.shape)]
        return (TensorType(whole.dtype, tuple(d for i, d in kept if self.keep_axis or i not in axes)),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        rank = len(tensor(inputs, "in").shape)
        gone = axes_of(rank, self.axis)
        kept = [i for i in range(rank) if self.keep_axis or i not in gone]
        return None if kept[axis] in gone else masked(self, inputs, kept[axis], True) if "keep" in self.ports() else {"in": kept[axis]}

    def dims(self) -> Any:
        """The axes as PyTorch takes them."""
        axes = (self.axis,) if isinstance(self.axis, int) else tuple(self.axis)
        return axes[0] if len(axes) == 1 else axes

    def ends(self) -> dict[str, Any]:
        return {"keepdim": True} if self.keep_axis else {}

    def torch(self, t: Any, **ports: Any) -> Any:
        return getattr(ports["in"], self.torch_name)(self.dims(), **self.ends())

    def emit(self, g: Any, op_type: str, x: Any) -> Any:
        """One ONNX reduction over this op's axes."""
        axes = axes_of(len(tensor(g.inputs, "in").shape), self.axis)
        return g.op(op_type, x, g.ints(*axes), keepdims=self.keep_axis)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return self.emit(g, self.onnx_type, ports["in"])


@dataclass(frozen=True)
class MaskedReduce(Reduce):
    """Base of reductions over the entries that `keep` allows; where it allows none the result is 0.

    A mask of lower rank covers the first axes: [B, S] masks [B, S, d] as [B, S, 1].
    """

    signature = "in: number[*b]; keep?: bool[*k] -> [*r]"

    def masked_torch(self, t: Any, x: Any, keep: Any) -> Any:
        raise NotImplementedError(self.name)  # pragma: no cover - every op of the family overrides it

    def masked_onnx(self, g: Any, x: Any, keep: Any) -> Any:
        raise NotImplementedError(self.name)  # pragma: no cover

    def torch(self, t: Any, **ports: Any) -> Any:
        whole, keep = super().torch(t, **ports), ports["keep"]
        if keep is None:
            return whole
        mask = torch_mask(t, keep, mask_axes(self, t.inputs, leading=True), len(tensor(t.inputs, "in").shape))
        return unless_absent(t, "keep", keep, self.masked_torch(t, ports["in"], mask), whole)

    def onnx(self, g: Any, **ports: Any) -> Any:
        if ports["keep"] is None:
            return super().onnx(g, **ports)
        mask = onnx_mask(g, ports["keep"], mask_axes(self, g.inputs, leading=True), len(tensor(g.inputs, "in").shape))
        return self.masked_onnx(g, ports["in"], mask)

    def count(self, g: Any, mask: Any, dtype: str) -> Any:
        """How many entries a mask keeps for each result."""
        every = g.op("Expand", mask, g.shape(tensor(g.inputs, "in").shape))
        return self.emit(g, "ReduceSum", g.cast(every, dtype, "bool"))


@dataclass(frozen=True)
class Sum(MaskedReduce):
    """The sum over `axis`, of the entries that `keep` allows."""

    name, torch_name, onnx_type = "sum", "sum", "ReduceSum"

    def masked_torch(self, t: Any, x: Any, keep: Any) -> Any:
        return x.masked_fill(~keep, 0).sum(self.dims(), **self.ends())

    def masked_onnx(self, g: Any, x: Any, keep: Any) -> Any:
        return self.emit(g, "ReduceSum", g.op("Where", keep, x, number(g, 0, g.outputs[0].dtype)))


MASKED_MEAN = '''
def masked_mean(x, keep, dim, keepdim=False):
    """Mean of the kept entries, added up in f32 at least; 0 where none is kept."""
    total = x.masked_fill(~keep, 0).sum(dim, keepdim=keepdim, dtype=torch.promote_types(x.dtype, torch.float32))
    count = keep.expand_as(x).sum(dim, keepdim=keepdim)
    return (total / count.clamp(min=1)).to(x.dtype)
'''


@dataclass(frozen=True)
class Mean(MaskedReduce):
    """The mean over `axis`, of the entries that `keep` allows; added up in float32."""

    name, torch_name, onnx_type = "mean", "mean", "ReduceMean"
    signature = "in: float[*b]; keep?: bool[*k] -> float[*r]"

    def emit(self, g: Any, op_type: str, x: Any) -> Any:
        if op_type != self.onnx_type:
            return super().emit(g, op_type, x)
        return g.from_f32(super().emit(g, op_type, g.to_f32(x)))

    def masked_torch(self, t: Any, x: Any, keep: Any) -> Any:
        return t.helper(MASKED_MEAN)(x, keep, self.dims(), **self.ends())

    def masked_onnx(self, g: Any, x: Any, keep: Any) -> Any:
        total = self.emit(g, "ReduceSum", g.op("Where", keep, g.to_f32(x), g.number(0.0, "float32")))
        return g.from_f32(g.op("Div", total, g.op("Max", self.count(g, keep, "float32"), g.number(1.0, "float32"))))


MASKED_EXTREME = '''
def masked_{torch_name}(x, keep, dim, keepdim=False):
    """{which} of the kept entries; 0 where none is kept."""
    info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    found = x.masked_fill(~keep, info.{end}).{torch_name}(dim, keepdim=keepdim)
    return found.masked_fill(~keep.expand_as(x).any(dim, keepdim=keepdim), 0)
'''


class Extreme(MaskedReduce):
    """Base of max and min."""

    which: ClassVar[str]
    end: ClassVar[str]                               # what never wins: `min` for a maximum

    def emit(self, g: Any, op_type: str, x: Any) -> Any:
        if op_type != self.onnx_type:
            return super().emit(g, op_type, x)
        wide, back = widened(g, x, g.outputs[0].dtype)
        return back(super().emit(g, op_type, wide))

    def masked_torch(self, t: Any, x: Any, keep: Any) -> Any:
        text = MASKED_EXTREME.format(torch_name=self.torch_name, which=self.which, end=self.end)
        return t.helper(text)(x, keep, self.dims(), **self.ends())

    def masked_onnx(self, g: Any, x: Any, keep: Any) -> Any:
        dtype = g.outputs[0].dtype
        lowest = LOWEST[g.dtype if dtype == "float" else dtype]
        never = lowest if self.end == "min" else -lowest - (dtype == "int64")
        found = self.emit(g, self.onnx_type, g.op("Where", keep, x, number(g, never, dtype)))
        some = g.op("Greater", self.count(g, keep, "int64"), g.const(0, "int64"))
        return g.op("Where", some, found, number(g, 0, dtype))


@dataclass(frozen=True)
class Max(Extreme):
    """The largest entry over `axis`, of those that `keep` allows."""

    name, torch_name, onnx_type = "max", "amax", "ReduceMax"
    which, end = "Largest", "min"


@dataclass(frozen=True)
class Min(Extreme):
    """The smallest entry over `axis`, of those that `keep` allows."""

    name, torch_name, onnx_type = "min", "amin", "ReduceMin"
    which, end = "Smallest", "max"


@dataclass(frozen=True)
class Prod(Reduce):
    """The product over `axis`."""

    name, torch_name, onnx_type = "prod", "prod", "ReduceProd"

    def torch(self, t: Any, **ports: Any) -> Any:
        x = ports["in"]
        for axis in reversed(axes_of(len(tensor(t.inputs, "in").shape), self.axis)):     # torch.prod takes one axis
            x = x.prod(axis, **self.ends())
        return x


@dataclass(frozen=True)
class Argmax(Op):
    """The index of the largest entry along `axis`; the first of equal ones."""

    name = "argmax"
    signature = "in: float[*b] -> int64[*r]"

    axis: int = attribute("int", -1, "the axis that is searched")
    keep_axis: bool = attribute("bool", False, "leave the axis with size 1")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        shape = tensor(inputs, "in").shape
        axis = axis_of(len(shape), self.axis)
        return (TensorType("int64", (*shape[:axis], *([Dim.const(1)] if self.keep_axis else []), *shape[axis + 1 :])),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        rank = len(tensor(inputs, "in").shape)
        gone = axis_of(rank, self.axis)
        found = axis if self.keep_axis or axis < gone else axis + 1
        return None if found == gone else {"in": found}

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"].argmax(self.axis, **({"keepdim": True} if self.keep_axis else {}))

    def onnx(self, g: Any, **ports: Any) -> Any:
        wide, _ = widened(g, ports["in"])
        return g.op("ArgMax", wide, axis=self.axis, keepdims=self.keep_axis)


WIDE_CUMSUM = '''
def wide_cumsum(x, dim):
    """Cumulative sum, added up in f32 at least."""
    return x.cumsum(dim, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
'''


@dataclass(frozen=True)
class Cumsum(Pointwise):
    """The running sum along `axis`, added up in float32. `exclusive` leaves each entry itself out, `reverse` runs backwards."""

    name = "cumsum"
    signature = "in: number[*b] -> [*b]"

    axis: int = attribute("int", -1, "the axis it runs along")
    exclusive: bool = attribute("bool", False, "leave out the entry itself")
    reverse: bool = attribute("bool", False, "run from the end")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        out = super().infer(inputs)
        axis_of(len(out[0].shape), self.axis)
        return out

    def torch(self, t: Any, **ports: Any) -> Any:
        whole = tensor(t.inputs, "in")
        x, after = ports["in"], -1 - axis_of(len(whole.shape), self.axis) + len(whole.shape)
        if self.reverse:
            x = x.flip(self.axis)
        if self.exclusive:                           # shifted by one rather than subtracted, which would lose digits
            x = t.F.pad(x, (0, 0) * after + (1, -1))
        x = x.cumsum(self.axis) if whole.dtype == "int64" else t.helper(WIDE_CUMSUM)(x, self.axis)
        return x.flip(self.axis) if self.reverse else x

    def onnx(self, g: Any, **ports: Any) -> Any:
        x, real = ports["in"], g.outputs[0].dtype == "float"
        total = g.op("CumSum", g.to_f32(x) if real else x, g.const(self.axis, "int64"),
                     exclusive=self.exclusive, reverse=self.reverse)
        return g.from_f32(total) if real else total


L2_NORMALIZE = '''
def l2_normalize(x, dim, eps):
    """x / max(|x|, eps), formed in f32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.normalize(wide, dim=dim, eps=eps).to(x.dtype)
'''


@dataclass(frozen=True)
class L2Norm(Pointwise):
    """x / max(|x|, eps) with the Euclidean norm along `axis` (torch.nn.functional.normalize)."""

    name = "l2_norm"
    signature = "in: float[*b] -> float[*b]"

    axis: int = attribute("int", -1, "the axis that gets length one")
    eps: float = attribute("float", 1e-12, "the least length to divide by")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        out = super().infer(inputs)
        axis_of(len(out[0].shape), self.axis)
        return out

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.helper(L2_NORMALIZE)(ports["in"], self.axis, self.eps)

    def onnx(self, g: Any, **ports: Any) -> Any:
        x = g.to_f32(ports["in"])
        length = g.op("Max", g.op("ReduceL2", x, g.ints(self.axis), keepdims=True), g.number(self.eps, "float32"))
        return g.from_f32(g.op("Div", x, length))


OPS = (Sum, Mean, Max, Min, Prod, Argmax, Cumsum, L2Norm)
