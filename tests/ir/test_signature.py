"""Signatures: reading, unifying patterns with shapes, deriving shapes, and each way it can go wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnspec.ir.dimension import Dim
from nnspec.ir.signature import Mismatch, RankMismatch, SignatureError, Unbound, parse_signature, spell

B, S, T, H = (Dim.symbol(n) for n in "BSTH")
LINEAR = parse_signature("in: [*b i]; weight: [o i]; bias?: [o] -> [*b o]")


def shape(*sizes):
    return tuple(Dim(x) for x in sizes)


def test_reading():
    assert [(p.name, p.optional, str(p.pattern)) for p in LINEAR.inputs] == [
        ("in", False, "[*b i]"), ("weight", False, "[o i]"), ("bias", True, "[o]")]
    assert [p.name for p in LINEAR.outputs] == ["out"]
    assert parse_signature(LINEAR.text) is LINEAR
    rnn = parse_signature("in: float[b s i], state?: [2 b h] -> output: [b s h], state: [2 b h]")
    assert [(p.name, p.pattern.dtype) for p in rnn.inputs] == [("in", "float"), ("state", "any")]
    assert [str(p) for p in rnn.outputs] == ["output: [b s h]", "state: [2 b h]"]
    slot = parse_signature("float[*b, w] -> float[*b, w]")
    assert (slot.inputs[0].name, str(slot.inputs[0].pattern)) == ("in", "float[*b w]")
    assert parse_signature("-> int64[n]").inputs == ()
    assert parse_signature("in: bool[] -> []").inputs[0].pattern.axes == ()


@pytest.mark.parametrize(("text", "says"), [
    ("in: [a]", "inputs -> outputs"), ("[a] -> [b] -> [c]", "inputs -> outputs"), ("in: [a] ->", "no output"),
    ("in: [*a *b] -> [c]", "at most one star"), ("in: [a]; in: [b] -> [c]", "used twice"), ("[a]; [b] -> [c]", "without a name"),
    ("x: [a]; [b] -> [c]", "without a name"), ("in: f16[a] -> [c]", "dtype word"), ("in: [a/b] -> [c]", "expected the end"),
    ("in: [a//2] -> [c]", "not integer-affine"), ("in: [(a] -> [c]", "expected"), ("in: [*] -> [c]", "star variable"),
    ("in: [a] b -> [c]", "expected `name: [axes]`"), ("in [a] -> [c]", "dtype word"),
    ("in: [a+] -> [c]", "number or a name"),
])
def test_refusals(text, says):
    with pytest.raises(SignatureError) as error:
        parse_signature(text)
    assert says in str(error.value)
    assert text in str(error.value)


def test_linear_derives_its_parameters_and_output():
    found = LINEAR.bind({"in": (B, S, Dim(512)), "weight": None}, {"o": 2048})
    assert found.stars == {"b": (B, S)}
    assert found.origin == {"o": None, "*b": "in", "i": "in"}
    assert LINEAR.port_shape("weight", found) == (2048, 512)
    assert LINEAR.port_shape("bias", found) == (2048,)
    assert LINEAR.output_shape("out", found) == (B, S, 2048)
    assert spell(LINEAR.shape(LINEAR.outputs[0], found)) == "[B, S, 2048]"


@given(st.lists(st.integers(1, 9), max_size=3), st.integers(1, 9), st.integers(1, 9))
def test_linear_with_every_rank(batch, i, o):
    found = LINEAR.bind({"in": shape(*batch, i), "weight": shape(o, i)})
    assert LINEAR.output_shape("out", found) == tuple(batch) + (o,)


def test_star_in_the_middle():
    sig = parse_signature("in: [b *s d] -> [d *s b 1]")
    assert sig.output_shape("out", sig.bind({"in": (B, H, S, Dim(7))})) == (7, H, S, B, 1)
    assert sig.output_shape("out", sig.bind({"in": (B, Dim(7))})) == (7, B, 1)
    with pytest.raises(RankMismatch) as error:
        sig.bind({"in": (B,)})
    assert (error.value.port, str(error.value.pattern), error.value.shape) == ("in", "[b *s d]", (B,))


@pytest.mark.parametrize("bad", [(), (B,), (B, S, T)])
def test_rank_without_a_star(bad):
    with pytest.raises(RankMismatch, match="not float"):
        parse_signature("in: float[b s] -> [b]").bind({"in": bad})


def mismatch(text, inputs, known=None):
    with pytest.raises(Mismatch) as error:
        parse_signature(text).bind(inputs, known)
    e = error.value
    return e.port, e.axis_name, e.expected, e.got, e.first_port, e.index


def test_mismatches_say_where_both_sides_came_from():
    add = "a: [*s d], b: [*s d] -> [*s d]"
    assert mismatch(add, {"a": (B, S, Dim(8)), "b": (B, S, Dim(16))}) == ("b", "d", 8, 16, "a", 2)
    assert mismatch(add, {"a": (B, S, Dim(8)), "b": (B, T, Dim(8))}) == ("b", "*s", (B, S), (B, T), "a", 1)
    assert mismatch(add, {"a": (B, S, Dim(8)), "b": (B, Dim(8))}) == ("b", "*s", (B, S), (B,), "a", None)
    assert mismatch(LINEAR.text, {"weight": shape(3, 5)}, {"i": 4}) == ("weight", "i", 4, 5, None, 1)
    assert mismatch("in: [b 3] -> [b]", {"in": (B, Dim(4))}) == ("in", "3", 3, 4, None, 1)
    assert mismatch("x: [h]; y: [4*h] -> [h]", {"x": shape(5), "y": shape(21)}) == ("y", "4*h", 20, 21, "x", 0)
    assert mismatch("in: [b b] -> [b]", {"in": (S, T)}) == ("in", "b", S, T, "in", 1)


def test_mismatch_of_a_pattern_that_nothing_solves():
    assert mismatch("in: [2*h] -> [h]", {"in": shape(7)}) == ("in", "2*h", Dim.parse("2*h"), 7, None, 0)
    assert mismatch("in: [s+3] -> [s]", {"in": shape(2)}) == ("in", "s+3", Dim.parse("s + 3"), 2, None, 0)
    assert mismatch("in: [b (h*d)] -> [h]", {"in": (B, Dim(10))}, {"h": 4}) == ("in", "(h*d)", Dim.parse("4*d"), 10, None, 1)
    assert mismatch("in: [h*h] -> [h]", {"in": shape(9)}) == ("in", "h*h", Dim.parse("h*h"), 9, None, 0)


def test_patterns_are_solved_when_one_variable_is_unknown():
    sig = parse_signature("query: [b s (h * d)]; size?: [d] -> [b h s d]")
    found = sig.bind({"query": (B, S, Dim(512))}, {"h": 8})
    assert sig.output_shape("out", found) == (B, 8, S, 64)
    assert found.origin["d"] == "query"
    # the axis of `query` waits for `size`, a later port
    assert sig.output_shape("out", sig.bind({"query": (B, S, 48 * H), "size": (16 * H,)})) == (B, 3, S, 16 * H)
    with pytest.raises(Unbound) as error:
        sig.bind({"query": (B, S, Dim(512))})
    assert (error.value.name, error.value.port) == ("d", "query")
    longer = parse_signature("in: [s+1] -> [2*s]")
    assert longer.output_shape("out", longer.bind({"in": (T + 3,)})) == (2 * T + 4,)


def test_variables_may_have_the_names_of_the_callers_dimensions():
    sig = parse_signature("x: [S]; y: [S+T] -> [T S]")
    assert sig.output_shape("out", sig.bind({"x": (T,), "y": (T + S,)})) == (S, T)
    assert mismatch(sig.text, {"x": (T,), "y": (T + S,)}, {"T": T}) == ("y", "S+T", 2 * T, S + T, "x", 0)


def test_unbound_and_unknown_names():
    found = LINEAR.bind({"in": (B, Dim(5))})
    with pytest.raises(Unbound) as error:
        LINEAR.output_shape("out", found)
    assert (error.value.name, error.value.port) == ("o", "out")
    with pytest.raises(Unbound, match=r"\*b"):
        LINEAR.output_shape("out", LINEAR.bind({}, {"o": 3}))
    with pytest.raises(KeyError):
        LINEAR.bind({"inn": (B,)})
    with pytest.raises(KeyError):
        LINEAR.port_shape("out", found)
