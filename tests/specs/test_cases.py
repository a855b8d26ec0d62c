"""Failures that people reported of comparable software, held at the level of whole specs: PyTorch, and ONNX for every target.

Others of their kinds are held where the op is tested (tests/ops), against `transformers` (tests/reference), or in test_agree.
"""

from itertools import product

import nnspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import zoo
from nnspec.ir.graph import walk
from nnspec.ir.parameters import state_shapes
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.errors import ArtifactErrors
from onnx import numpy_helper
from safetensors.torch import save_file
from zoo import TARGETS, USE


@pytest.fixture
def compiled(tmp_path):
    return lambda *args, **more: zoo.Written(tmp_path, *args, **more)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def graph_of(folder):
    return onnx.load(folder / "model.onnx").graph


# A3, A4: lengths of recurrent layers

LSTM = ('x: "float[B, T, 3]", length: "int64[B]", h: "float[2, B, 2]", c: "float[2, B, 2]"',
        "rnn: {op: lstm, in: x, length: length, state: h, cell: c, hidden: 2, direction: both}",
        "{out: rnn, state: rnn.state, cell: rnn.cell}")


def test_each_row_of_a_two_way_lstm_ends_at_its_length(compiled):
    """pytorch#41774: row i of a batch is row i alone, cut to its length; zeros after it; padding is not read."""
    spec, lengths = compiled(*LSTM), np.array([5, 2, 3])
    zoo.stir(spec.module)
    x, h, c = normal(3, 5, 3), normal(2, 3, 2, seed=1), normal(2, 3, 2, seed=2)
    cell = torch.nn.LSTM(3, 2, bidirectional=True, batch_first=True)
    cell.load_state_dict({k.removeprefix("rnn."): v for k, v in spec.module.state_dict().items()})
    other = x.copy()
    for i, n in enumerate(lengths):
        other[i, n:] = 1e3
    for given in (x, other):
        for who, got in spec.runs({"x": given, "length": lengths, "h": h, "c": c}):
            for i, n in enumerate(lengths):
                with torch.no_grad():
                    start = [torch.from_numpy(np.ascontiguousarray(v[:, i:i + 1])) for v in (h, c)]
                    alone = cell(torch.from_numpy(x[i:i + 1, :n]), start)
                np.testing.assert_allclose(got["out"][i, :n], alone[0][0], atol=1e-6, err_msg=who)
                assert not got["out"][i, n:].any()
                np.testing.assert_allclose(got["state"][:, i], alone[1][0][:, 0], atol=1e-6, err_msg=who)
                np.testing.assert_allclose(got["cell"][:, i], alone[1][1][:, 0], atol=1e-6, err_msg=who)


def test_a_row_of_length_0_keeps_its_initial_state(compiled):
    """onnxruntime#10768; ONNX Runtime's own LSTM would give zeros for such a row's states."""
    spec = compiled(*LSTM)
    x, h, c = normal(3, 5, 3), normal(2, 3, 2, seed=1), normal(2, 3, 2, seed=2)
    for who, got in spec.runs({"x": x, "length": np.array([5, 0, 3]), "h": h, "c": c}):
        assert not got["out"][1].any(), who
        np.testing.assert_array_equal(got["state"][:, 1], h[:, 1], err_msg=who)
        np.testing.assert_array_equal(got["cell"][:, 1], c[:, 1], err_msg=who)


@pytest.mark.parametrize("wrong", [6, -1])
def test_a_length_beyond_the_axis_is_refused_by_row_and_value(wrong, compiled):
    """pytorch#4582: by both, in words, and before anything is computed."""
    spec = compiled(*LSTM)
    arrays = {"x": normal(3, 5, 3), "length": np.array([3, wrong, 1]), "h": normal(2, 3, 2), "c": normal(2, 3, 2)}
    with pytest.raises(ValueError, match=f"row 1 has length {wrong}, and there are 5 steps"):
        zoo.run(spec.module, arrays, spec.names)
    spec.model.export(spec.folder / "onnx", weights=spec.module, certify="none")
    with pytest.raises(ArtifactErrors) as caught:
        nnspec.runtime.open(spec.folder / "onnx")(**arrays)
    assert "`length`" in str(caught.value) and f"{wrong}" in str(caught.value) and "row 1" in str(caught.value), str(caught.value)


