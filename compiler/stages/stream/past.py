"""`StepForm -> Graph`: the step of a decoder for runtimes that hand the past as tensors that grow, such as ONNX Runtime GenAI.

Inputs are `input_ids` [B, N], `attention_mask` [B, P + N], `position_ids` [B, N] and for each attention site its past keys and values
[B, G, P, d]; outputs are `logits` and the same with the chunk behind them. Rows may be padded: the mask says which slots count, and a
slot's position is the number of those before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.flat import pruned
from ...ir.graph import ARGUMENT, Control, Graph, Node, Region, TensorType, Value, fresh, mapped
from ...lang.diagnostic import Diagnostic, Diagnostics, diagnostic
from ...ops.attention import Attention
from ...ops.cached_attention import CachedAttention
from ...ops.elementwise import Cast, Greater, Less, LessEqual, Subtract
from ...ops.layout import Concat, Rearrange, Slice
from ...ops.masks import And, LengthMask
from ...ops.streaming import Append, ChunkPositions, SlotPositions
from ...ops.values import Constant, Position, Range
from .form import CHUNK, NEW_LENGTH, PAST, StepForm

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
BEFORE = "P"                                    # the free dimension of positions before the chunk
KEYS = ("key", "value")
NAMED = 3                                       # values that a refusal names


@dataclass(frozen=True)
class Cached:
    """A decoder over growing tensors, and the shape of what it keeps: equal for all its layers."""

    graph: Graph
    layers: int
    heads: int
    width: int
    vocabulary: int


def with_past(form: StepForm) -> Cached:
    """The decoder. Raises Diagnostics (`cannot-stream`) that say what keeps a step form from being one."""
    sites = [n for n in form.step.root.nodes if isinstance(n.op, CachedAttention)]
    _check(form, sites)
    made = _Past(form, sites).run()
    shape = form.step.root.type(_cache(form, sites[0], "key")).shape
    vocabulary = form.step.root.type(form.step.root.outputs[0][1]).shape[-1].value or 0
    return Cached(made, len(sites), shape[1].value or 0, shape[3].value or 0, vocabulary)


def _cache(form: StepForm, site: Node, port: str) -> Value:
    """The state that a site's keys or values are appended to."""
    append = form.step.root.nodes[site.inputs[port].node]  # type: ignore[union-attr]
    found = append.inputs["cache"]
    assert isinstance(found, Value)
    return found


def _check(form: StepForm, sites: list[Node]) -> None:
    root, wrong = form.step.root, list[Diagnostic]()

    def refuse(node: Node | None, why: str, help: str = "") -> None:
        wrong.append(diagnostic("cannot-stream", f"the model is no decoder over growing keys and values: {why}",
                                (node.origin if node else root.origin).span, help=help or ()))
    if form.prefix is not None:
        needed = ", ".join(f"`{n}`" for n in list(form.fixed)[:NAMED]) or "the start of its state"
        needed += f" and {len(form.fixed) - NAMED} more" if len(form.fixed) > NAMED else ""
        refuse(None, f"it needs {needed} from a prefix model", "export the step form: `--form step`")
    if len(form.chunk) != 1 or root.type(root.argument(form.chunk[0])).dtype != "int64":
        refuse(None, f"it takes {', '.join(f'`{n}`' for n in form.chunk)} at each step, and a decoder takes token ids alone")
    outputs = [(n, root.type(v)) for n, v in root.outputs if n not in {s.name for s in form.states}]
    if len(outputs) != 1 or len(outputs[0][1].shape) != 3:
        refuse(None, f"it gives {', '.join(f'`{n}`' for n, _ in outputs)}, and a decoder gives logits alone", "leave the others out")
    for node in sites:
        computed = [f"{port}s" for port in KEYS if not _appended(root, node.inputs[port])]
        if computed:
            name = re.sub(r"\.\d+(?=\.|$)", ".*", node.name)             # the same for the copies of a layer
            refuse(node, f"the {' and '.join(computed)} of `{name}` are computed from what is kept")
    kept = {a.name for a in root.arguments for s in form.states if s.name == a.name and s.kind == "carry"}
    if kept:
        refuse(None, f"it carries {', '.join(f'`{n}`' for n in sorted(kept))}")
    if not sites:
        refuse(None, "nothing in it attends to what came before")
    if not wrong:
        shapes = {root.type(_cache(form, n, port)).shape[1::2] for n in sites for port in KEYS}
        if len(shapes) > 1:
            refuse(None, f"its layers keep keys and values of different shapes: {', '.join(sorted(map(str, shapes)))}")
    if wrong:
        raise Diagnostics(wrong)


