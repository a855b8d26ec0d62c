"""One op applied: attributes evaluated, owned parameters made, output types inferred."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.graph import Origin, Shape, TensorType, Value, join
from ...ir.signature import Mismatch, RankMismatch, Unbound, parse_signature, spell
from ...lang.diagnostic import Fault, Label, fault
from ...lang.source import Span
from ...lang.tree import Scalar
from ...ops.base import Op, OpFault
from ...ops.values import Constant, NamedParameter
from .attributes import UNSET, attribute, convert, init
from .gather import Gathered
from .scope import Result


def apply_op(found: Gathered, builder: RegionBuilder, name: str, origin: Origin) -> Result:
    """Add the gathered op to `builder`, with a parameter node for each parameter that is not wired."""
    assert found.target is not None
    cls: type[Op] = found.target.what
    op = cls(**attributes(found, cls))
    written_numbers(found, builder, name, origin)
    check_ports(found, builder, op)
    if cls.absent is not Op.absent and not found.ports.get(next(iter(cls.ports()))):
        return Result(dict.fromkeys(op.outputs()))                      # absent here and now: no node at all
    made: dict[str, Value] = {}
    with shape_errors(found, builder, op):
        given = {port: None for port in cls.ports()} | found.types(builder)
        shapes = op.parameter_shapes(given)
        for port, how in op.parameters().items():
            if given.get(port) is None:
                made[port] = parameter(found, builder, join(name, port), shapes[port], port, how.init, origin)
        types = given | {p: builder.type(v) for p, v in made.items()}
        outs = op.infer(types)
        for t in outs:
            negative_sizes(t, op)
    inputs = {p: found.ports.get(p) for p in cls.ports()} | {p: found.ports.get(p) for p in op.parameters()} | made
    node = builder.add(name, op, inputs, op.outputs(), outs, origin)
    result: dict[str, Value | None] = {o: Value(node.id, k) for k, o in enumerate(node.outputs)}
    for port, value in made.items():
        result.setdefault(port, value)
    return Result(result)


def attributes(found: Gathered, cls: type[Op]) -> dict[str, Any]:
    """Constructor arguments of the op from the written fields."""
    out: dict[str, Any] = {}
    sizes: list[tuple[str, Any]] = []
    fields = {f.metadata["key"] or n: (n, f) for n, f in cls.attributes().items() if f.metadata and f.metadata["kind"] != "open"}
    for key, written in found.attributes.items():
        if key in ("init", "trainable") and key not in fields:
            continue
        if key not in fields:
            sizes.append((key, attribute("dim", written.value, written.scope, written.index, f"`{key}`")))
            continue
        name, f = fields[key]
        value = attribute(f.metadata["kind"], written.value, written.scope, written.index, f"`{key}` of `{cls.name}`")
        if value is not UNSET:
            out[name] = _frozen(value)
    if cls.open_attributes:
        out["sizes"] = tuple(sizes)
    missing = [key for key, (n, f) in fields.items() if n not in out and f.default is f.default_factory]
    if missing:
        raise fault("missing-key", f"op `{cls.name}` needs {' and '.join(f'`{k}`' for k in missing)}", found.layers[-1].spec.span,
                    help=f"add `{missing[0]}:`; {fields[missing[0]][1].metadata['doc']}".rstrip("; "))
    return out


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    return value


def written_numbers(found: Gathered, builder: RegionBuilder, name: str, origin: Origin) -> None:
    """Numbers in a list port become constants of the other items' dtype."""
    for key, written in found.numbers.items():
        port, k = key.split(".")
        items = found.ports[port]
        assert isinstance(items, tuple)
        assert isinstance(written.value, Scalar)
        number = convert("number", written.scope.number(written.value, written.index), written.value, f"an item of `{port}`")
        dtype = builder.type(items[0]).dtype if items else "float"
        if dtype == "bool" or (dtype == "int64" and isinstance(number, float)):
            raise fault("dtype-mismatch", f"the number {number} stands beside {dtype} values", written.value.span)
        op = Constant(value=float(number) if dtype == "float" else number, dtype=dtype)
        node = builder.add(f"{name}.{port}_{k}", op, {}, op.outputs(), op.infer({}), origin)
        found.ports[port] = (*items[:int(k)], Value(node.id), *items[int(k):])
        spans = found.spans.get(port, ())
        found.spans[port] = (*spans[:int(k)], written.value.span, *spans[int(k):])


def check_ports(found: Gathered, builder: RegionBuilder, op: Op) -> None:
    """Required ports are there, and only optional ports receive what may be absent."""
    for port, optional in op.ports().items():
        given = found.ports.get(port)
        if given is None and not optional:
            filled = len(found.layers) > 1
            raise fault("missing-port", f"op `{op.name}` needs `{port}`", found.layers[-1].spec.span,
                        note=f"`{op.name}` is `{op.signature}`",
                        help=f"wire it: `{port}: NODE`" + (" in the fill" if filled else ""))
        for value, span in zip(given if isinstance(given, tuple) else (given,), found.spans.get(port, ()), strict=False):
            if value is not None and builder.type(value).optional and not optional:
                inputs = {**found.layers[-1].scope.block.inputs, **found.layers[0].scope.block.inputs}
                declared = inputs.get(span.text)
                raise fault("absent-value", f"`{port}` of `{op.name}` must be there, and this may be absent",
                            Label(span, "optional"),
                            Label(declared.type.span, "declared here") if declared else None)
    dtypes = {p.name: p.pattern.dtype for p in parse_signature(op.signature).inputs}
    for port, type in found.types(builder).items():
        for k, t in enumerate(type if isinstance(type, tuple) else (type,)):
            want = dtypes.get(port, "any")
            if t is not None and want not in ("any", t.dtype) and not (want == "number" and t.dtype != "bool"):
                raise fault("dtype-mismatch", f"`{port}` of `{op.name}` takes {want}, not {t.dtype}",
                            Label(found.spans[port][k], f"this is {t}"), note=f"`{op.name}` is `{op.signature}`")


