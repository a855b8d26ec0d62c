"""`typed Graph -> StepForm`: what decoding needs, derived from the graph that is trained (design in `specs/README.md`).

Outputs are asked for this chunk; an op that treats positions one by one passes the request on; attention asks its keys and values for
every position so far, which makes a cache; ops with a state of their own carry it. What does not move goes to the prefix model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.flat import pruned
from ...ir.graph import ARGUMENT, Control, Graph, Node, Region, Scan, TensorType, Value, walk
from ...lang.diagnostic import Diagnostic, Diagnostics, diagnostic, suggest
from ...ops.base import axis_of
from .arguments import ordered
from .caches import first_readers
from .causal import AT_MOST, causal
from .derive import Deriver, Refused
from .expose import laid_out, with_weights
from .facts import Facts
from .form import DIMENSIONS, NEW_LENGTH, PAST, WANTED, Layout, State, StepForm
from .joined import behind, joined
from .prefix import meaning, prefix
from .rows import mixing
from .rules import rule


def step_form(graph: Graph, along: str | None = None, absent: frozenset[str] = frozenset()) -> StepForm:
    """The step form of a lowered graph, without the optional inputs `absent`. Raises Diagnostics (`cannot-stream`) that name every node in
    the way, its line and why."""
    symbol = along or stream_axis(graph)
    _check_axis(graph, symbol)
    return _derive(laid_out(graph), symbol, absent)


def stream_axis(graph: Graph) -> str:
    """The only axis along which something attends causally or scans, else the only one along which something carries a state; of
    several the one that outputs have.

    Raises Diagnostics where there is none, or several.
    """
    nodes = list(walk(graph.root))
    compares = any(getattr(n.op, "name", "") in AT_MOST for _, _, n in nodes)
    ways = [_axes(nodes, _causal), _axes(nodes, _stateful), _axes(nodes, _timed) if compares else {}]
    plain = _plain(a.type for a in graph.root.arguments)
    found = next((kept for way in ways if (kept := {k: v for k, v in way.items() if k in plain})), {})
    told = [symbol for symbol in found if any(d == Dim.symbol(symbol) for _, v in graph.root.outputs for d in graph.root.type(v).shape)]
    if len(found) == 1 or len(told) == 1:
        return told[0] if told else next(iter(found))
    walked = [axis for _, r, n in nodes for axis in (_causal(r, n), _stateful(r, n)) if axis is not None]
    if not found and any(axis.symbols() & set(plain) for axis in walked) and (joins := joined(nodes, plain)):
        raise Diagnostics(joins.values())
    said = [f"`{symbol}`, by `{path}`" for symbol, path in found.items()]
    raise Diagnostics([diagnostic(
        "cannot-stream", "the model can be run step by step along several axes" if found else "the model has no axis that is causal",
        graph.root.origin.span, note=said or "nothing attends causally, scans or carries a state",
        help=f"choose one: `--along {next(iter(found))}`" if found else ())])


def _axes(nodes: Iterable[tuple[str, Region, Node]], of: Callable[[Region, Node], Dim | None]) -> dict[str, str]:
    """Free dimension -> path of a node that has it as its axis."""
    found: dict[str, str] = {}
    for path, region, node in nodes:
        axis = of(region, node)
        if axis is not None and len(axis.symbols()) == 1 and axis == Dim.symbol(min(axis.symbols())):
            found.setdefault(str(axis), path)
    return found


def _causal(region: Region, node: Node) -> Dim | None:
    op = node.op
    if isinstance(op, Scan):
        return None if op.backward else op.extent
    if isinstance(op, Control):
        return None
    if op.name == "attention" and op.causal:
        return _size(region, node, "key", 2)
    return node.types[0].shape[1] if op.name == "causal_mask" else None


def _stateful(region: Region, node: Node) -> Dim | None:
    op = node.op
    if isinstance(op, Control):
        return None
    forward = op.name in ("rnn", "lstm", "gru") and op.direction == "forward"
    summed = op.name == "cumsum" and axis_of(len(node.types[0].shape), op.axis) == 1
    return _size(region, node, "in", 1) if forward or summed or op.name == "delay" or (op.name == "conv1d" and op.causal) else None


def _timed(region: Region, node: Node) -> Dim | None:
    return None if isinstance(node.op, Control) or node.op.name != "position" else node.types[0].shape[1]


def _size(region: Region, node: Node, port: str, axis: int) -> Dim:
    given = node.inputs[port]
    assert isinstance(given, Value)
    return region.type(given).shape[axis]


def _plain(types: Iterable[TensorType]) -> list[str]:
    """The free dimensions that are axes of these types, behind their rows."""
    sizes = (d for t in types for d in t.shape[1:] if d.value is None)
    return list(dict.fromkeys(str(d) for d in sizes if d == Dim.symbol(min(d.symbols()))))


def _check_axis(graph: Graph, symbol: str) -> None:
    if symbol not in (known := _plain(a.type for a in graph.root.arguments)):
        raise Diagnostics([diagnostic("cannot-stream", f"no input has the axis `{symbol}`", graph.root.origin.span,
                                      help=[*suggest(symbol, known, "axes"), "the stream axis is an axis of an input, behind its rows"])])


def _derive(flat: Graph, symbol: str, absent: frozenset[str]) -> StepForm:
    facts = Facts(flat.root, symbol, frozenset())
    optional = {a.name for a in flat.root.arguments if a.type.optional and facts.axes(a.type)}
    own = optional | facts.lengths
    dropped = tuple(a.name for a in flat.root.arguments if a.name in own | absent)
    facts = replace(facts, dropped=frozenset(dropped), absent=absent - own)
    _check_inputs(flat, facts)
    d = Deriver(facts, RegionBuilder(flat.name, flat.root.origin), rule)
    d.out.about = flat.about
    for a in flat.root.arguments:
        if facts.axes(a.type) and a.name not in dropped:
            d.argument(a.name, a.type)
    outputs, refused = _outputs(d)
    refused = refused or _mixed(d) or _sizeless(d)
    if refused:
        more = [r.diagnostic for r in d.memo.values() if isinstance(r, Refused)]
        once: dict[object, Diagnostic] = {}
        live = d.region.reached(v for _, v in d.region.outputs)
        joins = joined(((n.name, d.region, n) for n in d.region.nodes if n.id in live), [symbol])
        after = {d.region.nodes[k].origin.span for k in behind(d.region, joins)}
        told = [*joins.values(), *(r for r in (*refused, *more) if r.labels[0].span not in after)]
        for r in told:                                # of copies the first
            once.setdefault((r.labels, r.helps), r)
        raise Diagnostics(once.values())
    if d.states or PAST in {a.name for a in d.out.arguments}:
        d.states = {PAST: State(PAST, "clock", d.out.type(d.past))} | d.states
        d.after[PAST] = d.ended
    _ = d.new_length                            # every step model has it
    ends = [*outputs, *((name, d.after[name]) for name in d.states)]
    step = replace(flat, root=_ordered(d.out.finish(ends), d))
    fixed = tuple(d.fixed.values())
    starts = {name: f"{name}.start" for name in d.starts}
    states = tuple(replace(s, start=starts.get(s.name)) for s in d.states.values())
    wanted = [*((n, v) for v, n in d.fixed.items()), *((starts[n], v) for n, v in d.starts.items()), *_still(d)]
    chunk = tuple(a.name for a in flat.root.arguments if facts.axes(a.type) and a.name not in dropped)
    return StepForm(symbol, prefix(flat, facts, wanted), step, chunk, fixed, states, dropped, meaning(flat, facts, wanted))


def _check_inputs(flat: Graph, facts: Facts) -> None:
    """Raises Diagnostics unless what comes in chunks has rows on axis 0 and T on axis 1, and no name of the step form's own."""
    wrong, T = [], facts.symbol
    chunks = [a for a in flat.root.arguments if facts.axes(a.type) and a.name not in facts.dropped]
    if not chunks:
        wrong.append("every input along it may be left out, and is in the step form")
    for a in chunks:
        if facts.axes(a.type) != (1,) or facts.rows == facts.T:
            wrong.append(f"input `{a.name}` is {a.type}: chunks have rows on axis 0 and `{T}` on axis 1, and nowhere else")
        elif a.type.shape[0] != facts.rows:
            wrong.append(f"input `{a.name}` has {a.type.shape[0]} rows, and `{chunks[0].name}` has {facts.rows}")
    if chunks and (facts.rows.value or 1) > 1:
        wrong.append(f"there are always {facts.rows} rows: write a free size such as `B`, or 1")
    names = {a.name for a in flat.root.arguments} | {name for name, _ in flat.root.outputs}
    wrong += [f"`{name}` is what the step form calls an input of its own: rename it" for name in sorted(names & {PAST, NEW_LENGTH, WANTED})]
    types = [*(a.type for a in flat.root.arguments), *(t for n in flat.root.nodes for t in n.types)]
    sizes = {s for t in types for d in t.shape for s in d.symbols()} - {T}
    wrong += [f"`{name}` is what the step form calls a dimension of its own: rename it" for name in sorted(sizes & DIMENSIONS)]
    if wrong:
        raise Diagnostics([diagnostic("cannot-stream", f"the model cannot be run step by step along `{T}`", flat.root.origin.span,
                                      note=wrong)])


