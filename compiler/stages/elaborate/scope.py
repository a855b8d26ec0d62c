"""Where the names of written nodes are looked up: one `Scope` for each expansion of a block."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.evaluate import evaluate
from ...ir.graph import Origin, Shape, Value
from ...lang.diagnostic import Fault, Label, fault, suggest
from ...lang.expression import parse_expression
from ...lang.scalar import short
from ...lang.source import Span
from ...lang.spec import BlockSpec, FieldValue, NodeSpec
from ...lang.tree import Mapping as TreeMapping
from ...lang.tree import Scalar, Sequence

NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


class Poisoned(Exception):
    """A name whose own definition failed: reported there, silent here."""


@dataclass
class Result:
    """What a node gives: named values of one builder, the default first; None for one that is absent."""

    outputs: dict[str, Value | None]
    reasons: dict[str, str] = field(default_factory=dict)      # output -> why it cannot be read

    @property
    def default(self) -> str:
        return next(iter(self.outputs))

    @property
    def present(self) -> dict[str, Value]:
        """The outputs that are there."""
        return {name: value for name, value in self.outputs.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Fill:
    """What a caller puts in a slot: a node as written, and where its names are looked up. None passes `in` through."""

    spec: NodeSpec
    scope: Scope
    index: int | None


@dataclass(eq=False)
class Scope:
    """What the names in one expansion of a block mean.

    `chain` are the places that use the block, innermost first; `failed` the names whose definitions were found wrong, which are
    silent; `inline` the nodes written in ports, by identity; `evaluating` the sizes being evaluated.
    """

    block: BlockSpec
    builder: RegionBuilder
    chain: tuple[Span, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    setting_spans: dict[str, Span] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    stars: dict[str, Shape] = field(default_factory=dict)
    slots: dict[str, Fill | None] = field(default_factory=dict)
    values: dict[str, Result | Value | None] = field(default_factory=dict)   # None: an optional input that is absent
    failed: set[str] = field(default_factory=set)
    inline: dict[int, Result] = field(default_factory=dict)
    evaluating: list[str] = field(default_factory=list)

    def origin(self, span: Span) -> Origin:
        return Origin(span, self.chain)

    # numbers

    def number(self, scalar: Scalar, index: int | None = None) -> Any:
        """The value of an expression in this scope; `i` is the copy's number where there is one."""
        try:
            return evaluate(parse_expression(scalar.text, scalar.span), self.lookup(index))
        except Fault as found:
            raise self.traced(found) from None

    def traced(self, found: Fault) -> Fault:
        """A fault about a field that only names a setting or a size, at the place where that was set."""
        d = found.diagnostic
        first, *others = d.labels
        name = first.span.text.strip("'\"")
        cause = self.cause(Scalar(name, first.span))
        if cause == first.span:
            return found
        return Fault(replace(d, labels=(Label(cause, first.text or f"`{name}` is from here"), Label(first.span, "used here"),
                                        *others)))

    def lookup(self, index: int | None = None) -> Callable[[str, Span], Any]:
        def find(name: str, span: Span) -> Any:
            if name == "i" and index is not None:
                return index
            if self.settings.get(name, 0) is None:
                raise self.unknown(name, span)
            if name in self.settings:
                return self.settings[name]
            if name in self.dims:
                return self.dims[name]
            if name in self.block.unit.sizes:
                return self.size(name)
            raise self.unknown(name, span)
        return find

    def size(self, name: str) -> Any:
        """The value of a size of the block's file; Poisoned when it was found wrong before."""
        values = self.block.unit.values
        if name in self.evaluating:
            loop = self.evaluating[self.evaluating.index(name):]
            reads, keys = zip(loop, [*loop[1:], name], strict=True), self.block.unit.size_keys
            labels = [Label(keys[n].span, f"`{n}` reads `{m}`") for n, m in reads]
            raise fault("cycle", f"sizes define each other: {' -> '.join([*loop, name])}", *labels)
        if name not in values:
            self.evaluating.append(name)
            values[name] = Poisoned
            try:
                values[name] = self._tree(self.block.unit.sizes[name])
            finally:
                self.evaluating.pop()
        if values[name] is Poisoned:
            raise Poisoned
        return values[name]

    def _tree(self, tree: Any) -> Any:
        if isinstance(tree, Sequence):
            return [self._tree(item) for item in tree]
        if isinstance(tree, TreeMapping):
            raise fault("bad-spec", "a size is a number or a list of numbers", tree.span)
        found = evaluate(parse_expression(tree.text, tree.span), lambda n, s: self.size(n) if n in self.block.unit.sizes
                         else self._no_size(n, s))
        if isinstance(found, bool):
            raise fault("bad-spec", f"a size is a number or a list of numbers, not `{str(found).lower()}`", tree.span,
                        help="true and false stand in the nodes themselves")
        return found

    def cause(self, value: FieldValue) -> Span:
        """Where the number that a field names was written: the setting's value where the block is used, or the size's."""
        if isinstance(value, Scalar):
            if value.text in self.setting_spans:
                return self.setting_spans[value.text]
            size = self.block.unit.sizes.get(value.text)
            if size is not None and value.text not in self.settings and value.text not in self.dims:
                return size.span
        return value.span

    def _no_size(self, name: str, span: Span) -> Any:
        raise fault("unknown-name", f"no size is called `{name}`", span,
                    help=suggest(name, [n for n in self.block.unit.sizes if n not in self.evaluating], "sizes"),
                    note="capitals are free dimensions, which have no value before the model runs" if name[0].isupper() else ())

    def known_numbers(self) -> list[str]:
        return [*self.settings, *self.block.settings, *self.dims, *self.block.unit.sizes]

    def unknown(self, name: str, span: Span) -> Fault:
        if name in self.block.settings:
            return fault("unresolved-setting", f"setting `{name}` of block `{self.block.name.text}` has no value", span,
                         Label(self.block.settings[name].name.span, "declared here"),
                         *([Label(self.chain[-1], "used here without it")] if self.chain else []),
                         help=f"give `{name}:` where the block is used, or a default here")
        if name == "i":
            return fault("unknown-name", "`i` is the number of a copy, and this is not inside a `repeat` or `branch`", span)
        if name[:1].isupper():
            owner = f"block `{self.block.name.text}`" if self.chain else "the model"
            return fault("unbound-dimension", f"free dimension `{name}` is bound by no input of {owner}", span,
                         help=f"name `{name}` in the shape of an input")
        known = self.known_numbers()
        extra = "; it is a node, and this field takes a number" if name in self.block.nodes or name in self.block.inputs else ""
        hints = [f"free sizes are capitals: `{name.upper()}`"] if len(name) == 1 else []
        return fault("unknown-name", f"no size or setting is called `{name}`{extra}", span,
                     help=[*suggest(name, known, "sizes and settings"), *hints],
                     note=f"block `{self.block.name.text}` sees its own settings and the sizes of its file" if self.chain else ())

    # values

    def reference(self, scalar: Scalar) -> Value | None:
        """The value that `node`, `node.output` or `input` names, in this scope's builder; None when it is absent."""
        head, _, rest = scalar.text.partition(".")
        if head in self.failed:
            raise Poisoned
        if head not in self.values:
            raise self.no_value(head, scalar)
        found = self.values[head]
        if not isinstance(found, Result):
            if rest:
                raise fault("unknown-name", f"input `{head}` has no outputs", scalar.span)
            return found
        name = rest or found.default
        if name in found.outputs:
            return found.outputs[name]
        if name in found.reasons:
            raise fault("unknown-name", f"`{scalar.text}` cannot be read: {found.reasons[name]}", scalar.span)
        raise fault("unknown-name", f"node `{head}` has no output `{name}`", scalar.span,
                    Label(self.block.nodes[head].span, "defined here") if head in self.block.nodes else None,
                    help=suggest(name, found.outputs, "outputs"))

    def no_value(self, head: str, scalar: Scalar) -> Fault:
        known = [*self.block.inputs, *self.block.nodes]
        if not NAME.fullmatch(scalar.text):
            numeric = re.fullmatch(r"[-+.0-9eE]+", scalar.text)
            return fault("bad-port", f"this takes the name of a node or an input, not `{short(scalar.text)}`", scalar.span,
                         help=f"a number as a value is a node: `{{op: constant, value: {scalar.text}}}`" if numeric else ())
        number = head in self.settings or head in self.block.unit.sizes
        if head.lower() in ("yes", "no", "on", "off"):
            return fault("bad-scalar", f"`{head}` is neither a value nor true or false", scalar.span,
                         help=f"write `{'true' if head.lower() in ('yes', 'on') else 'false'}`")
        return fault("unknown-name", f"no node or input is called `{head}`", scalar.span,
                     help=suggest(head, known, "nodes and inputs"),
                     note="it is a number, and a port takes the name of a node or an input" if number else ())
