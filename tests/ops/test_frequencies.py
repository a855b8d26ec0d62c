"""Frequencies of rotary embedding against the papers' formulas in numpy and against transformers' tables."""

import math

import numpy as np
import pytest
import torch
from nnspec.ops.frequencies import DynamicFrequencies, Llama3Frequencies, LongropeFrequencies, RopeFrequencies, YarnFrequencies
from support import check_op, fault, run_onnx, run_torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

rng = np.random.default_rng(8)
TARGETS = ("ort-cpu", "ort-cuda", "portable")


def theirs(kind, width, *, theta=1e4, length=None, positions=4096, **settings):
    """The table of transformers, and its attention factor."""
    given = {"rope_type": kind, "rope_theta": theta, **settings}
    config = LlamaConfig(hidden_size=width * 2, num_attention_heads=2, head_dim=width, max_position_embeddings=positions,
                         rope_parameters=given)
    table, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return table.numpy(), factor


def plain(width, theta):
    return theta ** -(np.arange(0, width, 2) / width)


def within(op, want, arrays=None):
    """PyTorch and every target give the table to the last bits of float32."""
    assert want.dtype == np.float32
    check_op(op, arrays or {}, {"out": want}, targets=TARGETS, rtol=6e-7, atol=0)


@pytest.mark.parametrize(("width", "theta"), [(2, 1e4), (16, 1e4), (80, 1e4), (128, 5e5), (64, 1e6), (6, 500.0)])
def test_plain_frequencies(width, theta):
    within(RopeFrequencies(width=width, theta=theta), plain(width, theta).astype(np.float32))


@pytest.mark.parametrize("factor", [4.0, 2.5])
@pytest.mark.parametrize(("width", "theta"), [(16, 1e4), (80, 1e6)])
def test_position_interpolation_divides_every_frequency(width, theta, factor):
    op = RopeFrequencies(width=width, theta=theta, factor=factor)
    within(op, (plain(width, theta) / factor).astype(np.float32))
    within(op, theirs("linear", width, theta=theta, factor=factor)[0])


