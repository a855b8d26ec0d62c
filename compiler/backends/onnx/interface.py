"""What a graph asks of its inputs, as a manifest says it: bounds, ids below a size, lengths within an axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Control, Graph, Node, Region, Scan, TensorType, Value, bodies
from ...lang.diagnostic import Diagnostics, diagnostic
from ...runtime.dimension import parse
from ...runtime.manifest import Input, Output
from .builder import typed
from .emit import Emitted
from .least import least

MOVES = frozenset({"cache", "stop_gradient", "rearrange", "fill_absent"})      # ops that give their input's entries again


@dataclass
class Uses:
    """Per input of the graph: the rows of the tables it indexes, the sizes of the axes it gives lengths of, what stands for it where
    it is left out."""

    rows: dict[str, list[Dim]] = field(default_factory=dict)
    axes: dict[str, list[Dim]] = field(default_factory=dict)
    fills: dict[str, set[int | None]] = field(default_factory=dict)

    def index(self, name: str | None, size: Dim) -> None:
        if name is not None:
            self.rows.setdefault(name, []).append(size)

    def below(self, name: str, free: set[str]) -> int | str | None:
        """What the ids of an input lie below: the fewest rows of a table, else a size that tells."""
        sizes = self.rows.get(name, [])
        fixed = [d.value for d in sizes if d.value is not None]
        return min(fixed) if fixed else next((str(d) for d in sizes if _told(str(d), free)), None)

    def fill(self, name: str) -> int | None:
        """The number that every use of an optional input puts in its place."""
        found = self.fills.get(name, set())
        return min(found, key=str) if len(found) == 1 else None

    def length(self, name: str | None, size: Dim) -> None:
        if name is not None:
            self.axes.setdefault(name, []).append(size)
            self.fills.setdefault(name, set()).add(None)


def interface(emitted: Emitted) -> tuple[tuple[Input, ...], tuple[Output, ...]]:
    """The inputs and outputs of an emitted model. Raises Diagnostics (`bad-type`) for a size that no array could tell."""
    graph, uses = emitted.graph, Uses()
    names = {a.name for a in emitted.inputs}
    given = {k: a.name for k, a in enumerate(graph.root.arguments) if a.type.dtype == "int64" and a.name in names}
    _trace(graph.root, given, uses)
    _check_solvable(emitted)
    plain = {str(d) for a in emitted.inputs for d in a.type.shape if d.value is None and d == Dim.symbol(min(d.symbols()))}
    free = {s for a in emitted.inputs for d in a.type.shape for s in d.symbols()}
    inputs, smallest, whole = [], least(graph), _hides_nothing(graph.root)
    for a in emitted.inputs:
        lengths = [str(d) for d in uses.axes.get(a.name, ()) if str(d) in plain]
        own, fill = {s for d in a.type.shape for s in d.symbols()}, uses.fill(a.name)
        inputs.append(Input(
            a.name, typed(a.type, emitted.dtype), _shape(a.type), bounds=_bounds(graph, a.type),
            least={s: n for s, n in smallest.items() if s in own}, ids_below=uses.below(a.name, free),
            length_of=lengths[0] if lengths else None, optional=a.type.optional,
            neutral=fill is not None or a.type.optional and whole and (a.type.dtype == "bool" or bool(lengths)), fill=fill))
    types = {o: graph.root.type(v) for o, v in graph.root.outputs}
    return tuple(inputs), tuple(Output(o, typed(types[o], emitted.dtype), _shape(types[o]), name if name != o else None)
                                for o, name in emitted.outputs.items())


def _shape(type: TensorType) -> tuple[int | str, ...]:
    return tuple(str(d) if d.value is None else d.value for d in type.shape)


def _bounds(graph: Graph, type: TensorType) -> dict[str, int]:
    symbols = {s for d in type.shape for s in d.symbols()}
    found: dict[str, int] = {}
    for bound in graph.bounds:
        if bound.symbol in symbols:
            found[bound.symbol] = min(bound.limit, found.get(bound.symbol, bound.limit))
    return found


def _hides_nothing(region: Region) -> bool:
    """Whether masks and lengths that are left out mean ones that hide nothing: no op asks for more than what is hidden."""
    def other(node: Node) -> bool:
        return node.op.name in ("or", "not", "first_of") or node.op.name == "fill_absent" and node.types[0].dtype == "bool"

    def optional(node: Node) -> bool:
        return any(region.type(v).optional for v in node.values)
    ops = (n for n in region.nodes if not isinstance(n.op, Control))
    return (all(_hides_nothing(body) for n in region.nodes for body in bodies(n))
            and not any(other(n) and optional(n) for n in ops))


def _told(entry: str, free: set[str]) -> bool:
    try:
        return parse(entry).name in free
    except ValueError:
        return False


def _check_solvable(emitted: Emitted) -> None:
    wrong = []
    for a in emitted.inputs:
        for d in a.type.shape:
            try:
                parse(str(d))
            except ValueError:
                wrong.append(diagnostic(
                    "bad-type", f"input `{a.name}` has the size `{d}`, which does not tell one free dimension",
                    emitted.graph.root.origin.span, note="an exported model reads its free dimensions from shapes",
                    help="write sizes of inputs as `S`, `16*S` or `16*S + 1`"))
    if wrong:
        raise Diagnostics(wrong)


def _trace(region: Region, given: Mapping[int, str], uses: Uses) -> None:
    """Follow inputs through a region; `given` maps its arguments to the inputs they are."""
    env: dict[Value, str] = {Value(ARGUMENT, k): name for k, name in given.items()}
    for node in region.nodes:
        flows = {port: env[v] for port, v in node.inputs.items() if isinstance(v, Value) and v in env}
        if not flows:
            continue
        if not isinstance(node.op, Control):
            _use(region, node, flows, uses)
            if node.op.name in MOVES and "in" in flows:
                env[Value(node.id)] = flows["in"]
            continue
        if isinstance(node.op, Scan):
            uses.length(flows.get("scan.length"), node.op.extent)
        for body in node.op.bodies:
            _trace(body, {k: flows[a.name] for k, a in enumerate(body.arguments) if a.name in flows}, uses)


def _use(region: Region, node: Node, flows: Mapping[str, str], uses: Uses) -> None:
    op = node.op
    for port, name in flows.items():
        value = node.inputs[port]
        if isinstance(value, Value) and region.type(value).optional:
            uses.fills.setdefault(name, set()).add(int(op.value) if op.name == "fill_absent" else None)

    def shape(port: str) -> tuple[Dim, ...]:
        value = node.inputs[port]
        assert isinstance(value, Value)
        return region.type(value).shape

    if op.name == "embedding":
        uses.index(flows.get("in"), shape("weight")[0])
    elif op.name == "gather" and "index" in flows:
        uses.index(flows["index"], shape("in")[op.axis])
    elif op.name == "length_mask":
        uses.length(flows.get("in"), node.types[0].shape[1])
    elif "length" in flows:
        uses.length(flows["length"], shape("key")[2] if op.name == "attention" else shape("in")[1])
