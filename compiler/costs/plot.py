"""A picture of the costs over a sweep: FLOPs, memory, and what the memory is made of. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..files import replacing
from ..lang.diagnostic import Diagnostics, diagnostic
from .quantity import positions, short
from .table import Costs

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072b2", "#d55e00", "#009e73", "#8c8c8c", "#222222"      # Okabe and Ito 2008: told apart by all
ENDINGS = (".png", ".svg", ".pdf")


def plot(name: str, along: str, found: Sequence[Costs], output: Path) -> None:
    """Write the picture, .png, .svg or .pdf. Raises Diagnostics: `missing-package` without matplotlib, `cannot-write`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Diagnostics([diagnostic("missing-package", "`--plot` needs the package `matplotlib`",
                                      help=["`pip install matplotlib`", "or do without: `--sweep` prints the numbers"])]) from None
    figure = Figure(figsize=(13.5, 4.6), dpi=150)
    figure.set_layout_engine("constrained", wspace=0.06)
    axes = figure.subplots(1, 3)
    sizes = [c.sizes[along] for c in found]
    steps = not isinstance(found[0].table.step, str)
    _flops(axes[0], sizes, found, steps)
    _memory(axes[1], sizes, found, steps)
    _shares(axes[2], sizes, found, steps)
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [positions(n) for n in sizes], rotation=45 if len(sizes) > 8 else 0)
        axis.set_xticks([], minor=True)
        axis.set_xlabel(f"{along} (positions)" if found[0].length is not None and along == _along(found[0]) else along)
        axis.spines[["top", "right"]].set_visible(False)
    others = ", ".join(f"{k} = {n}" for k, n in found[0].sizes.items() if k != along)
    figure.suptitle(f"{name}: {short(found[0].parameters)} parameters, {found[0].dtype}{', ' + others if others else ''}",
                    fontsize=13, color=BLACK, x=0.01, ha="left")
    with replacing(output) as file:
        figure.savefig(file, format=output.suffix[1:])


def _along(c: Costs) -> str:
    return "" if isinstance(c.table.step, str) else c.table.step.along


def _flops(axis: Any, sizes: list[int], found: Sequence[Costs], steps: bool) -> None:
    axis.set_title("Operations", loc="left")
    _line(axis, sizes, [c.flops for c in found], BLUE, "a pass (prefill)")
    if steps:
        _line(axis, sizes, [c.decode_flops or 0 for c in found], ORANGE, "a new position (decode)")
    _logarithmic(axis, "FLOPs", "")


def _memory(axis: Any, sizes: list[int], found: Sequence[Costs], steps: bool) -> None:
    axis.set_title("Memory", loc="left")
    _line(axis, sizes, [c.total_bytes for c in found], BLACK, "all together", style="--")
    _line(axis, sizes, [c.weight_bytes for c in found], GREY, "weights")
    if steps:
        _line(axis, sizes, [c.cache_bytes or 0 for c in found], GREEN, "cache")
    _line(axis, sizes, [c.peak.bytes for c in found], ORANGE, "activations (peak)")
    _logarithmic(axis, "bytes", "B")


def _shares(axis: Any, sizes: list[int], found: Sequence[Costs], steps: bool) -> None:
    """Each part of the memory as a share of all of it."""
    axis.set_title("Share of memory", loc="left")
    kinds: list[tuple[str, str, Callable[[Costs], int]]] = [("weights", GREY, lambda c: c.weight_bytes)]
    kinds += [("cache", GREEN, lambda c: c.cache_bytes or 0)] if steps else []
    kinds += [("activations (peak)", ORANGE, lambda c: c.peak.bytes)]
    parts = [[100 * of(c) / c.total_bytes for c in found] for _, _, of in kinds]
    axis.stackplot(sizes, parts, labels=[label for label, _, _ in kinds], colors=[color for _, color, _ in kinds], alpha=0.8)
    axis.set_ylim(0, 100)
    axis.set_xlim(sizes[0], sizes[-1])
    axis.set_ylabel("% of bytes")
    axis.legend(frameon=True, framealpha=0.9, edgecolor="none", loc="lower left")


def _line(axis: Any, sizes: list[int], values: list[int], color: str, label: str, style: str = "-") -> None:
    axis.plot(sizes, values, style, marker="o", markersize=4, color=color, label=label)


def _logarithmic(axis: Any, what: str, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    base = 2 if unit == "B" else 10
    axis.set_yscale("log", base=base)
    axis.yaxis.set_major_locator(LogLocator(base=base, numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: re.sub(r"\.0+(?= |$)", "", short(int(y), unit))))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel(what)
    axis.grid(True, which="major", alpha=0.3)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** (0.1 * len(axis.lines)))        # room for the legend
    axis.legend(frameon=False, loc="upper left")
