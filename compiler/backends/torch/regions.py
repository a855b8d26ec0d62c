"""What the backend asks of a region: which values are needed, which nodes own modules, what a body alone amounts to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...ir.flat import op_name
from ...ir.graph import ARGUMENT, Argument, Control, Node, Region, TensorType, Value, bodies, join
from ...ir.parameters import is_parameter
from ...ir.text import describe
from .printer import Printer, Scope
from .source import Py

Types = dict[str, "TensorType | tuple[TensorType, ...] | None"]


def is_control(node: Node) -> bool:
    return isinstance(node.op, Control)


def live(region: Region, roots: Iterable[Value]) -> set[Value]:
    """The values that `roots` are computed from, with them. A parameter's initial value is not among its inputs here."""
    needed = set(roots)
    for node in reversed(region.nodes):
        if not is_parameter(node) and any(Value(node.id, k) in needed for k in range(len(node.outputs))):
            needed.update(reads(node))
    return needed


def reads(node: Node) -> tuple[Value, ...]:
    """The values that its statement reads; `first_of` chose among its own when the block was used."""
    return tuple(node.values)[:1 if op_name(node) == "first_of" else None]


def port_types(region: Region, node: Node) -> Types:
    """Types of every port of an op node."""
    return region.port_types(node.inputs)


def own_parameters(region: Region, node: Node) -> dict[str, Node]:
    """Port -> parameter node, for the parameters that were made for this op node."""
    found = {}
    for port in node.op.parameters():
        given = node.inputs.get(port)
        if isinstance(given, Value) and given.node != ARGUMENT:
            maker = region.nodes[given.node]
            if is_parameter(maker) and maker.name == join(node.name, port):
                found[port] = maker
    return found


def owns_all(region: Region, node: Node) -> bool:
    """Whether an op has parameters and all of them are its own."""
    return not is_control(node) and not is_parameter(node) and 0 < len(own_parameters(region, node)) == len(node.op.parameters())


def constructor(region: Region, node: Node) -> Py | None:
    """Source of the nn.Module for an op that owns all its parameters; None where there is no such module."""
    if not owns_all(region, node):
        return None
    types = port_types(region, node)
    t = Printer(Scope(), {}, node.name, types, node.types, frozenset(node.outputs), Py("self"))
    return node.op.module(t, types)


def lone_op(region: Region) -> Node | None:
    """The op that a region consists of, beside its parameters: the body of `repeat: n, op: x`."""
    ops = [n for n in region.nodes if not is_parameter(n)]
    if len(ops) != 1 or ops[0].name or is_control(ops[0]):
        return None
    return ops[0] if all(v.node == ops[0].id for _, v in region.outputs) else None


def lone_parameter(region: Region) -> Node | None:
    """The parameter that a region consists of: the body of `branch: n, op: parameter`."""
    if len(region.nodes) == 1 and is_parameter(region.nodes[0]) and not region.nodes[0].name and not region.arguments:
        return region.nodes[0]
    return None


def op_region(region: Region, node: Node) -> tuple[Region, dict[str, Value]]:
    """An op and its parameters as a region of their own, and the values for its arguments."""
    own = own_parameters(region, node)
    arguments: list[Argument] = []
    given: dict[str, Value] = {}
    nodes = [replace(p, id=k, name=port) for k, (port, p) in enumerate(own.items())]
    inside: dict[str, Any] = {port: Value(k) for k, port in enumerate(own)}

    def enter(name: str, value: Value) -> Value:
        arguments.append(Argument(name, region.type(value)))
        given[name] = value
        return Value(ARGUMENT, len(arguments) - 1)

    for port, value in node.inputs.items():
        if port not in own:
            inside[port] = (tuple(enter(f"{port}_{k}", v) for k, v in enumerate(value)) if isinstance(value, tuple)
                            else None if value is None else enter(port, value))
    nodes.append(replace(node, id=len(nodes), name="", inputs=inside))
    outputs = tuple((o, Value(len(nodes) - 1, k)) for k, o in enumerate(node.outputs))
    about = " ".join((type(node.op).__doc__ or "").split("\n\n")[0].split())
    return Region(node.op.name, tuple(arguments), tuple(nodes), outputs, node.origin, about), given


def symbols(region: Region) -> tuple[str, ...]:
    """The free dimensions of a region in the order of their first appearance in its text."""
    found = {s for a in region.arguments for d in a.type.shape for s in d.symbols()}
    stack = [region]
    while stack:
        for node in stack.pop().nodes:
            found |= {s for t in node.types for d in t.shape for s in d.symbols()}
            stack.extend(bodies(node))
    text = describe(region)
    places = {s: m.start() for s in found if (m := re.search(rf"\b{re.escape(s)}\b", text))}
    return tuple(sorted(found, key=lambda s: (places.get(s, len(text)), s)))


def shape_text(region: Region, names: Mapping[str, str] | tuple[str, ...]) -> str:
    """The canonical text with free dimensions numbered, so that blocks that differ in their names alone are one."""
    text = describe(region)
    order = {s: f"${k}" for k, s in enumerate(names)}
    if not order:
        return text
    return re.sub(rf"\b(?:{'|'.join(map(re.escape, order))})\b", lambda m: order[m.group()], text)
