"""The table of parameters: path pattern -> shape, dtype, init, owner, trainable. Copies stay folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from .graph import Branch, Call, Control, Graph, Node, Origin, Region, Repeat, Scan, Value, join


@dataclass(frozen=True)
class ParameterEntry:
    """One parameter of the folded graph.

    `path` holds `{i}` for each repeat or branch around it, and `copies` the copies that own one, outermost first.
    `owner` is the path of the node that made it (`layers.{i}.query` of `layers.{i}.query.weight`). `start` is the
    initialisation, None where the node's input `init` gives the initial value.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    start: Any
    owner: str
    trainable: bool
    copies: tuple[tuple[int, ...], ...]
    origin: Origin

    @property
    def count(self) -> int:
        """How many parameters of this shape the model has."""
        return prod(len(c) for c in self.copies)

    @property
    def elements(self) -> int:
        """Numbers in all of them."""
        return self.count * prod(self.shape)

    def paths(self) -> Iterator[str]:
        """Every concrete path."""
        pieces = self.path.split("{i}")
        for index in product(*self.copies):
            yield "".join(text for pair in zip(pieces, (*map(str, index), ""), strict=True) for text in pair)


def is_parameter(node: Node) -> bool:
    """Whether a node makes a parameter."""
    return getattr(node.op, "name", None) == "parameter"


def owning_copies(op: Repeat | Branch, body: int) -> tuple[int, ...]:
    """The copies of one body that own parameters, in order."""
    return tuple(i for i in op.owners if op.schedule[i] == body)


def parameter_table(graph: Graph) -> tuple[ParameterEntry, ...]:
    """Every parameter of the model, folded."""
    return tuple(_entries(graph.root, "", ()))


def expand(graph: Graph) -> Iterator[tuple[str, ParameterEntry]]:
    """Every parameter by its concrete path, as the PyTorch module's state has it."""
    for entry in parameter_table(graph):
        for path in entry.paths():
            yield path, entry


def state_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every parameter."""
    return {path: entry.shape for path, entry in expand(graph)}


def first_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Path -> shape of the first copy of every parameter."""
    return {next(entry.paths()): entry.shape for entry in parameter_table(graph)}


def count(graph: Graph) -> int:
    """Numbers in all parameters; a tied or shared parameter counts once."""
    return sum(entry.elements for entry in parameter_table(graph))


def _entries(region: Region, path: str, copies: tuple[tuple[int, ...], ...]) -> Iterator[ParameterEntry]:
    owned = makers(region)
    for node in region.nodes:
        here, op = join(path, node.name), node.op
        if is_parameter(node):
            yield _entry(node, here, node.id in owned, copies)
        elif isinstance(op, Repeat | Branch):
            for k, body in enumerate(op.bodies):
                if owners := owning_copies(op, k):
                    yield from _entries(body, join(here, "{i}"), (*copies, owners))
        elif isinstance(op, Call | Scan):
            yield from _entries(op.body, here, copies)


def _entry(node: Node, path: str, owned: bool, copies: tuple[tuple[int, ...], ...]) -> ParameterEntry:
    shape = tuple(d.value for d in node.types[0].shape)
    assert None not in shape, f"{path} has a free size"
    start = None if node.inputs.get("init") is not None else node.op.start
    owner = path.rpartition(".")[0] if owned else path
    return ParameterEntry(path, tuple(n for n in shape if n is not None), node.types[0].dtype, start, owner, node.op.trainable,
                          copies, node.origin)


@lru_cache(maxsize=64)
def makers(region: Region) -> Mapping[int, Node]:
    """The op node that each parameter node was made for, as its port: `query` of `query.weight`."""
    found: dict[int, Node] = {}
    for node in region.nodes:
        if is_parameter(node) or isinstance(node.op, Control):
            continue
        for port in node.op.parameters():
            given = node.inputs.get(port)
            if isinstance(given, Value) and given.node >= 0 and region.nodes[given.node].name == join(node.name, port):
                found[given.node] = node
    return found
