"""From a spec to its typed graph: golden prints, hashes, settings, slots, copies, absent values, hoisting, order.

`REFRESH=1 pytest tests/stages/test_elaborate.py` writes tests/golden/*.txt anew; read the difference before keeping it.
"""

import os
import random
import re
from pathlib import Path

import networkx as nx
import nnspec
import pytest
import yaml
import zoo
from nnspec.ir.graph import Branch, Call, Repeat, Scan, walk
from nnspec.ir.parameters import state_shapes
from nnspec.ir.text import graph_text, identity_hash, structure_hash
from nnspec.lang.diagnostic import Diagnostics
from nnspec.pipeline import find, front
from nnspec.stages.hoist import hoist
from nnspec.stages.simplify import simplify

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = """
nnspec: 1
name: golden
sizes: {hidden: 6}
inputs: {x: "float[B, S, 4]", keep: "optional bool[B, S]"}
graph:
  seen: {op: mean, in: x, axis: 1, keep: keep}
  twice: {repeat: 2, block: step, in: x, wide: hidden}
  back: {scan: walk, each: {now: twice}, carry: {state: 0}, key: first}
  first: {op: take, in: x, axis: 1, at: 0}
outputs: {out: back, state: back.last.state, seen: seen}
blocks:
  step:
    settings: {wide: int, width: int}
    inputs: {in: "float[*b, width]"}
    graph:
      up: {op: linear, in: in, width: wide}
      weights: {op: softmax, in: up}
      down: {op: linear, in: weights, width: width, bias: false}
      out: {op: add, in: [in, down]}
  walk:
    inputs: {now: "float[B, 4]", state: "float[B, 4]", key: "float[B, 4]"}
    graph:
      fixed: {op: linear, in: key, width: 4}
      next: {op: add, in: [now, state, fixed]}
    outputs: {out: next, state: next}
"""


@pytest.fixture
def compile_text(tmp_path):
    def run(text, sizes=None):
        path = tmp_path / "spec.yaml"
        path.write_text(text.strip() + "\n")
        return front(path, sizes)
    return run


def spec(inputs, graph, outputs, more=""):
    head = f"nnspec: 1\nuse: [attention, ffn, layers, positions]\n{more}\ninputs: {{{inputs}}}"
    return f"{head}\ngraph:\n  {graph.strip()}\noutputs: {outputs}\n"


def control(region, kind):
    return next(node for _, _, node in walk(region) if isinstance(node.op, kind))


def named(region):
    """Path -> node of every node, folded."""
    return {path: node for path, _, node in walk(region)}


# the canonical print

@pytest.mark.parametrize("name", ["settings", "additive-seq2seq", "gemma2"])
def test_golden(name, compile_text):
    """With source lines for the spec above; specs of files without, since their comments may move. Two are as targets see them."""
    if name == "settings":
        text = graph_text(compile_text(SETTINGS).graph)
    else:
        text = graph_text(zoo.model("hard/gemma2" if name == "gemma2" else name).lowered, margin=False)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REFRESH"):
        path.write_text(text)
    assert text == path.read_text(), f"REFRESH=1 writes {path.name} anew"


# hashes

def shuffled(tree, rng):
    """The same mapping with its keys in another order, but for `outputs:`, whose first is the default."""
    if not isinstance(tree, dict):
        return tree
    keys = list(tree)
    rng.shuffle(keys)
    return {k: tree[k] if k == "outputs" else shuffled(tree[k], rng) for k in keys}


@pytest.mark.parametrize("name", zoo.SPECS)
def test_order_style_and_comments_change_no_hash(name, tmp_path):
    path = zoo.HARD.parent / f"{name}.yaml" if "/" in name else find(name)
    tree, graph = yaml.safe_load(path.read_text()), front(path).graph
    for block in tree.get("blocks", {}).values():                               # the last node is what a block gives, unless it says
        block.setdefault("outputs", {"out": list(block["graph"])[-1]})
    for seed, flow in [(1, False), (2, True)]:
        other = tmp_path / f"{seed}.yaml"
        text = yaml.safe_dump(shuffled(tree, random.Random(seed)), sort_keys=False, default_flow_style=flow)
        other.write_text(f"# another comment\n{text}")
        found = front(other).graph
        assert structure_hash(found) == structure_hash(graph) and identity_hash(found) == identity_hash(graph)


