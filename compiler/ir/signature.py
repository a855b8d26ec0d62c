"""Shape signatures, documentation and checker at once: `"in: [*b i]; weight: [o i]; bias?: [o] -> [*b o]"`.

Ports and outputs are separated by `;` or `,`. A pattern is a dtype word (may be left out: `any`) and axes between brackets,
separated by spaces or commas: an integer, a variable, an integer-affine expression in variables (`2*h`, `s+1`, `(h * d)`),
or one star variable `*b`, any number of axes. `?` marks a port or output that may be absent. A single output without a
name is `out`; a single input without a name is `in`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

from .dimension import Dim

Shape = tuple[Dim, ...]
DTYPES = ("any", "float", "float32", "int64", "int32", "bool", "number")


class SignatureError(ValueError):
    """The text of a signature cannot be read."""


@dataclass(eq=False)
class Unbound(Exception):
    """Nothing determines the variable `name` of the pattern of `port`."""

    name: str
    port: str

    def __str__(self) -> str:
        return f"nothing determines `{self.name}` of `{self.port}`"


@dataclass(eq=False)
class RankMismatch(Exception):
    """The shape of `port` has more or fewer axes than `pattern` allows."""

    port: str
    pattern: Pattern
    shape: Shape

    def __str__(self) -> str:
        return f"`{self.port}` is {spell(self.shape)}, which is not {self.pattern}"


@dataclass(eq=False)
class Mismatch(Exception):
    """Axis `index` of `port` is `got` where `axis_name` (a variable, an expression, a number or `*b`) must be `expected`.

    `expected` and `got` are shapes when `axis_name` is a star; `index` is None when two stars differ in rank. `first_port`
    bound the variable first; None: it is a number, or was given as known. When `expected` still holds variables of the
    pattern, no value of theirs gives `got`.
    """

    port: str
    axis_name: str
    expected: Dim | Shape
    got: Dim | Shape
    first_port: str | None
    index: int | None

    def __str__(self) -> str:
        expected, got = (spell(x) if isinstance(x, tuple) else str(x) for x in (self.expected, self.got))
        return f"`{self.axis_name}` of `{self.port}` is {got}, not {expected}"


@dataclass(frozen=True)
class Axis:
    """One entry of a pattern as written; `size` is a polynomial over the signature's variables, None for a star."""

    text: str
    size: Dim | None

    def unknown(self, bindings: Bindings) -> list[str]:
        """The variables of this axis that are not bound yet."""
        return [n for n in sorted(self.size.symbols()) if n not in bindings.dims] if self.size is not None else []


@dataclass(frozen=True)
class Pattern:
    """The axes between the brackets, at most one of them a star, and the dtype word before them."""

    axes: tuple[Axis, ...]
    dtype: str = "any"

    @property
    def star(self) -> int | None:
        """The index of the star among the axes."""
        return next((i for i, axis in enumerate(self.axes) if axis.size is None), None)

    def place(self, index: int, rank: int) -> tuple[str, int]:
        """What axis `index` of a shape of `rank` axes is called: the text of its entry, and which axis of a star it is."""
        star = len(self.axes) if self.star is None else self.star
        size = rank - len(self.axes) + 1
        if index < star:
            return self.axes[index].text, 0
        if index < star + size:
            return self.axes[star].text, index - star
        return self.axes[index - size + 1].text, 0

    def __str__(self) -> str:
        return f"{'' if self.dtype == 'any' else self.dtype}[{' '.join(axis.text for axis in self.axes)}]"


@dataclass(frozen=True)
class Port:
    """A named input or output of a signature."""

    name: str
    pattern: Pattern
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'?' if self.optional else ''}: {self.pattern}"


