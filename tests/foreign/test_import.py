"""A config.json changes the spec of its family, as a person would have written it, or everything that is wrong is said."""

import json
from pathlib import Path

import pytest
from nnspec.cli import main
from nnspec.ir.text import graph_text, identity_hash
from nnspec.lang.diagnostic import Diagnostics
from nnspec.model import import_checkpoint, load

FAMILY = """\
# yaml-language-server: $schema=../schema.json
nnspec: 1
name: toy
about: A toy.                                 # of nobody
use: [attention, ffn, layers]
sizes: {vocab: 11, width: 8, layers: 2, heads: 2, kv_heads: heads, hidden: 2 * width, eps: 1e-5}
inputs: {tokens: "int64[B, S]"}
graph:
  # the table
  embed: {op: embedding, in: tokens, entries: vocab, width: width}
  layers:
    repeat: layers
    block: pre_norm_layer
    in: embed
    norm: {op: rms_norm, eps: eps}
    attention: {block: multi_head_attention, heads: heads, kv_heads: kv_heads, causal: true}   # no mask
    ffn: {block: plain_ffn, hidden: hidden, activation: gelu}
  # the head
  logits: {op: linear, in: layers, width: vocab, bias: false}
outputs: {logits: logits}
checkpoint:
  model_type: [toy, toy2]
  config:
    use: []
    vocab: {size: vocab}
    "dim | size.dim": {size: width, default: 16}
    depth: {size: layers}
    heads: {size: heads, default: 4}
    kv: {size: kv_heads, default: heads}
    inner: {size: hidden, default: 3 * width}
    eps: {size: eps, default: 1e-6, choose: {exact: {set: {sizes.eps: 1e-3}}}}
    act: {at: graph.layers.ffn.activation, words: activations, default: gelu}
    scale: {at: graph.layers.attention.scale}
    tied:
      default: false
      choose:
        false: {}
        true:
          remove: [graph.logits.width, checkpoint.tensors.logits.weight]
          add: {graph.logits.weight: embed.weight}
          config: {share: {require: [all, null]}}
    arch: {choose: {Toy: {}}, default: Toy}
    rate: {require: [0, 2 * heads]}
    kinds: {pattern: layers, items: {near: {attention: {window: 3}}, far: {}}, default: far}
    "null": {choose: {null: {}, 3: {set: {graph.layers.attention.causal: false}}}}
    ignore: [seed, nested.deep]
  tensors:
    # ours: theirs
    embed.weight: wte
    logits.weight: lm
  ignore: ["*.mask"]
"""
CONFIG = {"model_type": "toy", "vocab": 13, "dim": 12, "depth": 4, "heads": 3, "use_cache": True, "seed": 7}


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(config=CONFIG, family=FAMILY, **changes):
        made = {k: v for k, v in (config | changes).items() if v is not ...}
        (tmp_path / "toy-1b").mkdir(exist_ok=True)
        (tmp_path / "toy-1b" / "config.json").write_text(
            "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in made.items()) + "\n}\n")
        (tmp_path / "toy.yaml").write_text(family)
        return "toy-1b", "toy.yaml"
    return write


def imported(paths, output="out.yaml"):
    """The written text; it must be the model that the folder is."""
    text = import_checkpoint(*paths, output)
    with open(output, "w") as file:
        file.write(text)
    again, direct = load(output), load(paths[0], family=paths[1])
    assert not again.warnings and not direct.warnings
    named = graph_text(direct.graph).splitlines()
    assert len(named) > 5 and again.parameters == direct.parameters
    if output == "toy-1b.yaml":
        assert identity_hash(again.graph) == identity_hash(direct.graph)
    return text


def items(paths):
    with pytest.raises(Diagnostics) as found:
        import_checkpoint(*paths, "never.yaml")
    return found.value.items


def test_sizes_comments_and_order_stay(write):
    text = imported(write(), "toy-1b.yaml")
    head, _, rest = text.partition("\n")
    assert head == "# Imported from a config.json of model_type toy, by the family toy."
    config = FAMILY[FAMILY.index("  model_type:"):FAMILY.index("  tensors:")]
    want = FAMILY.replace(config, "").replace("name: toy", "name: toy-1b").replace("about: A toy.", "about: Of the family of A toy.")
    want = want.partition("\n")[2].replace(
        "{vocab: 11, width: 8, layers: 2, heads: 2, kv_heads: heads, hidden: 2 * width, eps: 1e-5}",
        "{vocab: 13, width: 12, layers: 4, heads: 3, kv_heads: heads, hidden: 3 * width, eps: 1e-6}")
    assert rest == want


def test_every_form_of_a_choice(write):
    text = imported(write(act="relu", scale=0.25, tied=True, share="all", kv=1, eps="exact"), "toy-1b.yaml")
    assert "activation: relu}" in text and "causal: true, scale: 0.25}   # no mask" in text and "eps: 1e-3}" in text
    assert "logits: {op: linear, in: layers, bias: false, weight: embed.weight}" in text and "logits.weight:" not in text
    assert "kv_heads: 1," in text and "# the head" in text and "# ours: theirs" in text


