"""Element-wise ops against numpy."""

import numpy as np
import pytest
import torch
from nnspec.ir.dimension import Dim
from nnspec.ops import elementwise as e
from nnspec.ops.base import OpFault
from nnspec.ops.emission import exact
from printed import run_printed, typed
from support import check_op, run_onnx

rng = np.random.default_rng(2)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("op, reference", [
    (e.Add(), np.add), (e.Subtract(), np.subtract), (e.Multiply(), np.multiply), (e.Divide(), np.divide),
    (e.Maximum(), np.maximum), (e.Minimum(), np.minimum),
], ids=lambda x: getattr(x, "name", ""))
def test_arithmetic_folds_from_the_left_and_broadcasts(op, reference):
    a, b, c = normal(2, 3, 5), normal(3, 1), normal(2, 1, 5) + 3
    want = reference(reference(a, b), c)
    check_op(op, {"in": [a, b, c]}, {"out": want}, dims={"in.0": ("B", "S", 5), "in.1": ("S", 1), "in.2": ("B", 1, 5)})


@pytest.mark.parametrize("op, reference", [(e.Add(), np.add), (e.Subtract(), np.subtract), (e.Multiply(), np.multiply),
                                           (e.Maximum(), np.maximum), (e.Minimum(), np.minimum)])
def test_arithmetic_of_integers_stays_exact(op, reference):
    a, b = rng.integers(-2**40, 2**40, (3, 1)), rng.integers(-9, 9, (1, 4))
    check_op(op, {"in": [a, b]}, {"out": reference(a, b)})


def test_one_input_is_a_list_too():
    x = torch.from_numpy(normal(3, 5))
    assert torch.equal(run_printed(e.Add(), {"in": (typed("B", 5),)}, x), x)


def test_disagreeing_sizes_are_named_with_their_axis():
    with pytest.raises(OpFault) as caught:
        e.Add().infer({"in": (typed("B", "S", 8), typed("B", "S", 16))})
    assert (caught.value.code, caught.value.headline) == ("shape-mismatch", "the inputs of `add` disagree about axis `d`")
    assert caught.value.ports == {"in.0": "d = 8", "in.1": "d = 16"}


def test_different_free_dimensions_are_not_known_to_be_equal():
    with pytest.raises(OpFault) as caught:
        e.Multiply().infer({"in": (typed("B", "S", 8), typed(1, 8), typed("B", "T", 8))})
    assert caught.value.ports == {"in.0": "axis -2 = S", "in.2": "axis -2 = T"}
    assert "not known to be equal" in caught.value.note


@pytest.mark.parametrize("op, types, code", [
    (e.Add(), (typed(3), typed(3, dtype="int64")), "dtype-mismatch"),
    (e.Add(), (typed(3, dtype="bool"), typed(3, dtype="bool")), "dtype-mismatch"),
    (e.Divide(), (typed(3, dtype="int64"), typed(3, dtype="int64")), "dtype-mismatch"),
    (e.Add(), (), "bad-attribute"),
    (e.Subtract(), (typed(3),), "bad-attribute"),
    (e.Less(), (typed(3), typed(3), typed(3)), "bad-attribute"),
    (e.Less(), (typed(3, dtype="bool"), typed(3, dtype="bool")), "dtype-mismatch"),
])
def test_wrong_lists_are_refused(op, types, code):
    with pytest.raises(OpFault) as caught:
        op.infer({"in": types})
    assert caught.value.code == code


@pytest.mark.parametrize("op, reference", [
    (e.Equal(), np.equal), (e.NotEqual(), np.not_equal), (e.Less(), np.less), (e.LessEqual(), np.less_equal),
    (e.Greater(), np.greater), (e.GreaterEqual(), np.greater_equal),
], ids=lambda x: getattr(x, "name", ""))
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_comparisons(op, reference, dtype):
    a, b = rng.integers(-2, 3, (3, 1, 5)).astype(dtype), rng.integers(-2, 3, (4, 5)).astype(dtype)
    check_op(op, {"in": [a, b]}, {"out": reference(a, b)}, dims={"in.0": ("B", 1, 5), "in.1": ("S", 5)})


@pytest.mark.parametrize("op, reference", [(e.Equal(), np.equal), (e.NotEqual(), np.not_equal)])
def test_bools_compare_for_equality(op, reference):
    a, b = rng.random((3, 5)) < 0.5, rng.random((3, 5)) < 0.5
    check_op(op, {"in": [a, b]}, {"out": reference(a, b)})


@pytest.mark.parametrize("make", [normal, lambda *s: rng.integers(-9, 9, s), lambda *s: rng.random(s) < 0.5],
                         ids=["float", "int64", "bool"])
def test_where_takes_the_first_where_true(make):
    keep, a, b = rng.random((2, 1, 5)) < 0.5, make(3, 5), make(2, 3, 1)
    check_op(e.Where(), {"keep": keep, "in": [a, b]}, {"out": np.where(keep, a, b)},
             dims={"keep": ("B", 1, 5), "in.0": ("S", 5), "in.1": ("B", "S", 1)})


def test_where_names_the_mask_that_does_not_fit():
    with pytest.raises(OpFault) as caught:
        e.Where().infer({"keep": typed("B", "S", dtype="bool"), "in": (typed("B", "T"), typed("B", "T"))})
    assert set(caught.value.ports) == {"keep", "in.0"}
    with pytest.raises(OpFault) as caught:
        e.Where().infer({"keep": typed("B"), "in": (typed("B"), typed("B"))})
    assert caught.value.code == "dtype-mismatch"