@dataclass
class Bindings:
    """What the variables are: `dims["i"]`, `stars["b"]`, and the port each was first bound by (None: given as known)."""

    dims: dict[str, Dim] = field(default_factory=dict)
    stars: dict[str, Shape] = field(default_factory=dict)
    origin: dict[str, str | None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Dim:
        return self.dims[name]

    def __contains__(self, name: str) -> bool:
        return name in self.dims

    def size(self, axis: Axis, port: str) -> Dim:
        """The size of an axis that is not a star; raises Unbound."""
        assert axis.size is not None
        for name in axis.unknown(self):
            raise Unbound(name, port)
        return axis.size.substitute(self.dims)


@dataclass(frozen=True)
class Signature:
    """The input and output ports of an op or block, in order."""

    text: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def __str__(self) -> str:
        return self.text

    def port(self, name: str) -> Port:
        """The input port `name`; raises KeyError."""
        return _named(self.inputs, name)

    def output(self, name: str) -> Port:
        """The output `name`; raises KeyError."""
        return _named(self.outputs, name)

    def bind(self, inputs: Mapping[str, Shape | None], known: Mapping[str, Dim | int] | None = None) -> Bindings:
        """Unify the patterns of the given ports with their shapes, in port order; ports that are None or left out are skipped.

        Raises Mismatch, RankMismatch, Unbound for an axis such as `h*d` of a given port whose variables nothing else tells,
        and KeyError for a port the signature does not have.
        """
        for name in inputs:
            self.port(name)
        bindings = Bindings({n: Dim(size) for n, size in (known or {}).items()})
        bindings.origin.update(dict.fromkeys(bindings.dims))
        waiting: list[tuple[Port, int, Axis, Dim]] = []
        for port in self.inputs:
            shape = inputs.get(port.name)
            if shape is not None:
                waiting += [(port, i, axis, size) for i, axis, size in _align(port, shape, bindings)
                            if not _unify(port, i, axis, size, bindings)]
        while waiting:
            left = [item for item in waiting if not _unify(*item, bindings)]
            if len(left) == len(waiting):
                raise Unbound(left[0][2].unknown(bindings)[0], left[0][0].name)
            waiting = left
        return bindings

    def port_shape(self, name: str, bindings: Bindings) -> Shape:
        """The shape that input `name` must have, such as a parameter's; raises Unbound."""
        return self.shape(self.port(name), bindings)

    def output_shape(self, name: str, bindings: Bindings) -> Shape:
        """The shape of output `name`; raises Unbound."""
        return self.shape(self.output(name), bindings)

    def shape(self, port: Port, bindings: Bindings) -> Shape:
        """The shape of a port or output of this signature; raises Unbound."""
        shape: list[Dim] = []
        for axis in port.pattern.axes:
            if axis.size is not None:
                shape.append(bindings.size(axis, port.name))
            elif axis.text[1:] in bindings.stars:
                shape += bindings.stars[axis.text[1:]]
            else:
                raise Unbound(axis.text, port.name)
        return tuple(shape)


def spell(shape: Shape) -> str:
    """A shape as text: `[B, S + 1, 512]`."""
    return f"[{', '.join(map(str, shape))}]"


@lru_cache(maxsize=4096)
def parse_signature(text: str) -> Signature:
    """Read a signature; raises SignatureError, which says what is wrong with it."""
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise SignatureError(f"a signature is `inputs -> outputs`: `{text}`")
    inputs, outputs = _ports(left, "in", text), _ports(right, "out", text)
    if not outputs:
        raise SignatureError(f"no output after `->`: `{text}`")
    return Signature(text, inputs, outputs)


def _named(ports: tuple[Port, ...], name: str) -> Port:
    for port in ports:
        if port.name == name:
            return port
    raise KeyError(name)


def _align(port: Port, shape: Shape, bindings: Bindings) -> list[tuple[int, Axis, Dim]]:
    """Pair the axes of a pattern with sizes, binding its star on the way: (index in the shape, axis, size)."""
    axes, star = port.pattern.axes, port.pattern.star
    if star is None:
        if len(axes) != len(shape):
            raise RankMismatch(port.name, port.pattern, shape)
        return [(i, axis, size) for i, (axis, size) in enumerate(zip(axes, shape, strict=True))]
    after = len(axes) - star - 1
    stop = len(shape) - after
    if stop < star:
        raise RankMismatch(port.name, port.pattern, shape)
    _bind_star(port, axes[star].text, shape[star:stop], star, bindings)
    before = [(i, axes[i], shape[i]) for i in range(star)]
    return before + [(stop + i, axes[star + 1 + i], shape[stop + i]) for i in range(after)]


def _bind_star(port: Port, text: str, got: Shape, start: int, bindings: Bindings) -> None:
    expected = bindings.stars.setdefault(text[1:], got)
    if expected != got:
        index = next(start + i for i, (a, b) in enumerate(zip_longest(expected, got)) if a != b)
        raise Mismatch(port.name, text, expected, got, bindings.origin[text], index if len(expected) == len(got) else None)
    bindings.origin.setdefault(text, port.name)


def _unify(port: Port, index: int, axis: Axis, got: Dim, bindings: Bindings) -> bool:
    """Check or solve one axis; False when it has two unknown variables, which must wait for another port."""
    pattern, unknown = axis.size, axis.unknown(bindings)
    assert pattern is not None
    if len(unknown) > 1:
        return False
    if unknown:
        # solved before substituting, since sizes of the caller may have the names of variables here
        slope, rest = pattern.affine_in(unknown[0]) or (Dim(0), Dim(0))
        found = (got - rest.substitute(bindings.dims)).exact_div(slope.substitute(bindings.dims))
        if found is not None and (found.value is None or found.value >= 0):
            bindings.dims[unknown[0]] = found
            bindings.origin[unknown[0]] = port.name
            return True
    expected = pattern.substitute(bindings.dims)
    if unknown or expected != got:
        origins = [bindings.origin.get(name) for name in sorted(pattern.symbols())]
        first = next((origin for origin in origins if origin is not None), None)
        raise Mismatch(port.name, axis.text, expected, got, first, index)
    return True


_PORT = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)(?P<optional>\?)?\s*:\s*)?(?P<dtype>[A-Za-z]\w*)?\s*\[(?P<axes>[^][]*)\]\s*")
_STAR = re.compile(r"\*[A-Za-z_]\w*")


