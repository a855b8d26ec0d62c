"""Values of attributes and settings: an expression evaluated in a scope and checked against what the field wants."""

from __future__ import annotations

from typing import Any

from ...ir.dimension import Dim
from ...ir.evaluate import Inexact
from ...lang.diagnostic import Fault, Label, fault, suggest
from ...lang.scalar import as_bool, as_float
from ...lang.spec import FieldValue, Items, NodeSpec
from ...lang.structure import INITS
from ...lang.tree import Mapping, Scalar
from .scope import Scope

Kind = str | tuple[str, ...]              # of `ops.base.attribute`, or the words that a `one of` setting takes
UNSET: Any = object()


def attribute(kind: Kind, value: FieldValue, scope: Scope, index: int | None, what: str) -> Any:
    """The value of one field; UNSET when it is an optional setting not given."""
    try:
        return _attribute(kind, value, scope, index, what)
    except Fault as found:
        raise scope.traced(found) from None


def _attribute(kind: Kind, value: FieldValue, scope: Scope, index: int | None, what: str) -> Any:
    if isinstance(value, Scalar) and scope.settings.get(value.text, 0) is None:
        return UNSET
    kind = _resolved(kind, value, scope)
    if kind in ("dims", "ints", "list"):
        return _list(kind, value, scope, index, what)
    if kind == "numbers":
        return _numbers(value, scope, index, what)
    if kind == "init":
        return init(value, scope, index)
    if not isinstance(value, Scalar):
        given = {Items: "a list", NodeSpec: "a node"}.get(type(value), "a mapping")
        raise fault("bad-attribute", f"{what} takes one value, not {given}", value.span)
    if kind == "text":
        return scope.settings[value.text] if isinstance(scope.settings.get(value.text), str) else value.text
    if isinstance(kind, tuple):
        return _choice(kind, value, scope, what)
    if kind == "bool":
        return _bool(value, scope, index, what)
    return convert(kind, scope.number(value, index), value, what, scope)


def _resolved(kind: Kind, value: FieldValue, scope: Scope) -> Kind:
    """`a|b` as the words it takes; `ints|a|b` as those where the value is one of them, else `ints`."""
    if isinstance(kind, tuple) or "|" not in kind:
        return kind
    words = tuple(kind.split("|"))
    if words[0] != "ints":
        return words
    named = isinstance(value, Scalar) and scope.settings.get(value.text, value.text) in words
    return words[1:] if named else "ints"


def convert(kind: str, found: Any, at: Scalar, what: str, scope: Scope | None = None) -> Any:
    """A number of the wanted kind, or a Fault that says what it is instead."""
    if isinstance(found, Dim) and found.value is not None:
        found = found.value
    if isinstance(found, Inexact) and kind in ("int", "dim", "number_int"):
        raise indivisible(found, at, what, scope)
    if isinstance(found, bool | str | list | tuple):
        raise fault("bad-attribute", f"{what} is a number, not {word(found)}", at.span)
    if kind == "int":
        if isinstance(found, Dim):
            raise fault("unbound-dimension", f"{what} must be a known number, and `{found}` is free until the model runs",
                        at.span)
        if isinstance(found, float) and not found.is_integer():
            raise fault("bad-attribute", f"{what} is a whole number, not {found}", at.span)
        return int(found)
    if kind == "dim":
        return found if isinstance(found, Dim) else Dim.const(convert("int", found, at, what))
    if kind == "float":
        if isinstance(found, Dim):
            raise fault("unbound-dimension", f"{what} must be a known number, and `{found}` is free until the model runs",
                        at.span)
        return float(found)
    return float(found) if isinstance(found, Inexact) else found


def indivisible(found: Inexact, at: Scalar, what: str, scope: Scope | None) -> Fault:
    """A division that an int field needs to be exact: both fields, both values, and what would fit."""
    parts = {found.numerator_text: found.numerator, found.denominator_text: found.denominator}
    causes = {n: scope.cause(Scalar(n, at.span)) for n in parts} if scope else {}
    labels = [Label(span, f"`{n}` = {parts[n]}") for n, span in causes.items() if span != at.span]
    target = what.strip("`")
    explicit = f"or give `{target}:` itself" if scope and target in scope.block.settings else None
    fits = " or ".join(str(n) for n in found.nearest())
    shown = {t: f"`{t}`" if t == str(n) else f"`{t}` = {n}" for t, n in parts.items()}
    text = f"{shown[found.denominator_text]} does not divide {shown[found.numerator_text]}"
    named = found.denominator_text != str(found.denominator)
    hint = f"the nearest {f'`{found.denominator_text}`' if named else 'number'} that divides it: {fits}" if fits else None
    hint = hint if labels else "`a // b` divides and rounds down"
    primary = labels[-1:] or [Label(at.span)]
    others = [*labels[:-1], Label(at.span, f"{what} is this quotient")] if labels else []
    return fault("indivisible", text, *primary, *others, help=[h for h in (hint, explicit) if h])


