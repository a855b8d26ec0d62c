"""Reductions, cumulative sums and the L2 norm against numpy."""

import numpy as np
import pytest
import torch
from nnspec.ops import reductions as r
from nnspec.ops.base import OpFault
from printed import run_printed, typed
from support import check_op, onnx_model, run_onnx

rng = np.random.default_rng(5)
OPS = [(r.Sum, np.sum), (r.Mean, np.mean), (r.Max, np.max), (r.Min, np.min), (r.Prod, np.prod)]
MASKED = OPS[:4]
NAMES = [op.name for op, _ in OPS]


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def masked(reference, x, keep, axis):
    """The reference over the kept entries of each result alone; 0 where there are none."""
    axes = (axis,) if isinstance(axis, int) else axis
    moved, mask = (np.moveaxis(v, axes, range(-len(axes), 0)) for v in (x, np.broadcast_to(keep, x.shape)))
    out = np.zeros(moved.shape[: moved.ndim - len(axes)], x.dtype)
    for at in np.ndindex(out.shape):
        if mask[at].any():
            out[at] = reference(moved[at][mask[at]])
    return out


@pytest.mark.parametrize("make, reference", OPS, ids=NAMES)
@pytest.mark.parametrize("axis", [-1, 1, (0, 2), (-3, -2, -1)])
@pytest.mark.parametrize("keep_axis", [False, True])
def test_reductions_over_one_axis_or_several(make, reference, axis, keep_axis):
    x = normal(3, 1, 5)
    check_op(make(axis=axis, keep_axis=keep_axis), {"in": x}, {"out": reference(x, axis=axis, keepdims=keep_axis)},
             dims={"in": ("B", 1, "S")}, atol=2e-6)


@pytest.mark.parametrize("make, reference", [pair for pair in OPS if pair[0] is not r.Mean])
def test_reductions_of_integers(make, reference):
    x = rng.integers(-9, 9, (2, 3, 5))
    check_op(make(axis=(1, 2)), {"in": x}, {"out": reference(x, axis=(1, 2))}, dims={"in": ("B", "S", 5)})


@pytest.mark.parametrize("make, reference", MASKED, ids=NAMES[:4])
@pytest.mark.parametrize("axis, keep_axis", [(1, False), (1, True), ((1, 2), False), (-1, False)])
def test_a_mask_covers_the_first_axes_and_empty_rows_give_zeros(make, reference, axis, keep_axis):
    x, keep = normal(3, 5, 4) - 1, rng.random((3, 5)) < 0.5
    keep[1], keep[2, 0] = False, True
    want = masked(reference, x, keep[..., None], axis)
    want = np.expand_dims(want, axis) if keep_axis else want
    check_op(make(axis=axis, keep_axis=keep_axis), {"in": x, "keep": keep}, {"out": want},
             dims={"in": ("B", "S", 4), "keep": ("B", "S")}, atol=2e-6)
    assert (want[1] == 0).all() and (want[2] != 0).any()


@pytest.mark.parametrize("make, reference", [pair for pair in MASKED if pair[0] is not r.Mean])
def test_masked_reductions_of_integers(make, reference):
    x, keep = rng.integers(-90, -9, (3, 5)), rng.random((3, 5)) < 0.5
    keep[0], keep[1, 2] = False, True
    check_op(make(), {"in": x, "keep": keep}, {"out": masked(reference, x, keep, -1)}, dims={"in": ("B", 5), "keep": ("B", 5)})


@pytest.mark.parametrize("make, reference", MASKED, ids=NAMES[:4])
def test_an_absent_mask_masks_nothing(make, reference):
    x, keep = normal(3, 5, 4), rng.random((3, 5)) < 0.5
    types = {"in": typed("B", "S", 4), "keep": typed("B", "S", dtype="bool", optional=True)}
    for mask, want in ((None, reference(x, axis=1)), (keep, masked(reference, x, keep[..., None], 1))):
        got = run_printed(make(axis=1), types, torch.from_numpy(x), None if mask is None else torch.from_numpy(mask))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_masked_gradients_reach_the_kept_entries_only():
    x = torch.from_numpy(normal(2, 5)).requires_grad_()
    keep = torch.tensor([[True, True, False, True, False], [False] * 5])
    run_printed(r.Mean(), {"in": typed("B", 5), "keep": typed("B", 5, dtype="bool")}, x, keep).sum().backward()
    np.testing.assert_allclose(x.grad, np.where(keep, 1 / 3, 0), rtol=1e-6)


def test_the_masked_mean_in_half_precision_does_not_overflow():
    x, keep = np.full((1, 3000), 50, np.float32), np.ones((1, 3000), bool)
    types = {"in": typed("B", 3000), "keep": typed("B", 3000, dtype="bool")}
    half = run_printed(r.Mean(), types, torch.from_numpy(x).half(), torch.from_numpy(keep))
    assert half.dtype == torch.float16 and half.tolist() == [50]
    for target in ("ort-cpu", "portable"):
        assert run_onnx(r.Mean(), {"in": x, "keep": keep}, target=target, dtype="float16")["out"].tolist() == [50]


