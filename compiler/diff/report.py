"""The data of a comparison. Layouts (text, JSON, markdown, ...) read it; nothing here knows how it was found.

A `Report` says one thing a cause: an `Edit` is what a person changed in the spec, its `Consequence`s are what that does to the graph, its
`TensorChange`s what it does to a checkpoint, its `deltas` what it costs. Copies of repeats stay folded everywhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Literal

SCHEMA_VERSION = 1
Level = Literal["breaking", "warning", "info"]
LEVELS: tuple[Level, ...] = ("info", "warning", "breaking")
CONTRACTS = ("checkpoint", "numerics", "interface", "cache", "cost", "training")
FUNCTION = ("identical", "equal-up-to-names", "training-only", "changed")
CHECKPOINT = ("same", "renamed", "exact", "approx", "partial", "silent", "none")     # from harmless to worst
STATUSES = ("kept", "renamed", "reshaped", "new", "dropped")


@dataclass(frozen=True)
class Place:
    """Where something is written; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Where:
    """A path of the folded graph: `{i}` stands for a copy, `copies` are those meant, outermost first."""

    pattern: str
    copies: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        return prod(len(c) for c in self.copies)

    def meets(self, other: Where) -> bool:
        """Whether some of its copies are copies of the other, which has the same pattern or one below."""
        return all(set(a) & set(b) for a, b in zip(self.copies, other.copies, strict=False))

    def __str__(self) -> str:
        """`layers[0..11].attention`"""
        pieces = re.split(r"\.?\{i\}", self.pattern)
        made = "".join(text for pair in zip(pieces, (*(f"[{ranges(c)}]" for c in self.copies), ""), strict=True) for text in pair)
        return made or "the model"

    def paths(self) -> Iterator[str]:
        """Every concrete path: `layers.0.attention`, ..."""
        pieces = self.pattern.split("{i}")
        for index in product(*self.copies):
            yield "".join(text for pair in zip(pieces, (*map(str, index), ""), strict=True) for text in pair)


def ranges(numbers: tuple[int, ...]) -> str:
    """`0..11`, `1..11:2` or `0, 3, 4`."""
    if len(numbers) > 2:
        step = numbers[1] - numbers[0]
        if all(b - a == step for a, b in zip(numbers, numbers[1:], strict=False)):
            return f"{numbers[0]}..{numbers[-1]}" + (f":{step}" if step != 1 else "")
    return ",".join(map(str, numbers))


@dataclass(frozen=True)
class Consequence:
    """One folded change of the graph. `rule` is an id of `rules.py`; values are typed (numbers, words, lists, None)."""

    rule: str
    where: Where
    before: Any = None
    after: Any = None
    note: str = ""                              # in words, where before and after do not say it


@dataclass(frozen=True)
class TensorChange:
    """What becomes of one tensor of the checkpoint, its copies folded. Shapes are None on the side that lacks it."""

    status: Literal["kept", "renamed", "reshaped", "new", "dropped"]
    base: Where | None
    head: Where | None
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None

    @property
    def count(self) -> int:
        there = self.head or self.base
        return there.count if there else 0

    def elements(self, side: Literal["base", "head"]) -> int:
        """Numbers in all its copies, on one side."""
        where, shape = (self.base, self.before) if side == "base" else (self.head, self.after)
        return where.count * prod(shape) if where is not None and shape is not None else 0

    def renames(self) -> Iterator[tuple[str, str]]:
        """(old, new) concrete paths, where both sides have it: the key map."""
        if self.base is not None and self.head is not None:
            yield from zip(self.base.paths(), self.head.paths(), strict=True)


