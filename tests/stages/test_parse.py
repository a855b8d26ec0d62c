import unicodedata

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from nnspec.lang.diagnostic import Diagnostics
from nnspec.lang.source import Source
from nnspec.lang.tree import Mapping, Scalar, plain
from nnspec.stages import parse as module
from nnspec.stages.parse import MAX_ALIASED, MAX_DEPTH, parse


@pytest.fixture(params=["libyaml", "python"])
def parser(request, monkeypatch):
    """Runs a test with each of the two YAML parsers."""
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(module, "_FAST", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


def tree(text):
    return parse(Source("spec.yaml", text))


def errors(text):
    with pytest.raises(Diagnostics) as found:
        tree(text)
    return found.value.items


def error(text):
    found = errors(text)
    assert len(found) == 1, [d.headline for d in found]
    return found[0]


def texts(diagnostic):
    return [label.span.text for label in diagnostic.labels]


def lines(diagnostic):
    return [label.span.line for label in diagnostic.labels]


def nodes(tree):
    yield tree
    if isinstance(tree, Mapping):
        for entry in tree:
            yield entry.key
            yield from nodes(entry.value)
    elif not isinstance(tree, Scalar):
        for item in tree:
            yield from nodes(item)


DOCUMENT = """\
# a comment, é 日本 \U0001f600
nnspec: 1
about: 日本 text \U0001f600
sizes: {width: 64, 'heads': "8",
        eps: 1e-5}
list:
  - no
  - [a, b]   # after
  - key: value
    other: |
      two
      lines

empty:
nested:
  deep: {}
last: plain
  goes on
"""


@pytest.mark.parametrize("text", [DOCUMENT, DOCUMENT.replace("\n", "\r\n"), "\ufeff" + DOCUMENT], ids=["lf", "crlf", "bom"])
def test_tree_and_spans(parser, text):
    root = tree(text)
    assert plain(root) == {
        "nnspec": "1", "about": "日本 text \U0001f600", "sizes": {"width": "64", "heads": "8", "eps": "1e-5"},
        "list": ["no", ["a", "b"], {"key": "value", "other": "two\nlines\n"}], "empty": "", "nested": {"deep": {}},
        "last": "plain goes on",
    }
    assert root.get("about").span.text == "日本 text \U0001f600"
    sizes = root.get("sizes")
    assert (sizes.flow, root.get("nested").flow, root.flow) == (True, False, False)
    assert sizes.span.text.replace("\r", "") == "{width: 64, 'heads': \"8\",\n        eps: 1e-5}"
    assert [e.key.span.text for e in sizes] == ["width", "'heads'", "eps"]
    assert [e.key.quoted for e in sizes] == [False, True, False]
    assert str(sizes.get("eps").span) == "spec.yaml:5:14"
    listed = root.get("list")
    assert [x.span.text.splitlines()[0] for x in listed] == ["no", "[a, b]", "key: value"]
    assert listed.span.text.rstrip() == listed.span.text
    assert listed.items[2].get("other").quoted
    assert (root.get("empty").span.start, root.get("empty").span.text) == (text.index("empty:") + 6, "")
    assert root.get("last").span.text.split() == ["plain", "goes", "on"]


@pytest.mark.parametrize("text", ["a: {b, c: }", "a: {b, c:   }", "a:   \nb: 1", "- \n- x"])
def test_span_of_an_empty_value_follows_its_key(parser, text):
    empty = next(n for n in nodes(tree(text)) if isinstance(n, Scalar) and not n.text)
    assert empty.span.text == "" and text[empty.span.start - 1] in ":b-"


def test_scalars_are_not_typed(parser):
    written = ["1e-5", "012", "no", "on", "~", "null", "0x10", "2024-01-01", ".inf", "1_000", "1:30", "true"]
    assert plain(tree("\n".join(f"- {w}" for w in written))) == written


def test_anchor_is_not_part_of_the_span(parser):
    root = tree("a: &x 64\nb: &y\n  c: 1\nd: &z # why\n  - 1\ne: &w {f: 1}\ng: &v\nh: *x\n")
    assert [e.value.span.text for e in root] == ["64", "c: 1", "- 1", "{f: 1}", "", "64"]


def test_alias_expands_to_the_same_tree(parser):
    root = tree("a: &x {k: 1}\nb: [*x, *x]\nc: 2\n")
    assert plain(root) == {"a": {"k": "1"}, "b": [{"k": "1"}, {"k": "1"}], "c": "2"}
    assert root.get("b").items[0] is root.get("a")
    assert root.get("b").span.text == "[*x, *x]"


def test_block_span_that_ends_in_an_alias(parser):
    root = tree("a: &x {k: 1}\nb:\n  c: *x\nd: 2\n")
    assert root.get("b").span.text == "c: *x"


def test_merge_order(parser):
    root = tree("a: &a {k: 1, j: 2}\nb: &b {<<: *a, k: 3}\nc: {z: 0, <<: [*b, *a, {m: 5}], m: 4}\nd: {k: 9, <<: *a}\n")
    assert [(e.key.text, e.value.text) for e in root.get("b")] == [("j", "2"), ("k", "3")]
    assert [(e.key.text, e.value.text) for e in root.get("c")] == [("z", "0"), ("j", "2"), ("k", "3"), ("m", "4")]
    assert [(e.key.text, e.value.text) for e in root.get("d")] == [("k", "9"), ("j", "2")]
    assert root.get("c").get("j").span.line == 1
    assert root.get("c").get("k").span.line == 2


def test_merge_agrees_with_pyyaml():
    text = "a: &a {k: x, j: y}\nb: &b {j: z, l: v}\nc: {<<: [*b, *a], m: w}\nd: {<<: *b, l: u}\n"
    assert plain(tree(text)) == yaml.safe_load(text)


def test_quoted_merge_key_is_a_plain_key(parser):
    assert plain(tree('a: {"<<": 1, "<<merge>>": 2}')) == {"a": {"<<": "1", "<<merge>>": "2"}}


def test_merge_of_no_mapping(parser):
    found = error("a: &x [1]\nb: {<<: [{c: 1}, *x]}")
    assert (found.code, texts(found)) == ("yaml-merge", ["[1]", "<<"])


def test_duplicates_all_at_once_at_every_depth(parser):
    found = errors("a: 1\nb:\n  - {c: 1, d: 2, c: 3}\n  - e:\n      f: 1\n      g: {h: 1, 'h': 2}\n      f: 2\na: 2\na: 3\n")
    assert {d.code for d in found} == {"duplicate-key"}
    assert [(texts(d), lines(d)) for d in found] == [
        (["c", "c"], [3, 3]), (["'h'", "h"], [6, 6]), (["f", "f"], [7, 5]), (["a", "a"], [8, 1]), (["a", "a"], [9, 1])]


def test_merge_twice_is_a_duplicate(parser):
    found = error("x: {<<: {k: 1}, <<: {k: 2}}")
    assert (found.code, texts(found)) == ("duplicate-key", ["<<", "<<"])


@pytest.mark.parametrize("form", ["NFD", "NFKD"])
def test_duplicate_by_unicode_form(parser, form):
    name = "caf\u00e9" if form == "NFD" else "\ufb01t"
    found = error(f"{name}: 1\n{unicodedata.normalize(form, name)}: 2\n")
    assert found.code == "duplicate-key" and "Unicode" in found.notes[0]


def test_yes_and_true_stay_two_keys(parser):
    assert tree("on: 1\ntrue: 2\nyes: 3\n1: 4\n'01': 5").keys() == ["on", "true", "yes", "1", "01"]


@pytest.mark.parametrize("text, value, help", [
    ("{a: float[B, S]}", "float[B, S]", 'quote it: `{a: "float[B, S]"}`'),
    ("a: {b: int64[B], c: 1}", "int64[B]", 'quote it: `b: "int64[B]"`'),
    ("a: [list[i], c]", "list[i]", 'quote it: `"list[i]"`'),
    ("a: {b: list[i] + 1, c: 2}", "list[i] + 1", 'quote it: `b: "list[i] + 1"`'),
    ("a: {b: min(x[0], y)}", "min(x[0], y)", 'quote it: `{b: "min(x[0], y)"}`'),
    ("a: {b: min(x, y)}", "min(x, y)", 'quote it: `{b: "min(x, y)"}`'),
    ("a: [max(x, y), z]", "max(x, y)", 'quote it: `"max(x, y)"`'),
    ("a: {b:\n    x[i]}", "x[i]", 'quote it: `"x[i]"`'),
    ("{a: b[\"c\", d]}", "b[\"c\", d]", "quote it: `{a: 'b[\"c\", d]'}`"),
])
def test_brackets_in_flow_need_quotes(parser, text, value, help):
    found = error(text)
    assert (found.code, texts(found), found.helps) == ("yaml-syntax", [value], (help,))


def test_all_brackets_and_later_duplicates_are_reported(parser):
    found = errors("a: {b: x[B, S], c: y[B]}\nd: {e: z[T]}\nf: 1\nf: 2\n")
    assert [texts(d)[0] for d in found] == ["x[B, S]", "y[B]", "z[T]", "f"]


SYNTAX = {
    "a:\n\t- b": ("a tab is used for indentation", ["\t"]),
    "a: 'b\nc: d\n": ("a quoted text is never closed", ["'"]),
    'a: "b\n': ("a quoted text is never closed", ['"']),
    "a: [1, 2\nb: 3": ("`[` is never closed", ["[", ":"]),
    "a: {b: 1": ("`{` is never closed", ["{"]),
    "a: [1, 2}": ("`[` is closed by `}`", ["}", "["]),
    "a: [1, 2] x": ("text follows a closing bracket", ["x"]),
    "a: 'it's'": ("text follows a closing quote", ["s"]),
    "a:\n  - 1\n b: 2": ("this line does not line up with its block", ["b", "a"]),
    "a: b: c": ("a second `: ` stands on one line", [":"]),
    "a: 1\n  b: 2": ("this key is indented under a value", ["b"]),
    "a: 1\nfoo\nb: 2": ("this line is not `key: value`", ["foo"]),
    "a: @x": ("a value cannot begin with `@`", ["@"]),
    "a: `x`": ("a value cannot begin with a backtick", ["`"]),
    "a: - b": ("a list item cannot begin here", ["-"]),
    'a: "\\q"': ("`\\q` is not a valid escape", ["\\q"]),
    "a: [b, , c]": ("a value was expected, not `,`", [","]),
    "a: {op:linear, in: x}": ("a space is missing after a colon", ["op:linear"]),
    "%YAML 3.0\n---\na: 1": ("this YAML version is not supported", ["%YAML"]),
}


@pytest.mark.parametrize("text", SYNTAX)
def test_syntax_errors(parser, text):
    found = error(text)
    assert (found.code, found.headline, texts(found)) == ("yaml-syntax", *SYNTAX[text])


def test_no_break_space_is_pointed_at(parser):
    assert texts(error("a: \u00a0b: c"))[1] == "\u00a0"


def test_large_file_with_an_error_does_not_need_the_slow_parser():
    found = error("".join(f"key{i}: [1, 2, 3]\n" for i in range(20_000)) + "last: [1, 2\n")
    assert found.headline == "`[` is never closed" and lines(found) == [20_001]


@pytest.mark.parametrize("text, named", [
    ("a: \x01", "U+0001"), ("a: \x1b[31m", "U+001B"), ("a: b\x85c", "U+0085"), ("a: b\u2028c", "U+2028"),
    ("a: b\u200bc", "U+200B"),
    ("a: b\u202ec", "U+202E"), ("a: b\ufeffc", "U+FEFF"), ("a: \ud800", "U+D800"), ("a: \x00", "U+0000"), ("a: 1\rb: 2", "alone"),
])
def test_unfit_characters(parser, text, named):
    found = error(text)
    assert found.code == "yaml-character" and named in found.headline


def test_unfit_characters_are_grouped(parser):
    found = errors("a: \x01\x01\x01\x01\nb: \x02\n")
    assert [len(d.labels) for d in found] == [3, 1]
    assert found[0].notes == ("it stands in 4 places",)


@pytest.mark.parametrize("text, tag", [
    ("a: !!python/object/apply:os.system ['ls']", "!!python/object/apply:os.system"), ("a: !!int 3", "!!int"), ("a: ! x", "!"),
    ("a: &x !!str b", "!!str"), ("!!map {a: 1}", "!!map"), ("a: !<tag:yaml.org,2002:int> 3", "!<tag:yaml.org,2002:int>"),
])
def test_tags_are_refused(parser, text, tag):
    found = error(text)
    assert (found.code, texts(found)) == ("yaml-tag", [tag])


def test_undefined_tag_handle(parser):
    assert error("a: !foo!bar x").code == "yaml-tag"


@pytest.mark.parametrize("text, marked", [
    ("? [a]\n: 1", ["[a]"]), ("{[a, b]: 1}", ["[a, b]"]), ("a: {{width}}", ["{width}"]), ("? {b: 1}\n: c", ["{b: 1}"]),
    ('a: {"": 1}', ['""']),
])
def test_keys_must_be_names(parser, text, marked):
    found = error(text)
    assert (found.code, texts(found)) == ("yaml-key", marked)


@pytest.mark.parametrize("text", ["---\na: 1\n---\nb: 2", "a: 1\n---\n", "a: 1\n...\n---\nb: 2\n"])
def test_one_document(parser, text):
    found = error(text)
    assert found.code == "yaml-documents" and found.labels[0].span.text == "---"


@pytest.mark.parametrize("text", ["", "\n\n", "# comment\n", "---\n", "---\n...\n", "\ufeff"])
def test_empty(parser, text):
    assert error(text).code == "yaml-empty"


@pytest.mark.parametrize("text", ["---\na: 1\n...\n", "%YAML 1.1\n---\na: 1\n", "a: 1"])
def test_document_markers_are_allowed(parser, text):
    assert plain(tree(text)) == {"a": "1"}


def test_unknown_alias(parser):
    found = error("a: &linear 1\nb: *liner")
    assert (found.code, texts(found)) == ("yaml-alias", ["*liner"]) and "did you mean `linear`?" in found.helps


@pytest.mark.parametrize("text", ["a: &x {b: *x}", "&x [1, *x]", "a: &x {<<: *x}"])
def test_alias_inside_itself(parser, text):
    found = error(text)
    assert (found.code, texts(found)) == ("yaml-alias", ["*x", "&x"])


def test_anchor_set_twice(parser):
    found = error("a: &x 1\nb: &x 2\n")
    assert (found.code, lines(found)) == ("yaml-alias", [2, 1])


def test_alias_bomb(parser):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))
    found = error(bomb)
    assert found.code == "yaml-alias" and f"{MAX_ALIASED:,}" in found.headline


