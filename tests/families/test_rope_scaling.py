"""Rotary positions that were stretched: every way, in every spelling, at lengths and positions past the original ones."""

import json
from collections.abc import Callable, Iterator

import nnspec
import numpy as np
import pytest
import torch
from families.harness import Case, Family, decoder
from nnspec.ir.text import identity_hash

SIZES = {"vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 44,
         "max_position_embeddings": 64, "tie_word_embeddings": False}
SHORT = [1.0, 1.1, 1.3, 1.4, 1.7, 2.0]
LONG = [1.0, 2.5, 3.0, 5.5, 8.0, 9.0]
KINDS = {
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, every key": {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 1.0, "beta_slow": 0.5, "mscale": 0.7,
                        "mscale_all_dim": 0.4, "truncate": False},
    "yarn, attention factor": {"factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3},
    "longrope": {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 16},
    "longrope, every key": {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 16, "factor": 3.0,
                            "attention_factor": 0.8},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
}
IDLE = {                                 # of these, as other keys stand for them or the row is longer
    "longrope": ["short_factor"], "longrope, every key": ["short_factor", "factor", "original_max_position_embeddings"]}
WHERE = {"Mistral": "linear", "Mixtral": "dynamic", "Qwen2": "yarn", "Qwen3": "yarn, every key", "Gemma": "longrope", "Gemma2": "llama3",
         "Phi": "yarn, attention factor", "GPTNeoX": "dynamic"}


def lengths(vocab: int) -> Iterator[Case]:
    """Within the original length, past it, and past 4096."""
    rng = np.random.default_rng(5)
    for rows, steps in ((3, 11), (2, 40), (1, 4100)):
        tokens = rng.integers(0, vocab, (rows, steps))
        yield Case(f"{rows} x {steps}", {"tokens": tokens}, {"input_ids": torch.tensor(tokens)}, np.ones((rows, steps), bool))


def stretched(name: str, kind: str, cases: Callable[[int], Iterator[Case]] = decoder, **more: object) -> Family:
    """A family of heads of width 12; Phi and GPT-NeoX turn 8 of these."""
    partial = name in ("Phi", "GPTNeoX")
    rope = {"rope_type": kind.partition(",")[0], "rope_theta": 100.0, **KINDS[kind], **({"partial_rotary_factor": 0.7} if partial else {})}
    wide = {} if partial else {"head_dim": 12, "num_key_value_heads": 3}
    return Family(f"{name}ForCausalLM", {**SIZES, **wide, "rope_parameters": rope, **more}, cases)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_past_its_original_length(kind, tmp_path):
    stretched("Llama", kind, lengths, num_hidden_layers=1, max_position_embeddings=5000 if kind != "dynamic" else 1500).check(tmp_path)


@pytest.mark.parametrize("name", WHERE)
def test_every_family_stretches(name, tmp_path):
    family = stretched(name, WHERE[name])
    model = family.check(tmp_path, onnx=False)
    plain = {k: v for k, v in family.raw["rope_parameters"].items() if k in ("rope_theta", "partial_rotary_factor")}
    assert identity_hash(model.graph) != identity_hash(imported(tmp_path / "plain", family.raw, plain))


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_of_it_is_lost(kind, tmp_path):
    family = stretched("Llama", kind, lambda vocab: [list(lengths(vocab))[1]], max_position_embeddings=24)
    keys = {f"rope_parameters.{key}" for key in (*KINDS[kind], "rope_theta")}
    kinds = family.perturb(tmp_path, only=tuple(keys))
    assert kinds["changed"] == keys - {f"rope_parameters.{key}" for key in IDLE.get(kind, ())} and not kinds["refused"], kinds


@pytest.mark.parametrize("name", ["Llama", *WHERE])
def test_the_older_spelling_says_the_same(name, tmp_path):
    """`rope_scaling` beside `rope_theta`, with `type` or `rope_type`."""
    theta, part = ("rotary_emb_base", "rotary_pct") if name == "GPTNeoX" else ("rope_theta", "partial_rotary_factor")
    for n, kind in enumerate(KINDS):
        raw = stretched(name, kind).raw
        rope = dict(raw["rope_parameters"])
        new = imported(tmp_path / f"new {n}", raw, rope)
        old = {**raw, theta: rope.pop("rope_theta"), part: rope.pop("partial_rotary_factor", None)}
        said = {"type" if n % 2 else "rope_type": rope.pop("rope_type"), **rope}
        assert identity_hash(new) == identity_hash(imported(tmp_path / f"old {n}", {**old, "rope_scaling": said}, None))


def imported(folder, raw, rope):
    """The graph of a config.json with these `rope_parameters`."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if k != "rope_parameters"}
                                                   | ({} if rope is None else {"rope_parameters": rope})))
    return nnspec.load(folder).graph


def test_what_is_not_known_is_refused(tmp_path):
    raw = stretched("Llama", "yarn").raw
    for n, (rope, code) in enumerate([({"rope_type": "mrope"}, "unsupported-config"), ({"rope_type": "linear", "factor": 2, "beta_fast": 3},
                                      "unknown-config-key"), ({"rope_type": "default", "factor": 2}, "unknown-config-key")]):
        with pytest.raises(nnspec.Diagnostics) as found:
            imported(tmp_path / str(n), raw, rope)
        assert [d.code for d in found.value.items] == [code]
