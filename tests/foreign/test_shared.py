"""What families share: keys of the library (`use:`), words (`words:`), values that go to a path (`at:`), kinds that may be absent."""

import json
import re

import pytest
from nnspec.lang.diagnostic import Diagnostics
from nnspec.lang.tree import plain
from nnspec.model import import_checkpoint, load
from nnspec.stages.parse import parse, read_source

FAMILY = """\
nnspec: 1
use: [attention, ffn, layers, positions]
sizes: {vocab: 11, width: 8, layers: 3, heads: 2, positions: 32}
inputs: {tokens: "int64[B, S <= positions]"}
graph:
  embed: {op: embedding, in: tokens, entries: vocab, width: width}
  layers:
    repeat: layers
    block: pre_norm_layer
    in: embed
    norm: {op: rms_norm}
    attention: {block: multi_head_attention, heads: heads, causal: true, position: {block: rope, theta: 100}}
    ffn: {block: plain_ffn, hidden: 12, activation: relu}
  logits: {op: linear, in: layers, weight: embed.weight, bias: false}
outputs: {logits: logits}
checkpoint:
  config:
    use: rope
    act: {at: graph.layers.ffn.activation, words: activations, choose: {none: {set: {graph.layers.ffn.hidden: 5}}}}
    scale: {at: graph.layers.attention.scale}
    bias: {at: graph.layers.attention.bias}
    kinds:
      pattern: layers
      items: {near: {attention: {window: 3}}, far: {}}
      choose: {null: {add: {graph.layers.pattern: [{}, {attention: {window: 2}}]}, config: {old: {require: 1}}}}
"""


def imported(folder, family=FAMILY, **config):
    (folder / "toy").mkdir(exist_ok=True)
    (folder / "toy" / "config.json").write_text(json.dumps(config))
    (folder / "family.yaml").write_text(family)
    text = import_checkpoint(folder / "toy", folder / "family.yaml", folder / "toy.yaml")
    (folder / "toy.yaml").write_text(text)
    load(folder / "toy.yaml")
    return plain(parse(read_source(folder / "toy.yaml")))["graph"]["layers"]


def refused(folder, family=FAMILY, **config):
    with pytest.raises(Diagnostics) as found:
        imported(folder, family, **config)
    return [(d.code, d.headline) for d in found.value.items]


def wrong(folder, family):
    """What `validate` says of the family itself."""
    (folder / "family.yaml").write_text(family)
    with pytest.raises(Diagnostics) as found:
        load(folder / "family.yaml")
    return [(d.code, d.headline) for d in found.value.items]


def test_a_value_goes_to_a_path_and_one_that_is_absent_leaves_the_spec(tmp_path):
    quiet, said = imported(tmp_path), imported(tmp_path, act="gelu_new", scale=0.50, bias=False)
    assert (quiet["ffn"]["activation"], said["ffn"]["activation"]) == ("relu", "gelu_tanh")
    assert "scale" not in quiet["attention"] and "bias" not in quiet["attention"]
    assert (said["attention"]["scale"], said["attention"]["bias"]) == ("0.5", "false")


def test_a_value_goes_to_several_paths(tmp_path):
    family = FAMILY.replace("bias: {at: graph.layers.attention.bias}", "bias: {at: [graph.layers.attention.bias, graph.layers.ffn.bias]}")
    made = imported(tmp_path, family, bias=False)
    assert (made["attention"]["bias"], made["ffn"]["bias"]) == ("false", "false")
    misspelt = FAMILY.replace("bias: {at: graph.layers.attention.bias}", "bias: {at: [graph.layers.attention.bias, graph.leyers.bias]}")
    assert [code for code, _ in wrong(tmp_path, misspelt)] == ["unknown-path"]


def test_a_choice_stands_before_the_words(tmp_path):
    assert imported(tmp_path, act="none")["ffn"] == {"block": "plain_ffn", "hidden": "5", "activation": "relu"}


def test_values_that_go_nowhere_are_refused(tmp_path):
    assert refused(tmp_path, act="gelo", scale="wide") == [
        ("unsupported-config", "`act` is `gelo`, which the family does not support"),
        ("unsupported-config", "`scale` is `wide`, and a number, true or false was expected")]


def test_a_choice_may_be_an_expression_over_sizes(tmp_path):
    choose = "{size: inner, choose: {2 * wide: {set: {graph.layers.ffn.hidden: 5}}, wide: {set: {graph.layers.ffn.hidden: 6}}}}"
    family = FAMILY.replace("layers: 3,", "layers: 3, wide: 4 * heads, inner: 12,").replace("hidden: 12", "hidden: inner").replace(
        "    use: rope\n", f"    use: rope\n    n_head: {{size: heads, default: 2}}\n    n_inner: {choose}\n")
    hidden = [imported(tmp_path, family, n_inner=n, **more)["ffn"]["hidden"]
              for n, more in ((8, {}), (16, {}), (17, {}), (16, {"n_head": 4}), (8.0, {}))]
    assert hidden == ["6", "5", "inner", "6", "6"]
    assert wrong(tmp_path, family.replace("{2 * wide:", "{2 * wied:")) == [("unknown-name", "no size is called `wied`")]
    looped = family.replace("wide: 4 * heads", "wide: wide + 1")
    assert ("bad-config", "`wide + 1` cannot be known here: `wide` is no number") in refused(tmp_path, looped, n_inner=8)