# A6, A7, A11, A16, A17: who sees what

def test_scores_are_masked_before_the_softmax(compiled):
    """tensorflow#512: scores 1, 2, 3 of two valid keys weigh 0.268941, 0.731059 and 0."""
    spec = compiled('query: "float[B, 1]", memory: "float[B, S, 1]", length: "int64[B]"',
                    "read: {block: dot_attention, query: query, memory: memory, length: length}", "{weights: read.weights}")
    arrays = {"query": np.ones((2, 1), np.float32), "memory": np.tile(np.float32([[1], [2], [3]]), (2, 1, 1)), "length": np.array([2, 0])}
    for who, got in spec.runs(arrays):
        np.testing.assert_allclose(got["weights"], [[0.268941, 0.731059, 0], [0, 0, 0]], atol=1e-6, err_msg=who)


HEADS = 'query: "float[B, H, T, 8]", key: "float[B, G, S, 8]", value: "float[B, G, S, 8]"'


def attend(compiled, inputs, more, heads=4, groups=2):
    """The op alone over `heads` query heads and `groups` key heads."""
    inputs = inputs.replace("H,", f"{heads},").replace("G,", f"{groups},")
    return compiled(inputs, f"out: {{op: attention, query: query, key: key, value: value{more}}}", "out")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_row_that_sees_nothing_gives_zeros(dtype, compiled):
    """pytorch#103963: not NaN, and not the mean of the values that a finite mask would give."""
    spec = attend(compiled, HEADS + ', keep: "bool[B, T, S]"', ", keep: keep")
    kind = np.dtype(dtype)
    arrays = {"query": normal(2, 4, 2, 8).astype(kind), "key": normal(2, 2, 2, 8, seed=1).astype(kind),
              "value": normal(2, 2, 2, 8, seed=2).astype(kind), "keep": np.array([[[1, 1], [0, 0]], [[0, 0], [0, 1]]], bool)}
    for who, got in spec.runs(arrays, dtype):
        assert np.isfinite(got["out"]).all() and not got["out"][0, :, 1].any() and not got["out"][1, :, 0].any(), who
        want = np.repeat(arrays["value"][1, :, 1], 2, axis=0)
        np.testing.assert_allclose(got["out"][1, :, 1], want, rtol=2e-3 if dtype == "float16" else 1e-6, err_msg=who)


@pytest.mark.parametrize("more, want", [(", causal: true, window: 4", [1, 2, 3, 4, 4, 4, 4, 4]), (", causal: true", range(1, 9))])
def test_a_window_counts_the_query_itself(more, want, compiled):
    """transformers#39408: equal scores and one-hot values show how many keys each row sees."""
    spec = attend(compiled, HEADS, more, heads=2)
    one_hot = np.tile(np.eye(8, dtype=np.float32), (1, 2, 1, 1))
    for who, got in spec.runs({"query": np.zeros((1, 2, 8, 8), np.float32), "key": normal(1, 2, 8, 8), "value": one_hot}):
        assert (got["out"] > 1e-6).sum(-1).tolist() == [[[*want]] * 2], who


def test_query_heads_of_a_group_stand_side_by_side(compiled):
    """onnx PR#7274: with two key heads, query heads 0 and 1 read the first, 2 and 3 the second."""
    value = np.stack([np.zeros((5, 8)), np.ones((5, 8))])[None].astype(np.float32)
    for who, got in attend(compiled, HEADS, "").runs({"query": normal(1, 4, 3, 8), "key": normal(1, 2, 5, 8, seed=1), "value": value}):
        np.testing.assert_allclose(got["out"].mean((0, 2, 3)), [0, 0, 1, 1], atol=1e-6, err_msg=who)


