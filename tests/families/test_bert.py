"""BERT: imported checkpoints compute what transformers computes."""

from functools import partial

import pytest
from families.harness import Family, encoder

BERT = Family("BertModel", {
    "vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 23,
    "max_position_embeddings": 15, "layer_norm_eps": 1e-3}, partial(encoder, segments=2),
    {"hidden": "last_hidden_state", "pooled": "pooler_output"})
LOGITS = {"logits": "logits"}
CASES = {
    "plain": BERT,
    "masked": BERT.but("BertForMaskedLM", LOGITS, hidden_act="gelu_new"),
    "classes": BERT.but("BertForSequenceClassification", LOGITS, num_labels=5),
    "classes of tokens": BERT.but("BertForTokenClassification", LOGITS, num_labels=3),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name in ("plain", "masked"))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = BERT.perturb(tmp_path, {"hidden_act": ("relu", "mish")})
    assert {"hidden_size", "num_attention_heads", "layer_norm_eps", "hidden_act"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "is_decoder", "add_cross_attention"}


def test_no_key_of_a_head_is_lost(tmp_path):
    kinds = CASES["masked"].perturb(tmp_path, {"hidden_act": ("relu", "mish")})
    assert {"layer_norm_eps", "hidden_act"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "is_decoder", "add_cross_attention", "tie_word_embeddings"}
