"""Limits of a change: `--budget parameters=+5%`, `cache_bytes=+0`, `flops=300G`. What exceeds one is told with the edits that add most."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..costs.quantity import amount, short
from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic, suggest
from .report import Report

NAMES = {"parameters": "parameters", "active_parameters": "active", "weight_bytes": "weights", "flops": "flops", "decode_flops": "decode",
         "cache_bytes": "cache", "activation_bytes": "peak"}
LISTED = 3


@dataclass(frozen=True)
class Growth:
    """The most that a metric of the head may be, or, where `more`, may be more than that of the base; `percent` of the base."""

    name: str
    most: float
    more: bool
    percent: bool
    text: str


def growth(text: str) -> Growth:
    """What `NAME=[+|-]N[%]` says. Raises Diagnostics."""
    name, _, value = (part.strip() for part in text.partition("="))
    found = re.fullmatch(r"([+-]?)(.*?)(%?)", value)
    if name not in NAMES:
        raise Diagnostics([diagnostic("bad-command", f"`--budget {text}` names no cost", help=suggest(name, NAMES, "costs"))])
    try:
        assert found is not None
        number = float(found[2]) if found[3] else amount(found[2])
    except (ValueError, AssertionError):
        raise Diagnostics([diagnostic("bad-command", f"`--budget {text}` is not NAME=N, NAME=+N, NAME=-N or one of these with %",
                                      help="such as parameters=125M, cache_bytes=+0 or flops=+5%")]) from None
    return Growth(name, -number if found[1] == "-" else number, bool(found[1]), bool(found[3]), text)


def percent(text: str) -> float:
    """What `N%` or `N` says, in percent. Raises Diagnostics."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%?\s*", text)
    if found is None:
        raise Diagnostics([diagnostic("bad-command", f"`--cost-epsilon {text}` is no part of a cost", help="such as 0.5%")])
    return float(found[1])


def exceeded(report: Report, limits: Iterable[Growth]) -> list[Diagnostic]:
    """One diagnostic for each limit that a report is over."""
    out = []
    metrics = {m.name: m for m in report.metrics}
    for limit in limits:
        m = metrics.get(NAMES[limit.name])
        if m is None or m.after is None or (limit.more or limit.percent) and m.before is None:
            out.append(diagnostic("over-budget", f"there is no `{limit.name}` to hold against `{limit.text}`",
                                  note="the model cannot be run step by step" if limit.name.startswith(("cache", "decode")) else ()))
            continue
        before = m.before or 0
        most = limit.most * before / 100 if limit.percent else limit.most
        top = before + most if limit.more else most
        if m.after > top:
            parts = sorted(((e.deltas.get(m.name, 0), e.title) for e in report.edits), reverse=True)
            label = report.head.label if report.head else ""
            unit = "B" if limit.name.endswith("_bytes") else ""
            out.append(diagnostic(
                "over-budget", f"`{label}` has {limit.name} {m.after:,} ({short(m.after, unit)}, {m.after - before:+,}), and "
                f"`{limit.text}` allows {int(top):,}", note=[f"{n:>+15,}  {title}" for n, title in parts[:LISTED] if n > 0]))
    return out
