from pathlib import Path

import pytest
from nnspec.lang.diagnostic import Diagnostics, Sink
from nnspec.lang.source import Source
from nnspec.lang.tree import Mapping, plain
from nnspec.render import render
from nnspec.stages.compose import compose, override
from nnspec.stages.decode import decode
from nnspec.stages.parse import parse, read_source

BASE = """\
nnspec: 1
name: base
about: The base.
use: [attention]
sizes: {width: 8, heads: [2, 4]}
graph:
  embed: {op: embedding, in: tokens, entries: 11, width: width}
  layers:
    repeat: 2
    block: layer
    in: embed
    norm: rms_norm
    attention: {block: attend, heads: 2, causal: true}
    pattern:
      - {attention: {window: 4}}
      - {}
      - {times: 2}
outputs: {out: layers}
checkpoint:
  tensors:
    "layers.{i}.weight": h.{i}.w
"""


def block_file(name, use=""):
    return f"nnspec: 1\n{use}blocks:\n  {name}: {{inputs: {{in: 'float[*b]'}}, graph: {{out: {{op: tanh, in: in}}}}}}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes files, and composes one of them, reading each file at most once."""
    monkeypatch.chdir(tmp_path)
    Path("library").mkdir()
    Path("library/attention.yaml").write_text(block_file("attend"))
    Path("library/recurrent.yaml").write_text(block_file("step"))
    Path("base.yaml").write_text(BASE)
    loaded = []

    def load(path):
        loaded.append(path.resolve())
        source = read_source(path)
        return source, parse(source)

    def run(text, name="spec.yaml", **files):
        for file, body in files.items():
            Path(f"{file}.yaml").write_text(body)
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
        loaded.clear()
        sink = Sink()
        source = read_source(name)
        whole = compose(source, parse(source), load, sink, Path("library"))
        assert len(loaded) == len(set(loaded))
        return whole, Diagnostics(sink.items).items
    return run


def whole(folder, text, **files):
    composed, errors = folder(text, **files)
    assert not errors, render(errors)
    return composed


def error(folder, text, **files):
    _, errors = folder(text, **files)
    assert len(errors) == 1, render(errors)
    return errors[0]


def variant(changes):
    return "nnspec: 1\nbase: base.yaml\n" + changes


def marks(d):
    return [(x.span.source.name, x.span.text) for x in d.labels]


# variants


def test_a_spec_without_base_is_left_alone(folder):
    found = whole(folder, BASE)
    assert found.tree == parse(found.source)


def test_a_variant_without_changes_is_the_base_under_its_own_name(folder):
    found = plain(whole(folder, variant("")).tree)
    want = plain(parse(Source("base.yaml", BASE)))
    del want["name"]                                       # the file's own name, then
    assert found == want
    found = plain(whole(folder, variant("name: mine\nabout: Mine.\nx-a: 1\n")).tree)
    assert found == want | {"name": "mine", "about": "Mine.", "x-a": "1"}


CHANGES = {
    "set: {sizes.width: 16}": (["sizes", "width"], "16"),
    "set: {graph.layers.attention.heads: 4}":
        (["graph", "layers", "attention"], {"block": "attend", "heads": "4", "causal": "true"}),
    "set: {graph.layers.attention: {block: other}}": (["graph", "layers", "attention"], {"block": "other"}),
    "set: {sizes.heads.1: 8}": (["sizes", "heads"], ["2", "8"]),
    "set: {graph.layers.pattern.0.attention.window: 9}": (["graph", "layers", "pattern", 0], {"attention": {"window": "9"}}),
    'add: {checkpoint.config: {}, "checkpoint.config.a.b | c.d": 1}': (["checkpoint", "config"], {"a.b | c.d": "1"}),
    'set: {"checkpoint.tensors.layers.{i}.weight": x}': (["checkpoint", "tensors"], {"layers.{i}.weight": "x"}),
    "add: {graph.layers.attention.window: 5}": (["graph", "layers", "attention", "window"], "5"),
    "add: {graph.more: {op: tanh, in: layers}}": (["graph", "more"], {"op": "tanh", "in": "layers"}),
    "add: {budget: {parameters: 9}}": (["budget"], {"parameters": "9"}),
    "add: {sizes.heads.2: 6}": (["sizes", "heads"], ["2", "4", "6"]),
    "remove: graph.layers.norm": (["graph", "layers", "attention"], {"block": "attend", "heads": "2", "causal": "true"}),
    "remove: [sizes.heads.0]": (["sizes", "heads"], ["4"]),
    "remove: [graph.layers.pattern.0, graph.layers.pattern.1]": (["graph", "layers", "pattern"], [{"times": "2"}]),
    "remove: [graph.layers.pattern.1, graph.layers.pattern.0]": (["graph", "layers", "pattern"], [{"times": "2"}]),
    "remove: [sizes, sizes.width]": (["graph", "layers", "repeat"], "2"),
    "remove: [graph.embed]\nadd: {graph.embed: {op: new}}": (["graph", "embed"], {"op": "new"}),
    "set: {graph.layers.attention: {block: b}}\nadd: {graph.layers.attention.c: 1}":
        (["graph", "layers", "attention"], {"block": "b", "c": "1"}),
}