RENAMES = [("twice", "again"), ("step", "stride"), ("up", "lift"), ("state", "memory"), ("key", "anchor"), ("wide", "inner"),
           ("x:", "given:")]


@pytest.mark.parametrize("old, new", RENAMES)
def test_names_change_identity_and_not_structure(old, new, compile_text):
    word = re.escape(old.rstrip(":"))
    text = re.sub(rf"(?<![\w.]){word}\b|(?<=last\.){word}\b", new.rstrip(":"), SETTINGS)
    assert text != SETTINGS
    a, b = compile_text(SETTINGS).graph, compile_text(text).graph
    assert structure_hash(a) == structure_hash(b)
    assert (identity_hash(a) == identity_hash(b)) == (old == "wide")              # a setting leaves no name in the graph


CHANGES = [("hidden: 6", "hidden: 7"), ("bias: false", "bias: true"), ("repeat: 2", "repeat: 3"), ("[in, down]", "[down, down]"),
           ("op: softmax", "op: tanh"), ("carry: {state: 0}", "carry: {state: first}"), ("back.last.state", "first"),
           ("out: back,", "out: twice, other: back,"), ("x, axis: 1, at: 0", "x, axis: 1, at: 1"), ("repeat: 2,", "repeat: 2, share: 0,"),
           ("scan: walk,", "scan: walk, backward: true,"), ("each: {now: twice}", "each: {now: x}")]


@pytest.mark.parametrize("old, new", CHANGES)
def test_changes_of_the_function_change_both_hashes(old, new, compile_text):
    assert SETTINGS.count(old) == 1
    a, b = compile_text(SETTINGS).graph, compile_text(SETTINGS.replace(old, new)).graph
    assert structure_hash(a) != structure_hash(b) and identity_hash(a) != identity_hash(b)


def test_tied_and_equal_weights_differ_in_structure(compile_text):
    graph = """
  a: {{op: linear, in: x, width: 4, bias: false}}
  b: {{op: linear, in: x, width: 4, bias: false{}}}
  c: {{op: add, in: [a, b]}}"""
    own, tied = (compile_text(spec('x: "float[B, 4]"', graph.format(more), "c")).graph for more in ("", ", weight: a.weight"))
    assert structure_hash(own) != structure_hash(tied)


# settings, slots, copies

def test_settings_are_solved_from_shapes_and_defaults_from_settings(compile_text):
    found = compile_text("""
nnspec: 1
inputs: {x: "float[B, 12]"}
graph: {a: {block: b, in: x}, c: {block: b, in: x, k: 5}}
outputs: {a: a, c: c}
blocks:
  b:
    settings: {n: int, k: int = n // 4}
    inputs: {in: "float[B, 3 * n]"}
    graph: {out: {op: linear, in: in, width: k + n}}
""")
    root = found.graph.root
    assert {n: str(root.type(v)) for n, v in root.outputs} == {"a": "float[B, 5]", "c": "float[B, 9]"}


def test_a_given_setting_must_agree_with_the_shapes(compile_text):
    with pytest.raises(Diagnostics) as caught:
        compile_text("""
nnspec: 1
inputs: {x: "float[B, 12]"}
graph: {a: {block: b, in: x, n: 5}}
outputs: a
blocks:
  b: {settings: {n: int}, inputs: {in: "float[B, 3 * n]"}, graph: {out: {op: tanh, in: in}}}
""")
    (found,) = caught.value.items
    assert found.code == "shape-mismatch" and "12" in str(found) and "15" in str(found)


CLOSURE = """
nnspec: 1
inputs: {x: "float[B, 4]", other: "float[B, 4]"}
graph: {out: {block: outer, in: x, fill: {op: add, in: [other], with: 1}}}
outputs: out
blocks:
  outer:
    inputs: {in: "float[B, 4]"}
    slots: {fill: "float[B, 4] -> float[B, 4]"}
    graph:
      other: {op: scale, in: in, by: 2}
      out: {slot: fill, in: other}
"""


