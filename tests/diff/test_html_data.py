"""What the HTML report is made of, before a browser sees it: drawings, lines of files, tables of layers."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from nnspec.diff.html.layers import tabs
from nnspec.diff.html.layout import Wire, layout
from nnspec.diff.html.page import data, page
from nnspec.diff.html.source import sources
from nnspec.diff.html.trees import rows
from nnspec.diff.html.wiring import MOST, drawings
from nnspec.diff.layers import Asked
from nnspec.diff.report import Place
from nnspec.diff.sides import compared

from .pairs import DEPTH, GPT2, KV, MODERN, WINDOW, edited, report

# where boxes and wires go


def graph(seed, n):
    """Boxes of odd sizes, and wires that only go forward."""
    some = random.Random(seed)
    sizes = [(some.uniform(30, 230), some.uniform(33, 118)) for _ in range(n)]
    wires = {(some.randrange(b), b) for b in range(1, n) for _ in range(some.choice((0, 1, 1, 2, 3)))}
    return sizes, [Wire(a, b, some.choice(("same", "added", "removed"))) for a, b in sorted(wires)]


@pytest.mark.parametrize("seed", range(12))
def test_boxes_are_apart_and_wires_go_down(seed):
    sizes, wires = graph(seed, 5 + 3 * seed)
    drawn = layout(sizes, wires, frozenset({len(sizes) - 1}) if seed % 2 else frozenset())
    assert [b[2:] for b in drawn.boxes] == [tuple(round(x, 1) for x in s) for s in sizes]
    for k, (x, y, w, h) in enumerate(drawn.boxes):
        assert x > -0.2 and y >= 0 and x + w <= drawn.width + 0.2 and y + h <= drawn.height + 0.2
        assert all(x + w < u or u + s < x or y + h < v or v + t < y for u, v, s, t in drawn.boxes[:k])
    for wire, points in zip(wires, drawn.wires, strict=True):
        (x, y, w, h), (u, v, s, _) = drawn.boxes[wire.source], drawn.boxes[wire.target]
        assert x < points[0][0] < x + w and points[0][1] == pytest.approx(y + h, abs=0.2)
        assert u < points[-1][0] < u + s and points[-1][1] == pytest.approx(v, abs=0.2)
        assert len(points) % 2 == 0 and all(a[1] <= b[1] + 0.2 for a, b in pairwise(points))
    assert layout(sizes, wires, frozenset({len(sizes) - 1}) if seed % 2 else frozenset()) == drawn


@pytest.mark.parametrize("seed", range(12))
def test_straight_pieces_pass_no_box(seed):
    sizes, wires = graph(seed + 100, 25)
    drawn = layout(sizes, wires)
    for points in drawn.wires:
        for (x, y), (_, b) in zip(points[2:-2:2], points[3:-2:2], strict=True):
            assert not [k for k, (u, v, w, h) in enumerate(drawn.boxes) if u < x < u + w and y < v + h and v < b]


def test_the_longest_way_is_straight():
    drawn = layout([(60, 40), (90, 40), (70, 40), (80, 40)], [Wire(0, 1), Wire(1, 2), Wire(0, 3), Wire(2, 3)])
    middles = {round(x + w / 2, 0) for x, _, w, _ in drawn.boxes}
    assert len(middles) == 1
    skip = drawn.wires[2]
    assert skip[2][0] == skip[3][0] == skip[4][0] and skip[2][0] > max(x + w for x, _, w, _ in drawn.boxes[1:3])


def test_nothing_to_draw():
    assert layout([], []).boxes == () and layout([(50, 30)], []).boxes == ((0.0, 0.0, 50, 30),)


# drawings


def wiring(found):
    return {d["place"]: d for d in drawings(found, rows(found))["drawings"]}


def names(d):
    return [next(n for n in reversed(b["lines"][0]) if n) for b in d["boxes"]]


def wires(d, mark):
    told = names(d)
    return {(told[w["from"]], told[w["to"]], *filter(None, w["ports"])) for w in d["wires"] if w["m"] == mark}


def test_what_changed_is_drawn(reports):
    found = wiring(reports["modern"])
    assert list(found) == ["the model", "layers[0..15]", "layers[0..11].attention", "layers[0..11].ffn"]
    model, attention, ffn = found["the model"], found["layers[0..11].attention"], found["layers[0..11].ffn"]
    assert wires(model, "added") == {("embed", "layers", "in")}
    assert wires(model, "removed") == {("embed", "placed", "in"), ("placed", "layers", "in")}
    assert ("embed", "logits", "weight", "weight") in wires(model, "same")
    assert wires(attention, "removed") == {("query_heads", "attended", "query"), ("key_heads", "attended", "key")}
    assert ffn["what"] == ["plain_ffn", "gated_ffn"] and wires(ffn, "added") >= {("up", "product", "in"), ("active", "product", "in")}
    marks = dict(zip(names(attention), (b["m"] for b in attention["boxes"]), strict=True))
    assert (marks["in"], marks["key"], marks["key_placed"], marks["joined"], marks["▸ out"]) == ("same", "changed", "added", "same", "same")
    key = attention["boxes"][names(attention).index("key")]
    assert ["width 768", "width 256"] in key["lines"] and key["k"] == "layers.attention.key" and key["e"] == [3]


def test_nothing_is_drawn_of_what_is_alike(reports):
    assert wiring(reports["same"]) == {} and wiring(reports["lock"]) == {}
    assert list(wiring(reports["window"])) == ["layers[1..11:2].attention"]


TWICE = """
nnspec: 1
name: twice
use: [ffn]
sizes: {width: 24}
inputs: {x: "float[B, S, width]"}
graph:
  one: {block: plain_ffn, in: x, hidden: 36, activation: relu}
  two: {block: plain_ffn, in: one, hidden: 36, activation: relu}
