"""A picture of what changed, as the Mermaid text that forges draw: the nodes of the model and of one copy of each of its repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..report import Outline, Report

MOST = 40                       # nodes of one picture
CLASSES = {"added": "fill:#dafbe1,stroke:#1a7f37,color:#1f2328", "removed": "fill:#ffebe9,stroke:#cf222e,color:#1f2328,stroke-dasharray:4",
           "changed": "fill:#fff8c5,stroke:#9a6700,color:#1f2328"}
SIGNS = {"added": "+ ", "removed": "− ", "changed": "~ ", "": ""}


@dataclass(frozen=True)
class Box:
    """One node: its path, the scope that it is in (the model, or a repeat and one of its bodies), and what it is."""

    path: str
    scope: str
    node: Outline


def mermaid(report: Report) -> str:
    """The picture; empty where there is nothing to draw, or too much."""
    if report.base is None or report.head is None or not report.edits:
        return ""
    ours, theirs = ({b.path: b for b in _boxes(side.outline)} for side in (report.base, report.head))
    touched = {c.where.pattern for e in report.edits for c in e.consequences}
    kinds = {path: _kind(path, ours, theirs, touched) for path in (*ours, *theirs)}
    boxes = [*theirs.values(), *(b for path, b in ours.items() if path not in theirs)]
    if len(boxes) > MOST:
        changed = {b.scope for b in boxes if kinds[b.path]}
        boxes = [b for b in boxes if b.scope in changed or b.path in changed]
    return "" if not 0 < len(boxes) <= MOST or not any(kinds.values()) else "\n".join(_lines(boxes, kinds)) + "\n"


def _boxes(outline: tuple[Outline, ...], scope: str = "", deeper: bool = True) -> Iterator[Box]:
    for node in outline:
        path = node.where.pattern
        yield Box(path, scope, node)
        if deeper and node.children and node.children[0].is_body:
            seen: set[str] = set()
            for body in node.children:
                for inner in _boxes(body.children, path, False):
                    if inner.path not in seen:
                        seen.add(inner.path)
                        yield inner


def _kind(path: str, ours: Mapping[str, Box], theirs: Mapping[str, Box], touched: set[str]) -> str:
    if path not in ours or path not in theirs:
        return "added" if path not in ours else "removed"
    near = bool({path, f"{path}.{{i}}"} & touched)
    held = any(b.scope == path for b in theirs.values())            # its own copies are drawn
    return "changed" if near or (not held and any(t.startswith(f"{path}.") for t in touched)) else ""


def _lines(boxes: list[Box], kinds: Mapping[str, str]) -> Iterator[str]:
    names = {b.path: f"n{k}" for k, b in enumerate(boxes)}
    scopes = {b.scope for b in boxes if b.scope}
    yield "flowchart TB"
    for b in boxes:
        if b.scope:
            continue
        if b.path in scopes:
            yield f"  subgraph {names[b.path]}[\"{_label(b, kinds)}\"]"
            yield from (f"    {names[x.path]}[\"{_label(x, kinds)}\"]" for x in boxes if x.scope == b.path)
            yield "  end"
        else:
            yield f"  {names[b.path]}[\"{_label(b, kinds)}\"]"
    for b in boxes:
        siblings = {x.node.name: names[x.path] for x in boxes if x.scope == b.scope}
        read = dict.fromkeys(r.strip().partition(".")[0] for value in b.node.reads.values() for r in value.split(","))
        yield from (f"  {siblings[r]} --> {names[b.path]}" for r in read if r in siblings and siblings[r] != names[b.path])
    for kind, style in CLASSES.items():
        mine = [names[b.path] for b in boxes if kinds[b.path] == kind]
        if mine:
            yield f"  classDef {kind} {style}"
            yield f"  class {','.join(mine)} {kind}"


def _label(b: Box, kinds: Mapping[str, str]) -> str:
    text = f"{SIGNS[kinds[b.path]]}{b.node.name}: {b.node.what}"
    return "".join(c if c.isalnum() or c in " :_+−~.,()-" else f"#{ord(c)};" for c in text)
