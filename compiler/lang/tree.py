"""The tree: YAML as written, with spans and without any typing of scalars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .source import Span


@dataclass(frozen=True)
class Scalar:
    """One scalar: its text after YAML unescaping; `quoted` when it stood in quotes or a block scalar."""

    text: str
    span: Span
    quoted: bool = False


@dataclass(frozen=True)
class Sequence:
    items: tuple[Tree, ...]
    span: Span
    flow: bool = False

    def __iter__(self) -> Iterator[Tree]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Entry:
    key: Scalar
    value: Tree


@dataclass(frozen=True)
class Mapping:
    """A mapping in document order; the parser has refused duplicate and non-scalar keys and resolved `<<`."""

    entries: tuple[Entry, ...]
    span: Span
    flow: bool = False

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: str) -> bool:
        return any(e.key.text == key for e in self.entries)

    def entry(self, key: str) -> Entry | None:
        return next((e for e in self.entries if e.key.text == key), None)

    def get(self, key: str) -> Tree | None:
        found = self.entry(key)
        return found.value if found else None

    def keys(self) -> list[str]:
        return [e.key.text for e in self.entries]


Tree = Scalar | Sequence | Mapping


def kind(tree: Tree) -> str:
    """What a tree is, in words for an error message."""
    return {Scalar: "a value", Sequence: "a list", Mapping: "a mapping"}[type(tree)]


def plain(tree: Tree) -> object:
    """The tree as dicts, lists and strings (no scalar is typed)."""
    if isinstance(tree, Scalar):
        return tree.text
    if isinstance(tree, Sequence):
        return [plain(item) for item in tree]
    return {e.key.text: plain(e.value) for e in tree}


def scalars(tree: Tree | None) -> Iterator[Scalar]:
    """Every scalar value of a tree, at any depth, in order."""
    if isinstance(tree, Scalar):
        yield tree
    for inner in (e.value for e in tree) if isinstance(tree, Mapping) else tree if isinstance(tree, Sequence) else ():
        yield from scalars(inner)


def chosen_blocks(tree: Mapping, checkpoint: Mapping | None) -> set[str]:
    """Names of a file's blocks that a choice of its `checkpoint: config:` names, and of those that these name."""
    blocks = tree.get("blocks")
    todo: list[Tree | None] = [checkpoint.get("config") if checkpoint else None]
    found: set[str] = set()
    while todo and isinstance(blocks, Mapping):
        new = {s.text for s in scalars(todo.pop()) if s.text in blocks} - found
        found |= new
        todo += [blocks.get(name) for name in new]
    return found
