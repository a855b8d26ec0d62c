"""Pieces of text that all layouts share."""

from __future__ import annotations

from typing import Any

from ..costs.quantity import short
from .concepts import number
from .report import Edit, Metric, Report, Where
from .verdict import plain_load

METRICS = {"parameters": "parameters", "active": "active parameters", "weights": "weights", "flops": "prefill FLOPs",
           "decode": "decode FLOPs/token", "cache": "cache of a row", "peak": "peak activation"}
SHOWN = ("parameters", "flops", "decode", "cache", "peak")
LETTERS = {"breaking": "breaking", "warning": "warning", "info": "info"}


def value(v: Any) -> str:
    """A value of a spec, in words."""
    if v is None:
        return "none"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, dict):
        return ", ".join(f"{k}={value(x)}" for k, x in v.items())
    if isinstance(v, list):
        return "[" + ", ".join(map(value, v)) + "]"
    return number(v)


def change(edit: Edit) -> str:
    """`12 -> 4`; empty where there are no values."""
    if edit.before is None and edit.after is None:
        return ""
    return f"{value(edit.before)} -> {value(edit.after)}"


def places(where: tuple[Where, ...], most: int = 2) -> str:
    """`layers[0..11].attention_norm, .ffn_norm, norm`"""
    shown: list[str] = []
    stem = ""
    for w in where[:most + 1] if len(where) == most + 1 else where[:most]:
        text = str(w)
        head, dot, last = text.rpartition(".")
        shown.append(f".{last}" if dot and head == stem else text)
        stem = head if dot else ""
    more = len(where) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def listed(names: list[str]) -> str:
    """`layers.{i}.key, .value`"""
    stem = names[0].rpartition(".")[0]
    return ", ".join([names[0], *(n[len(stem):] if stem and n.rpartition(".")[0] == stem else n for n in names[1:])])


def amount(m: Metric, n: int | None) -> str:
    """A metric as a person reads it: numbers in full, others with a unit."""
    if n is None:
        return "-"
    if m.unit == "numbers":
        return f"{n:,}"
    return short(n, "B" if m.unit == "bytes" else "")


def signed(text: str, n: int | None) -> str:
    return text if not n or n < 0 else f"+{text}"


def percent(m: Metric) -> str:
    if m.percent is None or not m.delta:
        return ""
    return f"{m.percent:+.2f}%" if abs(m.percent) >= 0.005 else "<0.01%"


def cost(m: Metric) -> str:
    """What a row of costs is called: of a peak, where it is too."""
    return METRICS[m.name] + (f" {m.note}" if m.note else "")


def rows(report: Report, names: tuple[str, ...] = SHOWN) -> list[Metric]:
    """The metrics that are told: active parameters only where they differ from all of them."""
    by = {m.name: m for m in report.metrics}
    found = [by[n] for n in names if n in by and (by[n].before is not None or by[n].after is not None)]
    if (active := by.get("active")) and (active.before, active.after) != (by["parameters"].before, by["parameters"].after):
        found.insert(1, active)
    return found


def tensors(report: Report) -> str:
    """`148 kept, 48 reshaped`"""
    return ", ".join(f"{n:,} {status}" for status in ("kept", "renamed", "reshaped", "new", "dropped") if (n := report.count(status)))


def loads(report: Report) -> str:
    """What PyTorch does with the old checkpoint."""
    missing, unexpected, shapes = plain_load(report.tensors)
    if report.base is None or report.head is None:
        return ""
    if not missing and not unexpected and not shapes:
        return "a strict load succeeds"
    said = [f"{n:,} {word}" for n, word in ((missing, "missing"), (unexpected, "unexpected"), (shapes, "of other shapes")) if n]
    return f"a strict load fails: {', '.join(said)}; strict=False {'fails too' if shapes else 'loads the rest in silence'}"


def at(report: Report) -> str:
    return " ".join(f"{k}={v}" for k, v in report.sizes.items())


def tally(report: Report) -> str:
    """`5 edits: 4 breaking, 1 warning`"""
    levels = [e.level for e in report.edits]
    n = len(levels)
    kinds = ", ".join(f"{levels.count(k)} {k}" for k in ("breaking", "warning", "info") if k in levels)
    return f"{n} edit{'s' if n != 1 else ''}: {kinds}" if n else "no edits"
