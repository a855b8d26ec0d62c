"""scan: copies in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.dimension import Dim
from ...ir.graph import Scan, TensorType, Value
from ...lang.diagnostic import Label, fault
from ...lang.spec import FieldValue
from .attributes import attribute, convert
from .copies import Copies, body, carried, outside, own_length, port_exists, start, target_of, types_of
from .interface import Interface
from .scope import Result

if TYPE_CHECKING:
    from .expand import Expander


def scan(x: Expander, c: Copies) -> Result:
    """One scan node; its body is typed once, with the time axis taken off what it walks along."""
    target = target_of(c)
    axis, extent = _walked(x, c, target)
    starts = {k.text: (k, v) for k, v in c.spec.carry}
    start(x, c, target, starts)
    region = body(x, c, c.spec, None)
    length = own_length(c)
    if length:
        c.inputs["scan.length"] = _length(x, c)
    types = types_of(region)
    carry = {port: carried(port, written, types) for port, (written, _) in starts.items()}
    for port, o in carry.items():
        if types[o] != c.special[port]:
            raise fault("shape-mismatch", f"the carry `{port}` starts as {c.special[port]} and each step gives {types[o]}",
                        Label(starts[port][0].span), note="a carry keeps its type from step to step")
    op = Scan(region, axis, extent, carry, tuple(e.port.text for e in c.spec.each), length, _backward(c))
    outputs, kinds = [], []
    for o, t in types.items():
        if len(t.shape) < axis:
            raise fault("rank-mismatch", f"output `{o}` of the step is {t}, too few axes to stack the steps on axis {axis}",
                        c.spec.span)
        outputs.append(o)
        kinds.append(TensorType(t.dtype, (*t.shape[:axis], extent, *t.shape[axis:])))
    for o in (o for o in types if o in carry.values()):
        outputs.append(f"last.{o}")
        kinds.append(types[o])
    return x.called(c.into.add(c.name, op, c.inputs, outputs, kinds, c.origin))


def _walked(x: Expander, c: Copies, target: Interface) -> tuple[int, Dim]:
    """Bind the `each` values; returns the axis that the scan walks and its size."""
    if not c.spec.each:
        raise fault("bad-node", "a scan needs `each:`, the values that it walks along", c.spec.span)
    axis, extent = -1, Dim.const(0)
    for k, item in enumerate(c.spec.each):
        if item.at is not None:
            raise fault("bad-node", "`at` chooses among the copies of a repeat or branch; a scan takes every step", item.at.span)
        value = outside(x, c, item.value)
        t = c.into.type(value)
        here = _axis(c, t, item.value)
        if k and (here != axis or t.shape[here] != extent):
            raise fault("shape-mismatch", "the values of `each` disagree about the axis that the scan walks",
                        Label(item.value.span, f"this is {t}"), Label(c.spec.each[0].value.span, f"axis {axis} has {extent}"))
        axis, extent = here, t.shape[here]
        port_exists(target, item.port)
        c.inputs[item.port.text] = value
        c.special[item.port.text] = TensorType(t.dtype, (*t.shape[:here], *t.shape[here + 1:]))
    return axis, extent


def _length(x: Expander, c: Copies) -> Value:
    """The lengths of the rows, int64[B], where B is an axis of what each step sees."""
    at = c.spec.fields["length"].value
    value = outside(x, c, at)
    t, step = c.into.type(value), c.special[c.spec.each[0].port.text]
    if t.dtype != "int64" or len(t.shape) != 1 or t.shape[0] not in step.shape:
        raise fault("shape-mismatch", "`length` of a scan is int64[B], one number for each row of a step",
                    Label(at.span, f"this is {t}"),
                    Label(c.spec.each[0].value.span, f"each step sees {step}"))
    return value


def _backward(c: Copies) -> bool:
    return c.spec.backward is not None and bool(attribute("bool", c.spec.backward, c.scope, c.index, "`backward`"))


def _axis(c: Copies, t: TensorType, at: FieldValue) -> int:
    if c.spec.along is None:
        if not t.shape:
            raise fault("rank-mismatch", "a scan cannot walk along a scalar", at.span)
        return 1 if len(t.shape) > 1 else 0
    size = c.scope.number(c.spec.along, c.index)
    size = size if isinstance(size, Dim) else Dim.const(convert("int", size, c.spec.along, "`along`"))
    if size not in t.shape:
        raise fault("shape-mismatch", f"no axis of this value has the size `{c.spec.along.text}`", Label(at.span, f"this is {t}"),
                    c.spec.along.span)
    return t.shape.index(size)
