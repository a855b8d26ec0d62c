"""The models of the library: parameters exactly as published, or as their papers' sizes give them."""

from pathlib import Path

import pytest
from nnspec import Diagnostics
from nnspec.ir.parameters import count, parameter_table, state_shapes
from nnspec.pipeline import front

MODELS = Path(__file__).parents[2] / "specs" / "models"


def linear(i, o, bias=True):
    return i * o + bias * o


def gru(i, h):
    return 3 * (linear(i, h) + linear(h, h))


def lstm(i, h):
    return 4 * (linear(i, h) + linear(h, h))


def gpt(vocab, width, layers, positions):
    """Radford et al. 2019: tied logits; a layer has 12 d^2 weights, 9 d biases and two norms."""
    return (vocab + positions) * width + layers * (12 * width**2 + 13 * width) + 2 * width


def bert(vocab, width, layers, hidden, *, positions=512, segments=2):
    layer = 4 * linear(width, width) + linear(width, hidden) + linear(hidden, width) + 4 * width
    return (vocab + positions + segments) * width + 2 * width + layers * layer


def llama(vocab, width, layers, kv_width, hidden):
    """Touvron et al. 2023, arXiv:2302.13971: no biases, norms with a weight, logits of their own."""
    attention = 2 * width**2 + 2 * width * kv_width
    return 2 * vocab * width + layers * (attention + 3 * width * hidden + 2 * width) + width


def decoder(vocab, width, layers, attention, ffn, norms=2, tied=True, norm=1):
    """Norms before what they feed, `norms` of them in a layer and one after all, of `norm` vectors each."""
    return (1 if tied else 2) * vocab * width + layers * (attention + ffn + norms * norm * width) + norm * width


def grouped(width, head, heads, kv_heads):
    """Query and output, key and value, without biases; all key heads together are as wide as all value heads."""
    return 2 * width * head * heads + 2 * width * head * kv_heads


def transformer(vocab, width, layers, hidden):
    """Vaswani et al. 2017: projections without biases, one table for three uses, norms with weight and bias."""
    ffn, norm, attention = linear(width, hidden) + linear(hidden, width), 2 * width, 4 * width**2
    return vocab * width + layers * (attention + ffn + 2 * norm) + layers * (2 * attention + ffn + 3 * norm)


def additive(vocab, embed, hidden, align):
    """Bahdanau et al. 2015: two tables, three GRUs, the alignment model, the first state, the readout and the logits."""
    scores = linear(hidden, align, False) + linear(2 * hidden, align, False) + align
    decoder = scores + gru(embed + 2 * hidden, hidden) + linear(3 * hidden + embed, embed)
    return 2 * vocab * embed + 2 * gru(embed, hidden) + linear(hidden, hidden, False) + decoder + linear(embed, vocab)


def luong(vocab, embed, hidden, layers):
    """Luong et al. 2015: two tables, two stacks (the second is also fed the last output), W_a, W_c and the logits."""
    stacks = lstm(embed, hidden) + lstm(embed + hidden, hidden) + 2 * (layers - 1) * lstm(hidden, hidden)
    return 2 * vocab * embed + stacks + hidden**2 + linear(2 * hidden, hidden, False) + linear(hidden, vocab, False)


def encoder_decoder(width, layers, hidden, *, key_bias=True, norm=2, bias=True):
    """Layers of an encoder and of a decoder: attention, attention over the encoder, feed-forward, a norm for each."""
    attention = 4 * linear(width, width, bias) - (0 if key_bias or not bias else width)
    ffn = linear(width, hidden, bias) + linear(hidden, width, bias)
    return layers * (attention + ffn + 2 * norm * width) + layers * (2 * attention + ffn + 3 * norm * width)


PUBLISHED = {"gpt2": 124_439_808, "bert-base": 109_482_240, "llama-3-8b": 8_030_261_248, "mistral-7b": 7_241_732_096,
             "mixtral-8x7b": 46_702_792_704, "qwen2-0.5b": 494_032_768, "qwen3-0.6b": 596_049_920, "gemma-2b": 2_506_172_416,
             "gemma2-2b": 2_614_341_888, "phi-2": 2_779_683_840, "pythia-160m": 162_322_944, "bloom-560m": 559_214_592,
             "roberta-base": 124_645_632, "distilbert-base": 66_362_880, "t5-small": 60_506_624, "bart-base": 139_420_416,
             "vit-base-patch16-224": 86_567_656, "whisper-tiny": 37_760_640,
             "minilm": 22_713_216 - linear(384, 384)}         # the checkpoint has a pooler, which its sentence vectors skip
