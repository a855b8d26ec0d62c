"""The rotation of rotary embedding against pairs as complex numbers, and published values."""

import numpy as np
import pytest
from nnspec.ops.rope import Rope
from support import check_op, fault, run_onnx, run_torch

rng = np.random.default_rng(6)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def plain(width, theta=10000.0):
    return np.array([theta ** (-2 * i / width) for i in range(width // 2)]).astype(np.float32)


def turned(x, positions, layout, frequencies, factor=1.0):
    """Every pair of every token as a complex number; frequencies are [f] or [B, f]."""
    out = x.astype(np.float64).copy()
    rows, half = x.shape[:1] + x.shape[2:3], frequencies.shape[-1]
    for i in range(half):
        a, b = (i, i + half) if layout == "halves" else (2 * i, 2 * i + 1)
        spin = factor * np.exp(1j * (np.broadcast_to(positions, rows) * frequencies[..., i:i + 1])[:, None])
        pair = (x[..., a] + 1j * x[..., b]) * spin
        out[..., a], out[..., b] = pair.real, pair.imag
    return out.astype(np.float32)


ROPES = [(layout, pairs, kind) for layout in ("halves", "interleaved") for pairs in (4, 2, 1) for kind in ("BS", "S", "rows")]


@pytest.mark.parametrize(("layout", "pairs", "kind"), ROPES)
def test_rope_turns_pairs(layout, pairs, kind):
    """All of a head or its first entries; positions of every row or one for all; frequencies of every row or one for all."""
    x = floats(2, 3, 5, 8)
    where = rng.integers(0, 40, (5,) if kind == "S" else (2, 5))
    table = rng.uniform(0.01, 1, (2, pairs) if kind == "rows" else pairs).astype(np.float32)
    arrays = {"in": x, "positions": where, "frequencies": table}
    for factor in (1.0, 1.3):
        op, want = Rope(layout=layout, factor=factor), turned(x, where, layout, table, factor)
        names = {"in": ("B", 3, "S", 8), "positions": ("S",) if kind == "S" else ("B", "S")}
        for dims in (None, names | ({"frequencies": ("B", pairs)} if kind == "rows" else {})):
            check_op(op, arrays, {"out": want}, dims=dims, rtol=1e-4, atol=2e-5)
            apart = run_onnx(op, arrays, dims, form="decomposed")["out"]
            np.testing.assert_allclose(apart, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("layout", "want"), [("halves", [-1.984111, 1.959901, 2.462378, 4.019800]),
                                              ("interleaved", [-1.142640, 1.922076, 2.959851, 4.029800])])
def test_rope_of_a_known_query(layout, want):
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 1, 4)
    want = np.array(want, np.float32).reshape(1, 1, 1, 4)
    check_op(Rope(layout=layout), {"in": x, "positions": np.array([1]), "frequencies": plain(4)}, {"out": want})


def test_frequencies_of_a_half_precision_model_may_be_learned():
    """A `float` table is widened before it meets a position; 1/16 and the like are exact in float16."""
    x, where = floats(2, 3, 5, 16), rng.integers(0, 3000, (2, 5))
    table = (2.0 ** -rng.integers(0, 9, 8)).astype(np.float32)
    arrays, want = {"in": x, "positions": where, "frequencies": table}, turned(x, where, "halves", table)
    for form in ("RotaryEmbedding", "decomposed"):
        half = run_onnx(Rope(), arrays, dtype="float16", form=form)["out"]
        assert half.dtype == np.float16
        np.testing.assert_allclose(half, want, atol=1e-2)
    np.testing.assert_allclose(run_torch(Rope(), arrays, dtype="float16")["out"], want, atol=1e-2)


def test_rope_refuses_what_does_not_fit():
    good = {"in": floats(2, 3, 5, 8), "positions": rng.integers(0, 9, (2, 5)), "frequencies": floats(4)}
    assert "frequencies" in fault(Rope(), good | {"frequencies": floats(5)}).ports
    assert fault(Rope(), good | {"frequencies": floats(0)}).code == "shape-mismatch"
    assert fault(Rope(), good | {"positions": good["positions"][:1]}).code == "shape-mismatch"
    assert fault(Rope(), good | {"positions": good["positions"][0], "frequencies": floats(2, 4)}).code == "shape-mismatch"
    assert fault(Rope(), good | {"frequencies": rng.integers(0, 9, 4)}).code == "dtype-mismatch"
    assert fault(Rope(factor=float("nan")), good).attribute == "factor"
    assert "in" in fault(Rope(), good, {"in": (2, 3, 5, "D")}).ports
    assert "frequencies" in fault(Rope(), good, {"frequencies": ("F",)}).ports
