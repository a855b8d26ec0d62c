"""The `checkpoint:` sections of the library name every tensor of the weight files that they speak of, with its shape."""

import pytest
from nnspec.checkpoints.rules import read_rules, sources
from nnspec.ir.parameters import state_shapes
from nnspec.lang.diagnostic import Diagnostics, Sink
from nnspec.library import MODELS
from nnspec.pipeline import front

G2P = {"enc_emb": (29, 256), "enc_w_ih": (768, 256), "enc_w_hh": (768, 256), "enc_b_ih": (768,), "enc_b_hh": (768,),
       "dec_emb": (74, 256), "dec_w_ih": (768, 256), "dec_w_hh": (768, 256), "dec_b_ih": (768,), "dec_b_hh": (768,),
       "fc_w": (74, 256), "fc_b": (74,)}                       # of g2p_en 2.1


def asked_for(name):
    """Foreign name -> shape of every tensor that the spec reads."""
    found = front(name)
    sink = Sink()
    rules = read_rules(found.spec.checkpoint, found.graph.sizes, sink)
    made = sources(rules, state_shapes(found.graph), sink)
    assert not sink.items
    return {s.names[0]: s.shape for s in made.values()}


def theirs(model, config):
    """Foreign name -> shape of a transformers model, without its memory."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        made = getattr(transformers, model)(getattr(transformers, config[0])(**config[1]))
    return {k: tuple(v.shape) for k, v in made.named_parameters()}


def test_g2p_reads_the_file_of_its_package():
    assert asked_for("g2p") == G2P


MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


@pytest.mark.parametrize("name, model, config, unused", [
    ("gpt2", "GPT2Model", ("GPT2Config", {}), set()),
    ("bert-base", "BertModel", ("BertConfig", {}), set()),
    ("minilm", "BertModel", ("BertConfig", MINILM), {"pooler.dense.weight", "pooler.dense.bias"}),
])
def test_a_model_reads_every_tensor_of_transformers(name, model, config, unused):
    there = theirs(model, config)
    assert asked_for(name) == {k: v for k, v in there.items() if k not in unused}
    assert unused <= set(there)


def test_wrong_rules_are_found_without_weights(tmp_path):
    """A misspelt path, one of a list, and a pattern that cannot give the shape: all at once, when the spec is validated."""
    text = (MODELS / "gpt2.yaml").read_text()
    for right, wrong in (("placed.table.weight:", "placed.tabel.weight:"), ("[query, key, value].bias", "[query, key, valu].bias"),
                         ('c_attn.weight", as: "i (s o)', 'c_attn.weight", as: "i (q o)')):
        assert right in text
        text = text.replace(right, wrong)
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(Diagnostics) as found:
        front(tmp_path / "spec.yaml")
    assert [(d.code, d.severity, d.helps[0]) for d in found.value.items if "called" in d.headline] == [
        ("bad-checkpoint", "warning", "did you mean `placed.table.weight`?"),
        ("bad-checkpoint", "warning", "did you mean `layers.{i}.attention.value.bias`?")]
    assert sum("`i (q o) -> s o i`" in d.headline for d in found.value.items) == 1
