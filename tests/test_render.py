import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnspec.lang.diagnostic import Diagnostic, Label, diagnostic
from nnspec.lang.source import Source, Span
from nnspec.render import render, render_github, render_json

SPEC = Source("specs/bad.yaml", """nnspec: 1
inputs:
  n: float[B, S, 8]
sizes: {hidden: 16}
graph:
  up:   {op: linear, in: n, width: hidden}
  # two
  # comments
  res:  {op: add, in: [n, up]}
""")
ANSI = re.compile("\x1b\\[[0-9;]*m")


def at(source, text, nth=0):
    start = -1
    for _ in range(nth + 1):
        start = source.text.index(text, start + 1)
    return Span(source, start, start + len(text))


def mismatch():
    add = at(SPEC, "[n, up]")
    return diagnostic(
        "shape-mismatch", "the inputs of `add` disagree about axis `d`", Label(add.part(4, 6), "d = 16"),
        Label(add.part(1, 2), "d = 8"),
        Label(at(SPEC, "up"), "`up` is [B, S, 16]"),
        note="`add` is `a: [*s d], b: [*s d] -> [*s d]`", help="use a linear op to change the width")


def test_terminal_format():
    assert render([mismatch()]) == """\
error[shape-mismatch]: the inputs of `add` disagree about axis `d`
 --> specs/bad.yaml:9:27
  6 |   up:   {op: linear, in: n, width: hidden}
    |   -- `up` is [B, S, 16]
  9 |   res:  {op: add, in: [n, up]}
    |                           ^^ d = 16
    |                        - d = 8
    = note: `add` is `a: [*s d], b: [*s d] -> [*s d]`
    = help: use a linear op to change the width

1 error
"""


def test_other_files_get_their_own_snippet_and_the_gutter_is_common():
    block = Source("blocks/layer.yaml", "\n" * 99 + "settings: {width: int}\n")
    found = diagnostic("bad-scalar", "`hidden` is not an integer", Label(at(SPEC, "hidden", 1), "an integer was expected"),
                       Label(at(block, "width: int"), "declared here"), severity="warning")
    assert render([found, mismatch()]).startswith("""\
warning[bad-scalar]: `hidden` is not an integer
 --> specs/bad.yaml:6:36
    6 |   up:   {op: linear, in: n, width: hidden}
      |                                    ^^^^^^ an integer was expected
 ::: blocks/layer.yaml:100:12
  100 | settings: {width: int}
      |            ---------- declared here

error[shape-mismatch]""")
    assert render([found, mismatch(), mismatch()]).endswith("\n\n2 errors, 1 warning\n")


def test_no_labels_and_no_items():
    assert render([]) == ""
    assert render([diagnostic("file-not-found", "there is no file `a`", note="first\n  second", help=["x", "y"])]) == """\
error[file-not-found]: there is no file `a`
    = note: first
              second
    = help: x
    = help: y

1 error
"""


def test_same_label_twice_is_shown_once_and_empty_text_only_underlines():
    span = at(SPEC, "linear")
    assert render([diagnostic("c", "h", span, Label(span), Label(at(SPEC, "hidden", 1), "x"))]).splitlines()[2:6] == [
        "  6 |   up:   {op: linear, in: n, width: hidden}",
        "    |                                    ------ x",
        "    |              ^^^^^^", ""]


def test_span_over_lines_and_empty_spans():
    over = Span(SPEC, SPEC.text.index("{hidden"), len(SPEC.text))
    assert render([diagnostic("c", "h", Label(over, "all"))]).splitlines()[3] == "    |        ^^^^^^^^^^^^ all"
    end = Span(SPEC, len(SPEC.text), len(SPEC.text))
    assert render([diagnostic("c", "h", Label(end, "end"))]).splitlines()[1:4] == [
        " --> specs/bad.yaml:10:1", "  10 |", "     | ^ end"]
    assert render([diagnostic("c", "h", Span(Source("e.yaml", ""), 0, 0))]).splitlines()[2:4] == ["  1 |", "    | ^"]


def test_wide_and_combining_characters_and_tabs_keep_the_carets_in_place():
    source = Source("w.yaml", "日本: e\u0301\tx: 値\r\n")
    rows = render([diagnostic("c", "h", Label(at(source, "値"), "here"), Label(at(source, "e\u0301"), "e"))]).splitlines()
    assert rows[2] == "  1 | 日本: e\u0301    x: 値"
    assert rows[3] == "    | " + " " * 14 + "^^ here"  # 4 + 2 + 1 + 4 + 3 columns before
    assert rows[4] == "    | " + " " * 6 + "- e"


