"""Windows sliding over time or space: conv1d, conv2d, pooling, delay. Sequences are [B, T, C], images [B, C, H, W]."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.dimension import Dim, at_least
from ..ir.graph import Shape, TensorType
from .base import Op, OpFault, Parameter, Types, attribute, tensor
from .emission import padded, widened
from .patterns import product, replaced
from .shapes import check_dtypes

Sizes = int | tuple[int, ...]
Pads = tuple[tuple[int, int], ...]      # before and after each axis of the window


class Windowed(Op):
    """Base of ops that slide a window over the axes `over`."""

    over: ClassVar[tuple[int, ...]] = (1,)

    def each(self, name: str, value: Sizes, least: int) -> tuple[int, ...]:
        """One size a windowed axis; raises OpFault."""
        given = (value,) if isinstance(value, int) else tuple(value)
        sizes = given * len(self.over) if len(given) == 1 else given
        if len(sizes) != len(self.over) or any(s < least for s in sizes):
            raise OpFault("bad-attribute", f"`{name}` is {least} or more, or a list of {len(self.over)} such", attribute=name)
        return sizes

    def slid(self, shape: Shape, kernel: tuple[int, ...], stride: tuple[int, ...], pads: Pads) -> Shape:
        """The shape after sliding: floor((size + padding - window) / stride) + 1 on every windowed axis."""
        for axis, window, step, (before, after) in zip(self.over, kernel, stride, pads, strict=True):
            padded = shape[axis] + (before + after)
            if at_least(padded, window) is False:
                raise OpFault("shape-mismatch", f"a window of {window} does not fit into {padded}",
                              ports={"in": f"axis {axis} is {shape[axis]}, with padding {padded}"}, attribute="kernel")
            shape = replaced(shape, axis, (padded - window) // step + 1)
        return shape

    def turned(self, x: Any) -> Any:
        """Source with channels second, as torch wants them, and back."""
        return x.transpose(1, 2) if len(self.over) == 1 else x

    def turn(self, g: Any, x: Any) -> Any:
        return g.op("Transpose", x, perm=[0, 2, 1]) if len(self.over) == 1 else x


def short(sizes: tuple[int, ...]) -> Sizes:
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _known(sizes: Shape) -> tuple[int, ...]:
    """Sizes of a weight as numbers; raises OpFault for a free one."""
    found = tuple(d.value for d in sizes if d.value is not None)
    if len(found) < len(sizes):
        raise OpFault("shape-mismatch", "a window has known sizes", ports={"weight": f"has {', '.join(map(str, sizes))}"})
    return found


@dataclass(frozen=True)
class Convolution(Windowed):
    """Base of convolutions; parameters are laid out and start as torch.nn.Conv1d's and Conv2d's do."""

    attribute_ports = frozenset({"bias"})

    width: int | None = attribute("int", None, "channels of the output; default those of the input, or of `weight`")
    kernel: Sizes | None = attribute("ints", None, "size of the window; follows from `weight` when that is wired")
    stride: Sizes = attribute("ints", 1, "distance between windows")
    padding: Sizes | str = attribute("ints|same|valid", "valid", "zeros before and after; `same` keeps the size")
    dilation: Sizes = attribute("ints", 1, "distance between the entries of a window")
    groups: int = attribute("int", 1, "parts of the channels that do not mix")
    bias: bool = attribute("bool", True, "whether a bias is added; a reference wires one")

    channels: ClassVar[int] = 1
    left_only: ClassVar[bool] = False

    def parameters(self) -> dict[str, Parameter]:
        init = {"fan_in_uniform": 1.0}
        return {"weight": Parameter(init), **({"bias": Parameter(init)} if self.bias else {})}

    def known(self) -> dict[str, Dim | int]:
        sizes = () if self.kernel is None else self.each("kernel", self.kernel, 1)
        return {"n": self.groups, **({} if self.width is None else {"o": self.width}), **dict(zip("kl", sizes, strict=False))}

    def parameter_shapes(self, inputs: Types) -> dict[str, Shape]:
        self._check_groups(inputs)
        made = self
        if inputs.get("weight") is None:
            if self.kernel is None:
                raise OpFault("missing-key", f"`{self.name}` needs `kernel`", help="write `kernel:`, or wire `weight:`")
            _, bound = self.bind({"in": inputs["in"]})
            channels = (bound["i"] * self.groups).value
            if channels is None:
                raise OpFault("shape-mismatch", f"`{self.name}` makes weights for a known number of channels",
                              ports={"in": f"has {bound['i'] * self.groups} channels"})
            made = dataclasses.replace(self, width=self.width if self.width is not None else channels)
        return Op.parameter_shapes(made, inputs)

    def _check_groups(self, inputs: Types) -> None:
        shape = tensor(inputs, "in").shape
        if self.groups < 1:
            raise OpFault("bad-attribute", f"`groups` is at least 1, not {self.groups}", attribute="groups")
        if len(shape) == len(self.over) + 2 and shape[self.channels].exact_div(self.groups) is None:
            raise OpFault("shape-mismatch", f"{shape[self.channels]} channels are not {self.groups} equal groups",
                          ports={"in": f"axis {self.channels} is {shape[self.channels]}"}, attribute="groups")
        if self.width is not None and self.width % self.groups:
            raise OpFault("bad-attribute", f"a width of {self.width} is not {self.groups} equal groups", attribute="width")

    def window(self, inputs: Types) -> tuple[tuple[int, ...], tuple[int, ...], Pads]:
        """Kernel, dilation and padding. Raises OpFault."""
        kernel = _known(tensor(inputs, "weight").shape[2:])
        dilation = self.each("dilation", self.dilation, 1)
        spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if self.left_only:
            if self.padding != "valid":
                raise OpFault("bad-attribute", "`causal` is the padding already", attribute="padding")
            return kernel, dilation, tuple((s, 0) for s in spans)
        if self.padding == "same":
            if any(s != 1 for s in self.each("stride", self.stride, 1)):
                raise OpFault("bad-attribute", "`padding: same` keeps the size, which a stride changes", attribute="padding",
                              help="write the padding as a number")
            return kernel, dilation, tuple((s // 2, s - s // 2) for s in spans)
        around = 0 if self.padding == "valid" else self.padding
        if isinstance(around, str):
            raise OpFault("bad-attribute", f"`padding` is a size, `same` or `valid`, not `{around}`", attribute="padding")
        return kernel, dilation, tuple((p, p) for p in self.each("padding", around, 0))

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        self._check_groups(inputs)
        _, bound = self.bind(inputs)
        if bound["o"].exact_div(self.groups) is None:
            raise OpFault("shape-mismatch", f"{bound['o']} output channels are not {self.groups} equal groups",
                          attribute="groups")
        kernel, dilation, pads = self.window(inputs)
        spans = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
        shape = self.slid(tensor(inputs, "in").shape, spans, self.each("stride", self.stride, 1), pads)
        return (TensorType("float", replaced(shape, self.channels, bound["o"])),)

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        return product(outputs[0].shape) * product(tensor(inputs, "weight").shape[1:]) * 2

    def _options(self) -> dict[str, Any]:
        """Keyword arguments that differ from torch's defaults."""
        stride, dilation = short(self.each("stride", self.stride, 1)), short(self.each("dilation", self.dilation, 1))
        options: dict[str, Any] = {k: v for k, v in (("stride", stride), ("dilation", dilation)) if v != 1}
        padding = short(self.each("padding", self.padding, 0)) if not isinstance(self.padding, str) else self.padding
        if padding not in ("valid", 0):
            options["padding"] = padding
        return {**options, **({"groups": self.groups} if self.groups != 1 else {})}

    def _given(self, t: Any, x: Any) -> Any:
        """Source of the input with channels second, and zeros in front where that is all the padding."""
        pads = self.window(t.inputs)[2]
        padding = tuple(p for pair in reversed(pads) for p in pair)
        return t.F.pad(self.turned(x), padding) if self.left_only and any(padding) else self.turned(x)

    def module(self, t: Any, inputs: Types) -> Any:
        o, i, *kernel = _known(tensor(inputs, "weight").shape)
        make = t.nn.Conv1d if len(self.over) == 1 else t.nn.Conv2d
        return make(i * self.groups, o, short(tuple(kernel)), **self._options(), **({} if self.bias else {"bias": False}))

    def module_call(self, t: Any, owner: Any, **ports: Any) -> Any:
        return self.turned(owner(self._given(t, ports["in"])))

    def torch(self, t: Any, **ports: Any) -> Any:
        call = t.F.conv1d if len(self.over) == 1 else t.F.conv2d
        bias = [ports["bias"]] if ports["bias"] is not None else []
        return self.turned(call(self._given(t, ports["in"]), ports["weight"], *bias, **self._options()))

    def onnx(self, g: Any, **ports: Any) -> Any:
        kernel, dilation, pads = self.window(g.inputs)
        around = [*(before for before, _ in pads), *(after for _, after in pads)]
        out = g.op("Conv", self.turn(g, ports["in"]), ports["weight"], ports["bias"], kernel_shape=kernel, dilations=dilation,
                   strides=self.each("stride", self.stride, 1), pads=around, group=self.groups)
        return self.turn(g, out)