def test_a_fill_reads_the_place_where_it_is_written(compile_text):
    """`other` means the caller's value although the layer has a node of that name; the layer gets it as an argument."""
    text = CLOSURE.replace("fill: {op: add, in: [other], with: 1}", "fill: {block: plus, extra: other}") + """
  plus:
    inputs: {in: "float[B, 4]", extra: "float[B, 4]"}
    graph: {out: {op: subtract, in: [in, extra]}}
"""
    call = control(compile_text(text).graph.root, Call)
    region = call.op.body
    fill = next(n for n in region.nodes if isinstance(n.op, Call))
    assert region.label(fill.inputs["in"]) == "other" and fill.inputs["extra"].node == -1
    captured = region.label(fill.inputs["extra"])
    assert call.inputs[captured] == compile_text(text).graph.root.argument("other")


def test_an_optional_slot_passes_through(compile_text):
    text = CLOSURE.replace(", fill: {op: add, in: [other], with: 1}", "").replace('{fill: "float', '{fill: "optional float')
    body = control(compile_text(text).graph.root, Call).op.body
    assert [n.op.name for n in body.nodes] == ["scale"] and body.label(body.outputs[0][1]) == "other"


LAYERS = """layers:
    repeat: {n}
    block: pre_norm_layer
    in: x
    norm: {{op: layer_norm}}
    attention: {{block: multi_head_attention, heads: 2, causal: true}}
    ffn: {{block: plain_ffn, hidden: 6}}
    {more}"""


@pytest.mark.parametrize("n, more, schedule, share", [
    (5, "", (0,) * 5, (0, 1, 2, 3, 4)),
    (5, "pattern: [{attention: {window: 3}}, {}]", (0, 1, 0, 1, 0), (0, 1, 2, 3, 4)),
    (5, "pattern: [{times: 2, ffn: {hidden: 8}}, {times: 3}]", (0, 0, 1, 1, 1), (0, 1, 2, 3, 4)),
    (5, "pattern: [{times: 0, ffn: {hidden: 8}}, {times: 2}, {attention: {window: 3}}]", (0, 0, 1, 0, 0), (0, 1, 2, 3, 4)),
    (4, "share: 0", (0,) * 4, (0,) * 4),
    (5, "share: i // 2", (0,) * 5, (0, 0, 2, 2, 4)),
    (4, "share: i % 2", (0,) * 4, (0, 1, 0, 1)),
    (4, "share: i % 2\n    pattern: [{attention: {window: 3}}, {}]", (0, 1, 0, 1), (0, 1, 0, 1)),
])
def test_pattern_and_share_say_what_each_copy_runs_and_owns(n, more, schedule, share, compile_text):
    text = spec('x: "float[B, S, 4]"', LAYERS.format(n=n, more=more), "layers")
    graph = compile_text(text).graph
    op = control(graph.root, Repeat).op
    assert op.share == share and op.schedule == schedule
    owners = {int(p.split(".")[1]) for p in state_shapes(graph)}
    assert owners == set(op.share)


def test_a_pattern_without_a_copy_is_refused(compile_text):
    with pytest.raises(Diagnostics) as caught:
        compile_text(spec('x: "float[B, S, 4]"', LAYERS.format(n=4, more="pattern: [{times: 0}]"), "layers"))
    assert [d.headline for d in caught.value.items] == ["the pattern holds no copy"]


def test_copies_that_differ_cannot_share(compile_text):
    with pytest.raises(Diagnostics) as caught:
        compile_text(spec('x: "float[B, S, 4]"', LAYERS.format(n=4, more="share: 0\n    pattern: [{ffn: {hidden: 8}}, {}]"), "layers"))
    assert [d.code for d in caught.value.items] == ["bad-attribute"] and "share" in caught.value.items[0].headline


def test_each_gives_every_copy_its_own(compile_text):
    found = compile_text(spec('x: "float[B, 4]", more: "float[3, B, 4]"', """
  a: {repeat: 3, op: add, in: x, each: {b: more}}
""".replace("op: add, in: x, each: {b: more}", "block: plus, in: x, each: {b: more}"), "{last: a, all: a.all}", """
blocks:
  plus:
    inputs: {in: "float[B, 4]", b: "float[B, 4]"}
    graph: {out: {op: add, in: [in, b]}}"""))
    op = control(found.graph.root, Repeat).op
    assert op.each == {"b": (0, 1, 2)} and op.carry == {"in": "out"}
    assert {n: str(found.graph.root.type(v)) for n, v in found.graph.root.outputs} == {"last": "float[B, 4]", "all": "float[3, B, 4]"}


