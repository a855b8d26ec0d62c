"""Activation functions against numpy."""

import math

import numpy as np
import pytest
import torch
from nnspec.ops import activations as a
from nnspec.ops.base import OpFault
from printed import run_printed, typed
from support import check_op, run_onnx

rng = np.random.default_rng(3)
erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


REFERENCE = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(0, x),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "identity": lambda x: x,
}
OPS = {op.name: op for op in a.OPS}


@pytest.mark.parametrize("name", a.TABLE)
def test_each_row_of_the_table(name):
    x = (rng.normal(size=(3, 1, 7)) * 3).astype(np.float32)
    want = REFERENCE[name](x.astype(np.float64)).astype(np.float32)
    for op in (OPS[name](), a.Activate(function=name)):
        check_op(op, {"in": x}, {"out": want}, dims={"in": ("B", "S", 7)}, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", a.TABLE)
def test_each_row_stays_finite_and_close_far_from_zero(name):
    x = np.concatenate([rng.normal(size=40) * 3, [-200, 200, -60, 60]]).astype(np.float16).astype(np.float32)
    want = REFERENCE[name](np.clip(x.astype(np.float64), -700, 700))
    got = {"torch": run_printed(OPS[name](), {"in": typed("n")}, torch.from_numpy(x).half()).float().numpy()}
    for target in ("ort-cpu", "portable"):
        for dtype in ("float16", "float32"):
            got[f"{target} {dtype}"] = run_onnx(OPS[name](), {"in": x}, target=target, dtype=dtype)["out"]
    for who, have in got.items():
        np.testing.assert_allclose(have, want, rtol=4e-3, atol=4e-3, err_msg=who)


def test_gelu_at_one_is_exact_and_the_tanh_form_differs():
    one = np.ones((1,), np.float32)
    check_op(a.Gelu(), {"in": one}, {"out": np.float32([0.841345])}, rtol=1e-6)
    check_op(a.GeluTanh(), {"in": one}, {"out": np.float32([0.841192])}, rtol=1e-6)


@pytest.mark.parametrize("cap", [30.0, 0.7])
def test_softcap(cap):
    x = (rng.normal(size=(2, 5)) * 40).astype(np.float32)
    want = (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)
    check_op(a.Softcap(cap=cap), {"in": x}, {"out": want}, dims={"in": ("B", 5)})


def test_softcap_needs_a_positive_cap_and_floats():
    for op, dtype, code in ((a.Softcap(cap=0), "float", "bad-attribute"), (a.Softcap(cap=1), "int64", "dtype-mismatch"),
                            (a.Relu(), "int64", "dtype-mismatch")):
        with pytest.raises(OpFault) as caught:
            op.infer({"in": typed("B", 3, dtype=dtype)})
        assert caught.value.code == code


def test_identity_takes_any_dtype():
    x = rng.integers(-9, 9, (3, 5))
    check_op(a.Identity(), {"in": x}, {"out": x})
