"""Positions against published values, loops in numpy, and transformers."""

import math

import numpy as np
import pytest
import torch
from nnspec.ops.positions import Alibi, AlibiSlopes, RelativeBucket, Sinusoidal
from support import check_op, fault, run_onnx, run_torch

rng = np.random.default_rng(6)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def table(positions, width, base, spacing):
    """sin and cos at every position and frequency, entry by entry."""
    half = width // 2
    steps = [2 * i / width if spacing == "paper" else i / max(half - 1, 1) for i in range(half)]
    angle = positions[..., None] * np.array([base ** -s for s in steps])
    return np.sin(angle), np.cos(angle)


@pytest.mark.parametrize("spacing", ["paper", "tensor2tensor"])
@pytest.mark.parametrize(("width", "base"), [(6, 10000.0), (2, 10000.0), (10, 500.0)])
def test_sinusoidal_follows_the_paper_and_tensor2tensor(width, base, spacing):
    positions = rng.integers(0, 60, (2, 5))
    sin, cos = table(positions, width, base, spacing)
    interleaved = np.stack([sin, cos], -1).reshape(2, 5, width).astype(np.float32)
    halves = np.concatenate([sin, cos], -1).astype(np.float32)
    for layout, want in (("interleaved", interleaved), ("halves", halves)):
        op = Sinusoidal(width=width, layout=layout, spacing=spacing, base=base)
        for dims in (None, {"in": ("B", "S")}):
            check_op(op, {"in": positions}, {"out": want}, dims=dims, rtol=1e-4, atol=2e-5)
    check_op(Sinusoidal(width=width, layout="halves", spacing=spacing, base=base), {"in": positions[0]}, {"out": halves[0]},
             dims={"in": ("S",)}, rtol=1e-4, atol=2e-5)


def test_sinusoidal_last_frequency():
    at = np.array([7])
    paper = run_torch(Sinusoidal(width=8), {"in": at})["out"][0]
    assert paper[6] == pytest.approx(math.sin(7 / 1000), rel=1e-5)          # 10000^(-6/8)
    other = run_torch(Sinusoidal(width=8, layout="halves", spacing="tensor2tensor"), {"in": at})["out"][0]
    assert other[3] == pytest.approx(math.sin(7 / 10000), rel=1e-5)


def test_sinusoidal_agrees_between_targets_far_out():
    positions = np.array([0, 511, 4096, 32767])
    for spacing in ("paper", "tensor2tensor"):
        op = Sinusoidal(width=64, spacing=spacing)
        np.testing.assert_allclose(run_onnx(op, {"in": positions})["out"], run_torch(op, {"in": positions})["out"], atol=4e-3)


def test_sinusoidal_refuses_odd_widths():
    positions = rng.integers(0, 9, (2, 5))
    assert fault(Sinusoidal(width=5), {"in": positions}).attribute == "width"
    assert fault(Sinusoidal(width=0), {"in": positions}).attribute == "width"
    assert fault(Sinusoidal(width=4, base=0.0), {"in": positions}).attribute == "base"
    assert fault(Sinusoidal(width=4), {"in": floats(2, 5)}).code == "dtype-mismatch"


SLOPES = {8: [2.0 ** -i for i in range(1, 9)], 1: [2.0 ** -8], 6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
          12: [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625,
               0.70710678, 0.35355339, 0.17677670, 0.08838835]}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_slopes_are_the_authors(heads):
    check_op(AlibiSlopes(heads=heads), {}, {"out": np.array(SLOPES[heads], np.float32)})


@pytest.mark.parametrize("heads", [6, 8])
def test_alibi_falls_with_distance(heads):
    query, key = rng.integers(0, 50, (2, 3)), rng.integers(0, 50, (2, 5))
    want = -np.array(SLOPES[heads])[:, None, None] * abs(key[:, None, None, :] - query[:, None, :, None])
    check_op(Alibi(heads=heads), {"query": query, "key": key}, {"out": want.astype(np.float32)},
             dims={"query": ("B", "T"), "key": ("B", "S")})
    check_op(Alibi(heads=heads), {"query": query[0], "key": key[0]}, {"out": want[0].astype(np.float32)},
             dims={"query": ("T",), "key": ("S",)})
    assert fault(Alibi(heads=0), {"query": query, "key": key}).attribute == "heads"


def test_alibi_of_the_newest_query_is_zero():
    got = run_torch(Alibi(heads=6), {"query": np.array([[9]]), "key": np.arange(10)[None]})["out"]
    assert got.shape == (1, 6, 1, 10) and (got[..., -1] == 0).all() and (np.diff(got) > 0).all()


KNOWN = {True: {1: 17, -1: 1, -7: 7, -8: 8, 8: 24, -16: 10, 16: 26, -64: 14, 64: 30, -127: 15, 127: 31, -300: 15, 300: 31, 0: 0},
         False: {1: 0, 300: 0, 0: 0, -1: 1, -15: 15, -16: 16, -64: 26, -127: 31, -300: 31}}


@pytest.mark.parametrize("both_ways", [True, False])
def test_relative_bucket_of_known_distances(both_ways):
    distances = np.array(list(KNOWN[both_ways]))
    want = np.array([list(KNOWN[both_ways].values())])
    check_op(RelativeBucket(both_ways=both_ways), {"query": np.array([400]), "key": 400 + distances}, {"out": want},
             dims={"query": ("T",), "key": ("S",)})


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (32, 800), (64, 256), (8, 20), (12, 50), (32, 17)])
def test_relative_bucket_is_transformers(buckets, far, both_ways):
    from transformers.models.t5.modeling_t5 import T5Attention

    if not both_ways and far <= buckets // 2:
        far = buckets
    distances = np.arange(-300, 301)
    want = T5Attention._relative_position_bucket(torch.from_numpy(distances), both_ways, buckets, far).numpy()
    query, key = np.zeros((2, 1), np.int64), np.stack([distances, distances[::-1]])
    op = RelativeBucket(buckets=buckets, max_distance=far, both_ways=both_ways)
    check_op(op, {"query": query, "key": key}, {"out": np.stack([want, want[::-1]])[:, None]},
             dims={"query": ("B", "T"), "key": ("B", "S")})


def test_relative_bucket_refuses_too_few():
    arrays = {"query": rng.integers(0, 9, (2, 3)), "key": rng.integers(0, 9, (2, 5))}
    assert fault(RelativeBucket(buckets=2), arrays).attribute == "buckets"
    assert fault(RelativeBucket(buckets=33), arrays).attribute == "buckets"
    assert fault(RelativeBucket(buckets=1, both_ways=False), arrays).attribute == "buckets"
    assert fault(RelativeBucket(max_distance=8), arrays).attribute == "max_distance"
