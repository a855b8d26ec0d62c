"""Values of the spec: parameters, constants, ranges, positions."""

import numpy as np
import onnxruntime as ort
import pytest
import torch
from nnspec.backends.onnx.builder import Builder, Store
from nnspec.backends.torch.printer import Printer, Scope
from nnspec.backends.torch.source import Py, source
from nnspec.ir.dimension import Dim
from nnspec.ir.graph import TensorType
from nnspec.ops import values as v
from nnspec.ops.base import OpFault
from onnx import TensorProto, helper
from printed import run_printed, typed
from support import check_op, run_onnx

rng = np.random.default_rng(7)


def dims(*sizes):
    return tuple(Dim.symbol(s) if isinstance(s, str) else Dim.const(s) for s in sizes)


def test_a_parameter_has_its_shape_and_may_start_from_a_value():
    op = v.NamedParameter(shape=dims(1, 1, 4))
    assert op.infer({"init": None})[0] == typed(1, 1, 4)
    assert op.start == {"normal": 0.02} and v.NamedParameter(shape=dims(4), init="zeros").start == "zeros"
    assert op.infer({"init": typed(1, 1, 4)})[0] == typed(1, 1, 4)
    for shape, start, code in ((dims(1, 4), typed(4, 1), "shape-mismatch"), (dims("B", 4), None, "bad-attribute"),
                               (dims(4), typed(4, dtype="int64"), "dtype-mismatch")):
        with pytest.raises(OpFault) as caught:
            v.NamedParameter(shape=shape).infer({"init": start})
        assert caught.value.code == code


@pytest.mark.parametrize("value", [2.5, (1, 2.5, -3), ((1, 2), (3, 4), (5, 6)), [[[1.5]]]])
def test_constants_are_their_numbers(value):
    check_op(v.Constant(value=value), {}, {"out": np.array(value, np.float32)})


@pytest.mark.parametrize("dtype, value", [("int64", ((2**60 + 1, -2), (3, 4))), ("bool", (True, False, True)), ("int64", 7.0)])
def test_constants_of_other_dtypes(dtype, value):
    check_op(v.Constant(value=value, dtype=dtype), {}, {"out": np.array(value, dtype)})


@pytest.mark.parametrize("dtype, value", [("float", ((1, 2), (3,))), ("float", (1, (2, 3))), ("int64", 1.5), ("bool", 2)])
def test_ragged_lists_and_wrong_numbers_are_refused(dtype, value):
    with pytest.raises(OpFault) as caught:
        v.Constant(value=value, dtype=dtype).infer({})
    assert caught.value.code == "bad-attribute"


@pytest.mark.parametrize("dtype, value", [("float", -0.5), ("int64", 3), ("bool", True)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 5)])
def test_full(dtype, value, shape):
    kind = np.float32 if dtype == "float" else dtype
    check_op(v.Full(value=value, shape=dims(*shape), dtype=dtype), {}, {"out": np.full(shape, value, kind)})


@pytest.mark.parametrize("start, to, step", [(0, 5, 1), (1, 6, 1), (2, 9, 3), (0, 7, 2), (3, 3, 1), (0, 0, 1)])
@pytest.mark.parametrize("dtype", ["int64", "float"])
def test_range(start, to, step, dtype):
    want = np.arange(start, to, step).astype(np.float32 if dtype == "float" else np.int64)
    check_op(v.Range(start=Dim.const(start), to=Dim.const(to), step=step, dtype=dtype), {}, {"out": want})