def _mixed(d: Deriver) -> list[Diagnostic]:
    """What brings rows together, which a step must not do: each of them may be at another position."""
    if d.rows.value == 1:
        return []
    live = d.region.reached(v for _, v in d.region.outputs if v in d.facts.moving)
    return [d.refuse(node, f"brings the rows of a batch together{where and ', '}{where}, and each may be at another position").diagnostic
            for node, where in mixing(d.region, d.rows, d.facts.moving, live)]


def _sizeless(d: Deriver) -> list[Diagnostic]:
    """States at zeros whose sizes only the chunks tell, and not what is there before them."""
    known, found = d.rows.symbols() | {*_plain(d.region.type(v) for v in d.fixed)}, []
    for s in (s for s in d.states.values() if s.name not in d.starts):
        sizes = [x for k, x in enumerate(s.type.shape) if k != s.axis and (len(x.symbols()) > 1 or not x.symbols() <= known)]
        found += [diagnostic("cannot-stream", f"the model cannot be run step by step along `{d.facts.symbol}`", d.region.origin.span,
                             note=f"the state `{s.name}` is {s.type}, and `{x}` is not known before the first chunk",
                             help=f"write a number for `{min(x.symbols())}` in `inputs:`") for x in sizes]
    return found


def _outputs(d: Deriver) -> tuple[list[tuple[str, Value]], list[Diagnostic]]:
    """The moving outputs of the model, for a chunk; and what was refused."""
    outputs, refused = [], []
    _in_order(d)
    for name, value in d.region.outputs:
        if value not in d.facts.moving:
            if value in d.facts.left:
                refused.append(d.refuse_value(value, f"output `{name}` is made of nothing but inputs that are left out").diagnostic)
            continue
        try:
            axes = d.facts.of(value)
            if not axes and not _final(d, value):
                type = d.region.type(value)
                raise d.refuse_value(value, f"output `{name}` is {type}, whose size is made of `{d.facts.symbol}`" if d.facts.touches(type)
                                     else f"output `{name}` is known at the end of `{d.facts.symbol}` only")
            if len(axes) > 1 and not (len(axes) == 2 and causal(d.region, d.facts, value, axes)):
                raise d.refuse_value(value, f"output `{name}` has `{d.facts.symbol}` twice, and tells of positions to come")
            found = d.get(value, (None, *([Layout("C")] * (len(axes) - 1))) if axes else ())
            if found is None:
                raise d.refuse_value(value, f"output `{name}` is absent in the step form")
            outputs.append((name, found))
        except Refused as r:
            refused.append(r.diagnostic)
    return outputs, refused


