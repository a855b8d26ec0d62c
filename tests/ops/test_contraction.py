"""matmul and einsum against numpy."""

import numpy as np
import onnx
import pytest
from nnspec.ir.dimension import Dim
from nnspec.ops.contraction import Einsum, Matmul, matrix_product
from support import check_op, fault, infer, run_onnx

rng = np.random.default_rng(3)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("a", "b"), [((3, 5), (5, 2)), ((2, 3, 5), (2, 5, 1)), ((2, 1, 3, 5), (4, 5, 7)), ((2, 3, 5), (5, 7)),
                                      ((3, 5), (2, 5, 7))])
def test_matmul_broadcasts(a, b):
    x, y = floats(*a), floats(*b)
    check_op(Matmul(), {"in": [x, y]}, {"out": x @ y}, rtol=1e-4)


def test_matmul_with_free_sizes():
    q, k = floats(2, 3, 5, 4), floats(2, 3, 4, 7)
    dims = {"in.0": ("B", 3, "T", 4), "in.1": ("B", 3, 4, "S")}
    check_op(Matmul(), {"in": [q, k]}, {"out": q @ k}, dims=dims, rtol=1e-4)
    _, types, outputs = infer(Matmul(), {"in": [q, k]}, dims)
    assert str(outputs[0]) == "float[B, 3, T, S]"
    assert Matmul().flops(types, outputs) == Dim.parse("24 * B * T * S")


def test_matmul_refuses_what_does_not_fit():
    assert fault(Matmul(), {"in": [floats(2, 3), floats(4, 2)]}).code == "shape-mismatch"
    assert fault(Matmul(), {"in": [floats(2, 3, 5), floats(4, 5, 2)]}).code == "shape-mismatch"
    assert fault(Matmul(), {"in": [floats(3), floats(3, 2)]}).code == "rank-mismatch"
    assert fault(Matmul(), {"in": [floats(3, 3)]}).code == "bad-attribute"
    assert fault(Matmul(), {"in": [floats(3, 3), rng.integers(0, 9, (3, 3))]}).code == "dtype-mismatch"


