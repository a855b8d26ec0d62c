"""Unusual edits, told exactly: by few edits, truly, and the other way round on the way back."""

from collections import Counter
from functools import cache

import pytest
from nnspec.diff.compare import compare
from nnspec.diff.formats.text import text
from nnspec.diff.migration.migrate import keyed
from nnspec.diff.migration.verify import whole_checked
from nnspec.diff.renames import renamed
from nnspec.diff.rules import mirror

from .pairs import compiled, report
from .unusual import INSIDE, OUTSIDE, PAIRS, edited

STATUSES = ("kept", "renamed", "reshaped", "new", "dropped")
# pair: function; checkpoint; tensors by status; the rules of each edit
TOLD = {
    "two blocks change places": ("changed", "silent", (17, 0, 0, 0, 0), [["node.rewired"]]),
    "a residual around a block": ("changed", "partial", (13, 4, 0, 2, 0), [["block.swapped", "node.moved"]]),
    "around and edited": ("changed", "silent", (13, 4, 0, 2, 0), [["block.swapped", "node.moved"], ["ffn.activation-changed"]]),
    "around and smaller": ("changed", "partial", (13, 1, 3, 2, 0), [["block.swapped", "node.moved"], ["ffn.hidden-changed"]]),
    "around, under another name": ("changed", "partial", (13, 4, 0, 2, 0), [["node.added", "node.moved"]]),
    "two equal blocks into one": ("equal-up-to-names", "renamed", (13, 8, 0, 0, 0), [["node.moved"]]),
    "two equal blocks into one, edited": ("changed", "silent", (13, 8, 0, 0, 0), [["node.moved"], ["ffn.activation-changed"]]),
    "into a wrapper": ("equal-up-to-names", "renamed", (66, 6, 0, 0, 0), [["node.moved"]]),
    "into a wrapper, edited": ("changed", "partial", (66, 2, 0, 4, 4), [["ffn.activation-changed", "node.swapped", "node.moved"]]),
    "a stack in two": ("equal-up-to-names", "renamed", (36, 32, 0, 0, 0), [["node.moved"]]),
    "a stack in two, the second edited": ("changed", "partial", (36, 0, 0, 32, 32), [["norm.eps-changed", "node.moved"]]),
    "a copy to the end, edited": ("changed", "partial", (4, 64, 0, 16, 16),
                                  [["attention.softcap-changed", "block.moved", "block.shifted"]]),
    "a copy to the end, resized": ("changed", "partial", (4, 64, 0, 16, 16), [["ffn.hidden-changed", "block.moved", "block.shifted"]]),
    "another period": ("changed", "silent", (52, 32, 0, 16, 16), [["attention.window-changed", "block.moved", "block.shifted"]]),
    "the order turned round": ("changed", "approx", (4, 64, 0, 0, 0), [["block.moved", "block.shifted"]]),
    "a block becomes three": ("changed", "partial", (13, 4, 0, 8, 0), [["stack.count-increased"]]),
    "two names change places": ("equal-up-to-names", "renamed", (5, 12, 0, 0, 0), [["node.renamed"]]),
    "names move on": ("equal-up-to-names", "renamed", (13, 8, 0, 0, 0), [["node.renamed"]]),
    "tied to another": ("changed", "silent", (68, 0, 0, 1, 0), [["weights.untied"], ["node.rewired"]]),
    "tied twice": ("changed", "approx", (68, 0, 0, 0, 2), [["weights.tied"]]),
    "pairs of copies share": ("changed", "approx", (36, 0, 0, 0, 32), [["weights.shared"]]),
    "inlined": ("equal-up-to-names", "renamed", (13, 4, 0, 0, 0), [["node.moved"]]),
    "the last layer out of its stack": ("equal-up-to-names", "renamed", (29, 6, 0, 0, 0), [["node.moved"]]),
    "a residual inside of copies": ("changed", "partial", (15, 20, 0, 10, 0), [["block.swapped", "node.moved"]]),
    "everything goes": ("changed", "none", (0, 0, 1, 0, 16), [["node.removed", "node.swapped", "norm.removed"]]),
    "side by side, then in depth": ("changed", "silent", (25, 0, 0, 0, 0),
        [["node.removed", "interface.output-changed"], ["node.swapped", "interface.output-changed"]]),
    "a term less": ("changed", "silent", (17, 0, 0, 0, 0), [["node.rewired"]]),
    "joined in another order": ("changed", "silent", (17, 0, 0, 0, 0), [["node.rewired"]]),
}
SAID = {                                    # what a reader needs to be told in words
    "a residual around a block": "`mix` is `mix.inner` now", "around, under another name": "`mix` is `boxed.inner` now",
    "two equal blocks into one": "`mix` is `boxed.a` now", "a stack in two": "`layers[2,3]` is `more[0,1]` now",
    "into a wrapper, edited": "`mix` is probably `logits.mix` now: much is alike",
    "a stack in two, the second edited": "`layers[2,3]` is probably `more[0,1]` now: much is alike",
    "a copy to the end, edited": "`layers[0]` is probably `layers[4]` now: much is alike",
    "two blocks change places": "reads `attn` instead of `mix`", "names move on": "`mid` is `end` now",
}
EXACT = [k for k, told in TOLD.items() if told[1] in ("renamed", "exact")]


