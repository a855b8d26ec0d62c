"""Values that come from the spec itself: parameters, constants, ranges, positions; and the two identities that mark a place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..ir.dimension import Dim, at_least
from ..ir.graph import Shape, TensorType
from ..ir.signature import spell
from .base import Op, OpFault, Types, attribute, tensor, tensors
from .elementwise import Pointwise
from .emission import Number, number, plain, positions, spelled
from .masks import unless_absent
from .shapes import check_dtypes

Nested = int | float | bool | tuple["Nested", ...] | list["Nested"]
DTYPES = "float|int64|bool"


def torch_dtype(t: Any, dtype: str) -> Any:
    return t.dtype if dtype == "float" else getattr(t.torch, dtype)


def check_value(value: Number | bool, dtype: str) -> None:
    """Raises OpFault when a number cannot be of a dtype."""
    if dtype == "bool" and value not in (0, 1):
        raise OpFault("bad-attribute", f"{value} is not a bool", attribute="value", help="write 1 for true, 0 for false")
    if dtype == "int64" and isinstance(value, float) and not value.is_integer():
        raise OpFault("bad-attribute", f"{value} is not a whole number", attribute="value",
                      help="write a whole number, or `dtype: float`")


@dataclass(frozen=True)
class NamedParameter(Op):
    """A parameter on its own. `init` says how it starts, N(0, 0.02^2) when left out; the name of a node gives its first value."""

    name = "parameter"
    signature = "init?: float[*s] -> float[*s]"
    attribute_ports = frozenset({"init"})

    shape: tuple[Dim, ...] = attribute("dims", doc="its shape, constant sizes only")
    init: Any = attribute("init", None, "how it starts")
    trainable: bool = attribute("bool", True, "whether training changes it")

    @property
    def start(self) -> Any:
        """How it starts, said or not."""
        return {"normal": 0.02} if self.init is None else self.init

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        shape = tuple(map(Dim, self.shape))
        free = next((d for d in shape if d.value is None), None)
        if free is not None:
            raise OpFault("bad-attribute", f"a parameter cannot have the free size {free}", attribute="shape",
                          help="use sizes that the spec fixes")
        given = inputs.get("init")
        if isinstance(given, TensorType) and given.shape != shape:
            raise OpFault("shape-mismatch", f"the initial value is {spell(given.shape)}, the parameter {spell(shape)}",
                          ports={"init": spell(given.shape)}, attribute="shape")
        return (TensorType("float", shape),)

    def torch(self, t: Any, **ports: Any) -> Any:
        raise TypeError("the PyTorch backend makes parameters itself")

    def onnx(self, g: Any, **ports: Any) -> Any:
        raise TypeError("the ONNX backend makes parameters itself")


@dataclass(frozen=True)
class Constant(Op):
    """A number, or a nested list of numbers, as a tensor."""

    name = "constant"
    signature = "-> [*s]"

    value: Nested = attribute("numbers", doc="a number, or a list of equally long lists of numbers")
    dtype: str = attribute(DTYPES, "float", "its dtype; float is the model's")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        return (TensorType(self.dtype, self.shape_of(self.value)),)

    def shape_of(self, value: Nested) -> Shape:
        if not isinstance(value, tuple | list):
            check_value(value, self.dtype)
            return ()
        shapes = [self.shape_of(v) for v in value]
        for i, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise OpFault("bad-attribute", f"item {i} of a list is {spell(shape)}, item 0 is {spell(shapes[0])}",
                              attribute="value", help="the lists of one level must be equally long")
        return (Dim.const(len(value)), *(shapes[0] if shapes else ()))

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.torch.tensor(self.typed(self.value), dtype=torch_dtype(t, self.dtype), device=t.device)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.const(self.typed(self.value), self.dtype)

    def typed(self, value: Nested) -> Any:
        """The value as lists of the dtype's Python type."""
        if isinstance(value, tuple | list):
            return [self.typed(v) for v in value]
        return {"float": float, "int64": int, "bool": bool}[self.dtype](value)


@dataclass(frozen=True)
class Full(Op):
    """A tensor of one number."""

    name = "full"
    signature = "-> [*s]"

    value: Number = attribute("number", doc="the number")
    shape: tuple[Dim, ...] = attribute("dims", doc="its shape")
    dtype: str = attribute(DTYPES, "float", "its dtype; float is the model's")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        value = plain(self.value)
        if not isinstance(value, Dim):
            check_value(value, self.dtype)
        return (TensorType(self.dtype, tuple(map(Dim, self.shape))),)

    def torch(self, t: Any, **ports: Any) -> Any:
        value = spelled(t, bool(self.value) if self.dtype == "bool" else self.value)
        return t.torch.full(t.shape(t.outputs[0].shape), value, dtype=torch_dtype(t, self.dtype), device=t.device)

    def onnx(self, g: Any, **ports: Any) -> Any:
        shape = g.outputs[0].shape
        value = number(g, self.value, self.dtype)
        return g.op("Expand", value, g.shape(shape)) if shape else value


