"""Boxes and wires -> where they are drawn: layers from top to bottom, few crossings, straight main lines. The same input gives the same
picture. The layered method of Sugiyama, Tagawa and Toda (1981); places in a layer are a least-squares fit that keeps its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP, DROP, ROUTE = 22.0, 34.0, 14.0             # between boxes of a layer, between layers, and the width of a wire that passes a layer
SWEEPS = 12
REAL, MIXED, BENT = 1.0, 2.0, 10.0              # how much a wire pulls between two boxes, at its ends, and between its bends
FIXED, STIFF = 1e9, 1e4                         # how much a box of the longest way stays where it is, and a wire straight


@dataclass(frozen=True)
class Wire:
    """From a box to a later one, by their numbers; wires of one `kind` from one box share their way."""

    source: int
    target: int
    kind: str = ""


@dataclass
class Spot:
    """A box, or the bend of a wire that passes a layer; `x` is its middle."""

    width: float
    height: float
    rank: int
    x: float = 0.0
    spine: bool = False                         # on the longest way, which is drawn straight
    above: dict[int, float] = field(default_factory=dict)
    below: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawn:
    """`boxes` are left, top, width and height; `wires` are points in pairs: straight in each pair, and a curve from one to the next."""

    boxes: tuple[tuple[float, float, float, float], ...]
    wires: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


def layout(sizes: Sequence[tuple[float, float]], wires: Sequence[Wire], last: frozenset[int] = frozenset()) -> Drawn:
    """Places for boxes of these sizes. Every wire goes to a box of a higher number; those of `last` stand below all others."""
    depths = _depths(len(sizes), wires)
    ranks = _ranks(depths, wires, last)
    spots = [Spot(w, h, r) for (w, h), r in zip(sizes, ranks, strict=True)]
    spine = _spine(depths, wires)
    ways, runs = _ways(spots, wires, spine)
    layers = _ordered(spots)
    _place(spots, layers, runs)
    return _drawn(spots, layers, len(sizes), ways, spine)


def _depths(n: int, wires: Sequence[Wire]) -> list[int]:
    """How long the longest way to each box is."""
    depths = [0] * n
    for wire in sorted(wires, key=lambda w: w.target):
        depths[wire.target] = max(depths[wire.target], depths[wire.source] + 1)
    return depths


def _ranks(depths: Sequence[int], wires: Sequence[Wire], last: frozenset[int]) -> list[int]:
    """The layer of each box: its depth, but one that nothing leads to stands just above the first that reads it."""
    ranks = list(depths)
    fed = {w.target for w in wires}
    for k in range(len(ranks)):
        below = [ranks[w.target] for w in wires if w.source == k]
        if k not in fed and below:
            ranks[k] = min(below) - 1
    bottom = max((r for k, r in enumerate(ranks) if k not in last), default=-1) + 1
    return [bottom if k in last else r for k, r in enumerate(ranks)]


def _spine(depths: Sequence[int], wires: Sequence[Wire]) -> frozenset[tuple[int, int]]:
    """The wires of the longest way, which is drawn straight."""
    above: dict[int, list[int]] = {}
    for w in wires:
        above.setdefault(w.target, []).append(w.source)
    at = max(range(len(depths)), key=lambda k: (depths[k], -k), default=0)
    found = set()
    while at in above:
        near = max(above[at], key=lambda k: (depths[k], -k))
        found.add((near, at))
        at = near
    return frozenset(found)


def _ways(spots: list[Spot], wires: Sequence[Wire], spine: frozenset[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """The spots that each wire passes, its ends too, and runs of bends; bends are added to `spots`."""
    bends: dict[tuple[int, str, int], int] = {}
    runs: dict[tuple[int, str], list[int]] = {}
    ways = []
    real = len(spots)
    for wire in wires:
        way = [wire.source]
        for rank in range(spots[wire.source].rank + 1, spots[wire.target].rank):
            at = (wire.source, wire.kind, rank)
            if at not in bends:
                bends[at] = len(spots)
                spots.append(Spot(ROUTE, 0, rank))
                runs.setdefault(at[:2], []).append(bends[at])
            way.append(bends[at])
        way.append(wire.target)
        for a, b in pairwise(way):
            spots[a].below[b] = spots[b].above[a] = BENT if a >= real and b >= real else MIXED if a >= real or b >= real else REAL
        if (wire.source, wire.target) in spine:
            for k in way:
                spots[k].spine = True
        ways.append(way)
    return ways, list(runs.values())


# the order in each layer


def _ordered(spots: Sequence[Spot]) -> list[list[int]]:
    """The spots of each layer, from left to right; of all sweeps, the order with the fewest crossings."""
    layers: list[list[int]] = [[] for _ in range(max((s.rank for s in spots), default=-1) + 1)]
    for k, s in enumerate(spots):
        layers[s.rank].append(k)
    best, least = [list(x) for x in layers], _crossings(spots, layers)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        at = {k: i for layer in layers for i, k in enumerate(layer)}
        for layer in layers[1:] if down else layers[-2::-1]:
            layer.sort(key=lambda k: _middle(spots[k].above if down else spots[k].below, at, at[k]))      # noqa: B023  used at once
            at |= {k: i for i, k in enumerate(layer)}
        found = _crossings(spots, layers)
        if found < least:
            best, least = [list(x) for x in layers], found
    return best


def _middle(near: Mapping[int, float], at: Mapping[int, int], own: int) -> float:
    return sum(at[k] for k in near) / len(near) if near else own


def _crossings(spots: Sequence[Spot], layers: Sequence[Sequence[int]]) -> int:
    at = {k: i for layer in layers for i, k in enumerate(layer)}
    count = 0
    for layer in layers:
        lines = [(at[k], at[b]) for k in layer for b in spots[k].below]
        count += sum((a < c and b > d) or (a > c and b < d) for i, (a, b) in enumerate(lines) for c, d in lines[:i])
    return count


# places in a layer


def _place(spots: Sequence[Spot], layers: Sequence[Sequence[int]], runs: Sequence[Sequence[int]]) -> None:
    """Every spot as near to the middle of its neighbours as the order allows; then bends of a wire in one line, beside what it passes."""
    for layer in layers:
        _fit(spots, layer, [0.0] * len(layer), [FIXED if spots[k].spine else 1.0 for k in layer])
    straight: dict[int, float] = {}
    for sweep in range(2 * SWEEPS):
        if sweep >= SWEEPS:
            for run in runs:
                at = [spots[k].x for k in run]
                straight |= dict.fromkeys(run, max(at) if sum(at) > 0 else min(at))
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            pulled = [_pulled(spots, k, straight.get(k)) for k in layer]
            _fit(spots, layer, [w for w, _ in pulled], [p for _, p in pulled])


def _pulled(spots: Sequence[Spot], k: int, line: float | None) -> tuple[float, float]:
    """Where a spot is wanted, and how much."""
    if spots[k].spine:
        return 0.0, FIXED
    if line is not None:
        return line, STIFF
    near = [*spots[k].above.items(), *spots[k].below.items()]
    pull = sum(p for _, p in near)
    return (sum(p * spots[j].x for j, p in near) / pull, pull) if pull else (spots[k].x, 0.1)


def _fit(spots: Sequence[Spot], layer: Sequence[int], wanted: Sequence[float], pulls: Sequence[float]) -> None:
    """Least squares under the order: pooling of adjacent violators, of places less the least distances before them."""
    offsets = [0.0]
    for a, b in pairwise(layer):
        offsets.append(offsets[-1] + (spots[a].width + spots[b].width) / 2 + GAP)
    pools: list[tuple[float, float, int]] = []                  # sum of pulls x places, sum of pulls, how many
    for want, pull, offset in zip(wanted, pulls, offsets, strict=True):
        pools.append(((want - offset) * pull, pull, 1))
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
            total, weight, many = pools.pop()
            pools[-1] = (pools[-1][0] + total, pools[-1][1] + weight, pools[-1][2] + many)
    k = 0
    for total, pull, many in pools:
        for _ in range(many):
            spots[layer[k]].x = total / pull + offsets[k]
            k += 1


# what is drawn


def _drawn(spots: Sequence[Spot], layers: Sequence[Sequence[int]], real: int, ways: Sequence[Sequence[int]],
           spine: frozenset[tuple[int, int]]) -> Drawn:
    left = min((s.x - s.width / 2 for s in spots), default=0.0)
    tops, bottoms, y = [], [], 0.0
    for layer in layers:
        tops.append(y)
        bottoms.append(y + max(spots[k].height for k in layer))
        y = bottoms[-1] + DROP
    for s in spots:
        s.x -= left
    boxes = [(round(s.x - s.width / 2, 1), round((tops[s.rank] + bottoms[s.rank] - s.height) / 2, 1), round(s.width, 1), round(s.height, 1))
             for s in spots[:real]]
    ends = _ends(spots, real, ways, spine)
    lines = []
    for way in ways:
        a, b = way[0], way[-1]
        out, into = ends[a, way[1], True], ends[way[-2], b, False]
        points = [(out, boxes[a][1] + boxes[a][3]), (out, bottoms[spots[a].rank])]
        for k in way[1:-1]:
            points += [(spots[k].x, tops[spots[k].rank]), (spots[k].x, bottoms[spots[k].rank])]
        points += [(into, tops[spots[b].rank]), (into, boxes[b][1])]
        lines.append(tuple((round(px, 1), round(py, 1)) for px, py in points))
    width = max((s.x + s.width / 2 for s in spots), default=0.0)
    return Drawn(tuple(boxes), tuple(lines), round(width, 1), round(max(y - DROP, 0.0), 1))


def _ends(spots: Sequence[Spot], real: int, ways: Sequence[Sequence[int]],
          spine: frozenset[tuple[int, int]]) -> dict[tuple[int, int, bool], float]:
    """Where wires leave and enter boxes: apart from each other, in the order of where they come from and go; the spine in the middle."""
    found: dict[tuple[int, int, bool], float] = {}
    straight = {step for w in ways if (w[0], w[-1]) in spine for step in pairwise(w)}
    for k in range(real):
        for leaves in (True, False):
            mine = {(w[0], w[1]) if leaves else (w[-2], w[-1]) for w in ways if (w[0] if leaves else w[-1]) == k}
            order = sorted(mine, key=lambda e: (spots[e[1] if leaves else e[0]].x, e))
            middle = next((float(i) for i, e in enumerate(order) if e in straight), (len(order) - 1) / 2)
            room = min(24.0, (spots[k].width / 2 - 10) / max(middle, len(order) - 1 - middle, 1))
            for i, (a, b) in enumerate(order):
                found[a, b, leaves] = spots[k].x + (i - middle) * room
    return found

