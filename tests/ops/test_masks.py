"""Masks, softmax and mask_fill against numpy."""

import numpy as np
import pytest
import torch
from nnspec.ops import masks as m
from nnspec.ops.base import OpFault
from printed import print_op, run_printed, typed
from support import check_op, run_onnx

rng = np.random.default_rng(4)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def bools(*shape):
    return rng.random(shape) < 0.6


def masked_softmax(x, keep, axis=-1):
    """Over the kept entries only, row by row; zeros where there are none."""
    out = np.zeros(x.shape, np.float64)
    keep = np.broadcast_to(keep, x.shape)
    rows, masks, ends = (np.moveaxis(v, axis, -1) for v in (x.astype(np.float64), keep, out))
    for at in np.ndindex(rows.shape[:-1]):
        chosen = masks[at]
        if chosen.any():
            weights = np.exp(rows[at][chosen] - rows[at][chosen].max())
            ends[at][chosen] = weights / weights.sum()
    return out.astype(np.float32)


def mask_type(*axes, optional=False):
    return typed(*axes, dtype="bool", optional=optional)


def test_length_mask_keeps_the_first_entries_of_each_row():
    length, like = np.array([5, 0, 2]), normal(3, 5, 2)
    want = np.array([[True] * 5, [False] * 5, [True, True, False, False, False]])
    check_op(m.LengthMask(), {"in": length, "like": like}, {"out": want}, dims={"in": ("B",), "like": ("B", "S", 2)})
    check_op(m.LengthMask(), {"in": length, "like": like[..., 0]}, {"out": want})


def test_length_mask_is_absent_where_the_length_is():
    like, length = torch.from_numpy(normal(2, 3)), torch.tensor([1, 3])
    types = {"in": typed("B", dtype="int64", optional=True), "like": typed("B", "S")}
    assert m.LengthMask().infer(types)[0] == mask_type("B", "S", optional=True)
    assert run_printed(m.LengthMask(), types, None, like) is None
    assert run_printed(m.LengthMask(), types, length, like).tolist() == [[True, False, False], [True, True, True]]
    assert m.LengthMask().infer({"in": None, "like": types["like"]})[0].optional
    assert run_printed(m.LengthMask(), {"like": types["like"]}, like) is None


@pytest.mark.parametrize("op, reference", [(m.And(), np.logical_and), (m.Or(), np.logical_or)])
def test_masks_combine_with_broadcasting(op, reference):
    a, b, c = bools(2, 1, 5), bools(3, 1), bools(2, 3, 5)
    check_op(op, {"in": [a, b, c]}, {"out": reference(reference(a, b), c)},
             dims={"in.0": ("B", 1, 5), "in.1": ("S", 1), "in.2": ("B", "S", 5)})


@pytest.mark.parametrize("op, reference", [(m.And(), torch.logical_and), (m.Or(), torch.logical_or)])
def test_absent_masks_are_dropped(op, reference):
    a, b, c = (torch.from_numpy(bools(2, 3, 5)) for _ in range(3))
    types = {"in": (mask_type("B", "S", 5), mask_type("B", "S", 5, optional=True), mask_type("B", "S", 5, optional=True))}
    assert op.infer(types)[0] == mask_type("B", "S", 5)
    assert torch.equal(run_printed(op, types, a, None, None), a)
    assert torch.equal(run_printed(op, types, a, None, c), reference(a, c))
    assert torch.equal(run_printed(op, types, a, b, c), reference(reference(a, b), c))


def test_a_mask_keeps_its_shape_when_a_wider_term_is_absent():
    row, wide = torch.from_numpy(bools(2, 1, 5)), torch.from_numpy(bools(2, 3, 5))
    column = torch.from_numpy(bools(3, 1))
    types = {"in": (mask_type("B", 1, 5), mask_type("B", "S", 5, optional=True), mask_type("S", 1))}
    assert "expand" not in print_op(m.And(), types)
    assert torch.equal(run_printed(m.And(), types, row, None, column), row & column)
    assert torch.equal(run_printed(m.And(), types, row, wide, column), row & wide & column)
    types = {"in": (mask_type("B", 1, 5), mask_type("B", 3, 5, optional=True))}
    assert torch.equal(run_printed(m.And(), types, row, None), row.expand(2, 3, 5))


