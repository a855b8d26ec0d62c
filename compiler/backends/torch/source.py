"""Python source as values: `Py` builds expressions by being used like the objects that the source will name."""

from __future__ import annotations

import math
from typing import Any

ATOM, POWER, UNARY, TIMES, PLUS, SHIFT, AND, OR, COMPARE, NOT, TERNARY = range(11)


class Py:
    """Source text of one expression and how tightly it binds. `x + 1`, `f(x, dim=-1)`, `x.shape[0]` give source."""

    __slots__ = ("_text", "_level")
    _text: str
    _level: int

    def __init__(self, text: str, level: int = ATOM):
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_level", level)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Py({self._text!r})"

    def __getattr__(self, name: str) -> Py:
        if name.startswith("__"):
            raise AttributeError(name)
        return Py(f"{tight(self, ATOM)}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Py:
        parts = [source(a) for a in args] + [f"{k.rstrip('_')}={source(v)}" for k, v in kwargs.items()]
        return Py(f"{tight(self, ATOM)}({', '.join(parts)})")

    def __getitem__(self, key: Any) -> Py:
        items = key if isinstance(key, tuple) else (key,)
        return Py(f"{tight(self, ATOM)}[{', '.join(_subscript(k) for k in items)}]")

    def __add__(self, other: Any) -> Py:
        return binary(self, "+", other, PLUS)

    def __radd__(self, other: Any) -> Py:
        return binary(other, "+", self, PLUS)

    def __sub__(self, other: Any) -> Py:
        return binary(self, "-", other, PLUS)

    def __rsub__(self, other: Any) -> Py:
        return binary(other, "-", self, PLUS)

    def __mul__(self, other: Any) -> Py:
        return binary(self, "*", other, TIMES)

    def __rmul__(self, other: Any) -> Py:
        return binary(other, "*", self, TIMES)

    def __truediv__(self, other: Any) -> Py:
        return binary(self, "/", other, TIMES)

    def __rtruediv__(self, other: Any) -> Py:
        return binary(other, "/", self, TIMES)

    def __floordiv__(self, other: Any) -> Py:
        return binary(self, "//", other, TIMES)

    def __mod__(self, other: Any) -> Py:
        return binary(self, "%", other, TIMES)

    def __matmul__(self, other: Any) -> Py:
        return binary(self, "@", other, TIMES)

    def __pow__(self, other: Any) -> Py:
        return Py(f"{tight(self, ATOM)} ** {tight(other, POWER)}", POWER)

    def __rpow__(self, other: Any) -> Py:
        return Py(f"{tight(other, ATOM)} ** {tight(self, POWER)}", POWER)

    def __and__(self, other: Any) -> Py:
        return binary(self, "&", other, AND)

    def __or__(self, other: Any) -> Py:
        return binary(self, "|", other, OR)

    def __invert__(self) -> Py:
        return Py(f"~{tight(self, UNARY)}", UNARY)

    def __neg__(self) -> Py:
        return Py(f"-{tight(self, UNARY)}", UNARY)

    def __lt__(self, other: Any) -> Py:
        return binary(self, "<", other, COMPARE)

    def __le__(self, other: Any) -> Py:
        return binary(self, "<=", other, COMPARE)

    def __gt__(self, other: Any) -> Py:
        return binary(self, ">", other, COMPARE)

    def __ge__(self, other: Any) -> Py:
        return binary(self, ">=", other, COMPARE)

    def __eq__(self, other: object) -> Py:  # type: ignore[override]
        return binary(self, "==", other, COMPARE)

    def __ne__(self, other: object) -> Py:  # type: ignore[override]
        return binary(self, "!=", other, COMPARE)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("source has no truth value; test it in the source")


def tight(x: Any, level: int) -> str:
    """Source of `x`, in parentheses unless it binds at least as tightly as `level`."""
    text = source(x)
    own = x._level if isinstance(x, Py) else (UNARY if text.startswith("-") else ATOM)
    return text if own <= level else f"({text})"


def binary(a: Any, op: str, b: Any, level: int) -> Py:
    left = level - 1 if level == COMPARE else level          # comparisons do not chain
    return Py(f"{tight(a, left)} {op} {tight(b, level - 1)}", level)


def ternary(condition: Any, then: Any, otherwise: Any) -> Py:
    return Py(f"{tight(then, NOT)} if {tight(condition, NOT)} else {tight(otherwise, TERNARY)}", TERNARY)


def source(x: Any) -> str:
    """Source of a Python value or expression."""
    if isinstance(x, Py):
        return str(x)
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    if isinstance(x, str):
        return '"' + repr(x)[1:-1].replace('"', '\\"') + '"'
    if isinstance(x, tuple):
        return f"({', '.join(source(i) for i in x)}{',' if len(x) == 1 else ''})"
    if isinstance(x, list):
        return f"[{', '.join(source(i) for i in x)}]"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{source(k)}: {source(v)}" for k, v in x.items()) + "}"
    if x is None or isinstance(x, bool | int | float):
        return repr(x)
    raise TypeError(f"no source for {type(x).__name__}")


def _subscript(key: Any) -> str:
    if isinstance(key, slice):
        start, stop, step = ("" if p is None else source(p) for p in (key.start, key.stop, key.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return "..." if key is Ellipsis else source(key)
