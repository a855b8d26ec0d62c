"""What a class holds: the statements of `__init__` and `reset_parameters` for a region's parameters and bodies."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ir.graph import Branch, Node, Region, Repeat, Value, join
from ...ir.parameters import is_parameter
from . import initial
from .names import hold, reach
from .regions import constructor, is_control, op_region, own_parameters, owns_all
from .source import Py

if TYPE_CHECKING:
    from .writer import Unit, Writer


@dataclass
class State:
    """Statements that make what a region holds, by path; parameters that start in their own way; where values come from."""

    made: list[tuple[str, str]] = field(default_factory=list)
    starts: list[tuple[Py, tuple[str, str]]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)            # statements that start parameters in containers
    frozen: list[Py] = field(default_factory=list)
    sources: list[Node] = field(default_factory=list)        # parameters whose initial value is computed

    def lines(self, existing: set[str]) -> list[str]:
        """The statements, outer paths first; a path below nothing gets plain modules to lie in."""
        lines: list[str] = []
        there, plain = set(existing), set()
        for path, text in sorted(self.made, key=lambda item: item[0].count(".")):
            parts = path.split(".")
            for k in range(1, len(parts)):
                outer = ".".join(parts[:k])
                if outer not in there:
                    there.add(outer)
                    plain.add(outer)
                    copies = [int(m[1]) for p, _ in self.made if (m := re.match(rf"{re.escape(outer)}\.(\d+)(?:\.|$)", p))]
                    made = f"nn.ModuleList(nn.Module() for _ in range({max(copies) + 1}))" if copies else "nn.Module()"
                    there |= {f"{outer}.{i}" for i in range(max(copies, default=-1) + 1)}
                    lines.append(hold(outer, made))
            there.add(path)
            if "." in path and path.rpartition(".")[0] not in plain:
                lines.append("# read by `forward` below, once for all steps")
            lines.append(text)
        return lines + [f"{p}.requires_grad_(False)" for p in self.frozen]


def state(writer: Writer, region: Region, used: dict[int, frozenset[str]]) -> State:
    """The state of a region's class; `used` are the outputs in use of each node, by id."""
    out = State()
    owned: set[int] = set()
    for node in region.nodes:
        if is_control(node):
            _control(out, writer, node, used[node.id])
        elif node.name and owns_all(region, node):
            owned |= {p.id for p in own_parameters(region, node).values()}
            _module(out, writer, region, node, used[node.id])
    for node in region.nodes:
        if is_parameter(node) and node.id not in owned:
            _parameter(out, region, node)
    return out


def _module(out: State, writer: Writer, region: Region, node: Node, used: frozenset[str]) -> None:
    """An op with parameters of its own: a module of torch, or a class of ours."""
    made = constructor(region, node)
    if made is None:
        inner, _ = op_region(region, node)
        out.made.append((node.name, hold(node.name, writer.unit(inner, used).constructor)))
        return
    out.made.append((node.name, hold(node.name, str(made))))
    for port, p in own_parameters(region, node).items():
        where = reach(p.name, parameter=True)
        if not initial.torch_does(str(made), port, p.op.start, tuple(d.value or 0 for d in p.types[0].shape), node.op):
            out.starts.append((where, initial.fill(p.op.start, initial.fan_in(region, p))))
        if not p.op.trainable:
            out.frozen.append(where)


def plain_parameter(node: Node) -> str:
    """Constructor of a parameter that `reset_parameters` fills."""
    shape = ", ".join(str(d.value) for d in node.types[0].shape)
    return f"nn.Parameter(torch.empty({shape or '()'}){'' if node.op.trainable else ', requires_grad=False'})"


def _parameter(out: State, region: Region, node: Node) -> None:
    out.made.append((node.name, hold(node.name, plain_parameter(node), parameter=True)))
    if node.inputs.get("init") is not None:
        out.sources.append(node)
    else:
        where = reach(node.name, parameter=True)
        out.starts.append((where, initial.fill(node.op.start, initial.fan_in(region, node))))


