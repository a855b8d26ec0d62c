"""`text -> Tree`: JSON (RFC 8259) with spans, for the configs of others. Scalars keep their text: `1e-05`, `true`, `null`."""

from __future__ import annotations

import re
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]

from .diagnostic import Fault, Label, fault
from .source import Source, Span
from .tree import Entry, Mapping, Scalar, Sequence, Tree

MAX_DEPTH = 100
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|true\b|false\b|null\b|NaN\b|-?Infinity\b")


def parse_json(source: Source, code: str) -> Tree:
    """The tree of a JSON text. Raises `Fault` with `code` at the first character that is not JSON."""
    reader = _Reader(source, code)
    tree = reader.value(0, 0)
    end = reader.space(reader.at)
    if end < len(source.text):
        raise reader.wrong(end, "the end of the file was expected")
    return tree


class _Reader:
    def __init__(self, source: Source, code: str):
        self.source, self.text, self.code, self.at = source, source.text, code, 0

    def wrong(self, at: int, said: str) -> Fault:
        return fault(self.code, f"`{self.source.name}` is not JSON: {said}", Label(Span(self.source, at, at + 1), "here"),
                     help="copy or download the file again")

    def space(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        assert found
        return found.end()

    def value(self, at: int, depth: int) -> Tree:
        """The value that begins at or after `at`; `self.at` is then where it ended."""
        at = self.space(at)
        first = self.text[at:at + 1]
        if depth > MAX_DEPTH:
            raise self.wrong(at, f"it is nested more than {MAX_DEPTH} levels deep")
        if first == '"':
            return self.string(at)
        if first and first in "[{":
            return self.collection(at, first == "{", depth)
        found = _WORD.match(self.text, at)
        if not found:
            raise self.wrong(at, "a value was expected")
        self.at = found.end()
        return Scalar(found[0], Span(self.source, at, self.at))

    def string(self, at: int) -> Scalar:
        try:
            text, self.at = scanstring(self.text, at + 1, True)
        except JSONDecodeError as error:
            raise self.wrong(error.pos, error.msg[:1].lower() + error.msg[1:].removesuffix(" at")) from None
        return Scalar(text, Span(self.source, at, self.at), True)

    def collection(self, start: int, mapping: bool, depth: int) -> Tree:
        close = "}" if mapping else "]"
        items: list[Tree] = []
        entries: dict[str, Entry] = {}
        at = self.space(start + 1)
        while self.text[at:at + 1] != close or items or entries:
            if mapping:
                self.entry(at, entries, depth)
            else:
                items.append(self.value(at, depth + 1))
            at = self.space(self.at)
            if self.text[at:at + 1] == close:
                break
            if self.text[at:at + 1] != ",":
                raise self.wrong(at, f"`,` or `{close}` was expected")
            at = self.space(at + 1)
        self.at = at + 1
        span = Span(self.source, start, self.at)
        return Mapping(tuple(entries.values()), span, True) if mapping else Sequence(tuple(items), span, True)

    def entry(self, at: int, entries: dict[str, Entry], depth: int) -> None:
        if self.text[at:at + 1] != '"':
            raise self.wrong(at, "a key in double quotes was expected")
        key = self.string(at)
        at = self.space(self.at)
        if self.text[at:at + 1] != ":":
            raise self.wrong(at, "`:` was expected")
        if key.text in entries:
            raise fault(self.code, f"`{self.source.name}` says `{key.text}` twice", key.span,
                        Label(entries[key.text].key.span, "first here"))
        entries[key.text] = Entry(key, self.value(at + 1, depth + 1))