@dataclass(frozen=True)
class Range(Op):
    """`from`, `from` + `step`, ... below `to`."""

    name = "range"
    signature = "-> [n]"

    to: Dim | int = attribute("dim", doc="the end, which is left out")
    start: Dim | int = attribute("dim", 0, "the first number", key="from")
    step: int = attribute("int", 1, "the distance of two numbers, at least 1")
    dtype: str = attribute("int64|float", "int64", "its dtype; float is the model's")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if self.step < 1:
            raise OpFault("bad-attribute", f"`step` must be at least 1, not {self.step}", attribute="step")
        length = Dim(self.to) - Dim(self.start)
        if at_least(length, 0) is False:
            raise OpFault("bad-attribute", f"the range ends at {self.to}, before it begins at {self.start}", attribute="to")
        return (TensorType(self.dtype, ((length + (self.step - 1)) // self.step,)),)

    def torch(self, t: Any, **ports: Any) -> Any:
        start, to = t.shape((Dim(self.start), Dim(self.to)))
        ends = (start, to, self.step) if self.step != 1 else (to,) if plain(self.start) == 0 else (start, to)
        dtype = {} if self.dtype == "int64" else {"dtype": t.dtype}
        return t.torch.arange(*ends, **dtype, device=t.device)

    def onnx(self, g: Any, **ports: Any) -> Any:
        if plain(self.start) == 0 and self.step == 1:
            steps = positions(g, Dim(self.to))
        else:
            steps = g.op("Range", g.scalar(Dim(self.start)), g.scalar(Dim(self.to)), g.const(self.step, "int64"))
        return g.cast(steps, self.dtype, "int64")


@dataclass(frozen=True)
class Position(Op):
    """The one clock: the position of each entry of [B, S], 0 to S - 1 in every row.

    With `keep` positions count the kept entries only, so that left padding does not shift them; padding has position 0 or
    that of the entry before it.
    """

    name = "position"
    signature = "like: [B S *rest]; keep?: bool[B S] -> int64[B S]"

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        keep = ports["keep"]
        rows, size = t.shape(t.outputs[0].shape)
        steps = t.torch.arange(size, device=t.device).expand(rows, size)
        return steps if keep is None else unless_absent(t, "keep", keep, (keep.cumsum(1) - 1).clamp(min=0), steps)

    def onnx(self, g: Any, **ports: Any) -> Any:
        shape = g.outputs[0].shape
        if ports["keep"] is None:
            return g.once(("clock", shape), lambda: g.op("Expand", positions(g, shape[1]), g.shape(shape)))
        count = g.op("CumSum", g.cast(ports["keep"], "int64", "bool"), g.const(1, "int64"))
        return g.op("Max", g.op("Sub", count, g.const(1, "int64")), g.const(0, "int64"))


@dataclass(frozen=True)
class StopGradient(Pointwise):
    """x, through which no gradient flows back."""

    name = "stop_gradient"
    signature = "in: [*b] -> [*b]"

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"].detach()

    def onnx(self, g: Any, **ports: Any) -> Any:
        return ports["in"]


@dataclass(frozen=True)
class Cache(Pointwise):
    """x; marks where the step form cuts its cache, such as the latent of multi-head latent attention (arXiv:2405.04434)."""

    name = "cache"
    signature = "in: [*b] -> [*b]"

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"]

    def onnx(self, g: Any, **ports: Any) -> Any:
        return ports["in"]


@dataclass(frozen=True)
class FirstOf(Op):
    """The first of its inputs that is there, decided where the block is used: an optional input of a block that is not wired
    drops out. It takes no value that is optional until the model runs, which would choose nodes then.
    """

    name = "first_of"
    signature = "in: [*b] -> [*b]"
    variadic = frozenset({"in"})

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        there = tensors(inputs, "in")
        if not there:
            raise OpFault("missing-port", "every input of `first_of` is absent", ports={"in": "nothing here is wired"},
                          help="end the list with a value that is always there")
        return (there[0],)

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"][0]

    def onnx(self, g: Any, **ports: Any) -> Any:
        return ports["in"][0]


@dataclass(frozen=True)
class FillAbsent(Op):
    """The input, or where it is left out at run time a tensor of one number in its shape: segments that are all 0."""

    name = "fill_absent"
    signature = "in?: [*b] -> [*b]"

    value: Number = attribute("number", doc="the number")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        given = inputs.get("in")
        if not isinstance(given, TensorType):
            raise OpFault("missing-port", "`fill_absent` takes an input whose shape is known", ports={"in": "nothing is wired here"})
        value = plain(self.value)
        if not isinstance(value, Dim):
            check_value(value, given.dtype)
        return (replace(given, optional=False),)

    def torch(self, t: Any, **ports: Any) -> Any:
        x, type = ports["in"], t.outputs[0]
        value = spelled(t, bool(self.value) if type.dtype == "bool" else self.value)
        if not tensor(t.inputs, "in").optional:
            return x
        filled = t.torch.full(t.shape(type.shape), value, dtype=torch_dtype(t, type.dtype), device=t.device)
        return unless_absent(t, "in", x, x, filled)

    def onnx(self, g: Any, **ports: Any) -> Any:
        if ports["in"] is not None:
            return ports["in"]
        shape, dtype = g.outputs[0].shape, g.outputs[0].dtype
        return g.op("Expand", number(g, self.value, dtype), g.shape(shape)) if shape else number(g, self.value, dtype)


OPS = (NamedParameter, Constant, Full, Range, Position, StopGradient, Cache, FirstOf, FillAbsent)
