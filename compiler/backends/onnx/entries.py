"""What names of the graph stand for while it is emitted, and where nodes go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...ir.dimension import Dim
from ...ir.graph import Region, TensorType, join
from .builder import Builder, Val


@dataclass(eq=False)
class Copies:
    """One output of every copy of a block: a list until something reads it as a tensor with a leading axis."""

    items: tuple[Entry, ...]
    whole: Val | None = None


Entry = Val | Copies | None          # None: an optional value that is absent
Entries = Mapping[str, Entry]


@dataclass(frozen=True)
class Place:
    """Where nodes go: the builder, their path, and the path of the copy that owns their parameters."""

    g: Builder
    path: str = ""
    owner: str = ""

    def inside(self, name: str) -> Place:
        return Place(self.g, join(self.path, name), join(self.owner, name))

    def copy(self, i: int, owner: int) -> Place:
        return Place(self.g, join(self.path, str(i)), join(self.owner, str(owner)))


Run = Callable[[Place, Region, Entries, frozenset[str]], dict[str, Entry]]      # emits a body: arguments and outputs by name


def tensor(g: Builder, entry: Entry) -> Val | None:
    """The value as one tensor; copies are stacked on a new leading axis, once."""
    if not isinstance(entry, Copies):
        return entry
    if entry.whole is None:
        rows = [g.op("Unsqueeze", tensor(g, item), g.ints(0)) for item in entry.items]
        entry.whole = g.op("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]
    return entry.whole


def present(g: Builder, entry: Entry) -> Val:
    """The value as one tensor, where it cannot be absent."""
    found = tensor(g, entry)
    assert found is not None
    return found


def element(at: Place, entry: Entry, i: int) -> Entry:
    """Element i of the leading axis."""
    if isinstance(entry, Copies):
        return entry.items[i]
    assert entry is not None
    g = at.g
    g.path = at.path
    return g.once(("element", entry.name, i), lambda: g.op("Gather", entry, g.const(np.array(i, np.int64)), axis=0))


def axis_of_size(type: TensorType, size: Dim) -> int | None:
    """The first axis of this size."""
    return next((k for k, d in enumerate(type.shape) if d == size), None)
