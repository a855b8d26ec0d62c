"""Expressions in attribute fields: `heads * (nope + rope)`, `8 if i % 2 == 0 else 4`, `ratio[i]`, `[B, heads, S]`.

This module reads them into a tree; `ir/evaluate.py` gives them a value. Nothing is executed as Python.
Loosest first: `a if c else b`, or, and, not, comparison, + -, * / // %, unary - +, **, then calls and `list[i]`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .diagnostic import Fault, Label, fault, suggest
from .scalar import MAX_INT
from .source import Span

CODE = "bad-expression"
_MAX_TEXT, _MAX_NESTING, _MAX_DEPTH = 4000, 50, 100

# name -> least and most number of arguments
FUNCTIONS = {"min": (1, None), "max": (1, None), "round_to": (2, 2), "sqrt": (1, 1), "log": (1, 1), "abs": (1, 1)}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
CONSTANTS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WORDS = ("if", "else", "and", "or", "not")
_POWER = {"or": 2, "and": 3, **dict.fromkeys(COMPARISONS, 5), "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7, "**": 9}
_CONDITIONAL, _NOT, _UNARY = 1, 4, 8

_TOKEN = re.compile(r"""\s*(?:
    (?P<number>(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<mistake>&&|\|\||<>|===|!(?!=)|=(?!=)|[\^&|~?:;.'"{}@$#\\×÷−≤≥≠·])
  | (?P<op>\*\*|//|==|!=|<=|>=|[-+*/%<>()\[\],])
  | (?P<other>\S)
)""", re.X)

_MEANT = {
    "&&": "write `and`", "&": "write `and`", "||": "write `or`", "|": "write `or`", "!": "write `not`", "~": "write `not`",
    "^": "write `**` for a power", "=": "write `==` to compare", "===": "write `==`", "<>": "write `!=`", "≠": "write `!=`",
    "≤": "write `<=`", "≥": "write `>=`", "×": "write `*`", "·": "write `*`", "÷": "write `/`", "−": "write `-`",
    "?": "write `a if condition else b`", ":": "write `a if condition else b` for a choice, `list[i]` for one element",
    ".": "a name in an expression is a size, a setting or `i`, and has no parts",
    "'": "an expression has no quoted text", '"': "an expression has no quoted text", ";": "write one expression",
    "{": "use parentheses", "}": "use parentheses", "#": "a comment stands outside the quotes",
}
_ELSEWHERE = {
    "floor": "write `a // b` to divide rounding down", "int": "write `a // b` to divide rounding down", "pow": "write `a ** b`",
    "ceil": "write `round_to(x, 1)`", "round": "write `round_to(x, 1)` to round up", "log2": "write `log(x) / log(2)`",
    "log10": "write `log(x) / log(10)`", "exp": "write `2.718281828459045 ** x`",
}
_DTYPES = ("float", "int64", "int32", "bool")


@dataclass(frozen=True)
class Node:
    """One operation. `op` is `number`, `name`, `constant`, `list`, `index`, `call`, `if` (then, condition, else), `not`, `neg`,
    `pos` or a binary operator; `value` is the number, constant or name; `start`, `stop` are offsets in the text."""

    op: str
    start: int
    stop: int
    children: tuple[Node, ...] = ()
    value: int | float | bool | str | None = None
    depth: int = 1


@dataclass(frozen=True)
class Expression:
    """An expression that was read: its text, where it stands, and its tree."""

    text: str
    span: Span
    root: Node

    def names(self) -> frozenset[str]:
        """Every name in it that is not a function, those of branches not taken included."""
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(str(node.value) for node in walk(self.root) if node.op == "name")

    def at(self, node: Node) -> Span:
        """The characters of the file that `node` was read from."""
        return locate(self.text, self.span, node.start, node.stop)

    def text_of(self, node: Node) -> str:
        """The text `node` was read from."""
        return self.text[node.start : node.stop]

    def __str__(self) -> str:
        return self.text.strip()


def parse_expression(text: str, span: Span) -> Expression:
    """Read the text of the scalar at `span`. Raises `Fault` `bad-expression`, pointing at the characters in question."""
    return Expression(text, span, _Parser(text, span).whole())


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def locate(text: str, span: Span, start: int, stop: int) -> Span:
    """The span of `text[start:stop]`, where `text` is what YAML made of `span`; all of `span` where escapes hide it."""
    written = span.text
    shift = written.find(text)
    if text and shift >= 0:
        return Span(span.source, span.start + shift + start, span.start + shift + stop)
    offsets: list[int] = []  # of each character, over folded lines and indentation
    at = written.find("\n") + 1 if written[:1] in ("|", ">") else 0
    for character in text:
        found = at if character.isspace() else written.find(character, at)
        if found < 0:
            return span
        offsets.append(found)
        at = found if character.isspace() else found + 1
    if stop > start:
        return Span(span.source, span.start + offsets[start], span.start + offsets[stop - 1] + 1)
    return Span(span.source, span.start + at, span.start + at)


@dataclass(frozen=True)
class _Token:
    kind: str  # number, name, op, end
    text: str
    start: int
    stop: int


class _Parser:
    """A Pratt parser: `expression(p)` reads operators that bind tighter than or as tightly as `p`."""

    def __init__(self, text: str, span: Span) -> None:
        self.text, self.span, self.at = text, span, 0
        if len(text) > _MAX_TEXT:
            raise self.wrong(f"it has more than {_MAX_TEXT} characters", 0, len(text))
        self.tokens = [*self.scan(), _Token("end", "", len(text.rstrip()), len(text.rstrip()))]

    def wrong(self, why: str, start: int, stop: int, label: str = "", help: str | tuple[str, ...] = ()) -> Fault:
        text = self.text.strip()
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        at = locate(self.text, self.span, start, stop)
        headline = why if why.startswith(f"`{shown}` ") else f"`{shown}` is not an expression: {why}"
        return fault(CODE, headline, Label(at, label), help=help)

    def scan(self) -> Iterator[_Token]:
        at, stop = 0, len(self.text.rstrip())
        while at < stop:
            found = _TOKEN.match(self.text, at)
            assert found and found.lastgroup
            kind, text, start, at = found.lastgroup, found[found.lastgroup], found.start(found.lastgroup), found.end()
            if kind in ("mistake", "other"):
                raise self.wrong(f"`{text}` has no meaning here", start, at, help=_MEANT.get(text, ()))
            if kind == "number" and re.match(r"[A-Za-z_]", self.text[at : at + 1]):
                name = re.compile(r"\w+").match(self.text, at)
                word = name[0] if name else ""
                raise self.wrong(f"`{text}{word}` is neither a number nor a name", start, at + len(word),
                                 help="numbers are decimal" if text == "0" else f"write `{text} * {word}` for a product")
            yield _Token(kind, text, start, at)

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self, *texts: str) -> _Token | None:
        token = self.next
        if token.kind == "number" or token.text not in texts or token.kind == "end":
            return None
        self.at += 1
        return token

    def need(self, text: str, after: str, help: str | tuple[str, ...] = ()) -> _Token:
        found = self.take(text)
        if not found:
            raise self.unexpected(f"`{text}` {after}", help)
        return found

    def unexpected(self, expected: str, help: str | tuple[str, ...] = ()) -> Fault:
        token = self.next
        found = f"not `{token.text}`" if token.text else "and it ends here"
        return self.wrong(f"{expected} was expected, {found}", token.start, token.stop, f"expected {expected}", help)

    def node(self, op: str, start: int, children: tuple[Node, ...] = (), value: int | float | bool | str | None = None) -> Node:
        depth = 1 + max((child.depth for child in children), default=0)
        stop = self.tokens[self.at - 1].stop
        if depth > _MAX_DEPTH:
            raise self.wrong("it is too long", start, stop, help="name parts of it under `sizes:`")
        return Node(op, start, stop, children, value, depth)

    def whole(self) -> Node:
        if not self.text.strip():
            raise fault(CODE, "an expression is missing here", Label(self.span, "a number, a name or a formula was expected"))
        root = self.expression(0, 0)
        token = self.next
        if token.kind == "end":
            return root
        if token.kind in ("number", "name") and token.text not in _WORDS:
            left, right = self.text[root.start : root.stop], self.text[token.start : token.stop]
            raise self.wrong(f"an operator is missing before `{token.text}`", token.start, token.stop,
                             help=f"write `{left} * {right}` for a product" if len(left) < 40 else ())
        help = "a list stands between brackets: `[a, b]`" if token.text == "," else ()
        raise self.unexpected("an operator or the end", help)

    def expression(self, power: int, nesting: int) -> Node:
        if nesting > _MAX_NESTING:
            raise self.wrong("it is nested too deeply", self.next.start, self.next.stop, help="name parts of it under `sizes:`")
        start = self.next.start
        left = self.operand(nesting)
        while True:
            op = self.next.text if self.next.kind in ("op", "name") else ""
            if op == "if" and power <= _CONDITIONAL:
                self.at += 1
                condition = self.expression(_CONDITIONAL + 1, nesting + 1)
                self.need("else", "after the condition", "write `a if condition else b`")
                left = self.node("if", start, (left, condition, self.expression(_CONDITIONAL, nesting + 1)))
            elif op in _POWER and _POWER[op] >= max(power, 1):
                self.at += 1
                # ** groups from the right, the others from the left
                right = self.expression(_UNARY if op == "**" else _POWER[op] + 1, nesting + 1)
                if op in COMPARISONS and self.next.text in COMPARISONS:
                    raise self.wrong("comparisons do not chain", self.next.start, self.next.stop,
                                     help="write `a < b and b < c`")
                left = self.node(op, start, (left, right))
            else:
                return left

    def operand(self, nesting: int) -> Node:
        token = self.next
        if self.take("not"):
            return self.node("not", token.start, (self.expression(_NOT, nesting + 1),))
        if self.take("-", "+"):
            return self.node("neg" if token.text == "-" else "pos", token.start, (self.expression(_UNARY, nesting + 1),))
        if token.kind == "end" or token.text in _WORDS or (token.kind == "op" and token.text not in ("(", "[")):
            raise self.unexpected("a number, a name or `(`")
        self.at += 1
        if token.kind == "number":
            return self.node("number", token.start, value=self.number(token))
        if token.text == "(":
            inner = self.expression(0, nesting + 1)
            self.need(")", "to close the parenthesis")
            # a name or number keeps its own characters, an operation takes the parentheses in
            group = self.node(inner.op, token.start, inner.children, inner.value) if inner.children else inner
            return self.indexed(group, token, nesting)
        if token.text == "[":
            return self.indexed(self.node("list", token.start, self.items("]", nesting)), token, nesting)
        if self.take("("):
            return self.indexed(self.call(token, nesting), token, nesting)
        if token.text in CONSTANTS:
            return self.node("constant", token.start, value=CONSTANTS[token.text])
        return self.indexed(self.node("name", token.start, value=token.text), token, nesting)

    def indexed(self, node: Node, first: _Token, nesting: int) -> Node:
        shape = first.text in _DTYPES
        help = f"`{first.text}[...]` is a type: it stands under `inputs:`" if shape else "write one index, such as `list[i]`"
        while self.take("["):
            if self.next.text == "]":
                raise self.unexpected("an index", help)
            index = self.expression(0, nesting + 1)
            self.need("]", "after the index", help)
            node = self.node("index", first.start, (node, index))
        return node

    def items(self, close: str, nesting: int) -> tuple[Node, ...]:
        found: list[Node] = []
        if self.take(close):
            return ()
        while True:
            found.append(self.expression(0, nesting + 1))
            if self.take(close):
                return tuple(found)
            self.need(",", f"or `{close}`")

    def call(self, name: _Token, nesting: int) -> Node:
        if name.text not in FUNCTIONS:
            help = _ELSEWHERE.get(name.text) or suggest(name.text, FUNCTIONS, "functions")
            raise self.wrong(f"there is no function `{name.text}`", name.start, name.stop, help=help)
        node = self.node("call", name.start, self.items(")", nesting), name.text)
        least, most = FUNCTIONS[name.text]
        count = len(node.children)
        if count < least or (most is not None and count > most):
            wanted = f"{least} argument{'s' if least > 1 else ''}" if most else "at least 1 argument"
            help = "write `round_to(x, multiple)`: x rounded up to a multiple" if name.text == "round_to" else ()
            raise self.wrong(f"`{name.text}` takes {wanted}, not {count}", node.start, node.stop, help=help)
        return node

    def number(self, token: _Token) -> int | float:
        text = token.text
        if "_" in text:
            raise self.wrong(f"`{text}` is not a number", token.start, token.stop, help=f"write `{text.replace('_', '')}`")
        if re.match(r"0[0-9]", text):
            plain = re.sub("^0+(?=[0-9])", "", text)
            raise self.wrong(f"`{text}` begins with 0", token.start, token.stop,
                             help=f"write `{plain}`; a leading zero could mean an octal number")
        if text.isdigit():
            if len(text) > 19 or int(text) > MAX_INT:
                raise self.wrong(f"`{text[:24]}` is too large", token.start, token.stop, help=f"the largest integer is {MAX_INT}")
            return int(text)
        value = float(text)
        if math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
            raise self.wrong(f"`{text}` is beyond a 64-bit float", token.start, token.stop)
        return value
