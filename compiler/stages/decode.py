"""`Tree -> Spec`: read the tree's shape into typed objects; every scalar keeps its span, nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from typing import TypeVar

from ..lang.diagnostic import Sink, fault, suggest
from ..lang.expression import parse_expression
from ..lang.source import Source, Span
from ..lang.spec import (
    CONTROL_KEYS,
    CONTROLS,
    RENAMED,
    TARGETS,
    BlockSpec,
    DimText,
    Each,
    Field,
    FieldValue,
    InputSpec,
    Items,
    NodeSpec,
    SettingSpec,
    SlotSpec,
    Spec,
    TypeText,
    Unit,
)
from ..lang.structure import DTYPES
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree

TYPE = re.compile(r"\s*(optional\s+)?([A-Za-z_0-9]+)\s*\[(.*)\]\s*\Z", re.S)
SETTING = re.compile(r"\s*(optional\s+)?(?:(int|float|bool|list|text)|one of\s+([^=]+?))\s*(?:=\s*(.+?)\s*)?\Z", re.S)
NAME = re.compile(r"(?!(?:i|in)\Z)[a-z][a-z0-9_]*\Z")
T = TypeVar("T")


def decode(source: Source, tree: Tree, library: Iterable[tuple[Source, Mapping, Iterable[Source]]], sink: Sink,
           uses: Iterable[Source] | None = None) -> Spec | None:
    """Decode a composed and checked model file and the files of blocks it uses; errors go to `sink`.

    Each file of the library comes with the sources that it uses itself, and after them; it sees their blocks and no
    others. The model sees the blocks of the files in `uses`, by default of all.
    """
    decoder = Decoder(sink)
    units: dict[Source, Unit] = {}
    for file, blocks, own in library:
        units[file] = decoder.unit(file, blocks, [units[s] for s in own if s in units])
    assert isinstance(tree, Mapping)
    unit = decoder.unit(source, tree, [units[s] for s in (units if uses is None else uses) if s in units])
    with sink.catch():
        main = decoder.main(unit, tree)
        return Spec(main.name.text, main.about, unit, main, source, tree, _mapping(tree, "checkpoint"), _mapping(tree, "expect"),
                    _mapping(tree, "budget"))
    return None


class Decoder:
    """Reads the parts of files; what is wrong goes to `sink`, and is missing from the result."""

    def __init__(self, sink: Sink):
        self.sink = sink

    def unit(self, source: Source, tree: Mapping, used: Iterable[Unit] = ()) -> Unit:
        """The sizes and blocks of one file, which sees the blocks that the used files define."""
        unit = Unit(source)
        for entry in self.entries(tree, "sizes"):
            unit.sizes[entry.key.text], unit.size_keys[entry.key.text] = entry.value, entry.key
        for name, block in ((n, u.blocks[n]) for u in used for n in sorted(u.own)):
            if name in unit.blocks:
                self.sink.add(fault("duplicate-name", f"two used files define a block `{name}`", block.name.span,
                                    unit.blocks[name].name.span, help="rename one of them, or use one of the files").diagnostic)
            unit.blocks[name] = block
        own = {}
        for entry in self.entries(tree, "blocks"):
            with self.sink.catch():
                if entry.key.text in unit.blocks:
                    raise fault("duplicate-name", f"block `{entry.key.text}` is defined here and in a used file", entry.key.span,
                                unit.blocks[entry.key.text].name.span, help="rename this one")
                own[entry.key.text] = self.block(entry.key, entry.value, unit)
        unit.own = frozenset(own)
        unit.blocks.update(own)
        return unit

    def main(self, unit: Unit, tree: Mapping) -> BlockSpec:
        name = tree.get("name")
        stem = re.sub(r"\.ya?ml$", "", unit.source.name.rsplit("/", 1)[-1])
        named = name if isinstance(name, Scalar) else Scalar(stem, tree.span)
        return self.body(named, tree, unit, {}, {})

    def renamed(self, tree: Mapping, taken: Container[str]) -> None:
        """Check that every `renamed_from:` is a name that a node may have had."""
        for entry in self.entries(tree, "graph"):
            old = entry.value.get(RENAMED) if isinstance(entry.value, Mapping) else None
            if not isinstance(old, Scalar):
                continue
            if old.text in taken:
                self.sink.add(fault("duplicate-name", f"`{entry.key.text}` was `{old.text}`, and there is a `{old.text}` still", old.span,
                                    help="`renamed_from:` takes the name that the node had before, which nothing has now").diagnostic)
            elif not NAME.match(old.text):
                self.sink.add(fault("bad-name", f"`{old.text}` was never the name of a node", old.span,
                                    help="names are lower case letters, digits and `_`, such as `self_attention`").diagnostic)

    def block(self, name: Scalar, tree: Tree, unit: Unit) -> BlockSpec:
        tree = _as(Mapping, tree)
        settings = self.collect(tree, "settings", self.setting)
        slots = self.collect(tree, "slots", self.slot)
        return self.body(name, tree, unit, settings, slots)

    def body(self, name: Scalar, tree: Mapping, unit: Unit, settings: dict[str, SettingSpec],
             slots: dict[str, SlotSpec]) -> BlockSpec:
        inputs = self.collect(tree, "inputs", self.input)
        nodes: dict[str, NodeSpec] = {}
        for entry in self.entries(tree, "graph"):
            with self.sink.catch():
                if entry.key.text in inputs:
                    raise fault("duplicate-name", f"`{entry.key.text}` names both an input and a node", entry.key.span,
                                inputs[entry.key.text].name.span, help="rename one of them")
                nodes[entry.key.text] = self.node(entry.key.text, entry.key.span, _as(Mapping, entry.value))
        self.renamed(tree, {**nodes, **inputs})
        about = tree.get("about")
        return BlockSpec(name, about.text if isinstance(about, Scalar) else "", settings, slots, inputs, nodes,
                         self.outputs(tree, nodes), tree.span, unit)

    def outputs(self, tree: Mapping, nodes: dict[str, NodeSpec]) -> tuple[tuple[Scalar, Scalar], ...]:
        """`outputs: {name: reference}`, `[reference, ...]` or one reference; by default the last node, as `out`."""
        written = tree.get("outputs")
        if written is None:
            last = [e.key for e in self.entries(tree, "graph") if e.key.text in nodes][-1:]
            return tuple((Scalar("out", k.span), k) for k in last)
        if isinstance(written, Scalar):
            return ((Scalar("out", written.span), written),)
        if isinstance(written, Sequence):
            return self.listed_outputs([_as(Scalar, x) for x in written])
        return tuple((e.key, _as(Scalar, e.value)) for e in written)

    def listed_outputs(self, refs: list[Scalar]) -> tuple[tuple[Scalar, Scalar], ...]:
        """Outputs that take the last part of their reference as name."""
        out: dict[str, tuple[Scalar, Scalar]] = {}
        for ref in refs:
            name = ref.text.rsplit(".", 1)[-1]
            if name in out:
                self.sink.add(fault("duplicate-name", f"two outputs are called `{name}`", ref.span, out[name][1].span,
                                    help=f"name them: `outputs: {{{name}: {out[name][1].text}, other: {ref.text}}}`").diagnostic)
            out.setdefault(name, (Scalar(name, ref.span), ref))
        return tuple(out.values())

    def node(self, name: str, where: Span, tree: Mapping) -> NodeSpec:
        """A node or a fill."""
        control = next((c for c in CONTROLS if c in tree), None)
        target = "scan" if control == "scan" else next(t for t in TARGETS if t in tree)
        count = None if control in (None, "scan") else self.scalar(tree, control)
        known = {*TARGETS, *CONTROLS, *CONTROL_KEYS, RENAMED}
        fields = {e.key.text: Field(e.key, self.value(f"{name}.{e.key.text}", e.value)) for e in tree if e.key.text not in known}
        kind = "block" if target == "scan" else target
        return NodeSpec(name, kind, _as(Scalar, tree.get(target)), fields, where, control, count, self.scalar(tree, "along"),
                        self.each(name, tree), self.carry(name, tree), self.scalar(tree, "share"), self.scalar(tree, "backward"),
                        self.route(tree), self.pattern(name, where, tree))

    def each(self, name: str, tree: Mapping) -> tuple[Each, ...]:
        out = []
        for e in self.entries(tree, "each"):
            value = e.value
            if isinstance(value, Mapping) and not is_node(value):
                chosen = self.value(f"{name}.{e.key.text}", _there(value.get("from")))
                out.append(Each(e.key, chosen, self.scalar(value, "at")))
            else:
                out.append(Each(e.key, self.value(f"{name}.{e.key.text}", value)))
        return tuple(out)

    def carry(self, name: str, tree: Mapping) -> tuple[tuple[Scalar, FieldValue], ...]:
        return tuple((e.key, self.value(f"{name}.{e.key.text}", e.value)) for e in self.entries(tree, "carry"))

    def route(self, tree: Mapping) -> dict[str, Scalar] | None:
        if "route" not in tree:
            return None
        route = _as(Mapping, tree.get("route"))
        return {k: _as(Scalar, route.get(k)) for k in ("weights", "indices")}

    def pattern(self, name: str, where: Span, tree: Mapping) -> tuple[tuple[Scalar | None, NodeSpec], ...]:
        """Each item of the cycle, merged over the node's own keys, as a whole node of its own."""
        if "pattern" not in tree:
            return ()
        base = Mapping(tuple(e for e in tree if e.key.text in TARGETS or e.key.text not in {*CONTROLS, *CONTROL_KEYS}), tree.span)
        out = []
        for item in _as(Sequence, tree.get("pattern")):
            over = _as(Mapping, item)
            times = self.scalar(over, "times")
            body = Mapping(tuple(e for e in over if e.key.text != "times"), over.span)
            out.append((times, self.node(name, where, merge(base, body))))
        return tuple(out)

    def value(self, name: str, tree: Tree) -> FieldValue:
        """A field's value; mappings that say op, block or slot are nodes of their own."""
        if isinstance(tree, Scalar):
            return tree
        if isinstance(tree, Sequence):
            return Items(tuple(self.value(f"{name}.{i}", t) for i, t in enumerate(tree)), tree.span)
        if is_node(tree):
            return self.node(name, tree.span, tree)
        return tree

    def input(self, key: Scalar, tree: Tree) -> InputSpec:
        return InputSpec(key, type_text(_as(Scalar, tree)))

    def setting(self, key: Scalar, tree: Tree) -> SettingSpec:
        """`int`, `optional float`, `bool = true`, `list`, `one of relu | gelu = relu`, `int = width / heads`."""
        scalar = _as(Scalar, tree)
        found = SETTING.match(scalar.text)
        if not found:
            raise fault("bad-setting", f"`{scalar.text}` is not the type of a setting", scalar.span,
                        help='write `int`, `float`, `bool`, `list`, `text` or `one of a | b`, then ` = default` if it has one')
        optional, plain, choices, default = found.groups()
        names = tuple(x for x in re.split(r"[|,\s]+", choices or "") if x)
        at = _within(scalar, found.start(4), found.end(4)) if default else None
        expression = parse_expression(default, at) if at and plain not in (None, "text") else None
        given = Scalar(default, at) if at else None
        return SettingSpec(key, plain or "choice", scalar.span, names, given, bool(optional), expression)

    def slot(self, key: Scalar, tree: Tree) -> SlotSpec:
        """`[optional] [name:] type, ... [-> type]`."""
        scalar = _as(Scalar, tree)
        text, base = scalar.text, 0
        optional = re.match(r"\s*optional\s+(?=\w+\s*(?::|\[))", text)
        if optional:
            base = optional.end()
        left, arrow, right = text[base:].partition("->")
        inputs = []
        for start, stop in split_commas(left):
            part = left[start:stop]
            named = re.match(r"\s*([a-z][a-z0-9_]*)\s*:(.*)\Z", part, re.S)
            name = named.group(1) if named else "in"
            offset = base + start + (named.start(2) if named else 0)
            inputs.append((name, type_text(Scalar(text[offset:base + stop].strip(), _within(scalar, offset, base + stop)))))
        out = base + len(left) + len(arrow)
        output = type_text(Scalar(right.strip(), _within(scalar, out, len(text)))) if arrow else None
        return SlotSpec(key, tuple(inputs), output, scalar.span, bool(optional))

    # small readers

    def collect(self, tree: Mapping, key: str, read: Callable[[Scalar, Tree], T]) -> dict[str, T]:
        out: dict[str, T] = {}
        for entry in self.entries(tree, key):
            with self.sink.catch():
                out[entry.key.text] = read(entry.key, entry.value)
        return out

    def entries(self, tree: Mapping, key: str) -> tuple[Entry, ...]:
        found = tree.get(key)
        return found.entries if isinstance(found, Mapping) else ()      # a key without a value is an empty mapping

    def scalar(self, tree: Mapping, key: str) -> Scalar | None:
        found = tree.get(key)
        return None if found is None else _as(Scalar, found)


