"""repeat, scan and branch: copies in depth, in time and side by side, kept folded as distinct bodies."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.graph import Branch, Input, Origin, Region, Repeat, Scan, TensorType, Value, join
from ...ir.text import describe
from ...lang.diagnostic import Label, fault, suggest
from ...lang.spec import FieldValue, Items, NodeSpec
from ...lang.tree import Mapping as TreeMapping, Scalar
from ...ops.registry import OPS
from .apply import apply_op
from .attributes import attribute, convert
from .gather import Gathered, gather, is_number, resolve
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


def expand(x: Expander, spec: NodeSpec, scope: Scope, name: str, index: int | None) -> Result:
    copies = Copies(spec, scope, name, index, scope.origin(spec.span))
    if spec.control == "scan":
        return _scan(x, copies)
    return _repeat(x, copies) if spec.control == "repeat" else _branch(x, copies)


def _body(x: Expander, c: Copies, variant: NodeSpec, index: int | None) -> Region:
    """One body: the arguments are the special ports, the fixed ports and what the fills capture."""
    skip = frozenset({*c.special, "length"} if _own_length(c) else c.special)
    found = gather(replace(variant, control=None, pattern=()), c.scope, index if index is not None else c.index, c.into, x.inline, skip)
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
    inner = replace(found, ports=ports)
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
    return body.finish(list(result.outputs.items()))


def _types(region: Region) -> dict[str, TensorType]:
    return {n: region.type(v) for n, v in region.outputs}


# depth


def _repeat(x: Expander, c: Copies) -> Result:
    n = _count(c)
    target = _target(c)
    each = _each(x, c, n)
    carry: dict[str, str] = {}
    starts = dict((k.text, (k, v)) for k, v in c.spec.carry)
    if "in" in target.ports and "in" in c.spec.fields and "in" not in each and "in" not in starts:
        f = c.spec.fields["in"]
        starts["in"] = (f.key, f.value)
    _start(x, c, target, starts)
    bodies, schedule, ends = _schedule(x, c, n, starts, carry)
    share = _share(c, n, schedule)
    op = Repeat(tuple(bodies), tuple(schedule), share, carry, {p: at for p, (_, at) in each.items()})
    names = [o for o, _ in bodies[schedule[-1]].outputs]
    kinds = [_types(bodies[k]) for k in schedule]
    same = [o for o in names if all(t.get(o) == kinds[0].get(o) for t in kinds)]
    outputs = [*names, *(f"all.{o}" for o in same)]
    types = [*(ends[o] for o in names), *(replace(kinds[0][o], shape=(Dim.const(n), *kinds[0][o].shape)) for o in same)]
    node = c.into.add(c.name, op, c.inputs, outputs, types, c.origin)
    result = x.called(node)
    if names[0] in same:
        result.outputs["all"] = node.output(f"all.{names[0]}")
    result.reasons = {f"all.{o}": "its shape differs between the copies" for o in names if o not in same}
    return result


def _schedule(x: Expander, c: Copies, n: int, starts: dict[str, Any], carry: dict[str, str]) -> tuple[list[Region], list[int], dict[str, TensorType]]:
    """The distinct bodies, which one each copy runs, and the last copy's output types."""
    variants = _variants(c, n)
    bodies: list[Region] = []
    texts: dict[str, int] = {}
    known: dict[Any, int] = {}
    schedule: list[int] = []
    types: dict[str, TensorType] = {}
    for i in range(n):
        variant = variants[i % len(variants)]
        counted = _mentions_index(variant)
        key = (id(variant), i if counted else None, tuple(c.special.items()))
        if key not in known:
            region = _body(x, c, variant, i if counted else None)
            text = describe(region)
            if text not in texts:
                texts[text] = len(bodies)
                bodies.append(region)
            known[key] = texts[text]
        schedule.append(known[key])
        types = _types(bodies[known[key]])
        for port, (written, _) in starts.items():
            carry[port] = _carried(port, written, types, c)
            c.special[port] = types[carry[port]]
    return bodies, schedule, types


def _carried(port: str, written: Scalar, types: dict[str, TensorType], c: Copies) -> str:
    """The body output that feeds a carried port in the next copy."""
    if port in types:
        return port
    if port == "in":
        return next(iter(types))
    raise fault("bad-carry", f"the body has no output `{port}` to carry on", written.span, help=suggest(port, types, "outputs"),
                note="a carry's port and the body output that feeds it have the same name")


