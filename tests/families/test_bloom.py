"""BLOOM: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family

BLOOM = Family("BloomForCausalLM", {"vocab_size": 47, "hidden_size": 36, "n_layer": 2, "n_head": 6, "layer_norm_epsilon": 1e-3})
CASES = {
    "plain": BLOOM.but(n_layer=3),
    "untied": BLOOM.but(tie_word_embeddings=False, n_head=4),
    "residual after the norm": BLOOM.but(apply_residual_connection_post_layernorm=True),
    "base model": BLOOM.but("BloomModel", {"hidden": "last_hidden_state"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path)


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = BLOOM.perturb(tmp_path, {"n_head": (3, 9)})
    assert {"n_layer", "n_head", "layer_norm_epsilon", "tie_word_embeddings",
            "apply_residual_connection_post_layernorm"} <= kinds["changed"]
    assert not kinds["refused"]
