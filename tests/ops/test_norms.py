"""Norms and dropout against numpy."""

import numpy as np
import pytest
import torch
from nnspec.backends.torch.printer import Printer
from nnspec.ops import norms as n
from nnspec.ops.base import OpFault, Parameter
from printed import run_printed, typed
from support import check_op, onnx_model, run_onnx

rng = np.random.default_rng(6)
DIMS = {"in": ("B", "S", 6)}


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def layer_norm(x, eps):
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def rms_norm(x, eps):
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm(eps):
    x, w, b = normal(3, 1, 6) * 2 + 1, normal(6), normal(6)
    want = layer_norm(x, eps)
    both = {"out": (want * w + b).astype(np.float32)}
    check_op(n.LayerNorm(eps=eps), {"in": x, "weight": w, "bias": b}, both, DIMS, module=True)
    check_op(n.LayerNorm(eps=eps, bias=False), {"in": x, "weight": w}, {"out": (want * w).astype(np.float32)}, DIMS, module=True)
    bare = n.LayerNorm(eps=eps, weight=False, bias=False)
    check_op(bare, {"in": x}, {"out": want.astype(np.float32)}, DIMS)
    check_op(n.LayerNorm(eps=eps, weight=False), {"in": x, "bias": b}, {"out": (want + b).astype(np.float32)}, DIMS)
    assert bare.parameters() == {} and n.LayerNorm().parameters() == {"weight": Parameter("ones"), "bias": Parameter("zeros")}


def test_norms_without_a_weight_need_no_constant_width():
    x, dims = normal(3, 6), {"in": ("B", "D")}
    check_op(n.LayerNorm(weight=False, bias=False), {"in": x}, {"out": layer_norm(x, 1e-5).astype(np.float32)}, dims)
    check_op(n.RmsNorm(weight=False), {"in": x}, {"out": rms_norm(x, 1e-6).astype(np.float32)}, dims)


@pytest.mark.parametrize("eps, want", [(1e-6, 0.7071068), (1e-5, 0.3015113)])
def test_the_eps_of_the_spec_is_the_one_used(eps, want):
    x, w = np.full((2, 6), 1e-3, np.float32), np.ones(6, np.float32)
    for form in ({}, {"targets": ("portable",)}):
        check_op(n.RmsNorm(eps=eps), {"in": x, "weight": w}, {"out": np.full((2, 6), want, np.float32)}, **form, rtol=2e-6)


@pytest.mark.parametrize("form", ["RMSNormalization-23", "decomposed"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 3e-3)])
def test_rms_norm_in_each_form(form, offset, dtype, tolerance):
    x, w = normal(3, 1, 6) * 2, normal(6)
    want = rms_norm(x, 1e-6) * (offset + w)
    got = run_onnx(n.RmsNorm(offset=offset), {"in": x, "weight": w}, DIMS, form=form, dtype=dtype)["out"]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_rms_norm():
    x, w = normal(3, 1, 6) * 2, normal(6)
    check_op(n.RmsNorm(), {"in": x, "weight": w}, {"out": (rms_norm(x, 1e-6) * w).astype(np.float32)}, DIMS, module=True)
    check_op(n.RmsNorm(offset=1), {"in": x, "weight": w}, {"out": (rms_norm(x, 1e-6) * (1 + w)).astype(np.float32)}, DIMS)
    check_op(n.RmsNorm(weight=False), {"in": x}, {"out": rms_norm(x, 1e-6).astype(np.float32)}, DIMS)


def test_a_zero_weight_with_offset_one_gives_the_plain_norm():
    x, w = normal(3, 6), np.zeros(6, np.float32)
    check_op(n.RmsNorm(offset=1), {"in": x, "weight": w}, {"out": rms_norm(x, 1e-6).astype(np.float32)})
    assert n.RmsNorm(offset=1).parameters() == {"weight": Parameter("zeros")}
    assert n.RmsNorm().parameters() == {"weight": Parameter("ones")}


@pytest.mark.parametrize("target", ["ort-cpu", "portable"])
def test_one_plus_a_small_weight_is_not_rounded_in_half_precision(target):
    x = normal(50, 64).astype(np.float16).astype(np.float32)
    w = np.full(64, 4.5e-4, np.float16).astype(np.float32)       # 1 + w rounds to 1 in float16
    want = (rms_norm(x, 1e-6) * (1 + w.astype(np.float64)))
    lost = np.abs(rms_norm(x, 1e-6).astype(np.float16) - want).mean()
    types = {"in": typed("B", 64), "weight": typed(64)}
    half = run_printed(n.RmsNorm(offset=1), types, torch.from_numpy(x).half(), torch.from_numpy(w).half())
    assert half.dtype == torch.float16
    onnx = run_onnx(n.RmsNorm(offset=1), {"in": x, "weight": w}, target=target, dtype="float16")["out"]
    for got in (half.double().numpy(), onnx):
        assert np.abs(got - want).mean() < lost * 0.6