@dataclass(frozen=True)
class Conv1d(Convolution):
    """Convolution over time, channels last (torch.nn.Conv1d): out[t, o] = bias[o] + the sum over k and i of
    weight[o, i, k] in[stride t + dilation k - padding, i]. `causal` pads dilation (kernel - 1) zeros in front, so that step t
    sees no later one."""

    name = "conv1d"
    signature = "in: float[b t n*i]; weight?: float[o i k]; bias?: float[o] -> float[b u o]"
    channels = 2

    causal: bool = attribute("bool", False, "zeros in front only")

    @property
    def left_only(self) -> bool:  # type: ignore[override]
        return self.causal


@dataclass(frozen=True)
class Conv2d(Convolution):
    """Convolution over an image with channels second (torch.nn.Conv2d)."""

    name = "conv2d"
    signature = "in: float[b n*i h w]; weight?: float[o i k l]; bias?: float[o] -> float[b o y x]"
    over = (2, 3)


@dataclass(frozen=True)
class Pool(Windowed):
    """Base of pooling; padding is at most half a window, as torch has it."""

    kernel: Sizes = attribute("ints", doc="size of the window")
    stride: Sizes | None = attribute("ints", None, "distance between windows; default the window's size")
    padding: Sizes = attribute("ints", 0, "entries before and after, which no maximum takes and a mean counts as 0")

    signature = "in: float[b t c] -> float[b u c]"
    torch_name: ClassVar[str]
    onnx_type: ClassVar[str]

    def _window(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        kernel = self.each("kernel", self.kernel, 1)
        padding = self.each("padding", self.padding, 0)
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            raise OpFault("bad-attribute", f"padding of {short(padding)} is more than half a window of {short(kernel)}",
                          attribute="padding")
        return kernel, kernel if self.stride is None else self.each("stride", self.stride, 1), padding

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        self.bind(inputs)
        kernel, stride, padding = self._window()
        return (TensorType("float", self.slid(tensor(inputs, "in").shape, kernel, stride, tuple((p, p) for p in padding))),)

    def torch(self, t: Any, **ports: Any) -> Any:
        kernel, stride, padding = self._window()
        options = {"stride": short(stride)} if stride != kernel else {}
        if any(padding):
            options["padding"] = short(padding)
        return self.turned(getattr(t.F, self.torch_name)(self.turned(ports["in"]), short(kernel), **options))

    def onnx(self, g: Any, **ports: Any) -> Any:
        if self.onnx_type == "MaxPool" and g.target == "ort-cuda":
            return self._maximum(g, ports["in"])
        kernel, stride, padding = self._window()
        more = {"count_include_pad": 1} if self.onnx_type == "AveragePool" else {}
        wide, back = widened(g, self.turn(g, ports["in"]))
        return self.turn(g, back(g.op(self.onnx_type, wide, kernel_shape=kernel, strides=stride, pads=padding * 2, **more)))


    def _maximum(self, g: Any, x: Any) -> Any:
        """The largest of shifted copies, widths doubled up to the window's: ONNX Runtime 1.31 has no such MaxPool for CUDA."""
        type, end = tensor(g.inputs, "in"), g.ints(2**63 - 1)
        for axis, window, step, padding in zip(self.over, *self._window(), strict=True):
            at, width = g.ints(axis), 1
            if padding:
                x = padded(g, x, type, (padding, padding), float("-inf"), axis)
            while width < window:
                shift = min(width, window - width)
                x = g.op("Max", g.op("Slice", x, g.ints(0), g.ints(-shift), at), g.op("Slice", x, g.ints(shift), end, at))
                width += shift
            if step > 1:
                x = g.op("Slice", x, g.ints(0), end, at, g.ints(step))
        return x


class MaxPool1d(Pool):
    """The largest entry of every window over time, channels last (torch.nn.MaxPool1d)."""

    name, torch_name, onnx_type = "max_pool1d", "max_pool1d", "MaxPool"


class AveragePool1d(Pool):
    """The mean of every window over time, channels last (torch.nn.AvgPool1d)."""

    name, torch_name, onnx_type = "average_pool1d", "avg_pool1d", "AveragePool"


class MaxPool2d(Pool):
    """The largest entry of every window of an image, channels second (torch.nn.MaxPool2d)."""

    name, torch_name, onnx_type, over = "max_pool2d", "max_pool2d", "MaxPool", (2, 3)
    signature = "in: float[b c h w] -> float[b c y x]"


class AveragePool2d(Pool):
    """The mean of every window of an image, channels second (torch.nn.AvgPool2d)."""

    name, torch_name, onnx_type, over = "average_pool2d", "avg_pool2d", "AveragePool", (2, 3)
    signature = "in: float[b c h w] -> float[b c y x]"


@dataclass(frozen=True)
class Delay(Op):
    """Shifted right in time with zeros in front: out[:, t] = in[:, t - by] (the token shift of RWKV, arXiv:2305.13048)."""

    name = "delay"
    signature = "in: [b t *c] -> [b t *c]"

    by: int = attribute("int", 1, "steps, at least 1")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if self.by < 1:
            raise OpFault("bad-attribute", f"`by` is at least 1, not {self.by}", attribute="by",
                          help="`slice` and `pad` shift left")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        behind = len(tensor(t.inputs, "in").shape) - 2
        return t.F.pad(ports["in"], (*(0, 0) * behind, self.by, 0))[:, :-self.by]

    def onnx(self, g: Any, **ports: Any) -> Any:
        wide = padded(g, ports["in"], tensor(g.inputs, "in"), (self.by, 0), 0, 1)
        return g.op("Slice", wide, g.ints(0), g.ints(-self.by), g.ints(1))


OPS = (Conv1d, Conv2d, MaxPool1d, AveragePool1d, MaxPool2d, AveragePool2d, Delay)
