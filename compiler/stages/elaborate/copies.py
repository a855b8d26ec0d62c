"""What repeat, scan and branch share: the body of a copy, and what goes into it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...ir.builder import RegionBuilder
from ...ir.graph import Input, Origin, Region, TensorType, Value, join
from ...lang.diagnostic import Fault, Label, fault, suggest
from ...lang.source import Span
from ...lang.spec import FieldValue, Items, NodeSpec
from ...lang.tree import Mapping as TreeMapping
from ...lang.tree import Scalar
from ...ops.values import Full
from .apply import apply_op
from .attributes import convert
from .gather import gather, is_number, resolve
from .interface import Interface
from .scope import Result, Scope
from .unify import Unifier

if TYPE_CHECKING:
    from .expand import Expander

MAX_COPIES = 10_000


@dataclass
class Copies:
    """What all copies of one control node share while their bodies are made."""

    spec: NodeSpec
    scope: Scope
    name: str
    index: int | None
    origin: Origin
    names: dict[Value, str] = field(default_factory=dict)          # captured value -> argument name
    inputs: dict[str, Input] = field(default_factory=dict)         # argument name -> value outside
    special: dict[str, TensorType] = field(default_factory=dict)   # carry and each ports -> type inside

    @property
    def into(self) -> RegionBuilder:
        return self.scope.builder

    def argument(self, port: str, value: Value) -> str:
        """The argument name for a fixed port; patterns may give one port different values."""
        name, n = port, 2
        while self.inputs.get(name, value) != value:
            name, n = f"{port}_{n}", n + 1
        self.inputs[name] = value
        return name


def body(x: Expander, c: Copies, variant: NodeSpec, index: int | None) -> Region:
    """One body: the arguments are the special ports, the fixed ports and what the fills capture."""
    skip = frozenset({*c.special, "length"} if own_length(c) else c.special)
    found = gather(replace(variant, control=None, pattern=()), c.scope, index if index is not None else c.index, c.into, x.inline,
                   skip)
    name = found.target.name if found.target else found.layers[-1].interface.name
    body = RegionBuilder(name, c.origin, c.into, c.names)
    ports: dict[str, Input] = {}
    for port, given in found.ports.items():
        if isinstance(given, tuple):
            ports[port] = tuple(body.argument(c.argument(f"{port}_{k}", v), c.into.type(v)) for k, v in enumerate(given))
        elif given is not None:
            ports[port] = body.argument(c.argument(port, given), c.into.type(given))
    for port, type in c.special.items():
        ports[port] = body.argument(port, type)
    inner = replace(found, ports=ports, spans=found.spans | {p: (span,) for p, span in written_at(c).items()})
    if found.target is None:
        result = x.passed(inner)
    elif found.target.kind == "op":
        result = apply_op(inner, body, "", c.origin)
        if None in result.outputs.values():
            raise fault("absent-value", f"`{found.target.name}` gives nothing here: all that it takes is absent", c.spec.span)
        result = Result({k: v for k, v in result.outputs.items() if v and v.node == len(body.nodes) - 1})
    else:
        result = x.body(found, body, {k: v for k, v in ports.items() if isinstance(v, Value)}, found.span, c.origin.chain)
    x.check_slots(inner, body, result)
    c.inputs |= body.captures()
    return body.finish(list(result.present.items()))


def written_at(c: Copies) -> dict[str, Span]:
    """Where the value of each port stands: among the node's keys, under `each:` or under `carry:`."""
    fields = {p: f.value.span for p, f in c.spec.fields.items()}
    return fields | {e.port.text: e.value.span for e in c.spec.each} | {k.text: v.span for k, v in c.spec.carry}


def types_of(region: Region) -> dict[str, TensorType]:
    return {n: region.type(v) for n, v in region.outputs}


def own_length(c: Copies) -> bool:
    """Whether `length:` speaks to the scan: it does unless the step has a port of that name."""
    return c.spec.control == "scan" and "length" in c.spec.fields and "length" not in target_of(c).ports


def target_of(c: Copies) -> Interface:
    spec = c.spec.pattern[0][1] if c.spec.pattern else c.spec
    return resolve(replace(spec, control=None), c.scope, c.index)[-1].interface


def port_exists(target: Interface, port: Scalar) -> None:
    if port.text not in target.ports:
        raise fault("unknown-key", f"{target.kind} `{target.name}` has no port `{port.text}`", port.span,
                    help=suggest(port.text, target.ports, "ports"))


def count(c: Copies) -> int:
    assert c.spec.count is not None
    try:
        n = convert("int", c.scope.number(c.spec.count, c.index), c.spec.count, f"`{c.spec.control}`", c.scope)
        if not 1 <= n <= MAX_COPIES:
            raise fault("bad-attribute", f"`{c.spec.control}` makes 1 to {MAX_COPIES:,} copies, not {n:,}", c.spec.count.span)
    except Fault as found:
        raise c.scope.traced(found) from None
    return int(n)


def given_once(c: Copies) -> None:
    """Refuse a port that two of the node's own keys, `each:` and `carry:` give."""
    ways = [*((f.key, "") for f in c.spec.fields.values()), *((e.port, " under `each:`") for e in c.spec.each),
            *((k, " under `carry:`") for k, _ in c.spec.carry)]
    seen: dict[str, Scalar] = {}
    for key, where in ways:
        if key.text in seen:
            raise fault("bad-port", f"port `{key.text}` is given twice", Label(key.span, f"given again{where}"),
                        Label(seen[key.text].span, "given here"),
                        help="a port is the same for all copies, or takes an element of `each:`, or is chained by `carry:`")
        seen[key.text] = key


