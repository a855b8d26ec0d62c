"""What `nnspec explain NAME` prints of an op or a library block: its ports, attributes or settings, slots and outputs."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator

from .lang.tree import Mapping, Scalar
from .library import BLOCKS
from .ops.base import Op
from .ops.registry import OPS
from .stages.parse import load

WIDTH = 100


def blocks() -> dict[str, tuple[str, Mapping]]:
    """Every library block: name -> the file that `use:` names, and the block as written."""
    found = {}
    for path in sorted(BLOCKS.glob("*.yaml")):
        tree = load(path)[1].get("blocks")
        for entry in tree if isinstance(tree, Mapping) else ():
            if isinstance(entry.value, Mapping):
                found[entry.key.text] = (path.stem, entry.value)
    return found


def names() -> list[str]:
    return [*OPS, *blocks()]


def describe(name: str) -> str | None:
    """The reference of an op or a block, of both where they share a name; None when there is none of that name."""
    block = blocks().get(name)
    found = [*([_op(OPS[name])] if name in OPS else []), *([_block(name, *block)] if block else [])]
    return "\n".join("\n".join(lines) + "\n" for lines in found) or None


def _op(cls: type[Op]) -> Iterator[str]:
    yield f"{cls.name} (op)"
    yield from _wrap(inspect.cleandoc(cls.__doc__ or ""))
    yield ""
    yield from _wrap(cls.signature)
    ports = cls.ports().items()
    yield from _table("ports", [(p, "list of values" if p in cls.variadic else "value", "optional" if o else "", "") for p, o in ports])
    fields = [(f.metadata["key"] or n, f) for n, f in cls.attributes().items() if f.metadata and f.metadata["kind"] != "open"]
    rows = [(n, f.metadata["kind"].replace("|", " | "), _default(f.default), f.metadata["doc"]) for n, f in fields]
    yield from _table("attributes", rows)
    if cls.open_attributes:
        yield from _wrap("further keys are sizes of the axes that `as` names")


def _block(name: str, file: str, block: Mapping) -> Iterator[str]:
    yield f"{name} (block, use: [{file}])"
    about = block.get("about")
    yield from _wrap(" ".join(about.text.split()) if isinstance(about, Scalar) else "")
    for section in ("inputs", "settings", "slots"):
        held = block.get(section)
        rows = [(e.key.text, e.value.text, "", "") for e in held if isinstance(e.value, Scalar)] if isinstance(held, Mapping) else []
        yield from _table(section, rows)
    outputs = block.get("outputs")
    graph = block.get("graph")
    last = graph.keys()[-1:] if isinstance(graph, Mapping) else []
    yield from _table("outputs", [(n, "", "", "") for n in (outputs.keys() if isinstance(outputs, Mapping) else last)])


def _default(value: object) -> str:
    return "optional" if value is None else f"= {str(value).lower() if isinstance(value, bool) else value}" if isinstance(
        value, str | int | float | tuple) else "required"


def _wrap(text: str) -> list[str]:
    parts = re.split(r"\n\n|\n(?=- )", text)
    return [f"  {line}" for part in parts for line in textwrap.wrap(" ".join(part.split()), WIDTH - 2)]


def _table(title: str, rows: Iterable[tuple[str, str, str, str]]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        return
    yield f"  {title}"
    wide = [max(len(r[k]) for r in rows) for k in range(3)]
    for name, kind, default, doc in rows:
        head = f"    {name:<{wide[0]}}  {kind:<{wide[1]}}  {default:<{wide[2]}}"
        yield from textwrap.wrap(f"{head}  {doc}".rstrip(), WIDTH, subsequent_indent=" " * min(len(head) + 2, 60), drop_whitespace=True,
                                 initial_indent="", break_long_words=False, replace_whitespace=False) or [head]
