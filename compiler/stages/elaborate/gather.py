"""What a node's target receives: its own keys and, for slots, those of the fill, each looked up where it was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.graph import Input, TensorType, Value
from ...lang.diagnostic import Label, fault, suggest
from ...lang.source import Span
from ...lang.spec import Field, FieldValue, Items, NodeSpec, SlotSpec
from ...lang.tree import Mapping as TreeMapping
from ...lang.tree import Scalar
from .interface import Interface, interface
from .scope import Fill, Scope

Inline = Callable[[NodeSpec, Scope, "int | None"], "Value | None"]


@dataclass(frozen=True)
class Layer:
    """The keys of one written node on the way from a slot to its fill."""

    spec: NodeSpec
    interface: Interface
    scope: Scope
    index: int | None
    slot: SlotSpec | None = None


@dataclass(frozen=True)
class Written:
    """A field value and where its names are looked up."""

    key: Scalar
    value: FieldValue
    scope: Scope
    index: int | None


@dataclass
class Gathered:
    """The target, and what it is given: values live in one builder. `target` None passes `in` through."""

    target: Interface | None
    layers: list[Layer]
    ports: dict[str, Input] = field(default_factory=dict)
    spans: dict[str, tuple[Span, ...]] = field(default_factory=dict)
    numbers: dict[str, Written] = field(default_factory=dict)          # `port` or `port.k` -> a written number
    attributes: dict[str, Written] = field(default_factory=dict)
    fills: dict[str, Fill] = field(default_factory=dict)
    keys: dict[str, Span] = field(default_factory=dict)

    @property
    def span(self) -> Span:
        return self.layers[0].spec.span

    @property
    def target_span(self) -> Span:
        """Where the target is named: by the node, or by the fill of its slot."""
        return self.layers[-1].spec.target.span if len(self.layers) > 1 else self.span

    @property
    def names(self) -> list[str]:
        return list(self.target.ports) if self.target else ["in"]

    def types(self, builder: RegionBuilder) -> dict[str, TensorType | tuple[TensorType, ...] | None]:
        def one(given: Input) -> Any:
            if isinstance(given, tuple):
                return tuple(builder.type(v) for v in given)
            return None if given is None else builder.type(given)
        return {port: one(given) for port, given in self.ports.items()}


def resolve(spec: NodeSpec, scope: Scope, index: int | None) -> list[Layer]:
    """The layers from a node through the slots it names to an op or a block; the last has the target, or the slot
    itself when an optional slot is not filled."""
    found = interface(spec, scope.block)
    layer = Layer(spec, found, scope, index)
    if found.kind != "slot":
        return [layer]
    layer = replace(layer, slot=found.what)
    fill = scope.slots.get(found.name)
    if fill is None:
        return [layer]
    if fill.spec.control:
        raise fault("bad-slot-fill", "a slot is filled by an op or a block, not by copies of one", fill.spec.span,
                    Label(found.what.span, "the slot"),
                    help=f"put the `{fill.spec.control}` in a block and fill the slot with that")
    return [layer, *resolve(fill.spec, fill.scope, fill.index)]


def gather(spec: NodeSpec, scope: Scope, index: int | None, into: RegionBuilder, inline: Inline,
           skip: frozenset[str] = frozenset()) -> Gathered:
    """Look up every key of the node (and of the fill behind its slot); values are captured into `into`."""
    layers = resolve(spec, scope, index)
    last = layers[-1].interface
    out = Gathered(None if last.kind == "slot" else last, layers)
    written = [(f, layer) for k, layer in enumerate(layers) for f in layer.spec.fields.values() if k or f.key.text not in skip]
    for (f, layer), (role, seen) in zip(written, [_role(out, f, layer) for f, layer in written], strict=True):
        _take(out, f, layer, role, seen, into, inline)
    return out


def _role(out: Gathered, f: Field, layer: Layer) -> tuple[str, Interface]:
    """What a key is, and of what. Asked of all keys before any value is, which may be wrong and told already."""
    seen = layer.interface if layer.interface.kind == "slot" else out.target or layer.interface
    role = seen.role(f.key.text, f.value, layer.scope.block)
    if role is None:
        raise _unknown(f, seen)
    return role, seen


def _take(out: Gathered, f: Field, layer: Layer, role: str, seen: Interface, into: RegionBuilder, inline: Inline) -> None:
    key = f.key.text
    if seen.kind == "slot" and out.target and key not in out.target.ports:
        raise fault("bad-slot-fill", f"`{out.target.name}` cannot fill slot `{seen.name}`: it has no port `{key}`",
                    layer.scope.slots[seen.name].spec.target.span,  # type: ignore[union-attr]
                    Label(f.key.span, "the slot's node gives it here"), help=suggest(key, out.target.ports, "ports"))
    if key in out.keys:
        raise fault("bad-slot-fill", f"`{key}` is given twice, by the slot's node and by the fill", f.key.span,
                    Label(out.keys[key], "given here too"), help="leave it to the block that has the slot")
    out.keys[key] = f.key.span
    if role == "port":
        _port(out, f, layer, into, inline)
    elif role == "slot":
        out.fills[key] = Fill(_fill(f.value), layer.scope, layer.index)
    else:
        out.attributes[key] = Written(f.key, f.value, layer.scope, layer.index)


def _port(out: Gathered, f: Field, layer: Layer, into: RegionBuilder, inline: Inline) -> None:
    key, target = f.key.text, out.target
    several = target is not None and target.kind == "op" and key in target.what.variadic
    if isinstance(f.value, Items):
        if not several:
            raise fault("bad-port", f"port `{key}` takes one value, not a list", f.value.span)
        made: list[Value] = []
        spans: list[Span] = []
        for k, item in enumerate(f.value.items):
            if is_number(item):
                assert isinstance(item, Scalar)
                out.numbers[f"{key}.{k}"] = Written(f.key, item, layer.scope, layer.index)
                continue
            value = _value(item, layer, into, inline)
            if value is not None:
                made.append(value)
                spans.append(item.span)
        out.ports[key] = tuple(made)
        out.spans[key] = tuple(spans)
    else:
        value = _value(f.value, layer, into, inline)
        out.ports[key] = (value,) if several and value is not None else value
        out.spans[key] = (f.value.span,)


def _value(value: FieldValue, layer: Layer, into: RegionBuilder, inline: Inline) -> Value | None:
    scope = layer.scope
    if isinstance(value, NodeSpec):
        made = inline(value, scope, layer.index)
        return None if made is None else into.capture(made, scope.builder)
    if isinstance(value, TreeMapping):
        raise fault("bad-port", "a port takes the name of a value, or a node written in place", value.span,
                    help="a node says `op:`, `block:` or `slot:`")
    if isinstance(value, Items):
        raise fault("bad-port", "a port takes no nested list", value.span)
    found = scope.reference(value)
    return None if found is None else into.capture(found, scope.builder)


def is_number(value: FieldValue) -> bool:
    """Whether a value in a list port is a written number."""
    if not isinstance(value, Scalar):
        return False
    try:
        float(value.text)
    except ValueError:
        return False
    return True


def _fill(value: FieldValue) -> NodeSpec:
    if isinstance(value, NodeSpec):
        return value
    if isinstance(value, Scalar):
        return NodeSpec(value.text, "name", value, {}, value.span)
    raise fault("bad-slot-fill", "a slot is filled with the name of a block or an op, or with a node", value.span,
                help="write `{block: NAME, ...}` or `{op: NAME, ...}`")


def _unknown(f: Field, target: Interface) -> Exception:
    key = f.key.text
    where = Label(target.what.name.span, f"block `{target.name}` is defined here") if target.kind == "block" else None
    if target.kind == "slot":
        where = Label(target.what.span, "the slot's signature")
    wanted = [f"`{n}`" for n, slot in target.slots.items() if not slot.optional]
    note = f"its slots to fill: {', '.join(wanted)}" if wanted else ()
    return fault("unknown-key", f"{target.kind} `{target.name}` has no {'port' if target.kind == 'slot' else 'key'} `{key}`",
                 f.key.span, where, help=suggest(key, target.keys, "keys"), note=note)
