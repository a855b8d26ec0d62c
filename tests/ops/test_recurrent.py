"""rnn, lstm, gru and their cells against float64 loops over one row at a time, without its padding."""

from itertools import product

import numpy as np
import pytest
import torch
from nnspec.backends.onnx.builder import Builder, Store, Val
from nnspec.ir.dimension import Dim
from nnspec.ops.base import OpFault, Site
from nnspec.ops.cells import GruCell, LstmCell, RnnCell
from nnspec.ops.recurrent import Gru, Lstm, Rnn
from support import check_op, infer, onnx_model, run_onnx, run_torch, torch_function, types_of

rng = np.random.default_rng(5)
TARGETS = ("ort-cpu", "ort-cuda", "portable")
LENGTHS = np.array([5, 0, 3, 1])      # unsorted, one empty, one full
B, S, I, H = 4, 5, 3, 2


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def one_step(op, x, states, *weights):
    """New states of one row, written gate by gate from the papers' equations; torch's order of gates."""
    (w_ih, w_hh), (b_ih, b_hh) = weights[:2], weights[2:] or (0.0, 0.0)
    h = states[0]
    n = len(h)
    W, U = [w_ih[k:k + n] for k in range(0, len(w_ih), n)], [w_hh[k:k + n] for k in range(0, len(w_hh), n)]
    b, c = (np.broadcast_to(v, len(w_ih)).reshape(-1, n) for v in (b_ih, b_hh))
    linear = [W[k] @ x + b[k] + U[k] @ h + c[k] for k in range(len(W))]
    if len(states) == 2:
        cell = sigmoid(linear[1]) * states[1] + sigmoid(linear[0]) * np.tanh(linear[2])
        return [sigmoid(linear[3]) * np.tanh(cell), cell]
    if hasattr(op, "reset"):
        r, z = sigmoid(linear[0]), sigmoid(linear[1])
        inner = r * (U[2] @ h + c[2]) if op.reset == "after" else U[2] @ (r * h) + c[2]
        return [(1 - z) * np.tanh(W[2] @ x + b[2] + inner) + z * h]
    return [np.tanh(linear[0]) if op.activation == "tanh" else np.maximum(linear[0], 0)]


def reference(op, arrays):
    """Each row alone, cut to its length."""
    kinds, D = op.states, op.directions
    rows = arrays["in"].shape[0]
    starts = [arrays.get(k) if arrays.get(k) is not None else np.zeros((op.layers * D, rows, op.hidden)) for k in kinds]
    finals = [np.zeros((op.layers * D, rows, op.hidden)) for _ in kinds]
    outs = np.zeros((rows, arrays["in"].shape[1], D * op.hidden))
    for row in range(rows):
        length = arrays["in"].shape[1] if arrays.get("length") is None else arrays["length"][row]
        x = arrays["in"][row, :length].astype(np.float64)
        for k in range(op.layers):
            made = np.zeros((length, D * op.hidden))
            for j in range(D):
                weights = [arrays[n].astype(np.float64) for n in op.names(k, j)]
                states = [s[k * D + j, row].astype(np.float64) for s in starts]
                backward = j == 1 or op.direction == "backward"
                for at in reversed(range(length)) if backward else range(length):
                    states = one_step(op, x[at], states, *weights)
                    made[at, j * op.hidden:(j + 1) * op.hidden] = states[0]
                for final, state in zip(finals, states, strict=True):
                    final[k * D + j, row] = state
            x = made
        outs[row, :length] = x
    return {n: v.astype(np.float32) for n, v in zip(("out", *kinds), (outs, *finals), strict=True)}


def normal(*shape, times=1.0):
    return (times * rng.normal(size=shape)).astype(np.float32)


def arrays_of(op, length=None, states=True, sizes=(B, S, I)):
    rows, steps, width = sizes
    arrays = {"in": normal(rows, steps, width), "length": length}
    if states:
        arrays |= {k: normal(op.layers * op.directions, rows, op.hidden) for k in op.states}
    types = types_of({"in": arrays["in"]})
    return arrays | {n: normal(*(d.value for d in shape), times=0.7) for n, shape in op.parameter_shapes(types).items()}


LAYERS = [Rnn(hidden=H), Rnn(hidden=H, activation="relu"), Lstm(hidden=H), Gru(hidden=H), Gru(hidden=H, reset="before")]


def variants(op, **changes):
    return type(op)(**{f: getattr(op, f) for f in op.attributes()} | changes)


@pytest.mark.parametrize("op", LAYERS, ids=lambda op: f"{op.name}-{getattr(op, 'reset', getattr(op, 'activation', ''))}")
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("layers,bias", [(1, True), (2, True), (1, False)])
def test_layers(op, direction, layers, bias):
    op = variants(op, direction=direction, layers=layers, bias=bias)
    for length, states in product((None, LENGTHS), (False, True)):
        arrays = arrays_of(op, length, states)
        dims = {"in": ("B", "S", I), "length": ("B",)}
        dims |= {k: (op.layers * op.directions, "B", H) for k in op.states}
        dims = {k: v for k, v in dims.items() if arrays.get(k) is not None}
        module = getattr(op, "reset", "after") == "after"
        check_op(op, arrays, reference(op, arrays), dims, TARGETS, module=module)