def yarn(width, theta, factor, original, fast, slow, truncate):
    """Equations 19 to 23 of the paper, ramp over the number of the pair as the authors' code has it."""
    pair = [width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta)) for turns in (fast, slow)]
    low, high = (math.floor(pair[0]), math.ceil(pair[1])) if truncate else pair
    low, high = max(low, 0), min(high, width - 1)
    gamma = 1 - np.clip((np.arange(width // 2) - low) / (high - low or 0.001), 0, 1)
    return (plain(width, theta) * (gamma + (1 - gamma) / factor)).astype(np.float32)


YARNS = [(128, 1e6, 4.0, 32768, {}), (64, 1e4, 40.0, 4096, {}), (64, 1.5e5, 32.0, 4096, {"truncate": False}),
         (80, 1e4, 16.0, 2048, {"beta_fast": 16.0, "beta_slow": 2.0}), (8, 1e4, 2.0, 7, {})]


@pytest.mark.parametrize(("width", "theta", "factor", "original", "more"), YARNS)
def test_yarn(width, theta, factor, original, more):
    settings = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True} | more
    op = YarnFrequencies(width=width, theta=theta, factor=factor, original=original, **settings)
    want = yarn(width, theta, factor, original, *settings.values())
    check_op(op, {}, {"out": want}, targets=TARGETS, rtol=2e-6)
    within(op, theirs("yarn", width, theta=theta, factor=factor, original_max_position_embeddings=original, **settings)[0])


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    table = run_torch(YarnFrequencies(width=64, theta=1e4, factor=40.0, original=4096), {})["out"]
    ratio = table / plain(64, 1e4)
    np.testing.assert_allclose(ratio[:11], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[23:], 1 / 40, rtol=1e-6)
    assert (np.diff(ratio[10:24]) < 0).all()


def llama3(width, theta, factor, low, high, original):
    """Wavelengths below original / high stay, above original / low are stretched, and between them are mixed."""
    out = []
    for f in plain(width, theta):
        wavelength = 2 * math.pi / f
        smooth = (original / wavelength - low) / (high - low)
        out.append(f if wavelength < original / high else f / factor if wavelength > original / low
                   else (1 - smooth) * f / factor + smooth * f)
    return np.array(out, np.float32)


@pytest.mark.parametrize(("width", "theta", "factor", "low", "high", "original"), [
    (128, 5e5, 8.0, 1.0, 4.0, 8192), (64, 5e5, 32.0, 1.0, 4.0, 8192), (80, 1e4, 3.0, 1.5, 6.0, 777)])
def test_llama3(width, theta, factor, low, high, original):
    op = Llama3Frequencies(width=width, theta=theta, factor=factor, low=low, high=high, original=original)
    check_op(op, {}, {"out": llama3(width, theta, factor, low, high, original)}, targets=TARGETS, rtol=2e-6)
    within(op, theirs("llama3", width, theta=theta, factor=factor, low_freq_factor=low, high_freq_factor=high,
                      original_max_position_embeddings=original, positions=131072)[0])


@pytest.mark.parametrize(("width", "theta", "factor", "original"), [(16, 1e4, 2.0, 8), (80, 1e6, 3.5, 2048)])
def test_dynamic_theta_grows_with_the_length_of_a_row(width, theta, factor, original):
    op = DynamicFrequencies(width=width, theta=theta, factor=factor, original=original)
    for length in (1, original, original + 1, 3 * original, 20 * original):
        grown = theta * (factor * max(length, original) / original - (factor - 1)) ** (width / (width - 2))
        for positions, dims in ((np.arange(length), ("S",)), (np.arange(length)[None], ("B", "S"))):
            want = np.broadcast_to(plain(width, grown).astype(np.float32), (*positions.shape[:-1], width // 2))
            check_op(op, {"positions": positions}, {"out": want}, {"positions": dims}, TARGETS, rtol=3e-6)
            other, _ = theirs("dynamic", width, theta=theta, factor=factor, length=torch.tensor(length), positions=original)
            check_op(op, {"positions": positions}, {"out": np.broadcast_to(other, want.shape)}, targets=TARGETS, rtol=1e-6)


def test_rows_of_a_batch_have_their_own_length():
    """Two rows of 12 and 5 tokens, padded in front: each has the table that it has alone."""
    short, long = (tuple(map(float, rng.uniform(1, 9, 4))) for _ in range(2))
    rows = np.stack([np.arange(12), np.maximum(np.arange(12) - 7, 0)])
    for op in (DynamicFrequencies(width=8, factor=4.0, original=8), LongropeFrequencies(short=short, long=long, original=8)):
        alone = np.stack([run_torch(op, {"positions": np.arange(n)})["out"] for n in (12, 5)])
        check_op(op, {"positions": rows}, {"out": alone}, {"positions": ("B", "S")}, TARGETS)
        assert (alone[0, 1:] < alone[1, 1:]).all() or op.name != "dynamic_frequencies"


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 9000])
def test_longrope_divides_by_the_list_of_the_length(length):
    short, long = (tuple(map(float, rng.uniform(1, 60, 48))) for _ in range(2))
    op = LongropeFrequencies(short=short, long=long, original=4096)
    want = (plain(96, 1e4) / np.array(long if length > 4096 else short)).astype(np.float32)
    within(op, want, {"positions": np.arange(length)})
    other, _ = theirs("longrope", 96, length=length, positions=131072, short_factor=short, long_factor=long, factor=32.0,
                      original_max_position_embeddings=4096)
    within(op, other, {"positions": np.arange(length)})


def test_tables_are_the_same_bits_in_pytorch_and_onnx():
    """Angles at position 100000 hang on the last bits: at most one entry in ten is off, by two units in the last place."""
    ops = [RopeFrequencies(width=128), RopeFrequencies(width=128, theta=5e5), RopeFrequencies(width=96, factor=4.0),
           YarnFrequencies(width=128, theta=1e6, factor=4.0, original=32768),
           Llama3Frequencies(width=128, theta=5e5, factor=8.0, original=8192)]
    for op in ops:
        ours, onnx = run_torch(op, {})["out"], run_onnx(op, {})["out"]
        assert ours.dtype == onnx.dtype == np.float32
        steps = np.abs(ours.view(np.int32) - onnx.view(np.int32))
        assert steps.max() <= 2 and (steps > 0).mean() <= 0.1, (op, steps)


def test_frequencies_stay_float32_in_a_half_precision_model():
    for op in (RopeFrequencies(width=16), YarnFrequencies(width=16, factor=4.0, original=64)):
        for got in (run_torch(op, {}, dtype="float16")["out"], run_onnx(op, {}, dtype="float16")["out"]):
            assert got.dtype == np.float32
    op = DynamicFrequencies(width=16, factor=4.0, original=64)
    assert run_onnx(op, {"positions": np.arange(99)}, dtype="float16")["out"].dtype == np.float32


def test_frequencies_refuse_what_has_no_meaning():
    assert fault(RopeFrequencies(width=5), {}).attribute == "width"
    assert fault(RopeFrequencies(width=4, theta=-1.0), {}).attribute == "theta"
    assert fault(RopeFrequencies(width=4, factor=0.0), {}).attribute == "factor"
    assert fault(YarnFrequencies(width=4, theta=1.0, original=8), {}).attribute == "theta"
    assert fault(YarnFrequencies(width=4, original=0), {}).attribute == "original"
    assert fault(YarnFrequencies(width=4, original=8, beta_slow=32.0), {}).attribute == "beta_fast"
    assert fault(Llama3Frequencies(width=4, original=8, low=4.0), {}).attribute == "high"
    at = {"positions": np.arange(3)}
    assert fault(DynamicFrequencies(width=2, original=8), at).attribute == "width"
    assert fault(LongropeFrequencies(short=(1.0, 2.0), long=(1.0,), original=8), at).attribute == "long"
    assert fault(LongropeFrequencies(short=(1.0, 0.0), long=(1.0, 2.0), original=8), at).attribute == "short"
    assert fault(LongropeFrequencies(short=3.0, long=(1.0, 2.0), original=8), at).attribute == "short"
