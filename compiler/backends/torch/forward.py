"""The statements of one `forward`: nodes in order, each value under its node's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...ir.dimension import Dim
from ...ir.graph import Branch, Call, Node, Region, Repeat, Scan, TensorType, Value
from ...ir.parameters import is_parameter
from . import control
from .names import reach
from .printer import Printer, Scope, shape_comment
from .regions import constructor, live, lone_op, op_region, owns_all, port_types
from .source import Py, source

if TYPE_CHECKING:
    from .writer import Unit, Writer


class Forward:
    """Writes what `roots` are computed from. `env` says where each value is; a value in `lists` is a Python list of copies."""

    def __init__(self, writer: Writer, region: Region, roots: list[Value], scope: Scope):
        self.writer, self.region, self.scope = writer, region, scope
        self.needed = live(region, roots)
        self.env: dict[Value, Py] = {}
        self.lists: dict[Value, Py] = {}
        self.used = {n.id: frozenset(o for k, o in enumerate(n.outputs) if Value(n.id, k) in self.needed) for n in region.nodes}

    def run(self) -> None:
        for node in self.region.nodes:
            if self.used[node.id] and not is_parameter(node):
                self.emit(node)

    def emit(self, node: Node) -> None:
        if isinstance(node.op, Call):
            self.call(node)
        elif isinstance(node.op, Repeat):
            control.repeat(self, node)
        elif isinstance(node.op, Branch):
            control.branch(self, node)
        elif isinstance(node.op, Scan):
            control.scan(self, node)
        else:
            self.op(node)

    # values

    def define(self, value: Value, place: Py, type: TensorType) -> None:
        self.env[value] = place
        self.scope.tensors.append((place, type))

    def read(self, value: Value) -> Py:
        """Where a value is; copies in a list are stacked when a tensor is asked for."""
        if value not in self.env:
            kind = self.region.type(value)
            name = self.scope.name(f"{self.lists[value]}_stacked")
            self.scope.line(f"{name} = torch.stack({_as_list(self.lists[value])})", shape_comment(kind))
            self.define(value, Py(name), kind)
        return self.env[value]

    def given(self, node: Node, port: str) -> Any:
        value = node.inputs.get(port)
        if isinstance(value, tuple):
            return [self.read(v) for v in value if v in self.needed]
        return None if value is None else self.read(value)

    def name(self, node: Node, output: str) -> str:
        """A new local for an output: the node's name, for the default one."""
        plain = output == node.outputs[0] and node.name
        return self.scope.name(node.name if plain else f"{node.name}_{output}" if node.name else output)

    # nodes

    def op(self, node: Node) -> None:
        if node.name and owns_all(self.region, node) and constructor(self.region, node) is None:
            inner, values = op_region(self.region, node)
            self.assign(node, self.writer.unit(inner, self.used[node.id]), {k: self.read(v) for k, v in values.items()})
            return
        owned = bool(node.name) and owns_all(self.region, node)
        skip = node.op.parameters() if owned else ()
        ports = {p: self.given(node, p) for p in node.inputs if p not in skip}
        t = self.printer(self.region, node, self.used[node.id], reach(node.name))
        before, start = set(self.scope.taken), len(self.scope.lines)
        result = module_result(t, node, ports) if owned else node.op.torch(t, **ports)
        self.bind(node, self.renamed(node, result, before, start))

    def printer(self, region: Region, node: Node, used: frozenset[str], owner: Py, hint: str = "") -> Printer:
        local = hint or node.name.replace(".", "_") or "out"
        return Printer(self.scope, self.writer.helpers, local, port_types(region, node), node.types, used, owner)

    def renamed(self, node: Node, result: Any, before: set[str], start: int) -> Any:
        """The result with locals that the op made for its outputs named after the node, in the lines from `start` too."""
        results = list(result) if isinstance(result, tuple) else [result]
        for k, place in enumerate(results):
            old = source(place)
            fresh = old in self.scope.taken and old not in before and not old.startswith(node.name.replace(".", "_") or "_")
            if fresh and Value(node.id, k) in self.needed and all(source(r) != old for r in results[:k]):
                self.scope.taken.discard(old)
                new = self.name(node, node.outputs[k])
                self.scope.lines[start:] = [re.sub(rf"(?<![.\w]){old}\b(?!=)", new, line) for line in self.scope.lines[start:]]
                results = [Py(re.sub(rf"(?<![.\w]){old}\b(?!=)", new, source(r)), r._level) if isinstance(r, Py) else r for r in results]
        return tuple(results) if isinstance(result, tuple) else results[0]

    def bind(self, node: Node, result: Any) -> None:
        """Give the outputs in use their names; a result that is a name already keeps it."""
        if not isinstance(result, tuple) and len(node.outputs) > 1:
            names = [self.name(node, o) for o in node.outputs]
            self.scope.line(f"{', '.join(names)} = {source(result)}", shape_comment(*node.types))
            result = tuple(map(Py, names))
        for k, place in enumerate(result if isinstance(result, tuple) else (result,)):
            value = Value(node.id, k)
            if value not in self.needed:
                continue
            text = source(place)
            if text.isidentifier() and text not in ("None", "True", "False"):
                self._annotate(text, node.types[k])
            else:
                name = self.name(node, node.outputs[k])
                self.scope.line(f"{name} = {text}", shape_comment(node.types[k]))
                text = name
            self.define(value, Py(text), node.types[k])

    def _annotate(self, name: str, type: TensorType) -> None:
        """A shape comment for the line that an op wrote to name its own result."""
        if self.scope.lines and self.scope.lines[-1].lstrip().startswith(f"{name} = ") and "  # " not in self.scope.lines[-1]:
            self.scope.lines[-1] += f"  # {shape_comment(type)}"

    def call(self, node: Node) -> None:
        unit = self.writer.units(node, self.used[node.id])[0]
        self.assign(node, unit, {a.name: self.given(node, a.name) for a in unit.region.arguments})

    def assign(self, node: Node, unit: Unit, given: Mapping[str, Py]) -> None:
        """One call of a unit whose outputs are the node's."""
        names = [self.name(node, o) for o in unit.outputs]
        kinds = [node.types[node.outputs.index(o)] for o in unit.outputs]
        self.invoke(unit, reach(node.name), given, names, shape_comment(*kinds))
        for o, name, kind in zip(unit.outputs, names, kinds, strict=True):
            self.define(Value(node.id, node.outputs.index(o)), Py(name), kind)

    # units

    def invoke(self, unit: Unit, owner: Py, given: Mapping[str, Py], targets: Sequence[str], comment: str = "") -> None:
        """`targets = owner(...)`: the outputs of one copy of a body."""
        if unit.kind == "op":
            results = self._op_results(unit, owner, given, targets[0])
            if list(targets) != results:
                self.scope.line(f"{', '.join(targets)} = {', '.join(results)}", comment)
            return
        text = str(owner) if unit.kind == "parameter" else f"{owner}({', '.join(self.arguments(unit, given))})"
        self.scope.line(f"{', '.join(targets)} = {text}", comment)

    def _op_results(self, unit: Unit, owner: Py, given: Mapping[str, Py], hint: str) -> list[str]:
        node = lone_op(unit.region)
        assert node is not None
        places = {Value(-1, i): given[a.name] for i, a in enumerate(unit.region.arguments)}
        ports: dict[str, Any] = {}
        for port, value in node.inputs.items():
            if port not in node.op.parameters():
                ports[port] = [places[v] for v in value] if isinstance(value, tuple) else None if value is None else places[value]
        inner = {o: node.outputs[v.output] for o, v in unit.region.outputs}
        t = self.printer(unit.region, node, frozenset(inner[o] for o in unit.outputs), owner, hint)
        result = module_result(t, node, ports)
        if not isinstance(result, tuple):
            return [source(result)]
        return [source(result[dict(unit.region.outputs)[o].output]) for o in unit.outputs]

    def arguments(self, unit: Unit, given: Mapping[str, Py]) -> list[str]:
        """Source of what a class's `forward` is called with, in its order."""
        cls, names = unit.cls, [a.name for a in unit.region.arguments]
        assert cls is not None
        t = Printer(self.scope, self.writer.helpers, "", {}, (), frozenset(), Py("self"))
        needs = [source(t.device if n == "device" else t.dtype if n == "dtype" else t.size(Dim.symbol(unit.symbols[int(n)])))
                 for n in cls.needs]
        return [*(source(given[names[i]]) for i in cls.required), *needs, *(source(given[names[i]]) for i in cls.optional)]

    def same_call(self, unit: Unit) -> Any:
        """Bodies with equal keys are called with the same source."""
        if unit.kind == "op":
            node = lone_op(unit.region)
            assert node is not None
            return (type(node.op), tuple(a.name for a in unit.region.arguments), unit.outputs,
                    str(node.op) if hasattr(node.op, "module_call") else "")
        if unit.cls is None:
            return unit.outputs
        names = [unit.region.arguments[i].name for i in (*unit.cls.required, *unit.cls.optional)]
        needs = [n if isinstance(n, str) else unit.symbols[n] for n in unit.cls.needs]
        return (tuple(names), tuple(needs), len(unit.cls.required), unit.outputs)


def module_result(t: Printer, node: Node, ports: Mapping[str, Any]) -> Any:
    """The result of an op whose module is `t.owner`."""
    own = getattr(node.op, "module_call", None)
    if own is not None:
        return own(t, t.owner, **ports)
    return t.owner(*(p for p in ports.values() if p is not None))


def _as_list(place: Py) -> str:
    text = str(place)
    return text if text.isidentifier() else f"tuple({text})"
