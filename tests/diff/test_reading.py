"""Reports as a reviewer reads them, at 100 columns: every place names its file, one unit for bytes, and each edit says what is silent."""

import re
from dataclasses import replace

import pytest
from nnspec.costs.quantity import short
from nnspec.diff.formats import words
from nnspec.diff.formats.text import text
from nnspec.diff.report import Metric

from .pairs import GPT2, KV, MODERN, POSITION, WINDOW, edited, report
from .test_pairs import BASES, HEADS


@pytest.fixture(scope="module")
def found():
    made = {}
    return lambda n: made.setdefault(n, report(BASES.get(n, GPT2), HEADS[n]))


@pytest.mark.parametrize("pair", HEADS)
def test_lines_fit_and_nothing_is_cut_off(pair, found):
    lines = text(found(pair)).splitlines()
    assert max(map(len, lines)) <= 100 and not any("…" in x for x in lines)
    assert not re.search(r"(?<![\w.])[:]\d+", "\n".join(lines))                    # no line without its file
    assert not re.search(r"\d [KMGT]B\b|-0\.00%|\+0\.00%|,$", "\n".join(lines), re.MULTILINE)


def test_places_stand_beside_all_edits_or_below_all(found):
    lines = text(found(7)).splitlines()
    assert sum(x.startswith("      spec.yaml:") for x in lines) == 5
    two = text(report(GPT2, edited(GPT2, *KV, "layers: 12 -> layers: 13"))).splitlines()
    assert sum(bool(re.match(r"  [~+] .* spec\.yaml:\d+$", x)) for x in two) == 2


def test_a_bound_that_goes_is_no_bound(found):
    assert "  interface   info        S <= 1024 -> no bound" in text(found(3)).splitlines()
    assert "S <= 1024 -> S <= 512" in text(report(GPT2, edited(GPT2, "S <= 1024 -> S <= 512")))


def test_how_much_fits_is_told_where_not_all_does(found):
    assert "(37.9% of parameters fit)" in text(found(7))               # 52,790,784 of 139,318,784
    assert all("of parameters fit" not in text(found(n)) for n in (2, 12, 16))


def test_each_edit_says_what_of_its_own_is_silent():
    r = report(GPT2, edited(GPT2, *KV, "    norm: {op: layer_norm, eps: 1e-5} ->     norm: {op: layer_norm, eps: 1e-3}",
                            "gelu_tanh -> relu", "causal: true -> causal: true, window: 100"))
    said = {e.rule: words.silent(e) for e in r.edits}
    assert said == {
        "attention.kv-heads-changed": "", "norm.eps-changed": "silent: every tensor fits as before, but norms have another eps",
        "ffn.activation-changed": "silent: every tensor fits as before, but the activation is another",
        "attention.window-changed": "silent: every tensor fits as before, but queries see other keys"}
    line = next(x for x in text(r).splitlines() if x.startswith("  silent"))
    assert line.count(",") >= 2 and "kv_heads" not in line and len(r.verdict.silent) == 3


def test_an_edit_that_also_hides_something_says_which_part():
    (e,) = report(GPT2, edited(GPT2, *POSITION)).edits
    assert words.silent(e) == ""
    hidden = replace(e, consequences=(*e.consequences, replace(e.consequences[0], rule="attention.window-changed")))
    assert words.silent(hidden) == "silent part: queries see other keys"


def test_names_of_silent_edits_that_are_not_shown_are_counted(found):
    r = found(13)
    assert words.unseen(r).startswith("layers.pattern: no load")
    assert words.unseen(replace(r, edits=())).startswith("1 edit: no load")


def test_small_shares_are_not_nothing():
    metric = Metric("parameters", "numbers", 10_000_000, 9_999_999)
    assert words.percent(metric) == "<0.01%" and words.percent(replace(metric, after=10_000_000)) == ""
    assert words.percent(replace(metric, after=9_999_000)) == "-0.01%"


@pytest.mark.parametrize("n, said", [(37_748_736, "36.00 MiB"), (0, "0 B"), (1023, "1,023 B"), (-26_214_400, "-25.00 MiB"),
                                     (1024, "1.000 KiB")])
def test_bytes_have_one_unit(n, said):
    assert short(n, "B") == words.amount(Metric("cache", "bytes", n, n), n) == said
    assert words.amount(Metric("flops", "FLOPs", 1, 1), 291_648_307_200) == "291.6 G"


def test_moved_layers_are_counted_as_one_or_several(found):
    assert "copy 4 is 5 now; copy 5 is 4 now" in text(found(16)) and "copies 7..11 are 8..12 now" in text(found(15))
    assert "36.00 MiB" in text(report(GPT2, MODERN)) and "22.50 MiB" in text(report(GPT2, WINDOW))
