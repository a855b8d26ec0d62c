"""Every op of the language, by family."""

from __future__ import annotations

from .base import Op
from .linear import Embedding, Linear

FAMILIES: tuple[tuple[type[Op], ...], ...] = (
    (Embedding, Linear),
)

OPS: dict[str, type[Op]] = {op.name: op for family in FAMILIES for op in family}