def test_parts_with_a_config_of_their_own_have_harmless_keys_too(tmp_path):
    part = {"model_type": "", "id2label": {"0": "a"}, "torchscript": False}
    assert imported(tmp_path, vision=part)["ffn"]["hidden"] == "12"
    deeper = refused(tmp_path, vision=part | {"depth": 3})
    assert deeper == [("unknown-config-key", "the family does not know the config key `vision.depth`")]
    assert len(refused(tmp_path, vision={"torchscript": False, "id2label": {}})) == 1


def test_blocks_of_choices_that_are_not_made_go(tmp_path):
    blocks = """\
blocks:
  both: {inputs: {in: "float[*b, D]"}, graph: {out: {block: half, in: in}}}
  half: {inputs: {in: "float[*b, D]"}, graph: {out: {op: scale, in: in, by: 0.5}}}
  idle: {inputs: {in: "float[*b, D]"}, graph: {out: {op: scale, in: in, by: 0.5}}}
"""
    choose = "{false: {}, true: {add: {graph.half: {block: both, in: layers}}, set: {graph.logits.in: half}}}"
    family = FAMILY.replace("checkpoint:\n", f"{blocks}checkpoint:\n").replace(
        "    use: rope\n", f"    use: rope\n    halved: {{default: false, choose: {choose}}}\n")
    (tmp_path / "alone.yaml").write_text(family)
    assert [w.headline for w in load(tmp_path / "alone.yaml").warnings] == ["nothing uses block `idle`"]
    family = re.sub("  idle: .*\n", "", family)
    imported(tmp_path, family)
    assert "blocks" not in (tmp_path / "toy.yaml").read_text() and not load(tmp_path / "toy.yaml").warnings
    imported(tmp_path, family, halved=True)
    assert "blocks" in (tmp_path / "toy.yaml").read_text() and not load(tmp_path / "toy.yaml").warnings
    imported(tmp_path, family.replace("in: half}}}}", "in: half}}, two: {add: {graph.half: {block: half, in: layers}}}}}"), halved="two")
    text = (tmp_path / "toy.yaml").read_text()
    assert "  half:" in text and "  both:" not in text and [w.headline for w in load(tmp_path / "toy.yaml").warnings] == [
        "node `half` does not reach any output"]


def test_a_rule_for_no_parameter_names_those_without_a_rule(tmp_path):
    tensors = 'tensors: {"layers.{i}.attention.query.weight": "{i}.q", "layers.{i}.attention.qeury.bias": "{i}.b"}'
    (tmp_path / "family.yaml").write_text(FAMILY.replace("checkpoint:\n", f"checkpoint:\n  {tensors}\n"))
    warning, = load(tmp_path / "family.yaml").warnings
    assert warning.headline == "no parameter is called `layers.{i}.attention.qeury.bias`"
    assert warning.helps == ("did you mean `layers.{i}.attention.query.bias`?",)


def test_absent_kinds_may_be_a_choice(tmp_path):
    assert imported(tmp_path, old=1)["pattern"] == [{}, {"attention": {"window": "2"}}] == imported(tmp_path, kinds=None)["pattern"]
    assert imported(tmp_path, kinds=["near", "far", "far"])["pattern"] == [{"attention": {"window": "3"}}, {"times": "2"}]
    assert "pattern" not in imported(tmp_path, kinds=["far"] * 3)
    assert refused(tmp_path, kinds=["far"] * 3, old=1)[0][0] == "unknown-config-key"


def test_shared_keys_are_as_if_written_in_the_family(tmp_path):
    made = imported(tmp_path, rope_parameters={"rope_type": "linear", "factor": 2.0})
    assert made["attention"]["position"] == {"block": "linear_rope", "theta": "100", "factor": "2"}
    assert refused(tmp_path, rope_scaling={"type": "default", "factor": 2})[0][0] == "unknown-config-key"


@pytest.mark.parametrize("old, new, said", [
    ("use: rope", "use: [rope, rape]", "the library has no `rape` for configs"),
    ("words: activations", "words: activation", "the library has no `activation` for configs"),
    ("scale: {at: graph.layers.attention.scale}", "scale: {at: graph.layer.attention.scale}", "`graph` has no `layer`"),
    ("scale: {at: graph.layers.attention.scale}", "scale: {size: width, words: activations}", "`words: FILE` goes with `at: PATH`"),
    ("scale: {at: graph.layers.attention.scale}", "scale: {at: graph.layers.attention.scale, require: 1}",
     "`scale` takes `at:` or `require:`, not both"),
    ("act: {", "act: {default: gelo, ", "the default `gelo` is none of its values"),
    ("use: rope", 'use: rope\n    "rope_scaling.type": {require: 1}', "`rope_scaling.type` stands twice in `config:`"),
])
def test_what_is_wrong_with_a_section_is_said(old, new, said, tmp_path):
    assert old in FAMILY
    assert said in [headline for _, headline in wrong(tmp_path, FAMILY.replace(old, new))]
