"""Convolution and pooling against sums written out in numpy; the modules against the functional form."""

import numpy as np
import pytest
import torch
from nnspec.backends.torch.printer import Printer, Scope
from nnspec.backends.torch.source import Py, source
from nnspec.ir.dimension import Dim
from nnspec.ir.signature import Mismatch, RankMismatch
from nnspec.ops.base import OpFault
from nnspec.ops.convolution import AveragePool1d, AveragePool2d, Conv1d, Conv2d, Delay, MaxPool1d, MaxPool2d
from support import check_op, fault, infer, run_onnx, run_torch, types_of

TARGETS = ("ort-cpu", "ort-cuda", "portable")

rng = np.random.default_rng(5)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def convolve(x, parameters, stride, pads, *, dilation=(1,), groups=1):
    """x [B, C, *space] in float64, one output entry at a time."""
    weight, bias = parameters
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads])
    kernel = weight.shape[2:]
    space = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    out = np.zeros((x.shape[0], weight.shape[0], *space))
    per_in, per_out = x.shape[1] // groups, weight.shape[0] // groups
    for at in np.ndindex(*space):
        window = x[(slice(None), slice(None), *(slice(a * s, a * s + d * (k - 1) + 1, d)
                                                for a, s, d, k in zip(at, stride, dilation, kernel, strict=True)))]
        for o in range(weight.shape[0]):
            part = window[:, o // per_out * per_in:(o // per_out + 1) * per_in]
            out[(slice(None), o, *at)] = (part * weight[o]).reshape(len(x), -1).sum(-1)
    return (out + bias.reshape(1, -1, *[1] * len(space))).astype(np.float32)


# settings, T, channels, kernel, pads
LINES = [
    ({}, 9, 6, 3, (0, 0)), ({"stride": 2}, 9, 6, 4, (0, 0)), ({"dilation": 2}, 9, 6, 3, (0, 0)), ({"groups": 3}, 9, 6, 2, (0, 0)),
    ({"causal": True}, 9, 6, 4, (3, 0)), ({"causal": True, "dilation": 3}, 7, 6, 3, (6, 0)),
    ({"causal": True, "stride": 2}, 7, 6, 3, (2, 0)),
    ({"padding": 2}, 9, 6, 3, (2, 2)), ({"padding": 2, "stride": 3}, 9, 6, 4, (2, 2)), ({"padding": "same"}, 9, 6, 3, (1, 1)),
    ({"padding": "same"}, 9, 6, 4, (1, 2)), ({"padding": "same", "dilation": 3}, 9, 6, 2, (1, 2)), ({}, 1, 6, 1, (0, 0)),
    ({"causal": True}, 1, 6, 3, (2, 0)), ({"groups": 6, "causal": True}, 9, 6, 4, (3, 0)),
]


@pytest.mark.parametrize(("settings", "length", "channels", "kernel", "pads"), LINES)
def test_conv1d_sums_over_windows(settings, length, channels, kernel, pads):
    groups, stride, dilation = settings.get("groups", 1), settings.get("stride", 1), settings.get("dilation", 1)
    x, weight, bias = floats(2, length, channels), floats(12, channels // groups, kernel), floats(12)
    want = convolve(x.swapaxes(1, 2), (weight, bias), (stride,), [pads], dilation=(dilation,), groups=groups).swapaxes(1, 2)
    op, arrays = Conv1d(width=12, kernel=kernel, **settings), {"in": x, "weight": weight, "bias": bias}
    for dims in (None, {"in": ("B", "T", channels)}):
        check_op(op, arrays, {"out": want}, dims=dims, rtol=1e-4, atol=1e-5)
    inferred = infer(op, arrays, {"in": ("B", "T", channels)})[2][0].shape[1]
    assert inferred.evaluate({"T": length}) == want.shape[1]


def test_conv1d_without_bias():
    x, weight = floats(2, 9, 6), floats(4, 6, 3)
    want = convolve(x.swapaxes(1, 2), (weight, np.zeros(4)), (1,), [(0, 0)]).swapaxes(1, 2)
    check_op(Conv1d(bias=False), {"in": x, "weight": weight}, {"out": want}, rtol=1e-4, atol=1e-5)


IMAGES = [({}, (3, 3), ((0, 0), (0, 0))), ({"stride": 2, "padding": 1}, (3, 3), ((1, 1), (1, 1))),
          ({"kernel": (2, 3), "dilation": (2, 1), "padding": (0, 1), "stride": (1, 2)}, (2, 3), ((0, 0), (1, 1))),
          ({"padding": "same", "groups": 2}, (2, 3), ((0, 1), (1, 1))), ({"stride": 3}, (3, 3), ((0, 0), (0, 0)))]


@pytest.mark.parametrize(("settings", "kernel", "pads"), IMAGES)
def test_conv2d_sums_over_windows(settings, kernel, pads):
    two = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    groups = settings.get("groups", 1)
    x, weight, bias = floats(2, 4, 7, 6), floats(6, 4 // groups, *kernel), floats(6)
    stride, dilation = two(settings.get("stride", 1)), two(settings.get("dilation", 1))
    want = convolve(x, (weight, bias), stride, pads, dilation=dilation, groups=groups)
    op, arrays = Conv2d(**{"width": 6, "kernel": kernel, **settings}), {"in": x, "weight": weight, "bias": bias}
    check_op(op, arrays, {"out": want}, dims={"in": ("B", 4, "H", "W")}, rtol=1e-4, atol=1e-5)


def test_patches_of_an_image_have_exact_sizes():
    op = Conv2d(width=8, kernel=16, stride=16)
    types = types_of({"in": floats(1, 3, 32, 48), "weight": floats(8, 3, 16, 16), "bias": floats(8)})
    h, w = Dim.symbol("H"), Dim.symbol("W")
    image = type(types["in"])("float", (Dim.symbol("B"), Dim.const(3), h * 16, w * 16))
    assert op.infer({**types, "in": image})[0].shape == (Dim.symbol("B"), Dim.const(8), h, w)


def test_parameters_follow_the_channels():
    x = types_of({"in": floats(2, 9, 6)}, {"in": ("B", "T", 6)})
    shapes = Conv1d(kernel=4, groups=6, causal=True).parameter_shapes({**x, "weight": None, "bias": None})
    assert {k: tuple(d.value for d in s) for k, s in shapes.items()} == {"weight": (6, 1, 4), "bias": (6,)}
    shapes = Conv1d(width=8, kernel=3, bias=False).parameter_shapes({**x, "weight": None, "bias": None})
    assert {k: tuple(d.value for d in s) for k, s in shapes.items()} == {"weight": (8, 6, 3)}
    with pytest.raises(OpFault) as caught:
        Conv1d().parameter_shapes({**x, "weight": None, "bias": None})
    assert caught.value.code == "missing-key"
    free = types_of({"in": floats(2, 9, 6)}, {"in": ("B", "T", "C")})
    with pytest.raises(OpFault) as caught:
        Conv1d(kernel=3).parameter_shapes({**free, "weight": None, "bias": None})
    assert caught.value.ports == {"in": "has C channels"}
    flat = types_of({"in": floats(2, 9)})
    with pytest.raises(RankMismatch):
        Conv1d(kernel=3).parameter_shapes({**flat, "weight": None, "bias": None})


MODULES = [(Conv1d(width=8, kernel=4, causal=True, groups=2), (2, 9, 6)),
           (Conv1d(width=8, kernel=3, padding="same", bias=False), (2, 9, 6)),
           (Conv1d(width=8, kernel=3, stride=2, padding=1, dilation=2), (2, 9, 6)),
           (Conv2d(width=8, kernel=(2, 3), stride=2), (2, 6, 7, 5)),
           (Conv1d(kernel=4, causal=True, dilation=2), (2, 3, 6))]


@pytest.mark.parametrize(("op", "shape"), MODULES, ids=str)
def test_module_holds_the_same_parameters(op, shape):
    x = floats(*shape)
    types = types_of({"in": x}) | {"weight": None, "bias": None}
    shapes = op.parameter_shapes(types)
    arrays = {name: floats(*(d.value for d in dims)) for name, dims in shapes.items()}
    types = types | types_of(arrays)
    scope = Scope(indent=0)
    t = Printer(scope, {}, "node", types, op.infer(types), frozenset(op.outputs()), Py("owner"))
    owner = eval(source(op.module(t, types)), {"nn": torch.nn})
    owner.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()})
    text = source(op.module_call(t, Py("owner"), **{"in": Py("x")}))
    got = eval(text, {"owner": owner, "x": torch.from_numpy(x), "F": torch.nn.functional})
    want = run_torch(op, {"in": x, **arrays})["out"]
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-5, atol=1e-6)


