"""The rules of the step form: which one each op has, and those of masks, attention and loops over other axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ir.graph import ARGUMENT, Control, Node, Region, Scan, Value, bodies
from ...ops.cached_attention import CachedAttention
from ...ops.elementwise import LessEqual
from ...ops.layout import Rearrange
from ...ops.masks import LengthMask
from ...ops.values import Full
from .arguments import shortened
from .derive import Deriver, Forms
from .each import each, labelled, sized, with_sizes
from .facts import numbers
from .stateful import conv1d, cumsum, delay, recurrent, scan

Rule = Callable[[Deriver, Node, int, Forms], Value | None]


def rule(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """Output `output` of a node, in the forms asked for. Raises Refused."""
    if isinstance(node.op, Control):
        return scan(d, node, output) if isinstance(node.op, Scan) and node.op.extent == d.facts.T else _loop(d, node, output, forms)
    own = RULES.get(node.op.name)
    return own(d, node, output, forms) if own else each(d, node, output, forms)


def _loop(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    """A scan over another axis, or routed copies: T is one more axis of rows in there."""
    for body in node.op.bodies:
        _check_rows(d, node, body)
    if forms != (None,):
        raise d.refuse(node, f"gives `{d.facts.symbol}` in more than one axis")
    inputs = {k: d.chunked(v) for k, v in node.inputs.items() if isinstance(v, Value) and v not in d.facts.left}
    if None in inputs.values():
        raise d.shared(node)
    sizes = {d.facts.symbol: d.chunk}
    op = shortened(node.op, {k for k, v in node.inputs.items() if v in d.facts.left})
    op = replace(op, **({"body": with_sizes(op.body, sizes)} if isinstance(op, Scan) else
                        {"bodies": tuple(with_sizes(b, sizes) for b in op.bodies)}))
    types = [sized(t, sizes) for t in node.types]
    key = (node.id, forms)
    if key not in d.nodes:
        d.nodes[key] = d.put(node.name, op, inputs, node.outputs, types, node.origin)
    return Value(d.nodes[key].id, output)


def _check_rows(d: Deriver, outer: Node, region: Region) -> None:
    """Raises Refused unless every op of a body treats positions along T one by one."""
    for node in region.nodes:
        for body in bodies(node):
            _check_rows(d, node, body)
        if not isinstance(node.op, Control) and d.facts.symbol in numbers(node.op):
            raise d.refuse(outer, f"uses how long `{d.facts.symbol}` is, in `{node.name}`")
        if isinstance(node.op, Control) or not any(d.facts.axes(region.type(v)) for v in node.values):
            continue
        types = region.port_types(node.inputs)
        covered: set[tuple[str, int]] = set()
        for k, type in enumerate(node.types):
            for axis in d.facts.axes(type):
                found = node.op.follow(types, node.types, axis, k)
                if found is None:
                    raise d.refuse(outer, f"works along `{d.facts.symbol}`, in `{node.name}`")
                covered |= set(found.items())
        for label, value in labelled(node):
            if any((label, k) not in covered for k in d.facts.axes(region.type(value))):
                raise d.refuse(outer, f"brings every position along `{d.facts.symbol}` together, in `{node.name}`")


# ops with a rule of their own


def _position(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    keep = node.inputs.get("keep")
    if isinstance(keep, Value) and d.get(keep, forms) is not None:
        raise d.refuse(node, "counts kept entries of a mask that is always there", "make the mask optional: the step form packs rows")
    return d.clock(node, forms[0])


def _causal_mask(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    like, rows, columns = Value(node.id), *forms
    query = d.apply(like, Rearrange(pattern="b q -> b q 1"), {"in": d.clock(node, rows)}, "queries")
    key = d.apply(like, Rearrange(pattern="b k -> b 1 k"), {"in": d.clock(node, columns)}, "keys")
    return d.apply(like, LessEqual(), {"in": (key, query)})


def _length_mask(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """The valid positions of a chunk; for a whole cache causality tells them."""
    given = node.inputs.get("in")
    if given in d.facts.gone - d.facts.left and not forms:
        raise d.shared(node)
    if given is None or given in d.facts.left or forms != (None,):
        return None
    like = node.inputs["like"]
    assert isinstance(like, Value)
    if isinstance(given, Value) and given.node == ARGUMENT and d.region.arguments[given.output].name in d.facts.lengths:
        chunk = d.chunked(like)
        return d.apply(Value(node.id), LengthMask(), {"in": d.new_length, "like": chunk})
    raise d.refuse(node, "ends rows by lengths that are computed, not by an input")


def _cache(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    given = node.inputs["in"]
    assert isinstance(given, Value)
    return d.get(given, forms)


def _fill_absent(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    given = node.inputs["in"]
    found = d.get(given, forms) if isinstance(given, Value) else None
    if found is not None:
        return found
    type = node.types[0]
    return d.apply(Value(node.id), Full(value=node.op.value, shape=d.shape(type.shape, forms), dtype=type.dtype), {})


def _first_of(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    given = node.inputs["in"]
    for value in given if isinstance(given, tuple) else (given,):
        found = None if value is None else d.get(value, forms)
        if found is not None:
            return found
    return None


def _attention(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """Queries of the chunk over every key so far; over a memory without T, as it is."""
    key, value, query = node.inputs["key"], node.inputs["value"], node.inputs["query"]
    assert isinstance(key, Value) and isinstance(value, Value) and isinstance(query, Value)
    if not d.facts.of(key):
        if d.facts.of(query) and node.op.causal:
            raise d.refuse(node, "is causal over keys that are not on its own axis")
        return each(d, node, output, forms)
    if node.op.causal and d.facts.of(query) != (2,):
        raise d.refuse(node, f"is causal over keys along `{d.facts.symbol}`, on which its queries are not")
    if not node.op.causal or d.facts.of(key) != (2,):
        raise d.refuse(node, f"reads keys along `{d.facts.symbol}` that come later", "write `causal: true`")
    layout = d.ring(node.op.window)
    length = node.inputs.get("length")
    if isinstance(length, Value) and not (length.node == ARGUMENT and d.region.arguments[length.output].name in d.facts.lengths):
        raise d.refuse(node, "ends rows by lengths that are computed, not by an input")
    inputs: dict[str, Any] = {"query": d.chunked(query), "key": d.get(key, (layout,)), "value": d.get(value, (layout,)), "past": d.past}
    for port in ("keep", "score_bias"):
        given = node.inputs.get(port)
        if isinstance(given, Value):
            inputs[port] = d.get(given, _over(d, node, port, given, layout))
    made = d.nodes.get((node.id, (None,)))
    if made is None:
        op = CachedAttention(node.op.window, node.op.scale, node.op.softcap, layout.ring)
        made = d.put(node.name, op, inputs, node.outputs, d.infer(op, inputs), node.origin)
        d.nodes[node.id, (None,)] = made
    if output and forms != (None, layout):
        raise d.refuse(node, "gives weights over every position, which only outputs may use")
    return Value(made.id, output)


def _over(d: Deriver, node: Node, port: str, value: Value, layout: Any) -> Forms:
    """The forms of a mask or bias: its last axis is over keys, the others over queries."""
    rank = len(d.region.type(value).shape)
    return tuple(layout if k == rank - 1 else None for k in d.facts.of(value))


RULES: dict[str, Rule] = {
    "position": _position, "causal_mask": _causal_mask, "length_mask": _length_mask, "cache": _cache, "first_of": _first_of,
    "fill_absent": _fill_absent, "attention": _attention, "rnn": recurrent, "lstm": recurrent, "gru": recurrent, "conv1d": conv1d,
    "delay": delay, "cumsum": cumsum,
}
