"""scan: copies in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.dimension import Dim
from ...ir.graph import Scan, TensorType
from ...lang.diagnostic import Label, fault
from ...lang.spec import FieldValue
from .attributes import attribute, convert
from .copies import Copies, body, carried, outside, own_length, port_exists, start, target_of, types_of
from .scope import Result

if TYPE_CHECKING:
    from .expand import Expander


def scan(x: Expander, c: Copies) -> Result:
    target = target_of(c)
    if not c.spec.each:
        raise fault("bad-node", "a scan needs `each:`, the values that it walks along", c.spec.span)
    axis, extent = None, None
    for item in c.spec.each:
        if item.at is not None:
            raise fault("bad-node", "`at` chooses among the copies of a repeat or branch; a scan takes every step", item.at.span)
        value = outside(x, c, item.value)
        t = c.into.type(value)
        here = _axis(c, t, item.value)
        if extent is not None and (here != axis or t.shape[here] != extent):
            raise fault("shape-mismatch", "the values of `each` disagree about the axis that the scan walks", Label(item.value.span, f"this is {t}"),
                        Label(c.spec.each[0].value.span, f"axis {axis} has {extent}"))
        axis, extent = here, t.shape[here]
        port_exists(target, item.port)
        c.inputs[item.port.text] = value
        c.special[item.port.text] = TensorType(t.dtype, (*t.shape[:here], *t.shape[here + 1:]))
    assert axis is not None and extent is not None
    starts = {k.text: (k, v) for k, v in c.spec.carry}
    start(x, c, target, starts)
    length = own_length(c)
    region = body(x, c, c.spec, None)
    if length:
        c.inputs["scan.length"] = outside(x, c, c.spec.fields["length"].value)
    types = types_of(region)
    carry = {port: carried(port, written, types, c) for port, (written, _) in starts.items()}
    for port, o in carry.items():
        if types[o] != c.special[port]:
            raise fault("shape-mismatch", f"the carry `{port}` starts as {c.special[port]} and each step gives {types[o]}",
                        Label(starts[port][0].span), note="a carry keeps its type from step to step")
    backward = c.spec.backward is not None and _backward(c)
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


def _backward(c: Copies) -> bool:
    assert c.spec.backward is not None
    return bool(attribute("bool", c.spec.backward, c.scope, c.index, "`backward`"))


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
