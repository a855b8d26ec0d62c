"""What an op's ONNX forms emit through: nodes, constants, sizes and parameters of one graph.

Names are paths: the nodes of `layers.0.attention.query` are `layers.0.attention.query/MatMul`. A builder of a subgraph puts
a node into the outermost graph that has all the node reads, so that what a loop's body does not change is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ...ir.dimension import Dim
from ...ir.graph import TensorType, fresh
from ...ops.emission import LOWEST
from ...runtime.convert import narrow_bfloat16
from ...runtime.steps import Table

ELEMENT = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
           "int64": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL, "float64": TensorProto.DOUBLE,
           "uint8": TensorProto.UINT8}
OPSETS = {"ort-cuda": 24, "ort-cpu": 24, "portable": 18}


class UnknownSize(Exception):
    """No value of the graph tells this free dimension."""


class TooLarge(Exception):
    """A number of the spec that the dtype cannot hold: the number, the dtype and its largest one."""

    def __init__(self, number: float, dtype: str):
        self.number, self.dtype, self.most = number, dtype, -LOWEST[dtype]
        super().__init__(f"{number} in {dtype}")


@dataclass(frozen=True)
class Val:
    """A value of the ONNX graph by name. `parameter` is set while it is an untouched parameter: its concrete path."""

    name: str
    parameter: str | None = None


@dataclass(frozen=True)
class Recipe:
    """How an initializer is made from parameters: a named function of `recipes.py` over their arrays. `element` is its dtype where that
    is not the model's."""

    name: str
    kind: str
    parameters: tuple[str, ...]
    shape: tuple[int, ...]
    settings: tuple[tuple[str, Any], ...] = ()
    element: str = ""


@dataclass(frozen=True)
class Wave:
    """What a value [B, N, f] is: `function` (Cos or Sin) of positions x frequencies, times a factor."""

    function: str
    positions: str
    frequencies: str
    factor: float


@dataclass
class Store:
    """What the whole model shares: initializers, and the facts of the target."""

    target: str
    dtype: str
    recipes: dict[str, Recipe] = field(default_factory=dict)                # initializer name -> recipe
    made: dict[tuple[Any, ...], str] = field(default_factory=dict)         # kind, parameters, settings -> initializer name
    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    initializers: list[TensorProto] = field(default_factory=list)          # small constants
    names: set[str] = field(default_factory=set)
    types: dict[str, TensorType] = field(default_factory=dict)             # of the values that ops gave
    typical: Mapping[str, int] = field(default_factory=dict)               # free dimension -> size to be fast at
    swapped: set[str] = field(default_factory=set)                          # Transpose results that swap leading axes
    waves: dict[str, Wave] = field(default_factory=dict)                    # tables of rotary positions
    clocks: set[str] = field(default_factory=set)                          # the positions [B, N] of a chunk behind a cache
    tables: dict[tuple[str, str, float], tuple[Table, TensorType]] = field(default_factory=dict)    # by function, frequencies, factor
    homes: dict[str, Builder] = field(default_factory=dict)                # value of a subgraph -> the builder that has it


