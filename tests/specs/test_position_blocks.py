"""Blocks of positions against the modules of transformers and the papers' formulas, in PyTorch and in ONNX for every target."""

import math

import numpy as np
import onnx
import pytest
import torch
import zoo
from nnspec.ir.graph import walk
from nnspec.lang.diagnostic import Diagnostics
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

rng = np.random.default_rng(4)
SHORT, LONG = (tuple(map(float, rng.uniform(1, 9, 8))) for _ in range(2))
ORIGINAL = 64
KINDS = {                                            # block, its settings, the rope_parameters of transformers
    "rope": ("", {"rope_type": "default"}),
    "linear_rope": (", factor: 4", {"rope_type": "linear", "factor": 4.0}),
    "dynamic_rope": (", factor: 2.5, original: 64", {"rope_type": "dynamic", "factor": 2.5}),
    "yarn_rope": (", factor: 4, original: 64, beta_fast: 16, mscale: 0.7, mscale_all_dim: 0.3",
                  {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 0.3}),
    "longrope": (f", factor: 32, original: 64, short: {list(SHORT)}, long: {list(LONG)}",
                 {"rope_type": "longrope", "factor": 32.0, "short_factor": SHORT, "long_factor": LONG}),
    "llama3_rope": (", factor: 8, original: 64", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                  "high_freq_factor": 4.0}),
}


@pytest.fixture
def compiled(tmp_path):
    return lambda *args, **more: zoo.Written(tmp_path, *args, **more)


def written(compiled, kind, more="", head=16):
    return compiled(f'x: "float[B, 3, S, {head}]", positions: "int64[B, S]"',
                    f"out: {{block: {kind}, in: x, positions: positions, theta: 5e4{KINDS[kind][0]}{more}}}", "out")


def theirs(kind, x, positions, width=16):
    """Llama's rotary embedding in transformers; the first `width` entries turn."""
    bound = {} if kind in ("rope", "linear_rope", "dynamic_rope") else {"original_max_position_embeddings": ORIGINAL}
    config = LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=width, max_position_embeddings=ORIGINAL,
                         rope_parameters={"rope_theta": 5e4, **KINDS[kind][1], **bound})
    first, rest = torch.from_numpy(x[..., :width]), x[..., width:]
    cos, sin = LlamaRotaryEmbedding(config)(first, torch.from_numpy(positions))
    return np.concatenate([apply_rotary_pos_emb(first, first, cos, sin)[0].numpy(), rest], -1)


