"""Activation functions. One table gives each its PyTorch source and its ONNX nodes; `activate` picks one by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ir.graph import TensorType
from .base import Op, OpFault, Types, attribute
from .elementwise import Pointwise
from .emission import with_number

GELU_OPSET = 20


@dataclass(frozen=True)
class Activation:
    """What it computes, and how each target writes it."""

    about: str
    torch: Callable[[Any, Any], Any]
    onnx: Callable[[Any, Any], Any]


def _gelu(g: Any, x: Any) -> Any:
    if g.opset >= GELU_OPSET:
        return g.op("Gelu", x)
    half = g.op("Mul", x, g.op("Add", g.op("Erf", g.op("Div", x, g.number(math.sqrt(2)))), g.number(1.0)))
    return g.op("Mul", half, g.number(0.5))


def _gelu_tanh(g: Any, x: Any) -> Any:
    if g.opset >= GELU_OPSET:
        return g.op("Gelu", x, approximate="tanh")
    cube = g.op("Mul", g.op("Mul", x, x), x)
    inner = g.op("Mul", g.op("Add", x, g.op("Mul", cube, g.number(0.044715))), g.number(math.sqrt(2 / math.pi)))
    return g.op("Mul", g.op("Mul", x, g.op("Add", g.op("Tanh", inner), g.number(1.0))), g.number(0.5))


def _relu_squared(g: Any, x: Any) -> Any:
    positive = g.op("Relu", x)
    return g.op("Mul", positive, positive)


def _node(op_type: str, **attributes: Any) -> Callable[[Any, Any], Any]:
    return lambda g, x: g.op(op_type, x, **attributes)


def _wide_node(op_type: str, **attributes: Any) -> Callable[[Any, Any], Any]:
    """In float32: where there is no half kernel, ONNX Runtime expands Softplus to an exp that overflows; Elu has no bfloat16."""
    return lambda g, x: g.from_f32(g.op(op_type, g.to_f32(x), **attributes))


TABLE: dict[str, Activation] = {
    "relu": Activation("max(x, 0).", lambda t, x: t.F.relu(x), _node("Relu")),
    "gelu": Activation("x Phi(x), with the exact error function (Hendrycks and Gimpel 2016, arXiv:1606.08415).",
                       lambda t, x: t.F.gelu(x), _gelu),
    "gelu_tanh": Activation("The tanh approximation of gelu (Hendrycks and Gimpel 2016, arXiv:1606.08415), as in GPT-2.",
                            lambda t, x: t.F.gelu(x, approximate="tanh"), _gelu_tanh),
    # Sigmoid and Mul rather than Swish-24, which ONNX Runtime has no kernel for: it fuses the pair
    "silu": Activation("x sigmoid(x), also called swish (Elfwing et al. 2017, arXiv:1702.03118).",
                       lambda t, x: t.F.silu(x), lambda g, x: g.op("Mul", x, g.op("Sigmoid", x))),
    "tanh": Activation("The hyperbolic tangent.", lambda t, x: t.torch.tanh(x), _node("Tanh")),
    "sigmoid": Activation("1 / (1 + exp(-x)).", lambda t, x: t.torch.sigmoid(x), _node("Sigmoid")),
    "softplus": Activation("log(1 + exp(x)).", lambda t, x: t.F.softplus(x), _wide_node("Softplus")),
    "relu_squared": Activation("max(x, 0) squared (So et al. 2021, Primer, arXiv:2109.08668).",
                               lambda t, x: t.F.relu(x).square(), _relu_squared),
    "leaky_relu": Activation("x where it is positive, else x / 100 (Maas et al. 2013).",
                             lambda t, x: t.F.leaky_relu(x), _node("LeakyRelu", alpha=0.01)),
    "elu": Activation("x where it is positive, else exp(x) - 1 (Clevert et al. 2015, arXiv:1511.07289).",
                      lambda t, x: t.F.elu(x), _wide_node("Elu", alpha=1.0)),
    "identity": Activation("x itself.", lambda t, x: x, lambda g, x: x),
}


class Activating(Pointwise):
    """Base of ops that apply one row of the table."""

    signature = "in: float[*b] -> float[*b]"

    def row(self) -> Activation:
        return TABLE[self.name]

    def torch(self, t: Any, **ports: Any) -> Any:
        return self.row().torch(t, ports["in"])

    def onnx(self, g: Any, **ports: Any) -> Any:
        return self.row().onnx(g, ports["in"])


@dataclass(frozen=True)
class Activate(Activating):
    """The activation function that `function` names."""

    name = "activate"

    function: str = attribute("|".join(TABLE), doc="which function")

    def row(self) -> Activation:
        return TABLE[self.function]


def _named(name: str, signature: str = Activating.signature) -> type[Op]:
    """The op of one row of the table."""
    body = {"name": name, "signature": signature, "__doc__": TABLE[name].about, "__module__": __name__}
    return dataclass(frozen=True)(type(name.title().replace("_", ""), (Activating,), body))


Relu, Gelu, GeluTanh, Silu, Tanh, Sigmoid, Softplus, ReluSquared, LeakyRelu, Elu = map(_named, list(TABLE)[:-1])
Identity = _named("identity", "in: [*b] -> [*b]")


@dataclass(frozen=True)
class Softcap(Pointwise):
    """cap tanh(x / cap): keeps x within +-cap (Gemma 2, Gemma Team 2024, arXiv:2408.00118)."""

    name = "softcap"
    signature = "in: float[*b] -> float[*b]"

    cap: float = attribute("float", doc="the bound, positive")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if self.cap <= 0:
            raise OpFault("bad-attribute", f"`cap` must be positive, not {self.cap}", attribute="cap")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        return self.cap * t.torch.tanh(ports["in"] / self.cap)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return with_number(g, "Mul", g.op("Tanh", with_number(g, "Div", ports["in"], self.cap)), self.cap)


OPS = (Activate, Relu, Gelu, GeluTanh, Silu, Tanh, Sigmoid, Softplus, ReluSquared, LeakyRelu, Elu, Identity, Softcap)
