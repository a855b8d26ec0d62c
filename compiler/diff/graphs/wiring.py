"""What nodes read: inputs that come from somewhere else, ports that are given or not, parameters that are tied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ...ir.graph import ARGUMENT, Control, Input, Node, Region, Value
from ...ir.parameters import makers
from ..report import Where
from . import concepts
from .concepts import name_of, node_concept
from .matching import Matched, source
from .place import At, below, join


class Wiring:
    """The part of a comparison that tells what nodes read."""

    def tell(self, rule: str, where: Where, before: Any = None, after: Any = None, note: str = "") -> None:
        raise NotImplementedError

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
            norm = node is not None and node_concept(node)[0] == "norm" and (_residual(a, x) or _residual(b, y))
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


def _residual(region: Region, v: Value | None) -> bool:
    """Whether a value is a sum, or what a block was given."""
    return v is not None and (v.node == ARGUMENT or name_of(region.nodes[v.node]) == "add")


def _said(region: Region, v: Value) -> str:
    """A value in words: `attended`, a sum."""
    summed = v.node >= 0 and name_of(region.nodes[v.node]) == "add"
    return (f"`{region.label(v)}`" if region.label(v) else "the last value") + (", a sum," if summed else "")


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