class Builder:
    """Passed to forms as `g`. `g.inputs[port]`, `g.outputs`, `g.used` describe the node being emitted."""

    def __init__(self, store: Store, parent: Builder | None = None):
        self.store, self.parent = store, parent
        self.root: Builder = parent.root if parent else self
        self.depth: int = parent.depth + 1 if parent else 0
        self.nodes: list[NodeProto] = []
        self.path, self.line = "", ""
        self.inputs: Mapping[str, Any] = {}
        self.outputs: tuple[TensorType, ...] = ()
        self.used: frozenset[str] = frozenset()
        self.dims: dict[Dim, tuple[Val, int]] = {}          # size -> a value of this graph that has it, and the axis
        self.memo: dict[Any, Any] = {}
        self.find_size: Callable[[Dim], Val] = parent.find_size if parent else self._no_size

    @property
    def target(self) -> str:
        return self.store.target

    @property
    def opset(self) -> int:
        return OPSETS[self.store.target]

    @property
    def dtype(self) -> str:
        """The model's dtype: float32, float16 or bfloat16."""
        return self.store.dtype

    def op(self, op_type: str, *inputs: Val | None, outputs: int = 1, domain: str = "", pinned: bool = False,
           gives: Sequence[Val] = (), **attributes: Any) -> Any:
        """Emit one node; returns its value, or a tuple when it has several outputs. Absent inputs are None.

        `pinned` keeps it in this graph even where an outer one has all it reads. `gives` are values that were taken back, which its
        last outputs are.
        """
        if op_type == "MatMul" and self.dtype == "float16":
            inputs = (self._apart(*inputs), inputs[1])  # type: ignore[arg-type]
        base = self.unique(f"{self.path}/{op_type}" if self.path else op_type)
        names = [*(base if i == 0 else f"{base}:{i}" for i in range(outputs - len(gives))), *(v.name for v in gives)]
        given = [v.name if v is not None else "" for v in inputs]
        while given and not given[-1]:
            given.pop()
        node = NodeProto(op_type=op_type, input=given, output=names, name=base, domain=domain)
        for key, value in attributes.items():
            if value is not None:
                node.attribute.append(_attribute(key, value))
        node.metadata_props.add(key="nnspec.path", value=self.path)
        if self.line:
            node.metadata_props.add(key="nnspec.line", value=self.line)
        node.metadata_props.add(key="namespace", value=self.path.replace(".", "/"))
        if op_type == "Transpose" and attributes["perm"] in ([1, 0, 2], [1, 2, 0]):
            self.store.swapped.add(base)
        home = self if pinned or self.parent is None else self.home(reads(node))
        home.nodes.append(node)
        home.own(names)
        made = tuple(Val(n) for n in names)
        return made[0] if outputs == 1 else made

    def take_back(self, value: Val) -> tuple[Val, ...]:
        """Remove the node that made a value, for one that gives it as well; returns what the node read."""
        nodes = self.store.homes.get(value.name, self.root).nodes
        node = next(n for n in reversed(nodes) if value.name in n.output)
        nodes.remove(node)
        return tuple(Val(name) for name in node.input)

    def _apart(self, left: Val, right: Val) -> Val:
        """`left` behind a Reshape where ONNX Runtime 1.31 crashes on fusing a float16 Transpose into a MatMul by a weight."""
        recipe = self.store.recipes.get(right.name)
        if left.name not in self.store.swapped or recipe is None or len(recipe.shape) != 2:
            return left
        return self.op("Reshape", left, self.ints(0, 0, recipe.shape[0]))

    def home(self, names: Iterable[str]) -> Builder:
        """The outermost builder in which all these values are there."""
        homes = [self.store.homes[n] for n in names if n in self.store.homes]
        return max(homes, key=lambda b: b.depth, default=self.root)

    def own(self, names: Iterable[str]) -> None:
        """Record that this builder's graph has these values; those of the outermost graph are known by not being recorded."""
        if self.parent is not None:
            self.store.homes.update(dict.fromkeys(names, self))

    def note_wave(self, value: Val, function: str, positions: Val, frequencies: Val, factor: float) -> None:
        """Record that a value is a table of rotary positions, which a kernel may make itself."""
        self.store.waves[value.name] = Wave(function, positions.name, frequencies.name, factor)

    def note_clock(self, value: Val) -> None:
        """Record that a value is the positions of a chunk, those after `past`."""
        self.store.clocks.add(value.name)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value made under `key` before in this graph or an outer one, else make it now."""
        scope: Builder | None = self
        while scope is not None:
            if key in scope.memo:
                return scope.memo[key]
            scope = scope.parent
        made = make()
        home = self.home([made.name]) if isinstance(made, Val) else self
        home.memo[key] = made
        return made

    # constants

    def const(self, array: np.ndarray | Sequence[int] | int, dtype: str | None = None) -> Val:
        """A small constant; equal ones are shared. `dtype="float"` is the model's dtype."""
        want = self.dtype if dtype == "float" else dtype
        made = np.asarray(array)
        tensor = _tensor(made, want)
        key = (str(tensor.data_type), tuple(made.shape), tensor.raw_data)
        if key not in self.store.constants:
            tensor.name = self.unique(f"const/{len(self.store.constants)}")
            self.store.constants[key] = tensor.name
            self.store.initializers.append(tensor)
        return Val(self.store.constants[key])

    def ints(self, *values: int) -> Val:
        """int64 vector."""
        return self.const(np.array(values, np.int64))

    def number(self, x: float, dtype: str = "float") -> Val:
        """Scalar constant of the model's dtype (or `dtype`)."""
        return self.const(np.array(x, np.float64), dtype)

    # sizes

    def size(self, dim: Dim | int) -> Val:
        """int64 [1] with a size, constant or computed from the shapes of inputs."""
        value = dim if isinstance(dim, int) else dim.value
        return self.ints(value) if value is not None else self.find_size(dim)  # type: ignore[arg-type]

    def scalar(self, dim: Dim | int) -> Val:
        """int64 scalar with a size."""
        value = dim if isinstance(dim, int) else dim.value
        if value is not None:
            return self.const(np.array(value, np.int64))
        return self.once(("scalar", dim), lambda: self.op("Squeeze", self.size(dim), self.ints(0)))

    def shape(self, dims: Sequence[Dim | int]) -> Val:
        """int64 vector of sizes."""
        values = [d if isinstance(d, int) else d.value for d in dims]
        if all(v is not None for v in values):
            return self.const(np.array(values, np.int64))
        return self.once(("shape", tuple(dims)), lambda: self.op("Concat", *(self.size(d) for d in dims), axis=0))

    def _no_size(self, dim: Dim) -> Val:
        raise UnknownSize(str(dim))

    # dtypes

    def cast(self, x: Val, dtype: str, source: str | None = None) -> Val:
        """Cast to float (the model's), float32, int64 or bool; nothing where `source` is the same already."""
        want = self.dtype if dtype == "float" else dtype
        have = self.dtype if source == "float" else source
        return x if want == have else self.op("Cast", x, to=ELEMENT[want])

    def to_f32(self, x: Val) -> Val:
        """A float value in float32, for what must not be computed in half precision."""
        return self.cast(x, "float32", "float")

    def from_f32(self, x: Val) -> Val:
        return self.cast(x, "float", "float32")

    # loops

    def loop(self, states: Sequence[Val], types: Sequence[TensorType], each: Sequence[tuple[Val, TensorType]],
             step: Callable[[Builder, tuple[Val, ...], tuple[Val, ...]], tuple[Val, ...]], backward: bool = False) -> tuple[Val, ...]:
        """A Scan whose outputs are its states, every one of them: last states, then their stacks with the steps first.

        `step` emits the new states from the states and this step's element of each value of `each`, whose steps are its first axis and
        whose types are those of one step. What a body reads besides is read by name.
        """
        body = Builder(self.store, self)
        body.path, body.line = self.path, self.line
        kinds = [*types, *(type for _, type in each)]
        inner = tuple(Val(body.unique(f"{self.path}/step.{i}")) for i in range(len(kinds)))
        body.own(v.name for v in inner)
        new = step(body, inner[:len(states)], inner[len(states):])
        ends = [*zip(new, types, strict=True)] * 2
        graph = subgraph(body, f"{self.path}/step", [*zip(inner, kinds, strict=True)], ends)
        return self.op("Scan", *states, *(x for x, _ in each), outputs=len(ends), body=graph, num_scan_inputs=len(each),
                       scan_input_directions=[int(backward)] * len(each), scan_output_directions=[int(backward)] * len(new))

    # parameters

    def parameter(self, kind: str, values: Sequence[Val], shape: Sequence[int], **settings: Any) -> Val | None:
        """An initializer made from parameters by recipe `kind`; None when a value is not an untouched parameter."""
        if any(v.parameter is None for v in values):
            return None
        paths = tuple(v.parameter for v in values if v.parameter)
        return self.recipe(f"{paths[0]}:{kind}", kind, paths, shape, **settings)

    def recipe(self, name: str, kind: str, paths: tuple[str, ...], shape: Sequence[int], **settings: Any) -> Val:
        """The initializer that recipe `kind` makes from the parameters at `paths`; the same one for the same recipe."""
        given = tuple(sorted(settings.items()))
        key = (kind, paths, given)
        if key not in self.store.made:
            made = self.unique(name)
            self.store.made[key] = made
            self.store.recipes[made] = Recipe(made, kind, paths, tuple(shape), given)
        return Val(self.store.made[key])

    def stored(self, path: str, shape: Sequence[int]) -> Val:
        """The parameter at `path` itself, as an initializer of that name."""
        return Val(self.recipe(path, "plain", (path,), shape).name, parameter=path)

    def transposed(self, weight: Val, shape: Sequence[Dim]) -> Val:
        """[o, i] -> [i, o]: a transposed initializer, or a Transpose node of what is no untouched parameter.

        Where other nodes read the same parameter as it is, `emit` turns the initializer into one Transpose node.
        """
        o, i = shape
        if weight.parameter and o.value is not None and i.value is not None:
            made = self.parameter("transpose", [weight], (i.value, o.value))
            assert made is not None
            return made
        return self.once(("transpose", weight.name), lambda: self.op("Transpose", weight, perm=[1, 0]))

    def unique(self, base: str) -> str:
        name = fresh(base, self.store.names)
        self.store.names.add(name)
        return name


