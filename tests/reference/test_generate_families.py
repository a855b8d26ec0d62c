"""Tokens out of imported checkpoints are those of `transformers.generate`: greedy, with processors, and by beam search."""

from functools import cache
from pathlib import Path

import nnspec
import numpy as np
import pytest
import torch
import transformers
import zoo
from families.test_bart import BART
from families.test_gemma2 import GEMMA2
from families.test_gpt2 import GPT2
from families.test_llama import LLAMA
from families.test_marian import MARIAN
from families.test_mistral import MISTRAL
from families.test_qwen3 import QWEN3
from families.test_t5 import T5
from families.test_whisper import WHISPER
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate

DECODERS = {"gpt2": GPT2.but(n_positions=64), "llama": LLAMA, "mistral": MISTRAL, "qwen3": QWEN3, "gemma2": GEMMA2.but(num_hidden_layers=3)}
LONG = {"max_position_embeddings": 40}
TRANSLATORS = {"t5": T5.but(num_decoder_layers=2), "bart": BART.but(**LONG, d_model=24), "marian": MARIAN.but(**LONG, d_model=24)}
FAMILIES = DECODERS | TRANSLATORS | {"whisper": WHISPER.but(max_target_positions=40, d_model=24)}
SEEDS = {"gpt2": 9, "llama": 8, "mistral": 7, "qwen3": 13, "gemma2": 3, "bart": 2, "marian": 3, "whisper": 12}
NONE = {"eos_token_id": None, "forced_eos_token_id": None, "forced_bos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 3}


def spread(family, seed):
    """A reference whose tokens do not follow themselves for ever: little of what is the same at every step, much of what is not."""
    theirs = zoo.stir(family.theirs(family.raw), seed)
    with torch.no_grad():
        for key, value in theirs.named_parameters():
            if key.endswith(("bias", "encoder_attn.out_proj.weight")):
                value.mul_(0.3)
            elif value.dim() > 1 and "decoder" not in key and not key.endswith(("shared.weight", "embed_tokens.weight", "wte.weight")):
                value.mul_(3)
        family.prepare(theirs)
        if hasattr(theirs, "final_logits_bias"):
            theirs.final_logits_bias.mul_(0.1)
    theirs.tie_weights()
    return theirs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The reference and the step model of a family, by name."""
    @cache
    def make(name):
        folder: Path = tmp_path_factory.mktemp(name)
        family = FAMILIES[name]
        theirs = spread(family, SEEDS.get(name, 4))
        theirs.save_pretrained(folder / "saved")
        nnspec.load(folder / "saved").export(folder / "step", weights=folder / "saved", form="step", certify="none")
        return theirs, decoder(folder / "step", threads=1)
    return make


def reference(theirs, given, prompt, **settings):
    """The new tokens of each row, up to and with the first stop token."""
    settings = {**NONE, "do_sample": False, "num_beams": 1, **settings}
    for name in ("forced_eos_token_id", "forced_bos_token_id", "eos_token_id"):
        setattr(theirs.generation_config, name, settings[name])
    stops = np.atleast_1d(settings["eos_token_id"] if settings["eos_token_id"] is not None else [])
    with torch.no_grad():
        out = transformers.GenerationMixin.generate(theirs, **given, **settings)      # Whisper's own cuts speech into pieces
    rows = []
    for row in out.numpy()[:, prompt:]:
        ends = np.flatnonzero(np.isin(row, stops))
        rows.append(row[:ends[0] + 1] if ends.size else row)
    return rows


def same(got, want):
    assert [t.tolist() for t in got.tokens] == [w.tolist() for w in want]


def padded(rows, side):
    """ids int64 [B, S] and their mask."""
    longest = max(map(len, rows))
    ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), bool)
    for k, row in enumerate(rows):
        at = slice(longest - len(row), None) if side == "left" else slice(len(row))
        ids[k, at], mask[k, at] = row, True
    return ids, mask


def unequal(vocab, lengths=(3, 11, 7), seed=5):
    rng = np.random.default_rng(seed)
    return [rng.integers(4, vocab, n) for n in lengths]


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_batches_of_unequal_prompts(made, name):
    theirs, ours = made(name)
    rows = unequal(theirs.config.vocab_size)
    ids, mask = padded(rows, "left")
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask).long()}
    want = reference(theirs, given, ids.shape[1], max_new_tokens=25)
    assert len({int(t) for row in want for t in row}) > 3                    # not one token for ever
    same(generate(ours, rows, max_new_tokens=25), want)
    same(generate(ours, ids, keep=mask, max_new_tokens=25), want)
    stops = sorted({int(want[0][4]), int(want[1][9])})
    want = reference(theirs, given, ids.shape[1], max_new_tokens=25, eos_token_id=stops)
    assert min(map(len, want)) < 25
    got = generate(ours, rows, max_new_tokens=25, stop=stops)
    same(got, want)
    assert got.reasons == tuple("stop" if w[-1] in stops else "length" for w in want)


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_processors(made, name):
    theirs, ours = made(name)
    rows = unequal(theirs.config.vocab_size, seed=6)
    ids, mask = padded(rows, "left")
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask).long()}
    plain = reference(theirs, given, ids.shape[1], max_new_tokens=20)
    stop, first = int(plain[0][3]), int(plain[1][0])
    never = next(int(t) for row in plain[::-1] for t in row if t != stop)
    want = reference(theirs, given, ids.shape[1], max_new_tokens=20, repetition_penalty=1.7, min_new_tokens=9, eos_token_id=[stop],
                     suppress_tokens=[never], begin_suppress_tokens=[first], forced_eos_token_id=stop)
    assert [w.tolist() for w in want] != [p.tolist() for p in plain]
    same(generate(ours, rows, max_new_tokens=20, repetition_penalty=1.7, min_new_tokens=9, stop=[stop], suppress=[never],
                  begin_suppress=[first], forced_eos=stop), want)


@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_translation(made, name, beams):
    theirs, ours = made(name)
    source, mask = padded(unequal(theirs.config.vocab_size, seed=8), "right")
    given = {"input_ids": torch.tensor(source), "attention_mask": torch.tensor(mask).long()}
    inputs = {"source": source, "source_length": mask.sum(1)}
    start, search = 3, {"num_beams": beams} if beams > 1 else {}
    plain = reference(theirs, given, 1, max_new_tokens=16, **search)
    assert len({int(t) for row in plain for t in row}) > 1, plain
    same(generate(ours, inputs=inputs, decoder_start=start, beams=beams, max_new_tokens=16), plain)
    stop, bos = int(plain[0][5]), int(plain[1][-1] + 1) % 50 + 4
    for extra, mine in (({}, {}), ({"length_penalty": 2.0}, {"length_penalty": 2.0}), ({"length_penalty": -1.0}, {"length_penalty": -1.0}),
                        ({"early_stopping": True}, {"early_stopping": True}), ({"early_stopping": "never"}, {"early_stopping": "never"}),
                        ({"forced_eos_token_id": stop, "forced_bos_token_id": bos}, {"forced_eos": stop, "forced_bos": bos}),
                        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5})):
        if beams == 1 and "length_penalty" in extra or "early_stopping" in extra and beams == 1:
            continue
        want = reference(theirs, given, 1, max_new_tokens=16, eos_token_id=[stop, 7], **search, **extra)
        same(generate(ours, inputs=inputs, decoder_start=start, beams=beams, max_new_tokens=16, stop=[stop, 7], **mine), want)


@pytest.mark.parametrize("name", TRANSLATORS)
@pytest.mark.parametrize("beams", [1, 3])
def test_where_translators_look(made, tmp_path_factory, name, beams):
    """The weights of every cross attention for the tokens that come out, of models that are exported with them."""
    theirs, _ = made(name)
    layers = theirs.config.decoder_layers if name != "t5" else theirs.config.num_decoder_layers
    folder, paths = tmp_path_factory.mktemp(name), tuple(f"decoder.{k}.cross" for k in range(layers))
    theirs.save_pretrained(folder / "saved")
    model = nnspec.load(folder / "saved")
    manifest = model.export(folder / "step", weights=folder / "saved", form="step", attention=paths)
    assert manifest.certificate["status"] == "passed"
    assert [s["path"] for s in manifest.sites if s["op"] == "attention" and not s["fused"]] == [f"{p}.attended" for p in paths]
    source, mask = padded(unequal(theirs.config.vocab_size, (5, 9, 7), seed=8), "right")
    got = generate(decoder(folder / "step", threads=1), inputs={"source": source, "source_length": mask.sum(1)}, decoder_start=3,
                   max_new_tokens=8, beams=beams, collect=[f"{p}.weights" for p in paths])
    theirs.set_attn_implementation("eager")
    target = torch.tensor([[3, *t.tolist()[:-1]] for t in got.tokens])
    with torch.no_grad():
        want = theirs(input_ids=torch.tensor(source), attention_mask=torch.tensor(mask).long(), decoder_input_ids=target,
                      output_attentions=True).cross_attentions
    assert len(want) == layers
    for path, layer in zip(paths, want, strict=True):
        for row, weights in enumerate(got.collected[f"{path}.weights"]):                                 # [new, H, S]
            np.testing.assert_allclose(weights, layer[row].transpose(0, 1).numpy(), atol=2e-5)
            assert weights.std() > 1e-3


def test_speech(made):
    theirs, ours = made("whisper")
    frames = np.random.default_rng(3).normal(size=(3, 5, 18)).astype(np.float32)
    prompt = np.array([[3, 9, 14]] * 3)
    given = {"input_features": torch.tensor(frames), "decoder_input_ids": torch.tensor(prompt)}
    want = reference(theirs, given, 3, max_new_tokens=20)
    assert len({int(t) for row in want for t in row}) > 3
    same(generate(ours, prompt, inputs={"source": frames}, max_new_tokens=20), want)


@pytest.mark.parametrize("beams", [1, 3])
def test_prompts_that_fill_the_model(made, beams):
    """The last token that the bound leaves room for, and one more, which is not read."""
    theirs, ours = made("gpt2")
    search = {"num_beams": beams} if beams > 1 else {}
    for length, new in ((64, 1), (61, 4)):
        rows = unequal(theirs.config.vocab_size, (length, length), seed=11)
        given = {"input_ids": torch.tensor(np.stack(rows)), "attention_mask": torch.ones(2, length, dtype=torch.long)}
        same(generate(ours, rows, max_new_tokens=new, beams=beams), reference(theirs, given, length, max_new_tokens=new, **search))


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_beams_of_a_decoder(made, name):
    theirs, ours = made(name)
    rows = unequal(theirs.config.vocab_size, seed=9)
    ids, mask = padded(rows, "left")
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask).long()}
    plain = reference(theirs, given, ids.shape[1], max_new_tokens=14, num_beams=3)
    same(generate(ours, rows, max_new_tokens=14, beams=3), plain)
    stop = int(plain[0][6])
    want = reference(theirs, given, ids.shape[1], max_new_tokens=14, num_beams=3, eos_token_id=stop)
    got = generate(ours, rows, max_new_tokens=14, beams=3, stop=stop)
    same(got, want)
    out = theirs.generate(**given, max_new_tokens=14, num_beams=3, do_sample=False, eos_token_id=stop, pad_token_id=0,
                          return_dict_in_generate=True, output_scores=True)
    np.testing.assert_allclose(got.scores, out.sequences_scores.numpy(), rtol=1e-4)