def test_branch_stacks_its_copies(compile_text):
    found = compile_text(spec('x: "float[B, 4]"', "a: {branch: 3, op: linear, in: x, width: 5}", "a.all"))
    assert isinstance(control(found.graph.root, Branch).op, Branch)
    assert [str(found.graph.root.type(v)) for _, v in found.graph.root.outputs] == ["float[3, B, 5]"]
    assert set(state_shapes(found.graph)) == {f"a.{i}.{k}" for i in range(3) for k in ("weight", "bias")}


# optional values

def test_absence_leaves_optional_ports_alone(compile_text):
    graph = "seen: {op: and, in: [keep, inside]}\n  inside: {op: length_mask, in: length, like: x}\n  out: {op: softmax, in: x, keep: seen}"
    root = compile_text(spec('x: "float[B, S]", keep: "optional bool[B, S]", length: "optional int64[B]"', graph, "out")).graph.root
    nodes = named(root)
    assert nodes["inside"].types[0].optional and nodes["seen"].types[0].optional and not nodes["out"].types[0].optional


def test_absent_values_cannot_enter_required_ports(compile_text):
    with pytest.raises(Diagnostics) as caught:
        compile_text(spec('x: "float[B, S]", bias: "optional float[B, S]"', "out: {op: add, in: [x, bias]}", "out"))
    (found,) = caught.value.items
    assert "optional" in str(found).lower() or "absent" in str(found).lower()


# hoisting and idle arguments

def test_what_does_not_change_leaves_the_scan_with_its_parameters():
    model = zoo.model("additive-seq2seq")
    before, after = named(model.graph.root), named(model.lowered.root)
    assert set(before) == set(after)
    moved = {"decoder.attend.memory_part", "decoder.attend.memory_part.weight", "decoder.attend.read.inside", "decoder.attend.read.seen"}
    top = {n.name for n in model.lowered.root.nodes}
    assert moved <= top and not moved & {n.name for n in model.graph.root.nodes}
    assert "decoder.attend.query_part" not in top and "decoder.attend.score.weight" not in top
    assert state_shapes(model.graph).keys() == state_shapes(model.lowered).keys()


def test_idle_arguments_are_dropped_on_the_way_down():
    """The length is needed by the mask alone, which has left: neither the scan nor the calls in it still take it."""
    model = zoo.model("additive-seq2seq")
    for graph, there in [(model.graph, True), (model.lowered, False)]:
        scan = control(graph.root, Scan)
        calls = [n for _, _, n in walk(scan.op.body) if isinstance(n.op, Call)]
        for node in [scan, *calls]:
            assert ("length" in node.inputs) is there
            assert ("length" in {a.name for a in node.op.bodies[0].arguments}) is there


def test_random_nodes_and_what_reads_them_stay_in_the_scan(compile_text):
    compiled = compile_text("""
nnspec: 1
inputs: {x: "float[B, T, 4]", key: "float[B, 4]"}
graph: {out: {scan: step, each: {now: x}, carry: {state: 0}, key: key}}
outputs: {out: out}
blocks:
  step:
    inputs: {now: "float[B, 4]", state: "float[B, 4]", key: "float[B, 4]"}
    graph:
      plain: {op: linear, in: key, width: 4}
      noisy: {op: dropout, in: plain, rate: 0.5}
      after: {op: linear, in: noisy, width: 4}
      next: {op: add, in: [now, state, after]}
    outputs: {out: next, state: next}
""")
    top = {n.name for n in compiled.lowered().root.nodes}
    assert {"out.plain", "out.plain.weight", "out.plain.bias"} <= top
    assert not {"out.noisy", "out.after", "out.after.weight"} & top


def test_hoisting_twice_is_hoisting_once():
    for name in ("additive-seq2seq", "luong", "hard/pointer", "hard/mamba"):
        lowered = zoo.model(name).lowered
        assert graph_text(simplify(hoist(lowered))) == graph_text(lowered)


# order, loops, what is not used

