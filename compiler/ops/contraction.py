"""Products summed over shared axes: matmul, einsum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from ..ir.signature import spell
from .base import Op, OpFault, Types, attribute, tensors
from .patterns import REST, AxisPattern, names_of, parse_pattern, product
from .shapes import aligned, broadcast, check_dtypes, items, listed, same_dtype

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Matmul(Op):
    """The matrix product of two values over the last axis of one and the last but one of the other; leading axes broadcast."""

    name = "matmul"
    signature = "in: float[*b m n] -> float[*c m p]"
    variadic = frozenset({"in"})

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        given = items(inputs, "in", self, fewest=2, most=2)
        check_dtypes(self, inputs)
        a, b = (x.shape for _, x in given)
        for i, shape in enumerate((a, b)):
            if len(shape) < 2:
                raise OpFault("rank-mismatch", f"`matmul` takes matrices, not {spell(shape)}",
                              ports={f"in.{i}": f"is {spell(shape)}"}, help="`einsum` takes vectors: `b d, d -> b`")
        if a[-1] != b[-2]:
            raise OpFault("shape-mismatch", f"`matmul` sums over {a[-1]} on the left and {b[-2]} on the right",
                          ports={"in.0": f"is {spell(a)}: last axis {a[-1]}", "in.1": f"is {spell(b)}: last but one {b[-2]}"})
        one = Dim.const(1)
        batch = broadcast(self, [(label, TensorType(x.dtype, (*x.shape[:-2], one, one))) for label, x in given])[:-2]
        return (TensorType("float", (*batch, a[-2], b[-1])),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        rank, (a, b) = len(outputs[0].shape), tensors(inputs, "in")
        if axis >= rank - 2:
            return {"in.0": len(a.shape) - 2} if axis == rank - 2 else {"in.1": len(b.shape) - 1}
        return aligned(listed(inputs, "in"), axis, rank)

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        return product(outputs[0].shape) * tensors(inputs, "in")[0].shape[-1] * 2

    def torch(self, t: Any, **ports: Any) -> Any:
        return ports["in"][0] @ ports["in"][1]

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("MatMul", *ports["in"])


@dataclass(frozen=True)
class Einsum(Op):
    """Multiply the inputs and sum over every axis that the result does not name: `b t d, b s d -> b t s` (torch.einsum).

    Axes of one name have one size; `...` stands for any axes, the same wherever it is written.
    """

    name = "einsum"
    signature = "in: number[*b] -> [*c]"
    variadic = frozenset({"in"})

    pattern: str = attribute("text", doc="the axes of each input and of the result", key="as")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        types, pattern = tensors(inputs, "in"), self._pattern()
        dtype = same_dtype(self, items(inputs, "in", self))
        check_dtypes(self, inputs)
        sizes, rest = self._sizes(types, pattern)
        shape: list[Dim] = []
        for name in names_of(pattern.output):
            shape += rest if name == REST else [sizes[name]]
        return (TensorType(dtype, tuple(shape)),)

    def _pattern(self) -> AxisPattern:
        pattern = parse_pattern(self.pattern)
        known = {n for axes in pattern.inputs for n in names_of(axes)}
        out = list(names_of(pattern.output))
        wrong = next((f"repeats `{n}` in the result" for n in out if out.count(n) > 1), None) or next(
            (f"names `{n}` in the result only" for n in out if n not in known), None)
        if any(not isinstance(axis, str) for axes in (*pattern.inputs, pattern.output) for axis in axes):
            wrong = "groups axes with `( )` or `1`, which `rearrange` does"
        if REST in known and REST not in out:
            wrong = "sums over `...`, whose axes have no names"
        if len(known) > len(LETTERS):
            wrong = f"has more than {len(LETTERS)} names"
        if wrong:
            raise OpFault("bad-attribute", f"the pattern `{self.pattern}` {wrong}", attribute="as")
        return pattern

    def _sizes(self, types: tuple[TensorType, ...], pattern: AxisPattern) -> tuple[dict[str, Dim], tuple[Dim, ...]]:
        """The size of every name, and the axes that `...` stands for."""
        if len(types) != len(pattern.inputs):
            raise OpFault("bad-attribute", f"the pattern `{self.pattern}` is for {len(pattern.inputs)} inputs, not {len(types)}",
                          ports={"in": f"has {len(types)}"}, attribute="as")
        sizes: dict[str, tuple[Dim, int]] = {}
        rest: tuple[tuple[Dim, ...], int] | None = None
        for i, (axes, type) in enumerate(zip(pattern.inputs, types, strict=True)):
            names, n = list(axes), len(type.shape) - len(axes) + (REST in axes)
            if n < 0 or (REST not in axes and n):
                raise OpFault("rank-mismatch", f"`{' '.join(names_of(axes))}` does not fit {spell(type.shape)}",
                              ports={f"in.{i}": f"is {spell(type.shape)}"}, attribute="as")
            at = names.index(REST) if REST in axes else len(names)
            if REST in axes:
                here = type.shape[at:at + n]
                rest = rest or (here, i)
                if rest[0] != here:
                    raise OpFault("shape-mismatch", "the inputs of `einsum` disagree about `...`", attribute="as",
                                  ports={f"in.{rest[1]}": f"`...` is {spell(rest[0])}", f"in.{i}": f"`...` is {spell(here)}"})
            for name, size in zip(names[:at] + names[at + 1:], type.shape[:at] + type.shape[at + n:], strict=True):
                first, where = sizes.setdefault(str(name), (size, i))
                if first != size:
                    raise OpFault("shape-mismatch", f"the inputs of `einsum` disagree about `{name}`", attribute="as",
                                  ports={f"in.{where}": f"`{name}` is {first}", f"in.{i}": f"`{name}` is {size}"})
        return {name: size for name, (size, _) in sizes.items()}, rest[0] if rest else ()

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        *sides, out = self.sides(inputs)
        return {f"in.{i}": side.index(out[axis]) for i, side in enumerate(sides) if out[axis] in side}

    def sides(self, inputs: Types) -> list[list[str]]:
        """The name of every axis of each input and of the result, those of `...` numbered."""
        pattern, types = self._pattern(), tensors(inputs, "in")
        rest = [f"{REST}{k}" for k in range(len(self._sizes(types, pattern)[1]))]
        return [[n for name in names_of(axes) for n in (rest if name == REST else [name])] for axes in (*pattern.inputs, pattern.output)]

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        """2 x the product of all sizes; for more than two inputs an upper bound."""
        types = tensors(inputs, "in")
        sizes, rest = self._sizes(types, self._pattern())
        return product([*sizes.values(), *rest]) * 2 if len(types) > 1 else Dim.const(0)

    def equation(self) -> str:
        """The pattern with one letter a name, as torch and ONNX take it."""
        pattern = self._pattern()
        names = list(dict.fromkeys(n for axes in pattern.inputs for n in names_of(axes) if n != REST))
        free = (x for x in LETTERS if x not in names)
        letters = {n: n if n in LETTERS else next(free) for n in names} | {REST: REST}
        sides = ["".join(letters[n] for n in names_of(axes)) for axes in (*pattern.inputs, pattern.output)]
        return f"{','.join(sides[:-1])}->{sides[-1]}"

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.torch.einsum(self.equation(), *ports["in"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        values, types = list(ports["in"]), tensors(g.inputs, "in")
        *sides, out = self.sides(g.inputs)
        for i, j in ((0, 1), (1, 0)) if len(values) == 2 else ():
            if turned := matrix_product(sides[i], sides[j], out):
                return _matmul(g, values[i], values[j], turned, [len(s) for s in (sides[i], sides[j])])
            row = [[*side[:-1], "row", side[-1]] for side in (sides[i], out) if side]            # a vector is a matrix of one row
            if len(row) == 2 and (turned := matrix_product(row[0], sides[j], row[1])):
                one = g.op("Unsqueeze", values[i], g.ints(-2))
                return g.op("Squeeze", _matmul(g, one, values[j], turned, [len(row[0]), len(sides[j])]), g.ints(-2))
        if g.dtype == "bfloat16" and types[0].dtype == "float":          # which ONNX's Einsum does not take
            return g.from_f32(g.op("Einsum", *(g.to_f32(v) for v in values), equation=self.equation()))
        return g.op("Einsum", *values, equation=self.equation())


def _matmul(g: Any, left: Any, right: Any, turned: tuple[bool, bool], ranks: list[int]) -> Any:
    """MatMul of two values, of which `turned` have their last two axes swapped first."""
    swap = lambda rank: [*range(rank - 2), rank - 1, rank - 2]  # noqa: E731
    return g.op("MatMul", *(g.op("Transpose", x, perm=swap(rank)) if turn else x
                            for x, rank, turn in zip((left, right), ranks, turned, strict=True)))


def matrix_product(left: list[str], right: list[str], out: list[str]) -> tuple[bool, bool] | None:
    """Whether an einsum over single axes is one MatMul, and if so, whose last two axes it needs swapped."""
    summed = [n for n in left if n in right and n not in out]
    if len(summed) != 1 or not out or len(right) < 2 or any(len(set(x)) < len(x) for x in (left, right)):
        return None
    k, n, batch = summed[0], out[-1], right[:-2]
    if set(right[-2:]) != {k, n} or n in left or k not in left[-2:] or (batch and batch != out[:-2]):
        return None
    straight = left[-1] == k
    if [x for x in left if x != k] != out[:-1] or (batch and batch != left[:-2]):
        return None
    return not straight, right[-2] != k


OPS = (Matmul, Einsum)
