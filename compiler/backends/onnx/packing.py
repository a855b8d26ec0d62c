"""The weights of all experts as one initializer, made expert by expert."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...checkpoints.weight_file import Deferred
from .builder import Recipe


def interleave(weights: list[Any], settings: dict[str, Any]) -> np.ndarray | Deferred:
    """The rows of several tensors of one shape in turn: [r, ...] each -> [n * r, ...]; large ones as an order of their numbers."""
    if not all(isinstance(w, Deferred) for w in weights):
        return _turns([np.asarray(w) for w in weights]).reshape(-1, *weights[0].shape[1:])
    rows, *rest = weights[0].shape
    width, count = int(np.prod(rest)), len(weights)

    def read(start: int, stop: int) -> np.ndarray:
        first, last = start // (width * count), -(-stop // (width * count))
        made = _turns([w.read(first * width, last * width).reshape(-1, width) for w in weights]).reshape(-1)
        return made[start - first * width * count:][:stop - start]

    return Deferred((count * rows, *rest), read)


def _turns(weights: list[np.ndarray]) -> np.ndarray:
    return np.stack(weights, axis=1)


def parts(recipe: Recipe) -> list[Recipe]:
    """The recipes whose results lie one after another in this one's: one an expert for `experts`, else itself."""
    if recipe.kind != "experts":
        return [recipe]
    joined = dict(recipe.settings)["joined"]
    groups = [recipe.parameters[k:k + joined] for k in range(0, len(recipe.parameters), joined)]
    return [Recipe(recipe.name, "interleave" if joined > 1 else "plain", group, recipe.shape[1:]) for group in groups]
