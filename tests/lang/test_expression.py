"""Expressions: values against Python's own arithmetic, exact spans of faults, sizes with free dimensions, and hostile input."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnspec.ir.dimension import Dim
from nnspec.ir.evaluate import Inexact, evaluate
from nnspec.lang.diagnostic import Fault
from nnspec.lang.expression import parse_expression
from nnspec.lang.source import Source, Span

B, S = Dim.symbol("B"), Dim.symbol("S")
SCOPE = {"width": 512, "heads": 12, "ratio": [0.5, 1.0, 2.5], "i": 1, "eps": 1e-5, "tied": True, "kind": "relu", "B": B, "S": S,
         "W": Dim.const(9), "empty": [], "nested": [[1, 2], [3, S]]}


def read(text, before="  key: ", after="  # note\n"):
    source = Source("spec.yaml", f"{before}{text}{after}")
    return parse_expression(text, Span(source, len(before), len(before) + len(text)))


def lookup(name, span):
    assert span.text == name
    return SCOPE[name]


def value(text):
    return evaluate(read(text), lookup)


def refused(text, work=value):
    """(characters pointed at, headline, helps) of the fault."""
    with pytest.raises(Fault) as error:
        work(text)
    found = error.value.diagnostic
    assert found.code == "bad-expression"
    return found.labels[0].span.text, found.headline, " ".join(found.helps)


@pytest.mark.parametrize(("text", "expected"), [
    ("1e-5", 1e-5), ("5e5", 5e5), (".5", 0.5), ("0", 0), ("0.25", 0.25), ("true", True), ("False", False), ("heads", 12),
    (" heads ", 12),
    ("width ** 0.5", 512**0.5), ("-2 ** 2", -4), ("2 ** -1", 0.5), ("2 ** 3 ** 2", 512), ("-width // 3", -171),
    ("-7 % 3", 2), ("7 - 2 - 1", 4),
    ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("width / 8", 64), ("1 - -1", 2), ("+3", 3), ("7.5 // 2", 3.0),
    ("not 1 < 2", False),
    ("1 < 2 and 3 < 2 or tied", True), ("tied and not tied", False), ("8 if i % 2 == 0 else 4", 4),
    ("1 if false else 2 if true else 3", 2),
    ("min(heads, 3, 8)", 3), ("max(ratio)", 2.5), ("max(heads)", 12), ("abs(-3)", 3), ("abs(-3.5)", 3.5), ("sqrt(64)", 8),
    ("log(1)", 0.0),
    ("sqrt(2)", math.sqrt(2)), ("ratio[i]", 1.0), ("ratio[i + 1] * 2", 5.0), ("nested[1][0]", 3), ("[1, heads][1]", 12),
    ("(ratio)[0]", 0.5),
    ("round_to(8 / 3 * 4096, 256)", 11008), ("round_to(512, 256)", 512), ("round_to(513, 256)", 768),
    ("round_to(0.1 * 3 * 10, 3)", 3),
    ("round_to(-5, 4)", -4), ("kind == kind", True), ("tied != true", False), ("W + 1", 10), ("0 ** 0", 1),
    ("(-1) ** 10001", -1),
    ("1 ** 9999999", 1), ("4 ** 0.5", 2.0), ("i >= 1", True), ("2.5 > 2", True), ("1 == 1.0", True),
])
def test_values(text, expected):
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("text", "expected"), [
    ("[B, heads, S + 1]", [B, 12, S + 1]), ("[]", []), ("16 * S", 16 * S), ("S // 2", S // 2), ("S * B - S", S * B - S),
    ("(S * 16) / 16", S),
    ("S * B / S", B), ("S - S", 0), ("4 * S % 2", 0), ("(2 * S + 5) % 2", 1), ("S ** 2", S * S), ("S ** 0", 1), ("-S", -S),
    ("max(S, S + 1)", S + 1), ("min(S, S + 1)", S), ("max(0, S)", S), ("min(0, S)", 0), ("S == S", True),
    ("S == S + 1", False), ("S != S + 1", True),
    ("S < S + 1", True), ("S >= 0", True), ("S + 1 <= S", False), ("S > S", False), ("round_to(S, 4)", (S + 3) // 4 * 4),
    ("nested[1][1] + 1", S + 1),
    ("S if tied else 1 / 0", S),
])
def test_sizes(text, expected):
    assert value(text) == expected


# Python's own evaluation of the same text is the reference
def conditions(t):
    compared = st.tuples(t, st.sampled_from([" < ", "==", " >= ", "!=", "<=", ">"]), t).map("".join)
    joined = st.tuples(compared, st.sampled_from([" and ", " or "]),
                       st.sampled_from(["", "not "]), compared, st.just(" or "), compared)
    return st.one_of(compared, compared.map(lambda x: f"not {x}"), joined.map("".join))


python_texts = st.recursive(st.integers(0, 40).map(str), lambda t: st.one_of(
    st.tuples(t, st.sampled_from([" + ", "-", "*", " // ", "%"]), t).map("".join),
    st.tuples(t, conditions(t), t).map(lambda x: f"({x[0]} if {x[1]} else {x[2]})"),
    t.map(lambda x: f"({x})"), t.map(lambda x: f"-{x}"),
    st.tuples(t, t).map(lambda x: f"max({x[0]}, {x[1]})")), max_leaves=8)


@given(python_texts)
def test_agrees_with_python(text):
    try:
        expected = eval(text, {"max": max})  # noqa: S307
    except ZeroDivisionError:
        assert "divides by zero" in refused(text)[1]
    else:
        assert value(text) == expected


WORDS = "+ - * / // % ** ( ) [ ] , if else and or not min( round_to( S B heads ratio i 1 0 2.5 1e3 99 ^ . true"


@given(st.lists(st.sampled_from(WORDS.split()), max_size=14))
def test_any_tokens_give_a_value_or_a_fault(tokens):
    try:
        value(" ".join(tokens))
    except Fault as error:
        assert error.diagnostic.labels[0].span.line == 1


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        read(text).names()
    except Fault as error:
        assert error.diagnostic.code == "bad-expression"


def test_names_without_evaluation():
    assert read("heads[i] if max(a, 2) > b else [c, -d][e]").names() == {"heads", "i", "a", "b", "c", "d", "e"}
    assert read("round_to(1.5, 2)").names() == frozenset()


@pytest.mark.parametrize(("text", "at", "says", "help"), [
    ("a ^ b", "^", "no meaning", "`**`"), ("a && b", "&&", "no meaning", "`and`"), ("a || b", "||", "no meaning", "`or`"),
    ("!a", "!", "no meaning", "`not`"), ("a = b", "=", "no meaning", "`==`"), ("a.b", ".", "no meaning", "no parts"),
    ("'relu'", "'", "no meaning", "quoted"), ("a ? b : c", "?", "no meaning", "if condition else"),
    ("a × b", "×", "no meaning", "`*`"),
    ("é", "é", "no meaning", ""), ("float[B, S]", ",", "`]` after the index", "under `inputs:`"),
    ("ratio[1, 2]", ",", "`]`", "one index"),
    ("a[1:2]", ":", "no meaning", "one element"), ("012", "012", "begins with 0", "`12`"),
    ("1 + 00", "00", "begins with 0", "`0`"),
    ("1_000", "1_000", "not a number", "`1000`"), ("2x", "2x", "neither", "`2 * x`"), ("0x10", "0x10", "neither", "decimal"),
    ("2 heads", "heads", "missing before `heads`", "`2 * heads`"), ("mn(1, 2)", "mn", "no function `mn`", "`min`"),
    ("floor(3)", "floor", "no function", "`a // b`"),
    ("1 + * 2", "*", "`(` was expected", ""), ("1 if 2", "", "`else`", "else b"), ("(1 + 2", "", "`)`", ""),
    ("1)", ")", "operator or the end", ""),
    ("1, 2", ",", "operator or the end", "`[a, b]`"), ("1 < 2 < 3", "<", "do not chain", "and"),
    ("round_to(5)", "round_to(5)", "takes 2", "multiple"),
    ("min()", "min()", "at least 1", ""), ("sqrt(1, 2)", "sqrt(1, 2)", "takes 1 argument,", ""),
    ("[1, ]", "]", "`(` was expected", ""),
    ("1e999", "1e999", "64-bit", ""), ("9223372036854775808", "9223372036854775808", "too large", ""),
    ("1e-999", "1e-999", "64-bit", ""),
    ("else", "else", "was expected", ""), ("__import__('os')", "'", "no meaning", ""), ("lambda: 1", ":", "no meaning", ""),
])
def test_what_cannot_be_read(text, at, says, help):
    found = refused(text, read)
    assert (found[0], says in found[1], help in found[2]) == (at, True, True), found


@pytest.mark.parametrize(("text", "at", "says"), [
    ("1 / 0", "0", "divides by zero"), ("heads % (i - 1)", "(i - 1)", "divides by zero"), ("0 ** -1", "0", "divides by zero"),
    ("S // 0", "0", "divides by zero"), ("10 ** 10 ** 10", "10 ** 10 ** 10", "too large"),
    ("2 ** 64", "2 ** 64", "too large"), ("2 ** 62 * 4", "2 ** 62 * 4", "too large"),
    ("1e300 * 1e300", "1e300 * 1e300", "too large"),
    ("2.5 ** 1e6", "2.5 ** 1e6", "too large"), ("S * 2 ** 62 * 4", "S * 2 ** 62 * 4", "too large"),
    ("(-2) ** 0.5", "(-2)", "not a real"),
    ("sqrt(-1)", "-1", "not a real"), ("log(0)", "0", "not a real"), ("ratio + 1", "ratio", "a list, not a number"),
    ("1 + tied", "tied", "`true`, not a number"),
    ("kind * 2", "kind", "the word `relu`"), ("ratio[3]", "3", "no element 3"), ("ratio[-1]", "-1", "no element -1"),
    ("empty[0]", "0", "0 elements"),
    ("ratio[0.5]", "0.5", "not an integer"), ("ratio[S]", "S", "no one value"), ("heads[0]", "heads", "not a list"),
    ("1 if heads else 2", "heads", "not true"),
    ("not heads", "heads", "not true"), ("kind == 1", "kind", "compares"), ("kind < kind", "kind", "compares"),
    ("ratio == ratio", "ratio", "compares"),
    ("min(1, tied)", "min(1, tied)", "`true`"), ("max(empty)", "max(empty)", "empty list"),
    ("round_to(5, 0)", "0", "positive integer"),
    ("round_to(5, 2.5)", "2.5", "positive integer"), ("round_to(5, S)", "S", "positive integer"),
    ("S / 2", "S / 2", "free size"), ("3 / S", "3 / S", "free size"), ("S % 2", "S % 2", "free size"),
    ("S // B", "B", "free size"), ("S * 0.5", "S", "free size"),
    ("0.5 * S", "S", "free size"), ("sqrt(S)", "S", "free size"), ("2 ** S", "S", "free size"),
    ("S ** 9", "9", "whole powers"), ("S ** -1", "-1", "whole powers"),
    ("S // -2", "-2", "positive"), ("S == B", "S", "free size"), ("S > 1", "S", "free size"), ("S < 0.5", "S", "free size"),
    ("min(S, B)", "min(S, B)", "free size"),
    ("max(S, 0.5)", "max(S, 0.5)", "free size"), ("1 / 0 + heads", "0", "divides by zero"),
    ("(ratio)[heads]", "heads", "no element 12"),
    ("(1 + 2)[0]", "(1 + 2)", "not a list"),
])
def test_what_cannot_be_computed(text, at, says):
    found = refused(text)
    assert (found[0], says in found[1]) == (at, True), found


def test_inexact_division_remembers_its_terms():
    found = value("width / heads")
    assert isinstance(found, Inexact)
    assert found == 512 / 12
    assert found.span.text == "width / heads"
    assert (found.numerator, found.denominator, found.numerator_text, found.denominator_text) == (512, 12, "width", "heads")
    assert found.nearest() == (8, 16)
    assert found.explain() == "`heads` = 12 does not divide `width` = 512; nearest 8 or 16"
    assert value("7 / 9").explain() == "`9` does not divide `7`; nearest 7"
    assert isinstance(value("width / heads if tied else 1"), Inexact)
    assert type(value("width / heads + 0")) is float
    assert value("7 / (3 - 1)").explain() == "`(3 - 1)` = 2 does not divide `7`; nearest 1 or 7"


@pytest.mark.parametrize("text", [
    "(" * 5000, "(" * 1000 + "1" + ")" * 1000, "-" * 3000 + "1", "[" * 300, "not " * 900 + "true",
    "1" + "+1" * 1500, "2" + "**2" * 900,
    "1 if true else " * 200 + "1", "a" + "[0]" * 1000, "9" * 3999, "min(" * 400,
    "(" + "+".join(f"X{i}" for i in range(40)) + ") ** 8", "((S + B) ** 8) ** 8 * S",
])
def test_hostile_text_is_refused_quickly(text):
    start = time.perf_counter()
    with pytest.raises(Fault):
        evaluate(read(text), lambda name, span: Dim.symbol(name))
    assert time.perf_counter() - start < 1


def test_long_but_honest_text():
    assert value("+".join(["1"] * 90)) == 90
    assert value("[" + ", ".join(["3"] * 400) + "]") == [3] * 400
    assert value("(" * 40 + "S" + ")" * 40) == S


@pytest.mark.parametrize(("written", "text", "line", "column"), [
    ('"a ^ b"', "a ^ b", 1, 11), ("'a ^ b'", "a ^ b", 1, 11), ("a ^ b", "a ^ b", 1, 10), ("|\n    a\n    ^ b", "a\n^ b", 3, 5),
    (">-\n    - a\n    ^ b", "- a ^ b", 3, 5), ("a\n    ^ b", "a ^ b", 2, 5), ('"\\x61 ^ b"', "a ^ b", 1, 8),
])
def test_faults_point_through_quotes_and_folding(written, text, line, column):
    before = "  key:  "[:7]
    source = Source("spec.yaml", f"{before}{written}\n")
    with pytest.raises(Fault) as error:
        parse_expression(text, Span(source, len(before), len(before) + len(written)))
    at = error.value.diagnostic.labels[0].span
    assert (at.line, at.column) == (line, column)


@pytest.mark.parametrize("text", ["", "   "])
def test_nothing_is_not_an_expression(text):
    assert "missing" in refused(text, read)[1]
