"""The fifteen pairs of a GPT-2, with exact numbers, rules and lines; the way back is the inverse of each."""

import pytest
from nnspec.diff.formats.text import text
from nnspec.diff.rules import mirror

from .pairs import DEPTH, GPT2, KV, MLP, MODERN, NORM, POSITION, WINDOW, edited, report

EXPERT = "{block: plain_ffn, hidden: 3072, activation: gelu_tanh}"
SHIFTED = "[{}, W, {}, W, {}, W, {times: 2}, W, {}, W, {}, W]".replace("W", "{attention: {window: 256}}")
SWAPPED = "[{}, W, {}, W, W, {}, {}, W, {}, W, {}, W]".replace("W", "{attention: {window: 256}}")
ALTERNATING = "[{}, {attention: {window: 256}}]"
HEADS = {
    2: edited(GPT2, *NORM), 3: edited(GPT2, *POSITION), 4: edited(GPT2, *KV), 5: edited(GPT2, *MLP), 6: edited(GPT2, *DEPTH), 7: MODERN,
    8: edited(GPT2, ", weight: embed.weight -> , width: vocab"), 9: edited(GPT2, "vocab: 50257 -> vocab: 50304"),
    11: edited(GPT2, "pre_norm_layer -> post_norm_layer"), 12: edited(GPT2, ", heads: 12 -> , heads: 16"), 13: WINDOW,
    14: edited(GPT2, f"{EXPERT} -> {{block: sparse_ffn, experts: 8, top_k: 2, expert: {EXPERT}}}"),
    15: edited(WINDOW, "layers: 12 -> layers: 13", f"{ALTERNATING} -> {SHIFTED}"), 16: edited(WINDOW, f"{ALTERNATING} -> {SWAPPED}")}
BASES = {15: WINDOW, 16: WINDOW}
# pair: parameters after; (kept, renamed, reshaped, new, dropped) tensors; prefill, decode FLOPs and cache bytes added; lines; checkpoint
FACTS = {
    2: (124_420_608, (171, 0, 0, 0, 25), 0, 0, 0, 15, "approx"),
    3: (123_653_376, (195, 0, 0, 0, 1), 0, 0, 0, 18, "approx"),
    4: (114_990_336, (148, 0, 48, 0, 0), -19_327_352_832, -18_874_368, 12_582_912 - 37_748_736, 18, "approx"),
    5: (124_393_728, (148, 0, 24, 12, 24), 0, 0, 0, 15, "partial"),
    6: (152_791_296, (196, 0, 0, 64, 0), 362_515_267_584 - 291_648_307_200, 69_206_016, 50_331_648 - 37_748_736, 18, "exact"),
    7: (139_318_784, (74, 0, 72, 64, 50), 336_745_463_808 - 291_648_307_200, 44_040_192, 16_777_216 - 37_748_736, 30, "partial"),
    8: (163_037_184, (196, 0, 0, 1, 0), 0, 0, 0, 15, "exact"),
    9: (124_475_904, (195, 0, 1, 0, 0), 73_924_608, 72_192, 0, 16, "exact"),
    11: (124_439_808, (196, 0, 0, 0, 0), 0, 0, 0, 18, "silent"),
    12: (124_439_808, (196, 0, 0, 0, 0), 0, 0, 0, 19, "silent"),
    13: (124_439_808, (196, 0, 0, 0, 0), -14_495_514_624, -14_155_776, 23_592_960 - 37_748_736, 19, "silent"),
    14: (521_197_824, (148, 0, 0, 396, 48), 407_763_419_136 - 291_648_307_200, 113_393_664, 0, 17, "exact"),
    15: (131_527_680, (116, 80, 0, 16, 0), 17_716_740_096, 17_301_504, 26_738_688 - 23_592_960, 20, "exact"),
    16: (124_439_808, (164, 32, 0, 0, 0), 0, 0, 0, 17, "silent"),
}
RULES = {
    2: [["norm.type-changed"]], 3: [["position.type-changed"]], 4: [["attention.kv-heads-changed"]], 5: [["ffn.type-changed"]],
    6: [["stack.count-increased"]],
    7: [["position.type-changed"], ["norm.type-changed"], ["attention.kv-heads-changed"], ["ffn.type-changed"], ["stack.count-increased"]],
    8: [["weights.untied"]], 9: [["embedding.rows-changed", "interface.output-changed"]], 11: [["norm.placement-changed"]],
    12: [["attention.heads-changed"]], 13: [["attention.window-changed"]], 14: [["ffn.type-changed"]],
    15: [["block.added", "block.shifted"]], 16: [["block.moved", "block.shifted"]]}
METRICS = ("parameters", "flops", "decode", "cache")
STATUSES = ("kept", "renamed", "reshaped", "new", "dropped")


def rules(found):
    return [list(dict.fromkeys(c.rule for c in e.consequences if c.rule != "node.respelled")) for e in found.edits]


def metric(found, name):
    return next(m for m in found.metrics if m.name == name)


