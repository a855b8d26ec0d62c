"""DistilBERT: imported checkpoints compute what transformers computes."""

import pytest
from families.harness import Family, encoder

DISTILBERT = Family("DistilBertModel", {
    "vocab_size": 61, "dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 23, "max_position_embeddings": 13}, encoder,
    {"hidden": "last_hidden_state"})
LOGITS = {"logits": "logits"}
CASES = {
    "plain": DISTILBERT,
    "masked": DISTILBERT.but("DistilBertForMaskedLM", LOGITS, activation="relu"),
    "classes": DISTILBERT.but("DistilBertForSequenceClassification", LOGITS, num_labels=5),
    "classes of tokens": DISTILBERT.but("DistilBertForTokenClassification", LOGITS, num_labels=3),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name in ("plain", "masked"))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = CASES["masked"].perturb(tmp_path, {"activation": ("gelu", "mish")})
    assert {"dim", "n_heads", "activation"} <= kinds["changed"]
    assert kinds["refused"] <= {"activation", "tie_word_embeddings"}
