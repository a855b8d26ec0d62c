"""Dimensions: normal form, exact division, solving, spelling; random polynomials against plain integer arithmetic."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnspec.ir.dimension import Dim, at_least

NAMES = ("B", "H", "S", "Total_2")
B, H, S, W = (Dim.symbol(n) for n in ("B", "H", "S", "W"))

# a recipe is evaluated twice: with Dim and with int leaves, which share operators but no code
leaves = st.one_of(st.integers(-9, 9), st.sampled_from(NAMES))
recipes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*"), inner, inner),
        st.tuples(st.just("//"), inner, st.integers(1, 7)),
    ),
    max_leaves=8,
)
sizes = st.fixed_dictionaries({n: st.integers(0, 23) for n in NAMES})


def build(recipe, leaf):
    if not isinstance(recipe, tuple):
        return leaf(recipe)
    op, a, b = recipe
    if op == "//":
        return build(a, leaf) // b
    x, y = build(a, leaf), build(b, leaf)
    return {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y}[op]()


def as_dim(recipe) -> Dim:
    return build(recipe, lambda x: Dim.symbol(x) if isinstance(x, str) else Dim.const(x))


def as_int(recipe, at) -> int:
    return build(recipe, lambda x: at[x] if isinstance(x, str) else x)


@given(recipes, sizes)
def test_arithmetic_agrees_with_integers(recipe, at):
    assert as_dim(recipe).evaluate(at) == as_int(recipe, at)


@given(recipes, sizes)
def test_substitution_of_numbers_is_evaluation(recipe, at):
    assert as_dim(recipe).substitute(at).value == as_int(recipe, at)


@given(recipes, recipes, sizes)
def test_substitution_of_a_dimension(recipe, other, at):
    replaced = as_dim(recipe).substitute({"S": as_dim(other), "B": Dim.symbol("S")})
    assert replaced.evaluate(at) == as_int(recipe, {**at, "S": as_int(other, at), "B": at["S"]})


@given(recipes)
def test_parse_is_the_inverse_of_str(recipe):
    dim = as_dim(recipe)
    assert Dim.parse(str(dim)) == dim
    assert pickle.loads(pickle.dumps(dim)) == dim


@given(recipes, recipes, recipes)
def test_ring_laws_hold_structurally(a, b, c):
    x, y, z = as_dim(a), as_dim(b), as_dim(c)
    for left, right in ((x + y, y + x), (x * y, y * x), (x * (y + z), x * y + x * z), ((x + y) + z, x + (y + z))):
        assert left == right
        assert hash(left) == hash(right)
        assert str(left) == str(right)
    assert (x - x).value == 0


@given(recipes, recipes, sizes)
def test_exact_division_undoes_multiplication(a, b, at):
    x, y = as_dim(a), as_dim(b)
    if y == 0:
        assert x.exact_div(y) is None
    else:
        assert (x * y).exact_div(y) == x
    found = x.exact_div(y)
    if found is not None:
        assert found.evaluate(at) * as_int(b, at) == as_int(a, at)


@given(recipes, recipes, sizes)
def test_at_least_is_never_wrong(a, b, at):
    decided = at_least(as_dim(a), as_dim(b))
    if decided is not None:
        assert decided == (as_int(a, at) >= as_int(b, at))


@given(recipes, st.integers(1, 7), st.integers(1, 7), recipes)
def test_floor_normal_form(a, n, m, b):
    p, q = as_dim(a), as_dim(b)
    assert (p * n + q) // n == p + q // n
    assert (p * m) // (n * m) == p // n


@given(st.integers(1, 40), st.integers(1, 40))
def test_nested_floors_become_one(a, b):
    assert (S // a) // b == S // (a * b)
    assert ((S + 3) // a - 2) // b == (S + 3 - 2 * a) // (a * b)


@given(recipes, st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 30))
def test_solve_for_finds_the_value_put_in(a, slope, shift, x):
    pattern = slope * H + shift
    target = pattern.substitute({"H": x})
    assert pattern.solve_for(target) == ({"H": x} if slope else {})
    known = as_dim(a).substitute({"H": 5})
    if known != 0:
        assert (known * W + B).solve_for(known * (S + 1) + B, {"W"}) == {"W": S + 1}


@pytest.mark.parametrize(("dim", "text"), [
    (16 * H, "16*H"), (S + 1, "S + 1"), (S // 2, "floor(S / 2)"), (S * B, "B*S"), (W * H, "H*W"), (1 - S, "1 - S"),
    (-S, "-S"), (S - 1, "S - 1"), (Dim.const(0), "0"), (Dim.const(-7), "-7"), ((S + 1) // 2, "floor((S + 1) / 2)"),
    (H * W // 2 * 3, "3*floor(H*W / 2)"), (S * S - 2 * S + B, "S*S + B - 2*S"), ((S + 5) // 2, "floor((S + 1) / 2) + 2"),
    ((3 * S) // 6, "floor(S / 2)"), ((4 * S + 7) // 6, "floor(2*S / 3) + 1"),
])
def test_spelling(dim, text):
    assert str(dim) == text


@pytest.mark.parametrize("text", [
    "", "S +", "2 S", "floor(S + 1 / 2)", "floor(S / 0)", "S // T", "floor(S / T)", "S.T", "3x", "(S", "S)", "floor", "S / 2",
    "é", "(" * 200 + "S" + ")" * 200, "*".join(["S"] * 100),
])
def test_parse_refuses(text):
    with pytest.raises(ValueError):
        Dim.parse(text)


def test_parse_accepts_what_a_person_writes():
    assert Dim.parse(" 16 * H+1") == 16 * H + 1
    assert Dim.parse("(S + 1)*(S - 1)") == S * S - 1
    assert Dim.parse("-S // 2") == (-S) // 2
    assert Dim.parse("floor((S+1)/2)") == (S + 1) // 2


def test_constants_are_the_integers_they_are():
    assert Dim.const(12) == 12
    assert Dim.const(12) != 13
    assert S != 12
    assert hash(Dim.const(12)) == hash(12)
    assert {12: "x"}[Dim.const(12)] == "x"
    assert (S - S + 4).value == 4
    assert S.value is None
    assert Dim.const(7) // 2 == 3
    assert Dim.const(-7) // 2 == -4
    assert Dim(5) == 5


def test_exact_division_by_hand():
    heads = Dim.symbol("N")
    assert (B * heads * 4).exact_div(4) == B * heads
    assert (B * heads * 4).exact_div(heads * 2) == 2 * B
    assert (S * 16).exact_div(16) == S
    assert (S * 16).exact_div(S) == 16
    assert (S * S - 1).exact_div(S + 1) == S - 1
    assert (S + 1).exact_div(2) is None
    assert (S * 3).exact_div(2 * S) is None
    assert Dim.const(6).exact_div(S) is None
    assert Dim.const(0).exact_div(S) == 0
    assert S.exact_div(0) is None


@pytest.mark.parametrize(("pattern", "target", "found"), [
    (16 * H, Dim.const(224), {"H": 14}), (16 * H, 32 * W, {"H": 2 * W}), (16 * H, Dim.const(225), None), (S + 1, W, {"S": W - 1}),
    (S + 1, Dim.const(0), None), (S * S, Dim.const(4), None), (S // 2, Dim.const(2), None), (S * B, Dim.const(6), None),
    (Dim.const(3), Dim.const(3), {}), (Dim.const(3), Dim.const(4), None),
])
def test_solve_for_by_hand(pattern, target, found):
    assert pattern.solve_for(target) == found


def test_at_least_by_hand():
    assert at_least(S + 1, S) is True
    assert at_least(S, S + 1) is False
    assert at_least(4, 4) is True
    assert at_least(3, 4) is False
    assert at_least(S, 1) is None
    assert at_least(0, S) is None
    assert at_least(S + S // 2, S) is True


def test_symbols_and_refusals():
    assert (S // 2 + B * 3).symbols() == {"S", "B"}
    assert (S - S).symbols() == frozenset()
    for bad in (0, -2, S):
        with pytest.raises(ValueError, match="positive integer"):
            S // bad
    with pytest.raises(ValueError, match="not a name"):
        Dim.symbol("2x")
    with pytest.raises(KeyError):
        (S + B).evaluate({"S": 1})
    with pytest.raises(TypeError):
        S + 1.5
    total = sum((Dim.symbol(f"X{i}") for i in range(80)), Dim.const(1))
    with pytest.raises(OverflowError):
        total * total
