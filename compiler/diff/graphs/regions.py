"""`typed Graph, typed Graph -> Found`: every change of the graph, copies folded, and what becomes of every tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...ir.graph import Branch, Call, Control, Graph, Node, Region, Repeat, Scan, join
from ...ir.parameters import is_parameter, makers, parameter_table
from ..report import Consequence, TensorChange, Where
from ..rules import RULES
from . import concepts
from .align import align
from .concepts import name_of, node_concept, plain
from .fold import fold_findings, fold_tensors
from .matching import Matched, body_hash, live, match, parameters_of
from .place import At, below, copy
from .stacks import Stack, by_body
from .strays import Pair, Stray, controls, copies_said, lone, loose, paired, same_inside, stray, wrapped
from .wiring import Wiring

UNSURE = ", or one that is equal to it"                  # said of what moved where others are the same


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
    work.finish()
    found = work.found
    found.findings = fold_findings(found.findings)
    found.tensors = fold_tensors(found.tensors)
    return found


class _Comparison(Wiring):
    def __init__(self, declared: Mapping[str, Mapping[str, str]]):
        self.declared = declared
        self.found = Found()
        self.quiet = 0
        self.gone: list[Stray] = []                                     # of one side alone: found again at the end, or told
        self.come: list[Stray] = []
        self.swaps: list[tuple[Stray, Stray]] = []                      # that stand in each other's place
        self.stacks: list[tuple[Stack, list[list[str]], list[Stray], list[Stray]]] = []
        self.settled = False

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
        kept = [(o, n) for o, n in found.nodes.items() if not controls(a.nodes[o], b.nodes[n])]
        apart = (set(), set()) if self.direct else (loose(a, [o for o, _ in kept]), loose(b, [n for _, n in kept]))
        for new in b.nodes:
            old = back.get(new.id)
            if new.id in owned[1]:
                if new.id not in apart[1]:
                    self.made(a.nodes[old] if old is not None else None, new, at)
            elif old is None:
                self.added(b, new, at)
            else:
                self.node(a, b, a.nodes[old], new, at, found)
        for old_node in a.nodes:
            if old_node.id in found.nodes or old_node.id in apart[0]:
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

    # nodes that one side has

    @property
    def direct(self) -> bool:
        """Whether what one side has is told at once, and not looked for on the other."""
        return self.quiet > 0 or self.settled

    def added(self, region: Region, node: Node, at: At) -> None:
        if self.direct:
            self.alone(region, node, below(at.head, node.name), "added")
            self.rows([], _held(region, node), at, {})
        else:
            self.come.append(self.stray(region, node, at, 1))

    def removed(self, region: Region, node: Node, at: At) -> None:
        if self.direct:
            self.alone(region, node, below(at.base, node.name), "removed")
            self.rows(_held(region, node), [], at, {})
        else:
            self.gone.append(self.stray(region, node, at, 0))

    def stray(self, region: Region, node: Node, at: At, side: int) -> Stray:
        own = at.tensors and below(at.tensors[side], node.name)
        return stray(region, node, below((at.base, at.head)[side], node.name), own)

    def finish(self) -> None:
        """What only one side has: that which moved is told as such, all else as gone and come."""
        self.settled = True
        found, truncated = paired(self.gone, self.come, self.swaps, self.declared)
        self.found.truncated |= truncated
        for p in found:
            self.moved(p)
        told = {id(s) for pair in self.swaps for s in pair} | {id(s) for _, _, *sides in self.stacks for side in sides for s in side}
        for strays, what in ((self.gone, "removed"), (self.come, "added")):
            for s in strays:
                if s.node is not None and s.other is None and not s.spilled and id(s) not in told:
                    self.alone(s.region, s.node, s.where, what)
                for where, shape in s.tensors():
                    self.tensor(where if what == "removed" else None, where if what == "added" else None,
                                shape if what == "removed" else None, shape if what == "added" else None)
        for stack, hashes, gone, come in self.stacks:
            stack.tell(hashes, *(frozenset(i for s in side if s.other is not None for i in s.where.copies[-1]) for side in (gone, come)))

    def moved(self, p: Pair) -> None:
        """A block in another place, and what else is different in it."""
        old, new = p.old, p.new
        self.found.evidence.add(p.how)
        note = f"`{old.where}` is {'' if p.exact or p.declared else 'probably '}`{new.where}` now" + (
            "" if p.certain else ": much is alike" if not p.exact else UNSURE)
        both = (old.own, new.own) if p.certain and old.own is not None and new.own is not None else None
        at = At(old.where, new.where, both)
        if old.node is None and new.node is None and old.where.pattern == new.where.pattern:
            self.tell("block.moved", at.head, list(old.where.copies[-1]), list(new.where.copies[-1]), note)
        else:
            self.tell("node.moved", at.head, str(at.base), str(at.head), note)
        if old.body is not None and new.body is not None:
            if old.body.name != new.body.name:
                self.tell("block.renamed", at.head, old.body.name, new.body.name)
            self.region(old.body, new.body, at, self.declared.get(new.body.name, {}))
        elif old.node is not None and new.node is not None:
            if isinstance(new.node.op, Control):
                self.control(old.node, new.node, at)
            else:
                self.rows(list(old.below()), list(new.below()), at, {})

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
        elif isinstance(old.op, Call | Repeat) and isinstance(new.op, Call | Repeat) and self.stacked(a, b, old, new, at, found):
            return
        elif isinstance(old.op, Control) or isinstance(new.op, Control) or name_of(old) != name_of(new):
            self.swapped(a, b, old, new, at)
        else:
            self.ports(a, b, old, new, at, found)
            self.attributes(b, old, new, at)
            self.heads(a, b, old, new, here)
            if is_parameter(old):
                self.rows(list(parameters_of(a, old)), list(parameters_of(b, new)), at, {new.name: old.name})

    def stacked(self, a: Region, b: Region, old: Node, new: Node, at: At, found: Matched) -> bool:
        """One block that became a stack of it, or the other way round: False where it is neither."""
        grown = isinstance(new.op, Repeat)
        stack, one = (new.op, old.op) if grown else (old.op, new.op)
        if body_hash(stack.bodies[stack.schedule[0]]) != body_hash(one.body):
            return False
        here = at.under(old.name, new.name)
        more = tuple(range(1, len(stack.schedule)))
        if more:
            self.tell(*(("stack.count-increased", copy(here.head, more), 1, len(more) + 1) if grown else
                        ("stack.count-decreased", copy(here.base, more), len(more) + 1, 1)))
        else:
            self.tell("node.moved", here.head, *((old.name, f"{new.name}[0]") if grown else (f"{old.name}[0]", new.name)))
        self.ports(a, b, old, new, at, found)
        first = here.single(int(grown))
        bodies_ = (one.body, stack.bodies[stack.schedule[0]])
        self.region(*(bodies_ if grown else bodies_[::-1]), first, {})
        self.lone(stack, more, here, grown)
        return True

    def swapped(self, a: Region, b: Region, old: Node, new: Node, at: At) -> None:
        """One op or block in the place of another."""
        (kind, before), (other, after) = node_concept(old), node_concept(new)
        rule = f"{kind}.type-changed" if kind == other and f"{kind}.type-changed" in RULES else "node.swapped"
        if before == after and type(old.op) is not type(new.op):
            rule, before, after = "node.swapped", copies_said(old, before), copies_said(new, after)
        self.tell(rule, below(at.head, new.name), before, after)
        if self.direct or not controls(old, new):
            self.rows(_held(a, old), _held(b, new), at, {})         # those that ops made are matched by their ports
            return
        self.swaps.append((self.stray(a, old, at, 0), self.stray(b, new, at, 1)))
        self.gone.append(self.swaps[-1][0])
        self.come.append(self.swaps[-1][1])

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
        if call and self.wrapped(a, b, at, (before, after)):
            return
        alike = {n.name for n in a.nodes} & {n.name for n in b.nodes}
        fresh = {n.name for n in a.nodes if not is_parameter(n)} != {n.name for n in b.nodes if not is_parameter(n)}
        rule = f"{kind}.type-changed"
        if call and ((fresh and kind == other and rule in RULES and kind != "attention") or not alike):
            self.tell(rule if kind == other and rule in RULES else "block.swapped", at.head, before, after, same_inside(a, b))
            self.quiet += 1
            self.region(a, b, at, declared, by_hash=False)
            self.quiet -= 1
            return
        self.tell("block.renamed", at.head, a.name, b.name)
        self.region(a, b, at, declared)

    def wrapped(self, a: Region, b: Region, at: At, concepts_: tuple[str, str]) -> bool:
        """A block that is inside another now, or that was."""
        for x, y, side in ((a, b, 1), (b, a, 0)):
            if (inner := wrapped(x, y)) is None:
                continue
            path, body, exact = inner
            places, own = [at.base, at.head], list(at.tensors or (at.base, at.head))
            rest = [r for e in parameter_table(Graph("", y)) if not e.path.startswith(f"{path}.") for r in [(e.path, e.copies, e.shape)]]
            self.tell("block.swapped", at.head, *concepts_)
            self.rows(*(([], rest) if side else (rest, [])), at, {})
            places[side], own[side] = below(places[side], path), below(own[side], path)
            here = At(places[0], places[1], (own[0], own[1]) if exact and at.tensors else None)
            self.found.evidence.add("hash" if exact else "similarity")
            self.tell("node.moved", here.head, str(here.base), str(here.head),
                      f"`{here.base}` is {'' if exact else 'probably '}`{here.head}` now")
            one, other = (x, body) if side else (body, x)
            self.region(one, other, here, self.declared.get(other.name, {}))
            return True
        return False

    def copies(self, old: Repeat | Branch, new: Repeat | Branch, at: At) -> None:
        hashes = [[body_hash(o.bodies[k]) for k in o.schedule] for o in (old, new)]
        found = align(*hashes)
        stack = Stack(self.tell, old, new, at, found)
        stack.places()
        for (k, m), pairs in by_body(old, new, found).items():
            self.pairs(old, new, k, m, pairs, at)
        if self.direct or isinstance(new, Branch) or isinstance(old, Branch):
            stack.tell(hashes)
            self.lone(old, found.removed, at, False)
            self.lone(new, found.added, at, True)
            return
        gone, come = ([lone(op, k, mine, (at.base, at.head)[head], at.tensors and at.tensors[head]) for k in range(len(op.bodies))
                       if (mine := tuple(i for i in copies if op.schedule[i] == k))]
                      for copies, op, head in ((found.removed, old, 0), (found.added, new, 1)))
        self.gone += gone
        self.come += come
        self.stacks.append((stack, hashes, gone, come))

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


def _held(region: Region, node: Node) -> list[Any]:
    """The parameters that go with a node; those that an op made are nodes of their own."""
    return list(parameters_of(region, node)) if isinstance(node.op, Control) or is_parameter(node) else []


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(d.value or 0 for d in node.types[0].shape)


def _key(f: Any) -> str:
    return f.metadata.get("key") or f.name
