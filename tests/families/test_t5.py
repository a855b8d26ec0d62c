"""T5 and T5 version 1.1: imported checkpoints compute what transformers computes."""

import nnspec
import pytest
import torch
import zoo
from families.harness import Family, agree, encoder_decoder, run
from safetensors.torch import load_file

T5 = Family("T5ForConditionalGeneration", {
    "vocab_size": 61, "d_model": 12, "d_kv": 5, "d_ff": 23, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9, "layer_norm_epsilon": 1e-3}, encoder_decoder)
CASES = {
    "plain": T5,
    "gated": T5.but(feed_forward_proj="gated-gelu"),
    "UL2": T5.but(feed_forward_proj="gated-silu"),
    "logits not scaled": T5.but(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_computes_the_same(name, tmp_path):
    CASES[name].check(tmp_path, onnx=name in ("plain", "logits not scaled"))


def test_no_key_of_the_config_is_lost(tmp_path):
    skip = ("tie_word_embeddings", "feed_forward_proj", "initializer_factor")   # in CASES; how norms start, which the file says
    kinds = T5.perturb(tmp_path, skip=skip)
    assert {"d_model", "d_kv", "relative_attention_num_buckets", "relative_attention_max_distance", "layer_norm_epsilon",
            "scale_decoder_outputs"} <= kinds["changed"]
    assert kinds["refused"] <= {"dense_act_fn", "is_gated_act", "is_encoder_decoder", "is_decoder", "relative_attention_num_buckets"}


@pytest.mark.parametrize("saved_by", ["transformers 4", "transformers 5"])
def test_the_head_of_version_1_1_is_a_table_of_its_own(saved_by, tmp_path):
    """As the files of version 1.1 and FLAN-T5 have it: `lm_head.weight` is there, and `tie_word_embeddings` was false once."""
    family = CASES["logits not scaled"]
    theirs = family.theirs(family.raw)
    theirs.lm_head.weight = torch.nn.Parameter(zoo.stir(torch.nn.Linear(12, 61, bias=False), seed=6).weight.detach())
    said = {k: v for k, v in family.raw.items() if k not in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act")}
    said |= {"tie_word_embeddings": False, "n_positions": 512, "output_past": True}
    family.save(tmp_path / "old", said if saved_by == "transformers 4" else family.raw, theirs)
    assert {"lm_head.weight", "shared.weight"} <= set(load_file(tmp_path / "old" / "model.safetensors"))
    model = nnspec.load(tmp_path / "old")
    module = model.module(weights=tmp_path / "old")
    for case in family.drawn(family.raw):
        agree(run(model, module, case), family.expected(theirs, case), case, "PyTorch")