def test_the_offset_is_added_to_the_initializer_in_float32_only():
    arrays = {"in": normal(2, 6), "weight": normal(6)}
    for target in ("ort-cpu", "portable"):
        model, *_ = onnx_model(n.RmsNorm(offset=1), arrays, target=target)
        assert any(np.allclose(np.frombuffer(i.raw_data, np.float32), arrays["weight"] + 1)
                   for i in model.graph.initializer if list(i.dims) == [6])
    model, *_ = onnx_model(n.RmsNorm(offset=1), arrays, dtype="float16")
    assert not any(list(i.dims) == [6] for i in model.graph.initializer)
    assert "Add" in {node.op_type for node in model.graph.node}


def test_targets_with_the_fused_op_use_it():
    arrays = {"in": normal(2, 6), "weight": normal(6)}
    used = {target: {node.op_type for node in onnx_model(n.RmsNorm(), arrays, target=target)[0].graph.node}
            for target in ("ort-cuda", "ort-cpu", "portable")}
    assert "RMSNormalization" in used["ort-cuda"] & used["ort-cpu"] and "RMSNormalization" not in used["portable"]


@pytest.mark.parametrize("op", [n.RmsNorm(), n.RmsNorm(offset=1), n.LayerNorm(bias=False)], ids=["rms", "offset", "layer"])
def test_norms_of_zero_vectors_are_finite_in_half_precision(op):
    x, w = np.zeros((2, 6), np.float32), normal(6)
    got = run_printed(op, {"in": typed("B", 6), "weight": typed(6)}, *(torch.from_numpy(v).half() for v in (x, w)),
                      *([None] if "bias" in op.parameters() else []))
    assert got.tolist() == x.tolist()
    for target in ("ort-cpu", "portable"):
        assert run_onnx(op, {"in": x, "weight": w}, target=target, dtype="float16")["out"].tolist() == x.tolist()


@pytest.mark.parametrize("shape, dims", [((2, 6, 5), ("B", 6, "S")), ((2, 6, 3, 5), ("B", 6, "H", "W"))])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(shape, dims, groups):
    x, w, b = normal(*shape) * 2 + 1, normal(6), normal(6)
    rows = x.reshape(2, groups, -1).astype(np.float64)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    widen = (6,) + (1,) * (len(shape) - 2)
    want = rows.reshape(shape) * w.reshape(widen) + b.reshape(widen)
    check_op(n.GroupNorm(groups=groups), {"in": x, "weight": w, "bias": b}, {"out": want.astype(np.float32)}, {"in": dims},
             targets=("ort-cpu", "portable", "ort-cuda"), module=True, atol=5e-6)


def test_dropout_is_the_identity_outside_training():
    x = normal(3, 5)
    check_op(n.Dropout(rate=0.4), {"in": x}, {"out": x}, {"in": ("B", 5)})
    assert n.Dropout.random


def test_dropout_in_training_zeroes_a_share_and_scales_the_rest():
    torch.manual_seed(0)
    x = torch.from_numpy(normal(200, 200))
    got = run_printed(n.Dropout(rate=0.25), {"in": typed("B", 200)}, x, training=True)
    gone = got == 0
    assert abs(gone.float().mean() - 0.25) < 0.01
    torch.testing.assert_close(got[~gone], x[~gone] / 0.75)


@pytest.mark.parametrize("op, types, code", [
    (n.LayerNorm(eps=0), {"in": typed("B", 6)}, "bad-attribute"),
    (n.RmsNorm(eps=-1e-6), {"in": typed("B", 6)}, "bad-attribute"),
    (n.RmsNorm(offset=1, weight=False), {"in": typed("B", 6)}, "bad-attribute"),
    (n.LayerNorm(), {"in": typed("B", 6, dtype="int64")}, "dtype-mismatch"),
    (n.GroupNorm(groups=4), {"in": typed("B", 6, "S")}, "shape-mismatch"),
    (n.GroupNorm(groups=0), {"in": typed("B", 6, "S")}, "shape-mismatch"),
    (n.Dropout(rate=1.5), {"in": typed("B", 6)}, "bad-attribute"),
])
def test_what_does_not_fit_is_refused(op, types, code):
    with pytest.raises(OpFault) as caught:
        op.infer(types)
    assert caught.value.code == code


def test_an_nn_module_owns_the_weights_where_torch_has_one():
    types = {"in": typed("B", 6), "weight": typed(6), "bias": None}
    assert str(n.RmsNorm(eps=1e-5).module(Printer, types)) == "nn.RMSNorm(6, eps=1e-05)"
    assert n.RmsNorm(offset=1).module(Printer, types) is None and n.LayerNorm(weight=False).module(Printer, types) is None
