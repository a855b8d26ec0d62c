"""Moving and cutting values, with no arithmetic: concat, stack, split, slice, take, pad, flip, rearrange, expand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from ..ir.dimension import Dim, at_least
from ..ir.graph import TensorType
from ..ir.signature import spell
from .base import Op, OpFault, Types, attribute, axis_of, tensor, tensors
from .emission import padded
from .patterns import Regroup, Size, as_dim, parse_pattern, regroup, replaced, reshape, subscript
from .shapes import Along, aligned, items, listed, same_dtype

END = 2**63 - 1      # ONNX Slice: to the end, whatever the size


def agree(types: tuple[TensorType, ...], op: str, free: int | None = None) -> None:
    """Raise OpFault unless the shapes of a list port are equal, but for axis `free`."""
    first = types[0].shape
    for i, other in enumerate(types[1:], 1):
        labels = {"in.0": f"is {spell(first)}", f"in.{i}": f"is {spell(other.shape)}"}
        if len(other.shape) != len(first):
            raise OpFault("rank-mismatch", f"the inputs of `{op}` have different numbers of axes", ports=labels)
        for axis, (a, b) in enumerate(zip(first, other.shape, strict=True)):
            if a != b and axis != free:
                raise OpFault("shape-mismatch", f"the inputs of `{op}` disagree about axis {axis}: {a} and {b}", ports=labels)


@dataclass(frozen=True)
class Concat(Along):
    """The inputs one after the other along `axis`; every other axis is equal (torch.cat)."""

    name = "concat"
    signature = "in: [*b n] -> [*b m]"
    variadic = frozenset({"in"})

    axis: int = attribute("int", -1, "the axis that grows")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        dtype, types = same_dtype(self, items(inputs, "in", self)), tensors(inputs, "in")
        axis = axis_of(len(types[0].shape), self.axis)
        agree(types, self.name, free=axis)
        total = sum((other.shape[axis] for other in types), Dim.const(0))
        return (TensorType(dtype, replaced(types[0].shape, axis, total)),)

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.torch.cat(list(ports["in"]), dim=self.axis)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Concat", *ports["in"], axis=self.axis)


@dataclass(frozen=True)
class Stack(Op):
    """The inputs, all of one shape, along a new axis (torch.stack)."""

    name = "stack"
    signature = "in: [*b] -> [*c]"
    variadic = frozenset({"in"})

    axis: int = attribute("int", 0, "where the new axis stands in the result")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        dtype, types = same_dtype(self, items(inputs, "in", self)), tensors(inputs, "in")
        agree(types, self.name)
        shape = types[0].shape
        axis = axis_of(len(shape) + 1, self.axis)
        return (TensorType(dtype, (*shape[:axis], Dim.const(len(types)), *shape[axis:])),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        own = axis_of(len(outputs[0].shape), self.axis)
        return None if axis == own else {label: axis - (axis > own) for label, _ in listed(inputs, "in")}

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.torch.stack(list(ports["in"]), dim=self.axis)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Concat", *(g.op("Unsqueeze", x, g.ints(self.axis)) for x in ports["in"]), axis=self.axis)


@dataclass(frozen=True)
class Split(Along):
    """Neighbouring parts of one axis, named `0`, `1`, ...: of the given `widths`, or `into` equal ones (torch.split)."""

    name = "split"
    signature = "in: [*b n] -> part: [*b m]"

    widths: tuple[int, ...] | None = attribute("ints", None, "size of each part; they sum to the axis")
    into: int | None = attribute("int", None, "number of equal parts")
    axis: int = attribute("int", -1, "the axis that is cut")

    def outputs(self) -> tuple[str, ...]:
        return tuple(str(i) for i in range(len(self.widths) if self.widths else max(self.into or 1, 1)))

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        x = tensor(inputs, "in")
        axis = axis_of(len(x.shape), self.axis)
        return tuple(TensorType(x.dtype, replaced(x.shape, axis, d)) for d in self._parts(x.shape[axis]))

    def _parts(self, size: Dim) -> tuple[Dim, ...]:
        if (self.widths is None) == (self.into is None):
            raise OpFault("bad-attribute", "`split` needs `widths` or `into`, one of them", attribute="widths",
                          help="write `widths: [2, 3]`, or `into: 2` for equal parts")
        label = {"in": f"its axis is {size}"}
        if self.into is not None:
            part = size.exact_div(self.into) if self.into > 0 else None
            if part is None:
                raise OpFault("shape-mismatch", f"{size} is not {self.into} equal parts", ports=label, attribute="into")
            return (part,) * self.into
        widths = tuple(as_dim(w) for w in self.widths or ())
        if not widths or any(at_least(w, 0) is False for w in widths):
            raise OpFault("bad-attribute", "`widths` are one or more sizes of at least 0", attribute="widths")
        total = sum(widths, Dim.const(0))
        if total != size:
            raise OpFault("shape-mismatch", f"the widths sum to {total}, but the axis is {size}", ports=label, attribute="widths")
        return widths

    def torch(self, t: Any, **ports: Any) -> Any:
        x, names = ports["in"], tuple(f"{t.node}_{i}" for i in self.outputs())
        if len(names) == 1:
            return (x,)
        if self.into is not None:
            return t.lets(names, x.chunk(self.into, dim=self.axis))
        return t.lets(names, x.split([t.size(w) for w in self.widths or ()], dim=self.axis))

    def onnx(self, g: Any, **ports: Any) -> Any:
        x, n = ports["in"], len(self.outputs())
        if n == 1:
            return (x,)
        if self.into is not None:
            return g.op("Split", x, outputs=n, axis=self.axis, num_outputs=n)
        return g.op("Split", x, g.shape(self.widths), outputs=n, axis=self.axis)


@dataclass(frozen=True)
class Slice(Along):
    """A part of one axis: `start` to before `stop` by `step`, or the `first` or `last` so many entries.

    Negative numbers count from the end. The part must lie inside the axis; where sizes do not prove it, the PyTorch
    module checks it when it runs.
    """

    name = "slice"
    signature = "in: [*b] -> [*c]"

    axis: int = attribute("int", doc="the axis that is cut")
    start: Size | None = attribute("dim", None, "first entry taken; default 0")
    stop: Size | None = attribute("dim", None, "first entry no longer taken; default the end")
    step: int = attribute("int", 1, "distance between entries, at least 1")
    first: Size | None = attribute("dim", None, "take so many from the start")
    last: Size | None = attribute("dim", None, "take so many from the end; may be 0")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        x = tensor(inputs, "in")
        self._check()
        axis = axis_of(len(x.shape), self.axis)
        size = x.shape[axis]
        start, stop = self._bounds(size)
        if any(at_least(a, b) is False for a, b in ((start, 0), (stop, start), (size, stop))):
            raise OpFault("shape-mismatch", f"entries {start} to {stop} do not lie in an axis of {size}",
                          ports={"in": f"axis {axis} is {size}"})
        return (TensorType(x.dtype, replaced(x.shape, axis, (stop - start + (self.step - 1)) // self.step)),)

    def _check(self) -> None:
        if self.step < 1:
            raise OpFault("bad-attribute", f"`step` is at least 1, not {self.step}", attribute="step",
                          help="`flip` reverses an axis")
        ways = (self.first is not None) + (self.last is not None) + (self.start is not None or self.stop is not None)
        if ways > 1 or (ways == 0 and self.step == 1):
            raise OpFault("bad-attribute", "`slice` takes `start` and `stop`, or `first`, or `last`", attribute="axis")

    def _bounds(self, size: Dim) -> tuple[Dim, Dim]:
        """First entry taken and first no longer taken, counted from the start."""
        if self.last is not None:
            return size - as_dim(self.last), size
        start, stop = (size + d if _negative(d) else as_dim(d) for d in (self.start or 0, self._end(size)))
        return start, stop

    def _end(self, size: Dim) -> Size:
        return self.first if self.first is not None else self.stop if self.stop is not None else size

    def torch(self, t: Any, **ports: Any) -> Any:
        x, shape = ports["in"], tensor(t.inputs, "in").shape
        axis = axis_of(len(shape), self.axis)
        size = shape[axis]
        start, stop = self._bounds(size)
        inside = at_least(start, 0) and at_least(size, stop)
        bounded = self.last is not None or stop != size or _negative(self.start)
        if bounded and not inside and self.step == 1 and not _negative(self.stop):
            return x.narrow(axis, t.size(start), t.size(stop - start))      # raises where the axis is too short
        low = None if start.value == 0 else t.size(as_dim(self.start) if _negative(self.start) else start)
        high = t.size(as_dim(self.stop)) if _negative(self.stop) else None if stop == size else t.size(stop)
        return x[subscript(axis, len(shape), slice(low, high, None if self.step == 1 else self.step))]

    def onnx(self, g: Any, **ports: Any) -> Any:
        shape = tensor(g.inputs, "in").shape
        axis = axis_of(len(shape), self.axis)
        start, stop = self._bounds(shape[axis])
        low = g.size(as_dim(self.start) if _negative(self.start) else start)
        count = as_dim(self.last or 0).value
        if count:
            low = g.ints(-count)
        high = g.size(as_dim(self.stop)) if _negative(self.stop) else g.ints(END) if stop == shape[axis] else g.size(stop)
        return g.op("Slice", ports["in"], low, high, g.ints(axis), *([g.ints(self.step)] if self.step != 1 else []))


def _negative(size: Size | None) -> TypeGuard[Size]:
    return size is not None and (as_dim(size).value or 0) < 0


@dataclass(frozen=True)
class Take(Op):
    """One entry of an axis; the axis is gone: out = in[..., at, ...]."""

    name = "take"
    signature = "in: [*b] -> [*c]"

    axis: int = attribute("int", doc="the axis that goes")
    at: int = attribute("int", doc="the entry; a negative number counts from the end")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        x = tensor(inputs, "in")
        axis = axis_of(len(x.shape), self.axis)
        size = x.shape[axis].value
        if size is not None and not -size <= self.at < size:
            raise OpFault("shape-mismatch", f"entry {self.at} does not exist in an axis of {size}",
                          ports={"in": f"axis {axis} is {size}"}, attribute="at")
        return (TensorType(x.dtype, replaced(x.shape, axis)),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return {"in": axis + (axis >= axis_of(len(tensor(inputs, "in").shape), self.axis))}

    def torch(self, t: Any, **ports: Any) -> Any:
        rank = len(tensor(t.inputs, "in").shape)
        return ports["in"][subscript(axis_of(rank, self.axis), rank, self.at)]

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Gather", ports["in"], g.scalar(self.at), axis=self.axis)


@dataclass(frozen=True)
class Pad(Along):
    """`before` and `after` entries of `value` around one axis."""

    name = "pad"
    signature = "in: [*b] -> [*c]"

    axis: int = attribute("int", doc="the axis that grows")
    before: Size = attribute("dim", 0, "entries added in front")
    after: Size = attribute("dim", 0, "entries added at the end")
    value: float = attribute("float", 0.0, "what they hold; false and true are 0 and 1")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        x = tensor(inputs, "in")
        axis = axis_of(len(x.shape), self.axis)
        for name, size in (("before", self.before), ("after", self.after)):
            if at_least(size, 0) is False:
                raise OpFault("bad-attribute", f"`{name}` is at least 0, not {size}", attribute=name, help="`slice` cuts")
        if x.dtype != "float" and self.value not in ((0, 1) if x.dtype == "bool" else (int(self.value),)):
            raise OpFault("bad-attribute", f"`value` {self.value} does not exist in {x.dtype}", attribute="value",
                          ports={"in": f"is {x.dtype}"})
        return (TensorType(x.dtype, replaced(x.shape, axis, x.shape[axis] + as_dim(self.before) + as_dim(self.after))),)

    def torch(self, t: Any, **ports: Any) -> Any:
        x = tensor(t.inputs, "in")
        behind = len(x.shape) - 1 - axis_of(len(x.shape), self.axis)
        pads = (*(0, 0) * behind, t.size(self.before), t.size(self.after))     # F.pad counts from the last axis
        value = float(self.value) if x.dtype == "float" else int(self.value)
        return t.F.pad(ports["in"], pads, **({"value": value} if value else {}))

    def onnx(self, g: Any, **ports: Any) -> Any:
        return padded(g, ports["in"], tensor(g.inputs, "in"), (self.before, self.after), self.value, self.axis)


@dataclass(frozen=True)
class Flip(Op):
    """One axis in reverse order (torch.flip)."""

    name = "flip"
    signature = "in: [*b] -> [*b]"

    axis: int = attribute("int", doc="the axis that is reversed")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        axis_of(len(tensor(inputs, "in").shape), self.axis)
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"].flip(self.axis)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Slice", ports["in"], g.ints(-1), g.ints(-END), g.ints(self.axis), g.ints(-1))


@dataclass(frozen=True)
class Rearrange(Op):
    """Split, transpose and merge axes by a pattern: `b s (h d) -> b h s d` (einops, Rogozhnikov 2022).

    Every name stands on both sides; `( )` groups axes, outermost first; `1` is an axis of size 1 and `...` any axes. All but
    one size of a group on the left is given as further keys, such as `h: 8`.
    """

    name = "rearrange"
    signature = "in: [*b] -> [*c]"
    open_attributes = True

    pattern: str = attribute("text", doc="what goes where", key="as")
    sizes: tuple[tuple[str, Size], ...] = attribute("open", (), "sizes of named axes")

    def steps(self, inputs: Types) -> Regroup:
        sizes = {name: as_dim(size) for name, size in self.sizes}
        return regroup(parse_pattern(self.pattern), tensor(inputs, "in").shape, sizes)

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        return (TensorType(tensor(inputs, "in").dtype, self.steps(inputs).shape),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        steps = self.steps(inputs)
        if steps.merge[axis] != 1:                      # a new axis of size 1, or several in one
            return {} if steps.merge[axis] == 0 else None
        piece = steps.order[sum(steps.merge[:axis])]
        pieces = [(i, len(group)) for i, group in enumerate(steps.split) for _ in group]
        source, parts = pieces[piece]
        return {"in": source} if parts == 1 else None

    def torch(self, t: Any, **ports: Any) -> Any:
        x, steps = ports["in"], self.steps(t.inputs)
        for axis, sizes in reversed(list(enumerate(steps.split))):
            if not sizes:
                x = x.squeeze(axis)
            elif len(sizes) > 1:
                free = [d for d in sizes if d.value is None]
                x = x.unflatten(axis, tuple(-1 if free == [d] else t.size(d) for d in sizes))
        moved = [i for i, j in enumerate(steps.order) if i != j]
        if moved:
            x = x.transpose(*moved) if len(moved) == 2 else x.permute(*steps.order)
        for axis, n in reversed(list(enumerate(steps.merge))):
            start = sum(steps.merge[:axis])
            if n != 1:
                x = x.flatten(start, start + n - 1) if n else x.unsqueeze(start)
        return x

    def onnx(self, g: Any, **ports: Any) -> Any:
        steps = self.steps(g.inputs)
        x = reshape(g, ports["in"], tensor(g.inputs, "in").shape, steps.pieces)
        if steps.order != tuple(sorted(steps.order)):
            x = g.op("Transpose", x, perm=steps.order)
        return reshape(g, x, steps.permuted, steps.shape)


@dataclass(frozen=True)
class Expand(Op):
    """Repeat axes of size 1, and add leading ones, up to `shape` (torch.Tensor.expand)."""

    name = "expand"
    signature = "in: [*b] -> [*c]"

    shape: tuple[Size, ...] = attribute("dims", doc="the shape of the result; sizes and free dimensions")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        x = tensor(inputs, "in")
        want = tuple(as_dim(d) for d in self.shape)
        label = {"in": f"is {spell(x.shape)}"}
        if len(want) < len(x.shape):
            raise OpFault("rank-mismatch", f"{spell(x.shape)} has more axes than {spell(want)}", ports=label, attribute="shape")
        for have, d in zip(reversed(x.shape), reversed(want), strict=False):
            if have != d and have.value != 1:
                raise OpFault("shape-mismatch", f"{spell(x.shape)} does not expand to {spell(want)}: {have} is neither 1 nor {d}",
                              ports=label, attribute="shape")
        return (TensorType(x.dtype, want),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return aligned([("in", tensor(inputs, "in"))], axis, len(outputs[0].shape))

    def _missing(self, inputs: Types) -> list[Dim | None]:
        """The sizes to repeat to, None where the input has the size already."""
        shape = tensor(inputs, "in").shape
        new = len(self.shape) - len(shape)
        return [d if i < new or shape[i - new] != d else None for i, d in enumerate(map(as_dim, self.shape))]

    def torch(self, t: Any, **ports: Any) -> Any:
        missing = self._missing(t.inputs)
        return ports["in"].expand(*(-1 if d is None else t.size(d) for d in missing)) if any(missing) else ports["in"]

    def onnx(self, g: Any, **ports: Any) -> Any:
        missing = self._missing(g.inputs)
        return g.op("Expand", ports["in"], g.shape([1 if d is None else d for d in missing])) if any(missing) else ports["in"]


OPS = (Concat, Stack, Split, Slice, Take, Pad, Flip, Rearrange, Expand)