@dataclass(frozen=True)
class Conversion:
    """How an old checkpoint is brought over: `exact` keeps the function, `approx` needs training, `reinit` starts tensors anew."""

    kind: Literal["exact", "approx", "reinit"]
    op: str                                     # a short name: `mean-heads`, `repeat-heads`, `pad-rows`, `zero-blocks`, ...
    text: str
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Edit:
    """One change of the spec and all that follows from it. `keys` are the spec paths that were edited together; `deltas` are the metrics
    (`parameters`, `flops`, `cache`, ...) that it adds, found by replay in the order of the report."""

    rule: str
    level: Level
    symbol: Literal["~", "+", "-", ">"]
    title: str
    before: Any
    after: Any
    where: tuple[Where, ...]
    keys: tuple[str, ...]
    base: Place | None
    head: Place | None
    contracts: tuple[str, ...]
    checkpoint: str
    consequences: tuple[Consequence, ...]
    tensors: tuple[TensorChange, ...]
    deltas: Mapping[str, int]
    conversion: Conversion | None = None
    evidence: str = "path"                      # how the two sides were matched: path, declared, hash, similarity
    notes: tuple[str, ...] = ()
    accepted: str = ""                          # why it is fine, where a file says so

    @property
    def id(self) -> str:
        """Stable over line numbers and copies: a hash of the rule, the keys and the values."""
        text = "|".join((self.rule, ",".join(sorted(self.keys)), repr(self.before), repr(self.after)))
        return "c" + hashlib.sha256(text.encode()).hexdigest()[:11]


@dataclass(frozen=True)
class Metric:
    """One cost on both sides; None where it cannot be had (a model that cannot be run step by step has no cache)."""

    name: str
    unit: str
    before: int | None
    after: int | None
    note: str = ""

    @property
    def delta(self) -> int | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def percent(self) -> float | None:
        return None if self.delta is None or not self.before else 100 * self.delta / self.before


@dataclass(frozen=True)
class Contract:
    """One change of the interface or of the cache, in words."""

    rule: str
    name: str
    before: str | None
    after: str | None
    level: Level


@dataclass(frozen=True)
class Verdict:
    """`silent` are ids of edits after which a strict load succeeds and the function differs."""

    function: str
    checkpoint: str
    silent: tuple[str, ...]
    interface: tuple[Contract, ...]
    cache: tuple[Contract, ...]


@dataclass(frozen=True)
class Outline:
    """A node of a folded tree. Parameters that an op makes stand with the op. Every distinct body of a repeat is a child of it, named after
    its copies, which `where` holds. `reads` are its ports and what they are given, `outputs` those of its body and what they are;
    `parameters` are those of one copy of it."""

    where: Where
    name: str
    what: str                                   # its op or block; `x12 layer` of a repeat
    shape: str = ""
    parameters: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Outline, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_body(self) -> bool:
        """Whether it is the body of some copies of a repeat."""
        return self.where.pattern.endswith("{i}")


@dataclass(frozen=True)
class Side:
    """One of the two specs, or of a lock file (which has no `outline`): `label` as the user named it. `outputs` are as an outline's;
    `files` are what it is written in, by their names, the spec itself first."""

    label: str
    name: str
    structure: str
    identity: str
    parameters: int
    tensors: int
    outline: tuple[Outline, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Report:
    """A whole comparison. `base` or `head` is None where a spec was added or removed; `diagnostics` say what was cut short."""

    base: Side | None
    head: Side | None
    verdict: Verdict
    edits: tuple[Edit, ...]
    tensors: tuple[TensorChange, ...]
    metrics: tuple[Metric, ...]
    sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()
    truncated: bool = False
    hidden: int = 0                                                # edits that the user asked not to see
    layers: Mapping[str, Any] = field(default_factory=dict)        # of other layers, such as `onnx`, each in its own form
    dtype: str = ""                                                # that costs are told in
    uses: tuple[str, ...] = ()                                     # of a range of commits: other files that differ and are part of it

    @property
    def changed(self) -> bool:
        """Whether anything is to be told."""
        return bool(self.edits) or self.hidden > 0 or self.base is None or self.head is None

    @property
    def level(self) -> Level | None:
        """The worst level of the edits."""
        return max((e.level for e in self.edits), key=LEVELS.index, default=None)

    def count(self, status: str) -> int:
        return sum(t.count for t in self.tensors if t.status == status)

    def elements(self, status: str, side: Literal["base", "head"]) -> int:
        return sum(t.elements(side) for t in self.tensors if t.status == status)
