import time

import pytest
from nnspec import pipeline
from nnspec.lang.diagnostic import Diagnostics, Sink
from nnspec.lang.source import Source
from nnspec.lang.spec import RESERVED
from nnspec.lang.tree import Mapping, Scalar, Sequence
from nnspec.render import render
from nnspec.stages.check import check
from nnspec.stages.parse import MAX_DEPTH, parse

MODEL = """\
nnspec: 1
name: sample
about: One of each form.
notes: [anything, {goes: here}]
use: []
sizes: {width: 8, vocab: 13, heads: [2, 4], std: 0.02}
inputs:
  tokens: int64[B, S <= 64]
  length: optional int64[B]
graph:
  embed: {op: embedding, in: tokens, entries: vocab, width: width, init: {normal: std}, trainable: false}
  layers:
    repeat: 6
    block: layer
    in: embed
    hidden: 3 * width
    norm: {op: rms_norm, eps: 1e-5, weight: true}
    share: i % 3
    pattern:
      - {norm: {offset: 1}}
      - {times: 2}
  tables: {branch: 3, op: parameter, shape: "[width]"}
  places: {repeat: 2, block: shift, in: layers, each: {by: {from: tables.all, at: i + 1}}}
  steps: {scan: step, along: S, each: {x: places}, carry: {state: 0}, backward: true, length: length}
  score: {op: linear, in: steps.output, width: 4, bias: false}
  pick: {op: top_k, in: {op: softmax, in: score}, k: 2}
  mix: {branch: 4, block: expert, in: steps.output, route: {weights: pick.values, indices: pick.indices}}
  turned: {op: rearrange, in: mix, as: "b s (h d) -> b s h d", h: 2}
  sum: {op: add, in: [turned, {op: tanh, in: turned}]}
outputs: {sum: sum}
blocks:
  layer:
    about: A block.
    settings: {hidden: int, bias: bool = true}
    slots: {norm: "float[*b, W] -> float[*b, W]"}
    inputs: {in: "float[*b, W]"}
    graph:
      up: {op: linear, in: in, width: hidden, bias: bias}
      down: {op: linear, in: up, width: W, bias: bias}
      out: {slot: norm, in: down}
    outputs: {output: out}
  shift: {inputs: {in: "float[B, S, W]", by: "float[W]"}, graph: {out: {op: add, in: [in, by]}}, outputs: {out: out}}
  expert: {inputs: {in: "float[N, W]"}, graph: {out: {op: linear, in: in, width: W}}, outputs: {out: out}}
  step:
    inputs: {x: "float[B, W]", state: "float[B, W]"}
    graph: {next: {op: add, in: [x, state]}}
    outputs: {output: next, state: next}
"""


def found(text, file="model"):
    sink = Sink()
    check(parse(Source("spec.yaml", text)), sink, file)
    return Diagnostics(sink.items).items


def marks(text):
    return [(d.code, d.labels[0].span.text) for d in found(text)]


def model(node="", top="", block=""):
    """A spec whose graph, top or only block holds the text given."""
    return (f"graph:\n  ok: {{op: tanh, in: x}}\n{f'  bad: {node}' if node else ''}\noutputs: [ok]\n{top}\n"
            + (f"blocks:\n  b:\n    graph: {{y: {{op: tanh}}}}\n    {block}\n" if block else ""))


def test_the_sample_is_right():
    assert found(MODEL) == ()
    assert found(model()) == ()


def test_it_compiles(tmp_path):
    (tmp_path / "spec.yaml").write_text(MODEL)
    assert pipeline.front(tmp_path / "spec.yaml").graph is not None