def reads(node: NodeProto) -> Iterator[str]:
    """The values a node needs from its graph: its inputs, and what its subgraphs take from outside."""
    yield from (n for n in node.input if n)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            inner = attribute.g
            own = {x.name for x in inner.input} | {x.name for x in inner.initializer} | {n for x in inner.node for n in x.output}
            used = dict.fromkeys([n for x in inner.node for n in reads(x)] + [x.name for x in inner.output])
            yield from (n for n in used if n not in own)


def reach(nodes: Sequence[NodeProto], ends: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
    """The nodes that the values `ends` depend on, in order, and every value they read, `ends` included."""
    wanted = set(ends)
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(reads(node))
    return kept[::-1], wanted


def _attribute(key: str, value: Any) -> AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(key, numpy_helper.from_array(value))
    if isinstance(value, bool):
        return helper.make_attribute(key, int(value))
    if isinstance(value, list | tuple) and not value:
        return helper.make_attribute(key, list(value), attr_type=AttributeProto.INTS)
    return helper.make_attribute(key, value if isinstance(value, str | int | float | GraphProto | TensorProto) else list(value))


def _tensor(array: np.ndarray, dtype: str | None) -> TensorProto:
    if dtype in LOWEST and array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            lost = np.isfinite(array) & np.isinf(array.astype("float16" if dtype == "float16" else "float32"))
        if lost.any():
            raise TooLarge(float(array[lost].flat[0]), dtype)
    if dtype == "bfloat16":
        return TensorProto(data_type=TensorProto.BFLOAT16, dims=array.shape, raw_data=narrow_bfloat16(array).tobytes())
    if dtype:
        array = array.astype(dtype)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))


# subgraphs


def subgraph(g: Builder, name: str, inputs: Sequence[tuple[Val, TensorType]], outputs: Sequence[tuple[Val, TensorType]]) -> GraphProto:
    """What a builder emitted as the body of a node. Outputs that it does not compute itself pass through Identity."""
    taken = {v.name for v, _ in inputs}
    ends = []
    for value, type in outputs:
        own = g.store.homes.get(value.name) is g and value.name not in taken
        end = value if own else g.op("Identity", value, pinned=True)
        taken.add(end.name)
        ends.append((end, type))
    kept, _ = reach(g.nodes, [v.name for v, _ in ends])
    return helper.make_graph(kept, name, [value_info(v.name, t, g.dtype) for v, t in inputs],
                             [value_info(v.name, t, g.dtype) for v, t in ends])


def value_info(name: str, type: TensorType, dtype: str) -> ValueInfoProto:
    """The declared type of a value; free sizes by their names."""
    shape = [str(d) if d.value is None else d.value for d in type.shape]
    return helper.make_tensor_value_info(name, ELEMENT[typed(type, dtype)], shape)


def typed(type: TensorType, dtype: str) -> str:
    """The element type of a value in a model of `dtype`."""
    return dtype if type.dtype == "float" else type.dtype
