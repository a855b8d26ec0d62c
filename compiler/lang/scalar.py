"""The type of a scalar is decided by the field that reads it, with YAML 1.2 spellings; quotes make no difference."""

from __future__ import annotations

import math
import re

from .diagnostic import Fault, Label, fault
from .source import Span
from .tree import Scalar, Tree, kind

_INT = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
MAX_INT = 2**63 - 1


def as_int(tree: Tree, *context: Label, note: str = "") -> int:
    """An integer of 64 bits in decimal. `context` and `note` say who expects it. Raises `Fault` `bad-scalar`."""
    text = _text(tree, "an integer", context, note)
    if _INT.fullmatch(text):
        if len(text) > 20 or abs(int(text)) > MAX_INT:
            raise _bad(tree, "an integer", context, note, f"the largest integer is {MAX_INT}")
        return int(text)
    raise _bad(tree, "an integer", context, note, *_number_hint(text, whole=True))


def as_float(tree: Tree, *context: Label, note: str = "") -> float:
    """A finite number; `1e-5` and `8` are numbers. Raises `Fault` `bad-scalar`."""
    text = _text(tree, "a number", context, note)
    if not _FLOAT.fullmatch(text):
        raise _bad(tree, "a number", context, note, *_number_hint(text, whole=False))
    value = float(text)
    if math.isinf(value):
        raise _bad(tree, "a number", context, note, "it is too large for a 64-bit float")
    if value == 0 and re.search(r"[1-9]", re.split("[eE]", text)[0]):
        raise _bad(tree, "a number", context, note, "it is too small for a 64-bit float")
    return value


def as_bool(tree: Tree, *context: Label, note: str = "") -> bool:
    """`true` or `false`; not `yes`, `no`, `on`, `off`, 0 or 1. Raises `Fault` `bad-scalar`."""
    text = _text(tree, "true or false", context, note)
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    meant = {"yes": "true", "on": "true", "1": "true", "y": "true", "no": "false", "off": "false", "0": "false", "n": "false"}
    said = meant.get(text.lower(), text.lower() if text.lower() in ("true", "false") else None)
    raise _bad(tree, "true or false", context, note, f"write `{said}`" if said else "write `true` or `false`")


def as_name(tree: Tree, *context: Label, note: str = "") -> str:
    """A name: ASCII letters, digits and `_`, not a digit first. Raises `Fault` `bad-scalar`."""
    text = _text(tree, "a name", context, note)
    if _NAME.fullmatch(text):
        return text
    near = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    rule = "a name has letters (a-z, A-Z), digits and `_`, and begins with a letter or `_`"
    usable = _NAME.fullmatch(near) and text.isascii()
    raise _bad(tree, "a name", context, note, *([f"write `{near}`"] if usable else []), rule)


def inside(scalar: Scalar, start: int, stop: int) -> Span:
    """The span of characters `start` to `stop` of a scalar's text, or of the whole scalar where escapes hide them."""
    written = scalar.span.text
    shift = 0 if written == scalar.text else 1
    if written[shift : len(written) - shift] != scalar.text:
        return scalar.span
    return Span(scalar.span.source, scalar.span.start + shift + start, scalar.span.start + shift + stop)


def _text(tree: Tree, expected: str, context: tuple[Label, ...], note: str) -> str:
    if not isinstance(tree, Scalar):
        raise _bad(tree, expected, context, note)
    if not tree.text:
        raise fault("bad-scalar", f"{expected} is missing here", Label(tree.span, f"{expected} was expected"), *context,
                    note=note or ())
    return tree.text


def _bad(tree: Tree, expected: str, context: tuple[Label, ...], note: str, *helps: str) -> Fault:
    shown = f"`{short(tree.text)}`" if isinstance(tree, Scalar) else kind(tree)
    return fault("bad-scalar", f"{shown} is not {expected}", Label(tree.span, f"{expected} was expected"), *context,
                 note=note or (), help=helps)


def short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _number_hint(text: str, whole: bool) -> list[str]:
    """How to write the number that was probably meant."""
    tight = re.sub(r"(?<=[0-9])[_ ,'](?=[0-9]{3}(?![0-9]))", "", text)
    if re.fullmatch(r"[+-]?\.?(inf|nan|infinity)", text, re.IGNORECASE):
        return ["numbers in a spec are finite"]
    if re.fullmatch(r"[+-]?0[xob][0-9a-f_]+", text, re.IGNORECASE):
        return _based(text)
    if tight != text and (_INT if whole else _FLOAT).fullmatch(tight):
        return [f"write `{tight}`, without separators"]
    bare = re.sub(r"^([+-]?)0+(?=[0-9])", r"\1", text)
    if bare != text and (_INT if whole else _FLOAT).fullmatch(bare):
        return [f"write `{bare}`; a leading zero could mean an octal number"]
    if not whole and re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text):
        return [f"write `{text.replace(',', '.')}`, with a decimal point"]
    return [_whole_hint(float(text))] if whole and _FLOAT.fullmatch(text) else []


def _whole_hint(value: float) -> str:
    if math.isfinite(value) and value.is_integer():
        return f"write `{int(value)}`" if abs(value) < 2**53 else "write all the digits"
    return "it is a fraction; write a whole number" if math.isfinite(value) else f"the largest integer is {MAX_INT}"


def _based(text: str) -> list[str]:
    try:
        return [f"write `{int(text, 0)}`; numbers are decimal"] if len(text) <= 20 else ["numbers are decimal"]
    except ValueError:
        return ["numbers are decimal"]
