"""Reading and adding at indices: gather, scatter_add, top_k, one_hot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim, at_least
from ..ir.graph import Shape, TensorType
from ..ir.signature import spell
from .base import Op, OpFault, Types, attribute, axis_of, tensor
from .patterns import product, replaced, reshape
from .shapes import Along, check_dtypes


@dataclass(frozen=True)
class Indexed(Op):
    """Base of ops that address one axis of a value by `index`, whose first `batch` axes are those of the value."""

    target = "in"                # the port that is addressed

    axis: int = attribute("int", 0, "the axis that the indices count")
    batch: int = attribute("int", 0, "leading axes that the value and the index share")

    def place(self, inputs: Types) -> int:
        """The axis, not negative. Raises OpFault where the index does not fit the value."""
        check_dtypes(self, inputs)
        x, index = tensor(inputs, self.target).shape, tensor(inputs, "index").shape
        axis = axis_of(len(x), self.axis)
        if not 0 <= self.batch <= axis:
            raise OpFault("bad-attribute", f"`batch` is 0 to {axis}, the axes before `axis`, not {self.batch}", attribute="batch")
        labels = {self.target: f"is {spell(x)}", "index": f"is {spell(index)}"}
        if len(index) < self.batch:
            raise OpFault("rank-mismatch", f"the index has no {self.batch} axes to share", ports=labels, attribute="batch")
        if x[:self.batch] != index[:self.batch]:
            raise OpFault("shape-mismatch", f"`{self.name}` shares its first {self.batch} axes, which differ", ports=labels)
        return axis

    def picked(self, inputs: Types, axis: int) -> Shape:
        """The shape of what the index addresses: the axis replaced by the index's own axes."""
        return replaced(tensor(inputs, self.target).shape, axis, *tensor(inputs, "index").shape[self.batch:])

    def spread(self, index: Any, axis: int, rank: int, own: int) -> Any:
        """Source of the index with its one own axis at `axis` and axes of size 1 for the others: `index[:, None, :, None]`."""
        if own != 1:
            index = index.flatten(self.batch) if own else index.unsqueeze(self.batch)
        keys = [slice(None)] * self.batch + [None] * (axis - self.batch) + [slice(None)] + [None] * (rank - 1 - axis)
        return index[tuple(keys)] if None in keys else index


