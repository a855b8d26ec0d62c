"""Blocks become regions and written nodes become graph nodes."""

from __future__ import annotations

from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.graph import Call, Input, Node, Origin, Region, TensorType, Value
from ...lang.diagnostic import Fault, Label, Sink, diagnostic, fault, with_label
from ...lang.source import Span
from ...lang.spec import BlockSpec, NodeSpec, SlotSpec
from . import control
from .apply import apply_op
from .attributes import UNSET, attribute
from .gather import Gathered, gather, is_number
from .interface import endless, kind_of, order, references, unused
from .scope import Poisoned, Result, Scope
from .unify import Unifier

MAX_DEPTH = 64
STATIC = ("unknown-name", "unknown-key", "cycle")     # what is wrong in a block wherever it is used


class Expander:
    """Expands one spec. Errors are recorded and the rest goes on; what depends on a failed name stays silent."""

    def __init__(self, sink: Sink, main: BlockSpec):
        self.sink = sink
        self.main = main
        self.seen: dict[BlockSpec, None] = {}
        self.nested = 0                                  # nodes in nodes, around the one being made
        self.endless = endless(main, sink)

    # blocks

    def graph(self, block: BlockSpec, scope: Scope) -> Region | None:
        """Expand the nodes of a block whose arguments and settings are bound; None when an output failed."""
        nodes, looped = order(block, Sink() if block in self.seen else self.sink)
        self.seen[block] = None
        scope.failed |= looped
        for spec in nodes:
            scope.failed.add(spec.name)
            try:
                scope.values[spec.name] = self.node(spec, scope)
                scope.failed.discard(spec.name)
            except Poisoned:
                continue
            except Fault as found:
                self.sink.add(self.expanded(found, scope).diagnostic)
        outputs: list[tuple[str, Value]] = []
        for name, ref in block.outputs:
            try:
                value = scope.reference(ref)
            except Poisoned:
                continue
            except Fault as found:
                self.sink.add(self.expanded(found, scope).diagnostic)
                continue
            if value is None:
                absent = fault("absent-value", f"output `{name.text}` is an optional input that is absent", ref.span)
                self.sink.add(self.expanded(absent, scope).diagnostic)
            else:
                outputs.append((name.text, value))
        return scope.builder.finish(outputs) if len(outputs) == len(block.outputs) else None

    def expanded(self, found: Fault, scope: Scope) -> Fault:
        """A fault inside a block, with the line of the model that leads there, unless it shows one already."""
        block, d = scope.block, found.diagnostic
        own = [x.span for x in d.labels if x.span.source is self.main.unit.source and not _within(x.span, block)]
        fixed = d.code in STATIC and d.labels and d.labels[0].span.source is self.main.unit.source
        if not scope.chain or own or fixed:
            return found
        use = next((s for s in scope.chain if s.source is self.main.unit.source), scope.chain[0])
        verb = "is used here" if use is scope.chain[0] else "comes in here"
        return Fault(with_label(d, Label(use, f"block `{block.name.text}` {verb}")))

    def check_unused_blocks(self, chosen: set[str]) -> None:
        """What can be said of the model's own blocks that nothing uses: unknown names and loops. Choices of a
        family may use those of `chosen`."""
        unit = self.main.unit
        for block in (unit.blocks[n] for n in sorted(unit.own) if unit.blocks[n] not in self.seen):
            order(block, self.sink)
            known = [*block.inputs, *block.nodes]
            refs = [s for spec in block.nodes.values() for s in references(spec, block)] + [r for _, r in block.outputs]
            for scalar in (s for s in refs if s.text.partition(".")[0] not in known and not is_number(s)):
                nothing = Scope(block, RegionBuilder("", Origin(block.span)))
                self.sink.add(nothing.no_value(scalar.text.partition(".")[0], scalar).diagnostic)
            if not self.sink.errors and block.name.text not in chosen:
                theirs = block.name.span.source is not unit.source
                self.sink.add(diagnostic("unused", f"nothing uses block `{block.name.text}`", block.name.span, severity="warning",
                                         help=f"write `remove: [blocks.{block.name.text}]`" if theirs
                                         else "remove it, or move it to a file of blocks"))

    def warn_unused(self) -> None:
        """Warn of what no output depends on, in every block that was expanded."""
        for block in self.seen:
            for item, feeding in unused(block):
                name, what = (item.name, "node") if isinstance(item, NodeSpec) else (item.text, "input")
                others = ", ".join(f"`{n}`" for n in feeding[:8]) + (", ..." if len(feeding) > 8 else "")
                use = "name it in `outputs:`" if what == "node" else "wire it to a node"
                self.sink.add(diagnostic("unused", f"{what} `{name}` does not reach any output", item.span, severity="warning",
                                         note=f"nor does what only it needs: {others}" if feeding else (),
                                         help=f"remove `{name}`, or {use}"))

    def body(self, found: Gathered, builder: RegionBuilder, ports: dict[str, Value | None], at: Span,
             chain: tuple[Span, ...]) -> Result:
        """Expand the gathered block into `builder`, whose values `ports` name; returns its outputs."""
        assert found.target is not None
        block: BlockSpec = found.target.what
        scope = Scope(block, builder, (found.target_span, *chain))
        if block in self.endless:
            raise Poisoned
        if len(scope.chain) > MAX_DEPTH:
            raise fault("too-deep", f"blocks stand more than {MAX_DEPTH} levels deep in each other", at,
                        Label(block.name.span, "the innermost"))
        try:
            self.enter(found, scope, builder, ports, at)
        except Fault as wrong:
            raise self.expanded(wrong, scope) from None
        builder.about = builder.about or block.about
        region = self.graph(block, scope)
        if region is None:
            raise Poisoned
        return Result(dict(region.outputs))

    def enter(self, found: Gathered, scope: Scope, builder: RegionBuilder, ports: dict[str, Value | None], at: Span) -> None:
        """Give a block's scope its settings, inputs and slots."""
        block = scope.block
        self.settings(found, scope)
        unify = Unifier(scope, f"block `{block.name.text}`")
        for name, given in block.inputs.items():
            value = ports.get(name)
            if value is None and not given.type.optional:
                raise missing_port(name, f"block `{block.name.text}`", found, Label(given.name.span, "declared here"))
            scope.values[name] = value
            if value is not None:
                unify.take(name, given.type, builder.type(value), found.spans.get(name, (at,))[0])
        self.defaults(scope, unify)
        for name, slot in block.slots.items():
            scope.slots[name] = found.fills.get(name)
            if name not in found.fills and not slot.optional:
                raise fault("missing-slot", f"slot `{name}` of block `{block.name.text}` is not filled", found.target_span,
                            Label(slot.name.span, "declared here"),
                            help=f"fill it: `{name}: {{block: NAME, ...}}` or `{{op: NAME, ...}}`")

    def settings(self, found: Gathered, scope: Scope) -> None:
        """Give a block's scope the settings that are written where it is used."""
        for key, written in found.attributes.items():
            assert found.target is not None
            value = attribute(found.target.attributes[key], written.value, written.scope, written.index, f"`{key}`")
            if value is not UNSET:
                scope.settings[key] = value
                scope.setting_spans[key] = written.scope.cause(written.value)
            elif scope.block.settings[key].optional:
                scope.settings[key] = None

    def defaults(self, scope: Scope, unify: Unifier) -> None:
        """Settings not given: solved from shapes by now, else their default, else an error."""
        unify.settle()
        waiting = [s for s in scope.block.settings.values() if s.name.text not in scope.settings]
        while waiting:
            names = {w.name.text for w in waiting}
            ready = [s for s in waiting if not s.expression or not (s.expression.names() & names)] or waiting
            for setting in ready:
                name = setting.name.text
                if name in scope.settings:
                    continue
                if setting.default is not None:
                    scope.setting_spans.setdefault(name, scope.cause(setting.default))
                if setting.default is not None and scope.settings.get(setting.default.text, 0) is not None:
                    scope.settings[name] = attribute(kind_of(setting), setting.default, scope, None, f"`{name}`")
                elif setting.optional:
                    scope.settings[name] = None
                else:
                    headline = f"`{name}` of block `{scope.block.name.text}` is not given, and no input's shape decides it"
                    raise fault("unresolved-setting", headline, scope.chain[0], Label(setting.name.span, "declared here"),
                                help=f"give `{name}:`")
                unify.settle()
            waiting = [s for s in waiting if s.name.text not in scope.settings]
        unify.finish()

    # nodes

    def node(self, spec: NodeSpec, scope: Scope, name: str | None = None, index: int | None = None) -> Result:
        """Make the graph nodes of one written node in its scope's builder."""
        name = spec.name if name is None else name
        if spec.control:
            return control.expand(self, spec, scope, name, index)
        found = gather(spec, scope, index, scope.builder, self.inline)
        result = self.copy(found, scope.builder, name, scope.origin(spec.span))
        self.check_slots(found, scope.builder, result)
        return result

    def inline(self, spec: NodeSpec, scope: Scope, index: int | None) -> Value | None:
        """A node written in a port: made once in the scope it is written in."""
        if id(spec) not in scope.inline:
            if self.nested >= MAX_DEPTH:
                raise fault("too-deep", f"nodes stand more than {MAX_DEPTH} levels deep in each other", spec.target.span,
                            help="give the inner ones names of their own under `graph:`")
            self.nested += 1
            try:
                scope.inline[id(spec)] = self.node(spec, scope, spec.name, index)
            finally:
                self.nested -= 1
        result = scope.inline[id(spec)]
        return result.outputs[result.default]

    def copy(self, found: Gathered, builder: RegionBuilder, name: str, origin: Origin) -> Result:
        """One plain copy of a gathered target in `builder`."""
        if found.target is None:
            return self.passed(found)
        if found.target.kind == "op":
            return apply_op(found, builder, name, origin)
        child = RegionBuilder(found.target.name, origin, builder)
        ports: dict[str, Value | None] = {}
        inputs: dict[str, Input] = {}
        for port, value in found.ports.items():
            if isinstance(value, Value):
                ports[port] = child.argument(port, builder.type(value))
                inputs[port] = value
        result = self.body(found, child, ports, found.span, origin.chain)
        inputs |= child.captures()
        outputs = result.present
        return self.called(builder.add(name, Call(child.finish(list(outputs.items()))), inputs, list(outputs),
                                       [child.type(v) for v in outputs.values()], origin))

    def called(self, node: Node) -> Result:
        return Result({o: Value(node.id, k) for k, o in enumerate(node.outputs)})

    def passed(self, found: Gathered) -> Result:
        """An optional slot that is not filled gives its first port back."""
        slot = found.layers[-1].interface.what
        first = next((p for p in found.names if found.ports.get(p) is not None), None)
        given = found.ports.get(first) if first else None
        if not isinstance(given, Value):
            raise fault("missing-port", f"slot `{slot.name.text}` is not filled, and its node gives no value to pass on",
                        found.span, slot.span)
        return Result({"out": given})

    def check_slots(self, found: Gathered, builder: RegionBuilder, result: Result) -> None:
        """Each slot's signature against what its fill received and gave."""
        types = found.types(builder)
        out = result.outputs[result.default]
        for layer in found.layers:
            if layer.slot is None or found.target is None or out is None:
                continue
            unify = Unifier(layer.scope, f"slot `{layer.slot.name.text}`", local={})
            try:
                self._check_slot(unify, layer.slot, types, builder.type(out), found)
            except Fault as wrong:
                d = wrong.diagnostic
                raise fault("bad-slot-fill", d.headline, *d.labels, Label(found.layers[-1].spec.target.span, "the fill"),
                            note=f"the slot is `{layer.slot.span.text}`", help=d.helps) from None

    def _check_slot(self, unify: Unifier, slot: SlotSpec, types: dict[str, Any], out: TensorType, found: Gathered) -> None:
        before = (dict(unify.scope.dims), dict(unify.scope.stars))
        for name, declared in slot.inputs:
            have = types.get(name)
            if isinstance(have, TensorType):
                unify.take(name, declared, have, found.spans.get(name, (found.span,))[0])
        if slot.output is not None:
            unify.take("result", slot.output, out, found.layers[-1].spec.target.span)
        unify.scope.dims, unify.scope.stars = before


def _within(span: Span, block: BlockSpec) -> bool:
    return span.source is block.span.source and block.name.span.start <= span.start < block.span.stop


def missing_port(name: str, what: str, found: Gathered, *labels: Label) -> Fault:
    filled = len(found.layers) > 1
    return fault("missing-port", f"{what} needs `{name}`", found.target_span, *labels,
                 help=f"wire it: `{name}: NODE`{' in the fill, from a value of the file it is written in' if filled else ''}")
