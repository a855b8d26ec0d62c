"""Vision Transformer: imported checkpoints compute what transformers computes."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from families.harness import Case, Family


def images(size: int) -> Iterator[Case]:
    rng = np.random.default_rng(5)
    for rows in (1, 3):
        image = rng.normal(size=(rows, 2, size, size)).astype(np.float32)
        yield Case(f"{rows} of {size}", {"image": image}, {"pixel_values": torch.tensor(image)}, np.ones(rows, bool))


VIT = Family("ViTForImageClassification", {
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 23, "image_size": 15, "patch_size": 5,
    "num_channels": 2, "num_labels": 7, "layer_norm_eps": 1e-3}, images, vocab="image_size")
BASE = {"hidden": "last_hidden_state", "pooled": "pooler_output"}
CASES = {
    "plain": VIT,
    "no bias": VIT.but(qkv_bias=False, hidden_act="gelu_new"),
    "rest of an image": VIT.but(image_size=17, patch_size=4),
    "base model": VIT.but("ViTModel", BASE),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name in ("plain", "rest of an image"))


def test_no_key_of_the_config_is_lost(tmp_path):
    kinds = VIT.perturb(tmp_path, {"hidden_act": ("relu", "mish")})
    assert {"hidden_size", "num_attention_heads", "layer_norm_eps", "hidden_act", "patch_size", "qkv_bias"} <= kinds["changed"]
    assert kinds["refused"] <= {"hidden_act", "hidden_size"}                # heads of a whole width each


def test_no_key_of_the_pooler_is_lost(tmp_path):
    kinds = CASES["base model"].perturb(tmp_path, {"hidden_act": ("relu", "mish")})
    assert kinds["refused"] <= {"hidden_act", "hidden_size", "pooler_act", "pooler_output_size"}
