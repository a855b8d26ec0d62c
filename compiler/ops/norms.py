"""Norms of the last axis or of groups of channels, and dropout. Statistics are formed in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ir.graph import TensorType
from .base import ALL_TARGETS, Form, OpFault, Parameter, Site, Types, attribute, tensor
from .elementwise import Pointwise


def _check_eps(eps: float) -> None:
    if eps <= 0:
        raise OpFault("bad-attribute", f"`eps` must be positive, not {eps}", attribute="eps")


def _vector(g: Any, value: float, size: Any) -> Any:
    """float [size] of one value, for inputs that ONNX requires."""
    return g.once(("vector", value, size), lambda: g.op("Expand", g.number(value), g.size(size)))


@dataclass(frozen=True)
class LayerNorm(Pointwise):
    """(x - mean) / sqrt(variance + eps) over the last axis, times weight, plus bias (Ba et al. 2016, arXiv:1607.06450).

    `weight: false` and `bias: false` leave them out.
    """

    name = "layer_norm"
    signature = "in: float[*b d]; weight?: float[d]; bias?: float[d] -> float[*b d]"
    attribute_ports = frozenset({"weight", "bias"})
    site = True

    eps: float = attribute("float", 1e-5, "added to the variance")
    weight: bool = attribute("bool", True, "whether the result is scaled; a reference wires the scale")
    bias: bool = attribute("bool", True, "whether a bias is added; a reference wires one")

    def parameters(self) -> dict[str, Parameter]:
        return {**({"weight": Parameter("ones")} if self.weight else {}), **({"bias": Parameter("zeros")} if self.bias else {})}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        _check_eps(self.eps)
        return super().infer(inputs)

    def module(self, t: Any, inputs: Types) -> Any:
        if not self.weight:                          # nn.LayerNorm has no bias alone
            return None
        size = tensor(inputs, "in").shape[-1].value
        return t.nn.LayerNorm(size, eps=self.eps, **({} if self.bias else {"bias": False}))

    def torch(self, t: Any, **ports: Any) -> Any:
        size = t.size(tensor(t.inputs, "in").shape[-1])
        return t.F.layer_norm(ports["in"], (size,), ports["weight"], ports["bias"], self.eps)

    def onnx(self, g: Any, **ports: Any) -> Any:
        weight = ports["weight"] or _vector(g, 1.0, tensor(g.inputs, "in").shape[-1])
        return g.op("LayerNormalization", ports["in"], weight, ports["bias"], axis=-1, epsilon=float(self.eps), stash_type=1)

    def forms(self) -> tuple[Form, ...]:
        return (Form("LayerNormalization", ALL_TARGETS, lambda op, site: None, LayerNorm.onnx, joined="SkipLayerNormalization"),)


OFFSET_RMS_NORM = '''
def offset_rms_norm(x, weight, offset, eps):
    """RMS norm times (offset + weight), formed and applied in f32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.rms_norm(wide, (x.shape[-1],), offset + weight.to(wide.dtype), eps).to(x.dtype)
