"""Nodes that moved into a block or out of one: the rules see some go and others come, and the function is the same."""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph
from .function import moved_tensors, same_function
from .regions import Found
from .report import Consequence, TensorChange
from .rules import RULES


def without_moves(found: Found, a: Graph, b: Graph) -> Found:
    """What a comparison found, told as moves where all that went came back elsewhere."""
    come, gone = ([f for f in found.findings if f.rule.endswith(end)] for end in (".added", ".removed"))
    rules = {f.rule for f in found.findings if RULES[f.rule].effect == "function"}
    if not (come and gone or rules & {"node.swapped", "block.swapped"}) or not same_function(a, b):
        return found
    there, here = come or found.findings, gone or found.findings
    moved = Consequence("node.moved", there[0].where, str(here[0].where), str(there[0].where), "the same nodes, in another block")
    left = [f for f in found.findings if RULES[f.rule].effect != "function"]
    return replace(found, findings=[moved, *left], tensors=_renamed(found.tensors, moved_tensors(a, b)))


def _renamed(rows: list[TensorChange], names: dict[str, str]) -> list[TensorChange]:
    """The rows with what was dropped and is new under another path as renamed."""
    dropped = {(r.base.pattern, r.base.copies, r.before): r for r in rows if r.status == "dropped" and r.base is not None}
    out = []
    for r in rows:
        here = r.head if r.status == "new" else None
        old = dropped.pop((names.get(here.pattern, ""), here.copies, r.after), None) if here is not None else None
        out.append(replace(r, status="renamed", base=old.base, before=old.before) if old else r)
    used = {id(r) for r in rows if r.status == "dropped"} - {id(r) for r in dropped.values()}
    return [r for r in out if id(r) not in used]
