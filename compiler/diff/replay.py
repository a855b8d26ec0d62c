"""`Compiled, Compiled -> steps`: the edits of a spec one after another, each compiled, so that what an edit does is what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from ..ir.graph import Graph, walk
from ..lang.diagnostic import Diagnostics, Sink
from ..lang.tree import Mapping as TreeMapping
from ..pipeline import Compiled, typed
from ..stages.check import check
from .graphs.function import same_function
from .graphs.matching import live
from .graphs.moves import without_moves
from .graphs.regions import Found, compare_graphs
from .groups import explicit, grouped
from .interface import contracts
from .report import Where
from .rules import RULES
from .tree import Change, Group, canonical, declared, put

Names = Mapping[str, Mapping[str, str]]
FEW = 16                 # edits of which every run is looked at
MOST = 64                # compilations of one comparison; more edits than that are told together


@dataclass(frozen=True)
class Step:
    """One edit: what was changed, the graphs before and after it, and what is different between them."""

    group: Group
    before: Graph
    after: Graph
    found: Found


def replay(base: Compiled, head: Compiled) -> tuple[list[Step], list[str]]:
    """The edits in order, and what could not be told apart, in words."""
    ours, theirs = canonical(base, head), canonical(head, base)
    names = renamed_nodes(head)
    if ours is None or theirs is None:
        whole = Group([], None)
        return [_step(whole, base.graph, head.graph, names)], ["two used files define the same names, so edits are told together"]
    ours, theirs = explicit(ours), explicit(theirs)
    work = _Replay(base, head, ours, names)
    groups = grouped(ours, theirs, declared(head))
    steps = work.run(groups)
    merged = _merged(steps)
    if merged is not None:
        steps = work.run(merged)
    notes = ["some edits do not compile without each other, and are told together"] * work.together
    return [s for s in steps if _effect(s)], notes


def renamed_nodes(head: Compiled) -> Names:
    """The declared renames by the name of the block, of the model under no name."""
    found: dict[str, dict[str, str]] = {}
    for path, old in declared(head).items():
        found.setdefault(path[1] if path[0] == "blocks" else "", {})[path[-1]] = old
    return found


def _effect(s: Step) -> bool:
    """Whether a step does anything but say the same in another way."""
    return any(f.rule != "node.respelled" for f in s.found.findings) or any(t.status != "kept" for t in s.found.tensors) \
        or bool(contracts(s.before, s.after)) or not same_function(s.before, s.after)


def _step(group: Group, before: Graph, after: Graph, names: Names) -> Step:
    old = {group.rename[1]: group.rename[0]} if group.rename else {}
    block = group.changes[0].path[1] if group.rename and group.changes[0].path[0] == "blocks" else ""
    found = compare_graphs(before, after, {**names, block: {**names.get(block, {}), **old}})
    return Step(group, before, after, without_moves(found, before, after))


class _Replay:
    def __init__(self, base: Compiled, head: Compiled, tree: TreeMapping, names: Names):
        self.base, self.head, self.tree, self.names = base, head, tree, names
        self.made: dict[frozenset[int], Graph | None] = {}       # by the changes that were applied
        self.kept: list[Change] = []                             # their ids stay theirs
        self.together = False

    def run(self, groups: list[Group]) -> list[Step]:
        """Each group as soon as it compiles; groups that do not compile alone are joined."""
        graph, done, steps, rest = self.base.graph, list[Change](), list[Step](), list(groups)
        while rest:
            for chosen in self.choices(rest):
                group = _all([rest[k] for k in chosen])
                last = len(chosen) == len(rest)
                after = self.head.graph if last else self.compiled([*done, *group.changes])
                if after is not None:
                    self.together |= len(chosen) > 1
                    steps.append(_step(group, graph, after, self.names))
                    graph, done, rest = after, [*done, *group.changes], [g for k, g in enumerate(rest) if k not in chosen]
                    break
        return steps

    def choices(self, rest: list[Group]) -> Iterator[tuple[int, ...]]:
        """What may be applied next, the best first: one group, two, all that are left."""
        n = len(rest)
        if len(self.made) < MOST:
            yield from ((k,) for k in range(n))
        if len(self.made) < MOST:
            yield from combinations(range(n), 2)
        yield tuple(range(n))

    def compiled(self, changes: list[Change]) -> Graph | None:
        """The graph of the base with these changes; None where that does not compile, or too much was compiled already."""
        key = frozenset(map(id, changes))
        if key not in self.made:
            if len(self.made) >= MOST:
                return None
            self.kept += changes
            self.made[key] = self.graph(changes)
        return self.made[key]

    def graph(self, changes: list[Change]) -> Graph | None:
        tree, sink = self.tree, Sink()
        try:
            for c in changes:
                tree = put(tree, c)
            check(tree, sink)
            sink.check()
            graph = typed(self.head.spec.source, tree, sink)[1]
        except Diagnostics:
            return None
        return None if sink.errors else graph


def _all(groups: list[Group]) -> Group:
    """Several groups as one."""
    if len(groups) == 1:
        return groups[0]
    names = [g for g in groups if g.rename]
    one = names[0] if len(names) == 1 else Group()
    return Group([c for g in groups for c in g.changes], one.rename, one.evidence, pure=False)


def _merged(steps: list[Step]) -> list[Group] | None:
    """The groups of steps, those joined that are one edit to a person: one thing removed and another of its kind added, or a bound
    that went with the table of positions. None where nothing is to join."""
    kinds = [_headlines(s) for s in steps]
    parent = list(range(len(steps)))
    for i, ours in enumerate(kinds):
        for j in range(i + 1, len(steps)):
            if _complete(ours, kinds[j]) and parent[j] == j:
                parent[j] = parent[i]
    for i, j in sorted({*_undone(steps), *_parted(steps)}):
        for k in range(i + 1, j + 1):
            parent = [parent[i] if p == parent[k] else p for p in parent]
    if parent == list(range(len(steps))):
        return None
    return [_all([s.group for k, s in enumerate(steps) if parent[k] == i]) for i in range(len(steps)) if parent[i] == i]


def _undone(steps: list[Step]) -> Iterator[tuple[int, int]]:
    """First and last of steps that do nothing together though each does, and of those of which one cuts off nodes that another uses again:
    on the way from one order of blocks to another."""
    if not 1 < len(steps) <= FEW:
        return
    same = [same_function(s.before, s.after) for s in steps]
    used = [_used(s.before) for s in steps] + [_used(steps[-1].after)]
    for i in range(len(steps)):
        for j in range(len(steps) - 1, i, -1):
            cut, back = used[i] - used[i + 1], used[j + 1] - used[j]
            if cut & back or not same[i] and not same[j] and same_function(steps[i].before, steps[j].after):
                yield i, j
                break


def _parted(steps: list[Step]) -> Iterator[tuple[int, int]]:
    """First and last of steps of which one drops tensors that another has anew: a block that moved, written under two keys."""
    if not 1 < len(steps) <= FEW or not all(any(t.status == kind for s in steps for t in s.found.tensors) for kind in ("new", "dropped")):
        return
    def step(where: Where | None, kind: str) -> int | None:
        return next((k for k, s in enumerate(steps) for t in s.found.tensors
                     if t.status == kind and where == (t.base if kind == "dropped" else t.head)), None)

    for t in compare_graphs(steps[0].before, steps[-1].after).tensors:
        if t.status == "renamed" and t.base is not None and t.head is not None and t.base.pattern != t.head.pattern:
            gone, come = step(t.base, "dropped"), step(t.head, "new")
            if gone is not None and come is not None and gone != come:
                yield min(gone, come), max(gone, come)


def _used(graph: Graph) -> set[str]:
    """The nodes that outputs depend on, by path."""
    return {path for path, region, node in walk(graph.root) if node.id in live(region)}


def _headlines(s: Step) -> frozenset[str]:
    return frozenset({f.rule for f in s.found.findings} | ({"bound"} if contracts(s.before, s.after) and not s.found.findings else set()))


def _complete(a: frozenset[str], b: frozenset[str]) -> bool:
    kinds = {r.rpartition(".")[0] for r in RULES if r.endswith(".type-changed")}
    for one, two in ((a, b), (b, a)):
        if any(f"{k}.added" in one and f"{k}.removed" in two for k in kinds):
            return True
        if one == {"bound"} and any(r.startswith("position.") for r in two):
            return True
    return False