'''


@dataclass(frozen=True)
class RmsNorm(Pointwise):
    """x / sqrt(mean(x^2) + eps) over the last axis, times weight (Zhang and Sennrich 2019, arXiv:1910.07467).

    With `offset` the factor is offset + weight, formed and applied in float32, and the weight starts at zero (Gemma, with
    offset 1). `weight: false` leaves the factor out.
    """

    name = "rms_norm"
    signature = "in: float[*b d]; weight?: float[d] -> float[*b d]"
    attribute_ports = frozenset({"weight"})
    site = True

    eps: float = attribute("float", 1e-6, "added to the mean square")
    offset: float = attribute("float", 0.0, "added to the weight")
    weight: bool = attribute("bool", True, "whether the result is scaled; a reference wires the scale")

    def parameters(self) -> dict[str, Parameter]:
        return {"weight": Parameter("zeros" if self.offset else "ones")} if self.weight else {}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        _check_eps(self.eps)
        if self.offset and not self.weight and inputs.get("weight") is None:
            raise OpFault("bad-attribute", "`offset` is added to a weight, and this `rms_norm` has none", attribute="offset",
                          help="leave out `offset`, or `weight: false`")
        return super().infer(inputs)

    def module(self, t: Any, inputs: Types) -> Any:
        if self.offset:
            return None
        return t.nn.RMSNorm(tensor(inputs, "in").shape[-1].value, eps=self.eps)

    def torch(self, t: Any, **ports: Any) -> Any:
        if self.offset:
            return t.helper(OFFSET_RMS_NORM)(ports["in"], ports["weight"], self.offset, self.eps)
        size = t.size(tensor(t.inputs, "in").shape[-1])
        return t.F.rms_norm(ports["in"], (size,), ports["weight"], self.eps)

    def factor(self, g: Any, weight: Any) -> Any:
        """offset + weight in float32: an initializer made from a float32 parameter, else nodes that the runtime folds."""
        size = tensor(g.inputs, "weight").shape[0].value
        made = g.parameter("add", [weight], (size,), value=self.offset) if g.dtype == "float32" and size is not None else None
        return made or g.once(("offset", weight.name, self.offset),
                              lambda: g.op("Add", g.to_f32(weight), g.number(self.offset, "float32")))

    def fused(self, g: Any, **ports: Any) -> Any:
        x, weight = ports["in"], ports["weight"]
        if self.offset:                              # the factor in the model's dtype would round 1 + w
            return g.from_f32(self.normalization(g, g.to_f32(x), self.factor(g, weight)))
        return self.normalization(g, x, weight or _vector(g, 1.0, tensor(g.inputs, "in").shape[-1]))

    def normalization(self, g: Any, x: Any, factor: Any) -> Any:
        return g.op("RMSNormalization", x, factor, axis=-1, epsilon=float(self.eps), stash_type=1)

    def decomposed(self, g: Any, **ports: Any) -> Any:
        x, weight = g.to_f32(ports["in"]), ports["weight"]
        square = g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1), keepdims=True)
        out = g.op("Div", x, g.op("Sqrt", g.op("Add", square, g.number(self.eps, "float32"))))
        if weight is None:
            return g.from_f32(out)
        return g.from_f32(g.op("Mul", out, self.factor(g, weight) if self.offset else g.to_f32(weight)))

    def forms(self) -> tuple[Form, ...]:
        def anywhere(op: Any, site: Site) -> str | None:
            return None

        return (Form("RMSNormalization-23", frozenset({"ort-cuda", "ort-cpu"}), anywhere, RmsNorm.fused,
                     joined="SkipSimplifiedLayerNormalization"),
                Form("decomposed", ALL_TARGETS, anywhere, RmsNorm.decomposed, fused=False))


@dataclass(frozen=True)
class GroupNorm(Pointwise):
    """Normalises groups of channels over their positions, then scales and shifts each channel (Wu and He 2018, arXiv:1803.08494).

    Channels are axis 1: [B, C, *positions].
    """

    name = "group_norm"
    signature = "in: float[B C *s]; weight?: float[C]; bias?: float[C] -> float[B C *s]"
    site = True

    groups: int = attribute("int", doc="how many groups the channels form")
    eps: float = attribute("float", 1e-5, "added to the variance")

    def parameters(self) -> dict[str, Parameter]:
        return {"weight": Parameter("ones"), "bias": Parameter("zeros")}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        _check_eps(self.eps)
        out = super().infer(inputs)
        channels = out[0].shape[1]
        if self.groups < 1 or channels.exact_div(self.groups) is None:
            raise OpFault("shape-mismatch", f"{channels} channels do not form {self.groups} groups", attribute="groups",
                          ports={"in": f"axis 1 = {channels}"}, help="the number of channels must be a multiple of `groups`")
        return out

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        return {"in": 0} if axis == 0 else None

    def module(self, t: Any, inputs: Types) -> Any:
        return t.nn.GroupNorm(self.groups, tensor(inputs, "in").shape[1].value, eps=self.eps)

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.F.group_norm(ports["in"], self.groups, ports["weight"], ports["bias"], self.eps)

    def whole(self, g: Any, **ports: Any) -> Any:
        one, zero = (g.const([x] * self.groups, "float32") for x in (1.0, 0.0))
        return self._emit(g, lambda rows: g.op("InstanceNormalization", rows, one, zero, epsilon=float(self.eps)), **ports)

    def decomposed(self, g: Any, **ports: Any) -> Any:
        def normal(rows: Any) -> Any:
            apart = g.op("Sub", rows, g.op("ReduceMean", rows, g.ints(-1), keepdims=True))
            square = g.op("ReduceMean", g.op("Mul", apart, apart), g.ints(-1), keepdims=True)
            return g.op("Div", apart, g.op("Sqrt", g.op("Add", square, g.number(self.eps, "float32"))))
        return self._emit(g, normal, **ports)

    def _emit(self, g: Any, normal: Callable[[Any], Any], **ports: Any) -> Any:
        """`normal` gives rows [B, groups, entries] mean 0 and variance 1."""
        shape = g.outputs[0].shape
        rows = g.op("Reshape", g.to_f32(ports["in"]), g.ints(0, self.groups, -1))
        out = g.op("Reshape", normal(rows), g.shape(shape))
        ends = [g.op("Unsqueeze", v, g.ints(*range(1, len(shape) - 1))) if v and len(shape) > 2 else v
                for v in (ports["weight"], ports["bias"])]
        out = g.from_f32(out)
        for op_type, value in zip(("Mul", "Add"), ends, strict=True):
            out = out if value is None else g.op(op_type, out, value)
        return out

    def forms(self) -> tuple[Form, ...]:
        return (Form("InstanceNormalization", ALL_TARGETS, _why_not_instances, GroupNorm.whole),
                Form("decomposed", frozenset({"ort-cuda"}), lambda op, site: None, GroupNorm.decomposed, fused=False))


def _why_not_instances(op: GroupNorm, site: Site) -> str | None:
    return "ONNX Runtime runs it on the CPU at this opset" if site.target == "ort-cuda" else None


@dataclass(frozen=True)
class Dropout(Pointwise):
    """In training each entry is 0 with probability `rate`, else divided by 1 - rate; later x itself (Srivastava et al. 2014)."""

    name = "dropout"
    signature = "in: float[*b] -> float[*b]"
    random = True

    rate: float = attribute("float", doc="the probability that an entry goes, from 0 to 1")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if not 0 <= self.rate <= 1:
            raise OpFault("bad-attribute", f"`rate` is a probability, not {self.rate}", attribute="rate",
                          help="write a number from 0 to 1")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.F.dropout(ports["in"], self.rate, t.training) if self.rate else ports["in"] if self.rate else ports["in"]

    def onnx(self, g: Any, **ports: Any) -> Any:
        return ports["in"]


OPS = (LayerNorm, RmsNorm, GroupNorm, Dropout)