def _ports(text: str, unnamed: str, whole: str) -> tuple[Port, ...]:
    ports: list[Port] = []
    at = 0
    while text[at:].strip():
        found = _PORT.match(text, at)
        if not found or (found.end() < len(text) and text[found.end()] not in ";,"):
            raise SignatureError(f"expected `name: [axes]` at `{text[at:].strip()}` in `{whole}`")
        if found["dtype"] and found["dtype"] not in DTYPES:
            raise SignatureError(f"`{found['dtype']}` is not a dtype word ({', '.join(DTYPES)}) in `{whole}`")
        pattern = Pattern(_axes(found["axes"], whole), found["dtype"] or "any")
        ports.append(Port(found["name"] or unnamed, pattern, bool(found["optional"])))
        if not found["name"] and (len(ports) > 1 or text[found.end() :].strip()):
            raise SignatureError(f"only a single input or output may go without a name: `{whole}`")
        at = found.end() + 1
    if len({port.name for port in ports}) < len(ports):
        raise SignatureError(f"a name is used twice in `{whole}`")
    return tuple(ports)


def _axes(text: str, whole: str) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for word in re.findall(r"(?:\([^()]*\)|[^\s,()])+|[()]", text):
        if word.startswith("*"):
            if not _STAR.fullmatch(word):
                raise SignatureError(f"`{word}` is not a star variable in `{whole}`")
            axes.append(Axis(word, None))
            continue
        try:
            size = Dim.parse(word)
        except ValueError as error:
            raise SignatureError(f"{error} of `{whole}`") from None
        if any(not isinstance(atom, str) for monomial, _ in size.terms for atom in monomial):
            raise SignatureError(f"`{word}` is not integer-affine in its variables in `{whole}`")
        axes.append(Axis(word, size))
    if sum(axis.size is None for axis in axes) > 1:
        raise SignatureError(f"a pattern has at most one star variable: `[{text}]` in `{whole}`")
    return tuple(axes)
