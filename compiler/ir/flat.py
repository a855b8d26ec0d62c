"""A graph with its blocks and repeats laid out: one region of ops, scans and routed branches, each under its full path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .builder import RegionBuilder
from .graph import ARGUMENT, Branch, Call, Graph, Input, Node, Region, Repeat, Scan, TensorType, Value, fresh, join, mapped
from .parameters import is_parameter

Element = Callable[[TensorType, int], tuple[object, TensorType]]       # an op that takes element i of the leading axis
Stacked = Callable[[tuple[TensorType, ...]], tuple[object, TensorType]]


@dataclass(frozen=True)
class Copies:
    """One output of every copy of a block."""

    items: tuple[Entry, ...]


Entry = Value | Copies | None
Entries = Mapping[str, Entry]


def op_name(node: Node) -> str:
    """Name of a node's op; empty for a control form."""
    return getattr(node.op, "name", "")


class SharedLoop(Exception):
    """A scan or a routed branch with parameters, in a copy that uses those of another."""

    def __init__(self, node: Node, path: str):
        self.node, self.path = node, path
        super().__init__(path)


def flatten(graph: Graph, element: Element, stack: Stacked) -> Graph:
    """The graph laid out. `element` and `stack` make the ops that cut and join copies. Raises SharedLoop."""
    root = graph.root
    flat = _Flattener(RegionBuilder(root.name, root.origin), element, stack)
    flat.out.about = root.about
    given = {a.name: flat.out.argument(a.name, a.type) for a in root.arguments}
    made = flat.region(root, given, "", "")
    return replace(graph, root=flat.out.finish([(name, flat.value(made[name], name, root.nodes[0])) for name, _ in root.outputs]))


@dataclass
class _Flattener:
    out: RegionBuilder
    element: Element
    stack: Stacked

    def __post_init__(self) -> None:
        self.parameters: dict[str, Value] = {}
        self.taken: set[str] = set()                    # names of elements and stacks

    def region(self, region: Region, given: Entries, path: str, owner: str) -> dict[str, Entry]:
        """Lay out a region below `path`, whose parameters are those at `owner`; returns its outputs."""
        env: dict[Value, Entry] = {Value(ARGUMENT, k): given.get(a.name) for k, a in enumerate(region.arguments)}
        for node in region.nodes:
            made = self.node(node, env, path, owner)
            env |= {Value(node.id, k): made.get(name) for k, name in enumerate(node.outputs)}
        return {name: env[value] for name, value in region.outputs}

    def node(self, node: Node, env: Mapping[Value, Entry], path: str, owner: str) -> dict[str, Entry]:
        op, here, owned = node.op, join(path, node.name), join(owner, node.name)
        if isinstance(op, Call):
            return self.region(op.body, self._given(node, env), here, owned)
        if isinstance(op, Repeat) or (isinstance(op, Branch) and not op.route):
            return self.copies(node, op, self._given(node, env), here, owned)
        if isinstance(op, Scan | Branch) and here != owned and any(is_parameter(n) for b in op.bodies for n in b.nodes):
            raise SharedLoop(node, here)
        if is_parameter(node):
            if owned not in self.parameters:
                self.parameters[owned] = Value(self.out.add(owned, node.op, {"init": None}, node.outputs, node.types, node.origin).id)
            return {node.outputs[0]: self.parameters[owned]}

        if op_name(node) == "first_of":             # chosen when the block was used
            given = node.inputs["in"]
            first = next(v for v in (given if isinstance(given, tuple) else (given,)) if v is not None and env[v] is not None)
            return {node.outputs[0]: env[first]}

        def value(given: Value) -> Value:
            return self.value(env[given], here, node)

        inputs: dict[str, Input] = {}
        for port, given in node.inputs.items():
            if isinstance(given, tuple):
                inputs[port] = tuple(value(v) for v in given if env[v] is not None)
            else:
                inputs[port] = None if given is None or env[given] is None else value(given)
        made = self.out.add(here, op, inputs, node.outputs, node.types, node.origin)
        return {name: Value(made.id, k) for k, name in enumerate(node.outputs)}

    def copies(self, node: Node, op: Repeat | Branch, given: Entries, path: str, owner: str) -> dict[str, Entry]:
        """Every copy in turn: the outputs of the last one, and `all.x`."""
        stacked: dict[str, list[Entry]] = {}
        state: dict[str, Entry] = {name: given.get(name) for name in op.carry}
        outs: dict[str, Entry] = {}
        for i, k in enumerate(op.schedule):
            here = join(path, str(i))
            each = {name: self.item(given[name], at[i], join(here, name), node) for name, at in op.each.items()}
            outs = self.region(op.bodies[k], {**given, **state, **each}, here, join(owner, str(op.share[i])))
            state = {name: outs.get(o) for name, o in op.carry.items()}
            for name, entry in outs.items():
                stacked.setdefault(f"all.{name}", []).append(entry)
        return outs | {name: Copies(tuple(items)) for name, items in stacked.items()}

    def _given(self, node: Node, env: Mapping[Value, Entry]) -> dict[str, Entry]:
        return {name: env[v] for name, v in node.inputs.items() if isinstance(v, Value)}

    def item(self, entry: Entry, i: int, name: str, node: Node) -> Entry:
        """Element i of the leading axis."""
        if isinstance(entry, Copies):
            return entry.items[i]
        assert entry is not None
        op, type = self.element(self.out.type(entry), i)
        return Value(self._add(name, op, {"in": entry}, type, node).id)

    def value(self, entry: Entry, name: str, node: Node) -> Value:
        """The entry as one tensor."""
        if not isinstance(entry, Copies):
            assert entry is not None, f"{name} reads a value that is absent"
            return entry
        items = tuple(self.value(x, name, node) for x in entry.items)
        op, type = self.stack(tuple(self.out.type(v) for v in items))
        return Value(self._add(join(name, "stacked"), op, {"in": items}, type, node).id)

    def _add(self, name: str, op: object, inputs: Mapping[str, Input], type: TensorType, node: Node) -> Node:
        name = fresh(name, self.taken)
        self.taken.add(name)
        return self.out.add(name, op, inputs, ("out",), (type,), node.origin)


def pruned(region: Region) -> Region:
    """The region without nodes that no output depends on."""
    needed = region.reached(v for _, v in region.outputs)
    kept = [n for n in region.nodes if n.id in needed]
    ids = {n.id: k for k, n in enumerate(kept)} | {ARGUMENT: ARGUMENT}

    def moved(v: Value) -> Value:
        return Value(ids[v.node], v.output)

    nodes = tuple(replace(n, id=ids[n.id], inputs={k: mapped(v, moved) for k, v in n.inputs.items()}) for n in kept)
    return replace(region, nodes=nodes, outputs=tuple((n, moved(v)) for n, v in region.outputs))