def _list(kind: str, value: FieldValue, scope: Scope, index: int | None, what: str) -> Any:
    items: list[Any]
    if isinstance(value, Items):
        inner = {"dims": "dim", "ints": "int", "list": "number"}[kind]
        items = [attribute(inner, item, scope, index, f"an item of {what}") for item in value.items]
        return items if kind == "list" else tuple(items)
    if not isinstance(value, Scalar):
        raise fault("bad-attribute", f"{what} is a list", value.span)
    found = scope.number(value, index)
    items = list(found) if isinstance(found, list | tuple) else [found]
    if kind == "dims" and not isinstance(found, list | tuple):
        raise fault("bad-attribute", f"{what} is a list of sizes", value.span, help='write it as "[B, 1, width]"')
    if kind == "ints":
        return tuple(convert("int", x, value, what, scope) for x in items)
    made = [convert("dim" if kind == "dims" else "number", x, value, f"an item of {what}", scope) for x in items]
    return made if kind == "list" else tuple(made)


def _numbers(value: FieldValue, scope: Scope, index: int | None, what: str) -> Any:
    """A number, true or false, or a nested list of them."""
    if isinstance(value, Items):
        return tuple(_numbers(item, scope, index, what) for item in value.items)
    if isinstance(value, Scalar) and value.text in ("true", "false"):
        return value.text == "true"
    if not isinstance(value, Scalar):
        raise fault("bad-attribute", f"{what} is a number or a list of numbers", value.span)
    found = scope.number(value, index)

    def plain(x: Any) -> Any:
        return tuple(map(plain, x)) if isinstance(x, list | tuple) else convert("number", x, value, what, scope)
    return plain(found)


def _bool(value: Scalar, scope: Scope, index: int | None, what: str) -> bool:
    if value.text in ("true", "false"):
        return as_bool(value)
    known = value.text in scope.settings or any(c in value.text for c in "=<>(") or " " in value.text
    found = scope.number(value, index) if known else as_bool(value)
    if not isinstance(found, bool):
        raise fault("bad-attribute", f"{what} is true or false, not {word(found)}", value.span)
    return found


def _choice(choices: tuple[str, ...], value: Scalar, scope: Scope, what: str) -> str:
    given = scope.settings.get(value.text)
    text = given if isinstance(given, str) else value.text
    if text not in choices:
        raise fault("bad-attribute", f"{what} cannot be `{text}`", value.span, help=suggest(text, choices, "values"))
    return text


def init(value: FieldValue, scope: Scope, index: int | None = None) -> Any:
    """`zeros`, `ones`, or one rule with its number: `{normal: 0.02}`; UNSET where that is an optional setting not given."""
    if isinstance(value, Scalar) and value.text in ("zeros", "ones"):
        return value.text
    if isinstance(value, Mapping) and len(value) == 1 and value.entries[0].key.text in INITS:
        entry = value.entries[0]
        if not isinstance(entry.value, Scalar):
            raise fault("bad-attribute", f"`{entry.key.text}` takes one number", entry.value.span)
        if scope.settings.get(entry.value.text, 0) is None:
            return UNSET
        found = scope.number(entry.value, index)
        number = as_float(entry.value) if not isinstance(found, int | float) else float(found)
        return {entry.key.text: number}
    raise fault("bad-attribute", "this is not an initialisation", value.span,
                help="write `zeros`, `ones`, or one of " + ", ".join(f"{{{n}: x}}" for n in INITS[2:]))


def word(x: Any) -> str:
    """A value in words, for a message."""
    if isinstance(x, bool):
        return "true" if x else "false"
    return f"`{x}`" if isinstance(x, str) else "a list" if isinstance(x, list | tuple) else f"`{x}`"
