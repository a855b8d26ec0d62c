"""The canonical tree of a spec: one mapping that needs no other file, without what is for people; and the changes between two of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..lang.source import Span
from ..lang.spec import TARGETS
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree, plain
from ..pipeline import Compiled

Path = tuple[str, ...]
PEOPLE = ("name", "about", "notes", "nnspec", "stability", "use", "renamed_from")
ASIDE = ("checkpoint", "expect", "budget")              # sections beside the architecture
WORD = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True)
class Change:
    """The value at one path on both sides; None where it is not there. `key` is the key of the side that has it."""

    path: Path
    before: Tree | None
    after: Tree | None
    key_before: Scalar | None = None
    key_after: Scalar | None = None

    def words(self) -> frozenset[str]:
        """Names that either side mentions."""
        return frozenset(w for t in (self.before, self.after) if t is not None for w in words(t))


@dataclass
class Group:
    """Changes that belong together."""

    changes: list[Change] = field(default_factory=list)
    rename: tuple[str, str] | None = None
    evidence: str = "path"
    pure: bool = True                           # whether it is the rename and nothing else

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(".".join(c.path) for c in self.changes)


def canonical(compiled: Compiled, other: Compiled | None = None) -> Mapping | None:
    """One mapping with the blocks of used files written in, those that `other` needs too; None where names of two files would meet."""
    tree, blocks = compiled.spec.tree, _blocks(compiled)
    theirs = _blocks(other) if other is not None else {}
    if blocks is None or theirs is None:
        return None
    kept = _reachable(tree, blocks) | (_reachable(other.spec.tree, theirs) & set(blocks) if other is not None else set())
    entries = [e for e in tree if e.key.text not in (*PEOPLE, *ASIDE, "blocks") and not e.key.text.startswith("x-")]
    if kept:
        key = Scalar("blocks", tree.span)
        entries.append(Entry(key, Mapping(tuple(blocks[n] for n in sorted(kept)), tree.span)))
    made = _clean(Mapping(tuple(entries), tree.span))
    assert isinstance(made, Mapping)
    return made


def _blocks(compiled: Compiled) -> dict[str, Entry] | None:
    """The blocks of a spec and of the files that it uses; None where one name means two."""
    blocks = {e.key.text: e for e in _entries(compiled.spec.tree.get("blocks"))}
    for used in compiled.files:
        if _entries(used.tree.get("sizes")):
            return None
        for e in _entries(used.tree.get("blocks")):
            if e.key.text in blocks and plain(blocks[e.key.text].value) != plain(e.value):
                return None
            blocks.setdefault(e.key.text, e)
    return blocks


def aside(compiled: Compiled) -> dict[str, object]:
    """The sections that are no architecture, plain."""
    tree = compiled.spec.tree
    return {name: plain(found) for name in ASIDE if (found := tree.get(name)) is not None}


def _entries(tree: Tree | None) -> tuple[Entry, ...]:
    return tree.entries if isinstance(tree, Mapping) else ()


def _reachable(tree: Mapping, blocks: dict[str, Entry]) -> set[str]:
    """The blocks that the graph names, and those that they name."""
    found: set[str] = set()
    todo: list[Tree] = [e.value for e in tree if e.key.text == "graph"]
    while todo:
        for word in _texts(todo.pop()):
            if word in blocks and word not in found:
                found.add(word)
                todo.append(blocks[word].value)
    return found


def _texts(tree: Tree) -> Iterator[str]:
    """The text of every value."""
    if isinstance(tree, Scalar):
        yield tree.text.strip()
    else:
        for child in tree if isinstance(tree, Sequence) else [e.value for e in tree]:
            yield from _texts(child)


def words(tree: Tree) -> Iterator[str]:
    """Every name that a value mentions."""
    for text in _texts(tree):
        yield from WORD.findall(text)


def _clean(tree: Tree) -> Tree:
    """Without keys that are for people or other tools."""
    if isinstance(tree, Scalar):
        return tree
    if isinstance(tree, Sequence):
        return Sequence(tuple(map(_clean, tree.items)), tree.span, tree.flow)
    kept = (e for e in tree if e.key.text not in ("about", "notes", "renamed_from") and not e.key.text.startswith("x-"))
    return Mapping(tuple(Entry(e.key, _clean(e.value)) for e in kept), tree.span, tree.flow)


def declared(compiled: Compiled) -> dict[Path, str]:
    """The path of each node with a `renamed_from:`, and its old name."""
    found: dict[Path, str] = {}
    trees = [((), compiled.spec.tree), *(((), used.tree) for used in compiled.files)]
    for _, tree in trees:
        for path, graph in graphs(tree):
            for e in graph:
                old = e.value.get("renamed_from") if isinstance(e.value, Mapping) else None
                if isinstance(old, Scalar):
                    found[(*path, e.key.text)] = old.text
    return found


def graphs(tree: Mapping) -> Iterator[tuple[Path, Mapping]]:
    """The `graph:` of the model and of each block."""
    if isinstance(found := tree.get("graph"), Mapping):
        yield ("graph",), found
    for e in _entries(tree.get("blocks")):
        if isinstance(e.value, Mapping) and isinstance(found := e.value.get("graph"), Mapping):
            yield ("blocks", e.key.text, "graph"), found


def at(tree: Tree | None, path: Path) -> Tree | None:
    """The value at a path."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def put(tree: Mapping, change: Change, forward: bool = True) -> Mapping:
    """The tree after a change. New keys go last; parents that are missing are made."""
    value, key = (change.after, change.key_after) if forward else (change.before, change.key_before)
    return _put(tree, change.path, value, key)


