"""`typed Graph, typed Graph -> Found`: every change of the graph, copies folded, and what becomes of every tensor."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ir.graph import ARGUMENT, Branch, Call, Control, Graph, Input, Node, Region, Repeat, Scan, Value, bodies, join
from ..ir.parameters import is_parameter, makers, parameter_table
from . import concepts
from .align import align
from .concepts import name_of, node_concept, plain
from .fold import fold_findings, fold_tensors
from .matching import Matched, body_hash, essence, live, match, parameters_of, source
from .place import At, below, copy
from .report import Consequence, TensorChange, Where
from .rules import RULES
from .stacks import Stack, by_body


@dataclass
class Found:
    """What a comparison of two graphs found; `renamed` are evidences of renames."""

    findings: list[Consequence] = field(default_factory=list)
    tensors: list[TensorChange] = field(default_factory=list)
    evidence: set[str] = field(default_factory=set)
    truncated: bool = False


def compare_graphs(a: Graph, b: Graph, declared: Mapping[str, Mapping[str, str]] | None = None) -> Found:
    """Everything that changed from `a` to `b`. `declared` maps the name of a block (or the model's) to its renamed nodes, new to old."""
    work = _Comparison(declared or {})
    top = Where("")
    work.region(a.root, b.root, At(top, top, (top, top)), work.declared.get("", {}))
    found = work.found
    found.findings = fold_findings(found.findings)
    found.tensors = fold_tensors(found.tensors)
    return found


class _Comparison:
    def __init__(self, declared: Mapping[str, Mapping[str, str]]):
        self.declared = declared
        self.found = Found()
        self.quiet = 0

    # what is told

    def tell(self, rule: str, where: Where, before: Any = None, after: Any = None, note: str = "") -> None:
        if not self.quiet:
            self.found.findings.append(Consequence(rule, where, plain(before), plain(after), note))

    def tensor(self, old: Where | None, new: Where | None, before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> None:
        if old is None or new is None:
            status = "new" if old is None else "dropped"
        elif before != after:
            status = "reshaped"
        else:
            status = "kept" if old == new else "renamed"
        self.found.tensors.append(TensorChange(status, old, new, before, after))  # type: ignore[arg-type]

    # regions

    def region(self, a: Region, b: Region, at: At, declared: Mapping[str, str], by_hash: bool = True) -> None:
        found = match(a, b, declared, by_hash)
        self.found.truncated |= found.truncated
        back = {new: old for old, new in found.nodes.items()}
        owned = makers(a), makers(b)
        for new in b.nodes:
            old = back.get(new.id)
            if new.id in owned[1]:
                self.made(a.nodes[old] if old is not None else None, new, at)
            elif old is None:
                self.added(b, new, at)
            else:
                self.node(a, b, a.nodes[old], new, at, found)
        for old_node in a.nodes:
            if old_node.id in found.nodes:
                continue
            if old_node.id in owned[0]:
                self.made(old_node, None, at)
            else:
                self.removed(a, old_node, at)
        self.outputs(a, b, at, found)

    def made(self, old: Node | None, new: Node | None, at: At) -> None:
        """A parameter that an op made."""
        if old is not None and new is not None:
            self.attributes(None, old, new, at)
        self.rows([(old.name, (), _shape(old))] if old else [], [(new.name, (), _shape(new))] if new else [], at,
                  {new.name: old.name} if old and new else {})

    def rows(self, ours: list[Any], theirs: list[Any], at: At, names: Mapping[str, str]) -> None:
        """Parameters of both sides, matched by path; `names` maps new paths to old ones."""
        if at.tensors is None:
            for where, side in ((at.base, ours), (at.head, theirs)):
                for path, copies, shape in side:
                    here = Where(join(where.pattern, path), (*where.copies, *copies))
                    self.tensor(here if side is ours else None, None if side is ours else here,
                                shape if side is ours else None, None if side is ours else shape)
            return
        old = {(path, c): (Where(join(at.tensors[0].pattern, path), (*at.tensors[0].copies, *c)), s) for path, c, s in ours}
        for path, copies, shape in theirs:
            head = Where(join(at.tensors[1].pattern, path), (*at.tensors[1].copies, *copies))
            base, before = old.pop((names.get(path, path), copies), (None, None))
            if base is not None:
                self.tensor(base, head, before, shape)
            else:
                self.tensor(None, head, None, shape)
        for base, before in old.values():
            self.tensor(base, None, before, None)

    def outputs(self, a: Region, b: Region, at: At, found: Matched) -> None:
        """What a region gives: an output may come from another node. Those of the model are known by name."""
        if not at.head.pattern:
            ours = dict(a.outputs)
            for name, y in b.outputs:
                if name in ours:
                    self.wired(a, b, ours[name], y, found, at, name)
        elif len(a.outputs) == len(b.outputs):
            for (_, x), (name, y) in zip(a.outputs, b.outputs, strict=True):
                self.wired(a, b, x, y, found, at, name)

    # nodes that one side has

    def added(self, region: Region, node: Node, at: At) -> None:
        self.alone(region, node, below(at.head, node.name), "added")
        self.rows([], _held(region, node), at, {})

    def removed(self, region: Region, node: Node, at: At) -> None:
        self.alone(region, node, below(at.base, node.name), "removed")
        self.rows(_held(region, node), [], at, {})

    def alone(self, region: Region, node: Node, where: Where, what: str) -> None:
        text: Any
        kind, text = node_concept(node)
        if kind == "dropout":
            kind, text = "training.dropout-changed", node.op.rate
        if node.id not in live(region) and not is_parameter(node):
            kind, text = "node.respelled", f"{node.name}, which nothing reads"
        rule = kind if kind in RULES else f"{kind}.{what}" if f"{kind}.{what}" in RULES else f"node.{what}"
        if is_parameter(node):
            rule, text = f"parameter.{what}", list(_shape(node))
        self.tell(rule, where, text if what == "removed" else None, text if what == "added" else None)

    # nodes that both have

    def node(self, a: Region, b: Region, old: Node, new: Node, at: At, found: Matched) -> None:
        here = at.under(old.name, new.name)
        how = found.evidence.get(old.id)
        if old.name != new.name:
            self.found.evidence.add(how or "path")
            self.tell("node.renamed", below(at.head, new.name), old.name, new.name,
                      "probably: much is alike" if how == "similarity" else "")
        if how == "similarity":
            here = At(here.base, here.head, None)
        if isinstance(old.op, Control) and type(old.op) is type(new.op):
            self.ports(a, b, old, new, at, found)
            self.control(old, new, here)
        elif isinstance(old.op, Control) or isinstance(new.op, Control) or name_of(old) != name_of(new):
            self.swapped(a, b, old, new, at)
        else:
            self.ports(a, b, old, new, at, found)
            self.attributes(b, old, new, at)
            self.heads(a, b, old, new, here)
            if is_parameter(old):
                self.rows(list(parameters_of(a, old)), list(parameters_of(b, new)), at, {new.name: old.name})

    def swapped(self, a: Region, b: Region, old: Node, new: Node, at: At) -> None:
        """One op or block in the place of another."""
        (kind, before), (other, after) = node_concept(old), node_concept(new)
        rule = f"{kind}.type-changed" if kind == other and f"{kind}.type-changed" in RULES else "node.swapped"
        self.tell(rule, below(at.head, new.name), before, after)
        self.rows(_held(a, old), _held(b, new), at, {})             # those that ops made are matched by their ports

    def heads(self, a: Region, b: Region, old: Node, new: Node, here: At) -> None:
        if name_of(new) == "attention":
            for (rule, before), (_, after) in zip(concepts.heads(a, old), concepts.heads(b, new), strict=True):
                if before != after:
                    self.tell(rule, here.head, before, after)

    def attributes(self, region: Region | None, old: Node, new: Node, at: At) -> None:
        owned = {*old.op.parameters(), *new.op.parameters()}
        for f in dataclasses.fields(new.op):
            before, after = getattr(old.op, f.name), getattr(new.op, f.name)
            if before == after or f.name in owned or f.name == "shape":
                continue
            if f.name in ("width", "entries") and (before is None or after is None):
                self.tell("node.respelled", below(at.head, new.name), {_key(f): plain(before)}, {_key(f): plain(after)})
                continue
            rule = concepts.attribute_rule(region, new, f.name) if region else concepts.ATTRIBUTES.get((name_of(new), f.name))
            where = below(at.head, new.name)
            if rule and rule not in ("node.attribute-changed", "node.width-changed"):
                self.tell(rule, where, before, after)
            else:
                self.tell(rule or "node.attribute-changed", where, {_key(f): plain(before)}, {_key(f): plain(after)})

    # wiring

    def ports(self, a: Region, b: Region, old: Node, new: Node, at: At, found: Matched) -> None:
        owned = () if isinstance(new.op, Control) else {*old.op.parameters(), *new.op.parameters()}
        for port in dict.fromkeys((*old.inputs, *new.inputs)):
            before, after = old.inputs.get(port), new.inputs.get(port)
            if port in owned:
                self.parameter(a, b, port, before, after, old, new, at, found)
            elif isinstance(before, tuple) or isinstance(after, tuple):
                self.listed(a, b, _tuple(before), _tuple(after), found, at, new)
            elif not isinstance(new.op, Control) or (before is not None and after is not None):
                self.wired(a, b, before, after, found, at, new.name, port)

    def wired(self, a: Region, b: Region, before: Input, after: Input, found: Matched, at: At, name: str, port: str = "") -> None:
        """One input. What changes because a node came or went is told with that node."""
        if not isinstance(before, Value | None) or not isinstance(after, Value | None):
            return
        x, y = before and source(a, before), after and source(b, after)
        if (x and found.value(x)) == y and (x is not None or y is None):
            return
        gone = x is not None and found.value(x) is None
        come = y is not None and y not in {found.value(v) for v in _values(a)}
        if not gone and not come:
            node = next((n for n in b.nodes if n.name == name), None)
            norm = node is not None and node_concept(node)[0] == "norm"
            rule = "norm.placement-changed" if norm else "node.rewired"
            self.tell(rule, below(at.head, name), x and a.label(x), y and b.label(y),
                      f"reads {_said(b, y)} instead of {_said(a, x).rstrip(',')}" if x and y
                      else f"`{port}` is {'no longer ' if y is None else ''}given")

    def listed(self, a: Region, b: Region, before: tuple[Value, ...], after: tuple[Value, ...], found: Matched, at: At, node: Node) -> None:
        name = node.name
        if len(before) == len(after):
            moved = [found.value(source(a, v)) for v in before]
            if name_of(node) in concepts.COMMUTATIVE and None not in moved and Counter(moved) == Counter(source(b, v) for v in after):
                if moved != [source(b, v) for v in after]:
                    self.tell("node.respelled", below(at.head, name), [a.label(v) for v in before], [b.label(v) for v in after])
                return
            for x, y in zip(before, after, strict=True):
                self.wired(a, b, x, y, found, at, name)
            return
        ours = [source(a, v) for v in before]
        theirs = [source(b, v) for v in after]
        kept = {found.value(v) for v in ours}
        if all(found.value(v) is not None for v in ours) and all(v in kept or found_back(found, v) for v in theirs):
            self.tell("node.rewired", below(at.head, name), [a.label(v) for v in ours], [b.label(v) for v in theirs])

    def parameter(self, a: Region, b: Region, port: str, before: Input, after: Input, old: Node, new: Node, at: At, found: Matched) -> None:
        """A port that takes a parameter: one that the op made, another's, or none."""
        if not isinstance(before, Value | None) or not isinstance(after, Value | None):
            return
        own = _own(a, before, old), _own(b, after, new)
        where = below(at.head, join(new.name, port))
        if before is None or after is None:
            if before is not after:
                what = "added" if before is None else "removed"
                self.tell(f"bias.{what}" if port == "bias" else f"parameter.{what}", where)
        elif own == (True, False):
            self.tell("weights.tied", where, None, b.label(after))
        elif own == (False, True):
            self.tell("weights.untied", where, a.label(before), None)
        elif own == (False, False):
            self.wired(a, b, before, after, found, at, new.name, port)

    # bodies

    def control(self, old: Node, new: Node, at: At) -> None:
        if isinstance(old.op, Repeat | Branch) and isinstance(new.op, Repeat | Branch):
            self.copies(old.op, new.op, at)
        else:
            self.body(old.op.body, new.op.body, at, isinstance(new.op, Call))
        if isinstance(old.op, Scan) and isinstance(new.op, Scan):
            before, after = ({"axis": o.axis, "backward": o.backward, "carry": dict(o.carry), "each": list(o.each)}
                             for o in (old.op, new.op))
            self.told(before, after, at)
        elif isinstance(old.op, Repeat | Branch):
            before, after = ({"carry": dict(o.carry), "route": getattr(o, "route", False)} for o in (old.op, new.op))
            self.told(before, after, at)

    def told(self, before: dict[str, Any], after: dict[str, Any], at: At) -> None:
        changed = [k for k in after if before[k] != after[k]]
        if changed:
            self.tell("node.attribute-changed", at.head, {k: before[k] for k in changed}, {k: after[k] for k in changed})

    def body(self, a: Region, b: Region, at: At, call: bool) -> None:
        """The body of a block; a block of a known kind that became another is told as one."""
        declared = self.declared.get(b.name, {})
        if a.name == b.name or body_hash(a) == body_hash(b):
            if a.name != b.name:
                self.tell("block.renamed", at.head, a.name, b.name)
            self.region(a, b, at, declared)
            return
        (kind, before), (other, after) = concepts.concept(a), concepts.concept(b)
        alike = {n.name for n in a.nodes} & {n.name for n in b.nodes}
        fresh = {n.name for n in a.nodes if not is_parameter(n)} != {n.name for n in b.nodes if not is_parameter(n)}
        rule = f"{kind}.type-changed"
        if call and ((fresh and kind == other and rule in RULES and kind != "attention") or not alike):
            self.tell(rule if kind == other and rule in RULES else "block.swapped", at.head, before, after, _same_inside(a, b))
            self.quiet += 1
            self.region(a, b, at, declared, by_hash=False)
            self.quiet -= 1
            return
        self.tell("block.renamed", at.head, a.name, b.name)
        self.region(a, b, at, declared)

    def copies(self, old: Repeat | Branch, new: Repeat | Branch, at: At) -> None:
        hashes = [[body_hash(o.bodies[k]) for k in o.schedule] for o in (old, new)]
        found = align(*hashes)
        Stack(self.tell, old, new, at, found).tell(hashes)
        for (k, m), pairs in by_body(old, new, found).items():
            self.pairs(old, new, k, m, pairs, at)
        for copies, op, head in ((found.removed, old, False), (found.added, new, True)):
            self.lone(op, copies, at, head)

    def pairs(self, old: Repeat | Branch, new: Repeat | Branch, k: int, m: int, pairs: list[tuple[int, int]], at: At) -> None:
        """The copies of one body that stand for those of another."""
        ours, theirs = set(old.owners), set(new.owners)
        for some in ([p for p in pairs if p[0] == p[1]], [p for p in pairs if p[0] != p[1]]):       # in place, and elsewhere
            if some:
                owning = [p for p in some if p[0] in ours and p[1] in theirs]
                self.body(old.bodies[k], new.bodies[m], at.copies(some, owning), False)
        self.lone(old, tuple(i for i, j in pairs if j not in theirs), at, False)
        self.lone(new, tuple(j for i, j in pairs if i not in ours), at, True)

    def lone(self, op: Repeat | Branch, copies: tuple[int, ...], at: At, head: bool) -> None:
        """The parameters of copies that one side has."""
        top = (at.head if head else at.base) if at.tensors is None else at.tensors[head]
        for k, body in enumerate(op.bodies):
            mine = tuple(i for i in copies if op.schedule[i] == k and i in op.owners)
            for e in parameter_table(Graph("", body)) if mine else ():
                where = Where(join(copy(top, mine).pattern, e.path), (*top.copies, mine, *e.copies))
                self.tensor(None if head else where, where if head else None, None if head else e.shape, e.shape if head else None)


def _same_inside(a: Region, b: Region) -> str:
    """Whether each expert of a new mixture is the old block, or the other way round."""
    for outer, inner, text in ((b, a, "each expert has the structure of the old block: copy its weights into every expert"),
                               (a, b, "the new block has the structure of one expert")):
        experts = concepts.routed(outer)
        if experts is not None and all(essence(x) == essence(inner) for x in bodies(experts)):
            return text
    return ""


def _said(region: Region, v: Value) -> str:
    """A value in words: `attended`, a sum."""
    summed = v.node >= 0 and name_of(region.nodes[v.node]) == "add"
    return (f"`{region.label(v)}`" if region.label(v) else "the last value") + (", a sum," if summed else "")


def _held(region: Region, node: Node) -> list[Any]:
    """The parameters that go with a node; those that an op made are nodes of their own."""
    return list(parameters_of(region, node)) if isinstance(node.op, Control) or is_parameter(node) else []


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(d.value or 0 for d in node.types[0].shape)


def _key(f: Any) -> str:
    return f.metadata.get("key") or f.name


def _tuple(given: Input) -> tuple[Value, ...]:
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _values(region: Region) -> Iterable[Value]:
    yield from (Value(ARGUMENT, k) for k in range(len(region.arguments)))
    yield from (Value(n.id, k) for n in region.nodes for k in range(len(n.outputs)))


def _own(region: Region, given: Value | None, node: Node) -> bool:
    return given is not None and given.node >= 0 and makers(region).get(given.node) is node


def found_back(found: Matched, v: Value) -> bool:
    """Whether a value of the second region stands for one of the first."""
    return v.output in found.arguments.values() if v.node == ARGUMENT else v.node in found.nodes.values()