@pytest.mark.parametrize("changes", CHANGES)
def test_changes(folder, changes):
    path, want = CHANGES[changes]
    found = plain(whole(folder, variant(changes)).tree)
    for step in path:
        found = found[step]
    assert found == want


def test_removed_keys_are_gone_and_the_rest_stays(folder):
    found = plain(whole(folder, variant("remove: [graph.layers.norm, about, checkpoint]")).tree)
    want = plain(parse(Source("base.yaml", BASE)))
    del want["graph"]["layers"]["norm"], want["checkpoint"], want["about"], want["name"]
    assert found == want


def test_spans_are_those_of_each_piece(folder):
    tree = whole(folder, variant("set: {sizes.width: 16}\nadd: {graph.layers.gate: {op: tanh}}")).tree
    sizes, layers = tree.get("sizes"), tree.get("graph").get("layers")
    assert (str(sizes.entry("width").key.span), str(sizes.get("width").span)) == ("base.yaml:5:9", "spec.yaml:3:20")
    gate = layers.entry("gate")
    assert (gate.key.span.text, gate.key.span.source.name, gate.value.span.text) == ("gate", "spec.yaml", "{op: tanh}")
    assert layers.get("norm").span.source.name == "base.yaml"
    tree = whole(folder, variant('set: {"graph.layers.norm": {op: tanh}}')).tree
    key = tree.get("graph").get("layers").entry("norm").key
    assert (key.text, key.span.text, key.span.source.name) == ("norm", "norm", "spec.yaml")


def test_bases_have_bases(folder):
    middle = variant("name: middle\nset: {sizes.width: 16}\nadd: {sizes.more: 1}")
    found = plain(whole(folder, "base: middle.yaml\nset: {sizes.more: 2, sizes.heads: [8]}", middle=middle).tree)
    assert found["sizes"] == {"width": "16", "heads": ["8"], "more": "2"}
    assert "name" not in found and found["about"] == "The base."


UNKNOWN = {
    "set: {graph.layer.attention: 1}": ("layer", ("did you mean `graph.layers`?",), ("base.yaml", "graph")),
    "set: {graph.layers.atention.heads: 1}": ("atention", ("did you mean `graph.layers.attention`?",), ("base.yaml", "layers")),
    "set: {'graph.layers.atention': 1}": ("atention", ("did you mean `graph.layers.attention`?",), ("base.yaml", "layers")),
    "set: {graf.layers: 1}": ("graf", ("did you mean `graph`?",), ("spec.yaml", "base.yaml")),
    "remove: [sizes.zzz]": ("zzz", ("known keys: heads, width",), ("base.yaml", "sizes")),
    "add: {graph.more.attention: 1}": ("more", ("known keys: embed, layers",), ("base.yaml", "graph")),
    "set: {graph.layers.norm.eps: 1}": ("eps", ("set the whole of it: `graph.layers.norm: {...}`",), ("base.yaml", "norm")),
    "set: {sizes.heads.2: 1}": ("2", ("items count from 0; `add:` takes 2, which goes after the last",), ("base.yaml", "heads")),
    "add: {sizes.heads.3: 1}": ("3", ("items count from 0; `add:` takes 2, which goes after the last",), ("base.yaml", "heads")),
}


@pytest.mark.parametrize("changes", UNKNOWN)
def test_unknown_paths(folder, changes):
    word, helps, second = UNKNOWN[changes]
    d = error(folder, variant(changes))
    assert (d.code, marks(d), d.helps) == ("unknown-path", [("spec.yaml", word), second], helps)


def test_set_of_a_new_key_points_at_add(folder):
    d = error(folder, variant("set: {graph.layers.attention.window: 4}"))
    assert (d.code, d.helps[-1]) == ("unknown-path", "a new key goes under `add:`: `add: {graph.layers.attention.window: ...}`")


def test_add_refuses_what_is_there(folder):
    d = error(folder, variant("add: {sizes.width: 1}"))
    assert (d.code, marks(d)) == ("path-exists", [("spec.yaml", "sizes.width"), ("base.yaml", "width")])
    assert error(folder, variant("add: {graph: {}}")).code == "path-exists"
    assert error(folder, variant("add: {sizes.heads.0: 1}")).code == "path-exists"


def test_a_removed_path_cannot_be_set(folder):
    assert error(folder, variant("remove: [sizes.width]\nset: {sizes.width: 1}")).code == "unknown-path"