def _as(want: type[T], tree: Tree | None) -> T:
    """The tree as what `check` made sure it is."""
    assert isinstance(tree, want), tree
    return tree


def _there(tree: Tree | None) -> Tree:
    assert tree is not None
    return tree


def is_node(tree: Tree) -> bool:
    """Whether a mapping is a node of its own: it names what it applies."""
    return isinstance(tree, Mapping) and any(k in tree for k in (*TARGETS, "scan"))


def merge(base: Mapping, over: Mapping) -> Mapping:
    """`over`'s keys laid over `base`'s; mappings merge, except that one naming its own target replaces."""
    out = {e.key.text: e for e in base}
    if is_node(over):
        for k in TARGETS:
            out.pop(k, None)
    for e in over:
        old = out.get(e.key.text)
        if old and isinstance(e.value, Mapping) and not is_node(e.value):
            if isinstance(old.value, Mapping):
                e = Entry(e.key, merge(old.value, e.value))
            elif isinstance(old.value, Scalar):
                raise fault("bad-node", f"there is nothing to merge these keys of `{e.key.text}` into", e.value.span,
                            old.value.span, help="write the value above as a mapping, such as `{block: NAME}`")
        out[e.key.text] = e
    return Mapping(tuple(out.values()), base.span)


def type_text(scalar: Scalar) -> TypeText:
    """Parse `optional float[B, S <= 1024, 16*H, *rest]`."""
    found = TYPE.match(scalar.text)
    if not found:
        raise fault("bad-type", f"`{scalar.text.strip()}` is not a tensor type", scalar.span,
                    help='write a dtype and a shape, such as "float[B, S, width]"; a scalar is "float[]"')
    dtype = found.group(2)
    if dtype not in DTYPES:
        raise fault("bad-type", f"`{dtype}` is not a dtype of the language", _within(scalar, *found.span(2)),
                    help=suggest(dtype, DTYPES, "dtypes"), note="`float` is the model's own dtype, chosen with --dtype")
    inner, at = found.group(3), found.start(3)
    dims = tuple(_dim(scalar, at + a, at + b) for a, b in split_commas(inner)) if inner.strip() else ()
    return TypeText(dtype, dims, scalar.span, bool(found.group(1)))


