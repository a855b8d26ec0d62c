"""`Tree -> Spec`: read the tree's shape into typed objects; every scalar keeps its span, nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from ..lang.diagnostic import Sink, fault, suggest
from ..lang.expression import Expression, parse_expression
from ..lang.source import Source, Span
from ..lang.spec import (CONTROL_KEYS, CONTROLS, RESERVED, TARGETS, BlockSpec, DimText, Each, Field, FieldValue, InputSpec, Items,
                         NodeSpec, SettingSpec, SlotSpec, Spec, TypeText, Unit)
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree, kind

TOP_KEYS = ("nnspec", "name", "about", "notes", "use", "sizes", "inputs", "graph", "outputs", "blocks", "expect", "budget", "checkpoint")
BLOCK_KEYS = ("about", "notes", "settings", "slots", "inputs", "graph", "outputs")
DTYPES = ("float", "int64", "bool")
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
TYPE = re.compile(r"\s*(optional\s+)?([A-Za-z_0-9]+)\s*\[(.*)\]\s*\Z", re.S)
T = TypeVar("T")


def decode(source: Source, tree: Tree, library: Iterable[tuple[Source, Mapping]], sink: Sink) -> Spec | None:
    """Decode a composed model file and the block files it uses; errors go to `sink`."""
    decoder = Decoder(sink)
    used: dict[str, BlockSpec] = {}
    for file, blocks in library:
        for name, block in decoder.unit(file, blocks).blocks.items():
            if name in used and used[name].span.source is not block.span.source:
                sink.add(fault("duplicate-name", f"two used files define a block `{name}`", block.name.span,
                               used[name].name.span).diagnostic)
            used[name] = block
    if not isinstance(tree, Mapping):
        sink.add(fault("bad-spec", f"a spec is a mapping, not {kind(tree)}", tree.span).diagnostic)
        return None
    unit = decoder.unit(source, tree, used)
    with sink.catch():
        main = decoder.main(unit, tree)
        return Spec(main.name.text, main.about, unit, main, source, tree, _mapping(tree, "checkpoint"), tree.get("expect"),
                    _mapping(tree, "budget"))
    return None


class Decoder:
    def __init__(self, sink: Sink):
        self.sink = sink

    def unit(self, source: Source, tree: Mapping, used: dict[str, BlockSpec] | None = None) -> Unit:
        """The sizes and blocks of one file."""
        unit = Unit(source)
        self.keys(tree, TOP_KEYS, "a spec")
        version = tree.get("nnspec")
        if version is not None and not (isinstance(version, Scalar) and version.text == "1"):
            self.sink.add(fault("bad-version", "this is not version 1 of the language", version.span, help="write `nnspec: 1`").diagnostic)
        for entry in self.entries(tree, "sizes"):
            with self.sink.catch():
                self.name(entry.key, "a size")
                unit.sizes[entry.key.text], unit.size_keys[entry.key.text] = entry.value, entry.key
        unit.blocks.update(used or {})
        own = {}
        for entry in self.entries(tree, "blocks"):
            with self.sink.catch():
                self.name(entry.key, "a block")
                if entry.key.text in unit.blocks:
                    raise fault("duplicate-name", f"block `{entry.key.text}` is defined here and in a used file", entry.key.span,
                                unit.blocks[entry.key.text].name.span, help="rename this one")
                own[entry.key.text] = self.block(entry.key, entry.value, unit)
        unit.own = frozenset(own)
        unit.blocks.update(own)
        return unit

    def main(self, unit: Unit, tree: Mapping) -> BlockSpec:
        name = tree.get("name")
        named = name if isinstance(name, Scalar) else Scalar(re.sub(r"\.ya?ml$", "", unit.source.name.rsplit("/", 1)[-1]), tree.span)
        for key in ("graph", "outputs"):
            if key not in tree:
                raise fault("missing-key", f"the spec has no `{key}:`", tree.span.part(0, 1),
                            help="a model needs `inputs:`, `graph:` and `outputs:`")
        return self.body(named, tree, unit, {}, {})

    def block(self, name: Scalar, tree: Tree, unit: Unit) -> BlockSpec:
        tree = self.expect(tree, Mapping, f"block `{name.text}`")
        self.keys(tree, BLOCK_KEYS, f"block `{name.text}`")
        settings = self.collect(tree, "settings", self.setting)
        slots = self.collect(tree, "slots", self.slot)
        return self.body(name, tree, unit, settings, slots)

    def body(self, name: Scalar, tree: Mapping, unit: Unit, settings: dict[str, SettingSpec], slots: dict[str, SlotSpec]) -> BlockSpec:
        inputs = self.collect(tree, "inputs", self.input)
        nodes: dict[str, NodeSpec] = {}
        for entry in self.entries(tree, "graph"):
            with self.sink.catch():
                self.name(entry.key, "a node")
                if entry.key.text in inputs:
                    raise fault("duplicate-name", f"`{entry.key.text}` names both an input and a node", entry.key.span,
                                inputs[entry.key.text].name.span, help="rename one of them")
                nodes[entry.key.text] = self.node(entry.key.text, entry.key.span, self.expect(entry.value, Mapping, "a node"))
        if not nodes:
            self.sink.add(fault("missing-key", f"`{name.text}` has no nodes", name.span, help="give it a `graph:`").diagnostic)
        about = tree.get("about")
        return BlockSpec(name, about.text if isinstance(about, Scalar) else "", settings, slots, inputs, nodes,
                         self.outputs(tree, nodes), name.span, unit)

    def outputs(self, tree: Mapping, nodes: dict[str, NodeSpec]) -> tuple[tuple[Scalar, Scalar], ...]:
        """`outputs: {name: reference}`, `[reference, ...]` or one reference; by default the last node, as `out`."""
        written = tree.get("outputs")
        if written is None:
            last = [e.key for e in self.entries(tree, "graph") if e.key.text in nodes][-1:]
            return tuple((Scalar("out", k.span), k) for k in last)
        if isinstance(written, Scalar):
            return ((Scalar("out", written.span), written),)
        if isinstance(written, Sequence):
            refs = [self.expect(x, Scalar, "an output") for x in written]
            return tuple((Scalar(r.text.rsplit(".", 1)[-1], r.span), r) for r in refs)
        for entry in written:
            self.name(entry.key, "an output")
        return tuple((e.key, self.expect(e.value, Scalar, "an output")) for e in written)

    def node(self, name: str, where: Span, tree: Mapping) -> NodeSpec:
        """A node or a fill. Exactly one of op / block / slot, except that `scan:` names its own block."""
        control = self.one_of(tree, CONTROLS, name)
        target = self.one_of(tree, TARGETS, name)
        if control == "scan":
            if target:
                raise fault("bad-node", "`scan:` names the block that it runs; it takes no `op`, `block` or `slot` beside it",
                            self.key(tree, target).span, self.key(tree, "scan").span)
            kind_, target_scalar, count = "block", self.expect(tree.get("scan"), Scalar, "`scan`"), None
        elif target is None:
            raise fault("bad-node", f"node `{name}` says neither `op:`, `block:` nor `slot:`", where,
                        help=self.hint(tree) or "a node is one of `{op: NAME, ...}`, `{block: NAME, ...}`, `{slot: NAME, ...}`")
        else:
            kind_, target_scalar = target, self.expect(tree.get(target), Scalar, f"`{target}`")
            count = self.expect(tree.get(control), Scalar, f"`{control}`") if control else None
        self.control_keys(tree, control)
        known = {*TARGETS, *CONTROLS, *CONTROL_KEYS}
        fields = {e.key.text: Field(e.key, self.value(f"{name}.{e.key.text}", e.value)) for e in tree if e.key.text not in known}
        return NodeSpec(name, kind_, target_scalar, fields, where, control, count, self.scalar(tree, "along"),
                        self.each(name, tree), self.carry(name, tree), self.scalar(tree, "share"), self.scalar(tree, "backward"),
                        self.route(tree), self.pattern(name, where, tree))

    def control_keys(self, tree: Mapping, control: str | None) -> None:
        legal = {None: (), "repeat": ("each", "carry", "share", "pattern"), "scan": ("along", "each", "carry", "backward"),
                 "branch": ("each", "share", "pattern", "route")}[control]
        for key in CONTROL_KEYS:
            if key in tree and key not in legal:
                by = [c for c, keys in {"repeat": ("share", "pattern"), "scan": ("along", "backward"), "branch": ("route",)}.items() if key in keys]
                raise fault("bad-node", f"`{key}:` has no meaning {'in a ' + control if control else 'here'}", self.key(tree, key).span,
                            help=f"`{key}` goes with {' or '.join(f'`{c}:`' for c in by or CONTROLS)}")

    def each(self, name: str, tree: Mapping) -> tuple[Each, ...]:
        out = []
        for e in self.entries(tree, "each"):
            value = e.value
            if isinstance(value, Mapping) and "from" in value:
                self.keys(value, ("from", "at"), "`each`")
                at = value.get("at")
                out.append(Each(e.key, self.value(f"{name}.{e.key.text}", self.need(value, "from")),
                                self.expect(at, Scalar, "`at`") if at is not None else None))
            else:
                out.append(Each(e.key, self.value(f"{name}.{e.key.text}", value)))
        return tuple(out)

    def carry(self, name: str, tree: Mapping) -> tuple[tuple[Scalar, FieldValue], ...]:
        return tuple((e.key, self.value(f"{name}.{e.key.text}", e.value)) for e in self.entries(tree, "carry"))

    def route(self, tree: Mapping) -> dict[str, Scalar] | None:
        if "route" not in tree:
            return None
        route = self.expect(tree.get("route"), Mapping, "`route`")
        self.keys(route, ("weights", "indices"), "`route`")
        return {k: self.expect(self.need(route, k), Scalar, f"`{k}`") for k in ("weights", "indices")}

    def pattern(self, name: str, where: Span, tree: Mapping) -> tuple[tuple[Scalar | None, NodeSpec], ...]:
        """Each item of the cycle, merged over the node's own keys, as a whole node of its own."""
        if "pattern" not in tree:
            return ()
        items = self.expect(tree.get("pattern"), Sequence, "`pattern`")
        if not len(items):
            raise fault("bad-node", "`pattern` is empty", items.span)
        base = Mapping(tuple(e for e in tree if e.key.text in TARGETS or e.key.text not in {*CONTROLS, *CONTROL_KEYS}), tree.span)
        out = []
        for item in items:
            over = self.expect(item, Mapping, "an item of `pattern`")
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
        if any(k in tree for k in (*TARGETS, "scan")):
            return self.node(name, tree.span, tree)
        return tree

    def input(self, key: Scalar, tree: Tree) -> InputSpec:
        self.name(key, "an input", ports=True)
        return InputSpec(key, type_text(self.expect(tree, Scalar, f"the type of `{key.text}`")))

    def setting(self, key: Scalar, tree: Tree) -> SettingSpec:
        """`int`, `optional float`, `bool = true`, `list`, `one of relu | gelu = relu`, `int = width / heads`."""
        self.name(key, "a setting")
        scalar = self.expect(tree, Scalar, f"setting `{key.text}`")
        found = re.match(r"\s*(optional\s+)?(?:(int|float|bool|list|text)|one of\s+([^=]+?))\s*(?:=\s*(.+?)\s*)?\Z", scalar.text, re.S)
        if not found:
            raise fault("bad-setting", f"`{scalar.text}` is not the type of a setting", scalar.span,
                        help='write `int`, `float`, `bool`, `list`, `text` or `one of a | b`, then ` = default` if it has one')
        optional, plain, choices, default = found.groups()
        names = tuple(x for x in re.split(r"[|,\s]+", choices or "") if x)
        at = _within(scalar, found.start(4), found.end(4)) if default else None
        expression = parse_expression(default, at) if at and plain not in (None, "text") else None
        return SettingSpec(key, plain or "choice", scalar.span, names, Scalar(default, at) if at else None, bool(optional), expression)

    def slot(self, key: Scalar, tree: Tree) -> SlotSpec:
        """`[optional] [name:] type, ... [-> type]`."""
        self.name(key, "a slot")
        scalar = self.expect(tree, Scalar, f"slot `{key.text}`")
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
            inputs.append((name, type_text(Scalar(text[offset:base + stop], _within(scalar, offset, base + stop)))))
        out = base + len(left) + len(arrow)
        output = type_text(Scalar(right, _within(scalar, out, len(text)))) if arrow else None
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
        if found is None or (isinstance(found, Scalar) and not found.text):
            return ()
        if not isinstance(found, Mapping):
            self.sink.add(fault("bad-spec", f"`{key}:` is a mapping, not {kind(found)}", found.span).diagnostic)
            return ()
        return found.entries

    def expect(self, tree: Tree | None, want: type[T], what: str) -> T:
        if not isinstance(tree, want):
            words = {Scalar: "one value", Sequence: "a list", Mapping: "a mapping"}[want]  # type: ignore[index]
            assert tree is not None
            raise fault("bad-spec", f"{what} is {words}, not {kind(tree)}", tree.span)
        return tree

    def scalar(self, tree: Mapping, key: str) -> Scalar | None:
        found = tree.get(key)
        return None if found is None else self.expect(found, Scalar, f"`{key}`")

    def need(self, tree: Mapping, key: str) -> Tree:
        found = tree.get(key)
        if found is None:
            raise fault("missing-key", f"`{key}` is missing", tree.span)
        return found

    def key(self, tree: Mapping, key: str) -> Scalar:
        entry = tree.entry(key)
        assert entry is not None
        return entry.key

    def one_of(self, tree: Mapping, keys: tuple[str, ...], name: str) -> str | None:
        found = [k for k in keys if k in tree]
        if len(found) > 1:
            raise fault("bad-node", f"node `{name}` says both `{found[0]}:` and `{found[1]}:`", self.key(tree, found[1]).span,
                        self.key(tree, found[0]).span)
        return found[0] if found else None

    def hint(self, tree: Mapping) -> tuple[str, ...]:
        near = [s for e in tree for s in suggest(e.key.text, TARGETS) if s.startswith("did you")]
        return tuple(near[:1])

    def keys(self, tree: Mapping, known: tuple[str, ...], what: str) -> None:
        for key in tree.keys():
            if key not in known and not key.startswith("x-"):
                entry = self.key(tree, key)
                self.sink.add(fault("unknown-key", f"{what} has no key `{key}`", entry.span, help=suggest(key, known, "keys")).diagnostic)

    def name(self, key: Scalar, what: str, ports: bool = False) -> None:
        if not NAME.match(key.text):
            raise fault("bad-name", f"`{key.text}` cannot name {what}", key.span,
                        help="names are lower-case letters, digits and `_`, and start with a letter")
        if key.text in RESERVED or (key.text in ("in", "i") and not (ports and key.text == "in")):
            raise fault("bad-name", f"`{key.text}` is a word of the language and cannot name {what}", key.span)


def merge(base: Mapping, over: Mapping) -> Mapping:
    """`over`'s keys laid over `base`'s; mappings merge, except that one naming its own target replaces."""
    out = {e.key.text: e for e in base}
    if any(k in over for k in TARGETS):
        for k in TARGETS:
            out.pop(k, None)
    for e in over:
        old = out.get(e.key.text)
        if old and isinstance(old.value, Mapping) and isinstance(e.value, Mapping) and not any(k in e.value for k in TARGETS):
            e = Entry(e.key, merge(old.value, e.value))
        elif old and isinstance(old.value, Scalar) and isinstance(e.value, Mapping) and not any(k in e.value for k in TARGETS):
            raise fault("bad-node", f"there is nothing to merge these keys of `{e.key.text}` into", e.value.span, old.value.span,
                        help="write the value above as a mapping, such as `{block: NAME}`")
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
    limit = parse_expression(right, _within(scalar, start + len(left) + 2, stop)) if bound else None
    return DimText(span, _expression(left, _within(scalar, start, start + len(left))), limit=limit)


def _expression(text: str, span: Span) -> Expression:
    return parse_expression(text, span)


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
