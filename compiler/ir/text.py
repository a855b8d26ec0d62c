"""The canonical printed graph, one line a node, and the two hashes made from it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

from .canonical import canonical
from .dimension import Dim
from .graph import ARGUMENT, Branch, Control, Graph, Input, Node, Region, Repeat, Scan, Value, bodies


def describe(region: Region, margin: bool = False) -> str:
    """The region as text; with `margin`, each line starts with the file and line of its node."""
    lines = list(_lines(region, 0, True))
    wide = max(len(place) for place, _ in lines) if margin else 0
    return "".join(f"{place:>{wide}} {text}\n" if margin else f"{text}\n" for place, text in lines)


def graph_text(graph: Graph, margin: bool = True) -> str:
    """The whole graph: the format of golden tests and bug reports."""
    return f"graph {graph.name}\n" + describe(graph.root, margin)


def structure_hash(graph: Graph) -> str:
    """Hash of the function: names of nodes, blocks and paths do not enter, nor does the order they were written in."""
    return _hash("\n".join(text for _, text in _lines(canonical(graph.root), 0, False)))


def identity_hash(graph: Graph) -> str:
    """Hash of the function and of every name."""
    return _hash("\n".join(text for _, text in _lines(canonical(graph.root), 0, True)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lines(region: Region, depth: int, names: bool) -> Iterator[tuple[str, str]]:
    """(where its node is written, line) of the text; lines that are no node have no place."""
    pad = "  " * depth
    args = ", ".join(f"{a.name if names else f'%{i}'}: {a.type}" for i, a in enumerate(region.arguments))
    yield "", f"{pad}({args})"
    for node in region.nodes:
        yield node.origin.span.place, pad + _node(region, node, names)
        for k, body in enumerate(bodies(node)):
            yield "", f"{pad}  body {k}{' ' + body.name if names else ''}"
            yield from _lines(body, depth + 2, names)
    outs = ", ".join(f"{n + ' = ' if names else ''}{_value(region, v, names)}" for n, v in region.outputs)
    yield "", f"{pad}-> {outs}"


def _node(region: Region, node: Node, names: bool) -> str:
    control = isinstance(node.op, Control)
    keys = _argument_numbers(node) if control and not names else {}
    inputs = ", ".join(f"{keys.get(k, k)}={_input(region, v, names)}" for k, v in node.inputs.items() if v not in (None, ()))
    types = ", ".join(str(t) for t in node.types)
    head = f"{node.name or '.'} = " if names else f"%{node.id} = "
    attributes = _control(node.op, keys) if control else _attributes(node.op)
    title = type(node.op).__name__.lower() if control else node.op.name
    return f"{head}{title}({inputs}){' {' + attributes + '}' if attributes else ''} -> {types}"


def _argument_numbers(node: Node) -> dict[str, str]:
    out: dict[str, str] = {}
    for body in bodies(node):
        for a in body.arguments:
            out.setdefault(a.name, f"%{len(out)}")
    return out


def _input(region: Region, given: Input, names: bool) -> str:
    if isinstance(given, tuple):
        return "[" + ", ".join(_value(region, v, names) for v in given) + "]"
    return "-" if given is None else _value(region, given, names)


def _value(region: Region, value: Value, names: bool) -> str:
    if names:
        return region.label(value) or "."
    return f"%arg{value.output}" if value.node == ARGUMENT else f"%{value.node}" + (f".{value.output}" if value.output else "")


def _attributes(op: Any) -> str:
    shown = []
    for f in dataclasses.fields(op):
        value = getattr(op, f.name)
        if value is not None and (f.default is dataclasses.MISSING or value != f.default):
            shown.append(f"{f.metadata.get('key') or f.name}={_attribute(value)}")
    return ", ".join(shown)


def _attribute(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_attribute(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_attribute(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, Dim) else f"{value!r}" if isinstance(value, float) else str(value)


def _control(op: Any, keys: dict[str, str]) -> str:
    parts = []
    if isinstance(op, Repeat | Branch):
        parts.append(f"copies={runs(op.schedule)}")
        if op.share != tuple(range(len(op.share))):
            parts.append(f"share={runs(op.share)}")
        parts += [f"each {keys.get(k, k)}={'i' if at == tuple(range(len(at))) else list(at)}" for k, at in op.each.items()]
    if isinstance(op, Scan):
        parts.append(f"axis={op.axis}, extent={op.extent}")
        parts += [f"each {keys.get(k, k)}" for k in op.each]
        parts += ["backward"] * op.backward
    if isinstance(op, Repeat | Scan):
        order = {o: i for i, (o, _) in enumerate(op.bodies[0].outputs)}
        parts += [f"carry {keys.get(k, k)}<-{order[o] if keys else o}" for k, o in op.carry.items()]
    return ", ".join(parts)


def runs(numbers: tuple[int, ...]) -> str:
    """`[0]x12` for twelve times 0, `[0,1]x3` for a cycle, else the list."""
    for period in range(1, len(numbers) // 2 + 1):
        if len(numbers) % period == 0 and numbers == numbers[:period] * (len(numbers) // period):
            return f"[{','.join(map(str, numbers[:period]))}]x{len(numbers) // period}"
    return f"[{','.join(map(str, numbers))}]"