@pytest.mark.parametrize("op, reference", [
    (e.Exp(), np.exp), (e.Log(), np.log), (e.Sqrt(), np.sqrt), (e.Rsqrt(), lambda x: 1 / np.sqrt(x)), (e.Abs(), np.abs),
    (e.Negate(), np.negative), (e.Square(), np.square), (e.Sin(), np.sin), (e.Cos(), np.cos),
    (e.Reciprocal(), lambda x: 1 / x), (e.Power(exponent=0.75), lambda x: x**0.75),
    (e.Power(exponent=3), lambda x: x**3), (e.Power(exponent=-0.5), lambda x: x**-0.5), (e.Scale(by=0.3), lambda x: x * 0.3),
    (e.Scale(by=Dim.const(7)), lambda x: x * 7),
], ids=lambda x: getattr(x, "name", ""))
def test_functions_of_one_input(op, reference):
    x = np.abs(normal(2, 1, 7)) + 0.1
    check_op(op, {"in": x}, {"out": reference(x)}, dims={"in": ("B", "S", 7)}, rtol=2e-5)


@pytest.mark.parametrize("op, reference", [(e.Abs(), np.abs), (e.Negate(), np.negative), (e.Square(), np.square),
                                           (e.Scale(by=-3), lambda x: -3 * x)])
def test_functions_of_integers(op, reference):
    x = rng.integers(-50, 50, (3, 5))
    check_op(op, {"in": x}, {"out": reference(x)}, dims={"in": ("B", 5)})


def test_scale_by_a_free_dimension():
    x = normal(3, 5)
    check_op(e.Scale(by=Dim.symbol("S")), {"in": x}, {"out": x * 5}, dims={"in": ("B", "S")})
    got = run_onnx(e.Scale(by=Dim.symbol("S")), {"in": x}, {"in": ("B", "S")}, dtype="float16")["out"]
    assert np.allclose(got, x * 5, rtol=2e-3)


@pytest.mark.parametrize("width, dtype, rounded", [(3072, torch.bfloat16, 55.5), (3072, torch.float16, 55.4375),
                                                   (2048, torch.bfloat16, 45.25), (3584, torch.bfloat16, 59.75)])
def test_round_dtype_rounds_the_number_first(width, dtype, rounded):
    x = torch.from_numpy(normal(4, 6)).to(dtype)
    op = e.Scale(by=width**0.5, round="dtype")
    assert torch.equal(run_printed(op, {"in": typed("B", 6)}, x), (x.float() * rounded).to(dtype))
    plain = e.Scale(by=width**0.5)
    assert torch.equal(run_printed(plain, {"in": typed("B", 6)}, x), (x.float() * width**0.5).to(dtype))


@pytest.mark.parametrize("value, dtype, want", [
    (0.125, "bfloat16", True), (1 + 2**-7, "bfloat16", True), (1 + 2**-8, "bfloat16", False), (1 + 2**-8, "float16", True),
    (1 + 2**-11, "float16", False), (1e5, "float16", False), (2.0**17, "bfloat16", True), (0.3, "float16", False),
    (0.3, "bfloat16", False), (0.3, "float32", True), (1e300, "bfloat16", False), (Dim.const(3), "float16", True),
    (Dim.symbol("S"), "float16", False),
])
def test_which_numbers_a_dtype_holds_exactly(value, dtype, want):
    assert exact(value, dtype) is want


def test_onnx_in_half_precision_rounds_the_number_only_when_told():
    x = normal(40, 60).astype(np.float16).astype(np.float32)
    want = {"none": (x * np.float32(3072**0.5)).astype(np.float16), "dtype": (x * np.float32(55.4375)).astype(np.float16)}
    assert (want["none"] != want["dtype"]).any()
    for how, values in want.items():
        for target in ("ort-cpu", "portable"):
            got = run_onnx(e.Scale(by=3072**0.5, round=how), {"in": x}, target=target, dtype="float16")["out"]
            assert np.array_equal(got, values), (how, target)


@pytest.mark.parametrize("low, high", [(-0.5, 0.25), (None, 0.25), (-0.5, None)])
def test_clip(low, high):
    x = normal(4, 7)
    check_op(e.Clip(low=low, high=high), {"in": x}, {"out": np.clip(x, low, high)}, dims={"in": ("B", 7)})


def test_clip_of_integers_and_at_a_free_dimension():
    x = rng.integers(-9, 9, (3, 5))
    check_op(e.Clip(low=0, high=Dim.symbol("S") - 1), {"in": x}, {"out": np.clip(x, 0, 4)}, dims={"in": ("B", "S")})


@pytest.mark.parametrize("op, dtype, code", [
    (e.Clip(), "float", "missing-key"), (e.Clip(low=2, high=1), "float", "bad-attribute"),
    (e.Clip(low=0.5), "int64", "dtype-mismatch"), (e.Scale(by=0.5), "int64", "dtype-mismatch"),
    (e.Exp(), "int64", "dtype-mismatch"), (e.Abs(), "bool", "dtype-mismatch"), (e.Power(exponent=2), "int64", "dtype-mismatch"),
])
def test_wrong_attributes_and_dtypes_are_refused(op, dtype, code):
    with pytest.raises(OpFault) as caught:
        op.infer({"in": typed("B", 3, dtype=dtype)})
    assert caught.value.code == code


@pytest.mark.parametrize("to, dtype", [("float", np.float32), ("int64", np.int64), ("bool", np.bool_)])
@pytest.mark.parametrize("x", [normal(3, 5) * 3, rng.integers(-1, 2, (3, 5)), rng.random((3, 5)) < 0.5],
                         ids=["float", "int64", "bool"])
def test_cast(x, to, dtype):
    check_op(e.Cast(to=to), {"in": x}, {"out": x.astype(dtype)}, dims={"in": ("B", 5)})