def _put(tree: Mapping, path: Path, value: Tree | None, key: Scalar | None) -> Mapping:
    step, rest = path[0], path[1:]
    old = tree.entry(step)
    if rest:
        below = old.value if old is not None and isinstance(old.value, Mapping) else Mapping((), tree.span)
        made: Tree | None = _put(below, rest, value, key)
    else:
        made = value
    if old is None:
        return tree if made is None else Mapping((*tree.entries, Entry(key or Scalar(step, made.span), made)), tree.span, tree.flow)
    entries = (Entry(e.key, made) if e is old and made is not None else e for e in tree if e is not old or made is not None)
    return Mapping(tuple(entries), tree.span, tree.flow)


def same(a: Tree | None, b: Tree | None) -> bool:
    """Whether two values are written the same, but for style and the order of keys."""
    return (a is None) == (b is None) and (a is None or b is None or plain(a) == plain(b))


def differences(a: Mapping, b: Mapping, path: Path = ()) -> Iterator[Group]:
    """What differs, in the order of `b`; what only `a` has stands where `a` has it. A node that becomes another keeps its own
    scalars together, and the fills of its slots apart."""
    swapped = _node(a) and _node(b) and any(not same(a.get(k), b.get(k)) for k in (*TARGETS, "scan"))
    own = Group()
    if swapped:
        yield own
    for key in _order(a, b):
        old, new = a.entry(key), b.entry(key)
        before, after = old.value if old is not None else None, new.value if new is not None else None
        if same(before, after):
            continue
        change = Change((*path, key), before, after, old.key if old is not None else None, new.key if new is not None else None)
        if isinstance(before, Mapping) and isinstance(after, Mapping) and _node(before) == _node(after):
            yield from differences(before, after, (*path, key))
        elif swapped:
            own.changes.append(change)
        else:
            yield Group([change])


def _node(tree: Mapping) -> bool:
    return any(k in tree for k in (*TARGETS, "scan"))


def _order(a: Mapping, b: Mapping) -> list[str]:
    """Keys of both: those of `b`, with each key that only `a` has behind its neighbour."""
    out = b.keys()
    last = -1
    for key in (e.key.text for e in a):
        if key in out:
            last = out.index(key)
        else:
            last += 1
            out.insert(last, key)
    return out


def span(tree: Tree | None, key: Scalar | None) -> Span | None:
    """Where a change is written, on one side."""
    return key.span if key is not None else tree.span if tree is not None else None
