"""BART: imported checkpoints compute what transformers computes."""

from dataclasses import replace
from types import SimpleNamespace

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



def hidden_too(theirs: torch.nn.Module, given: dict[str, torch.Tensor]) -> SimpleNamespace:
    """What the base model gives, and its scores of the tokens by the one table."""
    hidden = theirs(**given).last_hidden_state
    return SimpleNamespace(hidden=hidden, logits=hidden @ theirs.shared.weight.T)


BASE = replace(BART.but("BartModel", {"logits": "logits", "hidden": "hidden"}), call=hidden_too, prepare=lambda theirs: None)
CASES = {
    "plain": BART,
    "base model": BASE,
    "scaled": BART.but(scale_embedding=True, activation_function="relu"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name != "base model")


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = BART.perturb(tmp_path, {"activation_function": ("relu", "mish")})
    assert {"d_model", "encoder_attention_heads", "decoder_attention_heads", "activation_function", "scale_embedding"} <= kinds["changed"]
    assert kinds["refused"] <= {"activation_function", "is_encoder_decoder", "is_decoder", "tie_word_embeddings"}