TOP = {
    "nnspec: 2": ("bad-version", "2"), "nnspec: [1]": ("bad-version", "[1]"), "szies: {a: 1}": ("unknown-key", "szies"),
    "checkpoint: {tensor: {}}": ("unknown-key", "tensor"), "sizes: {i: 1}": ("bad-name", "i"),
    "sizes: [1]": ("bad-spec", "[1]"), "sizes: {Big: 1}": ("bad-name", "Big"), "sizes: {in: 1}": ("bad-name", "in"),
    "sizes: {a: {b: 1}}": ("bad-spec", "{b: 1}"), "sizes: {a: [{b: 1}]}": ("bad-spec", "{b: 1}"),
    "sizes: {a: }": ("bad-spec", "a"),
    'sizes: {"a\\n": 1}': ("bad-name", '"a\\n"'), "inputs: {a: [float]}": ("bad-spec", "[float]"),
    "inputs: {i: float}": ("bad-name", "i"),
    "use: {a: 1}": ("bad-spec", "{a: 1}"), "use: [[a]]": ("bad-spec", "[a]"), "about: [a]": ("bad-spec", "[a]"),
    "name:": ("bad-spec", "name"),
    "blocks: {b: 1}": ("bad-spec", "1"), "blocks: {b: {about: x}}": ("missing-key", "b"), "budget: 3": ("bad-spec", "3"),
    "checkpoint: []": ("bad-spec", "[]"),
}


@pytest.mark.parametrize("text", TOP)
def test_top_level(text):
    assert marks(model(top=text)) == [TOP[text]]


@pytest.mark.parametrize("text", ["x-mine: {a: 1}", "notes: {any: [thing]}", "sizes:", "blocks:", "inputs: {in: 'float[]'}",
                                  "sizes: {backward: 1}", "expect: {a: [b]}", "use: attention"])
def test_what_is_allowed_at_the_top(text):
    assert marks(model(top=text)) == []


def words(keys):
    """A model whose node, size, block and output have each of these names."""
    nodes = "".join(f"  {k}: {{op: linear, in: x, width: {k}}}\n" for k in keys)
    sizes, outputs = (", ".join(f"{k}: {v}" for k, v in pairs) for pairs in ([(k, 4) for k in keys], [(k, k) for k in keys]))
    blocks = "".join(f"  {k}: {{inputs: {{in: 'float[*b, D]'}}, graph: {{{k}: {{op: tanh, in: in}}}}}}\n" for k in keys)
    uses = "".join(f"  use_{k}: {{block: {k}, in: {k}}}\n" for k in keys)
    return f"sizes: {{{sizes}}}\ninputs: {{x: 'float[B, 3]'}}\ngraph:\n{nodes}{uses}outputs: {{{outputs}}}\nblocks:\n{blocks}"


def test_control_words_are_names_of_nodes_sizes_blocks_and_outputs(tmp_path):
    keys = sorted(RESERVED)
    assert marks(words(keys)) == []
    (tmp_path / "spec.yaml").write_text(words(keys))
    assert [n for n, _ in pipeline.front(tmp_path / "spec.yaml").graph.root.outputs] == keys


@pytest.mark.parametrize("word", ["in", "i"])
def test_in_and_i_are_no_names(word):
    assert marks(words([word])) == [("bad-name", word)] * 5


@pytest.mark.parametrize("word", sorted(RESERVED))
@pytest.mark.parametrize("place", ["settings: {%s: int}", "slots: {%s: 'float[B] -> float[B]'}", "inputs: {%s: 'float[B]'}"])
def test_keys_of_a_node_are_no_names_of_what_a_node_is_given(word, place):
    assert marks(model(block=place % word)) == [("bad-name", word)]


BLOCK = {
    "settings: {a: [int]}": ("bad-spec", "[int]"), "setings: {a: int}": ("unknown-key", "setings"),
    "slots: {op: x}": ("bad-name", "op"),
    "settings: {trainable: bool}": ("bad-name", "trainable"), "outputs: [[y]]": ("bad-spec", "[y]"),
    "outputs: {}": ("bad-spec", "{}"),
    "outputs: {a: {b: y}}": ("bad-spec", "{b: y}"), "sizes: {a: 1}": ("unknown-key", "sizes"), "inputs: 3": ("bad-spec", "3"),
}


@pytest.mark.parametrize("text", BLOCK)
def test_blocks(text):
    assert marks(model(block=text)) == [BLOCK[text]]


