"""The families of the library: one for each model_type, right without a config, and configs as they are published."""

import json
import re
from collections import Counter

import pytest
from nnspec.foreign.folder import families
from nnspec.library import MODELS
from nnspec.model import load
from nnspec.pipeline import front

# Configs with the keys and sizes of GPT-2, Llama 3 8B, 3.1 8B and 3.2 1B
GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
    "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
    "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0", "use_cache": True, "vocab_size": 128256}
SCALED = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
SMALL = {"head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True,
         "mlp_bias": False, "max_position_embeddings": 131072, "rope_scaling": SCALED | {"factor": 32.0}}
PUBLISHED = {                                     # config, and the number of parameters that was published with it
    "gpt2": (GPT2, 124_439_808), "llama 3": (LLAMA, 8_030_261_248), "llama 3.2": (LLAMA | SMALL, 1_235_814_400),
    "llama 3.1": (LLAMA | {"max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": SCALED}, 8_030_261_248)}


def test_a_model_type_has_one_family():
    said = Counter(name for p in MODELS.glob("*.yaml") for line in re.findall(r"^  model_type:(.*?)(?:#.*)?$", p.read_text(), re.MULTILINE)
                   for name in re.findall(r"[\w.-]+", line))
    assert max(said.values()) == 1 and set(said) == set(families()) >= {"gpt2", "llama"}


@pytest.mark.parametrize("name", sorted(set(families().values())))
def test_a_family_is_right_without_a_config(name):
    assert front(name).warnings == ()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name, tmp_path):
    config, parameters = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load(tmp_path)
    assert (model.parameters, model.warnings) == (parameters, ())