def test_many_values_without_aliases_are_fine():
    assert len(tree("a: [" + "1, " * (MAX_ALIASED + 1) + "1]").get("a")) == MAX_ALIASED + 2


@pytest.mark.parametrize("text", [
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 100_000, "{a: " * (MAX_DEPTH + 1),
    "".join(" " * i + "a:\n" for i in range(MAX_DEPTH + 2)),
])
def test_depth_is_bounded(parser, text):
    assert error(text).code == "too-deep"


def test_depth_through_aliases_is_bounded(parser):
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, MAX_DEPTH + 1))
    assert error(text).code == "too-deep"


def test_greatest_depth_is_usable(parser):
    deep = tree("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert hash(deep) == hash(deep) and str(plain(deep)) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


TREES = st.recursive(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.sampled_from(" '\"#:"), min_size=1, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdefgh_", min_size=1, max_size=4), inner, max_size=3),
    max_leaves=12)


@given(TREES, st.booleans())
def test_round_trip_of_dumped_data(data, flow):
    text = yaml.safe_dump(data, allow_unicode=True, default_flow_style=flow, sort_keys=False)
    assume(not flow or "(" not in text)             # inside brackets `f(a, b)` is refused, and YAML has `(` and `)` in two values alike
    root = tree(text)
    assert plain(root) == yaml.load(text, Loader=yaml.BaseLoader) == data
    for node in nodes(root):
        assert 0 <= node.span.start <= node.span.stop <= len(text)


TOKENS = ["a", "b", "c: ", "d: ", "\n", "\n  ", "- ", "[", "]", "{", "}", ", ", ": ", "'", '"', "#x", "&x ", "*x",
          "<<: ", "!t ", "|", "\t", ">",
          "? ", "--- ", "\r\n", "é", "1e-5", "x[B, S]", "f(a", ")", "\\q",
          "%", "@", "...", "\ufeff", "\ud800", "\x85", "\x00", "\"\\U00110000\""]


@given(st.lists(st.sampled_from(TOKENS), max_size=16).map("".join))
def test_nothing_but_diagnostics_is_raised(text):
    try:
        root = tree(text)
    except Diagnostics as found:
        for d in found.items:
            assert d.labels and all(0 <= x.span.start <= x.span.stop <= len(text) + 1 for x in d.labels)
    else:
        assert all(0 <= n.span.start <= n.span.stop <= len(text) for n in nodes(root))
