"""What holds of every comparison: random specs, random edits, other ways to write the same."""

import copy
import random
from time import process_time

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nnspec.diff.formats.text import text
from nnspec.diff.graphs.align import align
from nnspec.diff.rules import mirror

from .pairs import report

METRICS = ("parameters", "flops", "decode", "cache")
FEW = settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))


def spec(norm, eps, heads, kv, window, ffn, hidden, layers, tied, rope, block, dropout, twice):
    """A small decoder, as data."""
    attention = {"block": "multi_head_attention", "heads": heads, "causal": True}
    attention |= {"kv_heads": heads // kv} if kv > 1 else {}
    attention |= {"window": window} if window else {}
    attention |= {"position": "rope"} if rope else {}
    head = {"op": "linear", "in": "norm", "bias": False} | ({"weight": "embed.weight"} if tied else {"width": "vocab"})
    graph = {"embed": {"op": "embedding", "in": "tokens", "entries": "vocab", "width": "width"},
             "layers": {"repeat": "layers", "block": block, "in": "embed", "norm": {"op": norm, "eps": eps}, "attention": attention,
                        "ffn": {"block": ffn, "hidden": hidden}, "dropout": dropout}}
    if twice:
        graph["more"] = {"repeat": 2, "block": "pre_norm_layer", "in": "layers", "norm": {"op": "rms_norm"},
                         "attention": dict(attention), "ffn": {"block": "plain_ffn", "hidden": 20}}
    graph |= {"norm": {"op": norm, "in": "more" if twice else "layers", "eps": eps}, "logits": head}
    return {"nnspec": 1, "name": "random", "use": ["attention", "ffn", "layers", "positions"],
            "sizes": {"vocab": 31, "width": 24, "layers": layers}, "inputs": {"tokens": "int64[B, S <= 64]"},
            "graph": graph, "outputs": {"logits": "logits"}}


SPECS = st.builds(
    spec, norm=st.sampled_from(["layer_norm", "rms_norm"]), eps=st.sampled_from([1e-5, 1e-6]), heads=st.sampled_from([2, 4, 6]),
    kv=st.sampled_from([1, 2]), window=st.sampled_from([0, 5, 7]), ffn=st.sampled_from(["plain_ffn", "gated_ffn"]),
    hidden=st.sampled_from([36, 48]), layers=st.integers(1, 5), tied=st.booleans(), rope=st.booleans(),
    block=st.sampled_from(["pre_norm_layer", "post_norm_layer", "parallel_layer"]), dropout=st.sampled_from([0, 0.1]), twice=st.booleans())


def written(data):
    return yaml.safe_dump(data, sort_keys=False)


def totals(r):
    return {m.name: (m.before, m.after) for m in r.metrics if m.name in METRICS}


@FEW
@given(SPECS)
def test_nothing_changed_is_nothing_told(data):
    r = report(written(data), written(data))
    assert not r.changed and r.verdict.function == "identical" and r.verdict.checkpoint == "same"
    assert {t.status for t in r.tensors} == {"kept"}


@FEW
@given(SPECS, SPECS)
def test_the_way_back_is_the_inverse(one, two):
    a, b = written(one), written(two)
    there, back = report(a, b), report(b, a)
    assert there.changed == back.changed == (there.base.identity != there.head.identity)
    assert totals(back) == {k: (y, x) for k, (x, y) in totals(there).items()}
    opposite = {"new": "dropped", "dropped": "new"}
    for status in ("kept", "renamed", "reshaped", "new", "dropped"):
        assert back.count(opposite.get(status, status)) == there.count(status), status
    assert (back.verdict.function, len(back.verdict.interface)) == (there.verdict.function, len(there.verdict.interface))


@FEW
@given(SPECS, SPECS)
def test_edits_sum_to_the_whole(one, two):
    r = report(written(one), written(two))
    for m in r.metrics:
        if m.delta is not None:
            assert sum(e.deltas[m.name] for e in r.edits) == m.delta, m.name
    assert r.elements("kept", "head") + r.elements("renamed", "head") + r.elements("reshaped", "head") + r.elements("new", "head") \
        == r.head.parameters
    assert sum(r.count(s) for s in ("kept", "renamed", "reshaped", "dropped")) == r.base.tensors
    assert max(map(len, text(r).splitlines())) <= 110 or not r.changed
    assert len({e.id for e in r.edits}) == len(r.edits)


EDITS = [
    ("norm.eps-changed", lambda d: [n.__setitem__("eps", 1e-3) for n in (d["graph"]["layers"]["norm"], d["graph"]["norm"])], True),
    ("attention.window-changed", lambda d: d["graph"]["layers"]["attention"].__setitem__("window", 9), True),
    ("ffn.activation-changed", lambda d: d["graph"]["layers"]["ffn"].__setitem__("activation", "tanh"), True),
    ("attention.scale-changed", lambda d: d["graph"]["layers"]["attention"].__setitem__("scale", 0.3), True),
    ("attention.softcap-changed", lambda d: d["graph"]["layers"]["attention"].__setitem__("softcap", 20), True),
    ("attention.causal-changed", lambda d: d["graph"]["layers"]["attention"].__setitem__("causal", False), True),
    ("attention.heads-changed", lambda d: d["graph"]["layers"]["attention"].update(heads=3, kv_heads=3), True),
    ("position.theta-changed", lambda d: d["graph"]["layers"]["attention"].__setitem__("position", {"block": "rope", "theta": 777}), True),
    ("training.dropout-changed", lambda d: d["graph"]["layers"].__setitem__("dropout", 0.3), False),
    ("norm.placement-changed", lambda d: d["graph"]["layers"].__setitem__("block", "post_norm_layer"), True),
]
MIXED = spec("rms_norm", 1e-5, 2, 1, 0, "plain_ffn", 36, 3, True, True, "pre_norm_layer", 0, False)
MIXED["graph"]["layers"]["ffn"] = {"block": "sparse_ffn", "experts": 4, "top_k": 2, "expert": {"block": "gated_ffn", "hidden": 8}}
OTHERS = [
    ("moe.top-k-changed", ("ffn", "top_k"), 3), ("ffn.activation-changed", ("ffn", "expert", "activation"), "silu"),
    ("position.layout-changed", ("attention", "position"), {"block": "rope", "layout": "interleaved"}),
    ("position.scaling-changed", ("attention", "position"), {"block": "linear_rope", "factor": 4}),
    ("norm.offset-changed", ("norm", "offset"), 1), ("weights.shared", ("share",), 0),
]


@pytest.mark.parametrize("rule, path, value", OTHERS, ids=[o[0] for o in OTHERS])
def test_other_changes_of_a_layer(rule, path, value):
    head = copy.deepcopy(MIXED)
    node = head["graph"]["layers"]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    (e,) = report(written(MIXED), written(head)).edits
    assert e.rule == rule and e.level == "breaking"
    assert (e.checkpoint == "silent") == (rule != "weights.shared")


PLAIN = dict(norm="rms_norm", eps=1e-5, heads=2, kv=1, window=0, ffn="gated_ffn", hidden=36, layers=3, tied=True, rope=True,
             block="pre_norm_layer", dropout=0, twice=False)


@pytest.mark.parametrize("rule, change, silent", EDITS, ids=[e[0] for e in EDITS])
def test_what_loads_cleanly_and_computes_something_else_is_silent_and_breaking(rule, change, silent):
    base, head = spec(**PLAIN), spec(**PLAIN)
    if rule == "attention.window-changed":
        base["graph"]["layers"]["attention"]["window"] = 5
    change(head)
    r, back = report(written(base), written(head)), report(written(head), written(base))
    for found, id in ((r, rule), (back, mirror(rule))):
        (e,) = found.edits
        assert e.rule == id and (e.checkpoint, e.level) == (("silent", "breaking") if silent else ("same", "info"))
        assert found.verdict.silent == ((e.id,) if silent else ())
    assert r.verdict.function == ("changed" if silent else "training-only")


def shuffled(data, seed):
    """The same, keys in another order."""
    if isinstance(data, dict):
        keys = list(data)
        random.Random(seed).shuffle(keys)
        return {k: shuffled(data[k], seed + 1) for k in keys}
    return [shuffled(x, seed) for x in data] if isinstance(data, list) else data


@FEW
@given(SPECS, st.integers(0, 99))
def test_the_writing_does_not_matter(data, seed):
    other = shuffled(data, seed)
    norm = other["graph"]["norm"]
    other["graph"]["norm"] = norm                                        # an anchor where a value is used twice
    for style in (None, True, False):
        said = "# a comment\n" + yaml.safe_dump(other, sort_keys=False, default_flow_style=style, width=60)
        assert not report(written(data), said).changed


@FEW
@given(SPECS, SPECS)
def test_a_declared_rename_adds_one_edit_and_changes_nothing_else(one, two):
    plain = report(written(one), written(two))
    renamed = spec_renamed(two)
    r = report(written(one), written(renamed))
    assert totals(r) == totals(plain)
    assert r.count("new") == plain.count("new") and r.count("dropped") == plain.count("dropped")
    assert r.count("kept") + r.count("renamed") == plain.count("kept")
    assert [e.rule for e in r.edits].count("node.renamed") == 1
    assert r.verdict.function == ("changed" if plain.verdict.function == "changed" else
                                  "equal-up-to-names" if plain.verdict.function == "identical" else plain.verdict.function)


def spec_renamed(data):
    """`layers` under the name `blocks_`, declared."""
    graph = {}
    for name, node in data["graph"].items():
        node = {k: "stack" if k == "in" and v == "layers" else v for k, v in node.items()}
        graph["stack" if name == "layers" else name] = node | ({"renamed_from": "layers"} if name == "layers" else {})
    return data | {"graph": graph}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
def test_an_alignment_covers_both_stacks_once(a, b):
    found = align(a, b)
    assert sorted([*(i for i, _ in found.pairs), *found.removed]) == list(range(len(a)))
    assert sorted([*(j for _, j in found.pairs), *found.added]) == list(range(len(b)))
    assert all(a[i] == b[j] for i, j in found.moved)
    assert len(found.removed) - len(found.added) == len(a) - len(b)
    assert align(a, a).pairs == tuple((k, k) for k in range(len(a)))


def longest(a, b):
    """The length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0] * (len(b) + 1)
        for j, y in enumerate(b):
            row[j + 1] = before[j] + 1 if x == y else max(before[j + 1], row[j])
    return row[-1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd-")), max_size=6))
def test_an_alignment_is_the_longest(a, edits):
    b = list(a)
    for k, letter in edits:
        b[k:k + (letter == "-")] = [] if letter == "-" else [letter]
    found = align(a, b)
    equal = [(i, j) for i, j in found.pairs if a[i] == b[j] and (i, j) not in found.moved]
    assert len(equal) >= longest(a, b)


@pytest.mark.parametrize("a, b", [
    ("a" * 10_000, "b" * 10_000), ("a" * 10_000, "ab" * 5_000), ("ab" * 5_000, "aab" * 3_333),
    ("ab" * 5_000, "ab" * 2_500 + "c" + "ab" * 2_499), ("abc" * 3_333, "cba" * 3_333)])
def test_ten_thousand_copies_are_aligned_at_once(a, b):
    start = process_time()
    found = align(a, b)
    assert process_time() - start < 5                       # a table of all pairs takes half a minute
    assert len(found.pairs) + len(found.added) == len(b) and len(found.pairs) + len(found.removed) == len(a)


SMALL = """
nnspec: 1
name: small
sizes: {w: 8, n: 4}
inputs: {x: "float[B, S, w]", keep: "optional bool[B, S]"}
blocks:
  layer:
    settings: {width: int, act: one of relu | gelu = relu}
    inputs: {in: "float[B, S, W]"}
    graph:
      one: {op: linear, in: in, width: width}
      go: {op: activate, in: one, function: act}
      two: {op: linear, in: go, width: W}
      out: {op: add, in: [in, two]}
graph:
  stack: {repeat: n, block: layer, in: x, width: 3 * w}
  y: {op: linear, in: stack, width: 5}
outputs: {y: y}
"""


@pytest.mark.parametrize("change, rules, function, level", [
    ("[in, two] -> [two, in]", [], "identical", None),
    ("width: int, -> width: int = 3 * 8, ", [], "identical", None),
    ("layer -> mine", ["block.renamed"], "equal-up-to-names", "info"),
    ("go -> went", ["node.renamed"], "equal-up-to-names", "info"),
    ("outputs: {y: y} -> outputs: {y: y, z: stack}", ["interface.output-added"], "identical", "info"),
    (', keep: "optional bool[B, S]" -> ', ["interface.optional-input-removed"], "identical", "breaking"),
    ("[B, S, w] -> [B, S <= 9, w]", ["interface.input-bound-changed"], "identical", "breaking"),
    ("width: 5} -> width: 5, trainable: false}", ["training.trainable-changed"], "training-only", "info"),
    ("width: 5} -> width: 5, init: zeros}", ["training.init-changed"], "training-only", "info"),
    ("[in, two] -> [one, two]", ["node.rewired"], "changed", "breaking"),
    ("repeat: n, -> repeat: n, share: i % 2,", ["weights.shared"], "changed", "breaking"),
    ("in: stack, width -> in: x, width", ["node.rewired"], "changed", "breaking"),
])
def test_small_edits(change, rules, function, level):
    old, new = change.split(" -> ")
    head = SMALL.replace(old, new)
    if change.startswith("[in, two] -> [one"):
        head = head.replace("width: 3 * w", "width: w")
        base = SMALL.replace("width: 3 * w", "width: w")
    else:
        base = SMALL
    r = report(base, head)
    assert [e.rule for e in r.edits] == rules and r.level == level
    assert r.verdict.function == function
