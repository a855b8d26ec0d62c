"""Break long lines of Python source at commas and operators inside brackets."""

from __future__ import annotations

import re
import textwrap

WIDTH = 100
OPEN, CLOSE = "([{", ")]}"
_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|.', re.S)
_NUMBER = re.compile(r"-?[0-9][0-9.e+-]*")
_ASSIGNED = re.compile(r"\s*(?:return |[\w., ()\[\]\"]+ = )")
_JOINTS = re.compile(r" (?=else )| (?:if|[<>]=?|[!=]=|[-+*/&|@]) ")
_OPERATOR = re.compile(r" (?:[-+*/&|@]|//|if|else|for|or|and|in) ")


def fold(line: str, width: int = WIDTH) -> list[str]:
    """The line, or several that mean the same and are at most `width` wide where a break is possible.

    A trailing comment `  # ...` goes on the line before code that fits without it, else behind the last line.
    """
    if len(line) <= width:
        return [line]
    code, comment = split_comment(line)
    pad = code[: len(code) - len(code.lstrip())]
    if comment and len(code) <= width:
        return [*_comment(pad, comment, width), code]
    lines = _code(code, pad, width)
    if comment and len(lines[-1]) + len(comment) + 4 <= width:
        return [*lines[:-1], f"{lines[-1]}  # {comment}"]
    return [*(_comment(pad, comment, width) if comment else []), *lines]


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
    assigned = _ASSIGNED.match(code)
    if assigned and (pieces := _top_level(code[assigned.end():])):
        value, deeper = code[assigned.end():], f"{pad}    "
        if len(deeper + value) <= width:
            pieces = [value]
        return [f"{assigned[0]}(", *(line for piece in pieces for line in fold(deeper + piece, width)), f"{pad})"]
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
    elif all(_NUMBER.fullmatch(part.strip()) for part in parts if part.strip()):
        lines = textwrap.wrap(inner, width, initial_indent=deeper, subsequent_indent=deeper)
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


def _top_level(value: str) -> list[str]:
    """The value cut before an outermost `else`; empty where no operator stands outside its brackets."""
    found = [m for m in _JOINTS.finditer(value) if _depth(value[:m.start()]) == 0]
    cut = next((m.start() for m in found if m[0] == " "), None)
    return [value[:cut], value[cut + 1:]] if cut is not None else [value] if found else []


def _depth(text: str) -> int:
    tokens = _TOKENS.findall(text)
    return sum((t in OPEN) - (t in CLOSE) for t in tokens)


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
