"""`text, [Change] -> text`: a spec edited where it changes, so that comments, order and flow style stay."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ..lang.source import Source
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree, plain
from ..stages.compose import change, walk
from ..stages.parse import parse
from .section import Change

WIDTH = 120
_SENTENCE = re.compile(r"[A-Za-z](?:(?!: | #)[^\n])*[^\s:]")      # plain outside of flow collections
_PLAIN = re.compile(r"(?:[A-Za-z0-9_./+(]|-(?=[\w.]))(?:[^\n,\[\]{}#:&*!|>'\"%@`]|(?<= )\*{1,2}(?= )|(?<=[\w/])[#:&*](?=\w))*(?<! )")


def edited(text: str, tree: Mapping, changes: Iterable[Change]) -> str:
    """The text after the changes; `tree` is what it must say then, and is written anew where the text cannot be edited (it has a
    base, or aliases)."""
    made = text
    start = parse(Source("", text))
    if isinstance(start, Mapping) and _nested(start) and "base" not in start:
        for one in changes:
            made = _edit(made, one)
        made = _wrapped(made)
        if plain(parse(Source("", made))) == plain(tree):
            return made
    return "nnspec: 1\n" + "".join(f"{_key(e.key)}:{value(e.value, 0)}\n" for e in tree if e.key.text != "nnspec")


def _nested(tree: Tree) -> bool:
    """Whether every value stands inside the one that holds it, as without aliases."""
    inner = [e.value for e in tree] if isinstance(tree, Mapping) else list(tree) if isinstance(tree, Sequence) else []
    starts = [e.key.span.start for e in tree] if isinstance(tree, Mapping) else [t.span.start for t in inner]
    inside = all(tree.span.start <= s for s in starts) and all(t.span.stop <= tree.span.stop for t in inner) and starts == sorted(starts)
    return inside and all(i.span.start >= s for i, s in zip(inner, starts, strict=True)) and all(map(_nested, inner))


def _edit(text: str, one: Change) -> str:
    tree = parse(Source("", text))
    assert isinstance(tree, Mapping)
    steps, left, holder, _ = walk(tree, one.path.text)
    if left:
        change(tree, one.what, one.path, one.value)              # raises for a path that is not there
        return _added(text, holder, left, one.value)
    if isinstance(holder, Sequence):
        at = int(steps[-1])
        return _cut(text, holder, at) if one.what == "remove" else _put(text, holder.items[at], one.value)
    assert isinstance(holder, Mapping)
    names = holder.keys()
    if one.what == "remove":
        return _cut(text, holder, names.index(steps[-1]))
    return _set(text, holder.entries[names.index(steps[-1])], one.value, holder.flow)


def _put(text: str, old: Tree, new: Tree) -> str:
    return text[:old.span.start] + flow(new) + text[old.span.stop:]


def _set(text: str, entry: Entry, new: Tree, inline: bool) -> str:
    """Another value under a key, of a flow mapping or a block."""
    colon = text.index(":", entry.key.span.stop) + 1
    stop = max(entry.value.span.stop, colon)
    if isinstance(entry.value, Scalar) and entry.value.span.text and "\n" not in entry.value.span.text and _short(new):
        return text[:entry.value.span.start] + (flow(new) if inline else value(new, 0).lstrip()) + text[entry.value.span.stop:]
    if isinstance(entry.value, Mapping | Sequence) and entry.value.flow and _short(new):
        return _put(text, entry.value, new)
    return text[:colon] + value(new, _column(text, entry.key.span.start)) + text[stop:]


def _short(new: Tree) -> bool:
    return isinstance(new, Scalar) or (len(flow(new)) < WIDTH and new.flow)


def _added(text: str, holder: Tree, key: str, new: Tree) -> str:
    """A new entry, or item, at the end of a collection."""
    last = _items(holder)[-1][1] if _items(holder) else None
    written = f"{_key(Scalar(key, new.span))}:" if isinstance(holder, Mapping) else ""
    assert not isinstance(holder, Scalar)
    if holder.flow:
        at = last if last is not None else holder.span.start + 1
        return text[:at] + (", " if last is not None else "") + (f"{written} " if written else "") + flow(new) + text[at:]
    assert last is not None
    column = _column(text, _items(holder)[0][0])
    lead = column if written else column - 2
    end = text.find("\n", last)
    end = len(text) if end < 0 else end
    line = " " * lead + (f"{written}{value(new, lead)}" if written else f"- {flow(new)}")
    return f"{text[:end]}\n{line}{text[end:]}"


def _cut(text: str, holder: Mapping | Sequence, k: int) -> str:
    """Without entry or item `k`: in a block with its lines and the comments right above it."""
    items = _items(holder)
    start, stop = items[k]
    if holder.flow:
        if k + 1 < len(items):
            return text[:start] + text[items[k + 1][0]:]
        return text[:items[k - 1][1] if k else start] + text[stop:]
    if len(items) == 1:
        before = text[:start].rstrip(" -\n")
        return before + (" {}" if isinstance(holder, Mapping) else " []") + text[stop:]
    first = text.rfind("\n", 0, start) + 1
    indent = text[first:start].replace("-", " ")
    while True:
        above = text.rfind("\n", 0, max(first - 1, 0)) + 1
        if first == 0 or not text[above:first].startswith(f"{indent}#"):
            break
        first = above
    end = text.find("\n", stop)
    return text[:first] + (text[end + 1:] if end >= 0 else "")


def _items(holder: Tree) -> list[tuple[int, int]]:
    """Where each entry or item begins and ends."""
    if isinstance(holder, Mapping):
        return [(e.key.span.start, max(e.value.span.stop, e.key.span.stop + 1)) for e in holder]
    return [(t.span.start, t.span.stop) for t in holder] if isinstance(holder, Sequence) else []


def _column(text: str, at: int) -> int:
    return at - (text.rfind("\n", 0, at) + 1)


# trees as text

def value(tree: Tree, column: int) -> str:
    """What follows the colon of a key in this column: one line, or a block below it."""
    if isinstance(tree, Scalar) and _SENTENCE.fullmatch(tree.text):
        return f" {tree.text}"
    if isinstance(tree, Scalar) or not len(tree) or (len(flow(tree)) + column < WIDTH and (tree.flow or _leaf(tree))):
        return f" {flow(tree)}"
    pad = "\n" + " " * (column + 2)
    if isinstance(tree, Mapping):
        return "".join(f"{pad}{_key(e.key)}:{value(e.value, column + 2)}" for e in tree)
    return "".join(f"{pad}- {flow(item)}" for item in tree)


def _leaf(tree: Mapping | Sequence) -> bool:
    inner = [e.value for e in tree] if isinstance(tree, Mapping) else list(tree)
    return isinstance(tree, Sequence) and all(isinstance(x, Scalar) for x in inner)


def flow(tree: Tree) -> str:
    """A tree on one line."""
    if isinstance(tree, Scalar):
        return _key(tree)
    if isinstance(tree, Sequence):
        return f"[{', '.join(map(flow, tree))}]"
    return f"{{{', '.join(f'{_key(e.key)}: {flow(e.value)}' for e in tree)}}}"


def _key(scalar: Scalar) -> str:
    text = scalar.text
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())


def _wrapped(text: str) -> str:
    """The text with its long flow mappings broken after a comma."""
    out = []
    for line in text.split("\n"):
        brace = re.match(r"( *[^\s{}\[\]#]+: *)\{.*\}$", line)
        while brace and len(line) > WIDTH + 20:
            cut = line.rfind(", ", 0, WIDTH)
            if cut <= len(brace[1]):
                break
            out.append(line[:cut + 1])
            line = " " * (len(brace[1]) + 1) + line[cut + 2:]
        out.append(line)
    return "\n".join(out)
