"""The views of the HTML report in Chromium: each in its tab, searched, linked to, walked through by keys, on paper and in both themes."""

import json

import pytest
from nnspec.cli import main
from nnspec.diff.html.page import page
from nnspec.diff.html.trees import key, rows
from nnspec.diff.layers import Asked
from nnspec.diff.sides import compared

from .browser import focused, in_view, text, texts
from .convertible import PLAIN, WIDER, model
from .pairs import GPT2, KV, edited
from .test_html_data import small


@pytest.fixture(scope="module", autouse=True)
def layered(files, tmp_path_factory):
    """Pages with a key map, and with exported files."""
    folder = tmp_path_factory.mktemp("layered")
    for name, spec in (("a", small(GPT2)), ("b", edited(small(GPT2), *KV)), ("plain", PLAIN), ("wider", WIDER)):
        (folder / f"{name}.yaml").write_text(spec)
    (files / "keys.html").write_text(page([compared(str(folder / "a.yaml"), str(folder / "b.yaml"), asked=Asked(keys=True))]), "utf-8")
    model(PLAIN).export(folder / "exported", no_weights=True, certify="none")
    with pytest.raises(SystemExit) as done:
        main(["diff", str(folder / "exported"), str(folder / "wider.yaml"), "-f", "html", "-o", str(files / "onnx.html")])
    assert done.value.code == 0
    return folder


def tab(browser):
    return browser.run("document.querySelector('[role=tab][aria-selected=true]').id.slice(4)")


def shown(browser):
    return browser.run("[...document.querySelectorAll('.panel')].filter(x => x.getClientRects().length).map(x => x.id)")


def settle(browser):
    browser.run("new Promise(r => setTimeout(r, 60))")


def search(browser, words):
    browser.run("document.getElementById('search').focus()")
    browser.run("document.getElementById('search').select()")
    browser.type(words)


# tabs


@pytest.mark.parametrize("name, found", [
    ("modern", ["Architecture", "Wiring", "Tensors", "YAML"]), ("same", ["Architecture", "Tensors", "YAML"]), ("lock", ["Tensors"]),
    ("new", ["Architecture", "Wiring", "YAML"]), ("gone", ["Architecture", "Wiring", "YAML"]),
    ("keys", ["Architecture", "Wiring", "Tensors", "Key map", "YAML"]), ("onnx", ["Architecture", "Wiring", "Tensors", "ONNX", "YAML"])])
def test_there_is_a_tab_for_what_there_is(show, name, found):
    browser = show(name)
    assert [t.split(" 0")[0] for t in texts(browser, "[role=tab]")] == found
    assert len(shown(browser)) == 1 and shown(browser) == [tab(browser)]
    for k in range(len(found)):
        browser.press(str(k + 1))
        assert shown(browser) == [tab(browser)] and browser.run("location.hash") == f"#{tab(browser)}"
        assert len(text(browser, f"#{tab(browser)}")) > 20
    assert browser.run("document.activeElement.role") == "tab"


def test_arrows_walk_the_tabs(show):
    browser = show("modern")
    browser.run("document.getElementById('tab-tree').focus()")
    steps = []
    for pressed in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "ArrowLeft", "Home"):
        browser.press(pressed)
        steps.append(tab(browser))
    assert steps == ["wiring", "tensors", "wiring", "yaml", "tree", "yaml", "tree"]
    assert browser.run("[...document.querySelectorAll('[role=tab]')].map(t => t.tabIndex)") == [0, -1, -1, -1]


@pytest.mark.parametrize("name, fragment", [("modern", "wiring"), ("modern", "tensors"), ("modern", "yaml"), ("keys", "keys"),
                                            ("onnx", "onnx")])
@pytest.mark.parametrize("width", [480, 1600])
def test_a_link_opens_a_tab(show, name, fragment, width):
    browser = show(name, f"#{fragment}", width=width)
    settle(browser)
    assert tab(browser) == fragment and in_view(browser, f"#tab-{fragment}")
    assert browser.run(f"(r => document.elementFromPoint(r.x + r.width / 2, r.y + 5).closest('[role=tab]')?.id)"
                       f"(document.getElementById('tab-{fragment}').getBoundingClientRect())") == f"tab-{fragment}"


