"""attention against a float64 reference of its own: every combination of masks, on every target."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from nnspec.ir.dimension import Dim
from nnspec.ir.graph import TensorType
from nnspec.ops.attention import Attention
from nnspec.ops.base import OpFault, Site
from support import check_op, infer, onnx_model, run_onnx, run_torch, torch_function

rng = np.random.default_rng(11)
FREE = {"query": ("B", 4, "T", 6), "length": ("B",), "keep": ("B", "S"), "score_bias": (1, 4, "T", "S")}
TARGETS = ("ort-cpu", "ort-cuda", "portable")


def reference(op, query, key, value, *, length=None, keep=None, score_bias=None):
    """One query at a time, in float64: the list of keys it sees, then a softmax over that list."""
    B, H, T, d = query.shape
    G, S = key.shape[1:3]
    weights = np.zeros((B, H, T, S))
    for b, h, i in np.ndindex(B, H, T):
        seen = list(range(S))
        if op.causal:
            seen = [j for j in seen if j <= i]
        if op.window is not None:
            seen = seen[-op.window:] if i < S else [j for j in seen if i - j < op.window]
        if length is not None:
            seen = [j for j in seen if j < length[b]] if not op.causal or i < length[b] else []
        if keep is not None:
            full = np.broadcast_to(keep.reshape(B, *[1] * (4 - keep.ndim), *keep.shape[1:]), (B, H, T, S))
            seen = [j for j in seen if full[b, h, i, j]]
        if not seen:
            continue
        scores = key[b, h * G // H, seen].astype(np.float64) @ query[b, h, i].astype(np.float64)
        scores = scores * (d ** -0.5 if op.scale is None else op.scale)
        if op.softcap is not None:
            scores = op.softcap * np.tanh(scores / op.softcap)
        if score_bias is not None:
            scores = scores + np.broadcast_to(score_bias, (B, H, T, S))[b, h, i, seen]
        exp = np.exp(scores - scores.max())
        weights[b, h, i, seen] = exp / exp.sum()
    out = np.einsum("bhts,bhsv->bhtv", weights, np.repeat(value, H // G, axis=1).astype(np.float64))
    return {"out": out.astype(np.float32), "weights": weights.astype(np.float32)}


def normal(*shape, times=1.0):
    return (times * rng.normal(size=shape)).astype(np.float32)


def arrays_of(B=3, T=5, S=7, G=2, d=6, v=5, **more):
    return {"query": normal(B, 4, T, d, times=2), "key": normal(B, G, S, d), "value": normal(B, G, S, v), **more}


def masks_of(names, B=3, T=5, S=7, H=4):
    """Masks with rows of length 0, rows that keep nothing, and ordinary ones."""
    keep = rng.random((B, S)) > 0.4
    keep[-1] = False
    every = {"length": np.array([S, 0, min(3, S)][:B]), "keep": keep, "score_bias": normal(1, H, T, S, times=3)}
    return {name: every[name] for name in names}


def check(op, arrays, dims=None, targets=TARGETS, **tolerance):
    if dims is None:
        same = arrays["query"].shape[2] == arrays["key"].shape[2]
        dims = {p: tuple("S" if a == "T" and same else a for a in d) for p, d in FREE.items() if p in arrays}
        dims |= {p: ("B", arrays[p].shape[1], "S", arrays[p].shape[3]) for p in ("key", "value")}
    want = reference(op, **arrays)
    check_op(op, arrays, {"out": want["out"]}, dims, targets, used=("out",), **tolerance)
    check_op(op, arrays, want, dims, targets, **tolerance)


SETS = [c for n in range(4) for c in combinations(("length", "keep", "score_bias"), n)]


@pytest.mark.parametrize("names", SETS, ids=lambda n: "+".join(n) or "plain")
@pytest.mark.parametrize("causal,window", [(False, None), (True, None), (True, 3)])
@pytest.mark.parametrize("T", [5, 7])
def test_every_combination_of_masks(names, causal, window, T):
    for softcap, G in ((None, 4), (2.5, 2), (None, 2), (2.5, 1)):
        op = Attention(causal=causal, window=window, softcap=softcap)
        check(op, arrays_of(T=T, G=G, **masks_of(names, T=T)))


@pytest.mark.parametrize("T,S", [(1, 1), (1, 7), (7, 1), (9, 4)])
def test_lengths_of_one_and_more_queries_than_keys(T, S):
    for names, causal, window in product(((), ("length",), ("keep", "score_bias")), (False, True), (None, 2)):
        if causal or window is None:
            check(Attention(causal=causal, window=window), arrays_of(T=T, S=S, **masks_of(names, T=T, S=S)))


def test_static_sizes_and_a_given_scale():
    for names, causal in product(SETS, (False, True)):
        check(Attention(causal=causal, scale=0.9), arrays_of(T=5, S=5, **masks_of(names, T=5, S=5)), dims={})


@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 1, 7), (3, 1, 5, 7), (3, 4, 5, 7), (3, 4, 1, 7), (3, 1, 1, 7)])
def test_keep_of_three_and_four_axes(shape):
    keep = rng.random(shape) > 0.6
    keep[0] = False
    for causal in (False, True):
        check(Attention(causal=causal), arrays_of(keep=keep), dims={})
        check(Attention(causal=causal), arrays_of(keep=keep, score_bias=normal(3, 1, 5, 7)), dims={})


@pytest.mark.parametrize("shape", [(1, 1, 5, 7), (3, 1, 5, 7), (3, 4, 5, 7), (1, 4, 1, 7)])
def test_bias_of_every_broadcast_shape(shape):
    for causal, names in product((False, True), ((), ("length",))):
        check(Attention(causal=causal), arrays_of(score_bias=normal(*shape), **masks_of(names)), dims={})


def test_grouped_heads_read_neighbouring_key_heads():
    arrays = arrays_of(B=1) | {"value": np.stack([np.zeros((1, 7, 5)), np.ones((1, 7, 5))], 1).astype(np.float32)}
    for target in TARGETS:
        for used in (("out",), ("out", "weights")):
            out = run_onnx(Attention(), arrays, target=target, used=used)["out"]
            assert out[0, :, 0, 0].tolist() == pytest.approx([0, 0, 1, 1])
    assert run_torch(Attention(), arrays, used=("out",))["out"][0, :, 0, 0].tolist() == pytest.approx([0, 0, 1, 1])


def counts(op, T, S, **masks):
    """How many keys each query sees: equal scores, so a weight is 1 / count."""
    arrays = {"query": np.zeros((1, 1, T, 2), np.float32), "key": normal(1, 1, S, 2)}
    arrays["value"] = np.eye(S, dtype=np.float32)[None, None]
    seen = [run_torch(op, arrays | masks, used=("out",))["out"]]
    seen += [run_onnx(op, arrays | masks, target=target, used=("out",))["out"] for target in TARGETS]
    rows = {tuple((np.abs(out[0, 0]) > 1e-6).sum(-1).tolist()) for out in seen}
    assert len(rows) == 1
    return list(rows.pop())


def test_a_window_counts_the_query_itself():
    assert counts(Attention(causal=True, window=4), 8, 8) == [1, 2, 3, 4, 4, 4, 4, 4]


def test_causal_counts_positions_from_the_first_key():
    assert counts(Attention(causal=True), 3, 5) == [1, 2, 3]
    assert counts(Attention(causal=True), 5, 3) == [1, 2, 3, 3, 3]


def test_causal_length_counts_queries_too():
    assert counts(Attention(causal=True), 5, 5, length=np.array([3])) == [1, 2, 3, 0, 0]
    assert counts(Attention(), 5, 5, length=np.array([3])) == [3, 3, 3, 3, 3]


def test_keep_is_true_where_a_key_is_attended():
    assert counts(Attention(), 2, 3, keep=np.array([[True, True, False]])) == [2, 2]


def test_padding_changes_nothing():
    for causal, names in product((False, True), (("length",), ("keep",), ("length", "score_bias"))):
        op, arrays = Attention(causal=causal), arrays_of(T=7, **masks_of(names, T=7))
        hidden = np.arange(7) >= arrays["length"][:, None] if "length" in arrays else ~arrays["keep"]
        other = {p: np.where(hidden[:, None, :, None], normal(*arrays[p].shape, times=9), arrays[p]) for p in ("key", "value")}
        for run in (run_torch, *(lambda *a, used, t=t: run_onnx(*a, target=t, used=used) for t in TARGETS)):
            for used in (("out",), ("out", "weights")):
                np.testing.assert_array_equal(run(op, arrays, used=used)["out"], run(op, arrays | other, used=used)["out"])


def test_half_precision_on_the_cpu():
    """float16 keeps 11 bits: results of order 1 may be off by a few thousandths."""
    for names, causal in product(SETS, (False, True)):
        op, arrays = Attention(causal=causal), arrays_of(T=7, **masks_of(names, T=7))
        arrays = {p: a.astype(np.float16).astype(np.float32) if a.dtype == np.float32 else a for p, a in arrays.items()}
        want = reference(op, **arrays)
        for used in (("out",), ("out", "weights")):
            got = [run_onnx(op, arrays, target=t, dtype="float16", used=used) for t in TARGETS]
            for outputs in (*got, run_torch(op, arrays, used=used, dtype="float16")):
                for name in used:
                    assert outputs[name].dtype == np.float16
                    np.testing.assert_allclose(outputs[name].astype(np.float32), want[name], rtol=2e-2, atol=8e-3)


def test_half_precision_does_not_overflow_into_masks():
    """Scores of -20000 beside hidden keys: two large negative numbers must not become NaN or let a hidden key win."""
    arrays = {"query": np.full((1, 1, 2, 1), 200, np.float32), "key": np.full((1, 1, 2, 1), -100, np.float32),
              "value": np.array([3, 5], np.float32).reshape(1, 1, 2, 1), "keep": np.array([[False, True]])}
    for target, used in product(TARGETS, (("out",), ("out", "weights"))):
        out = run_onnx(Attention(causal=True, scale=1.0), arrays, target=target, dtype="float16", used=used)["out"]
        assert out.ravel().tolist() == [0, 5]


def test_gradients_are_finite_and_right_where_rows_see_nothing():
    for used, names, causal in product((("out",), ("out", "weights")), SETS, (False, True)):
        op, arrays = Attention(causal=causal), arrays_of(B=2, T=3, S=4, **masks_of(names, B=2, T=3, S=4))
        run, tensors = torch_function(op, arrays, used=used, dtype="float64")
        floats = {n: t.requires_grad_() for n, t in tensors.items() if t.is_floating_point()}
        assert torch.autograd.gradcheck(lambda *x, run=run, tensors=tensors, floats=floats:
                                        run(**tensors | dict(zip(floats, x, strict=True)))[0], tuple(floats.values()))


def test_masks_absent_at_run_time():
    arrays = arrays_of(T=7, **masks_of(("length", "keep", "score_bias"), T=7))
    for causal, used in product((False, True), (("out",), ("out", "weights"))):
        run, tensors = torch_function(Attention(causal=causal), arrays, used=used)
        bare = {p: arrays[p] for p in ("query", "key", "value")}
        out = run(**tensors | dict.fromkeys(("length", "keep", "score_bias")))[0]
        np.testing.assert_allclose(out.numpy(), reference(Attention(causal=causal), **bare)["out"], rtol=1e-5, atol=1e-6)


def ops_of(op, arrays, **given):
    model, _, _ = onnx_model(op, arrays, used=("out",), **given)
    return [n for n in model.graph.node if n.op_type != "Identity"]


def test_lengths_and_causality_need_no_mask():
    def fused(op, *names, T=7, **given):
        nodes = ops_of(op, arrays_of(T=T, G=4, d=8, v=16, **masks_of(names, T=T)), **given)
        return next(n for n in nodes if n.op_type == "Attention"), {n.op_type for n in nodes} - {"Attention"}

    for target in ("ort-cpu", "ort-cuda"):
        assert fused(Attention(), target=target)[1] == set()
        node, others = fused(Attention(), "length", target=target)
        assert others == set() and node.input[6] == "length"
        node, others = fused(Attention(causal=True), "length", target=target)
        assert len(node.input) == 3 and others <= {"Range", "Unsqueeze", "Less", "Where"}
        node, _ = fused(Attention(causal=True), "keep", target=target)
        assert len(node.input) == 4 and not any(a.name == "is_causal" for a in node.attribute)


def test_cuda_pads_keys_where_a_mask_is_given_and_copies_heads_for_float32():
    def kinds(S, G, dtype, *names):
        arrays = arrays_of(S=S, G=G, d=8, v=8, **masks_of(names, S=S))
        return [n.op_type for n in ops_of(Attention(), arrays, target="ort-cuda", dtype=dtype)]

    assert kinds(7, 4, "float32", "keep").count("Concat") >= 3
    assert kinds(8, 4, "float32", "keep").count("Concat") == 0
    assert kinds(7, 2, "float32").count("Expand") == 2
    assert kinds(7, 2, "float16") == ["Attention"]


def test_heads_of_other_widths_are_filled_up_to_a_multiple_of_8_on_cuda():
    def widths(target, **sizes):
        nodes = ops_of(Attention(), arrays_of(G=4, **sizes), target=target)
        scale = next(n for n in nodes if n.op_type == "Attention").attribute[0].f if len(nodes) > 1 else None
        return [n.op_type for n in nodes if n.op_type in ("Concat", "Slice")], scale

    assert widths("ort-cpu", d=6, v=5) == ([], None)
    assert widths("ort-cuda", d=16, v=8) == ([], None)
    assert widths("ort-cuda", d=6, v=5) == (["Concat", "Concat", "Concat", "Slice"], pytest.approx(6 ** -0.5))
    assert widths("ort-cuda", d=16, v=5)[0] == ["Concat", "Slice"]


def in_form(name, op, arrays, target="ort-cpu", dtype="float32", dims=None):
    """The result in one form, with free dimensions, beside the reference of what the dtype holds of the inputs."""
    if dtype == "float16":
        arrays = {p: a.astype(np.float16).astype(np.float32) if a.dtype == np.float32 else a for p, a in arrays.items()}
    if dims is None:
        dims = {p: ("B", arrays[p].shape[1], "S", arrays[p].shape[3]) for p in ("query", "key", "value")} | {"length": ("B",)}
    got = run_onnx(op, arrays, dims, target, dtype=dtype, form=name, used=("out",))["out"]
    return got.astype(np.float32), reference(op, **arrays)["out"]


@pytest.mark.parametrize("names", [(), ("length",)], ids=lambda n: "+".join(n) or "plain")
@pytest.mark.parametrize(("target", "dtype"), [("ort-cpu", "float32"), ("ort-cpu", "float16"), ("ort-cuda", "float16")])
@pytest.mark.parametrize("causal,window", [(True, None), (True, 3), (True, 1), (True, 99), (False, None)])
def test_grouped_query_attention_keeps_the_meaning(names, target, dtype, causal, window):
    if not causal and target == "ort-cuda":
        return
    for S, G, softcap, scale in ((1, 4, None, None), (7, 2, None, 0.9), (7, 1, 2.5, None), (33, 2, None, None)):
        arrays = arrays_of(T=S, S=S, G=G, d=8, v=8, **masks_of(names, T=S, S=S))
        op = Attention(causal=causal, window=window, softcap=softcap, scale=scale)
        got, want = in_form("GroupQueryAttention", op, arrays, target, dtype)
        np.testing.assert_allclose(got, want, **({"rtol": 1e-5, "atol": 2e-6} if dtype == "float32" else {"rtol": 2e-2, "atol": 8e-3}))
        if names:
            assert not got[1].any(), "a row of length 0 gives zeros"


def test_grouped_query_attention_where_no_row_is_full():
    for causal, dtype in product((True, False), ("float32", "float16")):
        arrays = arrays_of(T=9, S=9, d=16, v=16, length=np.array([4, 0, 1]))
        got, want = in_form("GroupQueryAttention", Attention(causal=causal), arrays, dtype=dtype)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-5 if dtype == "float32" else 8e-3)
        assert not got[1].any()


@pytest.mark.parametrize(("T", "S"), [(1, 1), (7, 7), (5, 9), (130, 67)])
def test_multi_head_attention_keeps_the_meaning(T, S):
    dims = {"query": ("B", 4, "T", 6), "key": ("B", 4, "S", 6), "value": ("B", 4, "S", 5)}
    for scale in (None, 0.3):
        got, want = in_form("MultiHeadAttention", Attention(scale=scale), arrays_of(T=T, S=S, G=4), dims=dims)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def chosen(op, dtype="float32", target="ort-cpu", typical=None, S="S", **sizes):
    """The form that is taken, and why each better one is not."""
    names = sizes.pop("names", ())
    arrays = arrays_of(T=7, S=7, **({"d": 8, "v": 8, "G": 4} | sizes), **masks_of(names, T=7))
    dims = {p: ("B", arrays[p].shape[1], S, arrays[p].shape[3]) for p in ("query", "key", "value")}
    dims |= {"length": ("B",), "keep": ("B", S), "score_bias": (1, 4, S, S)}
    named = {p: d for p, d in dims.items() if p in arrays}
    types = {p: TensorType("float" if arrays[p].dtype == np.float32 else str(arrays[p].dtype), tuple(
        Dim.symbol(n) if isinstance(n, str) else Dim.const(n) for n in d)) for p, d in named.items()}
    site = Site(target, dtype, types, (), frozenset({"out"}), typical or {})
    missed = {}
    for form in op.forms():
        reason = form.when(op, site) if target in form.targets else "not for this target"
        if reason is None:
            return form.name, missed
        missed[form.name] = reason
    raise AssertionError(missed)


def test_the_form_for_the_cpu_follows_from_the_typical_length():
    long = {"S": 1024}
    assert chosen(Attention(causal=True)) == ("Attention-24", {})
    name, missed = chosen(Attention(causal=True), typical=long)
    assert name == "GroupQueryAttention"
    assert missed["Attention-24"] == ("causal GroupQueryAttention is faster on the CPU from 1024 keys on, and S = 1024 is typical")
    assert chosen(Attention(causal=True), S=2048)[0] == "GroupQueryAttention"
    assert chosen(Attention(causal=True), typical={"S": 1023})[0] == "Attention-24"
    assert chosen(Attention(causal=True, window=9), typical=long, names=("length",), G=2)[0] == "GroupQueryAttention"
    assert chosen(Attention(), typical=long)[0] == "MultiHeadAttention"
    assert chosen(Attention(), typical=long, names=("length",))[0] == "Attention-24"
    assert chosen(Attention(), typical=long, G=2)[0] == "Attention-24"
    assert chosen(Attention(causal=True), typical=long, names=("keep",))[0] == "Attention-24"
    assert chosen(Attention(causal=True), typical=long, d=6, v=6)[0] == "Attention-24"
    assert chosen(Attention(causal=True), typical=long, d=8, v=16)[0] == "Attention-24"


def test_float16_on_the_cpu_and_windows_on_cuda_take_grouped_query_attention():
    for op, names in product((Attention(), Attention(causal=True), Attention(causal=True, window=3)), ((), ("length",))):
        assert chosen(op, "float16", names=names)[0] == "GroupQueryAttention"
        for dtype in ("float16", "bfloat16"):
            assert chosen(op, dtype, "ort-cuda", names=names)[0] == ("GroupQueryAttention" if op.window else "Attention-24")
        assert chosen(op, "float32", "ort-cuda", names=names)[0] == "Attention-24"
    assert chosen(Attention(causal=True, window=3), "float16", "ort-cuda", names=("keep",))[0] == "Attention-24"
    assert chosen(Attention(causal=True, window=3), "float16", "ort-cuda", d=6, v=6)[0] == "Attention-24 on wider heads"
    assert chosen(Attention(), "float16", names=("score_bias",))[0] == "Attention-24"


def test_flops_count_both_contractions():
    dims = {"query": ("B", 4, "T", 6), "key": ("B", 2, "S", 6), "value": ("B", 2, "S", 5)}
    _, types, outputs = infer(Attention(), arrays_of(), dims)
    assert Attention().flops(types, outputs) == Dim.parse("88*B*S*T")


@pytest.mark.parametrize("op,changes,code", [
    (Attention(window=3), {}, "bad-attribute"),
    (Attention(causal=True, window=0), {}, "bad-attribute"),
    (Attention(softcap=-1.0), {}, "bad-attribute"),
    (Attention(scale=float("inf")), {}, "bad-attribute"),
    (Attention(), {"key": normal(3, 3, 7, 6), "value": normal(3, 3, 7, 5)}, "shape-mismatch"),
    (Attention(), {"keep": np.ones((3, 6), bool)}, "shape-mismatch"),
    (Attention(), {"keep": np.ones((7,), bool)}, "rank-mismatch"),
    (Attention(), {"score_bias": normal(1, 3, 5, 7)}, "shape-mismatch"),
    (Attention(), {"score_bias": normal(5, 7)}, "rank-mismatch"),
])
def test_faults(op, changes, code):
    with pytest.raises(OpFault) as caught:
        infer(op, arrays_of() | changes)
    assert caught.value.code == code
