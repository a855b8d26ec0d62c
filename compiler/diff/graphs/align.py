"""Which copy of one stack is which of another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

CELLS = 1_000_000                # of the table that two stacks are compared in
NONE = (-1, 0, 0)


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
    """Equal copies that the common subsequence leaves, in order."""
    ours, theirs = {x for x, _ in anchors}, {y for _, y in anchors}
    places: dict[str, deque[int]] = {}
    for y, h in enumerate(b):
        if y not in theirs:
            places.setdefault(h, deque()).append(y)
    return [(x, places[h].popleft()) for x, h in enumerate(a) if x not in ours and places.get(h)]


def _common(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of the longest common subsequence; ties are broken by how many have the same number, then by the hashes, so that the way back
    finds the same pairs. Of stacks that are long and have little in common, the copies in place."""
    still = [k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x == y]
    if len(still) == (Counter(a) & Counter(b)).total():                 # no subsequence has more
        return [(k, k) for k in still]
    start = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    n, m = len(a) - start, len(b) - start
    width = abs(n - m) + 8
    while n * width <= CELLS:
        found = _banded(a[start:], b[start:], width)
        if n + m - 2 * len(found) <= width or width >= max(n, m):
            return [(k, k) for k in range(start)] + [(x + start, y + start) for x, y in found]
        width = min(4 * width, max(n, m))
    return [(k, k) for k in still]


def _banded(a: Sequence[str], b: Sequence[str], width: int) -> list[tuple[int, int]]:
    """The best common subsequence of which no copy is further than `width` from its place: each that leaves out at most so many copies of
    both is among those tried (Ukkonen 1985, "Algorithms for approximate string matching")."""
    rank = {h: k for k, h in enumerate(sorted({*a, *b}))}
    m, span = len(b), 2 * width + 1                                # cell c of row i is column i + c - width
    best = [[(0, 0, 0)] * (span + 1) for _ in range(len(a) + 1)]

    def taken(i: int, c: int) -> tuple[int, int, int]:
        n, same, weight = best[i + 1][c]
        return n + 1, same + (c == width), weight + rank[a[i]]

    for i in reversed(range(len(a))):
        row, below = best[i], best[i + 1]
        for c in reversed(range(max(width - i, 0), min(span, m - i + width))):
            found = max(below[c - 1] if c else NONE, row[c + 1])
            row[c] = max(found, taken(i, c)) if a[i] == b[i + c - width] else found
    out, i, j = [], 0, 0
    while i < len(a) and j < m:
        c = j - i + width
        if a[i] == b[j] and best[i][c] == taken(i, c):
            out.append((i, j))
            i, j = i + 1, j + 1
        elif c and best[i][c] == best[i + 1][c - 1]:
            i += 1
        else:
            j += 1
    return out
