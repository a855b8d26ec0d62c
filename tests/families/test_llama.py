"""Llama: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

LLAMA = Family("LlamaForCausalLM", {
    "vocab_size": 47, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 44, "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
CASES = {
    "plain": LLAMA,
    "tied": LLAMA.but(tie_word_embeddings=True),
    "biases": LLAMA.but(attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "wide heads": LLAMA.but(head_dim=10, num_key_value_heads=4),
    "wide rope": LLAMA.but(rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}),
    "llama3 rope": LLAMA.but(rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
                                              "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
    "yarn": LLAMA.but(rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}),
    "base model": LLAMA.but("LlamaModel", {"hidden": "last_hidden_state"}),
    "tied base model": LLAMA.but("LlamaModel", {"hidden": "last_hidden_state"}, tie_word_embeddings=True),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name in ("plain", "tied", "biases"))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = LLAMA.perturb(tmp_path)
    assert {"hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "attention_bias"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act"}
