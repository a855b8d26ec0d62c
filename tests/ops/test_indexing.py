"""gather, scatter_add, top_k, one_hot against loops in numpy."""

import math

import numpy as np
import pytest
from nnspec.ops.indexing import Gather, OneHot, ScatterAdd, TopK
from support import check_op, fault, run_onnx, run_torch

rng = np.random.default_rng(4)

# value, index, axis, batch, free sizes of both
CASES = [
    ((7, 3), (2, 5), 0, 0, ("V", 3), ("B", "T")),
    ((2, 7, 3), (4,), 1, 0, ("B", "S", 3), ("T",)),
    ((2, 7, 3), (4, 1), -1, 0, ("B", "S", 3), ("T", 1)),
    ((2, 7, 3), (), 1, 0, ("B", "S", 3), ()),
    ((2, 7, 3), (2, 5), 1, 1, ("B", "S", 3), ("B", "T")),
    ((2, 7, 3), (2, 5), 2, 1, ("B", "S", 3), ("B", "T")),
    ((2, 7, 3), (2,), 1, 1, ("B", "S", 3), ("B",)),
    ((2, 7, 3), (2,), 2, 1, ("B", "S", 3), ("B",)),
    ((2, 7), (2, 5), 1, 1, ("B", "S"), ("B", "T")),
    ((2, 7, 3), (2, 5, 4), 1, 1, ("B", "S", 3), ("B", "T", 4)),
    ((2, 3, 7, 5), (2, 4, 1), 2, 1, ("B", 3, "S", 5), ("B", "T", 1)),
    ((2, 3, 7, 5), (2, 3, 4), 2, 2, ("B", "H", "S", 5), ("B", "H", "T")),
    ((2, 3, 7, 5), (2, 3, 4), -1, 2, ("B", "H", "S", 5), ("B", "H", "T")),
    ((1, 1, 1), (1, 1), 1, 1, ("B", "S", 1), ("B", "T")),
    ((2, 7, 3), (2, 0), 1, 1, ("B", "S", 3), ("B", "T")),
]


def sample(shape, index, axis):
    return rng.normal(size=shape).astype(np.float32), rng.integers(0, shape[axis], size=index)


def rows(array, batch):
    """One entry for every index of the leading `batch` axes."""
    return array.reshape(math.prod(array.shape[:batch]), *array.shape[batch:])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gather_takes_row_by_row(case):
    shape, index, axis, batch, named, named_index = case
    x, i = sample(shape, index, axis)
    own = axis % len(shape) - batch
    want = np.stack([np.take(a, b, own) for a, b in zip(rows(x, batch), rows(i, batch), strict=True)])
    want = want.reshape(*shape[:batch], *want.shape[1:])
    for dims in (None, {"in": named, "index": named_index}):
        check_op(Gather(axis=axis, batch=batch), {"in": x, "index": i}, {"out": want}, dims=dims)


def test_gather_of_other_dtypes():
    x, i = rng.integers(0, 99, (2, 7)), rng.integers(0, 7, (2, 5))
    check_op(Gather(axis=1, batch=1), {"in": x, "index": i}, {"out": np.take_along_axis(x, i, 1)})
    check_op(Gather(axis=1, batch=1), {"in": x > 50, "index": i}, {"out": np.take_along_axis(x > 50, i, 1)})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scatter_add_adds_one_by_one(case):
    shape, index, axis, batch, named, named_index = case
    base, i = sample(shape, index, axis)
    place = axis % len(shape)
    source = rng.normal(size=(*shape[:place], *index[batch:], *shape[place + 1:])).astype(np.float32)
    want = base.copy()
    for at in np.ndindex(source.shape):
        inner = at[place:place + len(index) - batch]
        to = (*at[:place], int(i[(*at[:batch], *inner)]), *at[place + len(inner):])
        want[to] += source[at]
    named_source = (*named[:place], *named_index[batch:], *named[place + 1:])
    for dims in (None, {"base": named, "index": named_index, "source": named_source}):
        arrays = {"base": base, "index": i, "source": source}
        check_op(ScatterAdd(axis=axis, batch=batch), arrays, {"out": want}, dims=dims, rtol=1e-4, atol=1e-5)


