"""GPT-2: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

GPT2 = Family("GPT2LMHeadModel", {"vocab_size": 43, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32})
CASES = {
    "plain": GPT2,
    "inner": GPT2.but(n_inner=20, activation_function="relu", layer_norm_epsilon=0.01),
    "base model": GPT2.but("GPT2Model", {"hidden": "last_hidden_state"}, activation_function="gelu", scale_attn_weights=False),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = GPT2.perturb(tmp_path, {"n_head": (2, 6)})
    assert {"n_embd", "n_head", "n_inner", "layer_norm_epsilon", "activation_function", "scale_attn_weights"} <= kinds["changed"]
    assert kinds["refused"] <= {"activation_function", "scale_attn_by_inverse_layer_idx", "add_cross_attention", "tie_word_embeddings"}