# pattern, the same in letters, shapes, free sizes, whether ONNX needs one MatMul only
CASES = [
    ("b t d, b s d -> b t s", "btd,bsd->bts", [(2, 3, 5), (2, 4, 5)], [("B", "T", 5), ("B", "S", 5)], True),
    ("b t s, b s d -> b t d", "bts,bsd->btd", [(2, 3, 4), (2, 4, 5)], [("B", "T", "S"), ("B", "S", 5)], True),
    ("b s t, b s d -> b t d", "bst,bsd->btd", [(2, 4, 3), (2, 4, 5)], [("B", "S", "T"), ("B", "S", 5)], True),
    ("b t d, b s d -> b s t", "btd,bsd->bst", [(2, 3, 5), (2, 4, 5)], [("B", "T", 5), ("B", "S", 5)], True),
    ("b t d, d e -> b t e", "btd,de->bte", [(2, 3, 5), (5, 4)], [("B", "T", 5), (5, 4)], True),
    ("e d, b t d -> b t e", "ed,btd->bte", [(4, 5), (2, 3, 5)], [(4, 5), ("B", "T", 5)], True),
    ("... d, o d -> ... o", "...d,od->...o", [(2, 3, 5), (4, 5)], [("B", "T", 5), (4, 5)], True),
    ("d, d o -> o", "d,do->o", [(5,), (5, 4)], [(5,), (5, 4)], True),
    ("b t d, b s d -> b t s d", "btd,bsd->btsd", [(2, 3, 5), (2, 4, 5)], [("B", "T", 5), ("B", "S", 5)], False),
    ("b h t d, h d -> b h t", "bhtd,hd->bht", [(2, 3, 4, 5), (3, 5)], [("B", 3, "T", 5), (3, 5)], False),
    ("b t d, b d -> b t", "btd,bd->bt", [(2, 3, 5), (2, 5)], [("B", "T", 5), ("B", 5)], True),
    ("b ... d, b s d -> b ... s", "b...d,bsd->b...s", [(2, 5), (2, 4, 5)], [("B", 5), ("B", "S", 5)], True),
    ("b ... d, b s d -> b ... s", "b...d,bsd->b...s", [(2, 3, 5), (2, 4, 5)], [("B", "T", 5), ("B", "S", 5)], True),
    ("b ... d, b s d -> b ... s", "b...d,bsd->b...s", [(2, 3, 6, 5), (2, 4, 5)], [("B", "T", 6, 5), ("B", "S", 5)], False),
    ("b ... s, b s d -> b ... d", "b...s,bsd->b...d", [(2, 4), (2, 4, 5)], [("B", "S"), ("B", "S", 5)], True),
    ("b i, i j, b j -> b", "bi,ij,bj->b", [(2, 3), (3, 5), (2, 5)], [("B", 3), (3, 5), ("B", 5)], False),
    ("batch time width -> batch width", "btw->bw", [(2, 3, 5)], [("B", "T", 5)], False),
    ("b i i -> b i", "bii->bi", [(2, 3, 3)], [("B", 3, 3)], False),
    ("... t, ... t -> ...", "...t,...t->...", [(2, 3, 5), (2, 3, 5)], [("B", 3, 5), ("B", 3, 5)], False),
    ("a b c d, a b d e -> a b c e", "abcd,abde->abce", [(2, 3, 4, 5), (2, 3, 5, 1)], [("A", 3, "C", 5), ("A", 3, 5, 1)], True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_einsum_is_numpys(case, monkeypatch):
    text, letters, shapes, named, plain = case
    arrays = {"in": [floats(*s) for s in shapes]}
    want = np.einsum(letters, *arrays["in"])
    check_op(Einsum(pattern=text), arrays, {"out": want}, rtol=1e-4, atol=1e-5)
    kinds = []
    monkeypatch.setattr(onnx.checker, "check_model", lambda model: kinds.extend(n.op_type for n in model.graph.node))
    dims = {f"in.{i}": n for i, n in enumerate(named)}
    got = run_onnx(Einsum(pattern=text), arrays, dims)["out"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert ("MatMul" in kinds, "Einsum" in kinds) == (plain, not plain)


def test_einsum_keeps_letters_and_renames_words():
    assert Einsum(pattern="batch t d, d -> batch t").equation() == "atd,d->at"
    assert Einsum(pattern="a apple -> apple a").equation() == "ab->ba"


def test_matrix_product_needs_one_summed_axis():
    assert matrix_product(["i", "k", "l"], ["k", "l"], ["i"]) is None
    assert matrix_product(["b", "i", "k"], ["b", "k", "j"], ["b", "i", "j"]) == (False, False)
    assert matrix_product(["b", "i", "k"], ["k", "b", "j"], ["b", "i", "j"]) is None


def test_einsum_counts_multiplications():
    q, k = floats(2, 3, 5), floats(2, 4, 5)
    op = Einsum(pattern="b t d, b s d -> b t s")
    _, types, outputs = infer(op, {"in": [q, k]}, {"in.0": ("B", "T", 5), "in.1": ("B", "S", 5)})
    assert op.flops(types, outputs) == Dim.parse("10 * B * T * S")


def test_einsum_refuses_what_does_not_fit():
    q, k = floats(2, 3, 5), floats(2, 4, 6)
    wrong = fault(Einsum(pattern="b t d, b s d -> b t s"), {"in": [q, k]})
    assert wrong.code == "shape-mismatch" and wrong.ports == {"in.0": "`d` is 5", "in.1": "`d` is 6"}
    assert fault(Einsum(pattern="t d, b s d -> t s"), {"in": [q, k]}).code == "rank-mismatch"
    rest = Einsum(pattern="... t d, ... s d -> ... t s")
    assert fault(rest, {"in": [floats(2, 3, 5), floats(4, 3, 5)]}).code == "shape-mismatch"
    for text in ("b t d -> b", "b t d, b s e -> b x", "b t d, b s e -> b b", "b t d, b s (e f) -> b t",
                 "... t d, b s e -> t d", "b t d, b s e"):
        wrong = fault(Einsum(pattern=text), {"in": [q, k]})
        assert (wrong.code, wrong.attribute) == ("bad-attribute", "as"), text
    assert fault(Einsum(pattern="b d -> b"), {"in": [floats(2, 3) > 0]}).code == "dtype-mismatch"
    assert fault(Einsum(pattern="b d, b d -> b"), {"in": [floats(2, 3), rng.integers(0, 9, (2, 3))]}).code == "dtype-mismatch"
