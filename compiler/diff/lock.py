"""The lock file: the facts of a spec, one a line, so that a line diff of it is a diff of the architecture.

It is about as long as one layer, whatever the number of layers, and stands beside its spec as `NAME.nnspec.lock`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ir.graph import Branch, Call, Graph, Region, Repeat, Scan, join
from ..ir.parameters import parameter_table
from ..lang.diagnostic import Diagnostics, diagnostic
from ..lang.source import Source
from ..lang.tree import plain
from ..pipeline import Compiled
from ..stages.parse import parse, read_source
from .compare import common_sizes, side
from .costs import UNITS, facts
from .graphs.matching import body_hash
from .report import Where
from .tree import canonical

VERSION = 1
ENDING = ".nnspec.lock"


@dataclass(frozen=True)
class Lock:
    """A lock file as read: `tensors` by folded path, each with its shape."""

    name: str
    structure: str
    identity: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    state: Mapping[str, str]
    sizes: Mapping[str, int]
    metrics: Mapping[str, int | None]
    tensors: Mapping[Where, tuple[int, ...]]


def lock_path(spec: Path) -> Path:
    """Where the lock file of a spec stands: beside it, or here for a model of the library."""
    return spec.with_name(re.sub(r"(\.nnspec)?\.ya?ml$", "", spec.name) + ENDING)


def lock_text(compiled: Compiled) -> str:
    """The lock file of a spec."""
    return "\n".join(_lines(compiled)) + "\n"


def stale(path: Path, text: str) -> str | None:
    """Why the file is not `text`; None where it says the same. Which version of the tool wrote it does not count."""
    try:
        old = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "there is none"
    except (OSError, UnicodeDecodeError) as wrong:
        return f"it cannot be read: {wrong}"
    strip = lambda t: [x for x in t.splitlines() if not x.startswith("tool:")]  # noqa: E731
    changed = sum(a != b for a, b in zip(strip(old), strip(text), strict=False)) + abs(len(strip(old)) - len(strip(text)))
    return f"it is stale in {changed} line{'s' if changed > 1 else ''}" if changed else None


def _lines(compiled: Compiled) -> Iterator[str]:
    from .. import __version__
    graph = compiled.graph
    me = side(compiled, "")
    sizes = common_sizes([graph], {})
    found = facts(graph, sizes)
    yield "# Facts of a spec, written by `nnspec lock`: do not edit."
    yield f"lock: {VERSION}"
    yield f"tool: nnspec {__version__}"
    yield f"name: {quoted(graph.name)}"
    yield f"spec: {quoted(_spec_hash(compiled))}"
    yield f"structure: {quoted(me.structure)}"
    yield f"identity: {quoted(me.identity)}"
    yield from _section("inputs", _inputs(graph))
    yield from _section("outputs", {n: str(graph.root.type(v)) for n, v in graph.root.outputs})
    yield from _section("state", dict(found.layout))
    yield from _section("sizes", found.sizes)
    yield from _section("numbers", {k: v for k, v in found.metrics.items() if v is not None})
    yield from _section("blocks", dict(_blocks(graph.root, Where(""))))
    table = sorted((str(Where(e.path, e.copies)), f"{e.dtype} {list(e.shape)} x{e.count}") for e in parameter_table(graph))
    yield from _section("tensors", dict(table))


def _section(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}:" if facts else f"{name}: {{}}"
    for key, value in facts.items():
        yield f"  {quoted(key)}: {value if isinstance(value, int) else quoted(value)}"


def quoted(text: str) -> str:
    """A YAML scalar that is that text."""
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*", text) else json.dumps(text, ensure_ascii=False)


def _spec_hash(compiled: Compiled) -> str:
    """Hash of what the spec says, in whatever order and style."""
    tree = canonical(compiled)
    said = plain(tree) if tree is not None else compiled.resolved() or compiled.spec.source.text
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _inputs(graph: Graph) -> dict[str, str]:
    limits = {b.symbol: b.limit for b in graph.bounds}
    out = {}
    for a in graph.root.arguments:
        dims = ", ".join(f"{d} <= {limits[str(d)]}" if str(d) in limits else str(d) for d in a.type.shape)
        out[a.name] = f"{'optional ' if a.type.optional else ''}{a.type.dtype}[{dims}]"
    return out


def _blocks(region: Region, where: Where) -> Iterator[tuple[str, str]]:
    """Every block by its folded path, with its name and the hash of its function."""
    for node in region.nodes:
        here = Where(join(where.pattern, node.name), where.copies)
        op = node.op
        if isinstance(op, Repeat | Branch):
            for k, body in enumerate(op.bodies):
                copies = tuple(i for i, b in enumerate(op.schedule) if b == k)
                inside = Where(join(here.pattern, "{i}"), (*here.copies, copies))
                yield str(inside), f"{body.name} {body_hash(body)[:8]}"
                yield from _blocks(body, inside)
        elif isinstance(op, Call | Scan):
            yield str(here), f"{op.body.name} {body_hash(op.body)[:8]}"
            yield from _blocks(op.body, here)


# reading


def read_lock(path: Path) -> Lock:
    """A lock file. Raises Diagnostics (`bad-lock`, and those of reading YAML)."""
    return parse_lock(read_source(path))


def parse_lock(source: Source) -> Lock:
    """A lock file from its text."""
    found: Any = plain(parse(source))
    if not isinstance(found, dict) or found.get("lock") != str(VERSION):
        raise Diagnostics([diagnostic("bad-lock", f"`{source.name}` is no lock file of version {VERSION}",
                                      help="write it again with `nnspec lock`")])
    try:
        table = {_where(k): _shape(v) for k, v in found["tensors"].items()}
        numbers = {n: int(found["numbers"][n]) if n in found["numbers"] else None for n in UNITS}
        return Lock(found["name"], found["structure"], found["identity"], found["inputs"], found["outputs"], found["state"],
                    {k: int(v) for k, v in found["sizes"].items()}, numbers, table)
    except (KeyError, ValueError, AttributeError, TypeError) as wrong:
        raise Diagnostics([diagnostic("bad-lock", f"`{source.name}` is no whole lock file", note=f"it lacks or breaks {wrong}",
                                      help="write it again with `nnspec lock`")]) from None


def of(compiled: Compiled) -> Lock:
    """The lock of a spec, as if it was written and read."""
    return parse_lock(Source(f"{compiled.graph.name}{ENDING}", lock_text(compiled)))


def _where(text: str) -> Where:
    copies: list[tuple[int, ...]] = []

    def take(found: re.Match[str]) -> str:
        first, dots, rest = found[1].partition("..")
        last, _, step = rest.partition(":")
        copies.append(tuple(range(int(first), int(last) + 1, int(step or 1))) if dots else tuple(map(int, first.split(","))))
        return ".{i}" if found.start() else "{i}"

    return Where(re.sub(r"\[([\d.,:]+)\]", take, text), tuple(copies))


def _shape(text: str) -> tuple[int, ...]:
    inner = re.fullmatch(r"\w+ \[([\d, ]*)\] x\d+", text)
    if not inner:
        raise ValueError(f"`{text}`")
    return tuple(int(n) for n in inner[1].split(",") if n.strip())
