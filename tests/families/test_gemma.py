"""Gemma: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

GEMMA = Family("GemmaForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "head_dim": 10,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
CASES = {
    "plain": GEMMA,
    "first files": GEMMA.but(hidden_act="gelu", num_key_value_heads=1),
    "untied, biases": GEMMA.but(tie_word_embeddings=False, attention_bias=True, hidden_act="silu"),
    "base model": GEMMA.but("GemmaModel", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = GEMMA.perturb(tmp_path)
    assert {"num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "attention_bias", "tie_word_embeddings",
            "rope_parameters.rope_theta"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "rope_parameters.rope_type", "use_bidirectional_attention"}