def _in_order(d: Deriver) -> None:
    """Make what is surely asked for from the first node to the last, so that no request goes deeper than one node."""
    live = d.region.reached(v for _, v in d.region.outputs)
    for node in d.region.nodes:
        values = (Value(node.id, k) for k in range(len(node.outputs)))
        for value in values if node.id in live else ():
            if len(d.facts.of(value)) == 1 and value not in d.facts.clocked:
                with suppress(Refused):             # told where an output needs it
                    d.get(value, (None,))


def _final(d: Deriver, value: Value) -> bool:
    """Whether a value is the state that a loop along T ends in: its state after this chunk."""
    op = d.region.nodes[value.node].op if value.node != ARGUMENT else None
    return (isinstance(op, Scan) and op.extent == d.facts.T) or getattr(op, "name", "") in ("rnn", "lstm", "gru")


def _still(d: Deriver) -> list[tuple[str, Value]]:
    """The outputs of the model that do not move."""
    return [(name, value) for name, value in d.region.outputs if value not in d.facts.moving]


def _ordered(region: Region, d: Deriver) -> Region:
    """The region with its inputs in order: the chunk, what is fixed, states; nodes that nothing reads are left out."""
    region = first_readers(pruned(region))
    names = [a.name for a in region.arguments]
    first = [n for n in names if n not in d.states and n not in d.fixed.values() and n != NEW_LENGTH]
    order = [*first, NEW_LENGTH, *(n for n in names if n in d.fixed.values()), *(n for n in d.states if n in names)]
    return ordered(region, order)


__all__ = ["State", "StepForm", "step_form", "stream_axis", "with_weights"]