def test_the_result_is_absent_only_when_every_mask_is():
    row, wide = torch.from_numpy(bools(2, 1, 5)), torch.from_numpy(bools(2, 3, 5))
    types = {"in": (mask_type(2, 1, 5, optional=True), mask_type(2, 3, 5, optional=True))}
    assert m.And().infer(types)[0] == mask_type(2, 3, 5, optional=True)
    assert run_printed(m.And(), types, None, None) is None
    assert torch.equal(run_printed(m.And(), types, row, None), row.expand(2, 3, 5))
    assert torch.equal(run_printed(m.And(), types, None, wide), wide)


def test_masks_that_do_not_fit_or_are_numbers_are_refused():
    for types, code in (((mask_type("B", "S"), mask_type("B", "T")), "shape-mismatch"),
                        ((mask_type("B"), typed("B")), "dtype-mismatch"), ((), "bad-attribute")):
        with pytest.raises(OpFault) as caught:
            m.And().infer({"in": types})
        assert caught.value.code == code


def test_not_turns_a_mask_and_passes_absence_on():
    keep = bools(3, 5)
    check_op(m.Not(), {"in": keep}, {"out": ~keep}, dims={"in": ("B", "S")})
    types = {"in": mask_type("B", "S", optional=True)}
    assert m.Not().infer(types)[0].optional
    assert run_printed(m.Not(), types, None) is None
    assert torch.equal(run_printed(m.Not(), types, torch.from_numpy(keep)), torch.from_numpy(~keep))


@pytest.mark.parametrize("size", [1, 5])
def test_causal_mask_sees_itself_and_the_past(size):
    want = np.array([[[key <= query for key in range(size)] for query in range(size)]])
    check_op(m.CausalMask(), {"like": normal(2, size, 3)}, {"out": want}, dims={"like": ("B", "S", 3)})


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_softmax(axis):
    x = normal(2, 3, 5) * 4
    wide = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    want = wide / wide.sum(axis, keepdims=True)
    check_op(m.Softmax(axis=axis), {"in": x}, {"out": want.astype(np.float32)}, dims={"in": ("B", "S", 5)})
    check_op(m.LogSoftmax(axis=axis), {"in": x}, {"out": np.log(want).astype(np.float32)}, dims={"in": ("B", "S", 5)}, atol=1e-5)


def test_softmax_ignores_what_is_masked():
    x, keep = np.array([[1, 2, 3]], np.float32), np.array([[True, True, False]])
    check_op(m.Softmax(), {"in": x, "keep": keep}, {"out": np.array([[0.268941, 0.731059, 0]], np.float32)}, rtol=2e-6)


CASES = [
    ((2, 3, 5), ("B", "S", 5), (2, 5), ("B", 5), lambda k: k[:, None, :]),
    ((2, 4, 3, 5), ("B", 4, "T", "S"), (2, 5), ("B", "S"), lambda k: k[:, None, None, :]),
    ((2, 4, 3, 5), ("B", 4, "T", "S"), (2, 3, 5), ("B", "T", "S"), lambda k: k[:, None]),
    ((2, 4, 3, 5), ("B", 4, "T", "S"), (1, 3, 5), (1, "T", "S"), lambda k: k[:, None]),
    ((2, 3, 5), ("B", "S", 5), (5,), (5,), lambda k: k),
    ((2, 3, 5), ("B", "S", 5), (2, 1, 5), ("B", 1, 5), lambda k: k),
    ((2, 3, 5), ("B", "S", 5), (2, 3, 1), ("B", "S", 1), lambda k: k),
]


@pytest.mark.parametrize("shape, dims, mask_shape, mask_dims, widen", CASES)
def test_a_mask_of_lower_rank_keeps_its_first_axis_first_and_its_last_axes_last(shape, dims, mask_shape, mask_dims, widen):
    x, keep = normal(*shape), bools(*mask_shape)
    keep[0] = False                                  # a fully masked row
    arrays, named = {"in": x, "keep": keep}, {"in": dims, "keep": mask_dims}
    check_op(m.Softmax(), arrays, {"out": masked_softmax(x, widen(keep))}, dims=named)
    check_op(m.MaskFill(value=-7), arrays, {"out": np.where(widen(keep), x, np.float32(-7))}, dims=named)


