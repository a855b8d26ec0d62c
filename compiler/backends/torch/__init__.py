"""Typed graphs as PyTorch: `generate` gives source, `build` the module that the source makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .emit import generate

if TYPE_CHECKING:
    from torch import nn

    from ...ir.graph import Graph


def build(graph: Graph, seed: int | None = 0, dtype: Any = None, device: Any = None) -> nn.Module:
    """The model as an nn.Module in eval mode, executed from `generate(graph)`; see `execute.build`."""
    from .execute import build as run

    return run(graph, seed, dtype, device)


__all__ = ["build", "generate"]