@pytest.mark.parametrize("width", [480, 1000, 1600])
@pytest.mark.parametrize("name", ["modern", "keys", "onnx", "hostile", "new", "lock", "failed"])
def test_every_view_fits_its_window(show, name, width):
    browser = show(name, width=width, scheme="dark" if width == 1000 else "light")
    for k in range(1, 9):
        browser.press(str(k))
        assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["modern", "keys", "onnx"])
def test_every_view_can_be_read(show, name, scheme):
    browser = show(name, scheme=scheme)
    for k in range(1, 7):
        browser.press(str(k))
        assert browser.run(PICTURE if tab(browser) == "wiring" else PAGE) == []


RATIO = """
  const parse = c => c.match(/[\\d.]+/g).map(Number).slice(0, 3).map(x => c.startsWith('color') ? x : x / 255);
  const linear = x => (x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
  const light = c => parse(c).reduce((s, x, k) => s + linear(x) * [.2126, .7152, .0722][k], 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
"""
PICTURE = "(() => {" + RATIO + """
  return [...document.querySelectorAll('.box')].flatMap(b => {
    const ground = getComputedStyle(b.querySelector('rect')).fill;
    return [...b.querySelectorAll('tspan, .edits')].map(t => [ratio(getComputedStyle(t).fill, ground), t.textContent]);
  }).filter(([r]) => r < 4.5).map(String);
})()"""
PAGE = "(() => {" + RATIO + """
  const ground = e => { const c = getComputedStyle(e).backgroundColor; return /, 0\\)|\\/ 0\\)/.test(c) ? ground(e.parentElement) : c; };
  const faint = e => !e ? 1 : getComputedStyle(e).opacity * faint(e.parentElement);
  return [...document.querySelectorAll('.panel:not([hidden]) *')].filter(e => [...e.childNodes].some(t => t.nodeType === 3 && t.data.trim())
    && e.getClientRects().length && !e.closest('.hidden')).map(e => [ratio(getComputedStyle(e).color, ground(e)), faint(e), e.textContent])
    .filter(([r, f]) => r < 4.5 || f < 1).map(String);
})()"""


# wiring


def test_wiring_shows_both_sides(show):
    browser = show("modern", "#wiring")
    assert texts(browser, ".drawing h3") == ["The model", "layers[0..15]", "layers[0..11].attention", "layers[0..11].ffn"]
    boxes = browser.run("[...document.querySelectorAll('.drawing:first-child .box')].map(b => [b.querySelector('.name').textContent, "
                        "b.querySelector('.mark')?.textContent ?? ''])")
    assert dict(boxes) == {"tokens": "", "embed": "", "placed": "−", "layers": "~", "norm": "~", "logits": "", "▸ logits": ""}
    signs = browser.run("[...document.querySelectorAll('.drawing:first-child .sign')].map(b => b.textContent)")
    assert sorted(signs) == ["+", "−", "−"]
    assert browser.run("getComputedStyle(document.querySelector('.wire.removed path')).strokeDasharray") != "none"
    browser.run("document.querySelector('.drawing summary').click()")
    assert "added: embed → layers" in texts(browser, ".drawing:first-child .wires li")[-1]
    assert browser.run("[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().width > 200)")


def test_wiring_side_by_side(show):
    browser = show("modern", "#wiring")
    browser.press("m")
    assert texts(browser, ".drawing:first-child figcaption") == ["base.yaml", "head.yaml"]
    names = browser.run("[...document.querySelectorAll('.drawing:first-child svg')].map(s => [...s.querySelectorAll('.name')]"
                        ".map(x => x.textContent))")
    assert "placed" in names[0] and "placed" not in names[1] and set(names[1]) < set(names[0])
    told = browser.run("[...document.querySelectorAll('.drawing:first-child svg')].map(s => [...s.querySelectorAll('tspan')]"
                       ".map(t => t.textContent).join(' '))")
    assert "layer_norm" in told[0] and "rms_norm" not in told[0] and "rms_norm" in told[1] and "layer_norm" not in told[1]
    browser.press("m")
    assert texts(browser, "figcaption") == []


