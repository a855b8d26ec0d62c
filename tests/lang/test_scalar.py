import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnspec.lang.diagnostic import Fault, Label
from nnspec.lang.scalar import as_bool, as_float, as_int, as_name, inside
from nnspec.lang.source import Source, Span
from nnspec.stages.parse import parse

READERS = {"int": as_int, "float": as_float, "bool": as_bool, "name": as_name}


def scalar(text, quote=""):
    return parse(Source("spec.yaml", f"field: {quote}{text}{quote}\n")).get("field")


def refusal(reader, tree, *context, note=""):
    with pytest.raises(Fault) as found:
        READERS[reader](tree, *context, note=note)
    assert found.value.diagnostic.code == "bad-scalar"
    assert found.value.diagnostic.labels[0].span == tree.span
    return found.value.diagnostic


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize("reader, text, value", [
    ("int", "8", 8), ("int", "-1", -1), ("int", "+3", 3), ("int", "0", 0), ("int", "9223372036854775807", 2**63 - 1),
    ("float", "1e-5", 1e-5), ("float", "1E-5", 1e-5), ("float", "5e5", 500000.0), ("float", "1e+10", 1e10),
    ("float", "1.0e10", 1e10),
    ("float", ".5", 0.5), ("float", "5.", 5.0), ("float", "8", 8.0), ("float", "-0.25", -0.25), ("float", "0", 0.0),
    ("float", "0e9", 0.0),
    ("bool", "true", True), ("bool", "false", False), ("bool", "True", True), ("bool", "FALSE", False),
    ("name", "no", "no"), ("name", "pre_norm_2", "pre_norm_2"), ("name", "_x", "_x"), ("name", "null", "null"),
    ("name", "S", "S"),
])
def test_legal(reader, text, value, quote):
    found = READERS[reader](scalar(text, quote))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize("reader, text, hint", [
    ("int", "012", "write `12`; a leading zero could mean an octal number"), ("int", "1_000", "write `1000`, without separators"),
    ("int", "1,000,000", "write `1000000`, without separators"), ("int", "5e5", "write `500000`"), ("int", "8.0", "write `8`"),
    ("int", "1.5", "it is a fraction; write a whole number"), ("int", "1e30", "write all the digits"),
    ("int", "0x10", "write `16`; numbers are decimal"),
    ("int", "0o17", "write `15`; numbers are decimal"), ("int", "0b2", "numbers are decimal"),
    ("int", ".inf", "numbers in a spec are finite"),
    ("int", "9223372036854775808", "the largest integer is 9223372036854775807"),
    ("int", "9" * 5000, "the largest integer is 9223372036854775807"),
    ("int", "1e999", "the largest integer is 9223372036854775807"),
    ("int", "-007", "write `-7`; a leading zero could mean an octal number"),
    ("float", "inf", "numbers in a spec are finite"), ("float", "-.inf", "numbers in a spec are finite"),
    ("float", ".NaN", "numbers in a spec are finite"),
    ("float", "1e999", "it is too large for a 64-bit float"), ("float", "1e-999", "it is too small for a 64-bit float"),
    ("float", "012", "write `12`; a leading zero could mean an octal number"),
    ("float", "00.5", "write `0.5`; a leading zero could mean an octal number"),
    ("float", "1_000.5", "write `1000.5`, without separators"), ("float", "0,1", "write `0.1`, with a decimal point"),
    ("bool", "yes", "write `true`"), ("bool", "on", "write `true`"), ("bool", "No", "write `false`"),
    ("bool", "off", "write `false`"),
    ("bool", "1", "write `true`"), ("bool", "0", "write `false`"), ("bool", "tRUE", "write `true`"),
    ("bool", "maybe", "write `true` or `false`"),
    ("name", "pre-norm", "write `pre_norm`"), ("name", "a b", "write `a_b`"),
    ("name", "2d", "a name has letters (a-z, A-Z), digits and `_`, and begins with a letter or `_`"),
    ("name", "caf\u00e9", "a name has letters (a-z, A-Z), digits and `_`, and begins with a letter or `_`"),
])
def test_refused_with_a_hint(reader, text, hint, quote):
    assert refusal(reader, scalar(text, quote)).helps[0] == hint


@pytest.mark.parametrize("reader, text", [
    ("int", "eight"), ("int", "--1"), ("int", "\u0661"), ("int", "true"), ("float", "1e"), ("float", "."), ("float", "e5"),
    ("float", "1 / 3"),
    ("float", "\u0661.5"), ("float", "1__0"),
])
def test_refused(reader, text):
    found = refusal(reader, scalar(text))
    assert found.headline.startswith(f"`{text}` is not a")


@pytest.mark.parametrize("reader", READERS)
def test_missing_values_and_collections(reader):
    assert refusal(reader, scalar("")).headline.endswith("is missing here")
    assert refusal(reader, scalar("", '"')).headline.endswith("is missing here")
    assert refusal(reader, scalar("[1, 2]")).headline.startswith("a list is not ")
    assert refusal(reader, scalar("{a: 1}")).headline.startswith("a mapping is not ")


def test_who_expects_it_is_shown():
    tree, source = scalar("wide"), Source("block.yaml", "settings: {width: int}")
    label = Label(Span(source, 11, 21), "declared here")
    found = refusal("int", tree, label, note="`width` is a setting of `layer`")
    assert found.labels[1] == label and found.notes == ("`width` is a setting of `layer`",)


def test_long_values_are_shortened():
    assert len(refusal("float", scalar("x" * 1000)).headline) < 80


@given(st.integers(-2**63 + 1, 2**63 - 1))
def test_every_integer_is_read_back(value):
    assert as_int(scalar(str(value))) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_back(value):
    found = as_float(scalar(repr(value)))
    assert found == value and math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize("written, start, stop, text", [
    ("width * 2", 0, 5, "width"), ("'width * 2'", 8, 9, "2"), ('"width * 2"', 0, 5, "width"),
    ("'it''s width'", 0, 4, "'it''s width'"), ('"a\\u0062 c"', 0, 2, '"a\\u0062 c"'),
])
def test_span_inside_a_scalar(written, start, stop, text):
    tree = scalar(written)
    assert inside(tree, start, stop).text == text


def test_span_inside_a_text_over_two_lines_is_the_whole():
    tree = scalar("width\n  * 2")
    assert tree.text == "width * 2" and inside(tree, 8, 9) == tree.span