def test_nodes_follow_what_they_read(compile_text):
    rng = random.Random(7)
    for trial in range(5):
        edges = [(a, b) for b in range(1, 12) for a in rng.sample(range(b), min(b, 2))]
        reads = {b: sorted({a for a, c in edges if c == b}) for b in range(12)}
        lines = [f"n{b}: {{op: add, in: [{', '.join([f'n{a}' for a in reads[b]] + ['x'] * (2 - len(reads[b])))}]}}" for b in range(12)]
        rng.shuffle(lines)
        text = spec('x: "float[B, 4]"', "\n  ".join(lines), "{" + ", ".join(f"o{b}: n{b}" for b in range(12)) + "}")
        root = compile_text(text).graph.root
        made = [n.name for n in root.nodes]
        graph = nx.DiGraph([(f"n{a}", f"n{b}") for a, b in edges])
        assert sorted(made) == sorted(graph.nodes), trial
        assert all(made.index(a) < made.index(b) for a, b in graph.edges)
        assert all(v.node < n.id for n in root.nodes for v in n.values)


def found_in(compile_text, graph, outputs="out"):
    with pytest.raises(Diagnostics) as caught:
        compile_text(spec('x: "float[B, 4]"', graph, outputs))
    return caught.value.items


def test_a_cycle_names_its_nodes_in_order_and_nobody_else(compile_text):
    """networkx sorts lazily and names nobody (networkx#8605); here each edge has its line."""
    (found,) = found_in(compile_text, """
  emb: {op: tanh, in: x}
  a: {op: add, in: [emb, c]}
  b: {op: tanh, in: a}
  c: {op: tanh, in: b}
  out: {op: tanh, in: emb}""")
    assert found.code == "cycle" and "emb" not in found.headline
    assert all(f"`{n}`" in str(found) or n in found.headline for n in "abc")
    assert len({label.span.line for label in found.labels}) == 3


def test_a_self_loop_and_two_loops(compile_text):
    (found,) = found_in(compile_text, "a: {op: add, in: [x, a]}\n  out: {op: tanh, in: x}")
    assert found.code == "cycle"
    two = found_in(compile_text, """
  a: {op: tanh, in: b}
  b: {op: tanh, in: a}
  c: {op: tanh, in: d}
  d: {op: tanh, in: c}
  out: {op: tanh, in: x}""")
    assert [d.code for d in two] == ["cycle", "cycle"]


def test_what_no_output_reads_is_said_once_and_not_lost(compile_text):
    graph = "a: {op: linear, in: x, width: 3}\n  b: {op: tanh, in: a}\n  out: {op: tanh, in: x}"
    compiled = compile_text(spec('x: "float[B, 4]"', graph, "out"))
    assert [(d.code, "`b`" in d.headline) for d in compiled.warnings] == [("unused", True)]
    assert any("`a`" in note for note in compiled.warnings[0].notes)
    assert set(state_shapes(compiled.lowered())) == {"a.weight", "a.bias"}


def test_an_unknown_key_is_told_where_an_input_is_wrong_too(compile_text):
    with pytest.raises(Diagnostics) as found:
        compile_text("""
nnspec: 1
inputs: {x: "float[B, 4]"}
graph:
  a: {op: linear, in: y, widht: 3}
  b: {op: linear, in: z, width: 3}
  c: {op: linear, in: b, widht: 3}
outputs: {a: a, c: c}
""")
    assert [d.headline for d in found.value.items] == [
        "op `linear` has no key `widht`", "no node or input is called `z`", "op `linear` has no key `widht`"]


def test_a_block_of_the_base_that_a_variant_does_without(tmp_path):
    (tmp_path / "base.yaml").write_text("""
nnspec: 1
inputs: {x: "float[B, 4]"}
graph: {a: {block: twice, in: x}}
outputs: [a]
blocks: {twice: {inputs: {in: "float[B, 4]"}, graph: {out: {op: scale, in: in, by: 2}}}}
""")
    (tmp_path / "variant.yaml").write_text("base: ./base.yaml\nset: {graph.a: {op: square, in: x}}\n")
    (warning,) = nnspec.load(tmp_path / "variant.yaml").warnings
    assert warning.headline == "nothing uses block `twice`" and warning.helps == ("write `remove: [blocks.twice]`",)