def test_keys_in_the_wiring(show):
    browser = show("modern", "#wiring")
    browser.run("document.getElementById('tab-wiring').focus()")
    steps = []
    for pressed in "nnnnp":
        browser.press(pressed)
        steps.append(browser.run("document.activeElement.dataset.key"))
    assert steps == ["placed", "layers", "norm", "layers.attention_norm", "norm"]
    assert in_view(browser, "a.box:focus")
    browser.press("Enter")
    settle(browser)
    assert tab(browser) == "tree" and browser.run("document.activeElement.dataset.key") == "norm"


@pytest.mark.parametrize("fragment, key", [("layers.attention.key", "layers.attention.key"), ("layers.3.ffn.gate", "layers.ffn.gate"),
                                           ("norm.weight", "norm"), ("layers[0..11].attention.joined", "layers.attention.joined")])
@pytest.mark.parametrize("width", [480, 1600])
def test_links_into_the_wiring(show, fragment, key, width):
    browser = show("modern", f"#wiring:{fragment}", width=width)
    settle(browser)
    assert tab(browser) == "wiring" and browser.run("document.activeElement.dataset.key") == key and in_view(browser, "a.box:focus")


def test_an_edit_points_at_its_boxes(show):
    browser = show("modern", "#wiring")
    browser.run("document.activeElement.blur()")
    for _ in range(3):
        browser.press("n")
    assert focused(browser) == "card-3"
    assert browser.run("[...document.querySelectorAll('a.box.lit .name')].map(x => x.textContent)") == ["key", "value", "attended"]
    assert browser.run("(b => { const r = b.getBoundingClientRect(), v = document.querySelector('.drawings').getBoundingClientRect();"
                       " return r.top >= v.top && r.bottom <= v.bottom; })(document.querySelector('a.box.lit'))")


def test_a_spec_alone_is_drawn_as_it_is(show):
    for name in ("new", "gone"):
        browser = show(name, "#wiring")
        assert browser.run("document.querySelectorAll('.box').length") >= 6 and texts(browser, ".drawing :is(.sign, .mark)") == []
        assert texts(browser, "[data-verdict]") == []
    assert "The spec was removed" in text(browser, "#edits")


# files


def test_yaml_shows_both_files(show):
    browser = show("modern", "#yaml")
    rows = browser.run("[...document.querySelectorAll('.line')].map(r => [...r.children].slice(0, 4).map(c => c.textContent))")
    assert ["4", "", "−removed", "sizes: {vocab: 50257, width: 768, layers: 12, heads: 12}"] in rows
    assert ["", "4", "+added", "sizes: {vocab: 50257, width: 768, layers: 16, heads: 12}"] in rows
    assert browser.run("[...document.querySelectorAll('.line b')].map(b => b.textContent)")[:3] == ["12", " <= 1024", "16"]
    assert {"layers", "repeat"} <= set(texts(browser, ".line .key")) and '"int64[B, S]"' in texts(browser, ".line .quoted")
    assert "4 more files without a change" in text(browser, "#yaml")
    browser.run("document.querySelector('.line.added .chip').click()")
    settle(browser)
    assert focused(browser) == "card-5"


def test_keys_in_the_files(show):
    browser = show("modern", "#yaml")
    lines = []
    for pressed in "nnp":
        browser.press(pressed)
        lines.append(browser.run("document.activeElement.querySelector('code').innerText.trim()"))
    assert [line.split(":")[0] for line in lines] == ["sizes", "placed", "sizes"] and in_view(browser, ".line:focus")