def _variants(c: Copies, n: int) -> list[NodeSpec]:
    """The cycle of bodies as written, `times:` spelt out."""
    if not c.spec.pattern:
        return [c.spec]
    out: list[NodeSpec] = []
    for times, variant in c.spec.pattern:
        k = 1 if times is None else convert("int", c.scope.number(times, c.index), times, "`times`")
        if not 1 <= k <= MAX_COPIES:
            raise fault("bad-attribute", f"`times` is at least 1, not {k}", times.span if times else c.spec.span)
        out.extend([variant] * k)
    if len(out) > n:
        raise fault("bad-attribute", f"the pattern holds {len(out)} copies and `{c.spec.control}` makes {n}", c.spec.pattern[-1][1].span,
                    *([c.spec.count.span] if c.spec.count else []))
    return out


def _share(c: Copies, n: int, schedule: list[int]) -> tuple[int, ...]:
    """The owner of each copy's parameters: the first of the copies for which `share` gives the same number."""
    if c.spec.share is None:
        return tuple(range(n))
    owners: dict[int, int] = {}
    out = []
    for i in range(n):
        k = owners.setdefault(convert("int", c.scope.number(c.spec.share, i), c.spec.share, "`share`"), i)
        if schedule[i] != schedule[k]:
            raise fault("bad-attribute", f"copies {k} and {i} differ, so they cannot share parameters", c.spec.share.span)
        out.append(k)
    return tuple(out)


# side by side


def _branch(x: Expander, c: Copies) -> Result:
    n = _count(c)
    each = _each(x, c, n)
    routed = _route(x, c, n) if c.spec.route else None
    bodies, schedule, _ = _schedule(x, c, n, {}, {})
    share = _share(c, n, schedule)
    op = Branch(tuple(bodies), tuple(schedule), share, {p: at for p, (_, at) in each.items()}, routed is not None)
    kinds = [_types(bodies[k]) for k in schedule]
    names = list(kinds[0])
    for o in names:
        odd = next((i for i, t in enumerate(kinds) if t.get(o) != kinds[0][o]), None)
        if odd is not None:
            raise fault("shape-mismatch", f"output `{o}` is {kinds[0][o]} in copy 0 and {kinds[odd].get(o)} in copy {odd}", c.spec.span)
    if routed is not None:
        rows, width = routed.shape[:-1], kinds[0][names[0]].shape[-1:]
        node = c.into.add(c.name, op, c.inputs, ["out"], [TensorType("float", (*rows, *width))], c.origin)
        return x.called(node)
    types = [replace(kinds[0][o], shape=(Dim.const(n), *kinds[0][o].shape)) for o in names]
    result = x.called(c.into.add(c.name, op, c.inputs, [f"all.{o}" for o in names], types, c.origin))
    result.outputs["all"] = result.outputs[f"all.{names[0]}"]
    return result


def _route(x: Expander, c: Copies, n: int) -> TensorType:
    """Bind `route:`; the body sees its rows as one axis. Returns the type of `in`."""
    assert c.spec.route
    f = c.spec.fields.get("in")
    if f is None:
        raise fault("missing-port", "a routed branch needs `in`", c.spec.span, help="wire what the copies are applied to: `in: NODE`")
    value = _outside(x, c, f.value)
    given = c.into.type(value)
    for key, dtype in (("weights", "float"), ("indices", "int64")):
        ref = c.spec.route[key]
        routed = _outside(x, c, ref)
        t = c.into.type(routed)
        if t.dtype != dtype or t.shape[:-1] != given.shape[:-1]:
            raise fault("shape-mismatch", f"`{key}` of `route` is {dtype}[..., k] over the rows of `in`", Label(ref.span, f"this is {t}"),
                        Label(f.value.span, f"`in` is {given}"))
        c.inputs[f"route.{key}"] = routed
    c.inputs["in"] = value
    rows = reduce(lambda a, b: a * b, given.shape[:-1], Dim.const(1))
    c.special["in"] = TensorType(given.dtype, (rows, given.shape[-1]))
    return given


# time


