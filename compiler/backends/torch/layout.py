"""Break long lines of Python source at commas and operators inside brackets."""

from __future__ import annotations

import re

WIDTH = 120
OPEN, CLOSE = "([{", ")]}"
_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|.', re.S)
_OPERATOR = re.compile(r" (?:[-+*/&|@]|//|if|else|for|or|and|in) ")


def fold(line: str, width: int = WIDTH) -> list[str]:
    """The line, or several that mean the same and are at most `width` wide where a break is possible.

    A trailing comment `  # ...` goes on a line before the code when both do not fit.
    """
    if len(line) <= width:
        return [line]
    code, comment = split_comment(line)
    pad = code[: len(code) - len(code.lstrip())]
    if comment:
        return [*_comment(pad, comment, width), *fold(code, width)]
    return _code(code, pad, width)


def split_comment(line: str) -> tuple[str, str]:
    """Code and comment of a line, the comment without `# `."""
    at = 0
    for token in _TOKENS.findall(line):
        if token == "#":
            return line[:at].rstrip(), line[at + 1:].strip()
        at += len(token)
    return line, ""


def _comment(pad: str, text: str, width: int) -> list[str]:
    lines, current = [], f"{pad}#"
    for word in text.split():
        if len(current) + 1 + len(word) > width and current != f"{pad}#":
            lines.append(current)
            current = f"{pad}#"
        current += f" {word}"
    return [*lines, current]


def _code(code: str, pad: str, width: int) -> list[str]:
    place = _brackets(code)
    if place is None:
        return _operators(code, pad, width)
    start, stop = place
    head, inner, tail = code[: start + 1], code[start + 1: stop], code[stop:]
    deeper = f"{pad}    "
    parts = split(inner, ",")
    if len(parts) == 1 and len(deeper + inner) > width and _brackets(inner) is None:
        lines = _at_operators(inner, deeper, width)
    elif len(deeper + inner) <= width and not inner.startswith("*"):
        lines = [deeper + inner]
    elif len(parts) == 1:
        lines = fold(deeper + inner, width)
    else:
        lines = [line for part in parts if part.strip() for line in fold(f"{deeper}{part.strip()},", width)]
    return [head, *lines, *fold(pad + tail, width)]


def _brackets(code: str) -> tuple[int, int] | None:
    """The last pair of outermost brackets that holds something."""
    depth, start, found, at = 0, 0, None, 0
    for token in _TOKENS.findall(code):
        if token in OPEN and depth == 0:
            start = at
        depth += (token in OPEN) - (token in CLOSE)
        if token in CLOSE and depth == 0 and at > start + 1:
            subscript = token == "]" and start and (code[start - 1].isalnum() or code[start - 1] in "_])")
            if found is None or not subscript or at - start > found[1] - found[0]:
                found = (start, at)
        at += len(token)
    return found


def split(text: str, separator: str) -> list[str]:
    """Pieces of `text` between separators that stand outside brackets and strings."""
    parts, depth, current = [], 0, ""
    for token in _TOKENS.findall(text):
        depth += (token in OPEN) - (token in CLOSE)
        if token == separator and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += token
    return [*parts, current]


def _operators(code: str, pad: str, width: int) -> list[str]:
    """`name = a + b` as `name = (`, one operand a line, `)`."""
    head, equals, value = code.partition(" = ")
    if not equals and code.strip().startswith("return "):
        head, equals, value = f"{pad}return", " ", code.strip()[7:]
    if not equals:
        return [code]
    return [f"{head}{equals}(", *_at_operators(value, f"{pad}    ", width), f"{pad})"]


def _at_operators(value: str, pad: str, width: int) -> list[str]:
    lines, start, current = [], 0, pad
    for match in [*_OPERATOR.finditer(value), None]:
        end = match.start() if match else len(value)
        piece = value[start:end]
        if len(current) + len(piece) > width and current != pad:
            lines.append(current)
            current, piece = pad, piece.lstrip()
        current += piece
        start = end
    return [*lines, current]
