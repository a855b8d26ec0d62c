"""`Graph, Graph -> Unified`: both graphs walked from their outputs side by side, to know which parameter of the second is made of which of
the first, down to the rows of linear layers: whatever splits, joins and orders rows is read through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...ir.dimension import Dim
from ...ir.graph import ARGUMENT, Branch, Call, Control, Graph, Input, Node, Region, Repeat, Scan, TensorType, Value
from ...ir.parameters import is_parameter, makers
from ...ops.base import OpFault
from ..graphs.align import align
from ..graphs.concepts import name_of, transparent
from ..graphs.matching import body_hash
from ..graphs.place import below, copy
from ..graphs.stacks import by_body
from ..report import Where
from .upcycle import neutral, router

if TYPE_CHECKING:
    import numpy as np

LAYOUT = ("rearrange", "split", "slice")
FREE = ("width", "entries", "init", "start", "trainable", "bias")       # attributes that parameters show, or that only training reads


@dataclass(eq=False)
class Frame:
    """A region at one place; `node` is the control form that it is a body of, in the region of `outer`."""

    region: Region
    where: Where
    node: Node | None = None
    outer: Frame | None = None
    open: bool = False                          # whether arguments are what the node is given, as those of a block are
    inner: dict[Any, Frame] = field(default_factory=dict)

    def call(self, node: Node) -> Frame:
        """The body of a block."""
        return self.inner.setdefault(node.id, Frame(node.op.body, below(self.where, node.name), node, self))

    def body(self, node: Node, k: int, copies: tuple[int, ...]) -> Frame:
        """One of the bodies of a control form, for some of its copies."""
        bodies = node.op.bodies
        here = below(self.where, node.name)
        where = here if isinstance(node.op, Scan) else copy(here, copies)
        return self.inner.setdefault((node.id, k, copies), Frame(bodies[k], where, node, self))


Ref = tuple[Frame, Value]


@dataclass(frozen=True)
class Rows:
    """Rows of a linear layer: of the layers `sources`, one below the other, row k is the mean of the rows `index[k]`."""

    sources: tuple[Where, ...]
    index: np.ndarray                           # [rows, 1], or [rows, g] where g rows become one


@dataclass
class Unified:
    """`same` maps parameters of the second graph to those of the first, `rows` linear layers. `differences` say where the function is not
    the same; without one it is, up to the parameters' shapes and to `regrouped` layers, whose heads are more or fewer."""

    same: dict[Where, Where] = field(default_factory=dict)
    rows: dict[Where, Rows] = field(default_factory=dict)
    fresh: set[Where] = field(default_factory=set)          # biases that the first graph does not have
    free: set[Where] = field(default_factory=set)           # parameters of routers between experts that are all the same
    regrouped: set[Where] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)


def unify(a: Graph, b: Graph) -> Unified:
    """Which parameters of `b` are which of `a`. Nothing is computed, and copies stay folded."""
    work = _Unifier(Frame(a.root, Where("")), Frame(b.root, Where("")))
    work.run()
    return work.found