@pytest.fixture(scope="module")
def found():
    made = {}
    return lambda n: made.setdefault(n, report(BASES.get(n, GPT2), HEADS[n]))


@pytest.mark.parametrize("pair", HEADS)
def test_a_pair_is_told_exactly(pair, found):
    r = found(pair)
    parameters, tensors, prefill, decode, cache, lines, checkpoint = FACTS[pair]
    assert metric(r, "parameters").before == 124_439_808 and metric(r, "parameters").after == parameters
    assert tuple(r.count(s) for s in STATUSES) == tensors
    assert [metric(r, n).delta for n in METRICS] == [parameters - 124_439_808, prefill, decode, cache]
    assert rules(r) == RULES[pair]
    assert r.verdict.checkpoint == checkpoint and r.verdict.function == "changed"
    assert text(r).count("\n") == lines and max(map(len, text(r).splitlines())) <= 101
    for name in METRICS:
        assert sum(e.deltas[name] for e in r.edits) == metric(r, name).delta


@pytest.mark.parametrize("pair", HEADS)
def test_the_way_back_is_the_inverse(pair, found):
    there, back = found(pair), report(HEADS[pair], BASES.get(pair, GPT2))
    said = lambda r: sorted((e.rule, repr(e.before), repr(e.after)) for e in r.edits)  # noqa: E731
    assert said(back) == sorted((mirror(e.rule), repr(e.after), repr(e.before)) for e in there.edits)
    for name in METRICS:
        assert metric(back, name).delta == -metric(there, name).delta
    opposite = {"new": "dropped", "dropped": "new"}
    assert {s: back.count(s) for s in STATUSES} == {s: there.count(opposite.get(s, s)) for s in STATUSES}
    assert [(c.before, c.after) for c in back.verdict.cache] == [(c.after, c.before) for c in there.verdict.cache]


def test_activations_peak_at_the_logits(found):
    peak = metric(found(7), "peak")
    assert (peak.before, peak.before - peak.after, peak.note) == (109_217_792, 1024 * 768 * 2, "at logits")      # a sum less is held
    assert any("peak activation" in x and x.endswith("  at logits") for x in text(found(7)).splitlines())


def test_the_base_is_gpt2(found):
    r = found(2)
    assert (metric(r, "flops").before, metric(r, "decode").before, metric(r, "cache").before) == (291_648_307_200, 284_812_800, 37_748_736)
    assert r.base.tensors == 196 and metric(r, "weights").before == 2 * 124_439_808


def test_pair_1_only_the_writing_changed():
    other = edited(GPT2, "{op: layer_norm, eps: 1e-5} -> {eps: 0.00001, op: layer_norm, bias: true}",
                   "hidden: 3072 -> hidden: 4 * 768, bias: true", "layers: 12, heads: 12 -> heads: &n 12, layers: *n",
                   "outputs: {logits: logits} -> outputs:  # as before\n  logits: logits")
    r = report(GPT2, other)
    assert r.edits == () and not r.changed and r.verdict.function == "identical" and r.base.identity == r.head.identity
    assert text(r) == "head.yaml: no architectural change (formatting only)\n"


def test_pair_3_says_that_the_bound_is_gone_and_the_cache_is_another(found):
    r = found(3)
    assert [(c.rule, c.before, c.after) for c in r.verdict.interface] == [("interface.input-bound-changed", "S <= 1024", None)]
    assert r.verdict.cache and all(c.level == "breaking" for c in r.verdict.cache)
    (e,) = r.edits
    assert (e.before, e.after) == ("learned(1024)", "rope(10000)") and set(e.contracts) >= {"checkpoint", "numerics", "interface", "cache"}


def test_pair_4_converts_by_means_and_back_by_repeats(found):
    (e,) = found(4).edits
    assert (e.before, e.after, e.conversion.kind, e.conversion.values) == (12, 4, "approx", {"groups": 3})
    assert found(4).elements("reshaped", "base") == 14_174_208 and found(4).elements("reshaped", "head") == 4_724_736
    shapes = {(str(t.head), t.before, t.after) for t in e.tensors}
    assert ("layers[0..11].attention.key.weight", (768, 768), (256, 768)) in shapes
    (back,) = report(HEADS[4], GPT2).edits
    assert (back.conversion.kind, back.conversion.values, back.checkpoint) == ("exact", {"times": 3}, "exact")
    alone = report(GPT2, edited(GPT2, "heads: heads, -> heads: heads, kv_heads: 1,"))
    assert metric(alone, "parameters").after == 111_446_784 and metric(alone, "cache").after == 3_145_728


def test_pair_5_counts_elements(found):
    r = found(5)
    assert r.elements("new", "head") == 18_874_368 and r.elements("dropped", "base") == 46_080
    assert (r.elements("reshaped", "base"), r.elements("reshaped", "head")) == (56_623_104, 37_748_736)


