"""The spec: what one file says, decoded from its tree. Names are not yet resolved and nothing is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .expression import Expression
from .source import Source, Span
from .tree import Mapping as TreeMapping
from .tree import Scalar, Tree

TARGETS = ("op", "block", "slot")
CONTROLS = ("repeat", "scan", "branch")
CONTROL_KEYS = ("along", "each", "carry", "share", "pattern", "backward", "route")
RENAMED = "renamed_from"                  # the name that a node had before, for who compares specs
RESERVED = frozenset({*TARGETS, *CONTROLS, *CONTROL_KEYS, "init", "trainable", RENAMED})


@dataclass(frozen=True)
class DimText:
    """One written dimension: an expression, or `*name` for any number of axes; `limit` from `S <= 1024`."""

    span: Span
    expression: Expression | None = None
    star: str | None = None
    limit: Expression | None = None


@dataclass(frozen=True)
class TypeText:
    """`optional float[B, S, width]` as written."""

    dtype: str
    dims: tuple[DimText, ...]
    span: Span
    optional: bool = False


@dataclass(frozen=True)
class InputSpec:
    name: Scalar
    type: TypeText


@dataclass(frozen=True)
class SettingSpec:
    """One setting of a block: `kind` is int, float, bool, text, list or choice (of `choices`); `default` None means required or solved."""

    name: Scalar
    kind: str
    span: Span
    choices: tuple[str, ...] = ()
    default: Scalar | None = None
    optional: bool = False
    expression: Expression | None = None


@dataclass(frozen=True)
class SlotSpec:
    """A slot's signature: named inputs (`in` when unnamed) and the type of its output."""

    name: Scalar
    inputs: tuple[tuple[str, TypeText], ...]
    output: TypeText | None
    span: Span
    optional: bool = False


@dataclass(frozen=True)
class Items:
    """A written list; its items may be nodes."""

    items: tuple[FieldValue, ...]
    span: Span


@dataclass(frozen=True)
class Field:
    """One key of a node whose meaning its target decides: a port, an attribute, a setting or a slot fill."""

    key: Scalar
    value: FieldValue


@dataclass(frozen=True)
class Each:
    """`x: value`, or `x: {from: value, at: EXPR}`: what copy i takes."""

    port: Scalar
    value: FieldValue
    at: Scalar | None = None


@dataclass(frozen=True, eq=False)
class NodeSpec:
    """One node, or the fill of a slot, as written. `kind` and `target` say what one copy is (kind is `name` for a
    fill that is only a name); `control` says how it is copied; `pattern` are the copies' variants and their times."""

    name: str
    kind: str
    target: Scalar
    fields: Mapping[str, Field]
    span: Span
    control: str | None = None
    count: Scalar | None = None
    along: Scalar | None = None
    each: tuple[Each, ...] = ()
    carry: tuple[tuple[Scalar, FieldValue], ...] = ()
    share: Scalar | None = None
    backward: Scalar | None = None
    route: Mapping[str, Scalar] | None = None
    pattern: tuple[tuple[Scalar | None, NodeSpec], ...] = ()


FieldValue = Scalar | NodeSpec | Items | TreeMapping


@dataclass(frozen=True, eq=False)
class BlockSpec:
    """A block, or the graph of a whole file (then it has no settings and no slots)."""

    name: Scalar
    about: str
    settings: Mapping[str, SettingSpec]
    slots: Mapping[str, SlotSpec]
    inputs: Mapping[str, InputSpec]
    nodes: Mapping[str, NodeSpec]
    outputs: tuple[tuple[Scalar, Scalar], ...]
    span: Span
    unit: Unit


@dataclass(eq=False)
class Unit:
    """The name space of one file: its sizes and the blocks it defines or uses."""

    source: Source
    sizes: dict[str, Tree] = field(default_factory=dict)
    size_keys: dict[str, Scalar] = field(default_factory=dict)
    blocks: dict[str, BlockSpec] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    values: dict[str, object] = field(default_factory=dict)      # of the sizes that were evaluated, by elaboration


@dataclass(frozen=True, eq=False)
class Spec:
    """A whole model spec."""

    name: str
    about: str
    unit: Unit
    main: BlockSpec
    source: Source
    tree: TreeMapping
    checkpoint: TreeMapping | None = None
    expect: TreeMapping | None = None
    budget: TreeMapping | None = None
