"""JSON as a tree with spans: the same values as Python's reader, and every mistake at its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnspec.lang.diagnostic import Fault
from nnspec.lang.json_syntax import MAX_DEPTH, parse_json
from nnspec.lang.source import Source
from nnspec.lang.tree import Mapping, Scalar, Sequence

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12)


def read(text):
    return parse_json(Source("config.json", text), "bad-config")


def typed(tree):
    if isinstance(tree, Mapping):
        return {e.key.text: typed(e.value) for e in tree}
    if isinstance(tree, Sequence):
        return [typed(item) for item in tree]
    return tree.text if tree.quoted else json.loads(tree.text)


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_values_are_those_of_json(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert typed(read(text)) == json.loads(text)


def test_spans_are_the_characters():
    text = '{\n  "a": [1e-05, "x\\u00e9"],\n  "b": {"c": null}\n}\n'
    tree = read(text)
    assert isinstance(tree, Mapping)
    assert [e.key.span.text for e in tree] == ['"a"', '"b"'] and tree.entries[1].key.span.line == 3
    assert [x.span.text for x in tree.get("a")] == ["1e-05", '"x\\u00e9"'] and tree.get("a").items[1].text == "xé"
    assert tree.get("b").span.text == '{"c": null}' and tree.span.text == text.strip()


@pytest.mark.parametrize("text, at, said", [
    ('{"a": 1,}', 8, "a key in double quotes"), ("{'a': 1}", 1, "a key in double quotes"), ('{"a" 1}', 5, "`:` was expected"),
    ('{"a": 1 "b": 2}', 8, "`,` or `}`"), ("[1, 2", 5, "`,` or `]`"), ("[1,]", 3, "a value was expected"), ("", 0, "a value was expected"),
    ('{"a": tru}', 6, "a value was expected"), ('{"a": 01}', 6, "a value was expected"), ('{"a": 1} x', 9, "the end of the file"),
    ('{"a": "x', 6, "unterminated string"), ('{"a": "\\q"}', 7, "invalid"), ('{"a": 1, "a": 2}', 9, "twice"),
    ("[" * (MAX_DEPTH + 2), MAX_DEPTH + 1, "nested more than"), ("{" + '"a":{' * 5000, 0, "nested more than"),
    ("# no", 0, "a value was expected"),
])
def test_mistakes_have_a_place(text, at, said):
    with pytest.raises(Fault) as found:
        read(text)
    d = found.value.diagnostic
    assert d.code == "bad-config" and said in d.headline
    assert at == 0 or d.labels[0].span.start == at


def test_what_python_writes_beyond_json():
    assert [x.text for x in read("[NaN, -Infinity, Infinity]")] == ["NaN", "-Infinity", "Infinity"]
    assert isinstance(read('"x"'), Scalar)