def test_softmax_over_another_axis_with_a_mask():
    x, keep = normal(2, 3, 5), bools(2, 3, 1)
    check_op(m.Softmax(axis=1), {"in": x, "keep": keep}, {"out": masked_softmax(x, keep, 1)},
             dims={"in": ("B", "S", 5), "keep": ("B", "S", 1)})


def test_fully_masked_rows_are_zero_with_finite_gradients():
    x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.0, 2.0]], requires_grad=True)
    keep = torch.tensor([[True, False, True], [False, False, False]])
    out = run_printed(m.Softmax(), {"in": typed("B", 3), "keep": mask_type("B", 3)}, x, keep)
    (out * torch.tensor([2.0, 5.0, 7.0])).sum().backward()
    assert out[1].tolist() == [0, 0, 0]
    assert torch.isfinite(x.grad).all() and x.grad[1].tolist() == [0, 0, 0] and x.grad[0, 1] == 0 and x.grad[0, 0] != 0


@pytest.mark.parametrize("scores", [[-16, -15, 4], [6e4, -6e4, 6.5e4], [-6.5e4, 6e4, -6.5e4], [-6e4, -5.99e4, 5]])
def test_half_precision_neither_overflows_nor_leaks(scores):
    x, keep = np.array([scores, scores], np.float32), np.array([[True, True, False], [False, False, False]])
    want = masked_softmax(x.astype(np.float16), keep)
    assert want[1].tolist() == [0, 0, 0]
    types = {"in": typed("B", 3), "keep": mask_type("B", 3)}
    half = run_printed(m.Softmax(), types, torch.from_numpy(x).half(), torch.from_numpy(keep))
    assert half.dtype == torch.float16
    got = [half.float().numpy(), *(run_onnx(m.Softmax(), {"in": x, "keep": keep}, target=target, dtype="float16")["out"]
                                   for target in ("ort-cpu", "portable"))]
    for have in got:
        np.testing.assert_allclose(have, want, atol=1e-3)


def test_softmax_keeps_double_precision():
    x = torch.from_numpy(rng.normal(size=(3, 7)))
    out = run_printed(m.Softmax(), {"in": typed("B", 7)}, x)
    assert out.dtype == torch.float64
    np.testing.assert_allclose(out.numpy(), masked_wide(x.numpy()), rtol=1e-14)


def masked_wide(x):
    wide = np.exp(x - x.max(-1, keepdims=True))
    return wide / wide.sum(-1, keepdims=True)


@pytest.mark.parametrize("op", [m.Softmax(), m.MaskFill(value=-3)])
def test_an_absent_mask_masks_nothing(op):
    x, keep = torch.from_numpy(normal(2, 3, 5)), torch.from_numpy(bools(2, 5))
    types = {"in": typed("B", "S", 5), "keep": mask_type("B", 5, optional=True)}
    whole = masked_softmax(x.numpy(), np.ones((2, 1, 5), bool)) if op.name == "softmax" else x.numpy()
    some = masked_softmax(x.numpy(), keep.numpy()[:, None]) if op.name == "softmax" else np.where(keep[:, None], x, -3)
    np.testing.assert_allclose(run_printed(op, types, x, None), whole, rtol=1e-5)
    np.testing.assert_allclose(run_printed(op, types, x, keep), some, rtol=1e-5)
    check_op(op, {"in": x.numpy()}, {"out": whole}, dims={"in": ("B", "S", 5)})


@pytest.mark.parametrize("dtype, lowest", [("float32", np.finfo(np.float32).min), ("float16", np.finfo(np.float16).min)])
def test_mask_fill_takes_the_lowest_finite_value_of_the_dtype(dtype, lowest):
    x, keep = normal(2, 5), bools(2, 5)
    keep[0, 0] = False
    for target in ("ort-cpu", "portable"):
        got = run_onnx(m.MaskFill(), {"in": x, "keep": keep}, target=target, dtype=dtype)["out"]
        assert np.array_equal(got, np.where(keep, x.astype(dtype), lowest))
    tensor = torch.from_numpy(x.astype(dtype))
    got = run_printed(m.MaskFill(), {"in": typed("B", 5), "keep": mask_type("B", 5)}, tensor, torch.from_numpy(keep))
    assert np.array_equal(got.numpy(), np.where(keep, x.astype(dtype), lowest))


