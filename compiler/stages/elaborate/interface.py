"""What the keys of a node mean: its target's ports, attributes or settings, and slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from ...lang.diagnostic import Label, Sink, diagnostic, fault, nearest, suggest
from ...lang.source import Span
from ...lang.spec import BlockSpec, Field, FieldValue, Items, NodeSpec, SettingSpec, SlotSpec
from ...lang.tree import Mapping as TreeMapping
from ...lang.tree import Scalar
from ...library import home
from ...ops.base import Op
from ...ops.registry import OPS
from .attributes import Kind

LISTED = 24              # names that a message lists, at most


@dataclass(frozen=True)
class Interface:
    """`what` is an op class, a block or a slot; the mappings say what each key is."""

    kind: str
    name: str
    what: Any
    ports: Mapping[str, bool]                               # name -> may be absent
    attributes: Mapping[str, Kind] = field(default_factory=dict)   # attribute or setting -> kind
    slots: Mapping[str, SlotSpec] = field(default_factory=dict)
    either: frozenset[str] = frozenset()                    # ports that also take a literal
    open: bool = False

    def role(self, key: str, value: FieldValue, block: BlockSpec) -> str | None:
        """port, attribute, slot, size (an open attribute), or None for a key it does not have; `block` holds the node."""
        if key in self.either and is_literal(value, block):
            return "attribute"
        if key in self.ports:
            return "port"
        if key in self.attributes or (self.kind == "op" and key in ("init", "trainable")):
            return "attribute"
        if key in self.slots:
            return "slot"
        return "size" if self.open else None

    @property
    def keys(self) -> list[str]:
        return [*self.ports, *self.attributes, *self.slots]


def is_literal(value: FieldValue, block: BlockSpec) -> bool:
    """Whether a field that takes a reference or a literal holds the literal, or a setting that is one."""
    if not isinstance(value, Scalar):
        return isinstance(value, TreeMapping)
    return value.text in ("true", "false", "zeros", "ones") or (value.text in block.settings and value.text not in block.nodes
                                                                and value.text not in block.inputs)


def op_interface(cls: type[Op]) -> Interface:
    attributes: dict[str, Kind] = {f.metadata["key"] or name: f.metadata["kind"] for name, f in cls.attributes().items()
                  if f.metadata and f.metadata["kind"] != "open"}
    return Interface("op", cls.name, cls, cls.ports(), attributes, {}, cls.attribute_ports, cls.open_attributes)


def block_interface(block: BlockSpec) -> Interface:
    kinds = {n: kind_of(s) for n, s in block.settings.items()}
    return Interface("block", block.name.text, block, {n: i.type.optional for n, i in block.inputs.items()}, kinds, block.slots)


def kind_of(setting: SettingSpec) -> Kind:
    return setting.choices if setting.kind == "choice" else setting.kind


def slot_interface(slot: SlotSpec) -> Interface:
    return Interface("slot", slot.name.text, slot, {n: t.optional for n, t in slot.inputs})


def interface(spec: NodeSpec, block: BlockSpec) -> Interface:
    """The interface of a node's target, looked up from the block that the node is written in."""
    name, blocks = spec.target.text, block.unit.blocks
    if spec.kind in ("slot", "name") and name in block.slots:
        return slot_interface(block.slots[name])
    if spec.kind in ("block", "name") and name in blocks:
        return block_interface(blocks[name])
    if spec.kind in ("op", "name") and name in OPS:
        return op_interface(OPS[name])
    known = {"op": list(OPS), "block": list(blocks), "slot": list(block.slots), "name": [*blocks, *OPS]}[spec.kind]
    word = {"name": "block or op"}.get(spec.kind, spec.kind)
    kinds: dict[str, Mapping[str, object]] = {"op": OPS, "block": blocks, "slot": block.slots}
    elsewhere = next((k for k, names in kinds.items() if k != spec.kind and name in names), None)
    help: Iterable[str] = suggest(name, known, f"{word}s")
    if len(known) > LISTED and not nearest(name, known):
        help = [f"`nnspec list` prints all {word}s"]
    if elsewhere:
        help = [f"`{name}` is {'an' if elsewhere == 'op' else 'a'} {elsewhere}: write `{elsewhere}: {name}`"]
    elif spec.kind != "slot" and (file := home(name)):
        help = [f"the library has it: add `use: [{file}]`, or `{file}` to the list there"]
    raise fault("unknown-name", f"there is no {word} `{name}`", spec.target.span, help=help,
                note="blocks come from this file and from the files that `use:` names" if spec.kind == "block" else ())


def references(spec: NodeSpec, block: BlockSpec, sink: Sink | None = None) -> Iterator[Scalar]:
    """Every scalar in a node, its inline nodes and its fills that names a value of the block it is written in."""
    def scalars(value: FieldValue) -> Iterator[Scalar]:
        if isinstance(value, Scalar):
            yield value
        elif isinstance(value, Items):
            for item in value.items:
                yield from scalars(item)
        elif isinstance(value, NodeSpec):
            yield from references(value, block, sink)

    quiet = sink or Sink()
    with quiet.catch():
        target = interface(spec, block)
        for f in spec.fields.values():
            yield from _field_references(f, target, spec, scalars, block, sink)
    for _, variant in spec.pattern:
        yield from references(variant, block, sink)
    for each in spec.each:
        yield from scalars(each.value)
    for _, start in spec.carry:
        yield from scalars(start)
    yield from (spec.route or {}).values()


def _field_references(f: Field, target: Interface, spec: NodeSpec, scalars: Any, block: BlockSpec,
                      sink: Sink | None) -> Iterator[Scalar]:
    role = target.role(f.key.text, f.value, block)
    if role == "port" or (spec.control == "scan" and f.key.text == "length"):
        yield from scalars(f.value)
    elif role == "slot" and isinstance(f.value, NodeSpec):
        yield from references(f.value, block, sink)


