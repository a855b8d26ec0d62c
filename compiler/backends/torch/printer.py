"""What an op's `torch` method writes to: statements of one `forward`, and the names in scope."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...ir.dimension import Dim
from ...ir.graph import TensorType, fresh
from .source import COMPARE, Py, binary, source, ternary

RESERVED = frozenset({"self", "torch", "nn", "math", "F", "Tensor", *dir(builtins)})


def shape_comment(*types: TensorType) -> str:
    """`[B, S, 512]`, several with commas between."""
    return ", ".join(f"[{', '.join(map(str, t.shape))}]{' or None' if t.optional else ''}" for t in types)


@dataclass
class Scope:
    """Names, types and lines of one function being written."""

    lines: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    tensors: list[tuple[Py, TensorType]] = field(default_factory=list)    # what is in scope, to read sizes from
    sizes: dict[Dim, Py] = field(default_factory=dict)
    indent: int = 2
    ask: Callable[[str | Dim], Py] | None = None    # gives "dtype", "device" or a size that no tensor in scope tells

    def name(self, hint: str) -> str:
        """A fresh Python name near `hint`."""
        base = hint.replace(".", "_") or "x"
        if keyword.iskeyword(base) or base in RESERVED:
            base += "_"
        name = fresh(base, self.taken)
        self.taken.add(name)
        return name

    def line(self, text: str, comment: str = "") -> None:
        text = "    " * self.indent + text
        self.lines.append(f"{text}  # {comment}" if comment else text)


class Printer:
    """Passed to `op.torch` as `t`: how the emitted source spells what the op needs.

    `t.torch`, `t.F`, `t.nn` are the modules; `t.inputs[port]` and `t.outputs` the types; `t.used` the names of the
    outputs that something reads; `t.owner` is `self.path` of this node.
    """

    torch, F, nn, math = Py("torch"), Py("F"), Py("nn"), Py("math")
    training = Py("self.training")

    def __init__(self, scope: Scope, helpers: dict[str, str], node: str, inputs: Mapping[str, object],
                 outputs: tuple[TensorType, ...], used: frozenset[str], owner: Py):
        self.scope, self.helpers, self.node = scope, helpers, node
        self.inputs, self.outputs, self.used, self.owner = inputs, outputs, used, owner

    def let(self, hint: str, expression: object) -> Py:
        """Assign to a new local name near `hint`; returns the name."""
        name = self.scope.name(hint)
        self.scope.line(f"{name} = {source(expression)}")
        return Py(name)

    def lets(self, hints: tuple[str, ...], expression: object) -> tuple[Py, ...]:
        """Assign a tuple: `a, b = expression`; `_` for a part that nothing reads."""
        names = tuple(h if h == "_" else self.scope.name(h) for h in hints)
        self.scope.line(f"{', '.join(names)} = {source(expression)}")
        return tuple(Py(n) for n in names)

    def helper(self, text: str) -> Py:
        """A module-level function that several ops share, written once; returns its name."""
        return Py(keep(self.helpers, text))

    def either(self, condition: object, then: object, otherwise: object) -> Py:
        return ternary(condition, then, otherwise)

    def missing(self, x: object) -> Py:
        """`x is None`: whether an optional value is absent."""
        return binary(x, "is", None, COMPARE)

    def size(self, dim: Dim | int) -> Py | int:
        """An int of the emitted source: a literal, or read from the shape of a tensor in scope."""
        if isinstance(dim, int):
            return dim
        if dim.value is not None:
            return dim.value
        found = size_in(self.scope, dim)
        if found is None:
            raise LookupError(f"no tensor in scope tells the size {dim}")
        return found

    def shape(self, dims: tuple[Dim, ...]) -> tuple[Py | int, ...]:
        return tuple(self.size(d) for d in dims)

    @property
    def device(self) -> Py:
        """Where a tensor in scope lies."""
        for value, type in self.scope.tensors:
            if not type.optional:
                return value.device
        return self.scope.ask("device") if self.scope.ask else Py("None")

    @property
    def dtype(self) -> Py:
        """The model's dtype, as some float tensor in scope has it."""
        for value, type in self.scope.tensors:
            if type.dtype == "float" and not type.optional:
                return value.dtype
        return self.scope.ask("dtype") if self.scope.ask else Py("torch.get_default_dtype()")


def keep(helpers: dict[str, str], text: str) -> str:
    """Keep a function for the top of the file, once; returns its name."""
    name = text.strip().removeprefix("def ").split("(", 1)[0]
    helpers.setdefault(name, text.strip())
    return name


def size_in(scope: Scope, dim: Dim) -> Py | None:
    """Source that reads `dim` from the shapes in scope: exactly, else symbol by symbol."""
    if dim in scope.sizes:
        return scope.sizes[dim]
    for value, type in scope.tensors:
        if not type.optional and dim in type.shape:
            return value.shape[type.shape.index(dim)]
    if len(dim.symbols()) == 1 and dim == Dim.symbol(next(iter(dim.symbols()))):
        for value, type in scope.tensors:
            for axis, have in enumerate(type.shape):
                found = have.affine_in(str(dim))
                if found and not type.optional and found[0].value and found[1].value is not None and len(have.symbols()) == 1:
                    return _unscale(value.shape[axis], found[0].value, found[1].value)
        return scope.ask(dim) if scope.ask else None
    return _spell(scope, dim)


def _unscale(size: Py, scale: int, shift: int) -> Py:
    moved = size - shift if shift > 0 else size + -shift if shift < 0 else size
    return moved // scale if scale != 1 else moved


def _spell(scope: Scope, dim: Dim) -> Py | None:
    """The polynomial written out over sizes that are in scope."""
    total: Py | None = None
    for monomial, coefficient in dim.terms:
        term: Py | int = coefficient
        for atom in monomial:
            factor = size_in(scope, Dim.symbol(atom)) if isinstance(atom, str) else _floor(scope, atom.inner, atom.by)
            if factor is None:
                return None
            term = factor if isinstance(term, int) and term == 1 else factor * term
        total = (term if isinstance(term, Py) else Py(str(term))) if total is None else total + term
    return total


def _floor(scope: Scope, inner: Dim, by: int) -> Py | None:
    found = size_in(scope, inner)
    return None if found is None else found // by
