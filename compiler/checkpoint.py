"""The `checkpoint: tensors:` section: how our parameters are made from the tensors of a foreign weight file.

`path: name` renames; `{from: name, as: pattern}` rearranges, as einops writes it. `{i}` stands for any copy's number. A
list in a path, `layers.{i}.attention.[query, key, value].weight`, unpacks one tensor: the first axis of the pattern's
result is the list. Parameters that the section does not name have our own names. `ignore:` lists foreign tensors that the
model does not need, such as a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from .ir.dimension import Dim
from .ir.evaluate import evaluate
from .ir.graph import Graph
from .ir.parameters import state_shapes
from .lang.diagnostic import Diagnostics, Sink, diagnostic, fault, suggest
from .lang.expression import parse_expression
from .lang.source import Span
from .lang.tree import Mapping as TreeMapping
from .lang.tree import Scalar, Sequence
from .ops.base import OpFault
from .ops.patterns import parse_pattern, regroup
from .weight_names import fold, match_weights

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
KEYS = ("from", "as")


@dataclass(frozen=True)
class Rule:
    """One line of the section."""

    key: Scalar
    paths: tuple[str, ...]                       # ours, with {i}
    foreign: str
    pattern: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def match(self, path: str) -> tuple[int, str] | None:
        """Which of the rule's paths this is, and the foreign name with its numbers filled in."""
        for part, ours in enumerate(self.paths):
            found = re.fullmatch(_numbered(ours), path)
            if found:
                numbers = found.groupdict()
                return part, re.sub(r"\{(\w+)\}", lambda m, n=numbers: str(n.get(m[1], m[0])), self.foreign)  # type: ignore[misc]
        return None


def _numbered(path: str) -> str:
    """A regular expression for a path where `{i}` is any number."""
    seen: set[str] = set()

    def number(found: re.Match[str]) -> str:
        name = found[1]
        text = f"(?P={name})" if name in seen else rf"(?P<{name}>\d+)"
        seen.add(name)
        return text
    return re.sub(r"\\\{([a-z]\w*)\\\}", number, re.escape(path))


@dataclass(frozen=True)
class Source:
    """Where one parameter comes from: a foreign tensor of shape `shape`, rearranged, then element `part`."""

    name: str
    shape: Shape
    apply: Callable[[np.ndarray], np.ndarray] = field(default=lambda x: x, compare=False)
    start: int | None = 0                        # where the parameter lies among the tensor's numbers, when they are not moved


def check_checkpoint(graph: Graph, tree: TreeMapping | None, sink: Sink) -> None:
    """Every pattern gives the shape of its parameters; a rule for none is a warning, since a variant may have removed them."""
    rules = read_rules(tree, graph.sizes, sink)
    read_ignored(tree, sink)
    if rules and not sink.errors:
        sources(rules, state_shapes(graph), sink, idle="warning")


def read_rules(tree: TreeMapping | None, sizes: Mapping[str, Any], sink: Sink) -> list[Rule]:
    """The rules of a `checkpoint:` section; patterns may name the spec's `sizes`."""
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


def read_ignored(tree: TreeMapping | None, sink: Sink) -> list[str]:
    """The foreign names, with {i}, that `ignore:` lists."""
    listed = tree.get("ignore") if tree else None
    if listed is None:
        return []
    if not isinstance(listed, Sequence) or not all(isinstance(x, Scalar) for x in listed):
        sink.add(fault("bad-checkpoint", "`ignore:` is a list of foreign names", listed.span).diagnostic)
        return []
    return [x.text for x in listed if isinstance(x, Scalar)]


def _rule(key: Scalar, value: Any, sizes: Mapping[str, Any]) -> Rule:
    found = re.fullmatch(r"(.*)\[([^\]]+)\](.*)", key.text)
    paths = tuple(f"{found[1]}{n.strip()}{found[3]}" for n in found[2].split(",")) if found else (key.text,)
    if isinstance(value, Scalar):
        if found:
            raise fault("bad-checkpoint", "several parameters come from one tensor, so a pattern must say how", value.span,
                        help='write `{from: NAME, as: "(s o) i -> s o i"}`')
        return Rule(key, paths, value.text)
    if not isinstance(value, TreeMapping) or not isinstance(value.get("from"), Scalar):
        raise fault("bad-checkpoint", "a tensor is a foreign name, or `{from: NAME, as: PATTERN}`", value.span)
    texts = {e.key.text: e.value for e in value}
    axes = {}
    for name, given in texts.items():
        if name not in KEYS:
            if not isinstance(given, Scalar):
                raise fault("bad-checkpoint", f"`{name}` is the size of an axis", given.span)
            axes[name] = _number(given, sizes)
    pattern = texts.get("as")
    if pattern is not None and not isinstance(pattern, Scalar):
        raise fault("bad-checkpoint", "`as` is an axis pattern", pattern.span)
    if pattern is not None:
        try:
            parse_pattern(pattern.text)
        except OpFault as wrong:
            raise fault("bad-checkpoint", wrong.headline, pattern.span, help=wrong.help or ()) from None
    source = texts["from"]
    assert isinstance(source, Scalar)
    return Rule(key, paths, source.text, pattern.text if pattern else None, axes)