def test_mask_fill_of_integers():
    x, keep = rng.integers(-9, 9, (2, 5)), bools(2, 5)
    check_op(m.MaskFill(), {"in": x, "keep": keep}, {"out": np.where(keep, x, np.iinfo(np.int64).min)})
    check_op(m.MaskFill(value=4), {"in": x, "keep": keep}, {"out": np.where(keep, x, 4)})


@pytest.mark.parametrize("op, types, code", [
    (m.Softmax(axis=3), {"in": typed("B", "S", 5)}, "shape-mismatch"),
    (m.LogSoftmax(axis=-4), {"in": typed("B", "S", 5)}, "shape-mismatch"),
    (m.Softmax(), {"in": typed("B", 4, "S", "S"), "keep": mask_type("S", "S")}, "shape-mismatch"),
    (m.Softmax(), {"in": typed("B", "S"), "keep": mask_type("B", 1, "S")}, "rank-mismatch"),
    (m.Softmax(), {"in": typed("B", "S"), "keep": typed("B", "S")}, "dtype-mismatch"),
    (m.MaskFill(value=0.5), {"in": typed("B", dtype="int64"), "keep": mask_type("B")}, "dtype-mismatch"),
    (m.MaskFill(), {"in": typed("B", "S"), "keep": mask_type("B", "T")}, "shape-mismatch"),
    (m.LengthMask(), {"in": typed("B"), "like": typed("B", "S")}, "dtype-mismatch"),
])
def test_what_does_not_fit_is_refused(op, types, code):
    with pytest.raises(OpFault) as caught:
        op.infer(types)
    assert caught.value.code == code


def test_a_mask_that_does_not_fit_is_shown_as_it_is_read():
    with pytest.raises(OpFault) as caught:
        m.Softmax().infer({"in": typed("B", 4, "T", "S"), "keep": mask_type("T", "S")})
    assert caught.value.ports == {"keep": "axis 0 = T", "in": "axis 0 = B"}
    assert "[T, 1, 1, S]" in caught.value.note


def masked_log_softmax(x, keep, axis=-1, dtype=np.float32):
    """The logarithm over kept entries; the lowest finite number elsewhere."""
    kept = np.where(keep, x.astype(np.float64), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = kept - np.log(np.exp(kept).sum(axis, keepdims=True))
    return np.where(keep, whole, np.finfo(dtype).min).astype(dtype)


@pytest.mark.parametrize("shape, dims, mask_shape, mask_dims, widen", CASES)
def test_log_softmax_with_a_mask(shape, dims, mask_shape, mask_dims, widen):
    x, keep = normal(*shape), bools(*mask_shape)
    keep[0] = False                                  # a fully masked row is the lowest number throughout
    check_op(m.LogSoftmax(), {"in": x, "keep": keep}, {"out": masked_log_softmax(x, widen(keep))}, dims={"in": dims, "keep": mask_dims})


def test_log_softmax_with_a_mask_in_half_precision_has_no_infinity():
    x, keep = normal(3, 5), bools(3, 5)
    keep[:, 0], keep[1] = True, False
    want = masked_log_softmax(x, keep, dtype=np.float16)
    assert (want == np.finfo(np.float16).min).sum() == (~keep).sum()
    half = run_printed(m.LogSoftmax(), {"in": typed("B", 5), "keep": mask_type("B", 5)}, torch.from_numpy(x).half(), torch.from_numpy(keep))
    np.testing.assert_allclose(half.numpy(), want, atol=4e-3)
    for target in ("ort-cpu", "ort-cuda", "portable"):
        got = run_onnx(m.LogSoftmax(), {"in": x, "keep": keep}, target=target, dtype="float16")["out"]
        np.testing.assert_allclose(got, want, atol=4e-3)


def test_gradients_of_a_masked_log_softmax_are_finite():
    x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.0, 2.0]], requires_grad=True)
    keep = torch.tensor([[True, False, True], [False, False, False]])
    run_printed(m.LogSoftmax(), {"in": typed("B", 3), "keep": mask_type("B", 3)}, x, keep)[0, 0].backward()
    assert x.grad[0, 0] > 0 and x.grad[0, 2] < 0 and x.grad[0, 1] == 0 and x.grad[1].tolist() == [0, 0, 0]