def test_scatter_add_of_other_dtypes():
    base, i = rng.integers(0, 9, (2, 7)), np.array([[1, 1, 6], [0, 3, 0]])
    source = rng.integers(0, 9, (2, 3))
    want = base.copy()
    np.add.at(want, (np.arange(2)[:, None], i), source)
    op = ScatterAdd(axis=1, batch=1)
    check_op(op, {"base": base, "index": i, "source": source}, {"out": want})
    arrays = {"base": base.astype(np.float32), "index": i, "source": source.astype(np.float32)}
    half = run_onnx(op, arrays, dtype="float16")["out"]
    assert half.dtype == np.float16 and (half == want).all()


def test_indices_must_fit():
    x, i = sample((2, 7, 3), (2, 5), 1)
    assert fault(Gather(axis=0, batch=1), {"in": x, "index": i}).attribute == "batch"
    assert fault(Gather(axis=1, batch=-1), {"in": x, "index": i}).attribute == "batch"
    assert fault(Gather(axis=3), {"in": x, "index": i}).attribute == "axis"
    assert fault(Gather(axis=1, batch=1), {"in": x, "index": i[:1]}).code == "shape-mismatch"
    assert fault(Gather(axis=2, batch=2), {"in": x, "index": i[:, 0]}).code == "rank-mismatch"
    assert fault(Gather(axis=1), {"in": x, "index": x}).code == "dtype-mismatch"
    source = rng.normal(size=(2, 5, 3)).astype(np.float32)
    assert fault(ScatterAdd(axis=1, batch=1), {"base": x, "index": i, "source": source[:, :4]}).code == "shape-mismatch"
    assert fault(ScatterAdd(axis=1, batch=1), {"base": x, "index": i, "source": i}).code == "dtype-mismatch"


@pytest.mark.parametrize(("axis", "largest"), [(-1, True), (1, True), (0, False)])
def test_top_k_finds_the_largest(axis, largest):
    x = rng.permutation(2 * 5 * 3).reshape(2, 5, 3).astype(np.float32)
    order = np.argsort(-x if largest else x, axis)
    k = min(2, x.shape[axis])
    indices = np.take(order, range(k), axis)
    want = {"values": np.take_along_axis(x, indices, axis), "indices": indices}
    check_op(TopK(k=k, axis=axis, largest=largest), {"in": x}, want, dims={"in": ("B", "S", "E")})


def test_top_k_in_any_order():
    x = rng.permutation(3 * 8).reshape(3, 8).astype(np.float32)
    for got in (run_torch(TopK(k=3, sorted=False), {"in": x}), run_onnx(TopK(k=3, sorted=False), {"in": x})):
        assert (np.sort(got["values"], -1) == np.sort(x, -1)[:, -3:]).all()
        assert (np.take_along_axis(x, got["indices"], -1) == got["values"]).all()


def test_top_k_refuses_more_than_there_are():
    x = rng.normal(size=(2, 3)).astype(np.float32)
    assert fault(TopK(k=4), {"in": x}).code == "shape-mismatch"
    assert fault(TopK(k=0), {"in": x}).code == "bad-attribute"
    assert fault(TopK(k=1), {"in": x > 0}).code == "dtype-mismatch"


def test_one_hot_marks_the_index():
    i = rng.integers(0, 6, (2, 5))
    want = np.eye(6, dtype=np.float32)[i]
    check_op(OneHot(entries=6), {"in": i}, {"out": want}, dims={"in": ("B", "S")})
    half = run_onnx(OneHot(entries=6), {"in": i}, dtype="float16")["out"]
    assert half.dtype == np.float16 and (half == want).all()
    assert fault(OneHot(entries=0), {"in": i}).code == "bad-attribute"
    assert fault(OneHot(entries=6), {"in": want}).code == "dtype-mismatch"