def test_links_to_lines(show):
    browser = show("modern", "#line:head:14:spec.yaml")
    settle(browser)
    assert "gated_ffn" in browser.run("document.activeElement.innerText") and in_view(browser, ".line:focus")
    browser = show("modern", "#edit-4")
    links = browser.run("[...document.querySelectorAll('#card-4 .facts-list a')].map(a => a.getAttribute('href'))")
    assert links == ["#line:base:15:spec.yaml", "#line:head:14:spec.yaml"]
    browser.run("document.querySelector('#card-4 .facts-list a').click()")
    settle(browser)
    assert tab(browser) == "yaml" and "plain_ffn" in browser.run("document.activeElement.innerText")
    for nowhere in ("#line:head:999:spec.yaml", "#line:head:1:other.yaml", "#line:x:1:spec.yaml", "#line:", "#tensor:no", "#wiring:no",
                    "#keys"):
        assert tab(show("modern", nowhere)) in ("tree", "wiring")


def test_runs_of_lines_unfold(show):
    browser = show("same", "#yaml")
    assert len(texts(browser, ".line")) == 4 and texts(browser, ".foldrow") == ["⋯ 15 unchanged lines"]
    browser.run("document.querySelector('.foldrow button').click()")
    assert len(texts(browser, ".line")) == 19 and texts(browser, ".foldrow") == []
    assert browser.run("document.activeElement.innerText").startswith("1")


# tables


def test_tensors_by_what_became_of_them(show, reports):
    browser = show("modern", "#tensors")
    n = len([t for t in reports["modern"].tensors if t.status != "kept"])
    assert len(texts(browser, "#tensors tbody tr")) == n
    browser.run("document.querySelector('[data-kind=kept]').click()")
    assert len(texts(browser, "#tensors tbody tr")) == len(reports["modern"].tensors)
    assert browser.run("document.activeElement.dataset.kind") == "kept"
    for kind in ("kept", "new", "reshaped"):
        browser.run(f"document.querySelector('[data-kind={kind}]').click()")
    assert {t.split()[0] for t in texts(browser, "#tensors tbody th")} == {"dropped"}


def test_a_link_to_a_tensor(show):
    browser = show("modern", "#tensor:layers.3.attention.query.weight")
    settle(browser)
    assert tab(browser) == "tensors" and browser.run("document.activeElement.dataset.tensor") == "layers[0..11].attention.query.weight"
    assert in_view(browser, "tr:focus")


def test_the_key_map(show):
    browser = show("keys", "#keys")
    assert texts(browser, "#keys thead th") == ["What", "New tensor", "Made of", "How"]
    kinds = {t.split()[0] for t in texts(browser, "#keys tbody tr")}
    assert kinds == {"approx"} and "mean of every 3 heads" in text(browser, "#keys tbody tr")
    browser.run("document.querySelector('#keys [data-kind=same]').click()")
    assert {t.split()[0] for t in texts(browser, "#keys tbody tr")} == {"approx", "same"}
    assert browser.run("document.querySelector('pre')") is None


def test_paths_break_after_dots_of_their_own(show):
    browser = show("keys", "#keys")
    pieces = browser.run("[...document.querySelector('#keys .path').childNodes].filter(x => x.nodeType === 3).map(x => x.data)")
    assert pieces == ["layers.", "{0..2}.", "attention.", "key.", "weight"]


def test_the_onnx_layer(show):
    browser = show("onnx", "#onnx")
    assert texts(browser, "#onnx h2") == ["Findings", "Files", "Ops"]
    assert any("onnx.weight-shape-changed" in t for t in texts(browser, "#onnx tbody tr"))
    assert [t for t in texts(browser, "#onnx tbody tr") if t.startswith("target")] == ["target ort-cpu ort-cpu"]
    assert browser.run("document.querySelector('pre')") is None


# all of them


