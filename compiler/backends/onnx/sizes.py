"""Sizes in the emitted graph: read from the shape of a value that has them, else computed from those of the inputs."""

from __future__ import annotations

from functools import partial, reduce

from ...ir.dimension import Dim, Floor
from ...ir.graph import TensorType
from .builder import Builder, UnknownSize, Val


def watch(g: Builder) -> Builder:
    """Let `g.size` find sizes; returns `g`."""
    g.find_size = partial(_find, g)
    return g


def see(g: Builder, value: Val, type: TensorType) -> None:
    """Remember the free sizes that a value has and no value before it."""
    for axis, dim in enumerate(type.shape):
        if dim.value is None and _holder(g, dim) is None:
            g.home([value.name]).dims[dim] = (value, axis)


def _find(g: Builder, dim: Dim) -> Val:
    return g.once(("size", dim), lambda: _read(g, dim) or _solved(g, dim) or _computed(g, dim))


def _holder(g: Builder, dim: Dim) -> tuple[Val, int] | None:
    """A value with this size, of the outermost graph that has one."""
    found: tuple[Val, int] | None = None
    scope: Builder | None = g
    while scope is not None:
        found = scope.dims.get(dim, found)
        scope = scope.parent
    return found


def _read(g: Builder, dim: Dim) -> Val | None:
    held = _holder(g, dim)
    return g.op("Shape", held[0], start=held[1], end=held[1] + 1) if held else None


def _solved(g: Builder, dim: Dim) -> Val | None:
    """A free dimension from a size a*S + b of an input, as (size - b) / a; None where no input tells it."""
    (name, *more) = dim.symbols()
    if more or dim != Dim.symbol(name):
        return None
    for held in g.root.dims:
        parts = held.affine_in(name)
        if parts is None or not parts[0].value or parts[1].value is None:
            continue
        scale, offset = parts[0].value, parts[1].value
        size = g.size(held)
        size = g.op("Sub", size, g.ints(offset)) if offset else size
        return g.op("Div", size, g.ints(scale)) if scale != 1 else size
    raise UnknownSize(name)


def _computed(g: Builder, dim: Dim) -> Val:
    """The polynomial of its free dimensions. They are integers from 0, so that dividing cuts off as `floor` does."""
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [_atom(g, atom) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(g.ints(coefficient))
        terms.append(reduce(partial(g.op, "Mul"), factors))
    return reduce(partial(g.op, "Add"), terms)


def _atom(g: Builder, atom: str | Floor) -> Val:
    if isinstance(atom, str):
        return g.size(Dim.symbol(atom))
    return g.once(("size", atom), lambda: g.op("Div", g.size(atom.inner), g.ints(atom.by)))
