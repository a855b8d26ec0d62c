"""What one op needs in eager PyTorch beside its inputs and outputs, and which ops only look at their input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import Node, TensorType

Types = Mapping[str, Any]
Size = Callable[[TensorType], int]

VIEWS = frozenset({"dropout", "cache", "stop_gradient", "first_of", "fill_absent", "split", "slice", "take", "expand"})


class View:
    """The output is a view of the first input that is there."""


@dataclass(frozen=True)
class Workspace:
    """Bytes in use while the op runs, and those that its locals hold until the block ends."""

    bytes: int = 0
    kept: int = 0


def view(node: Node, types: Types, given: Any) -> View | Dim | None:
    """How an op's output lies: as a view, in memory of this many elements that it repeats, or (None) in its own."""
    op, name = node.op, node.op.name
    if name in VIEWS or (name == "cast" and op.to == types["in"].dtype) or (name == "activate" and op.function == "identity"):
        return View()
    if name == "position" and given is not None:
        return node.types[0].shape[1]
    if name == "rearrange":
        steps, start = op.steps(types), 0
        for n in steps.merge:
            pieces = steps.order[start:start + n]
            if any(b != a + 1 for a, b in zip(pieces, pieces[1:], strict=False)) or (n > 1 and _moved(steps.order)):
                return View() if getattr(given, "kind", "") == "attention" else None      # whose kernel writes the heads last
            start += n
        return View()
    return None


def _moved(order: tuple[int, ...]) -> bool:
    return order != tuple(sorted(order))


def workspace(node: Node, types: Types, used: Collection[str], absent: Collection[str], size: Size, width: int) -> Workspace:
    """`absent` are ports whose value is not there; `width` are the bytes of a float."""
    name, out = node.op.name, size(node.types[0])
    if name == "attention":
        return _attention(node, {p: t for p, t in types.items() if p not in absent}, used, size, width)
    if name == "rope":
        angles = _angles(types, size)
        return Workspace(out + 2 * angles, angles)
    if name in ("add", "subtract", "multiply", "maximum", "minimum") and len(types["in"]) > 2 or name in ("softcap", "rms_norm"):
        return Workspace(out)
    if name in ("softmax", "log_softmax") and types.get("keep") is not None and "keep" not in absent:
        return Workspace(2 * out)
    if name == "alibi":                                     # int64 distances, then float32 whatever the dtype
        distance = size(TensorType("int64", (*types["query"].shape, types["key"].shape[-1])))
        return Workspace(distance + (0 if width == 4 else 4 * out // width), distance)
    if name == "relative_bucket":
        return Workspace(3 * out + out // 8 if node.op.both_ways else 2 * out, out)
    if name in ("lstm", "gru", "rnn"):                      # the gates of every step, then the steps before they are one tensor
        B, S, _ = node.types[0].shape
        return Workspace(size(TensorType("float", (B, S, Dim.const(node.op.hidden)))) * (len(node.op.order) + 1))
    return Workspace()


def _angles(types: Types, size: Size) -> int:
    """Bytes of the float32 angles of rope: a number for each position and frequency."""
    positions, table = types["positions"], types["frequencies"]
    return size(TensorType("float32", (*positions.shape, table.shape[-1])))


def _attention(node: Node, types: Types, used: Collection[str], size: Size, width: int) -> Workspace:
    """Fused kernels keep one number a query; a mask is bool and then of the scores' dtype; explicit weights are three times the scores."""
    op, (B, H, T, S) = node.op, node.types[1].shape
    query, key, value = types["query"], types["key"], types["value"]
    grouped = query.shape[1] != key.shape[1]
    scores = TensorType("float32", (B, H, T, S))
    repeated = sum(size(replace(t, shape=(B, H, *t.shape[2:]))) for t in (key, value)) if grouped else 0
    masks = [types[p] for p in ("length", "keep") if types.get(p) is not None]
    rows = B if masks else Dim.const(1)
    mask = size(TensorType("bool", (rows, Dim.const(1), T, S))) if masks or op.window is not None else 0
    if "weights" in used or op.softcap is not None:
        seen = mask or (size(TensorType("bool", (T, S))) if op.causal else 0)
        kept = 0 if "weights" in used else size(node.types[1])
        wide = size(replace(query, dtype="float32")) if width < 4 else 0
        return Workspace(3 * size(scores) + 2 * seen + (size(replace(key, shape=(B, H, *key.shape[2:]))) if grouped else 0) + wide, kept)
    if query.shape[-1] != value.shape[-1]:                  # for which the CPU has no fused kernel
        return Workspace(2 * size(scores) + size(scores) // 4 + size(TensorType("float", (T, S))) + size(TensorType("bool", (T, S))))
    bias = types.get("score_bias")
    if bias is not None:
        whole = (rows if masks else bias.shape[0], *bias.shape[1:-2], T, S) if len(bias.shape) == 4 else bias.shape
        joined = size(replace(bias, shape=whole))
        return Workspace(repeated + size(TensorType("float32", (B, H, T))) + (joined + 2 * mask if mask or op.causal else 0))
    return Workspace((repeated if mask else 0) + size(TensorType("float32", (B, H, T))) + 3 * mask + mask * width)