def test_convolution_counts_multiplications():
    arrays = {"in": floats(2, 9, 6), "weight": floats(8, 3, 4), "bias": floats(8)}
    op = Conv1d(width=8, kernel=4, groups=2, causal=True)
    _, types, outputs = infer(op, arrays, {"in": ("B", "T", 6)})
    assert op.flops(types, outputs) == Dim.parse("192 * B * T")      # 2 x 8 outputs x 3 channels x 4 entries


def test_convolution_refuses_what_does_not_fit():
    x, weight, bias = floats(2, 9, 6), floats(8, 6, 3), floats(8)
    arrays = {"in": x, "weight": weight, "bias": bias}
    assert fault(Conv1d(width=8, kernel=3), {**arrays, "in": x[:, :2]}).attribute == "kernel"
    assert fault(Conv1d(groups=4), arrays).attribute == "groups"
    assert fault(Conv1d(groups=0), arrays).attribute == "groups"
    assert fault(Conv1d(width=8, groups=3), arrays).attribute == "width"
    assert fault(Conv1d(causal=True, padding=1), arrays).attribute == "padding"
    assert fault(Conv1d(stride=2, padding="same"), arrays).attribute == "padding"
    assert fault(Conv1d(padding=-1), arrays).attribute == "padding"
    assert fault(Conv1d(padding="full"), arrays).attribute == "padding"
    assert fault(Conv1d(kernel=(3, 3)), arrays).attribute == "kernel"
    assert fault(Conv1d(stride=0), arrays).attribute == "stride"
    assert fault(Conv1d(), {**arrays, "in": x > 0}).code == "dtype-mismatch"
    assert fault(Conv1d(), arrays, {"weight": (8, 6, "K")}).ports == {"weight": "has K"}
    with pytest.raises(Mismatch):
        infer(Conv1d(width=8, kernel=4), arrays)
    with pytest.raises(Mismatch):
        infer(Conv1d(), {**arrays, "bias": floats(7)})