def test_one_step_and_one_row():
    for op in LAYERS:
        arrays = arrays_of(op, np.array([1]), sizes=(1, 1, I))
        check_op(op, arrays, reference(op, arrays), module=getattr(op, "reset", "after") == "after")


@pytest.mark.parametrize("op", [Lstm(hidden=H, direction="both", layers=2), Gru(hidden=H, direction="backward"),
                                Gru(hidden=H, reset="before", direction="both")], ids=lambda op: op.name)
def test_padding_changes_nothing(op):
    arrays = arrays_of(op, LENGTHS)
    other = arrays | {"in": np.where(np.arange(S)[:, None] < LENGTHS[:, None, None], arrays["in"], normal(B, S, I, times=9))}
    runs = [run_torch, *(lambda *a, t=t: run_onnx(*a, target=t) for t in TARGETS)]
    if getattr(op, "reset", "after") == "after":
        runs.append(lambda *a: run_torch(*a, module=True))
    for run in runs:
        before, after = run(op, arrays), run(op, other)
        for name, value in before.items():
            np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_length_0_keeps_the_initial_state():
    for op in LAYERS:
        arrays = arrays_of(op, np.array([0, 0, 0, 0]))
        outputs = [run_torch(op, arrays), run_onnx(op, arrays)]
        if getattr(op, "reset", "after") == "after":
            outputs.append(run_torch(op, arrays, module=True))
        for got in outputs:
            assert not got["out"].any()
            for name in op.states:
                np.testing.assert_array_equal(got[name], arrays[name])


def test_lstm_with_one_of_its_two_states():
    op = Lstm(hidden=H)
    for gone in op.states:
        arrays = arrays_of(op, LENGTHS) | {gone: None}
        check_op(op, arrays, reference(op, arrays), module=True)


def test_values_absent_at_run_time():
    for op, module in product(LAYERS, (False, True)):
        if module and getattr(op, "reset", "after") == "before":
            continue
        arrays = arrays_of(op, LENGTHS)
        optional = ("length", *op.states)
        run, tensors = torch_function(op, arrays, module=module, optional=optional)
        want = reference(op, arrays | dict.fromkeys(optional))
        for name, got in zip(want, run(**tensors | dict.fromkeys(optional)), strict=True):
            np.testing.assert_allclose(got.detach().numpy(), want[name], rtol=1e-5, atol=1e-6)


def test_gradients_of_loop_and_module_agree():
    for op in (Lstm(hidden=H, direction="both"), Gru(hidden=H, direction="backward")):
        arrays, grads = arrays_of(op, LENGTHS), []
        for module in (False, True):
            run, tensors = torch_function(op, arrays, module=module, dtype="float64")
            x = tensors["in_"].requires_grad_()
            total = sum((v * torch.arange(v.numel()).reshape(v.shape)).sum() for v in run(**tensors))
            grads.append(torch.autograd.grad(total, x)[0])
        assert grads[0].abs().max() > 0
        torch.testing.assert_close(*grads)


def test_gru_reset_gate_known_values():
    arrays = {"in": np.zeros((1, 1, 1)), "state": np.full((1, 1, 1), 0.5), "weight_ih_l0": np.zeros((3, 1)),
              "weight_hh_l0": np.array([[0], [0], [1]]), "bias_ih_l0": np.zeros(3), "bias_hh_l0": np.array([0, 0, 1])}
    arrays = {k: v.astype(np.float32) for k, v in arrays.items()}
    want = {"after": 0.567574, "before": 0.674142}
    for reset, value in want.items():
        op = Gru(hidden=1, reset=reset)
        for got in (run_torch(op, arrays), *(run_onnx(op, arrays, target=t) for t in TARGETS)):
            assert got["state"].item() == pytest.approx(value, abs=1e-6)


def test_lstm_gate_order_known_values():
    arrays = {"in": np.zeros((1, 1)), "state": np.zeros((1, 1)), "cell": np.full((1, 1), 0.5), "weight_ih": np.zeros((4, 1)),
              "weight_hh": np.zeros((4, 1)), "bias_ih": np.array([1, 2, 3, 4]), "bias_hh": np.zeros(4)}
    arrays = {k: v.astype(np.float32) for k, v in arrays.items()}
    want = {"out": np.float32([[0.808766]]), "state": np.float32([[0.808766]]), "cell": np.float32([[1.167842]])}
    check_op(LstmCell(hidden=1), arrays, want, targets=TARGETS, atol=1e-6, module=True)
    layer = {k: arrays[k][None] for k in ("in", "state", "cell")}
    layer |= {f"{k}_l0": v for k, v in arrays.items() if k not in layer}
    check_op(Lstm(hidden=1), layer, {k: want[k][None] for k in ("state", "cell")}, targets=TARGETS, atol=1e-6, module=True)