@pytest.mark.parametrize("axis, keep_axis", [(-1, False), (1, True), (0, False)])
def test_argmax_takes_the_first_of_equal_entries(axis, keep_axis):
    x = rng.integers(0, 3, (3, 4, 5)).astype(np.float32)
    check_op(r.Argmax(axis=axis, keep_axis=keep_axis), {"in": x}, {"out": np.argmax(x, axis=axis, keepdims=keep_axis)},
             dims={"in": ("B", "S", 5)})


def running(x, axis, exclusive, reverse):
    x = np.flip(x, axis) if reverse else x
    out = np.cumsum(x.astype(np.float64) if x.dtype.kind == "f" else x, axis)
    if exclusive:
        out = np.roll(out, 1, axis)
        out[tuple(0 if i == axis % x.ndim else slice(None) for i in range(x.ndim))] = 0
    return (np.flip(out, axis) if reverse else out).astype(x.dtype)


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("x", [normal(2, 5, 3), rng.integers(-9, 9, (2, 5, 3))], ids=["float", "int64"])
def test_cumsum(axis, exclusive, reverse, x):
    check_op(r.Cumsum(axis=axis, exclusive=exclusive, reverse=reverse), {"in": x}, {"out": running(x, axis, exclusive, reverse)},
             dims={"in": ("B", "S", 3)})


def test_an_exclusive_cumsum_keeps_small_sums_beside_large_entries():
    x = np.array([[1e-3, 1e6, 1.0]], np.float32)
    check_op(r.Cumsum(exclusive=True), {"in": x}, {"out": np.array([[0, 1e-3, 1e6]], np.float32)}, rtol=1e-7, atol=0)


def test_cumsum_in_half_precision_adds_up_in_f32():
    x = np.ones((1, 5000), np.float32)
    want = np.arange(1, 5001).astype(np.float16)[None]
    assert torch.equal(run_printed(r.Cumsum(), {"in": typed("B", 5000)}, torch.from_numpy(x).half()), torch.from_numpy(want))
    assert np.array_equal(run_onnx(r.Cumsum(), {"in": x}, dtype="float16")["out"], want)
    nodes = onnx_model(r.Cumsum(), {"in": x}, dtype="float16")[0].graph.node
    assert [node.op_type for node in nodes] == ["Cast", "CumSum", "Cast", "Identity"]


@pytest.mark.parametrize("axis", [-1, 0])
def test_l2_norm_divides_by_the_length_or_eps(axis):
    x = normal(4, 5)
    x[0] = 0
    length = np.sqrt((x.astype(np.float64) ** 2).sum(axis, keepdims=True))
    for eps in (1e-12, 1.5):
        check_op(r.L2Norm(axis=axis, eps=eps), {"in": x}, {"out": (x / np.maximum(length, eps)).astype(np.float32)},
                 dims={"in": ("B", 5)})


def test_l2_norm_of_zero_is_zero_in_half_precision():
    x = np.concatenate([np.zeros((1, 6)), np.full((1, 6), 300)]).astype(np.float32)
    half = run_printed(r.L2Norm(), {"in": typed("B", 6)}, torch.from_numpy(x).half()).float().numpy()
    onnx = [run_onnx(r.L2Norm(), {"in": x}, target=target, dtype="float16")["out"] for target in ("ort-cpu", "portable")]
    for got in (half, *onnx):
        assert got[0].tolist() == [0] * 6
        np.testing.assert_allclose(got[1], 6**-0.5, rtol=1e-3)


@pytest.mark.parametrize("op, types, code", [
    (r.Sum(axis=3), {"in": typed("B", "S")}, "shape-mismatch"),
    (r.Sum(axis=(1, -1)), {"in": typed("B", "S")}, "bad-attribute"),
    (r.Sum(axis=()), {"in": typed("B", "S")}, "bad-attribute"),
    (r.Mean(), {"in": typed("B", dtype="int64")}, "dtype-mismatch"),
    (r.Sum(), {"in": typed("B", dtype="bool")}, "dtype-mismatch"),
    (r.Mean(), {"in": typed("B", "S", 4), "keep": typed("B", "T", dtype="bool")}, "shape-mismatch"),
    (r.Mean(), {"in": typed("B"), "keep": typed("B", "S", dtype="bool")}, "rank-mismatch"),
    (r.Argmax(axis=2), {"in": typed("B", "S")}, "shape-mismatch"),
    (r.Cumsum(axis=-3), {"in": typed("B", "S")}, "shape-mismatch"),
    (r.L2Norm(axis=2), {"in": typed("B", "S")}, "shape-mismatch"),
])
def test_what_does_not_fit_is_refused(op, types, code):
    with pytest.raises(OpFault) as caught:
        op.infer(types)
    assert caught.value.code == code
