"""Written types against actual ones: binds a block's free dimensions and the settings that shapes decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...ir.dimension import Dim
from ...ir.evaluate import evaluate
from ...ir.graph import Shape, TensorType
from ...ir.signature import spell
from ...lang.diagnostic import Fault, Label, fault
from ...lang.source import Span
from ...lang.spec import DimText, TypeText
from .attributes import word
from .scope import Scope


@dataclass
class Waiting:
    port: str
    dim: DimText
    actual: Dim
    at: Span
    whole: TensorType


@dataclass
class Unifier:
    """Unifies one block's input types. `local` holds names that only the signature knows (slots), or is None."""

    scope: Scope
    owner: str
    local: dict[str, Dim] | None = None
    waiting: list[Waiting] = field(default_factory=list)
    binder: dict[str, tuple[Span, str]] = field(default_factory=dict)

    def take(self, port: str, declared: TypeText, actual: TensorType, at: Span) -> None:
        """Unify one port; dimensions that need a name bound later wait for `settle`."""
        if declared.dtype != actual.dtype:
            raise fault("dtype-mismatch", f"`{port}` of {self.owner} takes {declared.dtype}, not {actual.dtype}",
                        Label(at, f"this is {actual}"), Label(declared.span, f"declared {declared.dtype} here"))
        if actual.optional and not declared.optional:
            raise fault("absent-value", f"`{port}` of {self.owner} must be there, and this may be absent",
                        Label(at, "optional"), Label(declared.span, "not optional here"),
                        help=f"declare `{port}` optional in {self.owner}, or make the input required")
        for dim, size in self._align(port, declared, actual, at):
            if isinstance(size, tuple):
                assert dim.star
                self._star(port, dim.star, size, at, declared)
            elif not self._one(port, dim, size, at, actual):
                self.waiting.append(Waiting(port, dim, size, at, actual))
        self.settle()

    def settle(self) -> None:
        """Retry what waited until nothing more is learned."""
        progress = True
        while progress and self.waiting:
            before, self.waiting = self.waiting, []
            for w in before:
                if not self._one(w.port, w.dim, w.actual, w.at, w.whole):
                    self.waiting.append(w)
            progress = len(self.waiting) < len(before)

    def finish(self) -> None:
        """After every setting has a value: whatever still waits is compared."""
        self.settle()
        for w in self.waiting:
            assert w.dim.expression is not None
            evaluate(w.dim.expression, self.scope.lookup())       # raises for the name that nothing binds

    def shape(self, declared: TypeText) -> Shape | None:
        """The declared shape with what is bound so far, or None when a name is still unknown."""
        out: list[Dim] = []
        for dim in declared.dims:
            if dim.star:
                if dim.star not in self.scope.stars:
                    return None
                out.extend(self.scope.stars[dim.star])
            else:
                size = self._evaluate(dim)
                if any(s.startswith("_") for s in size.symbols()):
                    return None
                out.append(size)
        return tuple(out)

    def _align(self, port: str, declared: TypeText, actual: TensorType, at: Span) -> list[tuple[DimText, Any]]:
        star = next((i for i, d in enumerate(declared.dims) if d.star), None)
        n, have = len(declared.dims), len(actual.shape)
        if have < n - 1 if star is not None else have != n:
            written = ", ".join(d.span.text.strip() for d in declared.dims)
            want = n if star is None else f"{n - 1} or more"
            raise fault("rank-mismatch", f"`{port}` of {self.owner} takes {want} axes, not {have}",
                        Label(at, f"this is {spell(actual.shape)}"), Label(declared.span, f"declared [{written}] here"))
        if star is None:
            return list(zip(declared.dims, actual.shape, strict=True))
        after = n - 1 - star
        middle = actual.shape[star:have - after]
        return [*zip(declared.dims[:star], actual.shape[:star], strict=True), (declared.dims[star], middle),
                *zip(declared.dims[star + 1:], actual.shape[have - after:], strict=True)]

    def _star(self, port: str, name: str, got: Shape, at: Span, declared: TypeText) -> None:
        have = self.scope.stars.setdefault(name, got)
        if have != got:
            raise fault("shape-mismatch", f"`{port}` of {self.owner} disagrees about `*{name}`",
                        Label(at, f"`*{name}` = {spell(got)}"),
                        Label(declared.span, f"`*{name}` = {spell(have)} elsewhere"))

    def _one(self, port: str, dim: DimText, actual: Dim, at: Span, whole: TensorType) -> bool:
        want = self._evaluate(dim)
        unknown = {s for s in want.symbols() if s.startswith("_")}
        if not unknown:
            if want != actual:
                raise self._mismatch(port, dim, want, actual, at, whole)
            return True
        solved = want.solve_for(actual, unknown)
        if not solved:
            if len(unknown) == 1 and want.affine_in(next(iter(unknown))):
                raise fault("shape-mismatch", f"no size makes `{dim.span.text}` equal to {actual} in `{port}` of {self.owner}",
                            Label(at, f"this is {spell(whole.shape)}"), Label(dim.span, "expected here"))
            return False
        for symbol, value in solved.items():
            self._bind(symbol[1:], value, at)
        return True

    def _bind(self, name: str, value: Dim, at: Span) -> None:
        self.binder[name] = (at, str(value))
        if name[0].isupper():
            self.scope.dims[name] = value
        elif self.local is not None and name not in self.scope.block.settings:
            self.local[name] = value
        else:
            self.scope.settings[name] = value.value if value.value is not None else value
            self.scope.setting_spans.setdefault(name, at)

    def _evaluate(self, dim: DimText) -> Dim:
        """The declared size; names without a value stand as symbols that start with `_`."""
        assert dim.expression is not None

        def find(name: str, span: Span) -> Any:
            scope = self.scope
            if self.local is not None and name in self.local:
                return self.local[name]
            free = name[0].isupper() and name not in scope.dims
            unset = name in scope.block.settings and name not in scope.settings
            local = self.local is not None and name not in scope.settings and name not in scope.block.unit.sizes
            if free or unset or (local and name not in scope.dims):
                return Dim.symbol(f"_{name}")
            return scope.lookup()(name, span)

        found = evaluate(dim.expression, find)
        if isinstance(found, bool | str | list) or (isinstance(found, float) and not found.is_integer()):
            raise self.scope.traced(fault("bad-type", f"a size is a whole number, not {word(found)}", dim.span))
        return found if isinstance(found, Dim) else Dim.const(int(found))

    def _mismatch(self, port: str, dim: DimText, want: Dim, actual: Dim, at: Span, whole: TensorType) -> Fault:
        text = dim.span.text.strip()
        bound = next((Label(span, f"`{n}` = {v} from here") for n, (span, v) in self.binder.items()
                      if dim.expression and n in dim.expression.names() and span != at), None)
        shown = f"this is {spell(whole.shape)}" if text == str(want) else f"`{text}` = {actual} in {spell(whole.shape)}"
        return fault("shape-mismatch", f"`{port}` of {self.owner} disagrees about `{text}`", Label(at, shown),
                     Label(dim.span, f"expected {want}"), bound)
