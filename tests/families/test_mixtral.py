"""Mixtral: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

MIXTRAL = Family("MixtralForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "num_local_experts": 5, "num_experts_per_tok": 2,
    "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
CASES = {
    "plain": MIXTRAL.but(num_hidden_layers=3),
    "window, tied": MIXTRAL.but(sliding_window=4, tie_word_embeddings=True, head_dim=10, hidden_act="relu", num_experts_per_tok=3),
    "base model": MIXTRAL.but("MixtralModel", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = MIXTRAL.perturb(tmp_path, {"sliding_window": (1, 3, 40), "num_experts_per_tok": (1, 5), "num_key_value_heads": (None, 2),
                                       "head_dim": (4, 10)})
    assert {"num_local_experts", "num_experts_per_tok", "sliding_window", "head_dim", "hidden_act", "tie_word_embeddings",
            "rope_parameters.rope_theta"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "rope_parameters.rope_type"}