def _dim(scalar: Scalar, start: int, stop: int) -> DimText:
    text, span = scalar.text[start:stop], _within(scalar, start, stop)
    star = re.match(r"\s*\*\s*([a-z][a-z0-9_]*)\s*\Z", text)
    if star:
        return DimText(span, star=star.group(1))
    left, bound, right = text.partition("<=")
    if re.fullmatch(r"\s*\w+(\s+\w+)+\s*", left):
        raise fault("bad-type", f"`{left.strip()}` is no axis: axes are separated by commas", span,
                    help=f"write `[{', '.join(left.split())}]`")
    limit = parse_expression(right, _within(scalar, start + len(left) + 2, stop)) if bound else None
    return DimText(span, parse_expression(left, _within(scalar, start, start + len(left))), limit=limit)


def split_commas(text: str) -> list[tuple[int, int]]:
    """Start and stop of the parts of `text` between commas outside brackets."""
    cuts, depth = [-1], 0
    for i, c in enumerate(text):
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            cuts.append(i)
    cuts.append(len(text))
    return [(a + 1, b) for a, b in zip(cuts, cuts[1:], strict=False)]


def _within(scalar: Scalar, start: int, stop: int) -> Span:
    """The span of characters start..stop of a scalar's text, trimmed; quotes shift it by one."""
    while start < stop and scalar.text[start].isspace():
        start += 1
    while stop > start and scalar.text[stop - 1].isspace():
        stop -= 1
    shift = 1 if scalar.quoted else 0
    return scalar.span.part(start + shift, stop + shift)


def _mapping(tree: Mapping, key: str) -> Mapping | None:
    found = tree.get(key)
    return found if isinstance(found, Mapping) else None
