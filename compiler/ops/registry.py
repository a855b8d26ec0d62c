"""Every op of the language, by family."""

from __future__ import annotations

from . import (
    activations,
    attention,
    cells,
    contraction,
    convolution,
    elementwise,
    frequencies,
    indexing,
    layout,
    linear,
    masks,
    norms,
    positions,
    recurrent,
    reductions,
    rope,
    values,
)
from .base import Op

FAMILIES: tuple[tuple[type[Op], ...], ...] = (
    values.OPS, linear.OPS, contraction.OPS, elementwise.OPS, activations.OPS, masks.OPS, reductions.OPS, norms.OPS,
    attention.OPS, layout.OPS, indexing.OPS, positions.OPS, frequencies.OPS, rope.OPS, convolution.OPS,
    recurrent.OPS, cells.OPS,
)

OPS: dict[str, type[Op]] = {op.name: op for family in FAMILIES for op in family}