outputs: {y: two}
"""


def test_what_looks_alike_is_drawn_once():
    found = wiring(report(TWICE, TWICE.replace("relu", "silu")))
    assert list(found) == ["the model", "one"] or list(found) == ["one"]
    assert found["one"]["others"] == ["two"]


def chain(n, end):
    lines = "".join(f"  n{k}: {{op: linear, in: {f'n{k - 1}' if k else 'x'}, width: 8}}\n" for k in range(n))
    graph = f"graph:\n{lines}  last: {{op: {end}, in: n{n - 1}}}\n"
    return f'nnspec: 1\nname: chain\ninputs: {{x: "float[B, 8]"}}\n{graph}outputs: {{y: last}}\n'


def test_a_long_region_is_folded():
    (d,) = wiring(report(chain(3 * MOST, "layer_norm"), chain(3 * MOST, "rms_norm"))).values()
    assert len(d["boxes"]) < 8 and d["left"] == 0
    (fold,) = [b for b in d["boxes"] if b["kind"] == "fold"]
    assert fold["lines"][0][0] == f"⋯ {3 * MOST - 1} unchanged"


def test_a_region_with_too_many_changes_says_what_is_left_out():
    text = chain(3 * MOST, "rms_norm")
    (d,) = wiring(report(text, text.replace("op: linear", "bias: false, op: linear"))).values()
    assert len(d["boxes"]) == MOST and d["left"] == 3 * MOST + 3 - MOST


# files


def back(file, signs):
    return ["".join(x[3]) for x in file["lines"] if x[0] and x[0] in signs]


@pytest.mark.parametrize("seed", range(20))
def test_lines_give_both_files_back(reports, seed):
    some = random.Random(seed)
    old = [some.choice(("a: 1", "b: [x, y]", "  c: {d: e}", "", "# remark é 😀", "f: g h i")) for _ in range(some.randrange(1, 70))]
    new = [line if some.random() < 0.7 else line.replace("1", "2") + some.choice(("", " z")) for line in old if some.random() < 0.9]
    texts = ["\n".join(x) + "\n" * some.randrange(2) for x in (old, new)]
    base, head = (replace(s, files={"s.yaml": t}) for s, t in zip((reports["modern"].base, reports["modern"].head), texts, strict=True))
    found = sources(replace(reports["modern"], base=base, head=head))
    if texts[0] == texts[1]:
        assert found == {"files": [], "same": ["s.yaml"]}
        return
    (file,) = found["files"]
    plain = [t.split("\n")[:-1] if t.endswith("\n") else t.split("\n") if t else [] for t in texts]
    assert back(file, "-=") == plain[0] and back(file, "+=") == plain[1]
    assert [x[1] for x in file["lines"] if x[1]] == list(range(1, len(plain[0]) + 1))
    assert [x[2] for x in file["lines"] if x[2]] == list(range(1, len(plain[1]) + 1))


def test_words_of_a_line_and_edits_are_marked(reports):
    (file,) = sources(reports["modern"])["files"]
    line = next(x for x in file["lines"] if x[0] == "+" and "gated_ffn" in "".join(x[3]))
    assert line[3][1::2] == ["gated_ffn", "2048", "silu, bias: false"] and line[4] == [4]
    assert sources(reports["modern"])["same"] == ["blocks/attention.yaml", "blocks/ffn.yaml", "blocks/layers.yaml", "blocks/positions.yaml"]


def files(found, base, head, **more):
    sides = {k: replace(getattr(found, k), files=f) for k, f in (("base", base), ("head", head))}
    told = sources(replace(found, **sides, **more))
    return [(f["base"], f["head"]) for f in told["files"]], told["same"]


def test_which_file_stands_beside_which(reports):
    found = reports["modern"]
    assert files(found, {"HEAD~1:./a/s.yaml": "x"}, {"a/s.yaml": "y"}) == ([("HEAD~1:./a/s.yaml", "a/s.yaml")], [])
    assert files(found, {"old.yaml": "x", "b.yaml": "1"}, {"new.yaml": "y", "b.yaml": "1"}) == ([("old.yaml", "new.yaml")], ["b.yaml"])
    assert files(found, {"gpt2.yaml": "x"}, {"rotary.yaml": "y", "gpt2.yaml": "x"}) == ([(None, "rotary.yaml")], ["gpt2.yaml"])
    assert files(found, {"s.yaml": "x", "p/b.yaml": "1"}, {"s.yaml": "x", "q/b.yaml": "2"}) == ([("p/b.yaml", "q/b.yaml")], ["s.yaml"])
    assert files(found, {"s.yaml": "x", "gone.yaml": "1"}, {"s.yaml": "x"}) == ([("gone.yaml", None)], ["s.yaml"])


def test_files_without_an_end_are_cut(reports):
    text = [f"k{n}: {n}" for n in range(30_000)]
    other = [*text[:20_000], "k: changed", *text[20_001:]]
    sides = {k: replace(getattr(reports["modern"], k), files={"s.yaml": "\n".join(t)}) for k, t in (("base", text), ("head", other))}
    (file,) = sources(replace(reports["modern"], **sides))["files"]
    assert len(file["lines"]) == 44 and file["left"] == 30_001 - 42
    assert [x[3] for x in file["lines"] if x[0] == ""] == [["19,980 lines are not in this file"], ["9,979 lines are not in this file"]]
    assert back(file, "+") == ["k: changed"]


def test_lines_of_what_is_new_or_has_no_text(reports):
    assert sources(reports["lock"]) is None
    (file,) = sources(reports["new"])["files"][:1]
    assert {x[0] for x in file["lines"]} == {"+"} and file["base"] is None
    assert all(f["head"] is None for f in sources(reports["gone"])["files"])


def test_an_edit_knows_its_place(reports):
    told = data(reports["modern"])["edits"][3]
    assert isinstance(reports["modern"].edits[3].head, Place) and told["head"] == ["spec.yaml", 14]


# layers


def small(text):
    return edited(text, "vocab: 50257 -> vocab: 91", "width: 768 -> width: 24", "layers: 12 -> layers: 3", "3072 -> 36").lstrip()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for name, text in (("a", small(GPT2)), ("b", edited(small(GPT2), *KV, "layers: 3 -> layers: 4"))):
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_the_key_map_as_a_table(pair):
    found = compared(str(pair / "a.yaml"), str(pair / "b.yaml"), asked=Asked(keys=True))
    (tab,) = tabs(found.layers)
    (table,) = tab["tables"]
    assert tab["title"] == "Key map" and table["quiet"] == ["same"]
    told = {(kind, new): made for kind, new, made, _ in table["rows"]}
    assert told["approx", "layers.{0..2}.attention.key.weight"] == "itself"
    assert len(table["rows"]) == len(found.layers["keys"]["folded"]) and "tensors" not in tab
    assert {r[0] for r in table["rows"]} >= {"same", "approx", "exact"}


def test_layers_of_other_kinds_are_told_as_they_are():
    (tab,) = tabs({"new</script>": {"a": [1, None]}})
    assert tab["title"] == "new</script>" and tab["tables"] == [] and '"a": [' in tab["text"]


def test_a_deep_model_with_every_view_stays_small():
    assert len(page([report(GPT2, edited(MODERN, "layers: 16 -> layers: 100"))])) < 250_000
    assert len(page([report(GPT2, WINDOW), report(GPT2, edited(GPT2, *DEPTH))])) < 250_000


def test_files_that_several_specs_use_are_told(reports):
    users = [replace(reports["window"], uses=("parts.yaml",)), replace(reports["same"], uses=("parts.yaml",))]
    made = page(users)
    assert "parts.yaml differs, and 1 of the 2 specs that use it changes: head.yaml" in made
