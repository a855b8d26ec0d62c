"""Qwen3: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

QWEN3 = Family("Qwen3ForCausalLM", {
    "vocab_size": 47, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "head_dim": 10, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}})
WINDOWED = QWEN3.but(num_hidden_layers=3, use_sliding_window=True, sliding_window=4, max_window_layers=1)
CASES = {
    "plain": QWEN3,
    "windows in the last layers, untied": WINDOWED.but(tie_word_embeddings=False, hidden_act="gelu_new", attention_bias=True),
    "windows in every layer": WINDOWED.but(max_window_layers=0),
    "windows in no layer": WINDOWED.but(max_window_layers=28),
    "windows by turns": WINDOWED.but(layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "base model": QWEN3.but("Qwen3Model", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


@pytest.mark.parametrize("first", [0, 1, 2, 3, 28])
def test_layers_without_a_list_of_kinds(first, tmp_path):
    """Configs from before `layer_types` say how many layers see everything."""
    WINDOWED.but(max_window_layers=first).check(tmp_path, onnx=False, without=("layer_types",))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = QWEN3.perturb(tmp_path, {"num_key_value_heads": (None, 2)})
    assert {"num_key_value_heads", "rms_norm_eps", "hidden_act", "tie_word_embeddings",
            "rope_parameters.rope_theta", "head_dim", "attention_bias"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "rope_parameters.rope_type", "layer_types"}
    of_windows = ("sliding_window", "layer_types", "max_window_layers")
    kinds = WINDOWED.perturb(tmp_path / "windowed", {"sliding_window": (1, 40)}, only=of_windows)
    assert kinds["changed"] == {"sliding_window", "layer_types"} and not kinds["refused"]