def parameter(found: Gathered, builder: RegionBuilder, path: str, shape: Any, port: str, start: Any, origin: Origin) -> Value:
    """The node of a parameter that an op owns; `init:` speaks of `weight`, or names the parameters one by one."""
    written, frozen = found.attributes.get("init"), found.attributes.get("trainable")
    trainable = True
    if frozen is not None:
        trainable = attribute("bool", frozen.value, frozen.scope, frozen.index, "`trainable`")
    if written is not None:
        named = getattr(written.value, "get", lambda key: None)(port)
        said: Any = UNSET
        if named is not None:
            said = init(named, written.scope, written.index)
        elif port.startswith("weight") and not any(getattr(written.value, "get", lambda key: None)(p) for p in found.names):
            said = init(written.value, written.scope, written.index)
        start = start if said is UNSET else said
    for d in shape:
        if d.value is None:
            raise fault("unbound-dimension", f"parameter `{port}` would have the free size {d}", found.span,
                        note=f"its shape is {spell(shape)}", help="parameters have fixed sizes: give the width as a number")
        if d.value < 1:
            raise empty(found, port, shape)
    op = NamedParameter(shape=tuple(shape), init=start, trainable=trainable)
    return Value(builder.add(path, op, {}, ("out",), (TensorType("float", tuple(shape)),), origin).id)


def empty(found: Gathered, port: str, shape: Shape) -> Fault:
    """A parameter with a size below 1: the attribute that says so, where it can be told."""
    headline, help = f"parameter `{port}` would have the shape {spell(shape)}", "every size must be at least 1"
    for written in found.attributes.values():
        with suppress(Fault):
            number = written.key.text not in ("init", "trainable")
            if number and attribute("int", written.value, written.scope, written.index, "") < 1:
                return written.scope.traced(fault("bad-attribute", headline, written.value.span,
                                                  Label(found.span, "the parameter's owner"), help=help))
    return fault("bad-attribute", headline, found.span, help=help)


def negative_sizes(type: TensorType, op: Op) -> None:
    for d in type.shape:
        if d.value is not None and d.value < 0:
            raise OpFault("shape-mismatch", f"`{op.name}` would give the shape {spell(type.shape)}, with a negative size",
                          ports={next(iter(op.ports()), ""): ""})


@contextmanager
def shape_errors(found: Gathered, builder: RegionBuilder, op: Op) -> Iterator[None]:
    """Turn what a shape rule raises into a diagnostic that shows both places."""
    note = f"`{op.name}` is `{op.signature}`"
    try:
        yield
    except Mismatch as m:
        first, again = m.first_port, m.port
        labels = [Label(_span(found, again), f"`{m.axis_name}` = {_shown(m.got)}")]
        if first and first in found.spans:
            labels.append(Label(_span(found, first), f"`{m.axis_name}` = {_shown(m.expected)}"))
        elif not first:
            key = next((k for k, w in found.attributes.items()), None)
            labels += [Label(found.keys[key], f"`{m.axis_name}` = {_shown(m.expected)}")] if key else []
        raise fault("shape-mismatch", f"the inputs of `{op.name}` disagree about axis `{m.axis_name}`", *labels,
                    *_producers(found, builder, [again, first]), note=note) from None
    except RankMismatch as m:
        least = len(m.pattern.axes) - (m.pattern.star is not None)
        want = f"{least} or more" if m.pattern.star is not None else str(least)
        raise fault("rank-mismatch", f"`{m.port}` of `{op.name}` takes {want} axes, not {len(m.shape)}",
                    Label(_span(found, m.port), f"this is {spell(m.shape)}"),
                    *_producers(found, builder, [m.port]), note=note) from None
    except Unbound as u:
        raise fault("missing-key", f"nothing decides the size `{u.name}` of `{op.name}`", found.span, note=note) from None
    except OpFault as f:
        labels = [Label(_span(found, port), text) for port, text in f.ports.items()]
        key = f.attribute
        if key and key in found.attributes:
            labels.insert(0, Label(found.attributes[key].value.span))
        wrong = fault(f.code, f.headline, *(labels or [Label(found.span)]), *_producers(found, builder, list(f.ports)),
                      note=f.note or note, help=f.help or ())
        raise (found.attributes[key].scope.traced(wrong) if key in found.attributes else wrong) from None


def _span(found: Gathered, port: str) -> Span:
    name, _, k = port.partition(".")
    spans = found.spans.get(name)
    return spans[min(int(k or 0), len(spans) - 1)] if spans else found.span


def _producers(found: Gathered, builder: RegionBuilder, ports: list[str | None]) -> list[Label]:
    """Where the values at `ports` were made, with their shapes."""
    out = []
    for port in dict.fromkeys(p for p in ports if p):
        name, _, k = port.partition(".")
        value = found.ports.get(name)
        if isinstance(value, tuple):
            value = value[int(k or 0)] if int(k or 0) < len(value) else None
        if isinstance(value, Value) and value.node >= 0:
            node = builder.nodes[value.node]
            if node.origin.span != found.span:
                out.append(Label(node.origin.span, f"`{builder.label(value)}` is {spell(builder.type(value).shape)}"))
    return out


def _shown(x: Any) -> str:
    return spell(x) if isinstance(x, tuple) else str(x)