def test_search_looks_through_every_view(show, reports):
    browser = show("modern", "#tensors")
    search(browser, "attention.key")
    counts = dict(t.rsplit(" ", 1) for t in texts(browser, "[role=tab]"))
    below = [r for top in rows(reports["modern"]) for r in top.walk() if "attention.key" in key(r.node.where)]
    assert {k: int(v) for k, v in counts.items()} == {"Architecture": len(below), "Wiring": 1, "Tensors": 4, "YAML": 0}
    assert len(texts(browser, "#tensors tbody tr")) == 4
    search(browser, "rms_norm")
    browser.run("document.getElementById('tab-yaml').click()")
    assert len(texts(browser, ".line mark")) == 2 and len(texts(browser, ".line")) < 19
    browser.run("document.getElementById('tab-wiring').click()")
    assert texts(browser, ".drawing h3") == ["The model", "layers[0..15]"]
    hit = browser.run("[...document.querySelectorAll('.box.hit .name')].map(x => x.textContent)")
    assert hit == ["norm", "attention_norm", "ffn_norm"]
    assert browser.run(PICTURE.replace("'.box'", "'.box.hit'")) == []
    browser.window(1600, scheme="dark")
    assert browser.run(PICTURE.replace("'.box'", "'.box.hit'")) == []
    browser.press("Escape")
    assert browser.run("document.querySelectorAll('.dim, .hit').length") == 0 and len(texts(browser, ".drawing")) == 4
    assert texts(browser, ".tabs .count") == [""] * 4


def test_a_link_ends_a_search(show):
    browser = show("modern")
    search(browser, "nothing like it")
    assert "No node matches" in text(browser, "#tree")
    browser.run("location.hash = '#wiring:norm'")
    settle(browser)
    assert browser.run("document.activeElement.dataset.key") == "norm" and browser.run("document.getElementById('search').value") == ""


def test_the_whole_width(show):
    browser = show("modern", "#wiring")
    before = browser.run("document.getElementById('panels').offsetWidth")
    browser.press("w")
    assert browser.run("document.getElementById('panels').offsetWidth") > 1.5 * before
    assert browser.run("document.getElementById('wide').getAttribute('aria-pressed')") == "true"
    browser.press("w")
    assert browser.run("document.getElementById('panels').offsetWidth") == before


def test_hostile_views_run_nothing(show):
    browser = show("hostile")
    told = texts(browser, "[role=tab]")
    assert {"Wiring", "Key map", "Claims", "ONNX", "Weights", "YAML"} <= set(told) and "</script><script>window.hit = 1</script>" in told
    for k in range(1, len(told) + 1):
        browser.run(f"document.querySelectorAll('[role=tab]')[{k - 1}].click()")
        browser.run("document.querySelectorAll('.panel:not([hidden]) :is(a, button)').forEach(a => a.dispatchEvent("
                    "new MouseEvent('click', {bubbles: true, cancelable: true})))")
        settle(browser)
        assert browser.run("window.hit === undefined && !document.querySelector('main :is(img, script, iframe, object, style)')")
    assert all(a.startswith("#") for a in browser.run("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"))


def test_every_view_is_on_paper(show):
    browser = show("modern", "#tensors")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.window(800, media="print")
    assert shown(browser) == ["tree", "wiring", "tensors", "yaml"]
    assert browser.run("getComputedStyle(document.querySelector('.tabbar')).display") == "none"
    assert browser.run("[...document.querySelectorAll('.panel > .title h2, .kinds h2')].every(h => h.getBoundingClientRect().height > 10)")
    assert browser.run("[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().width <= 800)")
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.window(1600)
    assert shown(browser) == ["tensors"]


def test_a_failed_comparison(show):
    browser = show("failed")
    assert "The comparison failed" in text(browser, "#verdicts") and texts(browser, "#alerts p") == ["error: no op `liner` <b>"]
    assert browser.run("document.title").startswith("1 failed")
    assert browser.run("document.getElementById('panels').getClientRects().length") == 0
    assert browser.run("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_what_a_screen_reader_tells_of_the_views(show):
    browser = show("modern", "#wiring")
    told = browser.names()
    assert {("tab", n) for n in ("Architecture", "Wiring", "Tensors", "YAML")} <= set(told)
    assert any(role == "link" and name.startswith("removed: placed") for role, name in told)
    assert any("layer_norm → rms_norm" in name for role, name in told if role == "link")
    assert all(name for role, name in told if role in ("button", "link", "tab", "tabpanel", "region"))
    assert json.dumps(told).count("learned_positions") >= 1
