"""Marian: imported checkpoints compute what transformers computes."""

import pytest
import torch
from families.harness import Family, encoder_decoder


def prepared(theirs: torch.nn.Module) -> None:
    """The sinusoids as they were, and a `final_logits_bias` that is not zero."""
    theirs.final_logits_bias.copy_(torch.linspace(-1, 1, theirs.final_logits_bias.numel()))
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())


MARIAN = Family("MarianMTModel", {
    "vocab_size": 61, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 17, "max_position_embeddings": 13,
    "activation_function": "swish", "scale_embedding": True, "pad_token_id": 3, "decoder_start_token_id": 3}, encoder_decoder,
    prepare=prepared)
CASES = {
    "plain": MARIAN,
    "not scaled": MARIAN.but(scale_embedding=False, activation_function="relu"),
    "two vocabularies": MARIAN.but(share_encoder_decoder_embeddings=False, decoder_vocab_size=67),
    "three tables": MARIAN.but(share_encoder_decoder_embeddings=False, tie_word_embeddings=False),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name in ("plain", "two vocabularies"))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = MARIAN.perturb(tmp_path, {"activation_function": ("relu", "mish")})
    assert {"d_model", "encoder_attention_heads", "decoder_attention_heads", "activation_function", "scale_embedding"} <= kinds["changed"]
    assert kinds["refused"] <= {"activation_function", "is_encoder_decoder", "is_decoder", "tie_word_embeddings", "vocab_size",
                                "decoder_vocab_size"}