def _control(out: State, writer: Writer, node: Node, used: frozenset[str]) -> None:
    op = node.op
    units = writer.units(node, used)
    text = copies(op, units) if isinstance(op, Repeat | Branch) else units[0].constructor
    out.made.append((node.name, hold(node.name, text)))
    if isinstance(op, Repeat | Branch) and any(u.kind == "parameter" for u in units):
        out.loops += _parameter_copies(op, reach(node.name))


def _parameter_copies(op: Repeat | Branch, container: Py) -> list[str]:
    """Statements that start the parameters which are copies themselves."""
    how = {i: initial.fill(op.bodies[op.schedule[i]].nodes[0].op.start, op.bodies[op.schedule[i]].nodes[0].types[0].shape[-1].value or 1)
           for i in op.owners}
    listed = op.owners == tuple(range(len(op.owners)))
    if len(set(how.values())) == 1:
        name, arguments = how[op.owners[0]]
        values = container if listed else container.values()
        return [f"for parameter in {values}:", f"    nn.init.{name}(parameter{', ' if arguments else ''}{arguments})"]
    return initial.fills([(container[i if listed else str(i)], text) for i, text in how.items()])


def copies(op: Repeat | Branch, units: list[Unit]) -> str:
    """Constructor of the container that holds the copies which own parameters."""
    owners = op.owners
    kinds = [units[op.schedule[i]].constructor for i in owners]
    parameters = all(units[op.schedule[i]].kind == "parameter" for i in owners)
    if owners != tuple(range(len(owners))):
        name = "nn.ParameterDict" if parameters else "nn.ModuleDict"
        if len(set(kinds)) == 1:
            return f"{name}({{str(i): {kinds[0]} for i in {span(owners)}}})"
        items = ", ".join(f'"{i}": {k}' for i, k in zip(owners, kinds, strict=True))
        return f"{name}({{{items}}})"
    return f"{'nn.ParameterList' if parameters else 'nn.ModuleList'}({_listed(kinds)})"


def span(numbers: tuple[int, ...]) -> str:
    """`range(0, 12, 4)`, or the tuple."""
    if len(numbers) > 2:
        step = numbers[1] - numbers[0]
        if step > 0 and numbers == tuple(range(numbers[0], numbers[-1] + 1, step)):
            return f"range({numbers[0]}, {numbers[-1] + 1}, {step})"
    return f"({', '.join(map(str, numbers))}{',' if len(numbers) == 1 else ''})"


def _listed(kinds: list[str]) -> str:
    n = len(kinds)
    if len(set(kinds)) == 1:
        return f"[{kinds[0]}]" if n == 1 else f"{kinds[0]} for _ in range({n})"
    period = next((p for p in range(2, min(n // 2, 8) + 1) if all(kinds[i] == kinds[i % p] for i in range(n))), None)
    if period and all(k.endswith("()") for k in kinds):
        return f"({', '.join(k[:-2] for k in kinds[:period])})[i % {period}]() for i in range({n})"
    runs: list[tuple[str, int]] = []
    for kind in kinds:
        runs = [*runs[:-1], (kind, runs[-1][1] + 1)] if runs and runs[-1][0] == kind else [*runs, (kind, 1)]
    return f"[{', '.join(k if c == 1 else f'*({k} for _ in range({c}))' for k, c in runs)}]"


def module_paths(region: Region, path: str = "") -> set[str]:
    """Paths of every module that the class of a region makes, to know what a moved node can lie in."""
    out = set()
    for node in region.nodes:
        here = join(path, node.name)
        if is_control(node) or (node.name and owns_all(region, node)):
            out.add(here)
        if is_control(node) and not isinstance(node.op, Repeat | Branch):
            out |= module_paths(node.op.body, here)
    return out


def inside(region: Region) -> set[str]:
    """Modules that lie deeper than a region's own attributes, made by the classes of its bodies."""
    return {p for n in region.nodes if is_control(n) and not isinstance(n.op, Repeat | Branch) for p in module_paths(n.op.body, n.name)}


def parameter_values(region: Region) -> dict[Value, Py]:
    """Where `forward` reads each parameter."""
    return {Value(n.id): reach(n.name, parameter=True) for n in region.nodes if is_parameter(n) and n.name}