def _number(given: Scalar, sizes: Mapping[str, Any]) -> int:
    def find(name: str, span: Span) -> Any:
        if name not in sizes:
            raise fault("unknown-name", f"no size is called `{name}`", span, help=suggest(name, sizes, "sizes"))
        return sizes[name]
    found = evaluate(parse_expression(given.text, given.span), find)
    if isinstance(found, bool) or not isinstance(found, int):
        raise fault("bad-checkpoint", "the size of an axis is a whole number", given.span)
    return found


def sources(rules: list[Rule], shapes: Mapping[str, Shape], sink: Sink, idle: Literal["error", "warning"] = "error") -> dict[str, Source]:
    """Our path -> where it comes from. `idle` is how bad a rule is that matches no parameter."""
    used: set[tuple[int, int]] = set()
    out: dict[str, Source] = {}
    for path, shape in shapes.items():
        for k, rule in enumerate(rules):
            hit = rule.match(path)
            if hit:
                used.add((k, hit[0]))
                with sink.catch():
                    out[path] = _source(rule, *hit, shape)
                break
        else:
            out[path] = Source(path, shape)
    folded = sorted({re.sub(r"(?<=\.)\d+(?=\.)", "{i}", p) for p in shapes})
    for k, rule in enumerate(rules):
        for part, path in enumerate(rule.paths):
            if (k, part) not in used:
                sink.add(diagnostic("bad-checkpoint", f"no parameter is called `{path}`", rule.key.span,
                                    help=suggest(path, folded, "parameters"), severity=idle))
    return out


def _source(rule: Rule, part: int, foreign: str, shape: Shape) -> Source:
    if rule.pattern is None:
        return Source(foreign, shape)
    packed = len(rule.paths) > 1
    whole = (len(rule.paths), *shape) if packed else shape
    left, _, right = rule.pattern.partition("->")
    try:
        back = regroup(parse_pattern(f"{right}->{left}"), tuple(map(Dim.const, whole)), {n: Dim.const(s) for n, s in rule.sizes.items()})
    except OpFault as wrong:
        said = wrong.headline.replace(f"{right}->{left}", rule.pattern)
        raise fault("bad-checkpoint", f"the pattern does not give the shape {list(whole)} of `{rule.key.text}`: {said}",
                    rule.key.span, help=wrong.help or ()) from None
    split = [d.value or 0 for d in back.permuted]
    groups, at = [], 0
    for n in back.merge:
        groups.append(split[at:at + n])
        at += n
    order = [back.order.index(k) for k in range(len(back.order))]

    def apply(x: np.ndarray) -> np.ndarray:
        moved = x.reshape(split).transpose(order).reshape(whole)
        return moved[part] if packed else moved
    still = order == sorted(order)
    return Source(foreign, tuple(map(prod, groups)), apply, part * prod(shape) if still else None)


@dataclass(frozen=True)
class Needed:
    """A weight file without the tensors that the spec ignores."""

    file: Any
    ignored: tuple[str, ...]

    @property
    def path(self) -> Any:
        return self.file.path

    def names(self) -> list[str]:
        return [n for n in self.file.names() if not any(re.fullmatch(_numbered(i), n) for i in self.ignored)]

    def shape(self, name: str) -> Shape:
        return tuple(self.file.shape(name))


@dataclass
class Loader:
    """Reads our parameters from an open weight file, one at a time; a packed tensor is read once while it is in use."""

    file: Any
    sources: Mapping[str, Source]
    shapes: Mapping[str, Shape]                  # of our parameters
    last: tuple[str, np.ndarray] | None = None

    def __call__(self, path: str, whole: bool = True) -> Any:
        """The array; a large one may be left in the file, as `Deferred`, where the `whole` is not needed."""
        source = self.sources[path]
        if not whole and source.start is not None:
            found = self.file.deferred(source.name, source.start, self.shapes[path])
            if found is not None:
                return found
        if self.last is None or self.last[0] != source.name:
            self.last = None
            self.last = (source.name, self.file.read(source.name))
        import numpy as np
        return np.ascontiguousarray(source.apply(self.last[1]))


def match(file: Any, rules: list[Rule], ignored: list[str], shapes: Mapping[str, Shape], sink: Sink) -> Loader:
    """A loader for a weight file that fits: our own names without a mapping, else through the rules.

    Raises Diagnostics (`checkpoint-mismatch`) that lists every missing, unexpected and mis-shaped tensor.
    """
    own = set(shapes) <= set(file.names())
    found = {p: Source(p, s) for p, s in shapes.items()} if own else sources(rules, shapes, sink)
    sink.check()
    match_weights({s.name: s.shape for s in found.values()}, Needed(file, () if own else tuple(ignored)))
    _check_floats(file, dict.fromkeys(s.name for s in found.values()))
    return Loader(file, found, shapes)


def _check_floats(file: Any, names: Iterable[str]) -> None:
    """Integers are not silently taken for the numbers that they stand for in a quantised file."""
    other = [(name, file.dtype(name)) for name in names if "float" not in file.dtype(name)]
    if other:
        lines = [f"`{name}` is {dtype}" for name, dtype in fold(other)]
        raise Diagnostics([diagnostic("bad-weights", f"`{file.path}` holds {len(other)} of the parameters as other numbers than floats",
                                      note=lines[:8], help="save them as floats; a quantised file has to be dequantised first")])

