"""What `nnspec cost` prints: the costs at one or several sizes, over a sweep, by path; at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from ..printing import columns
from .quantity import positions, short
from .table import Costs, Parts, folded, largest

WIDTH, SHOWN = 100, 30

Row = tuple[str, Callable[[Costs], int | None], str]
ROWS: tuple[Row, ...] = (
    ("parameters", lambda c: c.parameters, ""),
    ("active parameters", lambda c: c.active, ""),
    ("weights", lambda c: c.weight_bytes, "B"),
    ("FLOPs of a pass (prefill)", lambda c: c.flops, ""),
    ("FLOPs a new position (decode)", lambda c: c.decode_flops, ""),
    ("cache a position and row", lambda c: c.cache_position, "B"),
    ("cache", lambda c: c.cache_bytes, "B"),
    ("activations at their peak", lambda c: c.peak.bytes, "B"),
    ("weights + cache + activations", lambda c: c.total_bytes, "B"),
)


def cost_report(name: str, found: Sequence[Costs], by_path: bool = False, symbolic: bool = False) -> str:
    """One column of numbers for each of `found`; of one, numbers in full beside the short ones."""
    first = found[0]
    rows = [(label, value, unit) for label, value, unit in ROWS
            if value(first) is not None and (label != "active parameters" or first.active != first.parameters)]
    if len(found) == 1:
        c = found[0]
        lines = [f"{name} at {_sizes(c)} in {c.dtype}", *("  " + x for x in columns([_full(row, c) for row in rows], frozenset({1, 2})))]
    else:
        lines = [name, *_tables(rows, found)]
    lines += _notes(name, found)
    if symbolic:
        lines += ["", *textwrap.wrap(f"FLOPs of a pass = {found[0].formula}", WIDTH - 2, subsequent_indent="  ")]
    return "\n".join([*lines, *(_by_path(found[0]) if by_path else [])]) + "\n"


def _full(row: Row, c: Costs) -> tuple[str, str, str]:
    label, value, unit = row
    n = value(c) or 0
    return label, short(n, unit), f"{n:,}{' ' + unit if unit else ''}" if n >= 1000 else ""


def _tables(rows: Sequence[Row], found: Sequence[Costs]) -> list[str]:
    """The columns, in as many tables as the width asks for."""
    head = [(" ".join(f"{k}={positions(n)}" for k, n in c.sizes.items()), c.dtype) for c in found]
    wide = max(len(text) for pair in head for text in pair)
    each = max(1, (WIDTH - 34) // (max(wide, 11) + 2))
    lines = []
    for start in range(0, len(found), each):
        part = found[start:start + each]
        table = [("", *(h[k] for h in head[start:start + each])) for k in (0, 1)]
        table += [(label, *(_cell(value(c), unit) for c in part)) for label, value, unit in rows]
        lines += [*([""] if start else []), *("  " + x for x in columns(table, frozenset(range(1, len(part) + 1))))]
    return lines


def _cell(n: int | None, unit: str) -> str:
    return "-" if n is None else short(n, unit)


def _notes(name: str, found: Sequence[Costs]) -> list[str]:
    """Where activations peak, what is behind a new position, and why there is no cache."""
    where: dict[str, list[str]] = {}
    for c in found:
        where.setdefault(c.peak.path or "no node", []).append(_sizes(c))
    told = [f"activations peak at {path}" + (f" ({'; '.join(dict.fromkeys(at))})" if len(where) > 1 else "") for path, at in where.items()]
    form = found[0].table.step
    if isinstance(form, str):
        told.append(f"no cache: {name} cannot be run step by step ({form})")
    else:
        rings = sorted({s.layout.window for s in form.states if s.layout and s.layout.window})
        told.append(f"a new position has {form.along} positions behind it"
                    + (f"; a cache with a window keeps its last {', '.join(f'{n:,}' for n in rings)}" if rings else ""))
    return [line for text in told for line in textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ",
                                                             break_on_hyphens=False)]


def _sizes(c: Costs) -> str:
    return " ".join(f"{k}={n}" for k, n in c.sizes.items()) or "no free sizes"


def _by_path(c: Costs) -> list[str]:
    """The FLOPs of a pass by path, what is held at the peak, the largest first."""
    held = folded((path or "in", n) for path, n in c.peak.held)
    return ["", "FLOPs of a pass", *_shares(c.flop_parts, ""),
            "", f"activations held at {c.peak.path or 'no node'}", *_shares(held, "B")]


def _shares(parts: Parts, unit: str) -> list[str]:
    whole, most = max(sum(n for _, n in parts), 1), largest(parts)
    table = [(path if len(path) <= 64 else path[:60] + " ...", short(n, unit), f"{n / whole:.1%}") for path, n in most[:SHOWN]]
    lines = ["  " + x for x in columns(table, frozenset({1, 2}))]
    if len(most) > SHOWN:
        lines.append(f"  and {len(most) - SHOWN} more paths: {short(sum(n for _, n in most[SHOWN:]), unit)}")
    return lines


def sweep_report(name: str, along: str, found: Sequence[Costs]) -> str:
    """A row for each size of the dimension `along`."""
    first = found[0]
    others = " ".join(f"{k}={n}" for k, n in first.sizes.items() if k != along)
    steps = not isinstance(first.table.step, str)
    head = [along, "prefill FLOPs", *(["decode FLOPs", "cache"] if steps else []), "activations", "with weights", "peak at"]
    decoding = [[_cell(c.decode_flops, ""), _cell(c.cache_bytes, "B")] if steps else [] for c in found]
    table = [head] + [[positions(c.sizes[along]), short(c.flops), *more, short(c.peak.bytes, "B"), short(c.total_bytes, "B"),
                       _end(c.peak.path)] for c, more in zip(found, decoding, strict=True)]
    lines = [f"{name} {f'at {others} ' if others else ''}in {first.dtype}: {short(first.parameters)} parameters, "
             f"{short(first.weight_bytes, 'B')} of weights",
             *("  " + x for x in columns(table, frozenset(range(len(head) - 1))))]
    return "\n".join([*lines, *(_notes(name, found[:1])[1:] if not steps else [])]) + "\n"


def _end(path: str) -> str:
    return path if len(path) <= 26 else f"...{path[-23:]}"