def _scan(x: Expander, c: Copies) -> Result:
    target = _target(c)
    if not c.spec.each:
        raise fault("bad-node", "a scan needs `each:`, the values that it walks along", c.spec.span)
    axis, extent = None, None
    for item in c.spec.each:
        if item.at is not None:
            raise fault("bad-node", "`at` chooses among the copies of a repeat or branch; a scan takes every step", item.at.span)
        value = _outside(x, c, item.value)
        t = c.into.type(value)
        here = _axis(c, t, item.value)
        if extent is not None and (here != axis or t.shape[here] != extent):
            raise fault("shape-mismatch", "the values of `each` disagree about the axis that the scan walks", Label(item.value.span, f"this is {t}"),
                        Label(c.spec.each[0].value.span, f"axis {axis} has {extent}"))
        axis, extent = here, t.shape[here]
        _port_exists(target, item.port)
        c.inputs[item.port.text] = value
        c.special[item.port.text] = TensorType(t.dtype, (*t.shape[:here], *t.shape[here + 1:]))
    assert axis is not None and extent is not None
    starts = {k.text: (k, v) for k, v in c.spec.carry}
    _start(x, c, target, starts)
    length = _own_length(c)
    region = _body(x, c, c.spec, None)
    if length:
        c.inputs["scan.length"] = _outside(x, c, c.spec.fields["length"].value)
    types = _types(region)
    carry = {port: _carried(port, written, types, c) for port, (written, _) in starts.items()}
    for port, o in carry.items():
        if types[o] != c.special[port]:
            raise fault("shape-mismatch", f"the carry `{port}` starts as {c.special[port]} and each step gives {types[o]}",
                        Label(starts[port][0].span), note="a carry keeps its type from step to step")
    backward = c.spec.backward is not None and convert_bool(c)
    op = Scan(region, axis, extent, carry, tuple(e.port.text for e in c.spec.each), length, backward)
    outputs, kinds = [], []
    for o, t in types.items():
        if len(t.shape) < axis:
            raise fault("rank-mismatch", f"output `{o}` of the step is {t}, too few axes to stack the steps on axis {axis}", c.spec.span)
        outputs.append(o)
        kinds.append(TensorType(t.dtype, (*t.shape[:axis], extent, *t.shape[axis:])))
    for o in dict.fromkeys(carry.values()):
        outputs.append(f"last.{o}")
        kinds.append(types[o])
    return x.called(c.into.add(c.name, op, c.inputs, outputs, kinds, c.origin))


def convert_bool(c: Copies) -> bool:
    assert c.spec.backward is not None
    return bool(attribute("bool", c.spec.backward, c.scope, c.index, "`backward`"))


def _own_length(c: Copies) -> bool:
    """Whether `length:` speaks to the scan: it does unless the step has a port of that name."""
    return c.spec.control == "scan" and "length" in c.spec.fields and "length" not in _target(c).ports


def _axis(c: Copies, t: TensorType, at: FieldValue) -> int:
    if c.spec.along is None:
        if not t.shape:
            raise fault("rank-mismatch", "a scan cannot walk along a scalar", at.span)
        return 1 if len(t.shape) > 1 else 0
    size = c.scope.number(c.spec.along, c.index)
    size = size if isinstance(size, Dim) else Dim.const(convert("int", size, c.spec.along, "`along`"))
    if size not in t.shape:
        raise fault("shape-mismatch", f"no axis of this value has the size `{c.spec.along.text}`", Label(at.span, f"this is {t}"), c.spec.along.span)
    return t.shape.index(size)


# shared


def _target(c: Copies) -> Interface:
    spec = c.spec.pattern[0][1] if c.spec.pattern else c.spec
    return resolve(replace(spec, control=None), c.scope, c.index)[-1].interface


def _port_exists(target: Interface, port: Scalar) -> None:
    if port.text not in target.ports:
        raise fault("unknown-key", f"{target.kind} `{target.name}` has no port `{port.text}`", port.span, help=suggest(port.text, target.ports, "ports"))


def _count(c: Copies) -> int:
    assert c.spec.count is not None
    n = convert("int", c.scope.number(c.spec.count, c.index), c.spec.count, f"`{c.spec.control}`", c.scope)
    if not 1 <= n <= MAX_COPIES:
        raise fault("bad-attribute", f"`{c.spec.control}` makes 1 to {MAX_COPIES} copies, not {n}", c.spec.count.span)
    return int(n)


