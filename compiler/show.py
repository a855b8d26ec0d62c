"""What `nnspec show` prints: the interface, the exact parameter count, and the folded tree of the graph."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .ir.graph import Branch, Call, Graph, Node, Region, Repeat, Scan
from .ir.parameters import is_parameter
from .ir.paths import longest_path
from .ir.signature import spell
from .ir.text import identity_hash, structure_hash
from .printing import size


@dataclass(frozen=True)
class Row:
    """One line of the tree."""

    depth: int
    name: str
    what: str
    shape: str
    parameters: int


def show(graph: Graph, count: int, depth: int | None = None, width: int = 100) -> str:
    """The whole report as text, at most `width` columns."""
    lines = [graph.name]
    if graph.about:
        lines += ["  " + line for line in textwrap.wrap(graph.about, width - 2)]
    lines += ["", *_interface(graph), ""]
    lines += [f"  parameters  {count:,}   ({size(count * 4)} in float32, {size(count * 2)} in float16)",
              f"  depth       {longest_path(graph.root):,} ops on the longest path",
              f"  hashes      structure {structure_hash(graph)}, identity {identity_hash(graph)}", ""]
    return "\n".join([*lines, *_table(list(rows(graph.root, depth)), width)]) + "\n"


def _interface(graph: Graph) -> Iterator[str]:
    limits = {b.symbol: b.limit for b in graph.bounds}
    for k, a in enumerate(graph.root.arguments):
        dims = ", ".join(f"{d} <= {limits[str(d)]}" if str(d) in limits else str(d) for d in a.type.shape)
        text = f"{'optional ' if a.type.optional else ''}{a.type.dtype}[{dims}]"
        yield f"  {'inputs' if k == 0 else '':10}  {a.name}: {text}"
    for k, (name, value) in enumerate(graph.root.outputs):
        yield f"  {'outputs' if k == 0 else '':10}  {name}: {graph.root.type(value)}"


def rows(region: Region, depth: int | None, level: int = 0) -> Iterator[Row]:
    """The tree, one row a node; parameters stand with the op that owns them."""
    owned = {n.name: n for n in region.nodes if is_parameter(n)}
    for node in region.nodes:
        if is_parameter(node) and node.name.rpartition(".")[0] in {n.name for n in region.nodes}:
            continue
        own = sum(_size(p) for name, p in owned.items() if name.rpartition(".")[0] == node.name and p is not node)
        own += _size(node) if is_parameter(node) else 0
        yield Row(level, node.name or "(each)", _what(node), spell(node.types[0].shape), own + total(node))
        if depth is None or level + 1 < depth:
            yield from _inside(node, depth, level)


def _inside(node: Node, depth: int | None, level: int) -> Iterator[Row]:
    op = node.op
    if isinstance(op, Call | Scan):
        yield from rows(op.body, depth, level + 1)
    elif isinstance(op, Repeat | Branch):
        for k, body in enumerate(op.bodies):
            if len(op.bodies) > 1:
                copies = [i for i, b in enumerate(op.schedule) if b == k]
                yield Row(level + 1, f"[{ranges(copies)}]", body.name, "", _region_total(body))
                yield from rows(body, depth, level + 2)
            else:
                yield from rows(body, depth, level + 1)


def _what(node: Node) -> str:
    op = node.op
    if isinstance(op, Call):
        return op.body.name
    if isinstance(op, Scan):
        return f"scan of {op.body.name} along {op.extent}{', backward' if op.backward else ''}"
    if isinstance(op, Repeat | Branch):
        names = " | ".join(dict.fromkeys(b.name for b in op.bodies))
        shared = f", {len(op.owners)} sets of parameters" if len(op.owners) != len(op.schedule) else ""
        word = "x" if isinstance(op, Repeat) else "|| "
        return f"{word}{len(op.schedule)} {names}{shared}"
    return str(op.name)


def _size(node: Node) -> int:
    return prod(d.value or 0 for d in node.types[0].shape)


def _region_total(region: Region) -> int:
    return sum(_size(n) if is_parameter(n) else total(n) for n in region.nodes)


def total(node: Node) -> int:
    """Parameters inside a control node, each owned copy counted once."""
    op = node.op
    if isinstance(op, Call | Scan):
        return _region_total(op.body)
    if isinstance(op, Repeat | Branch):
        sizes = [_region_total(b) for b in op.bodies]
        return sum(sizes[op.schedule[i]] for i in op.owners)
    return 0


def ranges(numbers: list[int]) -> str:
    """`0..11`, `1..11:2` or `0, 3, 4`."""
    if len(numbers) > 2:
        step = numbers[1] - numbers[0]
        if all(b - a == step for a, b in zip(numbers, numbers[1:], strict=False)):
            return f"{numbers[0]}..{numbers[-1]}" + (f":{step}" if step != 1 else "")
    return ", ".join(map(str, numbers))


def _table(found: list[Row], width: int) -> list[str]:
    cells = [("  " * r.depth + r.name, r.what, r.shape, f"{r.parameters:,}" if r.parameters else "") for r in found]
    wide = [max((len(c[i]) for c in cells), default=0) for i in range(4)]
    room = width - 2 - wide[3] - 6
    wide[0] = min(wide[0], room * 4 // 10)
    wide[1] = min(wide[1], room * 4 // 10)
    wide[2] = min(wide[2], room - wide[0] - wide[1])
    clip = lambda text, n: text if len(text) <= n else text[: n - 1] + "…"  # noqa: E731
    return [("  " + "  ".join([*(f"{clip(c[i], wide[i]):{wide[i]}}" for i in range(3)), f"{c[3]:>{wide[3]}}"])).rstrip() for c in cells]

