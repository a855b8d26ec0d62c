"""The value of an expression: numbers, truth values, text, lists and dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from ..lang.diagnostic import Fault, Label, fault
from ..lang.expression import CODE, COMPARISONS, Expression, Node
from ..lang.scalar import MAX_INT
from ..lang.source import Span
from .dimension import Dim, at_least

Value = int | float | bool | str | list | Dim
Lookup = Callable[[str, Span], Value]
_MAX_POWER = 8  # of a dimension
_MAX_TRIES = 100_000


class Inexact(float):
    """An integer divided by one that does not divide it, so that a field of integers can say why it refuses."""

    numerator: int
    denominator: int
    numerator_text: str
    denominator_text: str
    span: Span

    def __new__(cls, numerator: int, denominator: int, numerator_text: str, denominator_text: str, span: Span) -> Inexact:
        made = super().__new__(cls, numerator / denominator)
        made.numerator, made.denominator = numerator, denominator
        made.numerator_text, made.denominator_text, made.span = numerator_text, denominator_text, span
        return made

    def nearest(self) -> tuple[int, ...]:
        """The nearest divisors of the numerator below and above the denominator, as far as they were found."""
        n, d = abs(self.numerator), abs(self.denominator)
        below = next((k for k in range(d - 1, max(0, d - _MAX_TRIES), -1) if n % k == 0), None)
        above = next((k for k in range(d + 1, min(n, d + _MAX_TRIES) + 1) if n % k == 0), None)
        return tuple(k for k in (below, above) if k is not None)

    def explain(self) -> str:
        """Such as: `heads` = 12 does not divide `width` = 512; nearest 8 or 16."""
        left, right = _shown(self.numerator_text, self.numerator), _shown(self.denominator_text, self.denominator)
        near = " or ".join(map(str, self.nearest()))
        return f"{right} does not divide {left}{f'; nearest {near}' if near else ''}"


def evaluate(expression: Expression, lookup: Lookup) -> Value:
    """The value of `expression`; `lookup(name, span)` gives that of a name and raises its own `Fault` for an unknown one.

    Integers divide to an integer where they do, else to an `Inexact`. Sizes that hold free dimensions can be added, multiplied
    and divided by `//`; `/`, `%`, min, max and comparison need a result that is the same for all sizes. `round_to(x, m)` is the
    least multiple of m not below x (a float within 1e-9 of a multiple counts as it). Raises `Fault` `bad-expression`.
    """
    return _Evaluator(expression, lookup).value(expression.root)


class _Evaluator:
    def __init__(self, expression: Expression, lookup: Lookup) -> None:
        self.expression, self.lookup = expression, lookup

    def text(self, node: Node) -> str:
        return self.expression.text_of(node)

    def wrong(self, headline: str, node: Node, label: str = "", help: str = "") -> Fault:
        return fault(CODE, headline, Label(self.expression.at(node), label), help=help or ())

    def value(self, node: Node) -> Value:
        op = node.op
        if op in ("number", "constant"):
            assert node.value is not None
            return node.value
        if op == "name":
            return _constant(self.lookup(str(node.value), self.expression.at(node)))
        try:
            if op in ("and", "or", "not"):
                return self.logic(node)
            if op in COMPARISONS:
                return self.compare(node)
            if op in ("list", "index", "if"):
                return getattr(self, f"{op}_value")(node)
            return self.checked(getattr(self, op)(node) if op in ("call", "neg", "pos") else self.binary(node), node)
        except OverflowError:
            raise self.too_large(node) from None

    def checked(self, value: Value, node: Node) -> Value:
        value = _constant(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.too_large(node)
        numbers = [c for _, c in value.terms] if isinstance(value, Dim) else [value] if isinstance(value, int) else []
        if any(abs(n) > MAX_INT for n in numbers):
            raise self.too_large(node)
        return value

    def too_large(self, node: Node) -> Fault:
        return self.wrong(f"`{self.text(node)}` is too large", node, "beyond a 64-bit number")

    def truth(self, node: Node) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            raise self.wrong(f"`{self.text(node)}` is {_kind(value)}, not true or false", node, "true or false was expected",
                             "compare it, such as `x > 0`" if isinstance(value, (int, float, Dim)) else "")
        return value

    def numeric(self, node: Node) -> int | float | Dim:
        value = self.value(node)
        if isinstance(value, bool) or not isinstance(value, (int, float, Dim)):
            raise self.wrong(f"`{self.text(node)}` is {_kind(value)}, not a number", node, "a number was expected")
        return value

    def number(self, node: Node) -> int | float:
        value = self.numeric(node)
        if isinstance(value, Dim):
            raise self.free(node, value, "a number was expected")
        return value

    def free(self, node: Node, value: Dim, label: str, help: str = "") -> Fault:
        names = ", ".join(f"`{name}`" for name in sorted(value.symbols()))
        verb = "are free sizes" if "," in names else "is a free size"
        return self.wrong(f"`{self.text(node)}` has no one value: {names} {verb}", node, label, help)

    def logic(self, node: Node) -> bool:
        first = self.truth(node.children[0])
        if node.op == "not":
            return not first
        return first if first == (node.op == "or") else self.truth(node.children[1])

    def if_value(self, node: Node) -> Value:
        then, condition, other = node.children
        return self.value(then if self.truth(condition) else other)

    def list_value(self, node: Node) -> Value:
        return [self.value(child) for child in node.children]

    def index_value(self, node: Node) -> Value:
        items, i = self.value(node.children[0]), self.number(node.children[1])
        if not isinstance(items, list):
            text = self.text(node.children[0])
            raise self.wrong(f"`{text}` is {_kind(items)}, not a list", node.children[0], "a list was expected")
        if not isinstance(i, int):
            raise self.wrong(f"the index `{self.text(node.children[1])}` is {_kind(i)}, not an integer", node.children[1])
        if not 0 <= i < len(items):
            raise self.wrong(f"there is no element {i}: `{self.text(node.children[0])}` has {len(items)} elements, from 0",
                             node.children[1], f"this is {i}")
        return _constant(items[i])

    def neg(self, node: Node) -> Value:
        return -self.numeric(node.children[0])

    def pos(self, node: Node) -> Value:
        return self.numeric(node.children[0])

    def binary(self, node: Node) -> Value:
        left, right = node.children
        a, b = self.numeric(left), self.numeric(right)
        if b == 0 and node.op in ("/", "//", "%"):
            raise self.wrong(f"`{self.text(node)}` divides by zero", right, "this is 0")
        if isinstance(a, Dim) or isinstance(b, Dim):
            return self.sizes(node, a, b)
        if node.op == "**":
            return self.power(node, a, b)
        if node.op == "/":
            if isinstance(a, int) and isinstance(b, int):
                return a // b if a % b == 0 else Inexact(a, b, self.text(left), self.text(right), self.expression.at(node))
            return a / b
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b}[node.op]()

    def power(self, node: Node, a: int | float, b: int | float) -> int | float:
        if a == 0 and b < 0:
            raise self.wrong(f"`{self.text(node)}` divides by zero", node.children[0], "this is 0")
        if a < 0 and not float(b).is_integer():
            raise self.wrong(f"`{self.text(node)}` is not a real number", node.children[0], f"this is {a}")
        if isinstance(a, int) and isinstance(b, int) and b >= 0:
            if abs(a) > 1 and b > 63:
                raise OverflowError
            return a**b if abs(a) > 1 else (a if b % 2 else a * a) if b else 1
        return float(a) ** b

    def sizes(self, node: Node, a: int | float | Dim, b: int | float | Dim) -> Value:
        """Arithmetic where one side holds a free dimension."""
        left, right = node.children
        if isinstance(a, float) or isinstance(b, float):
            here, value = (left, a) if isinstance(a, Dim) else (right, b)
            assert isinstance(value, Dim)
            raise self.free(here, value, "a size cannot be combined with a fraction")
        x, op = Dim(a), node.op
        if op in ("+", "-", "*"):
            return {"+": lambda: x + b, "-": lambda: x - b, "*": lambda: x * b}[op]()
        if op == "/":
            quotient = x.exact_div(b)
            if quotient is None:
                help = f"write `{self.text(left)} // {self.text(right)}` to round down" if isinstance(b, int) else ""
                raise self.free(node, x + b, "not whole for all sizes", help)
            return quotient
        if isinstance(b, Dim):
            raise self.free(right, b, "a number was expected")
        if op == "**":
            if not 0 <= b <= _MAX_POWER:
                raise self.wrong(f"a size has whole powers from 0 to {_MAX_POWER}", right, f"this is {b}")
            return reduce(lambda p, q: p * q, [x] * b, Dim(1))
        if b < 0:
            raise self.wrong("a size is divided by positive numbers only", right, f"this is {b}")
        if op == "//":
            return x // b
        rest = x - x // b * b
        if rest.value is None:
            raise self.free(node, x, "not the same for all sizes")
        return rest.value

    def compare(self, node: Node) -> bool:
        left, right = node.children
        a, b = self.value(left), self.value(right)
        for kind in (bool, str):
            if isinstance(a, kind) and isinstance(b, kind) and node.op in ("==", "!="):
                return (a == b) == (node.op == "==")
        a, b = self.comparable(left, a, node, b), self.comparable(right, b, node, a)
        if isinstance(a, Dim) or isinstance(b, Dim):
            result = None if isinstance(a, float) or isinstance(b, float) else _decide(node.op, Dim(a), Dim(b))
            if result is None:
                here, value = (left, a) if isinstance(a, Dim) else (right, b)
                assert isinstance(value, Dim)
                raise self.free(here, value, f"`{self.text(node)}` depends on it")
            return result
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[node.op]

    def comparable(self, here: Node, value: Value, node: Node, other: Value) -> int | float | Dim:
        if isinstance(value, bool) or not isinstance(value, (int, float, Dim)):
            raise self.wrong(f"`{self.text(node)}` compares {_kind(value)} with {_kind(other)}", here, f"this is {_kind(value)}")
        return value

    def call(self, node: Node) -> Value:
        arguments = node.children
        if node.value in ("min", "max"):
            return self.extreme(node)
        if node.value == "round_to":
            return self.round_to(*arguments)
        x = self.number(arguments[0])
        if node.value == "abs":
            return abs(x)
        if x < 0 or (x == 0 and node.value == "log"):
            raise self.wrong(f"`{self.text(node)}` is not a real number", arguments[0], f"this is {x}")
        if node.value == "log":
            return math.log(x)
        root = math.isqrt(x) if isinstance(x, int) else 0
        return root if isinstance(x, int) and root * root == x else math.sqrt(x)

    def extreme(self, node: Node) -> Value:
        """min or max of numbers, or of one list."""
        values = [self.value(child) for child in node.children]
        if len(values) == 1 and isinstance(values[0], list):
            values = [_constant(item) for item in values[0]]
        best: int | float | Dim | None = None
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float, Dim)):
                raise self.wrong(f"`{self.text(node)}` holds {_kind(value)}, not numbers only", node)
            if best is None:
                best = value
            elif isinstance(value, Dim) or isinstance(best, Dim):
                larger = None if isinstance(value, float) or isinstance(best, float) else _decide(">=", Dim(value), Dim(best))
                if larger is None:
                    size = value if isinstance(value, Dim) else best
                    assert isinstance(size, Dim)
                    raise self.free(node, size, "not the same one for all sizes")
                best = value if larger == (node.value == "max") else best
            else:
                best = max(best, value) if node.value == "max" else min(best, value)
        if best is None:
            raise self.wrong(f"`{self.text(node)}` is of an empty list", node)
        return best

    def round_to(self, number: Node, step: Node) -> Value:
        x, multiple = self.numeric(number), self.numeric(step)
        if not isinstance(multiple, int) or multiple <= 0:
            raise self.wrong("`round_to(x, multiple)` rounds up to a multiple of a positive integer", step, f"this is {multiple}")
        if not isinstance(x, float):
            return (x + multiple - 1) // multiple * multiple
        ratio = x / multiple
        whole = round(ratio)
        return (whole if abs(ratio - whole) <= 1e-9 * max(1.0, abs(ratio)) else math.ceil(ratio)) * multiple


def _constant(value: Value) -> Value:
    """A dimension that is a number as that number."""
    if isinstance(value, Dim):
        number = value.value
        return value if number is None else number
    return value


def _decide(op: str, a: Dim, b: Dim) -> bool | None:
    """A comparison of sizes, where it is the same for all sizes."""
    if op in ("==", "!="):
        equal = True if a == b else False if at_least(a, b) is False or at_least(b, a) is False else None
        return None if equal is None else equal == (op == "==")
    if op in ("<=", ">="):
        low, high = (a, b) if op == "<=" else (b, a)
        return at_least(high, low)
    low, high = (a, b) if op == "<" else (b, a)
    reached = at_least(low, high)
    return None if reached is None else not reached


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f"the word `{value}`"
    if isinstance(value, list):
        return "a list"
    return f"the size `{value}`" if isinstance(value, Dim) else f"the number {value}"


def _shown(text: str, number: int) -> str:
    return f"`{text}`" if text.strip() == str(number) else f"`{text}` = {number}"