@cache
def brought(base, head):
    """Both models, the key map between them, and the comparison."""
    a, b = compiled(base), compiled(head)
    return a, b, *keyed(a, b, ("a", "b"))


def rules(r):
    return [list(dict.fromkeys(c.rule for c in e.consequences if c.rule != "node.respelled")) for e in r.edits]


@pytest.mark.parametrize("pair", PAIRS)
def test_an_edit_is_told_exactly(pair):
    r = brought(*PAIRS[pair])[3]
    function, checkpoint, tensors, told = TOLD[pair]
    assert (r.verdict.function, r.verdict.checkpoint) == (function, checkpoint)
    assert tuple(r.count(s) for s in STATUSES) == tensors and rules(r) == told
    assert all(e.level == "breaking" for e in r.edits if e.checkpoint in ("silent", "partial", "approx"))
    assert SAID.get(pair, "") in " ".join(n for e in r.edits for n in e.notes) and SAID.get(pair, "") in " ".join(text(r).split())


@pytest.mark.parametrize("pair", PAIRS)
def test_the_way_back_mirrors_it(pair):
    base, head = PAIRS[pair]
    there, back = brought(base, head)[3], report(head, base)
    opposite = {"new": "dropped", "dropped": "new"}
    assert {s: back.count(s) for s in STATUSES} == {s: there.count(opposite.get(s, s)) for s in STATUSES}
    assert Counter(mirror(r) for told in rules(there) for r in told) == Counter(r for told in rules(back) for r in told)
    assert back.verdict.function == there.verdict.function
    for m, n in zip(there.metrics, back.metrics, strict=True):
        if m.delta is not None:
            assert n.delta == -m.delta and sum(e.deltas[m.name] for e in there.edits) == m.delta


@pytest.mark.parametrize("pair", EXACT)
def test_what_only_moved_computes_the_same_by_its_key_map(pair):
    for base, head in (PAIRS[pair], PAIRS[pair][::-1]):
        a, b, keys, r = brought(base, head)
        assert keys.kind == r.verdict.checkpoint and whole_checked(a.graph, b.graph, keys, None).holds
        for t in r.tensors:
            for old, new in t.renames():
                assert keys.recipes[new].sources() == [old]


@pytest.mark.parametrize("pair", PAIRS)
def test_tensors_go_by_the_report_where_the_function_changed_too(pair):
    _, _, keys, r = brought(*PAIRS[pair])
    for t in r.tensors:
        for old, new in t.renames() if t.status in ("kept", "renamed") else ():
            assert keys.recipes[new].sources() == [old], new


def test_what_is_probable_is_not_used_for_checkpoints_until_it_is_declared():
    head = edited(INSIDE, "hidden: 40} -> hidden: 40, activation: silu}")
    for base, other, names in ((OUTSIDE, head, {"mix": "head.mix"}), (head, OUTSIDE, {"head.mix": "mix"})):
        a, b = compiled(base), compiled(other)
        plain, said = (compare(a, x, ("a", "b")) for x in (b, renamed(a, b, names)))
        assert plain.count("renamed") == 2 and plain.edits[0].evidence == "similarity" and "probably" in text(plain)
        assert said.count("renamed") == 6 and said.count("new") == said.count("dropped") == 0 and "probably" not in text(said)
        assert rules(plain) == rules(said) and plain.verdict.checkpoint == "partial" and said.verdict.checkpoint == "approx"
