"""Gemma 2: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

GEMMA2 = Family("Gemma2ForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "head_dim": 10, "sliding_window": 5,
    "query_pre_attn_scalar": 7, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
CASES = {
    "plain": GEMMA2.but(num_hidden_layers=3),
    "uncapped": GEMMA2.but(attn_logit_softcapping=None, final_logit_softcapping=None),
    "untied, biases": GEMMA2.but(tie_word_embeddings=False, attention_bias=True),
    "windows in every layer": GEMMA2.but(layer_types=["sliding_attention"] * 2, hidden_activation="silu"),
    "windows in no layer": GEMMA2.but(layer_types=["full_attention"] * 2),
    "base model": GEMMA2.but("Gemma2Model", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_layers_without_a_list_of_kinds(tmp_path):
    """Configs from before `layer_types`: every other layer, from the first on, has a window."""
    GEMMA2.but(num_hidden_layers=3).check(tmp_path, onnx=False, without=("layer_types",))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = GEMMA2.perturb(tmp_path, {"attn_logit_softcapping": (None, 1.0), "final_logit_softcapping": (None, 1.0),
                                      "sliding_window": (1, 40)})
    assert {"num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_activation", "attention_bias", "tie_word_embeddings",
            "rope_parameters.rope_theta", "query_pre_attn_scalar", "sliding_window", "layer_types", "attn_logit_softcapping",
            "final_logit_softcapping"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_activation", "rope_parameters.rope_type", "use_bidirectional_attention"}
