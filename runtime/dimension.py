"""Dimensions of an artifact's inputs: `3`, `S`, `16*H`, `S + 1`, `16*H + 1`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

_FORM = re.compile(r"(?:(\d+) ?\* ?)?([A-Za-z]\w*)(?: ?([+-]) ?(\d+))?")


@dataclass(frozen=True)
class Dimension:
    """`scale * name + offset`, or the number `offset` where there is no name."""

    offset: int
    scale: int = 0
    name: str | None = None

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """The axis length for these sizes, None when its name has none."""
        if self.name is None:
            return self.offset
        return self.scale * sizes[self.name] + self.offset if self.name in sizes else None

    def solve(self, length: int) -> int | None:
        """The size of `name` that makes an axis of this length, None when there is none."""
        value, rest = divmod(length - self.offset, self.scale)
        return value if rest == 0 and value >= 0 else None

    def __str__(self) -> str:
        if self.name is None:
            return str(self.offset)
        scaled = self.name if self.scale == 1 else f"{self.scale}*{self.name}"
        return f"{scaled} {'+' if self.offset > 0 else '-'} {abs(self.offset)}" if self.offset else scaled


@lru_cache(4096)
def parse(entry: int | str) -> Dimension:
    """Read a shape entry. Raises ValueError when it has another form."""
    if isinstance(entry, int):
        return Dimension(entry)
    if re.fullmatch(r"\d+", entry):
        return Dimension(int(entry))
    found = _FORM.fullmatch(entry)
    if not found or found[1] and int(found[1]) == 0:
        raise ValueError(f"`{entry}` is not of the form 3, S, 16*H, S + 1 or 16*H + 1")
    offset = int((found[3] or "+") + (found[4] or "0"))
    return Dimension(offset, int(found[1] or 1), found[2])
