"""How each value of the step form is made: asked for from the outputs backwards, for this chunk or for every position so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Control, Input, Node, Origin, Scan, TensorType, Value, fresh
from ...lang.diagnostic import Diagnostic, Label, diagnostic
from ...ops.elementwise import Add
from ...ops.streaming import Append, ChunkPositions, SlotPositions
from .facts import Facts
from .form import CHUNK, NEW_LENGTH, PAST, Layout, State

Form = Layout | None                         # of an axis that is T: None for this chunk alone, else every position, as a cache lays them
Forms = tuple[Form, ...]                     # of every such axis of a value, in order
SLOTS = Layout("C")


def places(origin: Origin) -> list[Label]:
    """Where a node was written, and where the block that it is in was used."""
    return [Label(origin.span), *(Label(span, "used here") for span in origin.chain[-1:])]


class Refused(Exception):
    """A value that cannot be made step by step."""

    def __init__(self, found: Diagnostic):
        self.diagnostic = found
        super().__init__(found.headline)


@dataclass
class Deriver:
    """`out` is the step graph under construction."""

    facts: Facts
    out: RegionBuilder
    rule: Callable[[Deriver, Node, int, Forms], Value | None]          # makes an output of a node in the forms asked for

    def __post_init__(self) -> None:
        self.region = self.facts.region
        self._ended: Value | None = None
        self.memo: dict[tuple[Value, Forms], Value | Refused | None] = {}
        self.nodes: dict[tuple[int, Any], Node] = {}
        self.states: dict[str, State] = {}
        self.after: dict[str, Value] = {}                # state -> its value after the step
        self.fixed: dict[Value, str] = {}                # value of the whole graph -> what the step calls it
        self.starts: dict[str, Value] = {}               # state -> where it starts, a value of the whole graph
        self.copied: dict[Value, Value] = {}
        self.given: dict[str, Value] = {}                # inputs of the step graph
        self.inferred: dict[Any, tuple[TensorType, ...]] = {}
        self.chunk = Dim.symbol(CHUNK)
        self.windows: dict[int, Layout] = {}
        self.valid: dict[Form, Value] = {}               # whether an entry along T is there
        chunks = {a.name for a in self.region.arguments if self.facts.axes(a.type)}
        self.taken = {PAST, NEW_LENGTH, *chunks, *(name for name, _ in self.region.outputs)}        # names of states and fixed inputs
        self.named: set[str] = set()                     # names of nodes

    # what is asked for

    def get(self, value: Value, forms: Forms) -> Value | None:
        """A value of the step graph: `value` with each of its T axes in the form asked for; None where it is absent."""
        if value not in self.facts.moving:
            return self.constant(value)
        key = (value, forms)
        if key not in self.memo:
            try:
                self.memo[key] = self._make(value, forms)
            except Refused as refused:
                self.memo[key] = refused
        found = self.memo[key]
        if isinstance(found, Refused):
            raise found
        return found

    def chunked(self, value: Value) -> Value | None:
        """A value for this chunk alone."""
        axes = self.facts.of(value)
        if not axes and value in self.facts.moving and value not in self.facts.gone:
            raise self.refuse_value(value, f"it is known at the end of `{self.facts.symbol}` only, and is read before")
        return self.get(value, (None,) * len(axes))

    def present(self, value: Value, forms: Forms) -> Value:
        found = self.get(value, forms)
        assert found is not None, self.region.label(value)
        return found

    def _make(self, value: Value, forms: Forms) -> Value | None:
        if value.node == ARGUMENT:
            argument = self.region.arguments[value.output]
            if argument.name in self.facts.dropped:
                return None
            if len(forms) != 1:
                raise self.refuse_value(value, f"`{argument.name}` has the stream axis `{self.facts.symbol}` "
                                               f"{'twice' if forms else 'inside another size'}")
            return self.append(value, forms) if forms[0] else self.argument(argument.name, argument.type)
        node = self.region.nodes[value.node]
        whole = len(forms) == 1 and forms[0] is not None
        marked = not isinstance(node.op, Control) and node.op.name == "cache"
        if whole and (marked or value not in self.facts.clocked):
            return self.append(value, forms)
        return self.rule(self, node, value.output, forms)

    def argument(self, name: str, type: TensorType) -> Value:
        """An input of the model, for a chunk."""
        return self.input(name, replace(type, shape=self.shape(type.shape, (None,)), optional=False))

    def input(self, name: str, type: TensorType) -> Value:
        """An input of the step model, made once."""
        if name not in self.given:
            self.given[name] = self.out.argument(name, type)
        return self.given[name]

    def shape(self, shape: tuple[Dim, ...], forms: Forms) -> tuple[Dim, ...]:
        """A shape with the T axes in their forms."""
        left = iter(forms)
        return tuple(self.size(next(left)) if d == self.facts.T else d for d in shape)

    def size(self, form: Form) -> Dim:
        return self.chunk if form is None else Dim.symbol(form.capacity)

    @property
    def past(self) -> Value:
        return self.input(PAST, TensorType("int64", (self.rows,)))

    @property
    def new_length(self) -> Value:
        return self.input(NEW_LENGTH, TensorType("int64", (self.rows,)))

    @property
    def ended(self) -> Value:
        """int64 [B]: how many positions a row has behind it after the step."""
        if self._ended is None:
            self._ended = self.apply(Value(ARGUMENT, 0), Add(), {"in": (self.past, self.new_length)}, "ended")
        return self._ended

    @property
    def rows(self) -> Dim:
        return self.facts.rows

    # state

    def state(self, state: State, start: Value | None = None) -> Value:
        """The value of a state before the step. `start` is a value of the whole graph."""
        self.states[state.name] = state
        if start is not None:
            self.starts[state.name] = start
        return self.input(state.name, state.type)

    def name(self, value: Value, suffix: str = "") -> str:
        """A name for a state: the path of the value."""
        made = fresh(f"{self.region.label(value)}{suffix}", self.taken)
        self.taken.add(made)
        return made

    def append(self, value: Value, forms: Forms) -> Value:
        """Every position of a value: a cache with this chunk at its end."""
        (layout,) = forms
        assert layout is not None
        new = self.present(value, (None,))
        type, (axis,) = self.region.type(value), self.facts.of(value)
        if axis == 0 or type.shape[0] != self.rows:
            raise self.refuse_value(value, f"a cache holds rows on axis 0, and this value is {type}")
        name = self.name(value)
        kept = TensorType(type.dtype, self.shape(type.shape, forms))
        before = self.state(State(name, "ring" if layout.ring else "append", kept, axis, layout))
        made = self.add(value, Append(axis=axis, ring=layout.ring), {"cache": before, "in": new, "past": self.past}, [kept], "cached")
        self.after[name] = made
        return made

    def ring(self, window: int | None) -> Layout:
        """How a cache for a window of keys is laid out."""
        if window is None:
            return SLOTS
        if window not in self.windows:
            self.windows[window] = Layout(f"R{len(self.windows) + 1}" if self.windows else "R", window)
        return self.windows[window]

    # positions

    def clock(self, node: Node, form: Form) -> Value:
        """`position`: those of the chunk, or of every slot of a cache."""
        like = node.inputs["like"]
        assert isinstance(like, Value)
        chunk = self.chunked(like)
        assert chunk is not None
        type = TensorType("int64", (node.types[0].shape[0], self.size(form)))
        op: Any = ChunkPositions()
        if form is not None:
            op = SlotPositions(capacity=self.size(form), ring=form.ring)
        return self.add(Value(node.id), op, {"past": self.past, "like": chunk}, [type], "" if form is None else "slots")

    # what does not move

    def constant(self, value: Value) -> Value | None:
        """A value without T: made again where no input enters, else a fixed input that the prefix model gives."""
        if value in self.facts.left or value.node == ARGUMENT and self.region.arguments[value.output].name in self.facts.dropped:
            return None
        if value in self.copied:
            return self.copied[value]
        if value in self.facts.moving:
            raise self.refuse_value(value, f"it changes along `{self.facts.symbol}`, and is read whole at every position")
        node = None if value.node == ARGUMENT else self.region.nodes[value.node]
        if node is not None and (value in self.facts.inputless or self._bare(node)):
            inputs = {k: self._again(v) for k, v in node.inputs.items()}
            made = self.put(node.name, node.op, inputs, node.outputs, node.types, node.origin)
            self.copied |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
        else:
            name = self.name(value)
            self.fixed[value] = name
            self.copied[value] = self.input(name, replace(self.region.type(value), optional=False))
        return self.copied[value]

    def _bare(self, node: Node) -> bool:
        """Whether a node reads nothing, and its sizes are those of rows."""
        return not list(node.values) and all(d.symbols() <= self.rows.symbols() for t in node.types for d in t.shape)

    def _again(self, given: Input) -> Input:
        if isinstance(given, tuple):
            return tuple(v for v in map(self.constant, given) if v is not None)
        return None if given is None else self.constant(given)

    # nodes

    def add(self, like: Value, op: Any, inputs: Mapping[str, Input], types: list[TensorType], suffix: str = "") -> Value:
        """A node of the step form that stands for a value of the whole graph."""
        node = self.region.nodes[like.node] if like.node != ARGUMENT else None
        base = self.region.label(like) + (f".{suffix}" if suffix else "")
        made = self.put(base, op, inputs, op.outputs(), types, node.origin if node else self.region.origin)
        return Value(made.id)

    def put(self, base: str, op: Any, inputs: Mapping[str, Input], outputs: Sequence[str], types: Sequence[TensorType],
            origin: Origin) -> Node:
        """A node of the step graph, called `base` where that is free."""
        name = fresh(base, self.named)
        self.named.add(name)
        return self.out.add(name, op, inputs, outputs, types, origin)

    def apply(self, like: Value, op: Any, inputs: Mapping[str, Input], suffix: str = "", output: int = 0) -> Value:
        """As `add`, with types by the op's own rule."""
        found = self.add(like, op, inputs, list(self.infer(op, inputs)), suffix)
        return Value(found.node, output)

    def infer(self, op: Any, inputs: Mapping[str, Input]) -> tuple[TensorType, ...]:
        """Types of what an op gives, found once for all copies of a layer."""
        types = self.out.port_types(inputs)
        key = (op, *types.items())
        if key not in self.inferred:
            self.inferred[key] = op.infer(types)
        return self.inferred[key]

    # faults

    def refuse(self, node: Node, why: str, help: str | None = None) -> Refused:
        what = type(node.op).__name__.lower() if isinstance(node.op, Control) else node.op.name
        return Refused(diagnostic("cannot-stream", f"`{node.name}` cannot be computed step by step along `{self.facts.symbol}`",
                                  *places(node.origin), note=f"`{what}` {why}", help=help or ()))

    def early(self, value: Value, reader: Node) -> Refused:
        """`reader` reads, position by position, what is known at the end only: the node that makes it of all positions is named."""
        where = value
        while where.node != ARGUMENT:
            found = [v for v in self.region.nodes[where.node].values if v in self.facts.moving]
            if not found or any(self.facts.of(v) for v in found):
                node = self.region.nodes[where.node]
                return self.refuse(node, f"gives a value that is known at the end of `{self.facts.symbol}` only, "
                                         f"and `{reader.name}` reads it")
            where = found[0]
        return self.refuse(reader, f"reads `{self.region.label(where)}`, which is known at the end of `{self.facts.symbol}` only")

    def shared(self, node: Node) -> Refused:
        axis = self._ended_axis(node)
        name = f"{str(axis).lower()}_length" if axis is not None and str(axis).isidentifier() else "other_length"
        return self.refuse(node, f"ends another axis{f' (`{axis}`)' if axis else ''} by a length that counts positions of "
                                 f"`{self.facts.symbol}`",
                           f"give each axis its own length: add an input such as `{name}: int64[B]`, and read it here")

    def _ended_axis(self, node: Node) -> Dim | None:
        """The axis that a length ends."""
        if isinstance(node.op, Control):
            return node.op.extent if isinstance(node.op, Scan) else None
        if node.op.name == "length_mask":
            return node.types[0].shape[1]
        over = node.inputs.get("key", node.inputs.get("in"))
        return self.region.type(over).shape[2 if "key" in node.inputs else 1] if isinstance(over, Value) else None

    def refuse_value(self, value: Value, why: str, help: str | None = None) -> Refused:
        if value.node != ARGUMENT:
            node = self.region.nodes[value.node]
            return Refused(diagnostic("cannot-stream", f"`{self.region.label(value)}` cannot be computed step by step along "
                                      f"`{self.facts.symbol}`", *places(node.origin), note=why, help=help or ()))
        return Refused(diagnostic("cannot-stream", f"the model cannot be run step by step along `{self.facts.symbol}`",
                                  self.region.origin.span, note=why, help=help or ()))

