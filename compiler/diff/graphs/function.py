"""Whether two graphs compute the same, whatever the rules see of them: a hash of what the outputs are made of.

Names, the order of nodes and of operands that may change places, blocks around nodes, dropout, how parameters start and what no output
needs do not enter. It may call two ways to compute the same different; it never calls two functions the same for what it leaves out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...ir.graph import ARGUMENT, Branch, Call, Control, Graph, Input, Node, Region, Repeat, Value, bodies, join, walk
from ...ir.parameters import is_parameter
from ...ir.text import structure_hash
from .concepts import COMMUTATIVE, name_of, transparent
from .matching import live, paired_arguments

MOST = 6_000                                    # nodes of a graph whose stacks are unrolled
SAID_BY_TYPES = ("width", "entries")            # attributes of ops that the shape of their weight says too


def same_function(a: Graph, b: Graph) -> bool:
    """Whether the outputs that both have are made in the same way from the inputs of the same names."""
    if structure_hash(a) == structure_hash(b):
        return True
    alike = [False] if _copies(a) == _copies(b) or max(_unrolled(a), _unrolled(b)) > MOST else [False, True]
    return any(ours is not None and theirs is not None and ours.hash() == theirs.hash()
               for ours, theirs in (_meanings(a, b, inline) for inline in alike))


def _copies(graph: Graph) -> int:
    """Copies of all stacks."""
    return sum(len(n.op.schedule) for _, _, n in walk(graph.root) if isinstance(n.op, Repeat))


def _unrolled(graph: Graph) -> int:
    """Nodes, those of stacks once for every copy."""
    def count(region: Region) -> int:
        return sum(within(n) for n in region.nodes)

    def within(node: Node) -> int:
        sizes = [count(b) for b in bodies(node)]
        return sum(sizes[k] for k in node.op.schedule) if isinstance(node.op, Repeat) else 1 + sum(sizes)
    return count(graph.root)


def moved_tensors(a: Graph, b: Graph) -> dict[str, str]:
    """Path patterns of parameters of `b` to those of `a` that are read in the same way, where no other is."""
    ours, theirs = (m.readers() if m is not None else {} for m in _meanings(a, b))
    found: dict[str, str] = {}
    for label, news in theirs.items():
        olds = ours.get(label, [])
        for new in news:
            alike = olds if len(olds) == len(news) == 1 else [o for o in olds if _end(o) == _end(new)]
            if len(alike) == 1 and (len(news) == 1 or sum(_end(n) == _end(new) for n in news) == 1):
                found[new] = alike[0]
    return found


def _end(path: str) -> str:
    """The op and port of a parameter, which tell those apart that are read in the same way, as keys and values are."""
    return ".".join(path.split(".")[-2:])


def _meanings(a: Graph, b: Graph, inline: bool = False) -> tuple[_Meaning | None, _Meaning | None]:
    """What the outputs of both graphs are made of; None where they have no output in common."""
    names = [n for n, _ in a.root.outputs if n in dict(b.root.outputs)]
    if not names and len(a.root.outputs) != len(b.root.outputs):
        return None, None
    same = {new: a.root.arguments[old].name for old, new in paired_arguments(a.root, b.root).items()}
    inputs = [same.get(k, x.name) for k, x in enumerate(b.root.arguments)]
    return (_meaning(a, tuple(names), tuple(x.name for x in a.root.arguments), (), inline),
            _meaning(b, tuple(names), tuple(inputs), tuple(_symbols(a, b).items()), inline))


def _symbols(a: Graph, b: Graph) -> dict[str, str]:
    """Free dimensions of `b` as `a` calls them, where an input of both has them."""
    ours = {x.name: x.type.shape for x in a.root.arguments}
    found: dict[str, str] = {}
    for x in b.root.arguments:
        for d, e in zip(ours.get(x.name, ()), x.type.shape, strict=False):
            if d != e and d.value is None and e.value is None and re.fullmatch(r"\w+", str(d)) and re.fullmatch(r"\w+", str(e)):
                found.setdefault(str(e), str(d))
    return found


@lru_cache(maxsize=64)
def _meaning(graph: Graph, names: tuple[str, ...], inputs: tuple[str, ...], symbols: tuple[tuple[str, str], ...], inline: bool) -> _Meaning:
    work = _Meaning(dict(symbols), inline)
    ends = [dict(graph.root.outputs)[n] for n in names] or [v for _, v in graph.root.outputs]
    made = work.region(graph.root, [_Made(_hash("input", name)) for name in inputs], (), ends)
    work.ends = [made[v].hash for v in ends]
    return work


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Made:
    """What a value is made of; `parameter` where it is one, which its uses tell from others of its shape."""

    hash: str
    parameter: tuple[Any, ...] | None = None


@dataclass
class _Meaning:
    """The values of regions, from what they are given. `uses` are those of every parameter: what reads it, and where."""

    symbols: Mapping[str, str]
    inline: bool = False                        # whether copies of stacks are hashed one by one, as blocks are
    uses: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)

    def hash(self) -> str:
        return _hash(*self.ends, *sorted({_hash(*sorted(uses)) for uses in self.uses.values()}))

    def readers(self) -> dict[str, list[str]]:
        """What reads a parameter to the path patterns of those that it reads."""
        out: dict[str, list[str]] = {}
        for path, uses in self.uses.items():
            out.setdefault(_hash(*sorted(uses)), []).append(join(*("{i}" if isinstance(x, int) else x for x in path)))
        return out

    def region(self, region: Region, given: list[_Made], path: tuple[Any, ...], ends: Iterable[Value]) -> dict[Value, _Made]:
        """The hashes of the values that `ends` need."""
        needed = live(region) if path else region.reached(ends)
        found = {Value(ARGUMENT, k): made for k, made in enumerate(given)}
        for node in region.nodes:
            if node.id in needed:
                for k, made in enumerate(self.node(node, found, (*path, node.name))):
                    found[Value(node.id, k)] = made
        return found

    def node(self, node: Node, found: Mapping[Value, _Made], path: tuple[Any, ...]) -> list[_Made]:
        if is_parameter(node):
            return [_Made(_hash("parameter", self.types(node)), path)]
        if transparent(node) and isinstance(node.inputs.get("in"), Value):
            return [found[node.inputs["in"]]]            # type: ignore[index]
        if isinstance(node.op, Call):
            body = node.op.body
            missing = _Made(_hash("absent"))
            inside = self.region(body, [_given(node.inputs.get(a.name), found) or missing for a in body.arguments], path, ())
            return [inside[v] for _, v in body.outputs]
        if self.inline and isinstance(node.op, Repeat) and not node.op.each:
            return self.copies(node, found, path)
        made, ends = self.control(node, found, path) if isinstance(node.op, Control) else (self.op(node, found), {})
        return [_Made(ends.get(o) or _hash(made, str(k))) for k, o in enumerate(node.outputs)]

    def op(self, node: Node, found: Mapping[Value, _Made]) -> str:
        said = {f.name: repr(getattr(node.op, f.name)) for f in dataclasses.fields(node.op) if f.name not in SAID_BY_TYPES}
        ports = {p: _hashes(x, found, p == "in" and name_of(node) in COMMUTATIVE) for p, x in node.inputs.items() if x not in (None, ())}
        made = _hash("op", name_of(node), self.renamed(repr(sorted(said.items()))), repr(sorted(ports.items())), self.types(node))
        self.read(node, found, made)
        return made

    def control(self, node: Node, found: Mapping[Value, _Made], path: tuple[Any, ...]) -> tuple[str, dict[str, str]]:
        """A repeat, a branch or a scan: its bodies from arguments that are told by what is given for them and by their part in it. Of a
        repeat also the hashes of what its last copy gives."""
        op = node.op
        inner, orders = [], []
        chained = isinstance(op, Repeat) and not op.each
        for k, body in enumerate(op.bodies):
            needed = live(body)
            read = {v.output for n in body.nodes if n.id in needed for v in n.values if v.node == ARGUMENT}
            read |= {v.output for _, v in body.outputs if v.node == ARGUMENT}
            order = {a: i for i, a in enumerate(sorted(read))}
            orders.append({a.name: order.get(i) for i, a in enumerate(body.arguments)})
            given = [_Made(_hash("argument", str(order.get(i)), self.part(op, a.name),
                                 "" if chained and a.name in op.carry else _hashes(node.inputs.get(a.name), found)))
                     for i, a in enumerate(body.arguments)]
            inside = self.region(body, given, (*path, k), ())
            inner.append(_hash(*(inside[v].hash for _, v in body.outputs)))
        outputs = {o: i for i, (o, _) in enumerate(op.bodies[0].outputs)}
        carried = [] if isinstance(op, Branch) else sorted(
            (_hashes(node.inputs.get(a), found), outputs[o], str(orders[0].get(a))) for a, o in op.carry.items())
        route = [_hashes(x, found) for p, x in sorted(node.inputs.items()) if p.startswith(("route.", "scan."))]
        how = [inner[k] for k in op.schedule] if isinstance(op, Repeat | Branch) else inner
        rest = [repr(getattr(op, n, None)) for n in ("share", "axis", "length", "backward", "route")]
        made = _hash(type(op).__name__, *how, repr(carried), *route, *rest, self.renamed(str(getattr(op, "extent", ""))), self.types(node))
        self.read(node, found, made)
        return made, self.chain(node, found, how, orders[0]) if chained else {}

    def copies(self, node: Node, found: Mapping[Value, _Made], path: tuple[Any, ...]) -> list[_Made]:
        """A stack as its copies one after the other."""
        op, missing = node.op, _Made(_hash("absent"))
        state = {a.name: _given(node.inputs.get(a.name), found) or missing for a in op.bodies[0].arguments}
        every: dict[str, list[str]] = {}
        given: dict[str, _Made] = {}
        for k, body in enumerate(op.schedule):
            region = op.bodies[body]
            inside = self.region(region, [state[a.name] for a in region.arguments], (*path, op.share[k]), ())
            given = {o: inside[v] for o, v in region.outputs}
            state |= {a: given[o] for a, o in op.carry.items()}
            for o, made in given.items():
                every.setdefault(f"all.{o}", []).append(made.hash)
        return [given[o] if o in given else _Made(_hash("all", *every[o])) for o in node.outputs]

    def chain(self, node: Node, found: Mapping[Value, _Made], how: list[str], order: Mapping[str, int | None]) -> dict[str, str]:
        """What the last copy of a repeat gives, copy after copy, so that a stack is the same as its halves one after the other."""
        op = node.op
        carried = sorted(op.carry, key=lambda a: str(order.get(a)))
        state = {a: _hashes(node.inputs.get(a), found) for a in carried}
        given: dict[str, str] = {}
        for k, body in enumerate(how):
            made = _hash("copy", body, *(state[a] for a in carried), str(k - op.share[k]))
            given = {o: _hash(made, str(i)) for i, (o, _) in enumerate(op.bodies[0].outputs)}
            state = {a: given[op.carry[a]] for a in carried}
        return given

    def part(self, op: Any, argument: str) -> str:
        """Whether an argument is carried, or which elements the copies take of it."""
        each = op.each.get(argument) if isinstance(op, Repeat | Branch) else argument in op.each
        return f"{'carried' if argument in op.carry else ''} {each}"

    def read(self, node: Node, found: Mapping[Value, _Made], made: str) -> None:
        """Note the parameters that a node reads."""
        for port, given in node.inputs.items():
            for k, v in enumerate(given if isinstance(given, tuple) else () if given is None else (given,)):
                if (parameter := found[v].parameter) is not None:
                    place = "" if name_of(node) in COMMUTATIVE else str(k)
                    self.uses.setdefault(parameter, []).append(_hash(made, "" if isinstance(node.op, Control) else port, place))

    def types(self, node: Node) -> str:
        return self.renamed(",".join(map(str, node.types)))

    def renamed(self, text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda m: self.symbols.get(m[0], m[0]), text) if self.symbols else text


def _given(given: Input, found: Mapping[Value, _Made]) -> _Made | None:
    return found[given] if isinstance(given, Value) else None


def _hashes(given: Input, found: Mapping[Value, _Made], any_order: bool = False) -> str:
    if not isinstance(given, tuple):
        return "absent" if given is None else found[given].hash
    made = [found[v].hash for v in given]
    return " ".join(sorted(made) if any_order else made)
