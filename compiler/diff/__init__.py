"""`typed Graph, typed Graph -> Report`: what changed between two specs, told by the edits that caused it. `specs/DIFF.md` is its manual.

`nnspec.diff.compared(a, b)` takes what the command line takes and gives a `report.Report`; it raises `Diagnostics` where either
cannot be had. The way of a comparison, which `compare` walks:

1. `sides`, `sources`: what the user names -> two compiled specs, or lock files (`lock`); `renames` puts `--map` into the head.
2. `tree`, `groups`: the specs as canonical trees -> the keys that differ, in groups that belong together: the edits.
3. `replay`: each edit compiled after those before it; `graphs` compares its graph with the one before, by the rules of `rules`.
4. `verdict`, `interface`, `costs`: what that means for function, checkpoint, inputs and outputs, cache and cost -> `report`.
5. `layers`: what is asked for beside it: `migration` (key map, claims that are run), `file_layer` (a weight file), `exported` (ONNX).
6. `choice`, `accept`, `growth`: what is shown, what is accepted, what is over a budget; `formats` and `html` write it.

`commits` compares the specs of two commits; `git` and `difftool` are what git calls.
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
