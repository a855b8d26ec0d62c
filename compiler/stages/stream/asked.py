"""`Graph -> Graph`: a step that computes what only outputs need for the positions that are asked for.

The first token of a prompt needs the scores behind its last position alone. Nodes that treat positions one by one, and whose results go
nowhere but into outputs, are done for K positions of the chunk instead of its N: `wanted` int64 [B, K] says which.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Control, Graph, Node, Region, TensorType, Value, fresh, mapped
from ...ops.indexing import Gather
from .each import labelled, sized
from .facts import numbers
from .form import ASKED, CHUNK, WANTED

N, K = Dim.symbol(CHUNK), Dim.symbol(ASKED)


def asked(step: Graph, states: Collection[str]) -> Graph:
    """The step with the input `wanted`; itself where no work would be saved. `states` are the outputs that are state."""
    late = _deferred(step.root, states)
    worth = any(n.op.flops(step.root.port_types(n.inputs), n.types) != Dim.const(0) for n in step.root.nodes if n.id in late)
    return replace(step, root=_rebuilt(step.root, late)) if worth else step


def _deferred(root: Region, states: Collection[str]) -> set[int]:
    """The nodes that may be done for some positions only: all that read them are such nodes, or outputs that are no state."""
    readers: dict[int, set[int]] = {}
    for node in root.nodes:
        for value in node.values:
            readers.setdefault(value.node, set()).add(node.id)
    kept = {v.node for name, v in root.outputs if name in states}
    told = {v.node for name, v in root.outputs if name not in states}
    late = {n.id for n in root.nodes if n.id not in kept and _positionwise(root, n)}
    while True:
        left = {k for k in late if readers.get(k, set()) <= late and (k in told or k in readers)
                and all(v.node in late or _gathered(root, v) for v in root.nodes[k].values)}
        if left == late:
            return late
        late = left


def _positionwise(root: Region, node: Node) -> bool:
    """Whether a node gives positions along N, on one axis of each output, and does with each what it does with any."""
    if isinstance(node.op, Control) or CHUNK in numbers(node.op):
        return False
    types = root.port_types(node.inputs)
    found: set[tuple[str, int]] = set()
    for k, type in enumerate(node.types):
        axes = [i for i, d in enumerate(type.shape) if CHUNK in d.symbols()]
        if len(axes) != 1 or type.shape[axes[0]] != N:
            return False
        sources = node.op.follow(types, node.types, axes[0], k)
        if sources is None:
            return False
        found |= set(sources.items())
    return all((label, i) in found for label, value in labelled(node) for i, d in enumerate(root.type(value).shape)
               if CHUNK in d.symbols())


def _gathered(root: Region, value: Value) -> bool:
    """Whether a value has no positions along N, or rows on axis 0 and positions on axis 1, from which they can be taken."""
    shape = root.type(value).shape
    return all(CHUNK not in d.symbols() for d in shape) or (len(shape) > 1 and shape[1] == N and shape[0] == _rows(root)
                                                             and all(CHUNK not in d.symbols() for d in shape[2:]))


def _rows(root: Region) -> Dim:
    return next(a.type.shape[0] for a in root.arguments if N in a.type.shape[1:2])


def _rebuilt(root: Region, late: set[int]) -> Region:
    """The region with the input `wanted`, and the nodes of `late` done for its positions alone."""
    out = RegionBuilder(root.name, root.origin)
    out.about = root.about
    moved = {Value(ARGUMENT, k): out.argument(a.name, a.type) for k, a in enumerate(root.arguments)}
    wanted = out.argument(WANTED, TensorType("int64", (_rows(root), K)))
    taken, picked = {n.name for n in root.nodes}, dict[Value, Value]()

    def pick(value: Value) -> Value:
        """A value for the positions that are asked for."""
        if value.node in late or CHUNK not in {s for d in root.type(value).shape for s in d.symbols()}:
            return moved[value]
        if value not in picked:
            inputs = {"in": moved[value], "index": wanted}
            op, name = Gather(axis=1, batch=1), fresh(f"{root.label(value)}.wanted", taken)
            origin = root.nodes[value.node].origin if value.node != ARGUMENT else root.origin
            picked[value] = Value(out.add(name, op, inputs, op.outputs(), op.infer(out.port_types(inputs)), origin).id)
        return picked[value]

    for node in root.nodes:
        inside = node.id in late
        inputs = {k: mapped(v, pick if inside else moved.__getitem__) for k, v in node.inputs.items()}
        types = [sized(t, {CHUNK: K}) for t in node.types] if inside else node.types
        made = out.add(node.name, node.op, inputs, node.outputs, types, node.origin)
        moved |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
    return out.finish([(name, moved[v]) for name, v in root.outputs])