@pytest.mark.parametrize("kinds, written", [
    (["near", "far", "near", "far"], "[{attention: {window: 3}}, {}]"), (["far"] * 4, None), (["near"] * 4, "[{attention: {window: 3}}]"),
    (["near", "near", "near", "far"], "[{times: 3, attention: {window: 3}}, {}]"),
    (["far", "near", "near", "far"], "[{}, {times: 2, attention: {window: 3}}]"),        # the cycle starts again with the last layer
])
def test_a_list_of_kinds_is_the_shortest_pattern(write, kinds, written):
    text = imported(write(kinds=kinds), "toy-1b.yaml")
    assert ("pattern:" in text) is (written is not None)
    assert written is None or f"    pattern: {written}\n" in text
    graph = load("toy-1b.yaml").graph
    layers = next(n for n in graph.root.nodes if n.name == "layers")
    said = [next(m.op.window for m in _inner(layers.op.bodies[k]) if m.op.name == "attention") for k in layers.op.schedule]
    assert said == [3 if k == "near" else None for k in kinds]


def _inner(region):
    for n in region.nodes:
        yield from (m for b in getattr(n.op, "bodies", [getattr(n.op, "body", None)]) if b is not None for m in _inner(b))
        if not hasattr(n.op, "bodies") and not hasattr(n.op, "body"):
            yield n


@pytest.mark.parametrize("given, shown", [
    (1e-05, "1e-5"), (10000.0, "1e4"), (5e5, "5e5"), (2048.0, "2048"), (1e-12, "1e-12"), (0.10, "0.1"), (12345.5, "12345.5"), (1, "1")])
def test_numbers_are_written_short(write, given, shown):
    assert f"eps: {shown}}}" in imported(write(eps=given))


def test_spellings_and_null(write):
    text = imported(write(dim=..., size={"dim": 12, "why": None}, kv=None, nothing=None, heads=None))
    assert "width: 12, " in text and "heads: 4, kv_heads: heads" in text
    assert "width: 12, " in imported(write(size={"dim": 12.0}))
    assert "causal: false" in imported(write(null=3)) and "causal: true" in imported(write(null=None))


def test_a_required_value_may_be_a_formula(write):
    imported(write(rate=6))
    imported(write(rate=0))
    (found,) = items(write(rate=5))
    assert found.code == "unsupported-config" and "`2 * heads`, which is 6" in found.headline and found.labels[0].span.text == "5"


def test_everything_wrong_is_said_at_once_with_its_line(write):
    found = items(write(vocab="many", depth=..., act="selu", seeed=3, tied="yes", arch=["Toi"], size={"dim": 9, "x": [1]}, share="all",
                        kinds=["near", "fare"], scale="big", rate=[1, 2]))
    said = {(d.code, d.labels[0].span.text) for d in found}
    assert said == {
        ("unsupported-config", '"many"'), ("missing-config-key", "{"), ("unsupported-config", '"selu"'), ("unknown-config-key", '"seeed"'),
        ("unsupported-config", '"yes"'), ("unsupported-config", '["Toi"]'), ("bad-config", "9"), ("unknown-config-key", '"x"'),
        ("unsupported-config", '"fare"'), ("unsupported-config", '"big"'),
        ("unsupported-config", "[1, 2]")}
    assert all(d.labels[0].span.source.name.endswith("config.json") for d in found)
    by = {d.labels[0].span.text: d for d in found}
    assert "did you mean `seed`?" in by['"seeed"'].helps and "did you mean `far`?" in by['"fare"'].helps
    assert "did you mean `Toy`?" in by['["Toi"]'].helps
    (found,) = items(write(tied=False, share="all"))
    assert found.code == "unknown-config-key" and "only where `tied` is `true`" in found.headline


def test_keys_of_a_choice_that_is_not_known_are_no_errors_on_top(write):
    (found,) = items(write(tied="yes", share="all"))
    assert found.labels[0].span.text == '"yes"'


def test_errors_of_the_model_point_into_the_config(write):
    (found,) = items(write(heads=5))
    assert found.code == "indivisible" and "config.json" in found.labels[0].span.source.name
    (found,) = items(write(kinds=["near"] * 3))
    assert "3 layers" in found.headline and "`layers`, which is 4" in found.headline
    (found,) = items(write(kinds=[]))
    assert "0 layers" in found.headline


def test_a_config_is_no_spec(write):
    folder, family = write()
    for given in (f"{folder}/config.json", "toy-1b/../toy-1b/config.json"):
        (found,) = items((given, family))
        assert found.code == "bad-path" and found.helps[0].startswith("give its folder: toy-1b")