def heads(*shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("far", [0, 60, 9000], ids=["within", "across", "far beyond"])
@pytest.mark.parametrize("kind", KINDS)
def test_ropes_are_those_of_transformers(kind, far, compiled):
    """Within the original context, across its end, and past 4096, where one unit in the last place of a frequency, which is what
    two ways to take a power differ by, is 0.0005 of an angle."""
    spec = written(compiled, kind)
    x, positions = heads(2, 3, 7, 16), np.tile(np.arange(7), (2, 1)) + far
    want = theirs(kind, x, positions)
    for who, got in spec.runs({"x": x, "positions": positions}):
        np.testing.assert_allclose(got["out"], want, atol=1e-5 if who == "PyTorch" or far < 9000 else 1.5e-3, err_msg=who)


@pytest.mark.parametrize("kind", KINDS)
def test_part_of_a_head_turns(kind, compiled):
    """GPT-NeoX's and Phi's fraction: 16 entries of 40, and the rest stays."""
    spec = written(compiled, kind, ", fraction: 0.4", head=40)
    x, positions = heads(2, 3, 5, 40), np.tile(np.arange(5), (2, 1)) + 70
    want = theirs(kind, x, positions)
    assert np.array_equal(want[..., 16:], x[..., 16:])
    for who, got in spec.runs({"x": x, "positions": positions}):
        np.testing.assert_allclose(got["out"], want, atol=2e-5, err_msg=who)


@pytest.mark.parametrize("head, fraction, width", [(80, 0.4, 32), (96, 0.75, 72), (100, 0.29, 28), (64, 0.25, 16), (18, 0.35, 6)])
def test_a_fraction_of_a_head_is_rounded_down(head, fraction, width, compiled):
    spec = compiled(f'x: "float[B, 2, S, {head}]"', f"out: {{block: rope, in: x, fraction: {fraction}}}", "out")
    (op,) = (n.op for _, _, n in walk(spec.model.graph.root) if getattr(n.op, "name", "") == "rope_frequencies")
    assert op.width == width == int(head * fraction)


def test_an_odd_part_of_a_head_is_refused(compiled):
    with pytest.raises(Diagnostics) as caught:
        compiled('x: "float[B, 2, S, 10]"', "out: {block: rope, in: x, fraction: 0.5}", "out")
    assert [d.code for d in caught.value.items] == ["bad-attribute"]


@pytest.mark.parametrize("kind", KINDS)
def test_ropes_of_a_half_precision_model_have_float32_tables(kind, compiled):
    """At position 5000 a frequency in float16 would turn a pair by an angle that is off by a radian."""
    spec = written(compiled, kind, ", layout: halves")
    x, positions = heads(1, 3, 5, 16), np.arange(5)[None] + 5000
    want = theirs(kind, x, positions)
    for who, got in spec.runs({"x": x.astype(np.float16), "positions": positions}, "float16"):
        assert got["out"].dtype == np.float16
        np.testing.assert_allclose(got["out"], want, atol=1e-2, err_msg=who)
        graph = onnx.load(spec.folder / who / "model.onnx").graph
        made = [n.op_type for n in graph.node]
        assert made.count("RotaryEmbedding") == (who != "portable")
        if kind != "dynamic_rope":                  # its table depends on the input
            assert not {"Pow", "Reciprocal", "Div", "Exp"} & set(made)
            tables = [t for t in graph.initializer if list(t.dims) == [8]]
            assert [t.data_type for t in tables] == [onnx.TensorProto.FLOAT] * (2 if kind == "longrope" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_both_layouts_turn_the_same_pairs(kind, compiled, tmp_path):
    x, positions = heads(2, 3, 5, 16), rng.integers(0, 90, (2, 5))
    halves = written(compiled, kind)
    (_, want), *_ = halves.runs({"x": x, "positions": positions}, targets=[])
    order = np.arange(16).reshape(2, 8).T.reshape(-1)
    pairs = written(compiled, kind, ", layout: interleaved")
    for who, got in pairs.runs({"x": x[..., order], "positions": positions}):
        np.testing.assert_allclose(got["out"], want["out"][..., order], atol=1e-4, err_msg=who)


def factor_of(spec):
    (op,) = (n.op for _, _, n in walk(spec.model.graph.root) if getattr(n.op, "name", "") == "rope")
    return op.factor


YARN = [("factor: 4", 0.1 * math.log(4) + 1), ("factor: 1", 1), ("factor: 40, mscale: 0.707, mscale_all_dim: 0.707", 1),
        ("factor: 40, mscale: 1, mscale_all_dim: 0.5", (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)),
        ("factor: 40, mscale: 0.5", 0.1 * math.log(40) + 1), ("factor: 4, attention_factor: 1.25", 1.25)]


@pytest.mark.parametrize("settings, want", YARN)
def test_attention_factor_of_yarn(settings, want, compiled):
    """Section 3.4 of the paper: 0.1 ln(s) + 1."""
    spec = compiled('x: "float[B, 2, S, 16]"', f"out: {{block: yarn_rope, in: x, original: 64, {settings}}}", "out")
    assert factor_of(spec) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("settings, want", [("factor: 32", 1.1902380714238083), ("factor: 1", 1),
                                            ("factor: 32, attention_factor: 1.5", 1.5)])
def test_attention_factor_of_longrope(settings, want, compiled):
    """Phi-3 of 128k tokens: sqrt(1 + ln 32 / ln 4096)."""
    spec = compiled('x: "float[B, 2, S, 4]"',
                    f"out: {{block: longrope, in: x, original: 4096, short: [1, 1], long: [2, 3], {settings}}}", "out")
    assert factor_of(spec) == pytest.approx(want, rel=1e-12)


# learned positions that do not start at row 0

@pytest.mark.parametrize("pad", [1, 0, 5])
def test_roberta_counts_kept_tokens_from_the_row_after_padding(pad, compiled):
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

    spec = compiled('tokens: "int64[B, S]", x: "float[B, S, 6]"', f"""
  keep: {{op: not_equal, in: [tokens, {pad}]}}
  out: {{block: offset_positions, in: x, keep: keep, entries: 16, offset: {pad + 1}}}""", "out")
    zoo.stir(spec.module)
    tokens, x = rng.integers(6, 9, (4, 7)), heads(4, 7, 6)
    tokens[0, 3:] = tokens[1, :4] = tokens[2] = pad
    tokens[3, 2] = pad                                                         # a hole is padding too
    rows = RobertaEmbeddings.create_position_ids_from_input_ids(torch.from_numpy(tokens), pad).numpy()
    assert rows[0].tolist() == [pad + 1, pad + 2, pad + 3, *[pad] * 4] and rows[2].tolist() == [pad] * 7
    want = x + spec.module.state_dict()["out.table.weight"].numpy()[rows]
    for who, got in spec.runs({"tokens": tokens, "x": x}):
        np.testing.assert_allclose(got["out"], want, atol=1e-6, err_msg=who)


@pytest.mark.parametrize("masked", [True, False])
def test_opt_and_bart_start_at_row_2(masked, compiled):
    from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
    from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

    spec = compiled('x: "float[B, S, 6]", keep: "optional bool[B, S]"',
                    "out: {block: offset_positions, in: x, keep: keep, entries: 14, offset: 2}", "out")
    zoo.stir(spec.module)
    other = (OPTLearnedPositionalEmbedding if masked else BartLearnedPositionalEmbedding)(12, 6)
    other.weight.data.copy_(spec.module.state_dict()["out.table.weight"])
    x, keep = heads(3, 7, 6), np.arange(7) >= np.array([0, 3, 7])[:, None]
    with torch.no_grad():
        table = other(torch.from_numpy(keep).long()) if masked else other(torch.zeros(3, 7, dtype=torch.int64))
    arrays = {"x": x} | ({"keep": keep} if masked else {})
    with torch.no_grad():
        got = spec.module(**{k: torch.from_numpy(v) for k, v in arrays.items()})
    np.testing.assert_allclose(got, x + table.numpy(), atol=1e-6)
    for target in zoo.TARGETS if masked else ():
        spec.model.export(spec.folder / target, weights=spec.module, target=target, certify="none")
        np.testing.assert_allclose(zoo.nnspec.runtime.open(spec.folder / target, threads=1)(**arrays)["out"], x + table.numpy(),
                                   atol=1e-6, err_msg=target)


# fixed tables

def test_marian_has_sines_before_cosines_spaced_as_the_paper(compiled):
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    spec = compiled('x: "float[B, S, 10]"', "out: {block: sinusoidal_positions, in: x, layout: halves}", "out")
    other = MarianSinusoidalPositionalEmbedding(512, 10)
    other.weight.data.copy_(other.create_weight())
    x = heads(2, 511, 10)
    want = x + other.weight.detach().numpy()[:511]
    for who, got in spec.runs({"x": x}):
        np.testing.assert_allclose(got["out"], want, atol=1e-4, err_msg=who)
    assert want[0, 1, 1] - x[0, 1, 1] == pytest.approx(math.sin(1e4 ** -0.2), rel=1e-4)


def test_whisper_keeps_its_sinusoids_as_a_frozen_parameter(compiled):
    from transformers.models.whisper.modeling_whisper import sinusoids

    spec = compiled('x: "float[B, S, 12]"', """
  waves: {op: sinusoidal, in: {op: range, to: 1500}, width: 12, layout: halves, spacing: tensor2tensor}
  table: {op: parameter, shape: "[1500, 12]", init: waves, trainable: false}
  place: {op: position, like: x}
  placed: {op: embedding, in: place, weight: table}
  out: {op: add, in: [x, placed]}""", "out")
    table = sinusoids(1500, 12).numpy()
    (name, found), = spec.module.named_parameters()
    assert name == "table" and not found.requires_grad
    np.testing.assert_allclose(found, table, atol=2e-4)
    assert table[3, 5] == pytest.approx(math.sin(3e-4), rel=1e-4)              # the last frequency is 1 / 10000
    x = heads(1, 1500, 12)
    for who, got in spec.runs({"x": x}):
        np.testing.assert_allclose(got["out"], x + table, atol=2e-4, err_msg=who)


@pytest.mark.parametrize("count", [1, 3, 6, 8, 12, 16, 25, 40])
def test_alibi_is_that_of_bloom_for_any_number_of_heads(count, compiled):
    """BLOOM adds slope x key position, which differs from ALiBi by a number a row: softmax takes it out."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    spec = compiled('tokens: "int64[B, S]"', f"out: {{block: alibi, like: tokens, heads: {count}}}", "out")
    theirs = build_alibi_tensor(torch.ones(2, 9), count, torch.float32).view(2, count, 1, 9).numpy()
    seen = np.tril(np.ones((9, 9), bool))
    for who, got in spec.runs({"tokens": rng.integers(0, 9, (2, 9))}):
        assert got["out"].shape == (2, count, 9, 9) and not np.diagonal(got["out"], axis1=2, axis2=3).any()
        shifted = got["out"] - (theirs - np.diagonal(np.broadcast_to(theirs, got["out"].shape), axis1=2, axis2=3)[..., None])
        np.testing.assert_allclose(shifted[..., seen], 0, atol=1e-5, err_msg=who)
