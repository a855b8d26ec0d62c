"""The `checkpoint: tensors:` section: how our parameters are made from the tensors of a foreign weight file.

`path: name` renames; `{from: name, as: pattern}` rearranges, as einops writes it; `[name, name]` are names of one tensor, tied in
files of some makers; `{first: [name, name]}` takes the first that a file has. `{i}` stands for any copy's number. A list in a
path, `layers.{i}.attention.[query, key, value].weight`, unpacks one tensor: the first axis of the pattern's result is the list,
or, where the parts differ in size, the pattern sums them: `(q + k + v) i -> q i, k i, v i`.
Parameters that the section does not name have our own names. `ignore:` lists foreign tensors that the model does not need, such
as a head, and `prefix:` what foreign names may start with, such as `model.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from ..ir.dimension import Dim
from ..ir.evaluate import evaluate
from ..ir.graph import Graph
from ..ir.parameters import first_shapes, state_shapes
from ..lang.diagnostic import Sink, diagnostic, fault, suggest
from ..lang.expression import parse_expression
from ..lang.source import Span
from ..lang.tree import Mapping as TreeMapping
from ..lang.tree import Scalar, Sequence
from ..ops.base import OpFault
from ..ops.patterns import parse_pattern, regroup
from . import parts as checkpoint_parts

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
KEYS = ("from", "first", "as")


@dataclass(frozen=True)
class Rule:
    """One line of the section."""

    key: Scalar
    paths: tuple[str, ...]                       # ours, with {i}
    foreign: tuple[str, ...]                     # names of one tensor, of which a file has at least one
    pattern: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    first: bool = False                          # the first name that a file has is meant; the others may be another tensor

    def match(self, path: str) -> tuple[int, tuple[str, ...], tuple[str, ...]] | None:
        """Which of the rule's paths this is, and the foreign names and all paths of the rule with their numbers filled in."""
        for part, ours in enumerate(self.paths):
            found = numbered(ours).fullmatch(path)
            if found:
                numbers = found.groupdict()
                filled = [re.sub(r"\{(\w+)\}", lambda m: numbers.get(m[1], m[0]), n) for n in (*self.foreign, *self.paths)]   # noqa: B023
                return part, tuple(filled[:len(self.foreign)]), tuple(filled[len(self.foreign):])
        return None


@cache
def numbered(path: str) -> re.Pattern[str]:
    """A regular expression for a path where `{i}` is any number and `*` one part between dots."""
    seen: set[str] = set()
    plain = re.escape(path).replace(r"\*", "[^.]+")

    def number(found: re.Match[str]) -> str:
        name = found[1]
        text = f"(?P={name})" if name in seen else rf"(?P<{name}>\d+)"
        seen.add(name)
        return text
    return re.compile(re.sub(r"\\\{([a-z]\w*)\\\}", number, plain))


