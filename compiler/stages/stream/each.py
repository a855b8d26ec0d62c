"""The rule of most ops: positions are treated one by one, and what is asked for is asked of the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ir.dimension import Dim
from ...ir.graph import Branch, Call, Node, Region, Repeat, Scan, TensorType, Value
from ...ops.base import Op
from ...ops.shapes import mask_axes
from .causal import summed, weighted
from .derive import SLOTS, Deriver, Forms
from .facts import numbers
from .lookup import inside


def each(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """Pass the request on to the inputs, along the loop axes of the op."""
    asked = _asked(d, node, output, forms)
    key = (node.id, tuple(asked.items()))
    if key not in d.nodes:
        inputs: dict[str, Any] = {}
        for port, given in node.inputs.items():
            if isinstance(given, tuple):
                made = [d.get(v, asked.get(f"{port}.{i}", ())) for i, v in enumerate(given)]
                inputs[port] = tuple(v for v in made if v is not None)
            else:
                inputs[port] = None if given is None else d.get(given, asked.get(port, ()))
        if _gone(d, node, inputs):
            return None
        inputs = inside(d, node, inputs, asked)
        op = _resized(d, node, output, forms)
        types = d.infer(op, inputs)
        name = node.name if all(f is None for f in forms) else f"{node.name}.all"
        d.nodes[key] = d.put(name, op, inputs, node.outputs, types, node.origin)
    return Value(d.nodes[key].id, output)


def _gone(d: Deriver, node: Node, inputs: dict[str, Any]) -> bool:
    """Whether a node is absent because what it reads is. Raises Refused where it cannot do without."""
    ports = node.op.ports()
    for port, given in node.inputs.items():
        lost = given is not None and inputs[port] in (None, ())
        if isinstance(given, tuple) and node.op.name not in ("and", "or", "first_of") and len(inputs[port]) < len(given):
            raise d.refuse(node, "reads a mask or a length, which the step form does without")
        if lost and (node.op.absent(d.out.port_types(inputs)) if port != "in" or ports.get(port) else False):
            return True
        if lost and port == "length" and given not in d.facts.left:
            raise d.shared(node)
        if lost and not ports.get(port, False):
            raise d.refuse(node, f"reads `{port}`, which {'is left out' if given in d.facts.left else 'the step form does without'}")
    return False


def _asked(d: Deriver, node: Node, output: int, forms: Forms) -> dict[str, Forms]:
    """The forms of every input, by port. Raises Refused where the op works along T."""
    types = d.region.port_types(node.inputs)
    given = {label: v for label, v in labelled(node)}
    found: dict[str, dict[int, Any]] = {label: {} for label in given}
    out = node.types[output]
    for axis, form in zip(d.facts.axes(out), forms, strict=True):
        sources = node.op.follow(types, node.types, axis, output)
        if sources is None and node.op.name == "softmax":
            sources = _softened(d, node, types, axis, form)
        if sources is None:
            raise d.refuse(node, f"works along axis {axis}, which is `{d.facts.symbol}`", _hint(node))
        for label, k in sources.items():
            if label in found:
                found[label][k] = form
    asked = {}
    for label, value in given.items():
        axes = d.facts.of(value)
        missing = [k for k in axes if k not in found[label]]
        if missing:
            if not all(summed(d.region, d.facts, node, label, k) for k in missing):
                raise d.refuse(node, f"brings every position along `{d.facts.symbol}` together", _hint(node))
            found[label] |= dict.fromkeys(missing, SLOTS)
        if value in d.facts.moving and not axes and d.facts.touches(d.region.type(value)):
            raise d.refuse(node, f"reads {d.region.type(value)}, whose size is made of `{d.facts.symbol}`")
        if value in d.facts.moving and not axes and value not in d.facts.gone:
            raise d.early(value, node)
        asked[label] = tuple(found[label][k] for k in axes)
    return asked


def _softened(d: Deriver, node: Node, types: Any, axis: int, form: Any) -> dict[str, int] | None:
    """Where a softmax over all keys so far gets them from, if it gives nothing to those that come later."""
    queries = [k for k in d.facts.of(Value(node.id)) if k != axis]
    if form != SLOTS or len(queries) != 1 or not weighted(d.region, d.facts, node, (queries[0], axis)):
        return None
    over = mask_axes(node.op, types)
    return {"in": axis} | ({"keep": over.index(axis)} if axis in over else {})


def _hint(node: Node) -> str | None:
    hints = {"softmax": "give it a `keep` that hides later positions, as `op: causal_mask` does", "range": "use `op: position`",
             "flip": "a decoder cannot read what comes later", "attention": "write `causal: true`"}
    return hints.get(node.op.name)


def labelled(node: Node) -> list[tuple[str, Value]]:
    out: list[tuple[str, Value]] = []
    for port, given in node.inputs.items():
        if isinstance(given, tuple):
            out += [(f"{port}.{i}", v) for i, v in enumerate(given)]
        elif given is not None:
            out.append((port, given))
    return out


def _resized(d: Deriver, node: Node, output: int, forms: Forms) -> Op:
    """The op with the shape that it was told in the forms asked for. Raises Refused where it uses the length of T as a number."""
    op: Op = node.op
    if d.facts.symbol not in numbers(op):
        return op
    told = getattr(op, "shape", None)
    if op.name in ("expand", "full") and told is not None:
        resized: Op = replace(op, shape=d.shape(tuple(map(Dim, told)), forms))  # type: ignore[call-arg]
        if d.facts.symbol not in numbers(resized):
            return resized
    raise d.refuse(node, f"uses how long `{d.facts.symbol}` is as a number, which is not known before the end", _hint(node))


def with_sizes(region: Region, sizes: dict[str, Dim]) -> Region:
    def node(n: Node) -> Node:
        op = n.op
        if isinstance(op, Branch | Repeat):
            op = replace(op, bodies=tuple(with_sizes(b, sizes) for b in op.bodies))
        elif isinstance(op, Call | Scan):
            op = replace(op, body=with_sizes(op.body, sizes))
        return replace(n, op=op, types=tuple(sized(t, sizes) for t in n.types))
    arguments = tuple(replace(a, type=sized(a.type, sizes)) for a in region.arguments)
    return replace(region, arguments=arguments, nodes=tuple(map(node, region.nodes)))


def sized(type: TensorType, sizes: dict[str, Dim]) -> TensorType:
    return replace(type, shape=tuple(x.substitute(sizes) for x in type.shape))
