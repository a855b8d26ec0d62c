"""`typed Graph, typed Graph -> Report`: what changed between two specs, told by the edits that caused it. `specs/DIFF.md` is its manual.

`nnspec.diff.compared(a, b)` takes what the command line takes and gives a `report.Report`; it raises `Diagnostics` where either
cannot be had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sides import compared

__all__ = ["compared"]


def __getattr__(name: str) -> Any:
    if name != "compared":
        raise AttributeError(f"module 'nnspec.diff' has no attribute {name!r}")
    from .sides import compared
    return compared
