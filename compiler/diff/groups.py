"""Which changes of a spec belong together, and in which order they are told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..lang.tree import Entry, Scalar, Sequence, Tree, plain
from ..lang.tree import Mapping as TreeMapping
from .tree import Change, Group, Path, at, differences, graphs, put, same, words

WORDS = ("op", "block", "slot", "scan", "repeat", "branch", "share", "along")        # keys whose values are no nodes
NAMES = ("sizes", "graph", "inputs", "blocks", "settings", "slots", "outputs")       # whose keys are names that others mention


def grouped(a: TreeMapping, b: TreeMapping, declared: Mapping[Path, str]) -> list[Group]:
    """The changes from `a` to `b`: renames first, then what a copy is, then sizes, then how many copies there are."""
    renames, a = _renames(a, b, declared)
    found = [g for g in list(differences(a, b)) if g.changes]       # a group may be filled after it was given
    found = _joined(found, a, b)
    return [*renames, *sorted(found, key=lambda g: _when(g, b))]


def explicit(tree: TreeMapping) -> TreeMapping:
    """The tree with `outputs:` written where the last node is meant."""
    for path, graph in graphs(tree):
        scope = at(tree, path[:-1])
        if isinstance(scope, TreeMapping) and "outputs" not in scope and len(graph):
            last = graph.entries[-1].key
            tree = put(tree, Change((*path[:-1], "outputs"), None, last, None, Scalar("outputs", last.span)))
    return tree


# renames


def _renames(a: TreeMapping, b: TreeMapping, declared: Mapping[Path, str]) -> tuple[list[Group], TreeMapping]:
    """Nodes that have another name in `b`, one group each, and `a` with the new names."""
    out = []
    for path, theirs in graphs(b):
        ours = at(a, path)
        if not isinstance(ours, TreeMapping):
            continue
        left, right = ([e.key.text for e in x if e.key.text not in y] for x, y in ((ours, theirs), (theirs, ours)))
        for new in right:
            old = declared.get((*path, new))
            how = "declared" if old in left else "hash"
            if old not in left:
                like = [k for k in left if same(ours.get(k), theirs.get(new))]
                twins = [k for k in right if same(theirs.get(k), theirs.get(new))]
                old = like[0] if len(like) == len(twins) == 1 else None
            if old is not None:
                left.remove(old)
                renamed = _renamed(a, b, path, old, new)
                changes = [c for g in list(differences(a, renamed)) for c in g.changes]
                out.append(Group(changes, (old, new), how))
                a = renamed
    return out, a


def _renamed(a: TreeMapping, b: TreeMapping, path: Path, old: str, new: str) -> TreeMapping:
    """`a` with the node renamed, and what mentions it where `b` does so too."""
    scope, target = at(a, path[:-1]), at(b, path[:-1])
    word = re.compile(rf"(?<![\w.]){old}(?!\w)")

    def walk(x: Tree, y: Tree | None, key: str = "") -> Tree:
        if isinstance(x, Scalar):
            if isinstance(y, Scalar) and (x.text == y.text or word.sub(new, x.text) == y.text):
                return y if x.text != y.text else x
            port = key not in WORDS and (x.text == old or x.text.startswith(f"{old}."))
            return replace(x, text=new + x.text[len(old):]) if port else x
        if isinstance(x, Sequence):
            others = y.items if isinstance(y, Sequence) and len(y) == len(x) else [None] * len(x)
            return replace(x, items=tuple(walk(i, j, key) for i, j in zip(x.items, others, strict=True)))
        there = y if isinstance(y, TreeMapping) else TreeMapping((), x.span)
        return replace(x, entries=tuple(Entry(e.key, walk(e.value, there.get(e.key.text), e.key.text)) for e in x))

    assert isinstance(scope, TreeMapping) and isinstance(target, TreeMapping)
    graph, theirs = scope.get("graph"), target.get("graph")
    assert isinstance(graph, TreeMapping) and isinstance(theirs, TreeMapping)
    entry = theirs.entry(new)
    assert entry is not None
    moved = replace(graph, entries=tuple(Entry(entry.key if e.key.text == old else e.key, e.value) for e in graph))
    made = walk(replace(scope, entries=tuple(Entry(e.key, moved if e.key.text == "graph" else e.value) for e in scope)), target)
    if len(path) == 1:
        assert isinstance(made, TreeMapping)
        return made
    return put(a, Change(path[:-1], scope, made))


# what belongs together


def _joined(found: list[Group], a: TreeMapping, b: TreeMapping) -> list[Group]:
    """Groups joined where one introduces a name that the other mentions, where both say the same, and where both say what a stack is."""
    parent = list(range(len(found)))

    def root(k: int) -> int:
        while parent[k] != k:
            k = parent[k]
        return k

    for i, j in _links(found, a, b):
        parent[max(root(i), root(j))] = min(root(i), root(j))
    out: dict[int, Group] = {}
    for k, g in enumerate(found):
        out.setdefault(root(k), Group()).changes.extend(g.changes)
    return list(out.values())


def _links(found: list[Group], a: TreeMapping, b: TreeMapping) -> Iterator[tuple[int, int]]:
    alike: dict[object, int] = {}
    for i, g in enumerate(found):
        key = _saying(g)
        if key is not None and alike.setdefault(key, i) != i:
            yield alike[key], i
        for c in g.changes:
            for j, other in enumerate(found):
                if j != i and (_introduces(c, other) or _same_stack(c, other, a, b) or _instead(c, other)):
                    yield i, j


def _saying(g: Group) -> object:
    """What a group says, wherever it says it; None where it says nothing of its own."""
    if any(len(c.path) < 2 or c.path[0] == "sizes" or (c.before is None and c.after is None) for c in g.changes):
        return None
    texts = [(c.path[-1], c.before and repr(plain(c.before)), c.after and repr(plain(c.after))) for c in g.changes]
    return tuple(sorted(texts, key=repr)) if all(c.path[-1] not in ("in", "graph") for c in g.changes) else None


def _introduces(c: Change, other: Group) -> bool:
    """Whether a change adds or removes a name that another group mentions."""
    if (c.before is None) == (c.after is None) or len(c.path) < 2 or c.path[-2] not in NAMES:
        return False
    name, section = c.path[-1], c.path[-2]
    for o in other.changes:
        side = o.after if c.before is None else o.before
        mentioned = side is not None and name in words(side)
        if section in ("graph", "outputs", "inputs") and o.path[:len(c.path) - 2] != c.path[:-2]:
            continue
        if mentioned or (section in ("settings", "slots", "inputs") and o.path[-1] == name):
            return True
    return False


def _instead(c: Change, other: Group) -> bool:
    """Whether one key of a node goes and another comes."""
    return any(c.after is None and o.before is None and c.path[:-1] == o.path[:-1] and len(c.path) > 2 for o in other.changes)


def _same_stack(c: Change, other: Group, a: TreeMapping, b: TreeMapping) -> bool:
    """Whether one change is of a stack's pattern, and the other of its number of copies."""
    if c.path[-1] != "pattern":
        return False
    node = c.path[:-1]
    counts = {w for tree in (a, b) for control in ("repeat", "branch") if (t := at(tree, (*node, control))) is not None for w in words(t)}
    return any(o.path[:-1] == node and o.path[-1] in ("repeat", "branch") or (o.path[0] == "sizes" and o.path[-1] in counts)
               for o in other.changes)


def _when(g: Group, b: TreeMapping) -> int:
    """0: what a copy is; 1: sizes; 2: how many copies there are."""
    if all(c.path[-1] in ("repeat", "branch") or (c.path[0] == "sizes" and c.path[-1] in _counts(b)) for c in g.changes):
        return 2
    return int(all(c.path[0] == "sizes" for c in g.changes))


def _counts(tree: Tree) -> set[str]:
    """Names in the numbers of copies."""
    if isinstance(tree, Scalar):
        return set()
    if isinstance(tree, Sequence):
        return {w for t in tree for w in _counts(t)}
    own = {w for e in tree if e.key.text in ("repeat", "branch") for w in words(e.value)}
    return own | {w for e in tree for w in _counts(e.value)}
