"""Source text and spans: every object of the compiler can point at the characters it came from."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Source:
    """One file of YAML: its name as the user would write it, and its text."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def line_starts(self) -> list[int]:
        return [0] + [i + 1 for i, c in enumerate(self.text) if c == "\n"]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character offset, both from 1."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of line `number` (from 1), without its line break."""
        start = self.line_starts[number - 1]
        stop = self.line_starts[number] if number < len(self.line_starts) else len(self.text)
        return self.text[start:stop].rstrip("\r\n")


@dataclass(frozen=True)
class Span:
    """Characters `start` to `stop` (exclusive) of a source."""

    source: Source
    start: int
    stop: int

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.position(self.start)[1]

    @property
    def place(self) -> str:
        """`gpt2.yaml:12`: the file's own name and the line, the same on every machine."""
        return f"{self.source.name.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.stop]

    def part(self, start: int, stop: int) -> Span:
        """A span inside this one, by offsets from its start."""
        return Span(self.source, self.start + start, min(self.start + stop, max(self.stop, self.start)))

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"