def pooled(x, window, reduce, fill):
    """x [B, C, *space], one output entry at a time."""
    kernel, stride, padding = window
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=fill)
    space = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
    out = np.empty((*x.shape[:2], *space), np.float32)
    for at in np.ndindex(*space):
        part = x[(slice(None), slice(None), *(slice(a * s, a * s + k) for a, s, k in zip(at, stride, kernel, strict=True)))]
        out[(slice(None), slice(None), *at)] = reduce(part, axis=tuple(range(2, part.ndim)))
    return out


@pytest.mark.parametrize("window", [(2, None, 0), (3, 1, 1), (3, 2, 0), (4, 3, 2), (1, 1, 0), (7, 2, 3)])
@pytest.mark.parametrize(("make", "reduce", "fill"), [(MaxPool1d, np.max, -np.inf), (AveragePool1d, np.mean, 0)])
def test_pooling_over_time(make, reduce, fill, window):
    kernel, stride, padding = window
    x = floats(2, 9, 3)
    want = pooled(x.swapaxes(1, 2), ((kernel,), (stride or kernel,), (padding,)), reduce, fill).swapaxes(1, 2)
    op = make(kernel=kernel, stride=stride, padding=padding)
    check_op(op, {"in": x}, {"out": want}, {"in": ("B", "T", 3)}, TARGETS)
    assert infer(op, {"in": x}, {"in": ("B", "T", 3)})[2][0].shape[1].evaluate({"T": 9}) == want.shape[1]