@pytest.mark.parametrize("text, code, said", [
    ("", "bad-config", "is not JSON"), ("[1]", "bad-config", "an object was expected"), ("{}", "bad-config", "no `model_type`"),
    ('{"model_type": null}', "bad-config", "no `model_type`"), ('{"model_type": "lama"}', "unknown-family", "`lama`"),
    ('{"model_type": "toy", "model_type": "toy"}', "bad-config", "twice"), (None, "bad-config", "holds no config.json")])
def test_folders_without_a_family(tmp_path, text, code, said):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(Diagnostics) as found:
        load(tmp_path)
    (item,) = found.value.items
    assert item.code == code and said in item.headline
    if code == "unknown-family":
        assert item.helps[0] == "did you mean `llama`?" and "--family" in item.helps[-1]


def test_a_family_of_another_type(write):
    (found,) = items(write(model_type="toy3"))
    assert found.code == "unknown-family" and "`toy`, `toy2`" in found.headline
    assert imported(write(model_type="toy2"))
    assert imported(write(model_type=...))
    (found,) = items((write()[0], "bert-tiny"))
    assert found.code == "bad-path"
    (found,) = items((write()[0], "additive-seq2seq"))
    assert found.code == "unknown-family"


def test_a_family_with_a_base_or_aliases_is_written_whole(write, tmp_path):
    folder, _ = write()
    (tmp_path / "child.yaml").write_text("name: child\nbase: ./toy.yaml\nset: {graph.layers.ffn.activation: relu}\n"
                                         "add: {checkpoint.config.more: {require: 1}}\n")
    text = imported((folder, "child.yaml"), "toy-1b.yaml")
    assert "base:" not in text and "width: 12" in text and "config:" not in text
    aliased = FAMILY.replace("norm: {op: rms_norm, eps: eps}", "norm: &n {op: rms_norm, eps: eps}").replace(
        "  logits: {op: linear, in: layers", "  end: {<<: *n, in: layers}\n  logits: {op: linear, in: end")
    text = imported(write(family=aliased), "toy-1b.yaml")
    assert "end: {op: rms_norm, eps: eps, in: layers}" in text and "&n" not in text and "<<" not in text


def test_files_beside_the_family_are_found_from_the_spec(write, tmp_path):
    block = "nnspec: 1\nblocks:\n  twice:\n    inputs: {in: \"float[*b]\"}\n    graph: {out: {op: scale, in: in, by: 2}}\n"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.yaml").write_text(block)
    family = FAMILY.replace("use: [attention, ffn, layers]", "use: [attention, ffn, layers, ./mine.yaml]").replace(
        "in: embed\n", "in: more\n").replace("  layers:\n    repeat", "  more: {block: twice, in: embed}\n  layers:\n    repeat")
    folder, _ = write()
    (tmp_path / "lib" / "toy.yaml").write_text(family)
    (tmp_path / "specs").mkdir()
    assert "./mine.yaml" not in (text := imported((folder, "lib/toy.yaml"), "specs/toy-1b.yaml")) and "../lib/mine.yaml" in text


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return done.value.code, *capsys.readouterr()


def test_command_line(write, capsys, tmp_path):
    folder, family = write()
    code, out, err = run(capsys, "import", folder, "-o", "my-toy.yaml", "--family", family)
    assert (code, err) == (0, "") and out.startswith("wrote my-toy.yaml: ") and "name: my-toy\n" in (tmp_path / "my-toy.yaml").read_text()
    write(act="selu")
    code, out, err = run(capsys, "import", folder, "-o", "other.yaml", "--family", family)
    assert (code, out) == (2, "") and "config.json:" in err and not (tmp_path / "other.yaml").exists()
    code, out, err = run(capsys, "show", folder, "--family", family)
    assert code == 2 and "`act` is `selu`" in err
    write()
    code, out, err = run(capsys, "validate", folder, "--family", family, "--set", "layers=3")
    assert (code, err) == (0, "") and out.startswith("toy-1b: fine")
    text = Path(family).read_text()
    Path(family).write_text(text.replace("  tensors:\n", "  tensors:\n    embde.weight: wte\n", 1))
    code, out, err = run(capsys, "import", folder, "-o", "odd.yaml", "--family", family)
    assert (code, "no parameter is called `embde.weight`" in err) == (0, True) and out.startswith("wrote odd.yaml: ")
    code, out, err = run(capsys, "import", folder, "-o", "other.txt", "--family", family)
    assert code == 2 and "bad-command" in err


def test_folders_are_specs_of_every_command(tmp_path, capsys):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 20, "rope_scaling": None, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for command in (["validate", str(tmp_path)], ["show", str(tmp_path)], ["cost", str(tmp_path), "--at", "S=3"],
                    ["show", str(tmp_path), "--set", "layers=3"]):
        code, out, err = run(capsys, *command)
        assert (code, err) == (0, "") and out
    with pytest.raises(Diagnostics):
        load("llama-3-8b", family="gpt2")