NODE = {
    "{repeat: 2, op: tanh, in: x, pattern: [{op: [a]}]}": ("bad-spec", "[a]"),
    "{repeat: 2, op: tanh, in: x, pattern: [{op: a, block: b}]}": ("bad-node", "block"),
    "{opp: tanh, in: x}": ("bad-node", "opp"), "{in: x}": ("bad-node", "bad"), "{}": ("bad-node", "bad"), "x": ("bad-spec", "x"),
    "[x]": ("bad-spec", "[x]"), "{op: [a]}": ("bad-spec", "[a]"), "{op: a, block: b}": ("bad-node", "block"),
    "{slot: a, op: b}": ("bad-node", "slot"), "{scan: a, op: b, each: {x: y}}": ("bad-node", "op"),
    "{repeat: 2}": ("bad-node", "bad"),
    "{repeat: 2, scan: b}": ("bad-node", "scan"), "{repeat: 2, branch: 3, op: a}": ("bad-node", "branch"),
    "{op: a, share: i}": ("bad-node", "share"),
    "{op: a, repeat: 2, along: T}": ("bad-node", "along"), "{scan: a, pattern: [{}]}": ("bad-node", "pattern"),
    "{op: a, branch: 2, carry: {x: y}}": ("bad-node", "carry"),
    "{op: a, repeat: 2, route: {weights: a, indices: b}}": ("bad-node", "route"),
    "{op: a, branch: 2, route: {weights: a}}": ("missing-key", "route"),
    "{op: a, branch: 2, route: {weights: a, indices: b, c: d}}": ("unknown-key", "c"),
    "{op: a, repeat: 2, pattern: []}": ("bad-spec", "[]"), "{op: a, repeat: 2, pattern: {a: b}}": ("bad-spec", "{a: b}"),
    "{op: a, repeat: 2, pattern: [a]}": ("bad-spec", "a"), "{op: a, repeat: 2, pattern: [{repeat: 2}]}": ("bad-node", "repeat"),
    "{op: a, repeat: 2, each: {x: {frm: y, at: i}}}": ("unknown-key", "frm"),
    "{op: a, repeat: 2, each: {x: {at: i}}}": ("missing-key", "x"),
    "{op: a, repeat: 2, each: {x: [y]}}": ("bad-spec", "[y]"), "{op: a, repeat: 2, each: [y]}": ("bad-spec", "[y]"),
    "{op: a, repeat: [2]}": ("bad-spec", "[2]"), "{op: a, width: }": ("bad-spec", "width"),
    "{op: a, in: [x, [y, {op: z, block: w}]]}": ("bad-node", "block"),
    "{op: a, init: {repeat: 3}}": ("bad-node", "repeat"), "{op: a, norm: {op: b, slot: c}}": ("bad-node", "slot"),
}


@pytest.mark.parametrize("text", NODE)
def test_nodes(text):
    assert marks(model(node=text)) == [NODE[text]]


@pytest.mark.parametrize("text", [
    "{scan: a, each: {x: y}}", "{op: a, repeat: 2, each: {x: {op: parameter, from: y}}}", "{op: a, in: [x, 1, {op: b, in: y}]}",
    "{op: a, init: {normal: 1}, keep: [[1]]}", "{block: a, fill: {heads: 3}}", "{slot: a, in: x, repeat: 2}", '{op: a, as: ""}',
    "{branch: 2, op: parameter, shape: [2]}", "{op: a, repeat: 2, each: , carry: }",
])
def test_what_a_node_may_say(text):
    assert marks(model(node=text)) == []


def test_what_a_file_needs():
    assert [d.headline for d in found("nnspec: 1")] == ["a spec has no `graph:` and `outputs:`"]
    assert [d.headline for d in found("graph: {x: {op: a}}")] == ["a spec has no `outputs:`"]
    assert [d.headline for d in found("nnspec: 1", "library")] == ["a block file has no `blocks:`"]
    assert found("blocks: {b: {graph: {x: {op: a}}}}", "library") == ()
    assert marks("- a") == [("bad-spec", "- a")]
    assert marks("graph: {}\noutputs: x") == [("bad-spec", "{}")]
    assert marks("graph:\noutputs: x") == [("bad-spec", "graph")]