class _Unifier:
    def __init__(self, a: Frame, b: Frame):
        self.found = Unified()
        self.pieces: dict[Where, list[tuple[Where, int, Any, Any]]] = {}
        self.widths: dict[Where, int] = {}
        self.seen: set[tuple[int, Value, int, Value]] = set()
        ours, theirs = dict(a.region.outputs), dict(b.region.outputs)
        self.todo: list[tuple[Ref | None, Ref | None]] = [((a, ours[n]), (b, theirs[n])) for n in theirs if n in ours]
        for n in ours.keys() ^ theirs.keys():
            self.differ(f"output `{n}`")

    def differ(self, what: str) -> None:
        if what not in self.found.differences:
            self.found.differences.append(what)

    def run(self) -> None:
        while self.todo:
            one, other = self.todo.pop()
            x, y = (resolve(r) if r else None for r in (one, other))
            if x is None or y is None:
                if x is not y:
                    self.differ("a value that one side does not give")
                continue
            key = (id(x[0]), x[1], id(y[0]), y[1])
            if key not in self.seen:
                self.seen.add(key)
                self.pair(x, y)
        for head, pieces in self.pieces.items():
            self.assemble(head, pieces)

    def pair(self, x: Ref, y: Ref) -> None:
        (fa, va), (fb, vb) = x, y
        if ARGUMENT in (va.node, vb.node):
            self.arguments(x, y)
            return
        ours, theirs = traced(x), traced(y)
        if ours is not None and theirs is not None and self.linear(ours, theirs):
            return
        old, new = fa.region.nodes[va.node], fb.region.nodes[vb.node]
        if is_parameter(old) and is_parameter(new):
            self.record(below(fa.where, old.name), below(fb.where, new.name))
        elif not isinstance(old.op, Branch) and neutral(fb.region, new):
            self.experts(x, y, new)
        elif type(old.op) is not type(new.op) or not isinstance(old.op, Control) and not _alike(old.op, new.op):
            self.differ(f"`{below(fb.where, new.name)}`")
        elif isinstance(old.op, Control):
            self.control(x, y, old, new)
        else:
            if va.output != vb.output:
                self.differ(f"`{below(fb.where, new.name)}`")
            self.ports(fa, fb, old, new, dict.fromkeys((*old.inputs, *new.inputs)))

    def experts(self, x: Ref, y: Ref, new: Node) -> None:
        """One value that became the mixture of experts of which each is made of what made it."""
        fb, vb = y
        self.found.free |= {below(fb.where, p.name) for p in router(fb.region, new)}
        for j in new.op.owners:
            k = new.op.schedule[j]
            frame = fb.body(new, k, (j,))
            frame.open = True
            self.todo.append((x, (frame, frame.region.outputs[vb.output][1])))

    def arguments(self, x: Ref, y: Ref) -> None:
        """What a body is given; of the model's inputs the name counts."""
        (fa, _), (fb, vb) = x, y
        names = [f.region.arguments[v.output].name if v.node == ARGUMENT else None for f, v in (x, y)]
        if names[0] is None or names[0] != names[1]:
            self.differ(f"`{names[1] or fb.region.label(vb)}`")
        elif fa.node is not None and fb.node is not None:
            self.ports(fa.outer, fb.outer, fa.node, fb.node, [names[0]])  # type: ignore[arg-type]

    def ports(self, fa: Frame, fb: Frame, old: Node, new: Node, names: Any) -> None:
        for port in names:
            before, after = old.inputs.get(port), new.inputs.get(port)
            if port == "bias" and not isinstance(new.op, Control) and before is None and isinstance(after, Value):
                if (end := resolve((fb, after))) is not None:
                    self.found.fresh.add(below(end[0].where, end[0].region.nodes[end[1].node].name))
                continue
            ours, theirs = _listed(before), _listed(after)
            if len(ours) != len(theirs):
                self.differ(f"`{below(fb.where, new.name)}`")
            self.todo += [((fa, v), (fb, w)) for v, w in zip(ours, theirs, strict=False)]

    def record(self, old: Where, new: Where) -> None:
        if old.count != new.count or not new.count:
            return
        other = self.found.same.setdefault(new, old)
        if other != old:
            self.found.same[new] = old if old == new else other         # of several, that of the same name is kept
            self.differ(f"`{new}`, which would hold `{old}` and `{other}`")

    # linear layers

    def linear(self, ours: Traced, theirs: Traced) -> bool:
        """Rows of a linear layer that are read in the same way; False where they are not."""
        import numpy as np
        a, b = ours.labels, theirs.labels
        if a.ndim != b.ndim:
            return False
        if a.shape != b.shape:
            axes = [k for k in range(a.ndim) if a.shape[k] != b.shape[k]]
            if len(axes) != 1 or axes[0] == a.ndim - 1:
                return False
            if (a := _grouped(a, axes[0], b.shape[axes[0]])) is None:
                return False
            self.found.regrouped.add(theirs.where)
        else:
            a = a[..., None]
        self.pieces.setdefault(theirs.where, []).append((ours.where, ours.width, a.reshape(-1, a.shape[-1]), np.ravel(b)))
        self.widths[theirs.where] = theirs.width
        ports = [p for p in ("in", "bias") if p == "in" or theirs.node.inputs.get(p) is None or ours.node.inputs.get(p) is None]
        self.ports(ours.frame, theirs.frame, ours.node, theirs.node, ports)
        return True

    def assemble(self, head: Where, pieces: list[tuple[Where, int, Any, Any]]) -> None:
        """The rows of one layer from all that were read."""
        import numpy as np
        pieces = sorted(pieces, key=lambda p: int(p[3].min()))
        sources = {base: width for base, width, _, _ in pieces}
        starts = dict(zip(sources, np.cumsum([0, *sources.values()]).tolist(), strict=False))
        index = np.full((self.widths[head], max(p[2].shape[1] for p in pieces)), -1)
        for base, _, rows, to in pieces:
            if index.shape[1] % rows.shape[1] or any(w.count != head.count for w in sources):
                self.differ(f"rows of `{head}`")
                return
            there = index[to]
            wanted = np.tile(rows + starts[base], index.shape[1] // rows.shape[1])
            if ((there != -1) & (there != wanted)).any():
                self.differ(f"rows of `{head}`, which were of several layers")
                return
            index[to] = wanted
        if (index == -1).any():
            self.differ(f"rows of `{head}` that nothing read before")
            return
        other = self.found.same.get(below(head, "weight"))
        if other is not None and other not in {below(s, "weight") for s in sources}:
            self.differ(f"`{head}`, whose weight would hold `{other}` too")
        self.found.rows[head] = Rows(tuple(sources), index)

    # bodies

    def control(self, x: Ref, y: Ref, old: Node, new: Node) -> None:
        (fa, va), (fb, vb) = x, y
        p, q = old.op, new.op
        here = f"`{below(fb.where, new.name)}`"
        same = all(getattr(p, k, None) == getattr(q, k, None) for k in ("axis", "backward", "route", "length"))
        if not same or old.outputs[va.output] != new.outputs[vb.output] or dict(p.carry) != dict(q.carry) or p.each != q.each:
            self.differ(here)
        wanted = {old.outputs[va.output].removeprefix("all.").removeprefix("last."), *q.carry.values()}
        outside = [port for port in new.inputs if port not in {a.name for a in new.op.bodies[0].arguments}]
        self.ports(fa, fb, old, new, outside)
        for k, m, mine, yours in self.paired(p, q, here):
            a, b = fa.body(old, k, mine), fb.body(new, m, yours)
            ours, theirs = dict(a.region.outputs), dict(b.region.outputs)
            for name in wanted or theirs:
                if name in ours and name in theirs:
                    self.todo.append(((a, ours[name]), (b, theirs[name])))
                else:
                    self.differ(here)

    def paired(self, p: Any, q: Any, here: str) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Bodies that stand for each other, with the copies whose parameters they hold."""
        if isinstance(p, Scan):
            yield 0, 0, (), ()
            return
        if len(p.schedule) == len(q.schedule):
            found = [(i, i) for i in range(len(p.schedule))]
            made = _by_body(p, q, found)
        else:
            self.differ(f"copies of {here}")
            made = by_body(p, q, align(*([body_hash(o.bodies[k]) for k in o.schedule] for o in (p, q))))
        back: dict[int, int] = {}
        for (k, m), pairs in made.items():
            own = [(p.share[i], j) for i, j in pairs if j in q.owners]
            if any(back.setdefault(q.share[j], p.share[i]) != p.share[i] for i, j in pairs):
                self.differ(f"copies of {here} that share parameters")
            yield k, m, tuple(i for i, _ in own), tuple(j for _, j in own)


# values


def resolve(ref: Ref) -> Ref | None:
    """Where a value is made, through blocks, dropout and choices that are none; None where it is absent."""
    frame, value = ref
    while True:
        if value.node == ARGUMENT:
            if frame.node is None or not (frame.open or isinstance(frame.node.op, Call)):
                return frame, value
            given = frame.node.inputs.get(frame.region.arguments[value.output].name)
            if not isinstance(given, Value) or frame.outer is None:
                return None
            frame, value = frame.outer, given
            continue
        node = frame.region.nodes[value.node]
        if isinstance(node.op, Call):
            frame = frame.call(node)
            value = frame.region.outputs[value.output][1]
        elif transparent(node) or name_of(node) == "first_of" and len(_listed(node.inputs["in"])) == 1:
            value = _listed(node.inputs["in"])[0]
        else:
            return frame, value


@dataclass(frozen=True, eq=False)
class Traced:
    """Numbers of a linear layer as they are read: `labels` are its rows; axes that are no part of them have size 1."""

    frame: Frame
    node: Node
    labels: np.ndarray

    @property
    def where(self) -> Where:
        return below(self.frame.where, self.node.name)

    @property
    def width(self) -> int:
        return _width(self.frame, self.node) or 0


def _width(frame: Frame, node: Node) -> int | None:
    """Rows of a linear layer with a weight of its own."""
    weight = node.inputs.get("weight")
    own = isinstance(weight, Value) and weight.node >= 0 and makers(frame.region).get(weight.node) is node
    return frame.region.type(weight).shape[0].value if own else None  # type: ignore[arg-type]


def traced(ref: Ref) -> Traced | None:
    """The linear layer that a value is rows of; None where other ops are between."""
    import numpy as np
    chain: list[tuple[Node, int]] = []
    frame, value = ref
    while value.node != ARGUMENT and name_of(frame.region.nodes[value.node]) in LAYOUT:
        node = frame.region.nodes[value.node]
        chain.append((node, value.output))
        end = resolve((frame, node.inputs["in"]))  # type: ignore[arg-type]
        if end is None:
            return None
        frame, value = end
    if value.node == ARGUMENT:
        return None
    node = frame.region.nodes[value.node]
    width = _width(frame, node) if name_of(node) == "linear" else None
    if width is None:
        return None
    labels = np.arange(width).reshape(*[1] * (len(node.types[0].shape) - 1), width)
    for step, output in reversed(chain):
        moved = _moved(step, output, labels)
        if moved is None:
            return None
        labels = moved
    return Traced(frame, node, labels)


def _moved(node: Node, output: int, labels: Any) -> Any:
    """The labels after a layout op; None where it moves more than rows of the layer."""
    import numpy as np
    op = node.op
    given = TensorType("float", tuple(map(Dim.const, labels.shape)))
    try:
        if name_of(node) == "rearrange":
            steps = op.steps({"in": given})
            parts = labels.reshape([d.value for group in steps.split for d in group]).transpose(steps.order)
            at = np.cumsum([0, *steps.merge])
            return parts.reshape([int(np.prod(parts.shape[i:j])) for i, j in zip(at, at[1:], strict=False)])
        axis = op.axis % labels.ndim
        if labels.shape[axis] == 1:
            return None
        if name_of(node) == "split":
            sizes = [t.shape[axis].value for t in op.infer({"in": given})]
            start = sum(sizes[:output])
            return np.take(labels, range(start, start + sizes[output]), axis)
        start, stop = (d.value for d in op._bounds(given.shape[axis]))
        return np.take(labels, range(start, stop, op.step), axis)
    except (OpFault, ValueError, TypeError):
        return None


def _grouped(a: Any, axis: int, heads: int) -> Any:
    """Rows of heads that become fewer, several of them for one, or more, one for several; the rows of one are on a last axis."""
    import numpy as np
    n = a.shape[axis]
    if n % heads == 0:
        parts = a.reshape(*a.shape[:axis], heads, n // heads, *a.shape[axis + 1:])
        return np.moveaxis(parts, axis + 1, -1)
    return np.repeat(a, heads // n, axis)[..., None] if heads % n == 0 else None


def _alike(a: Any, b: Any) -> bool:
    """Whether two ops compute the same, given their parameters."""
    def plain(op: Any) -> str:
        known = {f for f in FREE if f in op.__dataclass_fields__}
        return repr(replace(op, **{f: None for f in known}))
    return type(a) is type(b) and (repr(a) == repr(b) or plain(a) == plain(b))


def _by_body(p: Repeat | Branch, q: Repeat | Branch, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    out: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in pairs:
        out.setdefault((p.schedule[i], q.schedule[j]), []).append((i, j))
    return out


def _listed(given: Input) -> tuple[Value, ...]:
    return given if isinstance(given, tuple) else () if given is None else (given,)
