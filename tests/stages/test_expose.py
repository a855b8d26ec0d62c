"""Weights of attention that an export is asked for: as outputs, right, and at no cost where nobody asks."""

import nnspec
import numpy as np
import pytest
import stepping
import zoo
from nnspec.ir.text import structure_hash
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.decoder import decoder
from nnspec.stages.stream import with_weights

PLACES = {"bart-base": ("decoder.1.cross",), "t5-small": ("decoder.0.cross",), "gpt2": ("layers.1.attention",),
          "transformer-base": ("decoder.1.cross", "encoder.0.attention"), "additive-seq2seq": ("decoder",)}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("form", ["full", "step"])
def test_files_give_what_pytorch_gives(tmp_path, name, form):
    model = zoo.model(name)
    made = model.export(tmp_path, weights=zoo.stirred(name), form=form, attention=PLACES[name])
    assert made.certificate["status"] == "passed"
    held = {x.name: x for x in (*made.outputs, *(made.prefix.outputs if made.prefix else ()))}
    assert all(f"{path}.weights" in held for path in PLACES[name])
    before = {s["path"]: s["form"] for s in model.export(tmp_path / "plain", weights=zoo.stirred(name), form=form, certify="none").sites}
    changed = {s["path"] for s in made.sites if s["form"] != before[s["path"]]}
    assert all(any(path.startswith(p) for p in PLACES[name]) for path in changed), "the other sites stay as they are"


def test_the_weights_are_those_of_the_attention(tmp_path):
    """Rows of softmax over the source; nothing behind its end. Of the causal one nothing behind the query."""
    model, rng = zoo.model("transformer-base"), np.random.default_rng(5)
    asked = ("look=decoder.1.cross", "decoder.0.attention")
    model.export(tmp_path, weights=zoo.stirred("transformer-base"), form="step", attention=asked)
    arrays = {"source": rng.integers(0, 41, (3, 6)), "source_length": np.array([6, 2, 4]), "target": rng.integers(0, 41, (3, 5))}
    found, _ = stepping.run_decoder(decoder(tmp_path, threads=1), arrays, 5, "ragged chunks")
    look, own = found["look"], found["decoder.0.attention.weights"]
    assert look.shape == (3, 3, 5, 6)
    np.testing.assert_allclose(look.sum(-1), 1, rtol=1e-5)
    assert not look[1, ..., 2:].any() and not look[2, ..., 4:].any()
    np.testing.assert_allclose(own[..., :5].sum(-1), 1, rtol=1e-5)
    assert not np.triu(own[..., :5], 1).any()
    graph = with_weights(model.lowered, asked)
    module = stepping.fitted(graph, zoo.stirred("transformer-base").state_dict())
    np.testing.assert_allclose(look, stepping.call(module, graph, arrays)["look"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("asked", "told"), [
    ("decoder.1", "`decoder.1` holds 2 attention sites, and one is asked for"),
    ("decoder", "`decoder` holds 4 attention sites"),
    ("decoder.9.cross", "there is no attention at `decoder.9.cross`"),
    ("decoder.1.cross.query", "there is no attention at `decoder.1.cross.query`"),
    ("", "there is no attention at ``"),
    ("logits=decoder.1.cross", "the model has an input or output `logits` already"),
    ("source=decoder.1.cross", "the model has an input or output `source` already"),
])
def test_what_cannot_be_given_is_told(tmp_path, asked, told):
    with pytest.raises(Diagnostics) as found:
        zoo.model("bart-base").export(tmp_path / "out", init=0, attention=(asked,))
    (one,) = found.value.items
    assert one.headline.startswith(told) and one.helps and one.labels and not (tmp_path / "out").exists()


def test_all_that_is_wrong_is_told_at_once_and_copies_are_listed_once():
    with pytest.raises(Diagnostics) as found:
        with_weights(nnspec.load("t5-small").lowered, ["decoder", "nothing", "decoder.0.cross", "decoder.0.cross"])
    many, none, twice = found.value.items
    assert many.notes == ("decoder.0-5.attention.attended", "decoder.0-5.cross.attended")
    assert none.headline == "there is no attention at `nothing`" and "already" in twice.headline
    with pytest.raises(Diagnostics, match="there is no attention at `x`") as found:
        with_weights(zoo.model("luong").lowered, ["x"])


def test_nothing_changes_where_nobody_asks():
    model = zoo.model("bart-base")
    before = structure_hash(model.lowered)
    with_weights(model.lowered, ["decoder.1.cross"])
    assert structure_hash(model.lowered) == before
