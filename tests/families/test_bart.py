"""BART: imported checkpoints compute what transformers computes."""

import pytest
import torch
from families.harness import Family, encoder_decoder


def with_bias(theirs: torch.nn.Module) -> None:
    """A `final_logits_bias` that is not zero: it is a buffer, which no stirring of parameters moves."""
    theirs.final_logits_bias.copy_(torch.linspace(-1, 1, theirs.final_logits_bias.numel()))


BART = Family("BartForConditionalGeneration", {
    "vocab_size": 61, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 17, "max_position_embeddings": 13}, encoder_decoder,
    prepare=with_bias)
CASES = {
    "plain": BART,
    "scaled": BART.but(scale_embedding=True, activation_function="relu"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = BART.perturb(tmp_path)
    assert {"d_model", "encoder_attention_heads", "decoder_attention_heads", "activation_function", "scale_embedding"} <= kinds["changed"]
    assert kinds["refused"] <= {"activation_function", "is_encoder_decoder", "is_decoder", "tie_word_embeddings"}
