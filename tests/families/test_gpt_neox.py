"""GPT-NeoX: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

NEOX = Family("GPTNeoXForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
    "intermediate_size": 44, "max_position_embeddings": 64, "layer_norm_eps": 1e-3, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.7}})
CASES = {
    "plain": NEOX.but(num_hidden_layers=3),
    "in turn, without biases": NEOX.but(use_parallel_residual=False, attention_bias=False, hidden_act="gelu_fast"),
    "tied": NEOX.but(tie_word_embeddings=True),
    "base model": NEOX.but("GPTNeoXModel", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = NEOX.perturb(tmp_path, {"rope_parameters.partial_rotary_factor": (0.4, 1.0), "num_attention_heads": (3, 9)})
    assert {"num_attention_heads", "layer_norm_eps", "hidden_act", "attention_bias", "use_parallel_residual", "tie_word_embeddings",
            "rope_parameters.rope_theta", "rope_parameters.partial_rotary_factor"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "rope_parameters.rope_type"}