def test_keep_is_true_where_a_key_is_seen(compiled):
    """pytorch PR#170415: a key that is masked may hold anything."""
    spec = attend(compiled, HEADS + ', keep: "bool[B, S]"', ", keep: keep")
    key, value = normal(1, 2, 3, 8, seed=1), normal(1, 2, 3, 8, seed=2)
    arrays = {"query": normal(1, 4, 2, 8), "key": key, "value": value, "keep": np.array([[True, True, False]])}
    other = arrays | {"value": value * np.float32([1, 1, 1e4])[:, None], "key": key * np.float32([1, 1, 1e3])[:, None]}
    for (who, a), (_, b) in zip(spec.runs(arrays), spec.runs(other), strict=True):
        np.testing.assert_allclose(a["out"], b["out"], atol=1e-6, err_msg=who)


CAUSAL = {name: "tokens" for name in ("gpt2", "llama-3-8b", "mistral-7b", "hard/gemma2", "hard/moe", "hard/mla", "hard/openelm",
                                      "hard/padding", "hard/transformer-xl", "hard/mamba")}
CAUSAL |= {name: "target" for name in ("transformer-base", "hard/t5", "additive-seq2seq", "luong", "g2p", "hard/tied", "hard/pointer")}


@pytest.mark.parametrize("name", CAUSAL)
def test_no_output_depends_on_a_later_token(name, tmp_path):
    sizes = {d: 3 if d == "B" else 7 for d in zoo.free(name)}
    arrays, port = zoo.draw(name, sizes, seed=3, short=False), CAUSAL[name]
    later = arrays | {port: arrays[port].copy()}
    later[port][:, 4:] = (later[port][:, 4:] + 1) % (8 if name == "hard/pointer" else 20)
    zoo.model(name).export(tmp_path, weights=zoo.stirred(name), certify="none")
    artifact = nnspec.runtime.open(tmp_path, threads=1)
    for run in (lambda x: zoo.run(zoo.stirred(name), x, zoo.outputs(name)), lambda x: artifact(**x)):
        a, b = run(arrays)["logits"], run(later)["logits"]
        np.testing.assert_allclose(a[:, :4], b[:, :4], rtol=0, atol=1e-5)
        assert np.abs(a[:, 4:] - b[:, 4:]).max() > 1e-3


# A8: half precision

@pytest.mark.parametrize("bias", ["", ", score_bias: bias"], ids=["masks", "masks and a bias"])
@pytest.mark.parametrize("target", TARGETS)
def test_masks_meet_before_they_are_numbers_in_half_precision(target, bias, compiled):
    """transformers PR#17306: causal, padding and a row mask together, with scores of hundreds: never NaN, and near float32."""
    table = "place: {op: position, like: x}\n  bias: {block: alibi, like: place, heads: 2}\n  " if bias else ""
    spec = compiled('x: "float[B, S, 8]", length: "int64[B]", keep: "bool[B, S]"', table +
                    f"out: {{block: multi_head_attention, in: x, heads: 2, causal: true, length: length, keep: keep{bias}}}", "out")
    with torch.no_grad():
        for name in ("query", "key"):
            spec.module.get_submodule(f"out.{name}").weight.mul_(6)
    patterns = [(n, keep) for n in range(4) for keep in product([False, True], repeat=3)]
    arrays = {"x": normal(len(patterns), 3, 8), "length": np.array([n for n, _ in patterns]), "keep": np.array([k for _, k in patterns])}
    want = zoo.run(spec.module, arrays, ("out",))
    (_, got), = spec.runs(arrays | {"x": arrays["x"].astype(np.float16)}, "float16", [target])
    zoo.close(got, want, 1e-2, 1e-3, target)
    blind = ~(np.tril(np.ones((3, 3), bool)) & (arrays["keep"] & (np.arange(3) < arrays["length"][:, None]))[:, None]).any(-1)
    bias = spec.module.get_submodule("out.output").bias.detach().numpy().astype(np.float16)
    np.testing.assert_array_equal(got["out"][blind], np.broadcast_to(bias, got["out"][blind].shape))


# A9: padding in front

