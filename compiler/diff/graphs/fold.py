"""Copies told once: the same change at copies of one pattern becomes one with all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from ..report import Consequence, TensorChange, Where

Copies = tuple[tuple[int, ...], ...]


def fold_findings(findings: Iterable[Consequence]) -> list[Consequence]:
    """The findings with copies folded, in the order in which they came."""
    kept: dict[Hashable, list[Consequence]] = {}
    for f in findings:
        kept.setdefault((f.rule, f.where.pattern, repr(f.before), repr(f.after), f.note), []).append(f)
    return [replace(same[0], where=Where(same[0].where.pattern, copies))
            for same in kept.values() for copies in _merged([f.where.copies for f in same])]


def fold_tensors(rows: Iterable[TensorChange]) -> list[TensorChange]:
    """The rows with copies folded; those of both sides stay beside each other."""
    kept: dict[Hashable, list[TensorChange]] = {}
    for r in rows:
        if r.count:
            kept.setdefault((r.status, r.base and r.base.pattern, r.head and r.head.pattern, r.before, r.after), []).append(r)
    out = []
    for same in kept.values():
        if len(same) == 1 or any(r.base is not None and r.head is not None and r.base != r.head for r in same):
            out += same
            continue
        sides = [(r.head or r.base or Where("")).copies for r in same]
        for copies in _merged(sides):
            base, head = (w and Where(w.pattern, copies) for w in (same[0].base, same[0].head))
            out.append(replace(same[0], base=base, head=head))
    return out


def _merged(sets: list[Copies]) -> list[Copies]:
    """Sets of copies that differ in one level are one set."""
    out: list[Copies] = []
    for copies in sets:
        for k, other in enumerate(out):
            level = _one_level(other, copies)
            if level is not None:
                out[k] = (*other[:level], tuple(sorted({*other[level], *copies[level]})), *other[level + 1:])
                break
        else:
            out.append(copies)
    return out


def _one_level(a: Copies, b: Copies) -> int | None:
    """The only level in which two sets differ; the last where they are equal."""
    if len(a) != len(b) or not a:
        return None
    levels = [k for k in range(len(a)) if a[k] != b[k]]
    return levels[0] if len(levels) == 1 and not set(a[levels[0]]) & set(b[levels[0]]) else None