def test_all_wrong_changes_at_once(folder):
    _, errors = folder(variant("set: {a: 1, sizes.width: 2}\nremove: [b]\nadd: {c.d: 1, sizes.heads: 1}"))
    assert [d.code for d in errors] == ["unknown-path", "unknown-path", "unknown-path", "path-exists"]


@pytest.mark.parametrize("changes, code, text", [
    ("graph: {a: {op: tanh}}", "unknown-key", "graph"), ("sset: {}", "unknown-key", "sset"), ("set: [a]", "bad-spec", "[a]"),
    ("remove: {a: b}", "bad-spec", "{a: b}"), ("remove: [[a]]", "bad-spec", "[[a]]"), ("add: x", "bad-spec", "x"),
    ("inputs: {}", "unknown-key", "inputs"), ('set: {"": 1}', "unknown-path", ""), ("set: {sizes..width: 1}", "unknown-path", ""),
])
def test_what_a_variant_cannot_say(folder, changes, code, text):
    try:
        d = error(folder, variant(changes))
    except Diagnostics as found:                           # an empty key does not reach this stage
        assert found.items[0].code == "yaml-key"
    else:
        assert (d.code, d.labels[0].span.text) == (code, text)


def test_changes_need_a_base(folder):
    _, errors = folder("graph: {}\nset: {a: 1}\nremove: [b]\n")
    assert [(d.code, d.labels[0].span.text) for d in errors] == [("missing-key", "set"), ("missing-key", "remove")]


def test_a_spec_is_a_mapping(folder):
    assert error(folder, "[a, b]").code == "bad-spec"
    d = error(folder, "base: list.yaml", list="- a")
    assert (d.code, d.labels[0].span.source.name) == ("bad-spec", "list.yaml")
    assert error(folder, "base: [base.yaml]").code == "bad-spec"


def test_bases_in_a_loop(folder):
    d = error(folder, "base: one.yaml", one="base: two.yaml", two="base: one.yaml")
    assert (d.code, d.headline) == ("cycle", "files name each other in a loop: one.yaml -> two.yaml -> one.yaml")
    assert marks(d) == [("two.yaml", "one.yaml"), ("one.yaml", "two.yaml")]
    assert error(folder, "base: one.yaml\nset: {sizes.a: 1}", one="base: spec.yaml\nset: {sizes.b: 1}").code == "cycle"
    assert error(folder, "base: ./spec.yaml").headline == "files name each other in a loop: spec.yaml -> spec.yaml"


# paths


@pytest.mark.parametrize("text, help", [
    ("base: bse.yaml", ("did you mean `base.yaml`?",)), ("use: [atention]", ("did you mean `attention`?",)),
    ("use: [zzz]", ("known files of the library: attention, recurrent",)),
    ("use: base", ("for the file beside this one write `./base.yaml`",)),
    ("use: [./spce.yaml]", ("did you mean `spec.yaml`?",)), ("base: /etc/base.yaml", None), ("use: ['..\\base.yaml']", None),
    ("base: ~/base.yaml", None), ("use: ['c:/base.yaml']", None), ('base: "a\\0b"', None), ('use: ["./a\\0b.yaml"]', None),
    ("base: ''", None), ("base: ./library", ()), (f"use: [{'a' * 5000}]", None), (f"base: {'a/' * 3000}b.yaml", ()),
])
def test_bad_paths(folder, text, help):
    d = error(folder, text)
    assert d.code == "bad-path" and d.labels[0].span.source.name == "spec.yaml"
    assert help is None or d.helps == help


def test_errors_of_a_named_file_say_who_named_it(folder):
    d = error(folder, "use: [./bad.yaml]", bad="a: [1")
    assert (d.code, marks(d)[0][0], marks(d)[-1]) == ("yaml-syntax", "bad.yaml", ("spec.yaml", "./bad.yaml"))


def test_a_wrong_file_is_reported_once(folder):
    d = error(folder, "use: [./bad.yaml, ./user.yaml]", bad="a: [1", user=block_file("u", "use: [./bad.yaml]\n"))
    assert d.code == "yaml-syntax"
    user = block_file("u", "use: [./v.yaml]\n")
    assert error(folder, "use: [./v.yaml, ./user.yaml]", v="base: none.yaml\n", user=user).code == "bad-path"
    assert error(folder, "use: [./none.yaml, ./user.yaml]", user=block_file("u", "use: [./none.yaml]\n")).code == "bad-path"


# used files


def names(found):
    return [(Path(u.source.name).stem, [Path(s.name).stem for s in u.uses]) for u in found.files]