def _appended(root: Region, given: Any) -> bool:
    return isinstance(given, Value) and given.node != ARGUMENT and isinstance(root.nodes[given.node].op, Append)


@dataclass
class _Past:
    form: StepForm
    sites: list[Node]

    def run(self) -> Graph:
        root = self.form.step.root
        self.out = RegionBuilder(root.name, root.origin)
        self.out.about = root.about
        self.sizes: Mapping[str, Dim] = {s.layout.capacity: Dim.symbol(BEFORE) + Dim.symbol(CHUNK)
                                         for s in self.form.states if s.layout is not None}
        rows = root.type(root.argument(self.form.chunk[0])).shape[0]
        whole = Dim.symbol(BEFORE) + Dim.symbol(CHUNK)
        self.given = {self.form.chunk[0]: self.out.argument(IDS, TensorType("int64", (rows, Dim.symbol(CHUNK))))}
        self.mask = self.out.argument(MASK, TensorType("int64", (rows, whole)))
        self.positions = self.out.argument(POSITIONS, TensorType("int64", (rows, Dim.symbol(CHUNK))))
        for k, site in enumerate(self.sites):
            for port in KEYS:
                state = _cache(self.form, site, port)
                name = root.arguments[state.output].name
                B, G, _, d = root.type(state).shape
                self.given[name] = self.out.argument(f"past_key_values.{k}.{port}", TensorType("float", (B, G, Dim.symbol(BEFORE), d)))
        self.env: dict[Value, Value] = {Value(ARGUMENT, k): self.given[a.name] for k, a in enumerate(root.arguments)
                                        if a.name in self.given}
        self.lost = {Value(ARGUMENT, k): a.name for k, a in enumerate(root.arguments) if a.name not in self.given}
        self.taken, self.shared, self.all_slots = set[str](), dict[Any, Value](), set[Value]()
        for node in root.nodes:
            self.node(node)
        if (end := root.outputs[0][1]) not in self.env:
            self.refuse(root.nodes[end.node], self.lost[end])
        outputs = [(LOGITS, self.env[root.outputs[0][1]])]
        outputs += [(f"present.{k}.{port}", self.env[site.inputs[port]])  # type: ignore[index]
                    for k, site in enumerate(self.sites) for port in KEYS]
        return replace(self.form.step, root=pruned(self.out.finish(outputs)), bounds=())

    def node(self, node: Node) -> None:
        """One node of the step, over growing tensors. What counts rows' ends is left out: the mask tells it."""
        op = node.op
        if isinstance(op, ChunkPositions):
            self.env[Value(node.id)] = self.positions
        elif isinstance(op, SlotPositions):
            self.env[Value(node.id)] = self.slots(node)
            self.all_slots.add(Value(node.id))
        elif isinstance(op, Append):
            cache, new = node.inputs["cache"], node.inputs["in"]
            self.env[Value(node.id)] = self.add(node, Concat(axis=op.axis), {"in": (self.env[cache], self.env[new])})  # type: ignore[index]
        elif isinstance(op, CachedAttention):
            given = {p: v for p, v in node.inputs.items() if isinstance(v, Value) and p != PAST}
            for v in given.values():
                if v not in self.env:
                    self.refuse(node, self.lost[v])
            inputs = {p: self.env[v] for p, v in given.items()}
            inputs["keep"] = self.visible(node, op, inputs.pop("keep", None))
            self.env[Value(node.id)] = self.add(node, Attention(scale=op.scale, softcap=op.softcap), inputs)
        elif all(v in self.env for v in node.values):
            moved = {k: mapped(v, self.env.__getitem__) for k, v in node.inputs.items()}
            made = self.put(node, self.resized(op), moved, None if isinstance(op, Control) or not moved else self.out.port_types(moved))
            self.env |= {Value(node.id, k): Value(made.id, k) for k in range(len(node.outputs))}
        elif (mask := self.masked(node)) is not None:
            self.env[Value(node.id)] = mask
        else:
            lost = {self.lost.get(v, "") for v in node.values if v not in self.env}
            if other := sorted(lost - {NEW_LENGTH, PAST}):
                self.refuse(node, other[0])
            self.lost |= {Value(node.id, k): max(lost) for k in range(len(node.outputs))}

    def refuse(self, node: Node, lost: str) -> None:
        raise Diagnostics([diagnostic("cannot-stream", f"`{node.name}` reads `{lost}`, which such a decoder does not have",
                                      node.origin.span)])

    def masked(self, node: Node) -> Value | None:
        """What compares positions with the ends of rows is told by the mask: of the chunk [B, N], or of all slots [B, P + N]."""
        if isinstance(node.op, LengthMask) and self.lost.get(node.inputs["in"]) == NEW_LENGTH:  # type: ignore[arg-type]
            return self.once("new", node, Slice(axis=1, start=Dim.symbol(BEFORE)), {"in": self.kept(node)})
        if isinstance(node.op, Less) and node.inputs["in"][0] in self.env.keys() & self.all_slots:  # type: ignore[index]
            return self.kept(node)
        return None

    def resized(self, op: Any) -> Any:
        """An op whose attributes name the size of a cache, for the growing tensor."""
        if isinstance(op, Control):
            return op
        changed = {f.name: tuple(Dim(d).substitute(self.sizes) for d in getattr(op, f.name)) for f in fields(op)
                   if f.name == "shape" and op.name in ("full", "expand")}
        return replace(op, **changed)

    def put(self, node: Node, op: Any, inputs: Mapping[str, Any], types: Any) -> Node:
        made = node.types if types is None else op.infer(types)
        name = fresh(node.name, self.taken)
        self.taken.add(name)
        return self.out.add(name, op, inputs, node.outputs if types is None else op.outputs(), made, node.origin)

    def add(self, node: Node, op: Any, inputs: Mapping[str, Any]) -> Value:
        return Value(self.put(node, op, inputs, self.out.port_types(inputs)).id)

    def once(self, key: Any, node: Node, op: Any, inputs: Mapping[str, Any]) -> Value:
        """A value that several sites read, made for the first."""
        if key not in self.shared:
            self.shared[key] = self.add(node, op, inputs)
        return self.shared[key]

    def kept(self, node: Node) -> Value:
        """bool [B, P + N]: the slots that count."""
        return self.once("kept", node, Cast(to="bool"), {"in": self.mask})

    def slots(self, node: Node) -> Value:
        """int64 [B, P + N]: the position of each slot."""
        return self.once("slots", node, Position(), {"like": self.mask, "keep": self.kept(node)})

    def visible(self, node: Node, op: CachedAttention, keep: Value | None) -> Value:
        """bool [B, 1, N, P + N]: slots that count, up to the query's own, and of positions in its window."""
        whole, before = Dim.symbol(BEFORE) + Dim.symbol(CHUNK), Dim.symbol(BEFORE)
        key = self.once("index", node, Range(to=whole), {})
        query = self.once("query", node, Rearrange(pattern="n -> n 1"), {"in": self.once("at", node, Range(start=before, to=whole), {})})
        past = self.once("past", node, LessEqual(), {"in": (key, query)})                                   # [N, P + N]
        kept = self.once("kept 4", node, Rearrange(pattern="b s -> b 1 1 s"), {"in": self.kept(node)})
        seen = self.once("seen", node, And(), {"in": (kept, past)})
        if op.window is not None:
            seen = self.once(("window", op.window), node, And(), {"in": (seen, self.window(node, op.window))})
        if keep is None:
            return seen
        rank = len(self.out.type(keep).shape)
        spread = {2: "b s -> b 1 1 s", 3: "b n s -> b 1 n s"}.get(rank)
        keep = keep if spread is None else self.add(node, Rearrange(pattern=spread), {"in": keep})
        return self.add(node, And(), {"in": (seen, keep)})

    def window(self, node: Node, window: int) -> Value:
        """bool [B, 1, N, P + N]: positions among the last `window` up to the query's."""
        size = self.once(("size", window), node, Constant(value=window, dtype="int64"), {})
        first = self.once(("first", window), node, Subtract(), {"in": (self.positions, size)})
        row = self.once(("row", window), node, Rearrange(pattern="b n -> b 1 n 1"), {"in": first})
        column = self.once("column", node, Rearrange(pattern="b s -> b 1 1 s"), {"in": self.slots(node)})
        return self.once(("inside", window), node, Greater(), {"in": (column, row)})