def test_free_sizes_are_read_from_what_is_in_scope():
    """These ops have no inputs: the sizes come from other tensors, here x [B, S + 1]."""
    B, S = Dim.symbol("B"), Dim.symbol("S")
    x = TensorType("float", (B, S + 1))
    for op, want in ((v.Full(value=3, shape=(S, B), dtype="int64"), np.full((4, 2), 3)),
                     (v.Range(to=S, start=1), np.arange(1, 4)),
                     (v.Range(to=S + B, step=2), np.arange(0, 6, 2))):
        scope = Scope(tensors=[(Py("x"), x)])
        t = Printer(scope, {}, "node", {}, op.infer({}), frozenset({"out"}), Py("self"))
        assert np.array_equal(eval(source(op.torch(t)), {"torch": torch, "x": torch.ones(2, 5)}), want)
        g = Builder(Store("ort-cpu", "float32"))
        g.outputs = op.infer({})
        g.find_size = lambda dim, g=g: g.ints(dim.evaluate({"B": 2, "S": 4}))
        out = op.onnx(g)
        ends = [helper.make_tensor_value_info(out.name, TensorProto.INT64, [None] * want.ndim)]
        graph = helper.make_graph(g.nodes, "op", [], ends, g.store.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
        assert np.array_equal(ort.InferenceSession(model.SerializeToString()).run(None, {})[0], want)


def test_floats_have_the_dtype_of_the_model():
    for op in (v.Full(value=0.5, shape=dims(3)), v.Constant(value=(0.5,) * 3), v.Range(to=3, dtype="float")):
        assert run_onnx(op, {}, dtype="float16")["out"].dtype == np.float16
        scope = Scope(tensors=[(Py("x"), typed(2))])
        t = Printer(scope, {}, "node", {}, op.infer({}), frozenset({"out"}), Py("self"))
        made = eval(source(op.torch(t)), {"torch": torch, "x": torch.ones(2, dtype=torch.float64)})
        assert made.dtype == torch.float64


def test_the_length_of_a_range_follows_from_its_ends():
    assert v.Range(to=Dim.symbol("S")).infer({})[0] == typed("S", dtype="int64")
    assert v.Range(to=Dim.symbol("S") + 2, start=2).infer({})[0].shape == dims("S")
    assert v.Range(to=Dim.symbol("S"), step=2).infer({})[0].shape == ((Dim.symbol("S") + 1) // 2,)
    assert v.Range.__dataclass_fields__["start"].metadata["key"] == "from"
    for op in (v.Range(to=2, start=3), v.Range(to=3, step=0)):
        with pytest.raises(OpFault) as caught:
            op.infer({})
        assert caught.value.code == "bad-attribute"


def test_position_counts_in_every_row():
    like = rng.normal(size=(3, 5, 2)).astype(np.float32)
    want = np.tile(np.arange(5), (3, 1))
    check_op(v.Position(), {"like": like}, {"out": want}, dims={"like": ("B", "S", 2)})
    check_op(v.Position(), {"like": want}, {"out": want}, dims={"like": ("B", "S")})


def test_left_padding_does_not_shift_positions():
    keep = np.array([[False, False, True, True, True], [True] * 5, [False, False, False, False, True], [False] * 5])
    want = np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0] * 5, [0] * 5])
    like = rng.integers(0, 9, (4, 5))
    check_op(v.Position(), {"like": like, "keep": keep}, {"out": want}, dims={"like": ("B", "S"), "keep": ("B", "S")})
    types = {"like": typed("B", "S", dtype="int64"), "keep": typed("B", "S", dtype="bool", optional=True)}
    assert run_printed(v.Position(), types, torch.from_numpy(like), None).tolist() == [[0, 1, 2, 3, 4]] * 4
    assert run_printed(v.Position(), types, torch.from_numpy(like), torch.from_numpy(keep)).tolist() == want.tolist()


def test_position_takes_a_bool_mask():
    with pytest.raises(OpFault) as caught:
        v.Position().infer({"like": typed("B", "S"), "keep": typed("B", "S")})
    assert caught.value.code == "dtype-mismatch"


@pytest.mark.parametrize(("dtype", "value"), [("int64", 3), ("float", 0.5), ("bool", 1)])
def test_what_is_left_out_is_filled(dtype, value):
    given = {"int64": rng.integers(0, 9, (2, 3)), "float": rng.normal(size=(2, 3)).astype(np.float32), "bool": rng.random((2, 3)) < 0.5}
    like, op = given[dtype], v.FillAbsent(value=value)
    check_op(op, {"in": like}, {"out": like}, dims={"in": ("B", "S")})
    (type,) = op.infer({"in": typed("B", "S", dtype=dtype, optional=True)})
    assert type == typed("B", "S", dtype=dtype)


def test_no_fill_without_a_shape_or_of_another_dtype():
    for given, code in ((None, "missing-port"), (typed("B", dtype="int64"), "bad-attribute")):
        with pytest.raises(OpFault) as caught:
            v.FillAbsent(value=0.5).infer({"in": given})
        assert caught.value.code == code


def test_stop_gradient_and_cache_are_identities():
    x = rng.normal(size=(3, 5)).astype(np.float32)
    for op in (v.StopGradient(), v.Cache()):
        check_op(op, {"in": x}, {"out": x}, dims={"in": ("B", 5)})
        assert run_onnx(op, {"in": x}, dtype="float16")["out"].dtype == np.float16
    tensor = torch.from_numpy(x).requires_grad_()
    assert not run_printed(v.StopGradient(), {"in": typed("B", 5)}, tensor).requires_grad
    assert run_printed(v.Cache(), {"in": typed("B", 5)}, tensor).requires_grad