@dataclass(frozen=True)
class Source:
    """Where one parameter comes from: a foreign tensor of shape `shape`, rearranged, then one of its parts.

    The tensor has one of `names`; those that a file has are equal. `part` says which of the `parts` that the rearranged tensor
    is a list of, `order` how its axes of sizes `split` are permuted. Parts of several sizes lie one after the other along an axis
    of `split` instead, which is `cut`: the axis, the first of the part and the end.
    """

    names: tuple[str, ...]
    shape: Shape
    rule: Rule | None = None
    split: Shape = ()
    order: tuple[int, ...] = ()
    part: int = 0
    cut: tuple[int, int, int] | None = None

    @property
    def parts(self) -> int:
        return len(self.rule.paths) if self.rule else 1

    @property
    def start(self) -> int | None:
        """Where the parameter lies among the tensor's numbers; None when they are moved."""
        if self.order != tuple(sorted(self.order)):
            return None
        if self.cut:
            axis, first, _ = self.cut
            return first * prod(self.split[axis + 1:]) if prod(self.split[:axis]) == 1 else None
        return self.part * (prod(self.shape) // self.parts)

    def apply(self, x: np.ndarray, ours: Shape) -> np.ndarray:
        """The parameter, of shape `ours`, out of the foreign tensor `x`."""
        if self.cut:
            axis, first, end = self.cut
            return x.reshape(self.split)[(slice(None),) * axis + (slice(first, end),)].transpose(self.order).reshape(ours)
        moved = x.reshape(self.split).transpose(self.order) if self.order else x
        return moved.reshape(self.parts, *ours)[self.part]

    def back(self, parts: np.ndarray) -> np.ndarray:
        """The foreign tensor out of all parameters that it holds, [parts, ...]."""
        return self._unmoved(parts, self.split).reshape(self.shape) if self.order else parts.reshape(self.shape)

    def joined(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        """The foreign tensor out of the parameters that it is `cut` into, in their order."""
        import numpy as np
        assert self.cut is not None
        axis = self.cut[0]
        rest = prod(self.split) // self.split[axis]
        pieces = [self._unmoved(p, (*self.split[:axis], p.size // rest, *self.split[axis + 1:])) for p in parts]
        return np.concatenate(pieces, axis).reshape(self.shape)

    def _unmoved(self, x: np.ndarray, split: Shape) -> np.ndarray:
        return x.reshape([split[k] for k in self.order]).transpose([self.order.index(k) for k in range(len(self.order))])


@dataclass(frozen=True)
class Foreign:
    """What the section says of weight files made elsewhere."""

    rules: tuple[Rule, ...] = ()
    ignored: tuple[str, ...] = ()                # foreign names, with {i} for a number and * for one dotted part
    prefixes: tuple[str, ...] = ()               # that names in a file may start with

    def spellings(self, name: str) -> tuple[str, ...]:
        return (name, *(prefix + name for prefix in self.prefixes))

    def ignores(self, name: str) -> bool:
        plain = (name, *(name.removeprefix(p) for p in self.prefixes))
        return any(numbered(i).fullmatch(n) for i in self.ignored for n in plain)


def check_checkpoint(graph: Graph, tree: TreeMapping | None, sink: Sink) -> None:
    """Every pattern gives the shape of its parameters; a rule for none is a warning, since a variant may have removed them."""
    rules = read_foreign(tree, graph.sizes, sink).rules
    if rules and not sink.errors:
        single = any(re.search(r"(?<![^.])\d+(?![^.])", path) for rule in rules for path in rule.paths)       # a rule for one copy
        sources(rules, state_shapes(graph) if single else first_shapes(graph), sink, idle="warning")


def read_foreign(tree: TreeMapping | None, sizes: Mapping[str, Any], sink: Sink) -> Foreign:
    """`tensors:`, `ignore:` and `prefix:` of a `checkpoint:` section; patterns may name the spec's `sizes`."""
    return Foreign(tuple(read_rules(tree, sizes, sink)), _names(tree, "ignore", sink), _names(tree, "prefix", sink))


def read_rules(tree: TreeMapping | None, sizes: Mapping[str, Any], sink: Sink) -> list[Rule]:
    """The rules of `tensors:`."""
    tensors = tree.get("tensors") if tree else None
    if tensors is None:
        return []
    if not isinstance(tensors, TreeMapping):
        sink.add(fault("bad-checkpoint", "`tensors:` maps our paths to foreign names", tensors.span).diagnostic)
        return []
    rules = []
    for entry in tensors:
        with sink.catch():
            rules.append(_rule(entry.key, entry.value, sizes))
    return rules


def _names(tree: TreeMapping | None, key: str, sink: Sink) -> tuple[str, ...]:
    """The text or list of texts under `key`."""
    listed = tree.get(key) if tree else None
    if listed is None:
        return ()
    found = _texts(listed)
    if found is None:
        sink.add(fault("bad-checkpoint", f"`{key}:` is a foreign name or a list of them", listed.span).diagnostic)
    return found or ()


def _texts(tree: Any) -> tuple[str, ...] | None:
    items = [tree] if isinstance(tree, Scalar) else list(tree) if isinstance(tree, Sequence) else []
    texts = tuple(x.text for x in items if isinstance(x, Scalar))
    return texts if items and len(texts) == len(items) and all(texts) and len(set(texts)) == len(texts) else None


def _rule(key: Scalar, value: Any, sizes: Mapping[str, Any]) -> Rule:
    found = re.fullmatch(r"(.*)\[([^\]]+)\](.*)", key.text)
    paths = tuple(f"{found[1]}{n.strip()}{found[3]}" for n in found[2].split(",")) if found else (key.text,)
    if isinstance(value, TreeMapping):
        first = "first" in value
        if first and "from" in value:
            raise fault("bad-checkpoint", "a tensor is taken `from:` names or is the `first:` of them, not both", value.span)
        names = _foreign(value.get("first" if first else "from"), value.span)
        return Rule(key, paths, names, _pattern(value.get("as"), len(paths)), _sizes(value, sizes), first)
    if found:
        raise fault("bad-checkpoint", "several parameters come from one tensor, so a pattern must say how", value.span,
                    help='write `{from: NAME, as: "(s o) i -> s o i"}`')
    return Rule(key, paths, _foreign(value, value.span))


def _foreign(value: Any, span: Span) -> tuple[str, ...]:
    names = _texts(value)
    if names is None:
        raise fault("bad-checkpoint", "a tensor is a foreign name, a list of names that it may have, or `{from: NAME, as: PATTERN}`",
                    value.span if value is not None else span)
    return names


def _sizes(value: TreeMapping, sizes: Mapping[str, Any]) -> dict[str, int]:
    axes = {}
    for entry in value:
        if entry.key.text not in KEYS:
            if not isinstance(entry.value, Scalar):
                raise fault("bad-checkpoint", f"`{entry.key.text}` is the size of an axis", entry.value.span)
            axes[entry.key.text] = _number(entry.value, sizes)
    return axes


def _pattern(given: Any, parameters: int) -> str | None:
    if given is None:
        return None
    if not isinstance(given, Scalar):
        raise fault("bad-checkpoint", "`as` is an axis pattern", given.span)
    try:
        parts = checkpoint_parts.patterns(given.text)
        if not parts:
            parse_pattern(given.text)
    except OpFault as wrong:
        raise fault("bad-checkpoint", wrong.headline, given.span, help=wrong.help or ()) from None
    if parts and len(parts) != parameters:
        raise fault("bad-checkpoint", f"the pattern has {len(parts)} parts, and the key {parameters} parameters", given.span,
                    help="the key lists them in the order of the sum: `layers.{i}.attention.[query, key, value].weight`")
    return given.text


def _number(given: Scalar, sizes: Mapping[str, Any]) -> int:
    def find(name: str, span: Span) -> Any:
        if name not in sizes:
            raise fault("unknown-name", f"no size is called `{name}`", span, help=suggest(name, sizes, "sizes"))
        return sizes[name]
    found = evaluate(parse_expression(given.text, given.span), find)
    if isinstance(found, bool) or not isinstance(found, int):
        raise fault("bad-checkpoint", "the size of an axis is a whole number", given.span)
    return found


def sources(rules: Iterable[Rule], shapes: Mapping[str, Shape], sink: Sink,
            idle: Literal["error", "warning"] = "error") -> dict[str, Source]:
    """Our path -> where it comes from. `idle` is how bad a rule is that matches no parameter."""
    rules, used = list(rules), set[tuple[int, int]]()
    out: dict[str, Source] = {}
    for path, shape in shapes.items():
        for k, rule in enumerate(rules):
            hit = rule.match(path)
            if hit:
                used.add((k, hit[0]))
                with sink.catch():
                    out[path] = _source(rule, *hit, shapes, path)
                break
        else:
            out[path] = Source((path,), shape)
    free = [p for p in shapes if out.get(p, Source((), ())).rule is None] or shapes
    folded = sorted({re.sub(r"(?<=\.)\d+(?=\.)", "{i}", p) for p in free})
    what = "parameters" if free is shapes else "parameters that no rule names"
    for k, rule in enumerate(rules):
        for part, path in enumerate(rule.paths):
            if (k, part) not in used:
                sink.add(diagnostic("bad-checkpoint", f"no parameter is called `{path}`", rule.key.span,
                                    help=suggest(path, folded, what), severity=idle))
    return out


def _source(rule: Rule, part: int, names: tuple[str, ...], paths: tuple[str, ...], shapes: Mapping[str, Shape], path: str) -> Source:
    shape = shapes[path]
    if rule.pattern is None:
        return Source(names, shape, rule)
    if "+" in rule.pattern:
        return _cut(rule, part, names, paths, shapes)
    whole = (len(rule.paths), *shape) if len(rule.paths) > 1 else shape
    left, _, right = rule.pattern.partition("->")
    try:
        back = regroup(parse_pattern(f"{right}->{left}"), tuple(map(Dim.const, whole)), {n: Dim.const(s) for n, s in rule.sizes.items()})
    except OpFault as wrong:
        said = wrong.headline.replace(f"{right}->{left}", rule.pattern)
        raise fault("bad-checkpoint", f"the pattern does not give the shape {list(whole)} of `{rule.key.text}`: {said}",
                    rule.key.span, help=wrong.help or ()) from None
    order = tuple(back.order.index(k) for k in range(len(back.order)))
    return Source(names, tuple(d.value or 0 for d in back.shape), rule, tuple(d.value or 0 for d in back.permuted), order, part)


def _cut(rule: Rule, part: int, names: tuple[str, ...], paths: tuple[str, ...], shapes: Mapping[str, Shape]) -> Source:
    """One of several parameters that differ in size."""
    assert rule.pattern is not None
    lost = next((p for p in paths if p not in shapes), None)
    if lost is not None:
        raise fault("bad-checkpoint", f"no parameter is called `{lost}`, which gives a part of the sum its size", rule.key.span)
    try:
        made = checkpoint_parts.cut(rule.pattern, [shapes[p] for p in paths], rule.sizes)
    except OpFault as wrong:
        given = ", ".join(str(list(shapes[p])) for p in paths)
        headline = f"the pattern `{rule.pattern}` does not give the shapes {given} of `{rule.key.text}`: {wrong.headline}"
        raise fault("bad-checkpoint", headline, rule.key.span, help=wrong.help or ()) from None
    return Source(names, made.shape, rule, made.split, made.order, part, (made.axis, made.ends[part], made.ends[part + 1]))