def test_long_lines_are_cut_around_the_label():
    source = Source("long.yaml", "a: {" + ", ".join(f"key{i}: {i}" for i in range(99)) + "}")
    rows = render([diagnostic("c", "h", Label(at(source, "key50"), "here"))], width=60).splitlines()
    assert rows[2].startswith("  1 | ... ") and rows[2].endswith(" ...") and len(rows[2]) <= 60
    column = rows[3].index("^")
    assert rows[2][column : column + 5] == "key50" and rows[3][column:] == "^^^^^ here"


def test_labels_far_apart_show_the_line_twice():
    source = Source("long.yaml", "a: {first: 1, " + "x: 2, " * 50 + "last: 3}")
    rows = render([diagnostic("c", "h", Label(at(source, "last"), "again"),
    Label(at(source, "first"), "once"))], width=60).splitlines()
    for number, mark, word in ((2, "-----", "first"), (4, "^^^^", "last")):
        column = rows[number + 1].index(mark)
        assert rows[number][column : column + len(word)] == word


@pytest.mark.parametrize("width", [40, 60, 100])
def test_texts_are_wrapped(width):
    words = " ".join(f"word{i}" for i in range(40))
    rows = render([diagnostic("c", "h", Label(at(SPEC, "hidden", 1), words), note=words)], width=width).splitlines()
    assert max(len(row) for row in rows) <= width
    text = " ".join(row.lstrip(" |^=") for row in rows[3:])
    assert re.findall(r"word\d+", text) == words.split() * 2


def test_colour_adds_nothing_but_colour():
    warning = diagnostic("c", "h", Label(at(SPEC, "up"), "x"), note="n", severity="warning")
    plain, coloured = render([mismatch(), warning]), render([mismatch(), warning], color=True)
    assert "\x1b[" not in plain and ANSI.sub("", coloured) == plain
    assert "\x1b[1;31merror[shape-mismatch]\x1b[0m" in coloured and "\x1b[1;33mwarning[c]\x1b[0m" in coloured


def test_text_from_a_file_cannot_steer_the_terminal():
    source = Source("a\x1b[2J.yaml", "a: \x1b[31m\u202eb")
    found = diagnostic("c", "bad \x1b[0m \ud800", Label(Span(source, 3, 4), "\x07"), note="\x9b1m")
    shown = render([found])
    assert shown.isprintable() is False and set(c for c in shown if not c.isprintable()) == {"\n"}
    assert "a: \ufffd[31m\ufffdb" in shown and "\\x1b[0m \\ud800" in shown


def test_json():
    data = json.loads(render_json([mismatch(), diagnostic("c", "h", severity="warning")]))
    assert (data["errors"], data["warnings"], len(data["diagnostics"])) == (1, 1, 2)
    first = data["diagnostics"][0]
    assert (first["code"], first["severity"], first["headline"]) == (
        "shape-mismatch", "error", "the inputs of `add` disagree about axis `d`")
    assert first["labels"][0] == {
        "file": "specs/bad.yaml", "line": 9, "column": 27, "end_line": 9, "end_column": 29, "text": "d = 16"}
    assert first["notes"] == ["`add` is `a: [*s d], b: [*s d] -> [*s d]`"] and len(first["helps"]) == 1
    assert json.loads(render_json([])) == {"errors": 0, "warnings": 0, "diagnostics": []}


def test_github():
    source = Source("a,b:c.yaml", "x: 1\n  y: 2")
    found = diagnostic("bad-node", "50% of\r\nit: a, b", Label(at(source, "y"), "here"), help="fix")
    warning = diagnostic("c", "h", severity="warning")
    assert render_github([found, warning]) == (
        "::error file=a%2Cb%3Ac.yaml,line=2,col=3,title=bad-node::50%25 of%0D%0Ait: a, b%0Aa,b:c.yaml:2:3: here%0Ahelp: fix\n"
        "::warning title=c::h\n")


TEXT = st.text(st.sampled_from("ab: {}[]\t\n\r日e\u0301\x1b\u202e\U0001f600 "), max_size=150)


@given(TEXT, st.lists(st.tuples(st.integers(0, 160), st.integers(0, 20), TEXT), min_size=1, max_size=4), st.integers(1, 120))
def test_any_span_of_any_text_is_rendered(text, spans, width):
    source = Source("s.yaml", text)
    labels = tuple(Label(Span(source, min(a, len(text)), min(a + n, len(text))), t) for a, n, t in spans)
    found = Diagnostic("c", "headline", labels, (text,), (text,))
    shown = render([found], width)
    assert shown.startswith("error[c]: headline\n --> s.yaml:") and shown.endswith("\n\n1 error\n")
    assert shown.count("^") >= 1 and "\x1b" not in shown and "\t" not in shown
    assert json.loads(render_json([found]))["errors"] == 1
    assert render_github([found]).count("\n") == 1


def test_render_imports_no_terminal_library():
    code = "import sys, nnspec.render; print(sorted({'rich', 'yaml', 'torch', 'numpy', 'onnx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
