"""Projections and look-ups: linear, embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import Op, OpFault, Parameter, Types, attribute, tensor


@dataclass(frozen=True)
class Linear(Op):
    """y = x W^T + b over the last axis, W as [out, in] (torch.nn.Linear).

    Without a wired `weight:` it owns one of width `width`; `bias: false` leaves the bias out. Starts as
    torch.nn.Linear does: uniform in +-1/sqrt(in).
    """

    name = "linear"
    signature = "in: float[*b i]; weight?: float[o i]; bias?: float[o] -> float[*b o]"
    attribute_ports = frozenset({"bias"})

    width: int | None = attribute("int", None, "size of the output's last axis; follows from `weight` when that is wired")
    bias: bool = attribute("bool", True, "whether a bias is added; a reference wires one")

    def parameters(self) -> dict[str, Parameter]:
        init = {"fan_in_uniform": 1.0}
        return {"weight": Parameter(init), **({"bias": Parameter(init)} if self.bias else {})}

    def known(self) -> dict[str, Dim | int]:
        return {} if self.width is None else {"o": self.width}

    def parameter_shapes(self, inputs: Types) -> dict[str, Any]:
        if self.width is None and inputs.get("weight") is None:
            raise OpFault("missing-key", "`linear` needs `width`", help="write `width:`, or wire `weight:`")
        return super().parameter_shapes(inputs)

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        total = Dim.const(2) * tensor(inputs, "in").shape[-1]
        for d in outputs[0].shape:
            total = total * d
        return total

    def module(self, t: Any, inputs: Types) -> Any:
        o, i = tensor(inputs, "weight").shape
        return t.nn.Linear(i.value, o.value, **({} if self.bias else {"bias": False}))

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.F.linear(ports["in"], ports["weight"], *([ports["bias"]] if ports["bias"] is not None else []))

    def onnx(self, g: Any, **ports: Any) -> Any:
        weight = g.transposed(ports["weight"], tensor(g.inputs, "weight").shape)
        out = g.op("MatMul", ports["in"], weight)
        return g.op("Add", out, ports["bias"]) if ports["bias"] is not None else out


@dataclass(frozen=True)
class Embedding(Op):
    """Rows of a table by index: out[..., :] = weight[in[...]] (torch.nn.Embedding). Starts from N(0, 1)."""

    name = "embedding"
    signature = "in: int64[*b]; weight?: float[v w] -> float[*b w]"

    entries: int | None = attribute("int", None, "rows of the table; follows from `weight` when that is wired")
    width: int | None = attribute("int", None, "columns of the table")

    def parameters(self) -> dict[str, Parameter]:
        return {"weight": Parameter({"normal": 1.0})}

    def known(self) -> dict[str, Dim | int]:
        return {k: v for k, v in (("v", self.entries), ("w", self.width)) if v is not None}

    def parameter_shapes(self, inputs: Types) -> dict[str, Any]:
        if inputs.get("weight") is None and (self.entries is None or self.width is None):
            raise OpFault("missing-key", "`embedding` needs `entries` and `width`", help="write both, or wire `weight:`")
        return super().parameter_shapes(inputs)

    def result_dtype(self, inputs: Types) -> str:
        return tensor(inputs, "weight").dtype

    def module(self, t: Any, inputs: Types) -> Any:
        v, w = tensor(inputs, "weight").shape
        return t.nn.Embedding(v.value, w.value)

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.F.embedding(ports["in"], ports["weight"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.op("Gather", ports["weight"], ports["in"], axis=0)


OPS = (Embedding, Linear)
