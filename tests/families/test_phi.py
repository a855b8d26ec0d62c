"""Phi: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

PHI = Family("PhiForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 64, "layer_norm_eps": 1e-3, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.7}})
CASES = {
    "plain": PHI.but(num_hidden_layers=3),
    "normalised queries and keys": PHI.but(qk_layernorm=True, num_key_value_heads=6, hidden_act="relu"),
    "tied": PHI.but(tie_word_embeddings=True),
    "base model": PHI.but("PhiModel", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = PHI.perturb(tmp_path, {"rope_parameters.partial_rotary_factor": (0.4, 1.0)})
    assert {"num_key_value_heads", "layer_norm_eps", "hidden_act", "qk_layernorm", "tie_word_embeddings", "rope_parameters.rope_theta",
            "rope_parameters.partial_rotary_factor"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "rope_parameters.rope_type"}