def order(block: BlockSpec, sink: Sink) -> tuple[list[NodeSpec], set[str]]:
    """The nodes so that each follows what it reads, and the names that lie on a loop (each loop is reported)."""
    position = {name: i for i, name in enumerate(block.nodes)}
    reads: dict[str, dict[str, Scalar]] = {name: {} for name in position}
    for name, spec in block.nodes.items():
        for scalar in references(spec, block, sink):
            head = scalar.text.partition(".")[0]
            if head in position:
                reads[name].setdefault(head, scalar)
    looped: set[str] = set()
    try:
        names = _in_order(reads, position)
    except CycleError:
        looped = _loops(reads, position, sink)
        names = _in_order({n: [h for h in heads if h not in looped] for n, heads in reads.items() if n not in looped}, position)
    return [block.nodes[n] for n in names], looped


def _in_order(reads: Mapping[str, Iterable[str]], position: Mapping[str, int]) -> list[str]:
    """Every name behind those that it reads; of several that may come next, the one that is written first. Raises CycleError."""
    sorter = TopologicalSorter(reads)
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    out = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, (position[name], name))
        out.append(heappop(ready)[1])
        sorter.done(out[-1])
    return out


def _loops(reads: Mapping[str, Mapping[str, Scalar]], position: dict[str, int], sink: Sink) -> set[str]:
    """The names on loops, each loop reported."""
    import networkx as nx  # 0.1 s, which only a loop pays for
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((head, name, {"at": at}) for name, heads in reads.items() for head, at in heads.items())
    looped: set[str] = set()
    for part in list(nx.strongly_connected_components(graph)):
        if len(part) > 1 or graph.has_edge(*(2 * tuple(part))):
            _report_loop(graph.subgraph(part), position, sink)
            looped |= part
    return looped


def _report_loop(part: Any, position: dict[str, int], sink: Sink) -> None:
    import networkx as nx
    start = min(part, key=position.__getitem__)
    edges = nx.find_cycle(part, start)
    names = [a for a, _ in edges]
    labels = [Label(part.edges[a, b]["at"].span, f"`{b}` reads `{a}`") for a, b in edges]
    sink.add(diagnostic("cycle", f"nodes read each other in a loop: {' -> '.join([*names, names[0]])}", *labels,
                        help="a value from an earlier step comes in as a `carry` of a `scan`"))


def endless(main: BlockSpec, sink: Sink) -> set[BlockSpec]:
    """The blocks that contain themselves, each loop of them reported."""
    uses: dict[BlockSpec, dict[BlockSpec, Span]] = {}
    todo, seen = list(main.unit.blocks.values()), set(main.unit.blocks.values())
    for block in todo:
        for spec in (s for node in block.nodes.values() for s in written(node)):
            used = block.unit.blocks.get(spec.target.text) if spec.kind in ("block", "name") else None
            if used:
                uses.setdefault(block, {}).setdefault(used, spec.target.span)
            if used and used not in seen:
                seen.add(used)
                todo.append(used)
    try:
        TopologicalSorter(uses).prepare()
        return set()
    except CycleError:
        return _endless(uses, sink)


def _endless(uses: Mapping[BlockSpec, Mapping[BlockSpec, Span]], sink: Sink) -> set[BlockSpec]:
    import networkx as nx
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_edges_from((block, used, {"at": at}) for block, inner in uses.items() for used, at in inner.items())
    looped: set[BlockSpec] = set()
    for part in list(nx.strongly_connected_components(graph)):
        first = min(part, key=lambda b: b.span.start)
        if len(part) > 1 or graph.has_edge(first, first):
            edges = nx.find_cycle(graph.subgraph(part), first)
            names = [a.name.text for a, _ in edges]
            labels = [Label(graph.edges[a, b]["at"], f"`{a.name.text}` uses `{b.name.text}`") for a, b in edges]
            sink.add(diagnostic("cycle", f"blocks contain each other in a loop: {' -> '.join([*names, names[0]])}", *labels,
                                help="repeat a block with `repeat: n`"))
            looped |= part
    return looped | {b for b in graph if b not in looped and looped & nx.descendants(graph, b)}


def written(spec: NodeSpec) -> Iterator[NodeSpec]:
    """A node and every node written inside it: in its ports, fills, starts and patterns."""
    def inside(value: FieldValue) -> Iterator[NodeSpec]:
        if isinstance(value, NodeSpec):
            yield from written(value)
        for item in value.items if isinstance(value, Items) else ():
            yield from inside(item)

    yield spec
    for value in (*(f.value for f in spec.fields.values()), *(e.value for e in spec.each), *(v for _, v in spec.carry)):
        yield from inside(value)
    for _, variant in spec.pattern:
        yield from written(variant)


def unused(block: BlockSpec) -> list[tuple[Scalar | NodeSpec, list[str]]]:
    """Nodes and inputs that nothing reads and that are no output, each with what only they need."""
    reads = {name: {s.text.partition(".")[0] for s in references(spec, block)} for name, spec in block.nodes.items()}
    needed = _behind(reads, {ref.text.partition(".")[0] for _, ref in block.outputs})
    idle = [n for n in (*block.nodes, *block.inputs) if n not in needed]
    read = set().union(*reads.values())
    return [(block.nodes[n] if n in block.nodes else block.inputs[n].name, [m for m in idle if m != n and m in _behind(reads, {n})])
            for n in idle if n not in read]


def _behind(reads: Mapping[str, set[str]], ends: set[str]) -> set[str]:
    """The names themselves, and all that they read, directly or not."""
    found, todo = set(ends), list(ends)
    while todo:
        new = reads.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found
