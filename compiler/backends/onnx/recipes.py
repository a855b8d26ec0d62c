"""How initializers are made from parameters: pure functions of their arrays, named by `Recipe.kind`.

Those in `STREAMED` are given large tensors as `Deferred`, still in their file, and only name the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .packing import interleave


def _plain(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """The parameter itself."""
    return weights[0]


def _transpose(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """[o, i] -> [i, o], a view."""
    return weights[0].T


def _add(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """w + value, in the dtype of w."""
    weight = weights[0]
    return (weight + settings["value"]).astype(weight.dtype)


def _gates(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """Weights or biases of a recurrent layer, [gates * h, ...] each, in ONNX's layout [directions, joined * gates * h, ...].

    `order[k]` is the block of the parameter that ONNX wants at place k; `joined` consecutive parameters (input and
    state bias) make one direction.
    """
    order, joined = settings["order"], settings["joined"]
    sorted_ = [np.concatenate([np.split(w, len(order))[block] for block in order]) for w in weights]
    return np.stack([np.concatenate(sorted_[i:i + joined]) for i in range(0, len(sorted_), joined)])


RECIPES: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "plain": _plain,
    "transpose": _transpose,
    "add": _add,
    "gates": _gates,
    "interleave": interleave,
}
STREAMED = frozenset({"plain", "interleave", "transpose"})