def test_pair_6_is_one_line_and_keeps_the_function_at_load(found):
    (e,) = found(6).edits
    assert (e.symbol, e.before, e.after, e.level, [str(w) for w in e.where]) == ("+", 12, 16, "warning", ["layers[12..15]"])
    assert e.conversion.text.startswith("start `attention.output` and `ffn.down`")


def test_pair_7_is_five_edits_that_sum(found):
    r = found(7)
    assert [e.deltas["parameters"] for e in r.edits] == [-786_432, -19_200, -9_449_472, -46_080, 25_180_160]
    assert [e.deltas["flops"] for e in r.edits] == [0, 0, -19_327_352_832, 0, 64_424_509_440]
    assert [e.deltas["cache"] for e in r.edits] == [0, 0, -25_165_824, 0, 4_194_304]
    assert r.elements("kept", "head") == 52_790_784 and r.elements("dropped", "base") == 851_712 and r.elements("new", "head") == 44_054_528
    assert [e.level for e in r.edits] == ["breaking"] * 4 + ["warning"]
    assert sum(line[2:3] in "~+->" and line[3:5] == "  " for line in text(r).splitlines()) == 5


@pytest.mark.parametrize("declared", [True, False])
def test_pair_10_a_rename_of_what_holds_parameters(declared):
    layer = """
blocks:
  layer:
    inputs: {in: "float[B, S, W]"}
    graph:
      norm1: {op: layer_norm, in: in}
      attn: {block: multi_head_attention, in: norm1, heads: 12, causal: true}
      sum: {op: add, in: [in, attn]}
      norm2: {op: layer_norm, in: sum}
      mlp: {block: plain_ffn, in: norm2, hidden: 3072, activation: gelu_tanh}
      out: {op: add, in: [sum, mlp]}
"""
    base = edited(GPT2, "block: pre_norm_layer -> block: layer", "    norm: {op: layer_norm, eps: 1e-5}\n -> ",
                  "    attention: {block: multi_head_attention, heads: heads, causal: true}\n -> ",
                  f"    ffn: {EXPERT}\n -> ", ", heads: 12} -> }") + layer
    was = ", renamed_from: attn" if declared else ""
    head = edited(base, f"attn: {{block: multi_head_attention -> self_attn: {{block: multi_head_attention{was}",
                  "[in, attn] -> [in, self_attn]")
    r = report(base, head)
    assert r.verdict.function == "equal-up-to-names" and r.base.structure == r.head.structure and r.base.identity != r.head.identity
    assert r.verdict.checkpoint == "renamed" and (r.count("renamed"), r.elements("renamed", "head")) == (96, 28_348_416)
    assert r.count("kept") == 100 and r.count("new") == r.count("dropped") == 0
    (e,) = r.edits
    assert (e.rule, e.before, e.after, e.level) == ("node.renamed", "attn", "self_attn", "warning")
    assert e.evidence == ("declared" if declared else "hash")
    assert "96 missing, 96 unexpected" in text(r)
    keys = dict(k for t in r.tensors for k in t.renames() if t.status == "renamed")
    assert keys["layers.3.attn.query.weight"] == "layers.3.self_attn.query.weight" and len(keys) == 96


def test_pair_11_in_words(found):
    (e,) = found(11).edits
    assert e.level == "breaking" and any("reads `attended`, a sum, instead of `in`" in n for n in e.notes)


@pytest.mark.parametrize("pair", [11, 12, 13, 16])
def test_silent_changes_are_a_verdict_of_their_own(pair, found):
    r = found(pair)
    assert r.verdict.silent == (r.edits[0].id,) and r.edits[0].level == "breaking" and "silent" in text(r)


def test_pair_13_tells_the_copies(found):
    (e,) = found(13).edits
    assert [str(w) for w in e.where] == ["layers[1..11:2].attention.attended"] and (e.before, e.after) == (None, 256)


def test_pair_14_knows_the_old_block_in_every_expert(found):
    r = found(14)
    assert metric(r, "active").after == 181_182_720
    assert r.elements("new", "head") == 453_427_200 and r.elements("dropped", "base") == 56_669_184
    (e,) = r.edits
    assert (e.conversion.op, e.conversion.kind, e.level) == ("copy-experts", "exact", "warning") and "renamed" not in text(r)


def test_pair_15_an_insertion_shifts(found):
    r = found(15)
    (e,) = r.edits
    assert [str(w) for w in e.where] == ["layers[7]"] and "copies 6 and 7 are equal, so the new one may be either" in e.notes
    shifted = next(c for c in e.consequences if c.rule == "block.shifted")
    assert (str(shifted.where), shifted.before, shifted.after) == ("layers[8..12]", [7, 8, 9, 10, 11], [8, 9, 10, 11, 12])


def test_pair_16_a_swap_moves_one_and_shifts_one(found):
    (e,) = found(16).edits
    assert (e.rule, e.before, e.after) == ("block.moved", [4], [5])
    assert [str(c.where) for c in e.consequences] == ["layers[5]", "layers[4]"]