CELLS = [RnnCell(hidden=H), RnnCell(hidden=H, activation="relu"), LstmCell(hidden=H), GruCell(hidden=H),
         GruCell(hidden=H, reset="before")]


@pytest.mark.parametrize("op", CELLS, ids=lambda op: f"{op.name}-{getattr(op, 'reset', getattr(op, 'activation', ''))}")
@pytest.mark.parametrize("bias", [True, False])
def test_cells(op, bias):
    op, gates = variants(op, bias=bias), {"rnn_cell": 1, "lstm_cell": 4, "gru_cell": 3}[op.name]
    arrays = {"in": normal(B, I), **{k: normal(B, H) for k in op.states}, "weight_ih": normal(gates * H, I),
              "weight_hh": normal(gates * H, H)} | ({"bias_ih": normal(gates * H), "bias_hh": normal(gates * H)} if bias else {})
    weights = [arrays[n] for n in op.parameters()]
    rows = [one_step(op, arrays["in"][b], [arrays[k][b] for k in op.states], *weights) for b in range(B)]
    want = {k: np.array([row[i] for row in rows], np.float32) for i, k in enumerate(op.states)}
    dims = {"in": ("B", I), **{k: ("B", H) for k in op.states}}
    check_op(op, arrays, {"out": want["state"], **want}, dims, TARGETS, module=getattr(op, "reset", "after") == "after")


def test_half_precision_on_the_cpu():
    """float16 keeps 11 bits; the kernels run in float32 between casts, weights rounded to float16."""
    for op in (Rnn(hidden=H), Lstm(hidden=H, direction="both", layers=2), Gru(hidden=H), Gru(hidden=H, reset="before")):
        arrays = arrays_of(op, LENGTHS)
        want = reference(op, arrays)
        for name, got in run_onnx(op, arrays, dtype="float16").items():
            assert got.dtype == np.float16
            np.testing.assert_allclose(got.astype(np.float32), want[name], rtol=1e-2, atol=5e-3)


def test_weights_that_are_not_parameters_are_reordered_by_nodes():
    """A weight that was computed in the graph has no recipe; the result is the same."""
    op = Lstm(hidden=H, direction="both", layers=2)
    arrays = arrays_of(op, LENGTHS)
    for name, got in run_onnx(op, arrays, recipes=False).items():
        np.testing.assert_allclose(got, reference(op, arrays)[name], rtol=1e-5, atol=1e-6)


def test_one_native_node_a_layer():
    model, _, _ = onnx_model(Gru(hidden=H, layers=3, direction="both"), arrays_of(Gru(hidden=H, layers=3, direction="both")))
    assert [n.op_type for n in model.graph.node].count("GRU") == 3
    assert not {"Split", "Scan", "Loop", "MatMul"} & {n.op_type for n in model.graph.node}


def test_bfloat16_layers_run_in_float32():
    op = Lstm(hidden=H)
    _, types, outputs = infer(op, arrays_of(op, states=False))
    g = Builder(Store("ort-cuda", "bfloat16"))
    g.path, g.inputs, g.outputs = "node", types, outputs
    op.native(g, **{p: None if v is None else Val(p, p) for p, v in types.items()})
    node = next(n for n in g.nodes if n.op_type == "LSTM")
    cast = {n.output[0] for n in g.nodes if n.op_type == "Cast"}
    assert set(node.input[1:4]) <= cast


def test_reset_before_is_reported_for_cuda():
    forms = Gru(hidden=H).forms()
    site = Site("ort-cuda", "float32", {}, (), frozenset())
    assert forms[0].when(Gru(hidden=H), site) is None
    assert "CUDA" in forms[0].when(Gru(hidden=H, reset="before"), site)
    assert forms[1].when(Gru(hidden=H, reset="before"), site) is None


def test_names_are_those_of_torch():
    for op, module in ((Gru(hidden=H, layers=2, direction="both"), torch.nn.GRU(I, H, 2, bidirectional=True)),
                       (Lstm(hidden=H, bias=False), torch.nn.LSTM(I, H, bias=False))):
        assert list(op.parameters()) == list(module.state_dict())


def test_flops_count_gates():
    op = Gru(hidden=H, layers=2, direction="both")
    _, types, outputs = infer(op, arrays_of(op), {"in": ("B", "S", I), "state": (4, "B", H)})
    assert op.flops(types, outputs) == Dim.parse("B*S") * 2 * 2 * 3 * H * (I + H + 2 * H + H)
    cell = GruCell(hidden=H)
    arrays = {"in": normal(B, I), "state": normal(B, H), "weight_ih": normal(6, I), "weight_hh": normal(6, H)}
    _, types, outputs = infer(cell, arrays, {"in": ("B", I), "state": ("B", H)})
    assert cell.flops(types, outputs) == Dim.parse("B") * 2 * 3 * H * (I + H)


@pytest.mark.parametrize("op", [Gru(hidden=0), Lstm(hidden=2, layers=0), RnnCell(hidden=0)])
def test_faults(op):
    with pytest.raises(OpFault) as caught:
        op.infer({})
    assert caught.value.code == "bad-attribute"
