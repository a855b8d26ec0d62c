"""Where a comparison stands: a path on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.graph import join
from ..report import Where


@dataclass(frozen=True)
class At:
    """A place on both sides. `tensors` are the copies that own parameters on both; None where nothing is matched for a checkpoint."""

    base: Where
    head: Where
    tensors: tuple[Where, Where] | None

    def under(self, old: str, new: str) -> At:
        return At(below(self.base, old), below(self.head, new),
                  (below(self.tensors[0], old), below(self.tensors[1], new)) if self.tensors else None)

    def single(self, side: int) -> At:
        """The first copy of the stack that one side is."""
        first = [[copy(w, (0,)) if k == side else w for k, w in enumerate(both)] for both in ((self.base, self.head), self.tensors or ())]
        return At(first[0][0], first[0][1], (first[1][0], first[1][1]) if self.tensors else None)

    def copies(self, pairs: Sequence[tuple[int, int]], owning: Sequence[tuple[int, int]]) -> At:
        """The copies of a repeat under its path."""
        old, new = tuple(i for i, _ in pairs), tuple(j for _, j in pairs)
        own = list(owning)
        both = None
        if self.tensors is not None:
            both = copy(self.tensors[0], tuple(i for i, _ in own)), copy(self.tensors[1], tuple(j for _, j in own))
        return At(copy(self.base, old), copy(self.head, new), both if own else None)


def below(where: Where, name: str) -> Where:
    return Where(join(where.pattern, name), where.copies)


def copy(where: Where, copies: tuple[int, ...]) -> Where:
    return Where(join(where.pattern, "{i}"), (*where.copies, copies))