@pytest.mark.parametrize("window", [(2, None, 0), ((2, 3), 1, (0, 1)), (3, (2, 1), 1)])
@pytest.mark.parametrize(("make", "reduce", "fill"), [(MaxPool2d, np.max, -np.inf), (AveragePool2d, np.mean, 0)])
def test_pooling_over_an_image(make, reduce, fill, window):
    kernel, stride, padding = window
    two = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    x = floats(2, 3, 7, 6)
    want = pooled(x, (two(kernel), two(stride or kernel), two(padding)), reduce, fill)
    check_op(make(kernel=kernel, stride=stride, padding=padding), {"in": x}, {"out": want}, {"in": ("B", 3, "H", "W")}, TARGETS)


def test_one_size_as_a_list_is_for_every_axis():
    x, weight, bias = floats(2, 4, 7, 6), floats(6, 4, 3, 3), floats(6)
    want = convolve(x, (weight, bias), (2, 2), ((1, 1), (1, 1)), dilation=(1, 1))
    op = Conv2d(width=6, kernel=(3,), stride=(2,), padding=(1,), dilation=(1,))
    check_op(op, {"in": x, "weight": weight, "bias": bias}, {"out": want}, rtol=1e-4, atol=1e-5)
    want = pooled(x, ((2, 2), (1, 1), (1, 1)), np.max, -np.inf)
    check_op(MaxPool2d(kernel=(2,), stride=(1,), padding=(1,)), {"in": x}, {"out": want})


def test_pooling_refuses_what_does_not_fit():
    x = floats(2, 9, 3)
    assert fault(MaxPool1d(kernel=3, padding=2), {"in": x}).attribute == "padding"
    assert fault(AveragePool1d(kernel=10), {"in": x}).code == "shape-mismatch"
    assert fault(MaxPool1d(kernel=0), {"in": x}).attribute == "kernel"
    assert fault(MaxPool1d(kernel=2), {"in": x > 0}).code == "dtype-mismatch"


@pytest.mark.parametrize("by", [1, 2, 5, 8])
def test_delay_shifts_right(by):
    x = floats(2, 5, 3)
    want = np.zeros_like(x)
    want[:, by:] = x[:, :max(5 - by, 0)]
    for given, right in ((x, want), (x > 0, want > 0), ((9 * x).astype(np.int64), (9 * want).astype(np.int64))):
        check_op(Delay(by=by), {"in": given}, {"out": right}, {"in": ("B", "T", 3)}, TARGETS)
        check_op(Delay(by=by), {"in": given[..., 0]}, {"out": right[..., 0]}, {"in": ("B", "T")}, TARGETS)


def test_delay_refuses_to_look_ahead():
    assert fault(Delay(by=0), {"in": floats(2, 5)}).attribute == "by"


def test_half_precision_convolution():
    x, weight, bias = floats(2, 9, 6), floats(8, 6, 3), floats(8)
    op, arrays = Conv1d(width=8, kernel=3, causal=True), {"in": x, "weight": weight, "bias": bias}
    half = run_onnx(op, arrays, dtype="float16")["out"]
    assert half.dtype == np.float16
    want = convolve(x.swapaxes(1, 2), (weight, bias), (1,), [(2, 0)]).swapaxes(1, 2)
    np.testing.assert_allclose(half, want, rtol=2e-2, atol=2e-2)