PLACES = {
    "learned": ("placed: {block: learned_positions, in: embed, entries: 16, keep: keep}", ""),
    "sinusoidal": ("placed: {block: sinusoidal_positions, in: embed, keep: keep}", ""),
    "rope": ("placed: {op: scale, in: embed, by: 1}\n  place: {op: position, like: tokens, keep: keep}",
             ", position: {block: rope, positions: place}"),
    "alibi": ("placed: {op: scale, in: embed, by: 1}\n  slopes: {block: alibi, like: tokens, heads: 3}", ", score_bias: slopes"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_padding_in_front_shifts_no_position(kind, compiled):
    """transformers#3021: the last logits of a row in a batch are those of the row alone."""
    placed, more = PLACES[kind]
    spec = compiled('tokens: "int64[B, S]", keep: "bool[B, S]"', f"""
  embed: {{op: embedding, in: tokens, entries: 20, width: 12}}
  {placed}
  out: {{block: multi_head_attention, in: placed, heads: 3, causal: true, keep: keep{more}}}""", "out")
    zoo.stir(spec.module)
    lengths, tokens = [6, 2, 4, 1], np.random.default_rng(5).integers(0, 20, (4, 6))
    keep = np.arange(6) >= 6 - np.array(lengths)[:, None]
    for who, got in spec.runs({"tokens": tokens, "keep": keep}):
        for i, n in enumerate(lengths):
            alone = zoo.run(spec.module, {"tokens": tokens[i:i + 1, 6 - n:], "keep": np.ones((1, n), bool)}, ("out",))
            np.testing.assert_allclose(got["out"][i, -1], alone["out"][0, -1], atol=1e-5, err_msg=f"{who}, row {i}")


# A12: the two layouts of rotary embedding

def test_permuted_rows_turn_one_rope_layout_into_the_other(compiled):
    """transformers#25199: rows of queries and keys, and their biases, reordered within each head."""
    graph = "out: {{block: multi_head_attention, in: x, heads: 3, causal: true, position: {{block: rope, layout: {}}}}}"
    halves, pairs = (compiled('x: "float[B, S, 24]"', graph.format(layout), "out") for layout in ("halves", "interleaved"))
    zoo.stir(halves.module)
    state = {k: v.clone() for k, v in halves.module.state_dict().items()}
    order = torch.arange(24).view(3, 2, 4).transpose(1, 2).reshape(-1)          # entry i and i + 4 of a head become neighbours
    for name in ("query", "key"):
        for kind in ("weight", "bias"):
            state[f"out.{name}.{kind}"] = state[f"out.{name}.{kind}"][order]
    x = {"x": normal(2, 7, 24)}
    want = zoo.run(halves.module, x, ("out",))
    pairs.module.load_state_dict(halves.module.state_dict())
    assert np.abs(zoo.run(pairs.module, x, ("out",))["out"] - want["out"]).max() > 1e-2
    pairs.module.load_state_dict(state)
    for who, got in pairs.runs(x):
        np.testing.assert_allclose(got["out"], want["out"], atol=1e-5, err_msg=who)


# A15: widths of heads

@pytest.mark.parametrize("width, heads", [(512, 12), (1600, 48)])
def test_heads_that_do_not_divide_the_width_are_refused(width, heads, compiled):
    """ludwig PR#3066: both numbers and the line."""
    with pytest.raises(Diagnostics) as caught:
        compiled(f'x: "float[B, S, {width}]"', f"a: {{block: multi_head_attention, in: x, heads: {heads}}}", "a")
    (found,) = caught.value.items
    assert found.code == "indivisible" and str(width) in found.headline and str(heads) in found.headline and found.labels


@pytest.mark.parametrize("width, heads", [(1792, 24), (2560, 32)])
def test_a_given_head_width_needs_no_division(width, heads, tmp_path):
    (tmp_path / "a.yaml").write_text(f"nnspec: 1\nuse: {USE}\ninputs: {{x: 'float[B, S, {width}]'}}\noutputs: a\n"
                                     f"graph: {{a: {{block: multi_head_attention, in: x, heads: {heads}, head_width: 128}}}}\n")
    shapes = state_shapes(nnspec.load(tmp_path / "a.yaml").graph)
    assert shapes["a.query.weight"] == (heads * 128, width) and shapes["a.output.weight"] == (width, heads * 128)


# A18: one matrix, stored once

@pytest.mark.parametrize("target", TARGETS)
def test_a_tied_matrix_is_stored_once_and_serves_both_ends(target, tmp_path):
    """optimum PR#1326: exporters store it twice, once transposed."""
    model = nnspec.load("gpt2", sizes=zoo.GPT | {"vocab": 1000, "width": 66, "layers": 1})
    module = zoo.stir(model.module(seed=1))
    model.export(tmp_path, weights=module, target=target, certify="none", without=("keep",))
    proto = onnx.load(tmp_path / "model.onnx")
    large = [x for x in proto.graph.initializer if np.prod(x.dims) == 1000 * 66]
    assert len(large) == 1
    files = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert files <= 1.05 * 4 * model.parameters + 65536                          # the graph itself is a few dozen KiB
    changed = normal(1000, 66, seed=7) / 8
    old = numpy_helper.to_array(large[0])
    turned = changed if old.shape == changed.shape else np.ascontiguousarray(changed.T)
    large[0].CopyFrom(numpy_helper.from_array(turned, large[0].name))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    arrays = {"tokens": np.random.default_rng(2).integers(0, 1000, (2, 5)), "length": np.array([5, 2])}
    (got,) = session.run(None, arrays)
    with torch.no_grad():
        dict(module.named_parameters())["embed.weight"].copy_(torch.from_numpy(changed))
    zoo.close({"logits": got}, zoo.run(module, arrays, ("logits",)), 1e-5, 1e-5)


def test_layers_that_share_are_stored_once(tmp_path):
    manifest = zoo.model("hard/albert").export(tmp_path, init=1, certify="none")
    shapes = [tuple(x.dims) for x in graph_of(tmp_path).initializer]
    assert sum(np.prod(s) == 96 * 24 for s in shapes) == 4                       # up and down of two groups, for twelve layers
    assert manifest.parameters == zoo.model("hard/albert").parameters


# A22: Gemma

def test_a_constant_is_rounded_to_the_dtype_of_the_model(compiled):
    """transformers PR#29402: sqrt(3072) is 55.5 in bfloat16 and 55.4375 in float16."""
    spec = compiled('x: "float[B, 1]"', "out: {op: scale, in: x, by: sqrt(3072), round: dtype}", "out")
    assert spec.model.module(dtype=torch.bfloat16)(torch.ones(1, 1, dtype=torch.bfloat16)).item() == 55.5
    assert spec.bare({"x": np.ones((1, 1), np.float32)})["out"].item() == pytest.approx(55.425626, rel=1e-7)
    for who, got in spec.runs({"x": np.ones((1, 1), np.float16)}, "float16"):
        assert got["out"].item() == 55.4375, who


@pytest.mark.parametrize("function, want", [("gelu", 0.841345), ("gelu_tanh", 0.841192)])
def test_the_two_gelus_are_two(function, want, compiled):
    spec = compiled('x: "float[B]"', f"out: {{op: activate, in: x, function: {function}}}", "out")
    for who, got in spec.runs({"x": np.ones(1, np.float32)}):
        assert got["out"].item() == pytest.approx(want, abs=1e-6), who


def test_a_norm_with_offset_1_and_weight_0_is_the_plain_norm(compiled):
    spec = compiled('x: "float[B, 6]"', "out: {op: rms_norm, in: x, eps: 1e-6, offset: 1}", "out")
    x = normal(3, 6)
    assert not spec.module.state_dict()["out.weight"].any()
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    for who, got in spec.runs({"x": x}):
        np.testing.assert_allclose(got["out"], want, rtol=1e-6, err_msg=who)


# A23: eps

@pytest.mark.parametrize("eps, want", [("1e-6", 0.7071068), ("1e-5", 0.3015113)])
def test_eps_reaches_every_target(eps, want, compiled):
    """llama#771: the norm of a vector of 1e-3."""
    spec = compiled('x: "float[B, 8]"', f"out: {{op: rms_norm, in: x, eps: {eps}}}", "out")
    for who, got in spec.runs({"x": np.full((1, 8), 1e-3, np.float32)}):
        np.testing.assert_allclose(got["out"], want, rtol=1e-6, err_msg=who)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_an_eps_that_half_precision_cannot_hold_gives_no_nan(op, compiled):
    spec = compiled('x: "float[B, 8]"', f"out: {{op: {op}, in: x, eps: 1e-12}}", "out")
    for who, got in spec.runs({"x": np.zeros((1, 8), np.float16)}, "float16"):
        assert not got["out"].any(), who


# A24: where the norm stands

LAYER = """
  out:
    block: {}
    in: x
    norm: {{op: layer_norm}}
    attention: {{block: multi_head_attention, heads: 1}}
    ffn: {{block: plain_ffn, hidden: 3}}"""


@pytest.mark.parametrize("block, want", [("pre_norm_layer", [1, 3]), ("post_norm_layer", [-1, 1]), ("sandwich_layer", [1, 3]),
                                         ("residual_post_norm_layer", [1, 3]), ("parallel_layer", [1, 3])])
def test_a_layer_whose_parts_give_zero_keeps_or_norms_its_input(block, want, compiled):
    """pytorch#61165: the residual of a pre-norm layer is its input, not the norm of it."""
    spec = compiled('x: "float[B, S, 2]"', LAYER.format(block), "out")
    with torch.no_grad():
        for name, parameter in spec.module.named_parameters():
            if ".attention.output." in name or ".ffn.down." in name:
                parameter.zero_()
    for who, got in spec.runs({"x": np.float32([[[1, 3]]])}):
        np.testing.assert_allclose(got["out"][0, 0], want, atol=1e-4, err_msg=who)


NORMS = {"gpt2": (2, 1), "bert-base": (2, 1), "llama-3-8b": (2, 1), "transformer-base": (2 + 3, 0), "hard/gemma2": (4, 1),
         "hard/vit": (2, 1)}                     # of a layer, and outside: an encoder's and a decoder's; after BERT's embedding


@pytest.mark.parametrize("name", NORMS)
def test_a_stack_has_its_norms_and_none_twice(name):
    """joeynmt PR#169: a pre-norm stack ends in one norm, a post-norm stack in none of its own."""
    per_layer, outside = NORMS[name]
    found = [path for path, _, node in walk(zoo.model(name).graph.root) if getattr(node.op, "name", "") in ("layer_norm", "rms_norm")]
    inside = {path for path in found if "{i}" in path}
    assert (len(inside), len(found) - sum("{i}" in p for p in found)) == (per_layer, outside)


# A25: transposed matrices

STORED = ('x: "float[B, 2]"', "out: {op: linear, in: x, width: 2, bias: false}", "out")


def test_a_square_matrix_is_turned_because_the_mapping_says_so(compiled, tmp_path):
    """nanoGPT#190: W = [[1, 2], [3, 4]] stored as [in, out] takes [1, 0] to [1, 2]; shapes cannot tell."""
    save_file({"w": torch.tensor([[1., 2.], [3., 4.]])}, tmp_path / "w.safetensors")
    for rule, want in [('{from: w, as: "i o -> o i"}', [1, 2]), ("w", [1, 3])]:
        spec = compiled(*STORED, more=f"checkpoint: {{tensors: {{out.weight: {rule}}}}}")
        spec.module = spec.model.module(weights=tmp_path / "w.safetensors")
        for who, got in spec.runs({"x": np.float32([[1, 0]])}):
            assert got["out"].tolist() == [want], who


def test_a_rectangular_matrix_that_would_fit_turned_says_so(compiled, tmp_path):
    save_file({"w": torch.ones(3, 2)}, tmp_path / "w.safetensors")
    graph = "out: {op: linear, in: x, width: 2, bias: false}"
    spec = compiled('x: "float[B, 3]"', graph, "out", more="checkpoint: {tensors: {out.weight: w}}")
    with pytest.raises(Diagnostics) as caught:
        spec.model.module(weights=tmp_path / "w.safetensors")
    text = " ".join(n for d in caught.value.items for n in (d.headline, *d.notes, *d.helps))
    assert "[2, 3]" in text and "[3, 2]" in text and "transpose" in text