def test_used_files_come_once_and_after_what_they_use(folder):
    found = whole(folder, "use: [./a.yaml, ./b.yaml, recurrent, ./a.yaml]", a=block_file("a", "use: ./c.yaml\n"),
                  b=block_file("b", "use: [recurrent, ./c.yaml]\n"), c=block_file("c"))
    assert names(found) == [("c", []), ("a", ["c"]), ("recurrent", []), ("b", ["recurrent", "c"])]
    assert [Path(s.name).stem for s in found.uses] == ["a", "b", "recurrent"]


def test_paths_are_relative_to_the_file_that_names_them(folder):
    Path("deep/er").mkdir(parents=True)
    Path("deep/base.yaml").write_text("use: [./er/blocks.yaml]\nsizes: {a: 1}\n")
    Path("deep/er/blocks.yaml").write_text(block_file("x", "use: [../../side.yaml]\n"))
    found = whole(folder, "base: deep/base.yaml\nadd: {use.1: ./near.yaml}", side=block_file("s"), near=block_file("n"))
    assert names(found) == [("side", []), ("blocks", ["side"]), ("near", [])]


def test_used_files_in_a_loop(folder):
    d = error(folder, "use: [./a.yaml]", a=block_file("a", "use: [./b.yaml]\n"), b=block_file("b", "use: [./a.yaml]\n"))
    assert (d.code, d.headline) == ("cycle", "files name each other in a loop: a.yaml -> b.yaml -> a.yaml")


def test_a_used_file_may_be_a_variant(folder):
    found = whole(folder, "use: [./v.yaml]", v="base: a.yaml\nset: {sizes.n: 2}", a="sizes: {n: 1}\n" + block_file("a"))
    assert plain(found.files[0].tree)["sizes"] == {"n": "2"} and "blocks" in plain(found.files[0].tree)


# name spaces


def decoded(found):
    sink = Sink()
    return decode(found.source, found.tree, found.files, sink, found.uses), sink.errors


MAIN = "graph: {a: {op: tanh, in: x}}\noutputs: [a]\n"


def test_a_file_sees_the_blocks_of_the_files_it_names(folder):
    spec, errors = decoded(whole(folder, "use: [./a.yaml]\nblocks: {own: {graph: {x: {op: tanh}}}}\n" + MAIN,
                                 a=block_file("a", "use: ./b.yaml\n"), b=block_file("b", "use: [recurrent]\n")))
    assert not errors
    assert set(spec.unit.blocks) == {"own", "a"}
    a = spec.unit.blocks["a"].unit
    assert set(a.blocks) == {"a", "b"} and set(a.blocks["b"].unit.blocks) == {"b", "step"}


def test_used_files_must_not_clash(folder):
    _, errors = decoded(whole(folder, "use: [./a.yaml, ./b.yaml]\n" + MAIN, a=block_file("same"), b=block_file("same")))
    assert [(d.code, marks(d)) for d in errors] == [("duplicate-name", [("b.yaml", "same"), ("a.yaml", "same")])]
    _, errors = decoded(whole(folder, "use: [./a.yaml]\nblocks: {same: {graph: {x: {op: tanh}}}}\n" + MAIN, a=block_file("same")))
    assert [(d.code, marks(d)) for d in errors] == [("duplicate-name", [("spec.yaml", "same"), ("a.yaml", "same")])]


def test_files_that_are_not_named_together_may_clash(folder):
    spec, errors = decoded(whole(folder, "use: [./a.yaml]\nblocks: {same: {graph: {x: {op: tanh}}}}\n" + MAIN,
                                 a=block_file("a", "use: ./b.yaml\n"), b=block_file("same")))
    assert not errors
    assert spec.unit.blocks["same"].span.source.name == "spec.yaml"
    assert spec.unit.blocks["a"].unit.blocks["same"].span.source.name == "b.yaml"


# sizes from the command line


def test_override():
    tree = parse(Source("spec.yaml", BASE))
    sink = Sink()
    found = override(tree, {"width": "32", "heads": "[1, 2]"}, sink)
    assert not sink.items
    assert isinstance(found, Mapping) and plain(found.get("sizes")) == {"width": "32", "heads": "[1, 2]"}
    span = found.get("sizes").get("width").span
    assert (span.source.name, span.text) == ("--set width=32", "32")
    assert plain(tree)["sizes"]["width"] == "8"


def test_override_of_an_unknown_size():
    sink = Sink()
    override(parse(Source("spec.yaml", BASE)), {"widht": "32", "zzz": "1"}, sink)
    assert [(d.code, d.labels[0].span.text, d.helps) for d in sink.items] == [
        ("unknown-name", "widht", ("did you mean `width`?",)), ("unknown-name", "zzz", ("known sizes: heads, width",))]
    override(parse(Source("spec.yaml", "a: 1")), {"x": "1"}, sink)
    assert sink.items[-1].code == "unknown-name"


