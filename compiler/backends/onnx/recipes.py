"""How initializers are made from parameters: pure functions of their arrays, named by `Recipe.kind`.

Those in `STREAMED` are given large tensors as `Deferred`, still in their file, and only name the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...checkpoints import weight_file
from ...checkpoints.weight_file import Deferred, Turned
from .nbits import integers
from .packing import interleave


def _plain(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """The parameter itself."""
    return weights[0]


def _transpose(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """[o, i] -> [i, o], a view."""
    return weights[0].T


def _packed(weights: list[np.ndarray | Deferred], settings: dict[str, Any]) -> np.ndarray | Turned:
    """[o, i] each -> [i, all o]: projections of one value side by side."""
    return _below(weights).T


def _joined(weights: list[np.ndarray], settings: dict[str, Any]) -> np.ndarray:
    """Vectors one after the other."""
    return np.concatenate(weights)


def _below(weights: list[np.ndarray | Deferred]) -> np.ndarray | Deferred:
    """Matrices of one width one below the other; large ones as an order of their numbers, in which halves are widened to be alike."""
    rows, width = sum(w.shape[0] for w in weights), weights[0].shape[1]
    if rows * width <= weight_file.LARGE:
        return np.concatenate([np.asarray(w) for w in weights])

    def read(start: int, stop: int) -> np.ndarray:
        found, at = [], 0
        for w in weights:
            size = w.shape[0] * width
            first, last = max(start - at, 0), min(stop - at, size)
            if first < last:
                part = w.read(first, last) if isinstance(w, Deferred) else w.reshape(-1)[first:last]
                found.append(part.astype(np.float32) if part.dtype == np.float16 else part)
            at += size
        return np.concatenate(found) if len(found) > 1 else found[0]

    return Deferred((rows, width), read)


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
    "packed": _packed,
    "joined": _joined,
    "add": _add,
    "gates": _gates,
    "interleave": interleave,
    "nbits": integers,
}
STREAMED = frozenset({"plain", "interleave", "transpose", "packed"})