def _each(x: Expander, c: Copies, n: int) -> dict[str, tuple[Value, tuple[int, ...]]]:
    """What each copy takes from the leading axis of a value."""
    out = {}
    for item in c.spec.each:
        value = _outside(x, c, item.value)
        t = c.into.type(value)
        extent = t.shape[0].value if t.shape else None
        if extent is None:
            raise fault("shape-mismatch", f"`each` takes element i of the leading axis, whose size must be known: this is {t}", item.value.span)
        if item.at is None and extent != n:
            raise fault("shape-mismatch", f"`{item.port.text}` has {extent} elements for {n} copies", Label(item.value.span, f"this is {t}"),
                        Label(c.spec.count.span, f"{n} copies") if c.spec.count else None)
        at = tuple(range(n)) if item.at is None else tuple(convert("int", c.scope.number(item.at, i), item.at, "`at`") for i in range(n))
        bad = next((k for k in at if not 0 <= k < extent), None)
        if bad is not None and item.at is not None:
            raise fault("bad-attribute", f"`at` asks for element {bad} of {extent}", item.at.span, item.value.span)
        _port_exists(_target(c), item.port)
        out[item.port.text] = (value, at)
        c.inputs[item.port.text] = value
        c.special[item.port.text] = TensorType(t.dtype, t.shape[1:])
    return out


def _start(x: Expander, c: Copies, target: Interface, starts: dict[str, tuple[Scalar, FieldValue]]) -> None:
    """The first values of carried ports; a number stands for a tensor of it, of the type that the block declares."""
    numbers = {}
    for port, (key, value) in starts.items():
        _port_exists(target, key)
        if is_number(value):
            numbers[port] = value
            continue
        start = _outside(x, c, value)
        c.inputs[port], c.special[port] = start, c.into.type(start)
    for port, value in numbers.items():
        assert isinstance(value, Scalar)
        t = _declared(x, c, target, port, value)
        number = convert("number", c.scope.number(value, c.index), value, f"`{port}`")
        op = OPS["full"](value=float(number) if t.dtype == "float" else number, shape=t.shape, dtype=t.dtype)  # type: ignore[call-arg]
        node = c.into.add(join(c.name, port), op, {}, ("out",), op.infer({}), c.origin)
        c.inputs[port], c.special[port] = Value(node.id), t


def _declared(x: Expander, c: Copies, target: Interface, port: str, at: Scalar) -> TensorType:
    """The type of a block's port, from the settings and the ports that are known."""
    if target.kind != "block":
        raise fault("bad-carry", "a carry that starts as a number needs a block, whose inputs say its shape", at.span)
    block = target.what
    skip = frozenset({*(k for k in c.spec.fields if k not in target.keys), *(k.text for k, _ in c.spec.carry), *(e.port.text for e in c.spec.each)})
    found = gather(replace(c.spec, control=None, pattern=()), c.scope, c.index, c.into, x.inline, skip)
    scope = Scope(block, c.into, (c.spec.span,))
    x.settings(found, scope, c.spec.span)
    unify = Unifier(scope, f"block `{block.name.text}`")
    known = {p: t for p, t in found.types(c.into).items() if isinstance(t, TensorType)} | c.special
    for name, t in known.items():
        if name in block.inputs:
            unify.take(name, block.inputs[name].type, t, at.span)
    shape = unify.shape(block.inputs[port].type)
    if shape is None:
        raise fault("bad-carry", f"the shape of `{port}` is not decided by the other inputs, so it cannot start as a number", at.span,
                    Label(block.inputs[port].type.span, "declared here"), help="give it a node of the right shape, such as `op: full`")
    return TensorType(block.inputs[port].type.dtype, shape)


def _outside(x: Expander, c: Copies, value: FieldValue) -> Value:
    """A value of the scope that the control node is written in; it must be there."""
    if not isinstance(value, Scalar | NodeSpec):
        raise fault("bad-port", "this takes the name of a value", value.span)
    found = x.inline(value, c.scope, c.index) if isinstance(value, NodeSpec) else c.scope.reference(value)
    if found is None:
        raise fault("absent-value", f"`{value.text if isinstance(value, Scalar) else value.target.text}` is absent here", value.span)
    return found


def _mentions_index(spec: NodeSpec) -> bool:
    """Whether any expression in the node or its fills may use `i`."""
    def scalars(value: FieldValue) -> bool:
        if isinstance(value, Scalar):
            return re.search(r"\bi\b", value.text) is not None
        if isinstance(value, Items):
            return any(scalars(v) for v in value.items)
        if isinstance(value, NodeSpec):
            return _mentions_index(value)
        return isinstance(value, TreeMapping) and any(isinstance(e.value, Scalar) and scalars(e.value) for e in value)
    return any(scalars(f.value) for f in spec.fields.values())

