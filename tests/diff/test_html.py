"""The HTML report, read by Chromium: what it shows, how it is moved through, and that nothing of a spec is run."""

import json
import re
from dataclasses import replace

import pytest
from nnspec.cli import main
from nnspec.diff.html.page import data, embedded, page
from nnspec.diff.html.trees import rows

from .browser import focused, in_view, text, texts
from .hostile import HOSTILE, LONG
from .pairs import GPT2, WINDOW, edited, report

# the file


def test_data_cannot_end_its_element():
    given = {"a": [*HOSTILE, 3, None, True], "</script>": {"b": 1.5}}
    made = embedded(given)
    assert not set("<>&\u2028\u202e\x00") & set(made)
    made.encode()
    back = json.loads(made)
    assert back["a"][0] == HOSTILE[0] and back["a"][9] == LONG and back["a"][4] == "\\u202egnp.exe" and back["</script>"] == {"b": 1.5}


def test_one_file_that_names_no_other(reports):
    for found in reports.values():
        made = page([found])
        outside = made[:made.index('<script type="application/json"')] + made[made.index("</script>"):]
        assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", outside) and "@import" not in made and "url(" not in outside
        assert made.count("</script>") == 2 and "default-src 'none'" in made and "unsafe" not in made


def test_a_deep_model_stays_small():
    made = page([report(GPT2, edited(GPT2, "layers: 12 -> layers: 100", "op: layer_norm -> op: rms_norm"))])
    assert len(made) < 150_000


def test_the_command_writes_it(tmp_path):
    for name, spec in (("base", GPT2), ("head", WINDOW)):
        (tmp_path / f"{name}.yaml").write_text(spec)
    with pytest.raises(SystemExit) as done:
        main(["diff", str(tmp_path / "base.yaml"), str(tmp_path / "head.yaml"), "--format", "html", "-o", str(tmp_path / "diff.html")])
    made = (tmp_path / "diff.html").read_text("utf-8")
    held = json.loads(made[made.index('id="report">') + len('id="report">'):made.index("</script>")])
    assert done.value.code == 0 and [e["rule"] for r in held["reports"] for e in r["edits"]] == ["attention.window-changed"]


# the trees


def marks(found):
    return {(r.base and r.base.name, r.head and r.head.name): r.mark for top in found for r in top.walk()}


def test_trees_say_what_came_and_went(reports):
    found = rows(reports["modern"])
    told = marks(found)
    assert told["placed", None] == "removed" and told[None, "query_placed"] == "added" and told["ffn", "ffn"] == "changed"
    assert told[None, "[12..15]"] == "added" and told["embed", "embed"] == "same" and told["joined", "joined"] == "same"
    assert [r.node.name for r in found] == ["embed", "placed", "layers", "norm", "logits"]
    by = {r.node.name: r.edits for top in found for r in top.walk()}
    rules = {k: [reports["modern"].edits[n - 1].rule for n in by[k]] for k in ("placed", "key", "gate", "[12..15]", "norm")}
    assert rules == {"placed": ["position.type-changed"], "key": ["attention.kv-heads-changed"], "gate": ["ffn.type-changed"],
                     "[12..15]": ["stack.count-increased"], "norm": ["norm.type-changed"]}


def test_trees_of_copies(reports):
    layers = next(r for r in rows(reports["window"]) if r.node.name == "layers")
    assert [(r.base.name, r.changes) for r in layers.children] == [("[0..10:2]", 0), ("[1..11:2]", 1)]
    assert [r.head.name for r in layers.children] == ["[0..10:2]", "[1..11:2]"]
    back = next(r for r in rows(report(WINDOW, GPT2)) if r.node.name == "layers")
    assert [(r.base.name, r.changes) for r in back.children] == [("[0..10:2]", 0), ("[1..11:2]", 1)]


def test_trees_of_renames_and_moves():
    told = marks(rows(report(GPT2, edited(GPT2, "placed -> positions_of_tokens"))))
    assert told["placed", "positions_of_tokens"] == "renamed" and told["layers", "layers"] == "same"


def test_trees_of_one_side(reports):
    head = reports["modern"].head
    found = rows(replace(reports["modern"], base=None, edits=()))
    assert {r.mark for top in found for r in top.walk()} == {"added"} and len(found) == len(head.outline)
    assert rows(replace(reports["modern"], base=replace(head, outline=()))) == []


# in the browser


@pytest.mark.parametrize("width", [480, 900, 1300, 1600])
@pytest.mark.parametrize("name", ["modern", "same", "hostile", "large"])
def test_fits_its_window(show, name, width):
    browser = show(name, width=width, scheme="dark" if width == 900 else "light")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('header').getBoundingClientRect().height") < 130
    assert browser.run("(x => x.scrollWidth <= x.clientWidth)(document.querySelector('#costs .scroll'))")


def test_verdicts_edits_costs_and_trees_in_this_order(show, reports):
    browser = show("modern", width=900)
    tops = browser.run("['verdicts', 'edits', 'costs', 'panels', 'tree'].map(i => document.getElementById(i).getBoundingClientRect().top)")
    assert tops == sorted(tops) and len(set(tops)) == 5
    assert texts(browser, ".cards h2") == ["Function", "Checkpoint", "Interface", "Cache", "Cost"]
    assert texts(browser, ".cards .word") == ["changed", "partial", "1 change", "layout changed", "+11.96% parameters"]
    assert "74 kept, 72 reshaped, 64 new, 50 dropped" in text(browser, "[data-verdict=checkpoint]")
    row = text(browser, "[data-metric=parameters]")
    assert row.startswith("parameters 124,439,808 139,318,784 +14,878,976 +11.96%")
    assert text(browser, "#edits h2") == "5 edits" and len(texts(browser, ".edit")) == 5
    assert len(reports["modern"].edits) == 5
    browser.run("document.querySelector('#costs summary').click()")
    assert text(browser, "#costs .total").startswith("All +14,878,976")


def test_an_unchanged_spec(show):
    browser = show("same")
    assert "No architectural change" in text(browser, "#edits")
    assert texts(browser, ".cards .word") == ["identical", "same", "unchanged", "unchanged", "unchanged"]
    assert browser.run("document.querySelectorAll('.tree .row[data-key]:not(.same)').length") == 0 and not texts(browser, ".gaprow")
    browser.press("n")
    assert text(browser, "#position") == "0 / 0"


def test_folding(show, reports):
    browser = show("modern")
    assert browser.run("document.querySelectorAll('.edit[open]').length") == 0
    browser.press("n")
    browser.press("Enter")
    first = reports["modern"].edits[0]
    assert browser.run("[...document.querySelectorAll('.edit[open]')].map(x => x.id)") == ["card-1"]
    assert len(texts(browser, "#card-1 .follow li")) == len(first.consequences)
    assert all(str(c.where) in t for c, t in zip(first.consequences, texts(browser, "#card-1 .follow li"), strict=True))
    assert "placed.table.weight" in text(browser, "#card-1 table")
    browser.press("e")
    assert browser.run("document.querySelectorAll('.edit[open] .body').length") == 5 and not texts(browser, ".gaprow")
    nodes = browser.run("document.querySelectorAll('.tree .row[data-key]').length")
    assert nodes == sum(1 for top in rows(reports["modern"]) for _ in top.walk())
    browser.press("c")
    assert browser.run("document.querySelectorAll('.edit[open]').length") == 0
    assert texts(browser, ".tree .row[data-key] .head .name") == ["embed", "layers", "norm", "logits"]


def test_unchanged_runs_are_folded(show):
    browser = show("modern")
    gaps = texts(browser, ".gaprow")
    assert "⋯ 2 unchanged: joined, output" in gaps
    assert "joined" not in texts(browser, ".tree .head .name")
    browser.run("[...document.querySelectorAll('.gaprow')].find(x => x.innerText.includes('joined')).click()")
    assert {"joined", "output"} <= set(texts(browser, ".tree .head .name"))
    assert browser.run("document.activeElement.dataset.key") == "layers.attention.joined"


def test_next_and_previous_change(show):
    browser = show("modern")
    steps = []
    for key in "njnnnnpk":
        browser.press(key)
        steps.append(focused(browser))
    assert steps == [f"card-{n}" for n in (1, 2, 3, 4, 5, 5, 4, 3)]
    assert text(browser, "#position") == "3 / 5" and browser.run("location.hash") == "#edit-3"
    assert browser.run("(s => s.outlineStyle + parseFloat(s.outlineWidth))(getComputedStyle(document.activeElement))") == "solid3"
    assert in_view(browser, "#card-3 summary")
    assert set(browser.run("[...document.querySelectorAll('.tree .row.lit')].map(r => r.dataset.key)")) >= {"layers.attention.key"}
    browser.run("document.getElementById('next').click()")
    assert focused(browser) == "card-4"


def test_keys_in_the_trees(show):
    browser = show("modern", "#path:layers")
    assert browser.run("document.activeElement.dataset.key") == "layers"
    browser.press("ArrowLeft")
    assert browser.run("document.activeElement.getAttribute('aria-expanded')") == "false"
    browser.press("n")
    assert browser.run("document.activeElement.dataset.key") == "norm"
    browser.press("p")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.dataset.key") == "layers.attention_norm"
    browser.press("End")
    browser.press("ArrowUp")
    assert browser.run("document.activeElement.dataset.key") == "norm"
    assert browser.run("document.querySelectorAll('.tree [role=row][tabindex=\"0\"]').length") == 1


def test_search(show):
    browser = show("modern")
    browser.press("/")
    assert focused(browser) == "search"
    browser.type("gated SWIGLU")
    assert text(browser, "#edits h2") == "0 of 5 edits" and "No edit matches" in text(browser, "#edits")
    browser.run("document.getElementById('search').select()")
    browser.type("SwiGLU")
    assert texts(browser, ".edit h3 .name") == ["layers.ffn"] and text(browser, "#edits h2") == "1 of 5 edits"
    assert set(texts(browser, ".edit mark")) == {"swiglu"}
    browser.run("document.getElementById('search').select()")
    browser.type("key_heads")
    assert [x for x in texts(browser, ".tree .head .name") if x] == ["layers", "attention", "key_heads"]
    assert re.fullmatch(r"\d+ edits?, 1 node", text(browser, "#found"))
    browser.press("Escape")
    assert text(browser, "#edits h2") == "5 edits" and text(browser, "#search") == ""
    browser.press("n")
    assert focused(browser) == "card-1"


def test_side_by_side(show):
    browser = show("modern")
    sides = dict(zip(browser.run("[...document.querySelectorAll('.tree .row[data-key]')].map(r => r.dataset.key)"),
                     zip(*(texts(browser, f".tree .row[data-key] .{side}") for side in ("base", "head")), strict=True), strict=True))
    base, head = sides["layers.ffn"]
    assert "plain_ffn" in base and "gated_ffn" in head and "4,722,432" in base and "4,718,592" in head
    assert "learned_positions" in sides["placed"][0] and sides["placed"][1] == "not there"
    assert sides["layers.attention.key_placed"][0] == "not there"
    assert texts(browser, "[data-key='layers.ffn'] :is(del, ins)") == ["plain_ffn", "gated_ffn"]
    tops = "[...document.querySelectorAll('[data-key=\"layers.ffn\"] .cell')].map(c => c.getBoundingClientRect().top)"
    beside = browser.run(tops)
    assert beside[0] == beside[1]
    stacked = show("modern", width=480).run(tops)
    assert stacked[0] < stacked[1]


@pytest.mark.parametrize("width", [480, 1600])
def test_links_to_edits(show, reports, width):
    for fragment in ("#edit-3", f"#{reports['modern'].edits[2].id}"):
        browser = show("modern", fragment, width=width)
        assert browser.run("[...document.querySelectorAll('.edit[open]')].map(x => x.id)") == ["card-3"]
        assert focused(browser) == "card-3" and in_view(browser, "#card-3 summary")
    browser.run("location.hash = '#edit-5'")
    assert browser.run("new Promise(r => setTimeout(r, 50)).then(() => document.getElementById('card-5').open)")


@pytest.mark.parametrize("fragment, key", [
    ("#path:layers.attention.key", "layers.attention.key"), ("#path:layers.3.attention.output", "layers.attention.output"),
    ("#path:layers.%7Bi%7D.ffn", "layers.ffn"), ("#path:layers.attention.query.weight", "layers.attention.query"),
    ("#path:placed.table", "placed.table"), ("#path:layers[0..11].attention.value", "layers.attention.value")])
@pytest.mark.parametrize("width", [480, 1600])
def test_links_to_nodes(show, fragment, key, width):
    browser = show("modern", fragment, width=width)
    assert browser.run("document.activeElement.dataset.key") == key
    assert in_view(browser, f".tree [data-key='{key}']")


def test_links_from_edits_to_copies(show):
    browser = show("modern", "#edit-5")
    browser.run("document.querySelector('#card-5 .follow a').click()")
    assert browser.run("new Promise(r => setTimeout(r, 50)).then(() => document.activeElement.innerText)").startswith("not there")
    assert "[12..15]" in browser.run("document.activeElement.innerText") and in_view(browser, ".tree .row:focus")
    assert browser.run("decodeURIComponent(location.hash)") == "#path:layers[12..15]"


def test_several_comparisons(show):
    browser = show("several")
    assert texts(browser, ".edit h3 .name") == ["layers.pattern"] and "error: </script> cannot be read" in texts(browser, "#alerts p")
    assert [t.split(":")[0] for t in texts(browser, "select option")] == ["1 of 2", "2 of 2"]
    browser.run("(s => { s.value = '2'; s.dispatchEvent(new Event('change')); })(document.querySelector('select'))")
    browser.wait("document.readyState == 'complete' && document.querySelectorAll('.edit').length == 5")
    browser.press("n")
    assert browser.run("location.hash") == "#2!edit-1" and browser.run("document.querySelector('select').value") == "2"
    browser = show("several", "#2!edit-3")
    assert focused(browser) == "card-3"
    browser.run("document.querySelector('#card-3 .follow a').click()")
    browser.wait("document.activeElement.dataset.key == 'layers.attention.attended'")
    assert "No spec differs" in text(show("none"), "main")


def test_links_of_nowhere_do_no_harm(show):
    for fragment in ("#edit-99", "#path:", "#path:nothing.like.it", "#%E0%A4%A", "#<b>"):
        assert len(texts(show("modern", fragment), ".edit")) == 5


def test_hostile_text_is_text(show, reports):
    browser = show("hostile")
    browser.press("e")
    assert browser.run("window.hit === undefined") is True
    assert browser.run("document.querySelectorAll('main img, main script, main b > b').length") == 0
    names = browser.run("[...document.querySelectorAll('.edit h3 .name')].map(x => x.textContent)")
    told = [e["title"] for e in json.loads(embedded(data(reports["hostile"])))["edits"]]
    assert names == told and names[0] == HOSTILE[0] and names[9] == LONG and names[5] == HOSTILE[5]
    assert "\u202e" not in browser.run("document.body.textContent") and "\\u202egnp.exe" in names
    assert browser.run("getComputedStyle(document.querySelector('.edit h3 .name')).unicodeBidi") == "isolate"
    assert all(a.startswith("#") for a in browser.run("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"))
    browser.run("document.querySelectorAll('a').forEach(a => a.click())")
    assert browser.run("window.hit === undefined") is True


def test_a_script_of_a_spec_would_be_refused(show):
    browser = show("modern")
    browser.run("(s => { s.textContent = 'window.hit = 5'; document.body.append(s); })(document.createElement('script'))")
    assert browser.run("window.hit === undefined") is True
    assert any("Content Security Policy" in p for p in browser.problems)
    browser.problems.clear()


def test_what_a_screen_reader_tells(show):
    browser = show("modern")
    told = browser.names()
    roles = {role for role, _ in told}
    assert {"treegrid", "row", "columnheader", "heading", "searchbox", "toolbar", "status", "main", "tablist", "tab", "tabpanel"} <= roles
    heads = [name for role, name in told if role == "heading"]
    assert {"5 edits", "Costs", "Architecture", "Checkpoint"} <= set(heads)
    assert any(name.startswith("Edit 3") and "from 12" in name and "to 4" in name for name in heads)
    assert all(name for role, name in told if role in ("button", "link", "searchbox", "treegrid", "columnheader"))
    assert browser.run("[...document.querySelectorAll('.tree .row[data-key]')].every(r => +r.getAttribute('aria-level') >= 1)")
    assert "changed" in texts(browser, "[data-key='layers.ffn'] .hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light(show, scheme):
    browser = show("modern", "#edit-4", scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    assert (browser.run(ground) < 80) == (scheme == "dark")
    assert contrasts(browser) == []
    browser.press("t")
    assert (browser.run(ground) < 80) != (scheme == "dark")
    assert contrasts(browser) == []
    browser.run("localStorage.clear()")


CONTRAST = """(() => {
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const parse = c => numbers(c).slice(0, 3).map(x => (c.startsWith('color') ? x : x / 255)).concat(numbers(c)[3] ?? 1);
  const linear = x => (x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
  const light = c => c.slice(0, 3).reduce((s, x, k) => s + linear(x) * [.2126, .7152, .0722][k], 0);
  const ground = e => {
    const c = parse(getComputedStyle(e).backgroundColor);
    return c[3] > .9 ? c : ground(e.parentElement);
  };
  const ratio = e => {
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    return (a + .05) / (b + .05);
  };
  const said = e => [...e.childNodes].some(t => t.nodeType === 3 && t.data.trim());
  const shown = [...document.querySelectorAll('main *, header *, footer *')].filter(e => said(e) && e.getClientRects().length
    && !e.closest('.hidden, :disabled'));
  return [shown.length, shown.map(e => [ratio(e), e.className, e.textContent.slice(0, 40)]).filter(([r]) => r < 4.5).map(String)];
})()"""


def contrasts(browser):
    """Texts whose contrast is below 4.5 (WCAG 2.2, 1.4.3), of what is on the page."""
    shown, low = browser.run(CONTRAST)
    assert shown > 100
    return low


def test_print(show):
    browser = show("modern", scheme="dark")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.window(800, scheme="dark", media="print")
    assert browser.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("document.querySelectorAll('.edit[open] .body').length") == 5 and contrasts(browser) == []
    assert not texts(browser, ".gaprow") and "All" in text(browser, "#costs .total")
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.querySelectorAll('.edit[open]').length") == 0 and texts(browser, ".gaprow")
