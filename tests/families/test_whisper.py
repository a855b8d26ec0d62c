"""Whisper: imported checkpoints compute what transformers computes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from families.harness import Case, Family


def speech(vocab: int, mels: int = 5, places: int = 9) -> Iterator[Case]:
    """Frames and target tokens; the target with right padding."""
    rng = np.random.default_rng(6)
    for rows, steps, length in ((1, 1, None), (1, 6, None), (3, 7, np.array([7, 1, 4]))):
        frames = rng.normal(size=(rows, mels, 2 * places)).astype(np.float32)
        target = rng.integers(3, vocab, (rows, steps))
        mask = np.arange(steps) < (np.full(rows, steps) if length is None else length)[:, None]
        theirs = {"input_features": torch.tensor(frames), "decoder_input_ids": torch.tensor(target)}
        ours = {"source": frames, "target": target}
        if length is not None:
            ours["target_length"], theirs["decoder_attention_mask"] = length, torch.tensor(mask).long()
        yield Case(f"{rows} x {steps}", ours, theirs, mask)


WHISPER = Family("WhisperForConditionalGeneration", {
    "vocab_size": 61, "num_mel_bins": 5, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 17, "max_source_positions": 9, "max_target_positions": 8,
    "pad_token_id": 3, "bos_token_id": 3, "eos_token_id": 3, "decoder_start_token_id": 3}, speech)
CASES = {
    "plain": WHISPER,
    "other sizes": replace(WHISPER.but(num_mel_bins=3, max_source_positions=7, activation_function="relu"),
                           cases=partial(speech, mels=3, places=7)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = WHISPER.perturb(tmp_path, {"activation_function": ("relu", "mish")})
    assert {"d_model", "encoder_attention_heads", "decoder_attention_heads", "activation_function"} <= kinds["changed"]
    assert kinds["refused"] <= {"activation_function", "is_encoder_decoder", "tie_word_embeddings"}
