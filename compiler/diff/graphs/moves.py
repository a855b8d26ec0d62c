"""Nodes that moved into a block or out of one: the rules see some go and others come, and the function is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...ir.graph import Graph
from ..report import Consequence, TensorChange, Where
from ..rules import RULES
from .function import moved_tensors, same_function
from .regions import UNSURE, Found


def without_moves(found: Found, a: Graph, b: Graph) -> Found:
    """What a comparison found; where the function is the same for all that, what changed it is told as nodes that moved."""
    changing = [f for f in found.findings if RULES[f.rule].effect == "function"]
    if not changing and all(f.rule != "node.moved" for f in found.findings) or not same_function(a, b):
        return found
    names = moved_tensors(a, b)
    rows = _renamed(found.tensors, names)
    moved = [f for f in found.findings if f.rule == "node.moved"]
    if not moved or any(f.note.endswith(UNSURE) for f in moved):                # tensors say which of equal ones is which
        moved = list(_moves(rows)) or moved
    moved = [replace(f, note=f"`{f.before}` is `{f.after}` now") for f in moved] or \
        [replace(changing[0], rule="node.moved", before=None, after=None, note="the same function, written in another way")]
    rest = [f for f in found.findings if RULES[f.rule].effect != "function" and f.rule not in ("node.moved", "node.renamed")]
    return replace(found, findings=[*moved, *rest], tensors=rows)


def _moves(rows: list[TensorChange]) -> Iterator[Consequence]:
    """Where the owners of renamed tensors went, outermost ones that differ."""
    told = set()
    for r in rows:
        if r.status == "renamed" and r.base is not None and r.head is not None and r.base.pattern != r.head.pattern:
            old, new = r.base.pattern.split("."), r.head.pattern.split(".")
            while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
                old, new = old[:-1], new[:-1]
            here, there = (Where(".".join(x), w.copies[:x.count("{i}")]) for x, w in ((old, r.base), (new, r.head)))
            if (here, there) not in told:
                told.add((here, there))
                rule = "node.renamed" if old[:-1] == new[:-1] else "node.moved"
                yield Consequence(rule, there, str(here), str(there), f"`{here}` is `{there}` now")


def _renamed(rows: list[TensorChange], names: dict[str, str]) -> list[TensorChange]:
    """The rows, with every tensor that has the place of another (`names`, new to old) as that one renamed."""
    ours = {(r.base, r.before): r for r in rows if r.base is not None}
    wanted: dict[int, TensorChange] = {}
    for r in rows:
        old = names.get(r.head.pattern) if r.head is not None else None
        if r.head is not None and old is not None and (one := ours.get((Where(old, r.head.copies), r.after))) is not None:
            wanted[id(r)] = one
    taken = {id(one) for one in wanted.values()}
    out = []
    for r in rows:
        if (one := wanted.get(id(r))) is not None and r.head is not None:
            out.append(replace(r, status="kept" if one.base == r.head else "renamed", base=one.base, before=one.before))
        elif id(r) not in taken:
            out.append(r)
        elif r.head is not None:
            out.append(replace(r, status="new", base=None, before=None))
    return out + [TensorChange("dropped", r.base, None, r.before, None) for r in rows
                  if id(r) in wanted and wanted[id(r)] is not r and r.base is not None and id(r) not in taken]


def followed(rows: list[TensorChange], steps: Iterable[Iterable[TensorChange]]) -> list[TensorChange]:
    """The rows of a whole comparison, with tensors that the rows of its steps, one after the other, give other paths."""
    names: dict[Where, Where] = {}
    for step in steps:
        here = {t.head: t.base for t in step if t.head and t.base and t.head.pattern != t.base.pattern}
        gone = set(here.values())
        names = {n: o for n, o in names.items() if n not in gone} | {n: names.get(o, o) for n, o in here.items()}
    for new, old in names.items():
        rows = _one(rows, old, new)
    return rows


def _one(rows: list[TensorChange], old: Where, new: Where) -> list[TensorChange]:
    """The rows where what is dropped at one path and new at another is one tensor; copies that only one side has stay as they are."""
    same = old.copies == new.copies
    gone = next((r for r in rows if r.status == "dropped" and r.base is not None and _at(r.base, old, same)), None)
    come = next((r for r in rows if r.status == "new" and r.head is not None and _at(r.head, new, same)), None)
    if gone is None or come is None or gone.base is None or come.head is None:
        return rows
    ours, theirs = gone.base.copies, come.head.copies
    levels = [k for k, (x, y) in enumerate(zip(ours, theirs, strict=True)) if x != y] if same else []
    if len(levels) > 1:
        return rows
    parts: list[TensorChange] = []
    both = ours, theirs
    for k in levels:
        common = tuple(i for i in ours[k] if i in set(theirs[k]))
        both = (*ours[:k], common, *ours[k + 1:]), (*theirs[:k], common, *theirs[k + 1:])
        left, right = (tuple(i for i in c[k] if i not in common) for c in (ours, theirs))
        parts = [replace(gone, base=Where(gone.base.pattern, (*ours[:k], left, *ours[k + 1:]))),
                 replace(come, head=Where(come.head.pattern, (*theirs[:k], right, *theirs[k + 1:])))]
    status = "renamed" if gone.before == come.after else "reshaped"
    parts.append(TensorChange(status, Where(gone.base.pattern, both[0]), Where(come.head.pattern, both[1]), gone.before, come.after))  # type: ignore[arg-type]
    return [r for r in rows if r is not gone and r is not come] + [p for p in parts if p.count]


def _at(here: Where, there: Where, any_copies: bool) -> bool:
    return here.pattern == there.pattern and (any_copies or here.copies == there.copies)
