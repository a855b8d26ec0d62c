"""Copies in time as an ONNX Scan. Values of outer graphs are read by name, so that nothing is passed that does not change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir.dimension import Dim, at_least
from ...ir.graph import Scan, TensorType
from ...ops.emission import positions
from .builder import Builder, Val, subgraph, typed
from .entries import Entries, Entry, Place, Run, axis_of_size, present, tensor
from .sizes import watch

Typed = tuple[Val, TensorType]


@dataclass(frozen=True)
class Loop:
    """A scan being emitted: its outer values, and the outputs of the step that are stacked."""

    at: Place
    op: Scan
    given: Entries
    starts: dict[str, Val]
    elements: dict[str, Val]
    stacked: tuple[str, ...]
    length: Val | None
    steps: Val | None           # int64 [T], with a length
    run: Run

    def type(self, name: str) -> TensorType:
        body = self.op.body
        return body.type(body.argument(name))

    def stacked_type(self, name: str) -> TensorType:
        type, axis = self.op.body.type(self.op.body.output(name)), self.op.axis
        return TensorType(type.dtype, (*type.shape[:axis], self.op.extent, *type.shape[axis:]))

    @property
    def rows(self) -> Dim | None:
        """The size of the batch axis: that of the first element."""
        shape = self.type(self.op.each[0]).shape
        return shape[0] if shape else None


def scan(at: Place, op: Scan, used: frozenset[str], given: Entries, run: Run) -> dict[str, Entry]:
    """Outputs by name: those of the step, stacked, and `last.x`."""
    g, path, line = at.g, at.path, at.g.line
    length = tensor(g, given.get("scan.length"))
    steps = None if length is None else positions(g, op.extent)
    stacked = tuple(o for o, _ in op.body.outputs if o in used)
    loop = Loop(at, op, given, {n: present(g, given[n]) for n in op.carry}, {n: present(g, given[n]) for n in op.each}, stacked,
                length, steps, run)
    ends = _loop(loop, g)
    g.path, g.line = path, line
    last, outs = ends[:len(op.carry)], dict(zip(stacked, ends[len(op.carry):], strict=True))
    if not at_least(op.extent, 1):
        there = g.op("Greater", g.scalar(op.extent), g.const(0, "int64"))
        last = tuple(_either(g, there, x, loop.starts[n], loop.type(n).dtype) for n, x in zip(op.carry, last, strict=True))
    outs = {o: _cut(loop, g, o, _back(loop, g, o, value)) for o, value in outs.items()}
    return {**outs, **{f"last.{o}": value for o, value in zip(op.carry.values(), last, strict=True)}}


def _front(loop: Loop, g: Builder, value: Val, type: TensorType) -> Val:
    """An element with its steps first, and one step of zeros where there are none: Scan fails on empty axes.

    `type` is that of one step.
    """
    axis, extent = loop.op.axis, loop.op.extent
    if axis:
        rank = len(type.shape) + 1
        value = g.op("Transpose", value, perm=[axis, *(k for k in range(rank) if k != axis)])
    if at_least(extent, 1):
        return value
    none = g.once(("no step", extent), lambda: g.op("Equal", g.size(extent), g.ints(0)))
    missing = g.once(("missing step", extent), lambda: g.cast(none, "int64", "bool"))
    zero = g.number(0, typed(type, g.dtype))
    shape = g.op("Concat", missing, g.shape(type.shape), axis=0) if type.shape else missing
    return g.op("Concat", value, g.op("Expand", zero, shape), axis=0)


def _back(loop: Loop, g: Builder, name: str, value: Val) -> Val:
    """A stacked output with its steps on their axis; undoes `_front`."""
    axis, rank = loop.op.axis, len(loop.stacked_type(name).shape)
    if not at_least(loop.op.extent, 1):
        value = g.op("Slice", value, g.ints(0), g.size(loop.op.extent), g.ints(0))
    return g.op("Transpose", value, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)]) if axis else value


def _loop(loop: Loop, g: Builder) -> tuple[Val, ...]:
    """The Scan node: last carries, then stacked outputs with their steps first."""
    op, path, line = loop.op, loop.at.path, g.line
    walked = [_front(loop, g, x, loop.type(n)) for n, x in loop.elements.items()]
    body = watch(Builder(g.store, g))
    inputs = [(_entered(body, f"{path}/{n}"), loop.type(n)) for n in (*op.carry, *op.each)]
    inner: dict[str, Entry] = {**loop.given, **dict(zip((*op.carry, *op.each), (v for v, _ in inputs), strict=True))}
    body.path, body.line, alive = path, line, None
    if loop.steps is not None:
        step = TensorType("int64", ())
        inputs.append((_entered(body, f"{path}/step"), step))
        walked.append(_front(replace(loop, op=replace(op, axis=0)), g, loop.steps, step))
        alive = body.op("Less", inputs[-1][0], loop.length)
    outs = loop.run(Place(body, path, loop.at.owner), op.body, inner, frozenset(loop.stacked) | frozenset(op.carry.values()))
    body.path, body.line = path, line
    ends = []
    for name, out in op.carry.items():
        new, old = present(body, outs[out]), inner[name]
        assert isinstance(old, Val)
        ends.append((new if alive is None else _frozen(loop, body, name, alive, (old, new)), loop.type(name)))
    ends += [(present(body, outs[o]), op.body.type(op.body.output(o))) for o in loop.stacked]
    made = g.op("Scan", *loop.starts.values(), *walked, outputs=len(ends), body=subgraph(body, f"{path}/step", inputs, ends),
                num_scan_inputs=len(walked), scan_input_directions=[1] * len(walked) if op.backward else None,
                scan_output_directions=[1] * len(loop.stacked) if op.backward and loop.stacked else None)
    return (made,) if isinstance(made, Val) else made


def _frozen(loop: Loop, g: Builder, name: str, alive: Val, change: tuple[Val, Val]) -> Val:
    """The new carry in the rows that are not past their end, the old one in the others."""
    type = loop.type(name)
    axis = None if loop.rows is None else axis_of_size(type, loop.rows)
    return change[1] if axis is None else _either(g, _at_axis(g, alive, axis, len(type.shape)), change[1], change[0], type.dtype)


def _either(g: Builder, condition: Val, then: Val, otherwise: Val, dtype: str) -> Val:
    if dtype == "bool":     # Where has no kernel for it
        return g.op("Or", g.op("And", condition, then), g.op("And", g.op("Not", condition), otherwise))
    return g.op("Where", condition, then, otherwise)


def _cut(loop: Loop, g: Builder, name: str, value: Val) -> Val:
    """A stacked output with zeros past the end of each row, where a length says it."""
    steps, length = loop.steps, loop.length
    if steps is None or length is None:
        return value
    type, axis = loop.stacked_type(name), loop.op.axis
    inner = loop.op.body.type(loop.op.body.output(name))
    at = None if loop.rows is None else axis_of_size(inner, loop.rows)
    if at is None:
        return value
    rank, at = len(type.shape), at + (at >= axis)
    valid = g.once(("valid steps", steps.name, length.name, axis, at, rank), lambda: g.op(
        "Less", _at_axis(g, steps, axis, rank), _at_axis(g, length, at, rank)))
    if type.dtype == "bool":
        return g.op("And", valid, value)
    return g.op("Where", valid, value, g.number(0, typed(type, g.dtype)))


def _at_axis(g: Builder, vector: Val, axis: int, rank: int) -> Val:
    """[n] with axes of size 1 around it."""
    others = [k for k in range(rank) if k != axis]
    return g.once(("along", vector.name, axis, rank), lambda: g.op("Unsqueeze", vector, g.ints(*others))) if others else vector


def _entered(body: Builder, name: str) -> Val:
    made = Val(body.unique(name))
    body.own([made.name])
    return made
