"""Shape and dtype rules that several families share: dtype words, numpy broadcasting, masks of lower rank, axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import Shape, TensorType
from ..ir.signature import parse_signature, spell
from .base import Op, OpFault, Types, axis_of, tensor, tensors

Given = Sequence[tuple[str, TensorType]]     # port label (`in.0`) and type


def items(inputs: Types, port: str, op: Op, fewest: int = 1, most: int | None = None) -> list[tuple[str, TensorType]]:
    """The items of a list port with their labels (`in.0`); raises OpFault when there are too few or too many."""
    found = tensors(inputs, port)
    if len(found) < fewest or (most is not None and len(found) > most):
        count = f"{fewest}" if most == fewest else f"at least {fewest}"
        raise OpFault("bad-attribute", f"`{op.name}` takes {count} input{'s' if fewest != 1 else ''}, not {len(found)}",
                      ports={port: f"{len(found)} given"})
    return [(f"{port}.{i}", type) for i, type in enumerate(found)]


def check_dtypes(op: Op, inputs: Types) -> None:
    """Every input has the dtype that the signature says; raises OpFault `dtype-mismatch`."""
    for port in parse_signature(op.signature).inputs:
        given, word = inputs.get(port.name), port.pattern.dtype
        listed = [(f"{port.name}.{i}", t) for i, t in enumerate(given)] if isinstance(given, tuple) else [(port.name, given)]
        for label, type in listed:
            takes = ("float", "int64") if word == "number" else (word,)
            if type is not None and word != "any" and type.dtype not in takes:
                raise OpFault("dtype-mismatch", f"`{op.name}` takes {' or '.join(takes)}, not {type.dtype}",
                              ports={label: f"this is {type.dtype}"},
                              help="comparisons such as `not_equal` make bools" if word == "bool" else "convert it with `cast`")


def same_dtype(op: Op, given: Given) -> str:
    """The one dtype of several inputs; raises OpFault `dtype-mismatch`."""
    (first, type), *rest = given
    for label, other in rest:
        if other.dtype != type.dtype:
            raise OpFault("dtype-mismatch", f"the inputs of `{op.name}` have different dtypes, {type.dtype} and {other.dtype}",
                          ports={first: f"this is {type.dtype}", label: f"this is {other.dtype}"}, help="convert one with `cast`")
    return type.dtype


def broadcast(op: Op, given: Given) -> Shape:
    """numpy broadcasting of several shapes, aligned at the last axis; raises OpFault that names the axis and both sizes."""
    out = []
    for axis in range(-max(len(type.shape) for _, type in given), 0):
        size, first = Dim.const(1), ""
        for label, type in given:
            have = type.shape[axis] if len(type.shape) >= -axis else Dim.const(1)
            if size == 1:
                size, first = have, label
            elif have not in (size, 1):
                raise _disagree(op, axis, (first, size), (label, have))
        out.append(size)
    return tuple(out)


def _disagree(op: Op, axis: int, a: tuple[str, Dim], b: tuple[str, Dim]) -> OpFault:
    axis_name = "d" if axis == -1 else str(axis)
    spelled = "d" if axis == -1 else f"axis {axis}"
    free = a[1].value is None or b[1].value is None
    return OpFault("shape-mismatch", f"the inputs of `{op.name}` disagree about axis `{axis_name}`",
                   ports={label: f"{spelled} = {size}" for label, size in (a, b)},
                   note=f"`{a[1]}` and `{b[1]}` are not known to be equal" if free else f"`{op.name}` is `{op.signature}`",
                   help="sizes that meet must be equal, or one of them 1; shapes are aligned at the last axis")


def align_mask(op: Op, mask: TensorType, into: TensorType, leading: bool = False) -> tuple[int, ...]:
    """The axes of `into` that a mask's axes lie on; raises OpFault when it does not fit.

    A mask of lower rank keeps its first axis first and its last axes last: [B, S] masks [B, H, T, S] as [B, 1, 1, S]; one of
    rank 1 lies on the last axis. With `leading` it covers the first axes instead: [B, S] masks [B, S, d] as [B, S, 1].
    """
    rank, extra = len(mask.shape), len(into.shape) - len(mask.shape)
    if extra < 0:
        raise OpFault("rank-mismatch", f"the mask of `{op.name}` has more axes than what it masks",
                      ports={"keep": f"{spell(mask.shape)}", "in": f"{spell(into.shape)}"})
    axes = tuple(i if leading or (i == 0 and rank > 1) else i + extra for i in range(rank))
    for axis, size in zip(axes, mask.shape, strict=True):
        if size not in (into.shape[axis], 1):
            as_text = spell(tuple(mask.shape[axes.index(i)] if i in axes else Dim.const(1) for i in range(len(into.shape))))
            rule = "covers the first axes" if leading else "keeps its first axis first and its last axes last"
            raise OpFault("shape-mismatch", f"the mask of `{op.name}` disagrees with what it masks about axis `{axis}`",
                          ports={"keep": f"axis {axis} = {size}", "in": f"axis {axis} = {into.shape[axis]}"},
                          note=f"a mask of lower rank {rule}, so this one is read as {as_text}" if extra else None,
                          help="give it the axes it lacks with `rearrange`" if extra else None)
    return axes


def mask_axes(op: Op, inputs: Types, leading: bool = False) -> tuple[int, ...]:
    """`align_mask` of the ports `keep` and `in`; () without a mask."""
    return align_mask(op, tensor(inputs, "keep"), tensor(inputs, "in"), leading) if inputs.get("keep") is not None else ()


def missing_axes(axes: tuple[int, ...], rank: int) -> list[int]:
    """The axes to insert into a mask that lies on `axes`: none before its first, where broadcasting inserts them."""
    return [i for i in range(rank) if i not in axes and i > min(axes, default=rank)]


def torch_mask(t: Any, keep: Any, axes: tuple[int, ...], rank: int) -> Any:
    """Source of a mask with the axes it lacks: `keep[:, None, None]`."""
    missing = missing_axes(axes, rank)
    return keep[tuple(None if i in missing else slice(None) for i in range(missing[-1] + 1))] if missing else keep


def onnx_mask(g: Any, keep: Any, axes: tuple[int, ...], rank: int) -> Any:
    """A mask with the axes it lacks, made once."""
    missing = missing_axes(axes, rank)
    return g.once(("mask", keep.name, tuple(missing)), lambda: g.op("Unsqueeze", keep, g.ints(*missing))) if missing else keep


def aligned(given: Given, axis: int, rank: int) -> dict[str, int]:
    """The axes that numpy broadcasting puts on `axis` of a result of `rank` axes; those of size 1 are repeated and are left out."""
    found = {label: len(type.shape) - rank + axis for label, type in given if len(type.shape) >= rank - axis}
    sizes = dict(given)
    return {label: k for label, k in found.items() if sizes[label].shape[k] != 1}


def listed(inputs: Types, port: str) -> Given:
    """The items of a list port that are there, with their labels."""
    return [(f"{port}.{i}", type) for i, type in enumerate(tensors(inputs, port)) if type is not None]


def masked(op: Op, inputs: Types, axis: int, leading: bool = False) -> dict[str, int]:
    """Axis `axis` of `in`, and the axis of the mask that lies on it."""
    over = mask_axes(op, inputs, leading)
    return {"in": axis} | ({"keep": over.index(axis)} if axis in over and tensor(inputs, "keep").shape[over.index(axis)] != 1 else {})


def axes_of(rank: int, axis: int | Sequence[int]) -> tuple[int, ...]:
    """Non-negative axes in order; raises OpFault for one outside the rank, one named twice, or none at all."""
    written = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = sorted(axis_of(rank, a) for a in written)
    if not axes or len(set(axes)) < len(axes):
        raise OpFault("bad-attribute", "`axis` names an axis twice" if axes else "`axis` names no axis", attribute="axis",
                      help="write one axis, or a list of different ones")
    return tuple(axes)


class Along(Op):
    """Base of ops that work along `axis`, and do the same at every entry of the others."""

    axis: int

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        if axis == axis_of(len(outputs[output].shape), self.axis):
            return None
        return {label: axis for label, _ in listed(inputs, "in")} if "in" in self.variadic else {"in": axis}
