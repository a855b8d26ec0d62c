"""Which copy of one stack is which of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Alignment:
    """`pairs` are copies that stand for each other, in the order of the second stack; `moved` are those of them that are out of order."""

    pairs: tuple[tuple[int, int], ...]
    removed: tuple[int, ...]
    added: tuple[int, ...]
    moved: tuple[tuple[int, int], ...] = ()

    @property
    def shifted(self) -> tuple[tuple[int, int], ...]:
        return tuple(p for p in self.pairs if p[0] != p[1] and p not in self.moved)


def align(a: Sequence[str], b: Sequence[str]) -> Alignment:
    """The longest common subsequence of the copies' hashes, of several the one with most copies in place; what lies between is paired in
    order, and equal copies that are left have moved."""
    anchors = _common(a, b)
    moved = _moved(a, b, anchors)
    gone, come = {x for x, _ in moved}, {y for _, y in moved}
    pairs: list[tuple[int, int]] = [*anchors, *moved]
    left: list[int] = []
    right: list[int] = []
    i = j = 0
    for x, y in (*anchors, (len(a), len(b))):
        old, new = [k for k in range(i, x) if k not in gone], [k for k in range(j, y) if k not in come]
        n = min(len(old), len(new))
        pairs += zip(old[:n], new[:n], strict=True)
        left += old[n:]
        right += new[n:]
        i, j = x + 1, y + 1
    return Alignment(tuple(sorted(pairs, key=lambda p: p[1])), tuple(left), tuple(right), tuple(moved))


def _moved(a: Sequence[str], b: Sequence[str], anchors: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Equal copies that the common subsequence leaves."""
    left, right = set(range(len(a))) - {x for x, _ in anchors}, set(range(len(b))) - {y for _, y in anchors}
    found = []
    for x in sorted(left):
        y = min((y for y in right if b[y] == a[x]), default=None)
        if y is not None:
            found.append((x, y))
            right.discard(y)
    return found


def _common(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of the longest common subsequence; ties are broken by how many have the same number, then by the hashes, so that the way back
    finds the same pairs."""
    if list(a) == list(b)[:len(a)] or list(b) == list(a)[:len(b)]:
        return [(k, k) for k in range(min(len(a), len(b)))]
    rank = {h: k for k, h in enumerate(sorted({*a, *b}))}
    best = [[(0, 0, 0)] * (len(b) + 1) for _ in range(len(a) + 1)]

    def taken(i: int, j: int) -> tuple[int, int, int]:
        n, same, weight = best[i + 1][j + 1]
        return n + 1, same + (i == j), weight + rank[a[i]]

    for i in reversed(range(len(a))):
        row, below = best[i], best[i + 1]
        for j in reversed(range(len(b))):
            found = max(below[j], row[j + 1])
            row[j] = max(found, taken(i, j)) if a[i] == b[j] else found
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if a[i] == b[j] and best[i][j] == taken(i, j):
            out.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return out
