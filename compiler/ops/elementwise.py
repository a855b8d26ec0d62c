"""Arithmetic, comparison and functions of each element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from ..ir.graph import TensorType
from .base import Op, OpFault, Types, attribute, tensor
from .emission import Number, number, plain, spelled, widened, with_number
from .shapes import aligned, broadcast, check_dtypes, items, listed, same_dtype


class Pointwise(Op):
    """Base of ops whose one result has the shape of `in`."""

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        return super().infer(inputs)


class Combine(Op):
    """Base of ops that combine a list of inputs from left to right, with numpy broadcasting."""

    signature = "in: number[*s d] -> [*s d]"
    variadic = frozenset({"in"})
    fewest: ClassVar[int] = 1
    most: ClassVar[int | None] = None
    onnx_type: ClassVar[str]
    result: ClassVar[str | None] = None              # dtype of the result, where it is not the inputs'

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        given = items(inputs, "in", self, self.fewest, self.most)
        check_dtypes(self, inputs)
        dtype = same_dtype(self, given)
        return (TensorType(self.result or dtype, broadcast(self, given)),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return aligned(listed(inputs, "in"), axis, len(outputs[0].shape))

    def write(self, t: Any, a: Any, b: Any) -> Any:
        """PyTorch source of two operands."""
        raise NotImplementedError(self.name)  # pragma: no cover - every op of the family overrides it

    def torch(self, t: Any, **ports: Any) -> Any:
        return reduce(lambda a, b: self.write(t, a, b), ports["in"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        return reduce(lambda a, b: g.op(self.onnx_type, a, b), ports["in"])


@dataclass(frozen=True)
class Add(Combine):
    """The sum of its inputs."""

    name, onnx_type = "add", "Add"

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return a + b


@dataclass(frozen=True)
class Subtract(Combine):
    """The first input less all others."""

    name, onnx_type, fewest = "subtract", "Sub", 2

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return a - b


@dataclass(frozen=True)
class Multiply(Combine):
    """The product of its inputs, element by element."""

    name, onnx_type = "multiply", "Mul"

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return a * b


@dataclass(frozen=True)
class Divide(Combine):
    """The first input divided by all others."""

    name, onnx_type, fewest = "divide", "Div", 2
    signature = "in: float[*s d] -> float[*s d]"

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return a / b


@dataclass(frozen=True)
class Maximum(Combine):
    """The largest of its inputs, element by element."""

    name, onnx_type = "maximum", "Max"

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return t.torch.maximum(a, b)


@dataclass(frozen=True)
class Minimum(Combine):
    """The smallest of its inputs, element by element."""

    name, onnx_type = "minimum", "Min"

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return t.torch.minimum(a, b)


class Compare(Combine):
    """Base of comparisons: two inputs with numpy broadcasting, a bool result."""

    signature = "in: number[*s d] -> bool[*s d]"
    fewest, most, result = 2, 2, "bool"
    python: ClassVar[Callable[[Any, Any], Any]]

    def write(self, t: Any, a: Any, b: Any) -> Any:
        return type(self).python(a, b)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op(self.onnx_type, *(widened(g, x, type.dtype)[0] for x, type in zip(ports["in"], g.inputs["in"], strict=True)))


@dataclass(frozen=True)
class Equal(Compare):
    """Where two inputs are equal."""

    name, onnx_type, python = "equal", "Equal", operator.eq
    signature = "in: [*s d] -> bool[*s d]"


@dataclass(frozen=True)
class NotEqual(Compare):
    """Where two inputs differ."""

    name, onnx_type, python = "not_equal", "Equal", operator.ne
    signature = "in: [*s d] -> bool[*s d]"

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Not", super().onnx(g, **ports))


@dataclass(frozen=True)
class Less(Compare):
    """Where the first input is less than the second."""

    name, onnx_type, python = "less", "Less", operator.lt


@dataclass(frozen=True)
class LessEqual(Compare):
    """Where the first input is at most the second."""

    name, onnx_type, python = "less_equal", "LessOrEqual", operator.le


@dataclass(frozen=True)
class Greater(Compare):
    """Where the first input is greater than the second."""

    name, onnx_type, python = "greater", "Greater", operator.gt


@dataclass(frozen=True)
class GreaterEqual(Compare):
    """Where the first input is at least the second."""

    name, onnx_type, python = "greater_equal", "GreaterOrEqual", operator.ge


@dataclass(frozen=True)
class Where(Op):
    """The first of two inputs where `keep` is true, else the second, with numpy broadcasting."""

    name = "where"
    signature = "keep: bool[*k]; in: [*s d] -> [*s d]"
    variadic = frozenset({"in"})

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        given = items(inputs, "in", self, 2, 2)
        check_dtypes(self, inputs)
        dtype = same_dtype(self, given)
        return (TensorType(dtype, broadcast(self, [("keep", tensor(inputs, "keep")), *given])),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return aligned([("keep", tensor(inputs, "keep")), *listed(inputs, "in")], axis, len(outputs[0].shape))

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.torch.where(ports["keep"], *ports["in"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        keep, (a, b) = ports["keep"], ports["in"]
        if g.outputs[0].dtype == "bool":                 # ONNX Runtime has no Where of bools
            return g.op("Or", g.op("And", keep, a), g.op("And", g.op("Not", keep), b))
        return g.op("Where", keep, a, b)


@dataclass(frozen=True)
class Scale(Pointwise):
    """x times a constant number.

    `round: dtype` first rounds the number to the model's dtype, as Gemma does with its embedding scale (55.4256 is 55.5 in
    bfloat16; Gemma Team 2024, arXiv:2403.08295, reference code); without it the product is formed in float32.
    """

    name = "scale"
    signature = "in: number[*b] -> [*b]"

    by: Number = attribute("number", doc="the number")
    round: str = attribute("none|dtype", "none", "round the number to the model's dtype first")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if tensor(inputs, "in").dtype == "int64" and isinstance(self.by, float):
            raise OpFault("dtype-mismatch", f"an int64 input cannot be scaled by {self.by}", attribute="by",
                          ports={"in": "this is int64"}, help="convert it with `cast`, or write a whole number")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        by = spelled(t, self.by)
        return ports["in"] * (t.torch.tensor(by, dtype=ports["in"].dtype) if self.round == "dtype" else by)

    def onnx(self, g: Any, **ports: Any) -> Any:
        if g.outputs[0].dtype == "int64":
            return g.op("Mul", ports["in"], number(g, self.by, "int64"))
        return with_number(g, "Mul", ports["in"], self.by, rounded=self.round == "dtype")


@dataclass(frozen=True)
class Power(Pointwise):
    """x to a constant power."""

    name = "power"
    signature = "in: float[*b] -> float[*b]"

    exponent: Number = attribute("number", doc="the power")

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"] ** spelled(t, self.exponent)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return with_number(g, "Pow", ports["in"], self.exponent)


@dataclass(frozen=True)
class Clip(Pointwise):
    """x held between `low` and `high`; one of them may be left out."""

    name = "clip"
    signature = "in: number[*b] -> [*b]"

    low: Number | None = attribute("number", None, "the least value")
    high: Number | None = attribute("number", None, "the largest value")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        low, high = (None if x is None else plain(x) for x in (self.low, self.high))
        if low is None and high is None:
            raise OpFault("missing-key", "`clip` needs `low` or `high`", help="write one of them, or both")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            raise OpFault("bad-attribute", f"`low` is {low}, above `high`, which is {high}", attribute="low")
        for name, bound in (("low", low), ("high", high)):
            if isinstance(bound, float) and tensor(inputs, "in").dtype == "int64":
                raise OpFault("dtype-mismatch", f"an int64 input cannot be clipped at {bound}", attribute=name,
                              ports={"in": "this is int64"}, help="write a whole number")
        return super().infer(inputs)

    def bounds(self) -> dict[str, Number]:
        return {k: v for k, v in (("min", self.low), ("max", self.high)) if v is not None}

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"].clamp(**{k: spelled(t, v) for k, v in self.bounds().items()})

    def onnx(self, g: Any, **ports: Any) -> Any:
        ends = {k: number(g, v, g.outputs[0].dtype) for k, v in self.bounds().items()}
        return g.op("Clip", ports["in"], ends.get("min"), ends.get("max"))


@dataclass(frozen=True)
class Cast(Pointwise):
    """The same values as another dtype: float to int64 drops the fraction, to bool is `not 0`."""

    name = "cast"
    signature = "in: [*b] -> [*b]"

    to: str = attribute("float|int64|bool", doc="the dtype; float is the model's")

    def result_dtype(self, inputs: Types) -> str:
        return self.to

    def torch(self, t: Any, **ports: Any) -> Any:
        if tensor(t.inputs, "in").dtype == self.to:
            return ports["in"]
        return ports["in"].to({"float": t.dtype, "int64": t.torch.int64, "bool": t.torch.bool}[self.to])

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.cast(ports["in"], self.to, tensor(g.inputs, "in").dtype)


class Unary(Pointwise):
    """Base of functions that PyTorch and ONNX both have."""

    signature = "in: float[*b] -> float[*b]"
    onnx_type: ClassVar[str]

    def torch(self, t: Any, **ports: Any) -> Any:
        return getattr(t.torch, self.name)(ports["in"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op(self.onnx_type, ports["in"])


@dataclass(frozen=True)
class Exp(Unary):
    """e to the power x."""

    name, onnx_type = "exp", "Exp"


@dataclass(frozen=True)
class Log(Unary):
    """The natural logarithm of x."""

    name, onnx_type = "log", "Log"


@dataclass(frozen=True)
class Sqrt(Unary):
    """The square root of x."""

    name, onnx_type = "sqrt", "Sqrt"


@dataclass(frozen=True)
class Rsqrt(Unary):
    """1 / sqrt(x)."""

    name, onnx_type = "rsqrt", "Sqrt"

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Reciprocal", g.op("Sqrt", ports["in"]))


@dataclass(frozen=True)
class Abs(Unary):
    """|x|."""

    name, onnx_type = "abs", "Abs"
    signature = "in: number[*b] -> [*b]"


@dataclass(frozen=True)
class Negate(Unary):
    """-x."""

    name, onnx_type = "negate", "Neg"
    signature = "in: number[*b] -> [*b]"

    def torch(self, t: Any, **ports: Any) -> Any:
        return -ports["in"]


@dataclass(frozen=True)
class Square(Unary):
    """x times x."""

    name, onnx_type = "square", "Mul"
    signature = "in: number[*b] -> [*b]"

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Mul", ports["in"], ports["in"])


@dataclass(frozen=True)
class Sin(Unary):
    """The sine of x, in radians."""

    name, onnx_type = "sin", "Sin"


@dataclass(frozen=True)
class Cos(Unary):
    """The cosine of x, in radians."""

    name, onnx_type = "cos", "Cos"


@dataclass(frozen=True)
class Reciprocal(Unary):
    """1 / x."""

    name, onnx_type = "reciprocal", "Reciprocal"


OPS = (Add, Subtract, Multiply, Divide, Maximum, Minimum, Scale, Power, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual,
       Where, Exp, Log, Sqrt, Rsqrt, Abs, Negate, Square, Sin, Cos, Reciprocal, Cast, Clip)