@dataclass(frozen=True)
class Gather(Indexed):
    """Entries of one axis by index: out[b.., i.., j.., k..] = in[b.., i.., index[b.., j..], k..], with `batch` axes b
    shared and k the axes after `axis` (numpy.take; tf.gather with batch_dims). Indices lie in 0 .. size - 1."""

    name = "gather"
    signature = "in: [*b]; index: int64[*i] -> [*c]"

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        return (TensorType(tensor(inputs, "in").dtype, self.picked(inputs, self.place(inputs))),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        at, own = self.place(inputs), len(tensor(inputs, "index").shape) - self.batch
        if axis < self.batch:
            return {"in": axis, "index": axis}
        if axis < at:
            return {"in": axis}
        return {"index": self.batch + axis - at} if axis < at + own else {"in": axis - own + 1}

    def torch(self, t: Any, **ports: Any) -> Any:
        axis, rank = self.place(t.inputs), len(tensor(t.inputs, "in").shape)
        own = tensor(t.inputs, "index").shape[self.batch:]
        if not self.batch:
            return ports["in"][(*[slice(None)] * axis, ports["index"])]
        found = t.torch.take_along_dim(ports["in"], self.spread(ports["index"], axis, rank, len(own)), dim=axis)
        if not own:
            return found.squeeze(axis)
        return found if len(own) == 1 else found.unflatten(axis, t.shape(own))

    def onnx(self, g: Any, **ports: Any) -> Any:
        axis, n = self.place(g.inputs), self.batch
        x, index, shape = ports["in"], ports["index"], tensor(g.inputs, "in").shape
        if not n:
            return g.op("Gather", x, index, axis=axis)
        if axis > n:
            x = g.op("Transpose", x, perm=[*range(n), axis, *(i for i in range(n, len(shape)) if i != axis)])
        apart = g.once(("gather", index.name), lambda: g.op("Unsqueeze", index, g.ints(-1)))
        found = g.op("GatherND", x, apart, batch_dims=n)
        own = len(tensor(g.inputs, "index").shape) - n
        if axis == n or not own:
            return found
        middle, end = range(n + own, own + axis), range(own + axis, own + len(shape) - 1)
        return g.op("Transpose", found, perm=[*range(n), *middle, *range(n, n + own), *end])


@dataclass(frozen=True)
class ScatterAdd(Indexed):
    """`base` with `source` added at indices of one axis: what `gather` of the same `axis` and `batch` reads from is added to.
    Indices may repeat; they lie in 0 .. size - 1 (torch.Tensor.scatter_add)."""

    name = "scatter_add"
    signature = "base: number[*b]; index: int64[*i]; source: number[*c] -> [*b]"
    target = "base"

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        base, source = tensor(inputs, "base"), tensor(inputs, "source")
        want = self.picked(inputs, self.place(inputs))
        if source.dtype != base.dtype:
            raise OpFault("dtype-mismatch", "`scatter_add` adds values of one dtype",
                          ports={"base": f"is {base.dtype}", "source": f"is {source.dtype}"})
        if source.shape != want:
            raise OpFault("shape-mismatch", f"`scatter_add` needs a source of {spell(want)} here",
                          ports={"source": f"is {spell(source.shape)}", "base": f"is {spell(base.shape)}",
                                 "index": f"is {spell(tensor(inputs, 'index').shape)}"})
        return (base,)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        at, own = self.place(inputs), len(tensor(inputs, "index").shape) - self.batch
        if axis == at:
            return None
        return {"base": axis, "source": axis if axis < at else axis + own - 1} | ({"index": axis} if axis < self.batch else {})

    def torch(self, t: Any, **ports: Any) -> Any:
        axis, rank = self.place(t.inputs), len(tensor(t.inputs, "base").shape)
        own, base, source = len(tensor(t.inputs, "index").shape) - self.batch, ports["base"], ports["source"]
        if not self.batch and own == 1:
            return base.index_add(axis, ports["index"], source)
        if own != 1:
            source = t.let("source", source.flatten(axis, axis + own - 1) if own else source.unsqueeze(axis))
        return base.scatter_add(axis, self.spread(ports["index"], axis, rank, own).expand_as(source), source)

    def onnx(self, g: Any, **ports: Any) -> Any:
        axis, index, source = self.place(g.inputs), tensor(g.inputs, "index").shape, tensor(g.inputs, "source").shape
        rank = len(tensor(g.inputs, "base").shape)
        count, one = product(index[self.batch:]), Dim.const(1)
        spread = (*index[:self.batch], *[one] * (axis - self.batch), count, *[one] * (rank - 1 - axis))
        full = replaced(tensor(g.inputs, "base").shape, axis, count)
        where = g.op("Expand", reshape(g, ports["index"], index, spread), g.shape(full))
        base, flat = ports["base"], reshape(g, ports["source"], source, full)
        if tensor(g.inputs, "base").dtype != "float":
            return g.op("ScatterElements", base, where, flat, axis=axis, reduction="add")
        # ONNX Runtime's CPU kernel adds no float16
        return g.from_f32(g.op("ScatterElements", g.to_f32(base), where, g.to_f32(flat), axis=axis, reduction="add"))


@dataclass(frozen=True)
class TopK(Along):
    """The `k` largest (or smallest) entries of an axis and where they were (torch.topk). The order of equals is free."""

    name = "top_k"
    signature = "in: number[*b] -> values: [*c], indices: int64[*c]"

    k: int = attribute("int", doc="how many")
    axis: int = attribute("int", -1, "the axis that is searched")
    largest: bool = attribute("bool", True, "false: the smallest entries")
    sorted: bool = attribute("bool", True, "whether they come in order")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        x = tensor(inputs, "in")
        axis = axis_of(len(x.shape), self.axis)
        if self.k < 1:
            raise OpFault("bad-attribute", f"`k` is at least 1, not {self.k}", attribute="k")
        if at_least(x.shape[axis], self.k) is False:
            raise OpFault("shape-mismatch", f"an axis of {x.shape[axis]} has no {self.k} entries", attribute="k",
                          ports={"in": f"axis {axis} is {x.shape[axis]}"})
        shape = replaced(x.shape, axis, Dim.const(self.k))
        return TensorType(x.dtype, shape), TensorType("int64", shape)

    def torch(self, t: Any, **ports: Any) -> Any:
        options = {**({} if self.largest else {"largest": False}), **({} if self.sorted else {"sorted": False})}
        names = (f"{t.node}_values", f"{t.node}_indices")
        return t.lets(names, t.torch.topk(ports["in"], self.k, dim=self.axis, **options))

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("TopK", ports["in"], g.ints(self.k), outputs=2, axis=self.axis, largest=self.largest, sorted=self.sorted)


@dataclass(frozen=True)
class OneHot(Op):
    """1 at the index and 0 elsewhere, on a new last axis of `entries` (torch.nn.functional.one_hot, as float)."""

    name = "one_hot"
    signature = "in: int64[*b] -> float[*b v]"

    entries: int = attribute("int", doc="size of the new axis; indices lie in 0 .. entries - 1")

    def known(self) -> dict[str, Dim | int]:
        return {"v": self.entries}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        if self.entries < 1:
            raise OpFault("bad-attribute", f"`entries` is at least 1, not {self.entries}", attribute="entries")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.F.one_hot(ports["in"], self.entries).to(t.dtype)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.from_f32(g.op("OneHot", ports["in"], g.ints(self.entries), g.const([0.0, 1.0], "float32"), axis=-1))


OPS = (Gather, ScatterAdd, TopK, OneHot)