def test_a_misspelt_key_is_not_also_missing():
    assert [(d.code, d.helps) for d in found("grpah: {x: {op: a}}\noutputs: x")] == [("unknown-key", ("did you mean `graph`?",))]


def test_a_misspelt_control_is_pointed_at():
    [d] = found(model("{op: a, repaet: 2, each: {x: y}}"))
    assert [(x.span.text, x.text) for x in d.labels] == [("each", ""), ("repaet", "is this `repeat`?")]


def test_all_at_once_and_one_for_each_place():
    text = model("{op: a, block: b, share: i, route: []}", "szies: {}\nsizes: {A: 1, B: [{}]}", "setings: {}")
    places = [d.labels[0].span for d in found(text)]
    assert [p.text for p in places] == ["block", "share", "route", "[]", "szies", "A", "B", "{}", "setings"]
    assert len({(p.start, p.stop) for p in places}) == len(places)


def test_a_shared_tree_is_reported_once():
    assert marks("graph: {x: {op: a, p: &p {repeat: 2}, q: *p}}\noutputs: x") == [("bad-node", "repeat")]


@pytest.mark.parametrize("text", ["a: [" + "[" * (MAX_DEPTH - 4) + "]" * (MAX_DEPTH - 4) + "]",
                                  "a: " + "{op: x, in: " * (MAX_DEPTH - 4) + "y" + "}" * (MAX_DEPTH - 4)])
def test_depth_costs_no_stack(text):
    assert found(f"graph: {{n: {{op: a, {text}}}}}\noutputs: n") == ()


def test_a_hundred_nodes_in_40_ms():
    nodes = "".join(f"  n{i}: {{op: linear, in: n{i - 1}, width: w, bias: false, init: {{normal: 0.02}}, more: [a, b]}}\n"
                    f"  r{i}: {{repeat: 3, block: b, in: n{i}, norm: {{op: rms_norm, eps: 1e-5}}, each: {{z: {{from: y}}}}}}\n"
                    for i in range(50))
    tree = parse(Source("spec.yaml", f"graph:\n{nodes}outputs: [n49]\n"))
    sink = Sink()
    check(tree, sink)
    best = 1.0
    for _ in range(7):
        start = time.process_time()
        check(tree, sink)
        best = min(best, time.process_time() - start)
    assert not sink.items and best < 0.04


# every key counts


def keys(tree, fixed=True):
    """Every key whose spelling the language or a target decides; names that the author gives are left out."""
    free = {"sizes", "inputs", "graph", "outputs", "blocks", "settings", "slots", "notes", "init", "about"}
    if isinstance(tree, Sequence):
        for item in tree:
            yield from keys(item)
    elif isinstance(tree, Mapping):
        for e in tree:
            if fixed:
                yield e.key
            if e.key.text not in ("notes", "about"):
                yield from keys(e.value, not (fixed and e.key.text in free))
            if e.key.text == "init" and isinstance(e.value, Mapping):
                yield from (inner.key for inner in e.value)


KEYS = [k for k in keys(parse(Source("spec.yaml", MODEL))) if isinstance(k, Scalar)]


def test_the_sample_has_keys_of_every_kind():
    kinds = {"repeat", "times", "from", "at", "route", "indices", "along", "carry", "normal", "offset", "h", "trainable", "x"}
    assert kinds <= {k.text for k in KEYS}


@pytest.mark.parametrize("key", KEYS, ids=lambda k: f"{k.text}-{k.span.line}-{k.span.column}")
def test_a_key_with_one_wrong_letter_is_refused(key, tmp_path):
    at = len(key.text) // 2
    spoilt = key.text[:at] + ("q" if key.text[at] != "q" else "z") + key.text[at + 1:]
    (tmp_path / "spec.yaml").write_text(MODEL[:key.span.start] + spoilt + MODEL[key.span.stop:])
    with pytest.raises(Diagnostics) as found:
        pipeline.front(tmp_path / "spec.yaml")
    assert key.span.line in [x.span.line for d in found.value.items for x in d.labels], render(found.value.items)
