"""The most memory that a pass needs beside the weights: a dry run of the module that the PyTorch backend writes.

The model is eager PyTorch in inference. A value lives from the node that makes it to the end of the block that holds it, for a local of
`forward` does, or, where a repeat carries it, to the end of the next copy. Views (heads that are split, slices) have no memory of their
own. Attention keeps no scores, as the kernels of `scaled_dot_product_attention` do, but where its weights are read or capped; a mask that
it makes counts. Optional inputs are absent, and inputs and weights are not counted. ONNX Runtime frees a value after its last reader, and
needs less where values wait (bert-base: 13 rows of activations instead of 18), more where its kernels keep scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..ir.graph import ARGUMENT, Branch, Call, Graph, Node, Region, Repeat, Scan, TensorType, Value, join
from ..ir.parameters import is_parameter
from .workspace import View, view, workspace

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(eq=False)
class Buffer:
    """Memory that one value or several views of it share."""

    path: str
    bytes: int
    kind: str = ""                                # the op that made it, whose layout a view may need


@dataclass(frozen=True)
class Copies:
    """A list of one output of every copy."""

    items: tuple[Buffer | None, ...]


Place = Buffer | Copies | None                    # None: a parameter, or absent


@dataclass(frozen=True)
class Peak:
    """The most bytes held at once, the node that runs then, and what is held, in the order in which it was made."""

    bytes: int
    path: str
    held: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Outcome:
    """What running a body does: its peak above what its caller holds, and its outputs, each an argument, new memory, or nothing."""

    peak: Peak
    outputs: Mapping[str, int | Buffer | None]


def peak_activation(graph: Graph, sizes: Mapping[str, int], dtype: str) -> Peak:
    """The peak of one pass over a lowered graph, where `sizes` names every free dimension."""
    root = graph.root
    given = tuple(None if a.type.optional else Buffer(a.name, 0) for a in root.arguments)
    return DryRun(sizes, BYTES[dtype]).body(root, given, tuple(name for name, _ in root.outputs)).peak


class DryRun:
    """Runs bodies at fixed sizes; a body that runs again the same way is looked up."""

    def __init__(self, sizes: Mapping[str, int], width: int):
        self.sizes, self.widths = sizes, {"float": width, "float32": 4, "int64": 8, "bool": 1}
        self.known: dict[Any, Outcome] = {}

    def bytes(self, type: TensorType) -> int:
        return self.widths[type.dtype] * prod(self.size(d) for d in type.shape)

    def size(self, dim: Any) -> int:
        return dim.value if dim.value is not None else dim.evaluate(self.sizes)

    def body(self, region: Region, given: tuple[Place, ...], used: tuple[str, ...]) -> Outcome:
        key = id(region), tuple(place is None for place in given), used
        if key not in self.known:
            inside = tuple(None if place is None else Buffer("", 0) for place in given)
            frame = Frame(self, region, inside, used)
            frame.run()
            self.known[key] = frame.outcome()
        return self.known[key]


@dataclass
class Frame:
    """One call of a `forward`: where its values are, and the memory that its locals hold."""

    dry: DryRun
    region: Region
    given: tuple[Buffer | None, ...]
    used: tuple[str, ...]
    held: dict[Buffer, None] = field(default_factory=dict)
    now: int = 0
    peak: Peak = Peak(0, "", ())

    def __post_init__(self) -> None:
        self.env: dict[Value, Place] = {Value(ARGUMENT, k): place for k, place in enumerate(self.given)}
        self.needed = needed(self.region, [v for name, v in self.region.outputs if name in self.used])

    def outcome(self) -> Outcome:
        arguments = {id(b): k for k, b in enumerate(self.given) if b is not None}
        found: dict[str, int | Buffer | None] = {}
        for name, value in self.region.outputs:
            if name in self.used:
                place = self.tensor(value, name)
                found[name] = None if place is None else arguments.get(id(place), place)
        return Outcome(self.peak, found)

    def run(self) -> None:
        runs: dict[type, Callable[[Node], None]] = {Call: self.call, Repeat: self.repeat, Branch: self.branch, Scan: self.scan}
        for node in self.region.nodes:
            if is_parameter(node):
                self.env[Value(node.id)] = None
            elif any(v in self.needed for v in results(node)):
                runs.get(type(node.op), self.op)(node)

    # memory

    def hold(self, made: Buffer) -> Buffer:
        if made not in self.held:
            self.held[made] = None
            self.now += made.bytes
        return made

    def drop(self, places: Iterable[Place]) -> None:
        for place in places:
            if isinstance(place, Buffer) and place in self.held:
                del self.held[place]
                self.now -= place.bytes

    def reach(self, path: str, more: int, inside: Iterable[tuple[str, int]] = ()) -> None:
        """`more` bytes are needed beside what the locals hold, while the node at `path` runs."""
        if self.now + more > self.peak.bytes:
            self.peak = Peak(self.now + more, path, (*((b.path, b.bytes) for b in self.held if b.bytes), *inside))

    def tensor(self, value: Value, name: str) -> Buffer | None:
        """The value as one tensor; a list of copies is stacked once, when it is first read."""
        place = self.env[value]
        if isinstance(place, Copies):
            place = self.hold(Buffer(join(name, "stacked"), self.dry.bytes(self.region.type(value)))) if any(place.items) else None
            self.env[value] = place
            self.reach(name, 0)
        return place

    # nodes

    def op(self, node: Node) -> None:
        inputs = {port: [] if v is None else [self.tensor(x, node.name) for x in (v if isinstance(v, tuple) else (v,))]
                  for port, v in node.inputs.items()}
        types = {port: self._type(given) for port, given in node.inputs.items()}
        present = [place for places in inputs.values() for place in places if place is not None]
        used = frozenset(o for k, o in enumerate(node.outputs) if Value(node.id, k) in self.needed)
        kind = view(node, types, next(iter(present), None))
        made = []
        for k, type in enumerate(node.types):
            value = Value(node.id, k)
            if type.optional and not present or (k and value not in self.needed):
                self.env[value] = None
            elif isinstance(kind, View):
                self.env[value] = present[0] if present else None
            else:
                bytes = self.dry.bytes(type) if kind is None else self.dry.widths[type.dtype] * self.dry.size(kind)
                made.append(Buffer(node.name, bytes, kind_of(node, present)))
                self.env[value] = made[-1]
        absent = frozenset(p for p, places in inputs.items() if places and self._activation(node, p) and not any(places))
        extra = workspace(node, types, used, absent, self.dry.bytes, self.dry.widths["float"])
        more = [(node.name, extra.bytes)] if extra.bytes else []
        self.reach(node.name, sum(b.bytes for b in made) + extra.bytes, [*((b.path, b.bytes) for b in made), *more])
        for buffer in [*made, *([Buffer(node.name, extra.kept)] if extra.kept else [])]:
            self.hold(buffer)

    def _type(self, given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(self.region.type(v) for v in given)
        return None if given is None else self.region.type(given)

    def _activation(self, node: Node, port: str) -> bool:
        """Whether a port is given something other than a parameter."""
        given = node.inputs[port]
        return not isinstance(given, Value) or given.node == ARGUMENT or not is_parameter(self.region.nodes[given.node])

    def call(self, node: Node) -> None:
        places = {name: self.tensor(v, node.name) for name, v in node.inputs.items() if isinstance(v, Value)}
        outs = self.invoke(node.op.body, places, self._wanted(node), node.name)
        for name in node.outputs:
            self.env[node.output(name)] = outs.get(name)
        for place in outs.values():
            if place is not None:
                self.hold(place)

    def invoke(self, body: Region, places: Mapping[str, Place], wanted: tuple[str, ...], path: str) -> dict[str, Buffer | None]:
        """Run a body; its outputs, not yet held."""
        given = tuple(self._one(places.get(a.name)) for a in body.arguments)
        outcome = self.dry.body(body, given, wanted)
        self.reach(join(path, outcome.peak.path), outcome.peak.bytes, [(join(path, p), n) for p, n in outcome.peak.held])
        return {name: given[o] if isinstance(o, int) else None if o is None else Buffer(join(path, o.path), o.bytes, o.kind)
                for name, o in outcome.outputs.items()}

    def _one(self, place: Place) -> Buffer | None:
        assert not isinstance(place, Copies), "a body takes tensors"
        return place

    def _wanted(self, node: Node, carried: Iterable[str] = ()) -> tuple[str, ...]:
        names = {o.removeprefix("all.").removeprefix("last.") for k, o in enumerate(node.outputs) if Value(node.id, k) in self.needed}
        names |= set(carried)
        return tuple(name for name, _ in node.op.bodies[0].outputs if name in names)

    def repeat(self, node: Node) -> None:
        """Copies in turn; what is carried lives until the copy that reads it is done."""
        op: Repeat = node.op
        fixed = self._places(node, op.carry)
        state = {name: self.tensor(v, node.name) for name in op.carry if isinstance(v := node.inputs.get(name), Value)}
        wanted, kept = self._wanted(node, op.carry.values()), self._listed(node)
        lists: dict[str, list[Buffer | None]] = {name: [] for name in kept}
        own: list[Buffer] = []                              # what the copy before made
        outs: dict[str, Buffer | None] = {}
        for i, k in enumerate(op.schedule):
            each = {name: self._item(fixed[name], at[i]) for name, at in op.each.items()}
            outs = self.invoke(op.bodies[k], {**fixed, **state, **each}, wanted, join(node.name, "{i}"))
            fresh = [place for place in outs.values() if place is not None and place not in self.held and place not in self.given]
            for place in fresh:
                self.hold(place)
            stays = {id(b) for name in kept for b in (*lists[name], outs.get(name))}
            self.drop(b for b in own if id(b) not in stays and b not in fresh and b not in outs.values())
            own = fresh
            state = {name: outs.get(o) for name, o in op.carry.items()}
            for name in kept:
                lists[name].append(outs.get(name))
        for name in node.outputs:
            self.env[node.output(name)] = Copies(tuple(lists.get(name[4:], ()))) if name.startswith("all.") else outs.get(name)

    def _places(self, node: Node, without: Iterable[str] = ()) -> dict[str, Place]:
        """What the copies share; lists of copies that are taken one by one stay lists."""
        ports = {name: v for name, v in node.inputs.items() if isinstance(v, Value) and name not in without}
        return {name: self.env[v] if name in node.op.each else self.tensor(v, node.name) for name, v in ports.items()}

    def _item(self, place: Place, i: int) -> Place:
        return place.items[i] if isinstance(place, Copies) else place

    def _listed(self, node: Node) -> list[str]:
        """Outputs that are kept for every copy."""
        return [o.removeprefix("all.") for o in node.outputs if o.startswith("all.") and node.output(o) in self.needed]

    def branch(self, node: Node) -> None:
        op: Branch = node.op
        if op.route:
            self.mixture(node)
            return
        fixed = self._places(node)
        lists: dict[str, list[Buffer | None]] = {name: [] for name in self._listed(node)}
        for i, k in enumerate(op.schedule):
            each = {name: self._item(fixed[name], at[i]) for name, at in op.each.items()}
            outs = self.invoke(op.bodies[k], {**fixed, **each}, self._wanted(node), join(node.name, "{i}"))
            for name, found in lists.items():
                found.append(place := outs.get(name))
                if place is not None:
                    self.hold(place)
        for name in node.outputs:
            self.env[node.output(name)] = Copies(tuple(lists.get(name.removeprefix("all."), ())))

    def mixture(self, node: Node) -> None:
        """A routed sum: one expert at a time on its share of the rows, as if all had the same number."""
        op: Branch = node.op
        places = self._places(node)
        indices = node.inputs["route.indices"]
        assert isinstance(indices, Value)
        copies = len(op.schedule)
        share = min(self.region.type(indices).shape[-1].value or copies, copies) / copies
        out, rows = self.dry.bytes(node.types[0]), self.region.type(node.inputs["in"])            # type: ignore[arg-type]
        for body in op.bodies:
            inner = self.dry.body(body, tuple(places.get(a.name) for a in body.arguments), (body.outputs[0][0],)).peak
            path = join(node.name, "{i}", inner.path)
            held = [(node.name, out), *((join(node.name, "{i}", p), int(n * share)) for p, n in inner.held)]
            self.reach(path, out + int((inner.bytes + self.dry.bytes(rows)) * share), held)
        self.reach(node.name, 2 * out + int(2 * out * share), [(node.name, 2 * out + int(2 * out * share))])
        self.env[Value(node.id)] = self.hold(Buffer(node.name, out))

    def scan(self, node: Node) -> None:
        """Steps in time: outputs of all steps in lists, then stacked."""
        op: Scan = node.op
        places = {name: self.tensor(v, node.name) for name, v in node.inputs.items() if isinstance(v, Value)}
        steps, wanted = self.dry.size(op.extent), self._wanted(node, op.carry.values())
        outs = self.invoke(op.body, places, wanted, node.name)
        carried = [b for b in dict.fromkeys(outs.get(o) for o in op.carry.values()) if b is not None]
        stacked = [o for o, _ in op.body.outputs if o in node.outputs and node.output(o) in self.needed]
        listed = sum(self.dry.bytes(node.types[node.outputs.index(o)]) for o in stacked)
        now = sum(b.bytes for b in carried)
        inner = self.dry.body(op.body, tuple(places.get(a.name) for a in op.body.arguments), wanted).peak
        if steps > 1:
            self.reach(join(node.name, inner.path), listed + now + inner.bytes, [(node.name, listed + now), *inner.held])
        self.reach(node.name, 2 * listed + now, [(node.name, 2 * listed + now)])
        for k, name in enumerate(node.outputs):
            if Value(node.id, k) in self.needed:
                self.env[Value(node.id, k)] = self.hold(Buffer(join(node.name, name), self.dry.bytes(node.types[k])))


def kind_of(node: Node, inputs: list[Buffer]) -> str:
    """The op; fused attention writes the heads last only where its query, a view, has them last."""
    name = node.op.name
    return "attention with heads first" if name == "attention" and inputs[0].kind in ("rope", "concat") else name


def results(node: Node) -> Iterable[Value]:
    return (Value(node.id, k) for k in range(len(node.outputs)))


def needed(region: Region, roots: Iterable[Value]) -> set[Value]:
    """The values that `roots` are computed from, with them; what a parameter starts from is not among them."""
    found = set(roots)
    for node in reversed(region.nodes):
        if not is_parameter(node) and any(v in found for v in results(node)):
            found.update(node.values)
    return found