FROM_SIZES = {
    "gpt2": gpt(50257, 768, 12, 1024),
    "gpt3-175b": gpt(50257, 12288, 96, 2048),
    "bert-base": bert(30522, 768, 12, 3072) + linear(768, 768),
    "minilm": bert(30522, 384, 6, 1536),
    "llama-3-8b": llama(128256, 4096, 32, 8 * 128, 14336),
    "mistral-7b": llama(32000, 4096, 32, 8 * 128, 14336),
    "mixtral-8x7b": decoder(32000, 4096, 32, grouped(4096, 128, 32, 8), 8 * 3 * 4096 * 14336 + 8 * 4096, tied=False),
    "qwen2-0.5b": decoder(151936, 896, 24, grouped(896, 64, 14, 2) + 64 * (14 + 2 + 2), 3 * 896 * 4864),
    "qwen3-0.6b": decoder(151936, 1024, 28, grouped(1024, 128, 16, 8) + 2 * 128, 3 * 1024 * 3072),
    "gemma-2b": decoder(256000, 2048, 18, grouped(2048, 256, 8, 1), 3 * 2048 * 16384),
    "gemma2-2b": decoder(256000, 2304, 26, grouped(2304, 256, 8, 4), 3 * 2304 * 9216, norms=4),
    "phi-2": decoder(51200, 2560, 32, 4 * linear(2560, 2560), linear(2560, 10240) + linear(10240, 2560), 1, False, 2) + 51200,
    "pythia-160m": decoder(50304, 768, 12, 4 * linear(768, 768), linear(768, 3072) + linear(3072, 768), tied=False, norm=2),
    "bloom-560m": decoder(250880, 1024, 24, 4 * linear(1024, 1024), linear(1024, 4096) + linear(4096, 1024), norm=2) + 2 * 1024,
    "transformer-base": transformer(37000, 512, 6, 2048),
    "transformer-big": transformer(37000, 1024, 6, 4096),
    "additive-seq2seq": additive(30000, 620, 1000, 1000),
    "luong": luong(50000, 1000, 1000, 4),
    "roberta-base": bert(50265, 768, 12, 3072, positions=514, segments=1) + linear(768, 768),
    "distilbert-base": bert(30522, 768, 6, 3072, segments=0),
    "t5-small": 32128 * 512 + 2 * 32 * 8 + encoder_decoder(512, 6, 2048, norm=1, bias=False) + 2 * 512,
    "bart-base": 50265 * 768 + 2 * (1026 + 2) * 768 + encoder_decoder(768, 6, 3072),
    "opus-mt-en-de": 58101 * 512 + encoder_decoder(512, 6, 2048) + 58101,
    "vit-base-patch16-224": linear(3 * 16 * 16, 768) + 198 * 768 + bert(0, 768, 12, 3072, positions=0, segments=0) + linear(768, 1000),
    "whisper-tiny": linear(3 * 80, 384) + linear(3 * 384, 384) + (1500 + 448 + 51865) * 384 + encoder_decoder(384, 4, 1536, key_bias=False)
    + 2 * 2 * 384,
    "g2p": (29 + 74) * 256 + 2 * gru(256, 256) + linear(256, 74),
}


@pytest.fixture(scope="module")
def compiled():
    return {path.stem: front(path) for path in sorted(MODELS.glob("*.yaml"))}


@pytest.mark.parametrize("name", FROM_SIZES)
def test_a_model_has_the_parameters_that_its_sizes_give(compiled, name):
    assert count(compiled[name].graph) == FROM_SIZES[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_the_parameters_that_were_published(compiled, name):
    assert count(compiled[name].graph) == PUBLISHED[name]


def test_every_model_is_counted_and_said_without_a_warning(compiled):
    assert set(compiled) == set(FROM_SIZES)
    for name, model in compiled.items():
        assert model.spec.name == name and model.spec.about.endswith(".") and not model.warnings, name


def test_paths_are_those_that_a_person_expects(compiled):
    shapes = state_shapes(compiled["llama-3-8b"].graph)
    assert shapes["layers.3.attention.query.weight"] == (4096, 4096)
    assert shapes["layers.31.attention.key.weight"] == (1024, 4096)
    assert shapes["layers.0.ffn.gate.weight"] == (14336, 4096)
    assert "logits.weight" in shapes and "logits.weight" not in state_shapes(compiled["gpt2"].graph)


def test_weights_start_as_the_papers_say(compiled):
    """GPT-2: N(0, 0.02), and 1 / sqrt(2 layers) of it for what adds to the residual stream; biases at 0."""
    starts = {e.path: e.start for e in parameter_table(compiled["gpt2"].graph)}
    assert starts["embed.weight"] == starts["layers.{i}.ffn.up.weight"] == {"normal": 0.02}
    smaller = {"normal": pytest.approx(0.02 / 24**0.5)}
    assert starts["layers.{i}.attention.output.weight"] == starts["layers.{i}.ffn.down.weight"] == smaller
    assert starts["layers.{i}.attention.query.bias"] == starts["layers.{i}.ffn.up.bias"] == "zeros"
    plain = {e.path: e.start for e in parameter_table(compiled["transformer-base"].graph)}
    assert plain["encoder.{i}.attention.query.weight"] == {"fan_in_uniform": 1.0}


def test_a_bare_base_is_a_model_of_the_library(tmp_path):
    """GPT-2 with 16 layers of 7,087,872 parameters instead of 12; an unknown name is refused with a near one."""
    (tmp_path / "deep.yaml").write_text("name: deep\nbase: gpt2\nset: {sizes.layers: 16}\n")
    assert count(front(tmp_path / "deep.yaml").graph) == 152_791_296
    (tmp_path / "odd.yaml").write_text("name: odd\nbase: gtp2\n")
    with pytest.raises(Diagnostics) as found:
        front(tmp_path / "odd.yaml")
    (d,) = found.value.items
    assert (d.code, d.labels[0].span.text, d.helps[0]) == ("bad-path", "gtp2", "did you mean `gpt2`?")
