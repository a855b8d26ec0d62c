"""The rules of the step form: ops that treat positions one by one, and ops that carry a state from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Branch, Control, Node, Region, Repeat, Scan, TensorType, Value, bodies
from ...ops.base import Op, axis_of
from ...ops.convolution import Conv1d
from ...ops.elementwise import Add, LessEqual
from ...ops.layout import Concat, Rearrange, Slice
from ...ops.masks import LengthMask
from ...ops.streaming import CachedAttention
from .causal import causal
from .derive import SLOTS, Deriver, Forms
from .facts import holds, numbers
from .state import behind, carried, recent

Rule = Callable[[Deriver, Node, int, Forms], Value | None]


def rule(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """Output `output` of a node, in the forms asked for. Raises Refused."""
    if isinstance(node.op, Control):
        return _scan(d, node, output) if isinstance(node.op, Scan) and node.op.extent == d.facts.T else _loop(d, node, output, forms)
    own = RULES.get(node.op.name)
    return own(d, node, output, forms) if own else _each(d, node, output, forms)


# ops that treat positions one by one


def _each(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
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
        op = _resized(d, node, output, forms)
        types = op.infer(d.types(inputs))
        name = node.name if all(f is None for f in forms) else f"{node.name}.all"
        d.nodes[key] = d.put(name, op, inputs, node.outputs, types, node.origin)
    return Value(d.nodes[key].id, output)


def _gone(d: Deriver, node: Node, inputs: dict[str, Any]) -> bool:
    """Whether a node is absent because what it reads is. Raises Refused where it cannot do without."""
    ports = node.op.ports()
    for port, given in node.inputs.items():
        lost = given is not None and inputs[port] in (None, ())
        if lost and (node.op.absent(d.types(inputs)) if port != "in" or ports.get(port) else False):
            return True
        if lost and not ports.get(port, False):
            raise d.refuse(node, f"reads `{port}`, which the step form does without")
    return False


def _asked(d: Deriver, node: Node, output: int, forms: Forms) -> dict[str, Forms]:
    """The forms of every input, by port. Raises Refused where the op works along T."""
    types = {k: _types(d.region, v) for k, v in node.inputs.items()}
    given = {label: v for label, v in _labelled(node)}
    found: dict[str, dict[int, Any]] = {label: {} for label in given}
    out = node.types[output]
    for axis, form in zip(d.facts.axes(out), forms, strict=True):
        sources = node.op.follow(types, node.types, axis, output)
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
            summed = _summed(d, node, missing)
            if summed is None:
                raise d.refuse(node, f"brings every position along `{d.facts.symbol}` together", _hint(node))
            found[label] |= summed
        if value in d.facts.moving and not axes and d.facts.touches(d.region.type(value)):
            raise d.refuse(node, f"reads {d.region.type(value)}, whose size is made of `{d.facts.symbol}`")
        if value in d.facts.moving and not axes and value not in d.facts.gone:
            raise d.refuse(node, f"reads `{d.region.label(value)}`, which is known at the end of `{d.facts.symbol}` only")
        asked[label] = tuple(found[label][k] for k in axes)
    return asked


def _summed(d: Deriver, node: Node, axes: list[int]) -> dict[int, Any] | None:
    """The forms of axes that are summed over, where weights of 0 hide the positions to come; None where nothing proves it."""
    if node.op.name not in ("einsum", "matmul") or len(axes) != 1:
        return None
    pairs = ((value, d.facts.of(value)) for _, value in _labelled(node))
    proven = any(len(own) == 2 and causal(d.region, d.facts, value, own) for value, own in pairs)
    return {axes[0]: SLOTS} if proven else None


def _hint(node: Node) -> str | None:
    hints = {"range": "`op: position` tells positions in both forms", "flip": "a decoder cannot read what comes later",
             "attention": "write `causal: true`"}
    return hints.get(node.op.name)


def _types(region: Region, given: Any) -> Any:
    if isinstance(given, tuple):
        return tuple(region.type(v) for v in given)
    return None if given is None else region.type(given)


def _labelled(node: Node) -> list[tuple[str, Value]]:
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


def _loop(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    """A scan over another axis, or routed copies: T is one more axis of rows in there."""
    for body in node.op.bodies:
        _check_rows(d, node, body)
    if forms != (None,):
        raise d.refuse(node, f"gives `{d.facts.symbol}` in more than one axis")
    inputs = {k: d.chunked(v) for k, v in node.inputs.items() if isinstance(v, Value)}
    sizes = {d.facts.symbol: d.chunk}
    op = replace(node.op, **({"body": _with_sizes(node.op.body, sizes)} if isinstance(node.op, Scan) else
                             {"bodies": tuple(_with_sizes(b, sizes) for b in node.op.bodies)}))
    types = [_sized(t, sizes) for t in node.types]
    key = (node.id, forms)
    if key not in d.nodes:
        d.nodes[key] = d.put(node.name, op, inputs, node.outputs, types, node.origin)
    return Value(d.nodes[key].id, output)


def _check_rows(d: Deriver, outer: Node, region: Region) -> None:
    """Raises Refused unless every op of a body treats positions along T one by one."""
    for node in region.nodes:
        for body in bodies(node):
            _check_rows(d, node, body)
        if isinstance(node.op, Control) or not any(d.facts.axes(region.type(v)) for v in node.values):
            continue
        if d.facts.symbol in numbers(node.op):
            raise d.refuse(outer, f"uses how long `{d.facts.symbol}` is, in `{node.name}`")
        types = {k: _types(region, v) for k, v in node.inputs.items()}
        covered: set[tuple[str, int]] = set()
        for k, type in enumerate(node.types):
            for axis in d.facts.axes(type):
                found = node.op.follow(types, node.types, axis, k)
                if found is None:
                    raise d.refuse(outer, f"works along `{d.facts.symbol}`, in `{node.name}`")
                covered |= set(found.items())
        for label, value in _labelled(node):
            if any((label, k) not in covered for k in d.facts.axes(region.type(value))):
                raise d.refuse(outer, f"brings every position along `{d.facts.symbol}` together, in `{node.name}`")


def _with_sizes(region: Region, sizes: dict[str, Dim]) -> Region:
    def node(n: Node) -> Node:
        op = n.op
        if isinstance(op, Branch | Repeat):
            op = replace(op, bodies=tuple(_with_sizes(b, sizes) for b in op.bodies))
        elif isinstance(op, Control):
            op = replace(op, body=_with_sizes(op.body, sizes))
        return replace(n, op=op, types=tuple(_sized(t, sizes) for t in n.types))
    arguments = tuple(replace(a, type=_sized(a.type, sizes)) for a in region.arguments)
    return replace(region, arguments=arguments, nodes=tuple(map(node, region.nodes)))


def _sized(type: TensorType, sizes: dict[str, Dim]) -> TensorType:
    return replace(type, shape=tuple(x.substitute(sizes) for x in type.shape))


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
    if given is None or forms != (None,):
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
        return _each(d, node, output, forms)
    if not node.op.causal or d.facts.of(query) != (2,) or d.facts.of(key) != (2,):
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
        made = d.put(node.name, op, inputs, node.outputs, op.infer(d.types(inputs)), node.origin)
        d.nodes[node.id, (None,)] = made
    if output and forms != (None, layout):
        raise d.refuse(node, "gives weights over every position, which only outputs may use")
    return Value(made.id, output)


def _over(d: Deriver, node: Node, port: str, value: Value, layout: Any) -> Forms:
    """The forms of a mask or bias: its last axis is over keys, the others over queries."""
    rank = len(d.region.type(value).shape)
    return tuple(layout if k == rank - 1 else None for k in d.facts.of(value))


def _scan(d: Deriver, node: Node, output: int) -> Value:
    """A scan along T: its carries are state."""
    op, T = node.op, d.facts.symbol
    if op.backward:
        raise d.refuse(node, f"walks `{T}` from its end")
    if holds(op.body, T):
        raise d.refuse(node, f"reads values of every position along `{T}` in its steps")
    if (node.id, ()) not in d.nodes:
        inputs: dict[str, Any] = {}
        for name, given in node.inputs.items():
            if name in op.carry:
                argument = next(a for a in op.body.arguments if a.name == name)
                assert isinstance(given, Value)
                inputs[name] = carried(d, node, name, argument.type, given)
            elif name != "scan.length" and isinstance(given, Value):
                inputs[name] = d.chunked(given) if name in op.each else d.constant(given)
        inputs["scan.length"] = d.new_length
        made = replace(op, extent=d.chunk, length=True)
        sizes = {T: d.chunk}
        outputs = list(node.outputs)
        types = [_sized(t, sizes) for t in node.types]
        for argument_name, result in op.carry.items():
            if f"last.{result}" not in outputs:
                outputs.append(f"last.{result}")
                types.append(next(a.type for a in op.body.arguments if a.name == argument_name))
        d.nodes[node.id, ()] = at = d.put(node.name, made, inputs, outputs, types, node.origin)
        for argument_name, result in op.carry.items():
            d.after[f"{node.name}.{argument_name}"] = at.output(f"last.{result}")
    return Value(d.nodes[node.id, ()].id, output)


def _recurrent(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    """rnn, lstm, gru: their states."""
    op = node.op
    if op.direction != "forward":
        raise d.refuse(node, f"reads `{d.facts.symbol}` backwards", "write `direction: forward`")
    if (node.id, ()) not in d.nodes:
        given = node.inputs["in"]
        assert isinstance(given, Value)
        inputs: dict[str, Any] = {k: d.constant(v) for k, v in node.inputs.items() if k in op.parameters() and isinstance(v, Value)}
        inputs |= {"in": d.chunked(given), "length": d.new_length}
        for k, name in enumerate(op.states):
            start = node.inputs.get(name)
            inputs[name] = carried(d, node, name, node.types[k + 1], start if isinstance(start, Value) else None)
        ordered = {k: inputs.get(k) for k in node.inputs} | inputs
        types = op.infer(d.types(ordered))
        d.nodes[node.id, ()] = made = d.put(node.name, op, ordered, node.outputs, types, node.origin)
        for k, name in enumerate(op.states):
            d.after[f"{node.name}.{name}"] = Value(made.id, k + 1)
    return Value(d.nodes[node.id, ()].id, output)


def _conv1d(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """A causal convolution keeps the last dilation * (kernel - 1) inputs."""
    if d.facts.axes(node.types[0]) != (1,) or d.facts.of(node.inputs["in"]) != (1,):  # type: ignore[arg-type]
        return _each(d, node, output, forms)
    op: Conv1d = node.op
    (dilation,), (stride,) = op.each("dilation", op.dilation, 1), op.each("stride", op.stride, 1)
    kernel = d.region.type(node.inputs["weight"]).shape[2].value  # type: ignore[arg-type]
    assert kernel is not None
    if not op.causal or stride != 1:
        raise d.refuse(node, "sees later positions" if not op.causal else "has a stride", "write `causal: true`, without a stride")
    inputs: dict[str, Any] = {k: d.constant(v) for k, v in node.inputs.items() if k != "in" and isinstance(v, Value)}
    wide = recent(d, node, dilation * (kernel - 1))
    inputs = {k: inputs.get(k) for k in node.inputs} | {"in": wide}
    return d.apply(Value(node.id), replace(op, causal=False, padding="valid"), inputs)


def _delay(d: Deriver, node: Node, output: int, forms: Forms) -> Value:
    wide = recent(d, node, node.op.by)
    return d.apply(Value(node.id), Slice(axis=1, stop=d.chunk), {"in": wide})


def _cumsum(d: Deriver, node: Node, output: int, forms: Forms) -> Value | None:
    """A cumulative sum carries the sum so far."""
    type, op = node.types[0], node.op
    axis = axis_of(len(type.shape), op.axis)
    if d.facts.axes(type) != (axis,):
        return _each(d, node, output, forms)
    if op.reverse:
        raise d.refuse(node, f"adds up `{d.facts.symbol}` from its end")
    if axis != 1:
        raise d.refuse(node, "adds up along an axis that is not the second", "put the stream axis behind the rows with `rearrange`")
    given = node.inputs["in"]
    assert isinstance(given, Value)
    new, like = d.chunked(given), Value(node.id)
    one = TensorType(type.dtype, (type.shape[0], Dim.const(1), *type.shape[2:]))
    before = carried(d, node, "sum", one, None)
    total = d.apply(like, replace(op, exclusive=False), {"in": new}, "chunk")
    whole = d.apply(like, Add(), {"in": (total, before)}, "total")
    sums = d.apply(like, Concat(axis=1), {"in": (before, whole)}, "sums")
    d.after[f"{node.name}.sum"] = behind(d, like, sums, 1)
    return d.apply(like, Slice(axis=1, stop=d.chunk), {"in": sums}) if op.exclusive else whole


RULES: dict[str, Rule] = {
    "position": _position, "causal_mask": _causal_mask, "length_mask": _length_mask, "cache": _cache, "first_of": _first_of,
    "attention": _attention, "rnn": _recurrent, "lstm": _recurrent, "gru": _recurrent, "conv1d": _conv1d, "delay": _delay,
    "cumsum": _cumsum,
}