def each_of(x: Expander, c: Copies, n: int) -> dict[str, tuple[Value, tuple[int, ...]]]:
    """What each copy takes from the leading axis of a value."""
    out = {}
    for item in c.spec.each:
        port_exists(target_of(c), item.port)
        value = outside(x, c, item.value)
        t = c.into.type(value)
        extent = t.shape[0].value if t.shape else None
        if extent is None:
            raise fault("shape-mismatch", f"`each` takes element i of the leading axis, whose size must be known: this is {t}",
                        item.value.span)
        if item.at is None and extent != n:
            raise fault("shape-mismatch", f"`{item.port.text}` has {extent} elements for {n} copies",
                        Label(item.value.span, f"this is {t}"),
                        Label(c.spec.count.span, f"{n} copies") if c.spec.count else None)
        at = tuple(range(n))
        if item.at is not None:
            at = tuple(convert("int", c.scope.number(item.at, i), item.at, "`at`") for i in range(n))
        bad = next((k for k in at if not 0 <= k < extent), None)
        if bad is not None and item.at is not None:
            raise fault("bad-attribute", f"`at` asks for element {bad} of {extent}",
                        Label(item.at.span, f"copy {at.index(bad)} asks for {bad}"),
                        Label(item.value.span, f"this is {t}"), help=f"elements count from 0 to {extent - 1}")
        out[item.port.text] = (value, at)
        c.inputs[item.port.text] = value
        c.special[item.port.text] = TensorType(t.dtype, t.shape[1:])
    return out


def start(x: Expander, c: Copies, target: Interface, starts: dict[str, tuple[Scalar, FieldValue]]) -> None:
    """The first values of carried ports; a number stands for a tensor of it, of the type that the block declares."""
    numbers = {}
    for port, (key, value) in starts.items():
        port_exists(target, key)
        if is_number(value):
            numbers[port] = value
            continue
        start = outside(x, c, value)
        c.inputs[port], c.special[port] = start, c.into.type(start)
    for port, value in numbers.items():
        assert isinstance(value, Scalar)
        t = declared(x, c, target, port, value)
        number = convert("number", c.scope.number(value, c.index), value, f"`{port}`")
        op = Full(value=float(number) if t.dtype == "float" else number, shape=t.shape, dtype=t.dtype)
        node = c.into.add(join(c.name, port), op, {}, ("out",), op.infer({}), c.origin)
        c.inputs[port], c.special[port] = Value(node.id), t


def declared(x: Expander, c: Copies, target: Interface, port: str, at: Scalar) -> TensorType:
    """The type of a block's port, from the settings and the ports that are known."""
    if target.kind != "block":
        raise fault("bad-carry", "a carry that starts as a number needs a block, whose inputs say its shape", at.span)
    block = target.what
    skip = frozenset({*(k for k in c.spec.fields if k not in target.keys), *(k.text for k, _ in c.spec.carry),
                      *(e.port.text for e in c.spec.each)})
    found = gather(replace(c.spec, control=None, pattern=()), c.scope, c.index, c.into, x.inline, skip)
    scope = Scope(block, c.into, (c.spec.span,))
    x.settings(found, scope)
    unify = Unifier(scope, f"block `{block.name.text}`")
    known = {p: t for p, t in found.types(c.into).items() if isinstance(t, TensorType)} | c.special
    for name, t in known.items():
        if name in block.inputs:
            unify.take(name, block.inputs[name].type, t, written_at(c).get(name, at.span))
    shape = unify.shape(block.inputs[port].type)
    if shape is None:
        raise fault("bad-carry", f"the shape of `{port}` is not decided by the other inputs, so it cannot start as a number",
                    at.span,
                    Label(block.inputs[port].type.span, "declared here"),
                    help="give it a node of the right shape, such as `op: full`")
    return TensorType(block.inputs[port].type.dtype, shape)


def outside(x: Expander, c: Copies, value: FieldValue) -> Value:
    """A value of the scope that the control node is written in; it must be there."""
    if not isinstance(value, Scalar | NodeSpec):
        raise fault("bad-port", "this takes the name of a value", value.span)
    found = x.inline(value, c.scope, c.index) if isinstance(value, NodeSpec) else c.scope.reference(value)
    if found is None:
        raise fault("absent-value", f"`{value.text if isinstance(value, Scalar) else value.target.text}` is absent here",
                    value.span)
    return found


def mentions_index(spec: NodeSpec) -> bool:
    """Whether any expression in the node or its fills may use `i`."""
    def scalars(value: FieldValue) -> bool:
        if isinstance(value, Scalar):
            return re.search(r"\bi\b", value.text) is not None
        if isinstance(value, Items):
            return any(scalars(v) for v in value.items)
        if isinstance(value, NodeSpec):
            return mentions_index(value)
        return isinstance(value, TreeMapping) and any(isinstance(e.value, Scalar) and scalars(e.value) for e in value)
    return any(scalars(f.value) for f in spec.fields.values())


def carried(port: str, written: Scalar, types: dict[str, TensorType]) -> str:
    """The body output that feeds a carried port in the next copy."""
    if port in types:
        return port
    if port == "in":
        return next(iter(types))
    raise fault("bad-carry", f"the body has no output `{port}` to carry on", written.span, help=suggest(port, types, "outputs"),
                note="a carry's port and the body output that feeds it have the same name")
