"""Sizes of axes: polynomials with integer coefficients over free dimensions and `floor(p / n)`, in a normal form.

Free dimensions stand for integers >= 0. Two dimensions are equal when their normal forms are; what is not equal in
normal form is not known to be equal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache, reduce
from math import gcd, prod
from operator import mul
from typing import NamedTuple

MAX_TERMS = 4096
MAX_DEGREE = 64


class Floor(NamedTuple):
    """The atom `floor(inner / by)`; in normal form every coefficient of `inner` lies in 0 .. by - 1, so it is >= 0."""

    inner: Dim
    by: int

    def __str__(self) -> str:
        terms = self.inner.terms
        text = str(self.inner)
        return f"floor({text} / {self.by})" if len(terms) == 1 else f"floor(({text}) / {self.by})"


Atom = str | Floor
Monomial = tuple[Atom, ...]  # sorted by spelling; a power repeats its atom; () is the constant
Terms = tuple[tuple[Monomial, int], ...]


class Dim:
    """An immutable, hashable size. Constants equal (and hash like) the integer they are."""

    __slots__ = ("_terms", "_hash", "_text", "_symbols")
    _terms: Terms
    _hash: int | None
    _text: str | None
    _symbols: frozenset[str] | None

    def __init__(self, value: int | Dim = 0) -> None:
        self._fill(_of(value)._terms)

    def _fill(self, terms: Terms) -> None:
        self._terms, self._hash, self._text, self._symbols = terms, None, None, None

    @staticmethod
    def const(n: int) -> Dim:
        return _const(int(n))

    @staticmethod
    def symbol(name: str) -> Dim:
        """The free dimension `name`; raises ValueError when `name` is not an identifier."""
        return _symbol(name)

    @staticmethod
    def parse(text: str) -> Dim:
        """The inverse of `str`: also accepts `//` by a number, and parentheses. Raises ValueError."""
        return _parse(text)

    @property
    def terms(self) -> Terms:
        """The normal form: (monomial, coefficient) pairs, sorted, no coefficient 0."""
        return self._terms

    @property
    def value(self) -> int | None:
        """The number this is, or None when it depends on a free dimension."""
        terms = self._terms
        if not terms:
            return 0
        return terms[0][1] if not terms[0][0] else None  # the constant term is sorted last

    def symbols(self) -> frozenset[str]:
        """The free dimensions this depends on, those inside `floor` included."""
        if self._symbols is None:
            atoms = {atom for monomial, _ in self._terms for atom in monomial}
            inner = [atom.inner.symbols() for atom in atoms if isinstance(atom, Floor)]
            self._symbols = frozenset(a for a in atoms if isinstance(a, str)).union(*inner)
        return self._symbols

    def __add__(self, other: Dim | int) -> Dim:
        if not isinstance(other, (Dim, int)):
            return NotImplemented
        a, b = self.value, other.value if isinstance(other, Dim) else other
        if b is not None:
            if a is not None:
                return _const(a + b)
            if b == 0:
                return self
        total = dict(self._terms)
        for monomial, c in _of(other)._terms:
            total[monomial] = total.get(monomial, 0) + c
        return _make(total)

    def __mul__(self, other: Dim | int) -> Dim:
        if not isinstance(other, (Dim, int)):
            return NotImplemented
        a, b = self.value, other.value if isinstance(other, Dim) else other
        if a is not None:
            return _const(a * b) if b is not None else _of(other)._times(a)
        return self._times(b) if b is not None else _product(self, _of(other))

    def _times(self, n: int) -> Dim:
        if n == 1:
            return self
        return _new(tuple((monomial, c * n) for monomial, c in self._terms)) if n else ZERO

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim | int) -> Dim:
        return self + -other if isinstance(other, (Dim, int)) else NotImplemented

    def __rsub__(self, other: int) -> Dim:
        return -self + other if isinstance(other, int) else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, by: Dim | int) -> Dim:
        """Division rounded down, by a positive number. Raises ValueError for any other divisor."""
        n = by.value if isinstance(by, Dim) else by
        if not isinstance(n, int) or n <= 0:
            raise ValueError(f"a dimension is divided by a positive integer only, not by {by}")
        a = self.value
        return _const(a // n) if a is not None else _floor(self, n)

    def exact_div(self, other: Dim | int) -> Dim | None:
        """The q with q * other == self for all sizes, or None when there is none (or other is 0)."""
        a, b = self.value, other.value if isinstance(other, Dim) else other
        if b == 0:
            return None
        if b is not None:
            if a is not None:
                return _const(a // b) if a % b == 0 else None
            return _new(tuple((m, c // b) for m, c in self._terms)) if all(c % b == 0 for _, c in self._terms) else None
        return _long_division(self, _of(other))

    def substitute(self, sizes: Mapping[str, Dim | int]) -> Dim:
        """This with free dimensions replaced, all at once; names not in `sizes` stay."""
        if self.symbols().isdisjoint(sizes):
            return self
        return sum((reduce(mul, (_replace(atom, sizes) for atom in m), _const(c)) for m, c in self._terms), ZERO)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The number this is at `sizes`; raises KeyError for a free dimension that is not given."""
        return sum(c * prod(sizes[a] if isinstance(a, str) else a.inner.evaluate(sizes) // a.by for a in m)
                   for m, c in self._terms)

    def affine_in(self, name: str) -> tuple[Dim, Dim] | None:
        """(a, b) without `name` such that self == a * name + b, or None when self is not affine in `name`."""
        parts: tuple[dict[Monomial, int], dict[Monomial, int]] = ({}, {})
        for monomial, c in self._terms:
            power = monomial.count(name)
            if power > 1 or any(isinstance(atom, Floor) and name in atom.inner.symbols() for atom in monomial):
                return None
            parts[1 - power][tuple(atom for atom in monomial if atom != name)] = c
        return _make(parts[0]), _make(parts[1])

    def solve_for(self, target: Dim | int, unknown: Collection[str] | None = None) -> dict[str, Dim] | None:
        """The value of the one unknown symbol of self that makes self == target.

        `unknown` names the symbols that may be solved for (default: all of self's). {} when self has none of them and
        equals target. None when it has several, is not affine in it, or the value is not exact or a negative number.
        """
        names = [n for n in self.symbols() if unknown is None or n in unknown]
        if not names:
            return {} if self == target else None
        parts = self.affine_in(names[0]) if len(names) == 1 else None
        found = (_of(target) - parts[1]).exact_div(parts[0]) if parts else None
        if found is None or (found.value is not None and found.value < 0):
            return None
        return {names[0]: found}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self is other or self._terms == other._terms
        if isinstance(other, int):
            return self.value == other
        return NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            value = self.value
            self._hash = hash(self._terms) if value is None else hash(value)
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = _spell(self._terms)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _parse, (str(self),)


def at_least(a: Dim | int, b: Dim | int) -> bool | None:
    """Whether a >= b for all sizes >= 0: True or False when its coefficients prove it, else None."""
    difference = _of(a) - b
    if all(c >= 0 for _, c in difference.terms):
        return True
    monomial, constant = difference.terms[-1]
    if not monomial and constant < 0 and all(c <= 0 for _, c in difference.terms):
        return False
    return None


def _of(value: Dim | int) -> Dim:
    return value if isinstance(value, Dim) else _const(int(value))


def _new(terms: Terms) -> Dim:
    made = object.__new__(Dim)
    made._fill(terms)
    return made


@lru_cache(maxsize=16384)
def _const(n: int) -> Dim:
    return _new((((), n),) if n else ())


@lru_cache(maxsize=4096)
def _symbol(name: str) -> Dim:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name == "floor":
        raise ValueError(f"{name!r} is not a name for a dimension")
    return _new((((name,), 1),))


def _make(terms: Mapping[Monomial, int]) -> Dim:
    kept = [term for term in terms.items() if term[1]]
    if len(kept) > 1:
        kept.sort(key=lambda term: (-len(term[0]), [str(atom) for atom in term[0]]))
    return _new(tuple(kept))


def _product(a: Dim, b: Dim) -> Dim:
    if len(a.terms) * len(b.terms) > MAX_TERMS or len(a.terms[0][0]) + len(b.terms[0][0]) > MAX_DEGREE:
        raise OverflowError("the product of dimensions has too many terms")
    total: dict[Monomial, int] = {}
    for left, c in a.terms:
        for right, d in b.terms:
            monomial = tuple(sorted(left + right, key=str)) if left and right else left or right
            total[monomial] = total.get(monomial, 0) + c * d
    return _make(total)


def _replace(atom: Atom, sizes: Mapping[str, Dim | int]) -> Dim:
    if isinstance(atom, Floor):
        return atom.inner.substitute(sizes) // atom.by
    return _of(sizes[atom]) if atom in sizes else _symbol(atom)


def _floor(p: Dim, n: int) -> Dim:
    """floor(p / n): whole multiples of n move out, a common factor cancels, floor(floor(x / a) / b) = floor(x / (a b))."""
    whole = _make({m: c // n for m, c in p.terms})
    rest = {m: c % n for m, c in p.terms if c % n}
    common = reduce(gcd, (c for m, c in rest.items() if m), n)
    rest = {m: c // common for m, c in rest.items() if c >= common}  # floor of the constant: its fraction cannot matter
    n //= common
    inner = _make(rest)
    if inner.value is not None:
        return whole + inner.value // n
    if n == 1:
        return whole + inner
    floors = [m for m in rest if any(isinstance(atom, Floor) for atom in m)]
    if len(floors) == 1 and len(floors[0]) == 1 and rest[floors[0]] == 1:
        atom = floors[0][0]
        assert isinstance(atom, Floor)
        return whole + _floor(atom.inner + (inner - _new(((floors[0], 1),))) * atom.by, atom.by * n)
    return whole + _new((((Floor(inner, n),), 1),))


def _long_division(p: Dim, by: Dim) -> Dim | None:
    """Exact division of polynomials: leading terms in lexicographic order, which multiplication respects."""
    atoms = sorted({atom for q in (p, by) for monomial, _ in q.terms for atom in monomial}, key=str)
    powers = lambda term: [term[0].count(atom) for atom in atoms]  # noqa: E731
    lead, divisor = max(by.terms, key=powers)
    quotient, rest = ZERO, p
    while rest.terms:
        monomial, c = max(rest.terms, key=powers)
        left = list(monomial)
        for atom in lead:
            if atom not in left:
                return None
            left.remove(atom)
        if c % divisor:
            return None
        step = _new(((tuple(left), c // divisor),))
        quotient, rest = quotient + step, rest - step * by
    return quotient


def _spell(terms: Terms) -> str:
    if not terms:
        return "0"
    first = next((i for i, (_, c) in enumerate(terms) if c > 0), 0)
    text = ""
    for monomial, c in (terms[first], *terms[:first], *terms[first + 1 :]):
        names = [str(atom) for atom in monomial]
        body = "*".join(names if names and abs(c) == 1 else [str(abs(c)), *names])
        sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
        text += sign + body
    return text


_TOKEN = re.compile(r"\s*(//|[-+*/()]|[0-9]+|[A-Za-z_][A-Za-z0-9_]*)")
_MAX_DEPTH = 64


@lru_cache(maxsize=4096)
def _parse(text: str) -> Dim:
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError(f"cannot read `{text[at:]}` in the dimension `{text}`")
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens, text)
    try:
        dim = reader.sum(0)
    except OverflowError:
        raise reader.wrong("too large a product") from None
    reader.expect("")
    return dim


class _Reader:
    """Recursive descent over the tokens of one dimension."""

    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens, self.text, self.at = [*tokens, ""], text, 0

    def take(self, *wanted: str) -> str:
        token = self.tokens[self.at]
        self.at += token in wanted
        return token if token in wanted else ""

    def expect(self, token: str) -> None:
        found = self.tokens[self.at]
        if found != token:
            raise self.wrong(f"expected {f'`{token}`' if token else 'the end'}, not `{found}`,")
        self.at += 1

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"{what} in the dimension `{self.text}`")

    def sum(self, depth: int) -> Dim:
        total = self.term(depth)
        while sign := self.take("+", "-"):
            term = self.term(depth)
            total = total + term if sign == "+" else total - term
        return total

    def term(self, depth: int) -> Dim:
        total = self.factor(depth)
        while sign := self.take("*", "//"):
            total = total * self.factor(depth) if sign == "*" else total // self.factor(depth)
        return total

    def factor(self, depth: int) -> Dim:
        if depth > _MAX_DEPTH:
            raise self.wrong("too deep a nesting")
        if self.take("-"):
            return -self.factor(depth + 1)
        if self.take("("):
            inner = self.sum(depth + 1)
            self.expect(")")
            return inner
        token = self.tokens[self.at]
        if not token[:1].isalnum() and token[:1] != "_":
            raise self.wrong(f"expected a number or a name, not `{token}`,")
        self.at += 1
        if token.isdigit():
            return _const(int(token))
        if token == "floor":
            self.expect("(")
            inner = self.term(depth + 1)
            self.expect("/")
            inner //= self.factor(depth + 1)
            self.expect(")")
            return inner
        return _symbol(token)


ZERO = _const(0)
