"""Mistral: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

MISTRAL = Family("MistralForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "sliding_window": 5, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
CASES = {
    "plain": MISTRAL.but(num_hidden_layers=3),
    "no window, tied": MISTRAL.but(sliding_window=None, tie_word_embeddings=True, head_dim=10, hidden_act="gelu"),
    "base model": MISTRAL.but("MistralModel", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = MISTRAL.perturb(tmp_path, {"sliding_window": (None, 1, 3, 40), "num_key_value_heads": (None, 2, 6)})
    assert {"num_key_value_heads", "head_dim", "sliding_window", "rms_norm_eps", "hidden_act", "tie_word_embeddings",
            "rope_parameters.rope_theta"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "rope_parameters.rope_type"}
