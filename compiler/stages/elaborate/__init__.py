"""`Spec -> typed Graph`: expand blocks, bind names, solve settings from shapes, and type every node as it is made."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...ir.builder import RegionBuilder
from ...ir.dimension import Dim
from ...ir.evaluate import evaluate
from ...ir.graph import Bound, Graph, Origin, TensorType
from ...lang.diagnostic import Sink, fault
from ...lang.source import Span
from ...lang.spec import Spec, TypeText
from ...lang.tree import chosen_blocks
from .attributes import word
from .expand import Expander
from .scope import Poisoned, Scope


def elaborate(spec: Spec, sink: Sink) -> Graph | None:
    """The whole model as one graph; errors and warnings go to `sink`, and None comes back when there are errors."""
    main = spec.main
    builder = RegionBuilder(main.name.text, Origin(main.span))
    builder.about = spec.about
    scope = Scope(main, builder)
    sizes: dict[str, Any] = {}
    bounds: list[Bound] = []
    for name, declared in main.inputs.items():
        for dim in declared.type.dims:
            for symbol in sorted(dim.expression.names()) if dim.expression else ():
                if symbol[0].isupper():
                    scope.dims[symbol] = Dim.symbol(symbol)
        with sink.catch(), suppress(Poisoned):
            scope.failed.add(name)
            scope.values[name] = builder.argument(name, _input_type(declared.type, scope, bounds))
            scope.failed.discard(name)
    for name in main.unit.sizes:
        with sink.catch(), suppress(Poisoned):
            sizes[name] = scope.size(name)
    expander = Expander(sink, main)
    region = expander.graph(main, scope)
    expander.check_unused_blocks(chosen_blocks(spec.tree, spec.checkpoint))
    if sink.errors or region is None:
        return None
    expander.warn_unused()
    return Graph(spec.name, region, spec.about, tuple(bounds), sizes)


def _input_type(declared: TypeText, scope: Scope, bounds: list[Bound]) -> TensorType:
    shape = []
    for dim in declared.dims:
        if dim.star or dim.expression is None:
            raise fault("bad-type", "an input of the model has a fixed rank; `*` is for blocks", dim.span)
        size = evaluate(dim.expression, scope.lookup())
        size = size if isinstance(size, Dim) else Dim.const(_whole(size, dim.span, scope))
        shape.append(size)
        if dim.limit is not None:
            bounds.append(_bound(size, _whole(evaluate(dim.limit, scope.lookup()), dim.limit.span, scope, 1), dim.span))
    return TensorType(declared.dtype, tuple(shape), declared.optional)


def _bound(size: Dim, limit: int, span: Span) -> Bound:
    """The most that the free dimension of `size` may be, so that `size` is at most `limit`."""
    name = min(size.symbols(), default="")
    slope, rest = size.affine_in(name) or (Dim.const(0), Dim.const(0))
    if slope.value is None or rest.value is None or slope.value < 1 or limit < slope.value + rest.value:
        raise fault("bad-type", f"no bound {limit} can be set on `{size}`", span,
                    help="bound an axis of one free dimension, such as `S <= 1024` or `2*S <= 3000`")
    return Bound(name, (limit - rest.value) // slope.value, span)


def _whole(value: object, span: Span, scope: Scope, least: int = 0) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise scope.traced(fault("bad-type", f"a size is a whole number from {least}, not {word(value)}", span))
    return value
