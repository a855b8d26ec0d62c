"""How the number and the order of copies changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.graph import Branch, Repeat
from ..report import ranges
from .align import Alignment
from .place import At, copy

Tell = Callable[..., None]


@dataclass(frozen=True)
class Stack:
    """How the number and order of copies changed."""

    told: Tell
    old: Repeat | Branch
    new: Repeat | Branch
    at: At
    found: Alignment

    def places(self) -> None:
        """Copies in another place, and parameters that they share."""
        if self.found.moved:
            self.place("block.moved", self.found.moved)
        if self.found.shifted:
            self.place("block.shifted", self.found.shifted)
        self.shares()

    def tell(self, hashes: list[list[str]], gone: frozenset[int] = frozenset(), come: frozenset[int] = frozenset()) -> None:
        """Copies that one side alone has, but those that were found elsewhere: `gone` of the old stack, `come` of the new one."""
        tell, before, after = self.told, len(self.old.schedule), len(self.new.schedule)
        removed = tuple(i for i in self.found.removed if i not in gone)
        added = tuple(i for i in self.found.added if i not in come)
        grown, shrunk = copy(self.at.head, added), copy(self.at.base, removed)
        if isinstance(self.new, Branch):
            if before != after:
                tell("moe.experts-changed" if self.new.route else f"stack.count-{'in' if after > before else 'de'}creased",
                     grown if after > before else shrunk, before, after)
            return
        ends = all(i == j for i, j in self.found.pairs) and (gone, come) == (frozenset(), frozenset())
        if added:
            said: tuple[Any, Any] = (None, list(added)) if before == after else (before, after)
            tell("stack.count-increased" if ends and not removed else "block.added", grown, *said, _like(hashes, self.found, added))
        if removed:
            said = (list(removed), None) if before == after else (before, after)
            tell("stack.count-decreased" if ends and not added else "block.removed", shrunk, *said)

    def place(self, rule: str, pairs: Sequence[tuple[int, int]]) -> None:
        old, new = [i for i, _ in pairs], [j for _, j in pairs]
        said = f"copy {old[0]} is {new[0]}" if len(pairs) == 1 else f"copies {ranges(tuple(old))} are {ranges(tuple(new))}"
        self.told(rule, copy(self.at.head, tuple(new)), old, new, f"{said} now")

    def shares(self) -> None:
        if len(self.old.schedule) == len(self.new.schedule) and self.old.share != self.new.share:
            more = len(self.new.owners) < len(self.old.owners)
            self.told("weights.shared" if more else "weights.unshared", self.at.head, list(self.old.share), list(self.new.share))
        elif (len(self.old.owners) == len(self.old.schedule)) != (len(self.new.owners) == len(self.new.schedule)):
            self.told("weights.shared" if len(self.new.owners) < len(self.new.schedule) else "weights.unshared", self.at.head)
        changed = {p: (list(self.old.each.get(p, ())), list(self.new.each.get(p, ()))) for p in {*self.old.each, *self.new.each}
                   if self.old.each.get(p, ())[:len(self.new.schedule)] != self.new.each.get(p, ())[:len(self.old.schedule)]}
        for port, (x, y) in sorted(changed.items()):
            self.told("node.rewired", self.at.head, x, y, f"copies take other elements of `{port}`")


def _like(hashes: list[list[str]], found: Alignment, added: tuple[int, ...]) -> str:
    """Which copies the new ones are like; whether they could as well stand elsewhere."""
    (j, *rest), (ours, theirs) = added, hashes
    near = [k for k in (j - 1, j + 1) if not rest and 0 <= k < len(theirs) and theirs[k] == theirs[j]]
    if near and found.shifted:
        a, b = sorted((j, near[0]))
        return f"copies {a} and {b} are equal, so the new one may be either"
    return "" if all(theirs[k] in ours for k in added) else "no copy of the base is like them"


def by_body(old: Repeat | Branch, new: Repeat | Branch, found: Alignment) -> dict[tuple[int, int], list[tuple[int, int]]]:
    out: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in found.pairs:
        out.setdefault((old.schedule[i], new.schedule[j]), []).append((i, j))
    return out
