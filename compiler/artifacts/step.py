"""Export of the step form: a model that takes a few positions at a time and its state, and one for what is fixed before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ..backends.onnx import emit
from ..backends.onnx.builder import typed
from ..backends.onnx.emit import Emitted, dimensions
from ..backends.onnx.fuse import on_cache
from ..ir.graph import Graph
from ..lang.diagnostic import Diagnostics, diagnostic, suggest
from ..runtime.steps import State, Stream
from ..stages.stream import step_form
from ..stages.stream.asked import asked
from ..stages.stream.form import CHUNK, SLOTS, StepForm
from ..stages.stream.form import State as FormState

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "bool": 1}


def emit_step(model: Any, along: str | None, target: str, dtype: str, without: frozenset[str],
              typical: Mapping[str, int] | None = None) -> tuple[Emitted, Emitted | None, Stream]:
    """The step model along an axis, the prefix model or None, and what the manifest says of them, all without some optional inputs.

    Raises Diagnostics, as `step_form` and `emit` do.
    """
    optional = {a.name for a in model.lowered.root.arguments if a.type.optional}
    form = step_form(model.lowered, along, without & optional)
    _check_without(model, form, without)
    steps = asked(form.step, {s.name for s in form.states})
    _check_typical(typical or {}, form, steps)
    step, prefix = emit(steps, target, dtype, (), model.spec_text, _known(typical, steps)), None
    if form.prefix is not None and form.told is not None:
        made = emit(form.prefix, target, dtype, without & {a.name for a in form.prefix.root.arguments}, "", _known(typical, form.prefix))
        prefix = replace(made, graph=form.told)
    return step, prefix, replace(stream(model, form, dtype), **_kernels(step))


def _kernels(step: Emitted) -> dict[str, Any]:
    """What kernels that write into caches ask of the runtime."""
    return {"by_row": any(map(on_cache, step.model.graph.node)), "tables": step.tables}


def stream(model: Any, form: StepForm, dtype: str) -> Stream:
    """What a manifest says of a step form."""
    limits = [b.limit for b in model.lowered.bounds if b.symbol == form.along]
    rows = form.states[0].type.shape[0] if form.states else None
    states = tuple(_state(s, rows, dtype) for s in form.states)
    return Stream(form.along, form.chunk, form.fixed, states, form.dropped, min(limits, default=None))


def _state(state: FormState, rows: Any, dtype: str) -> State:
    shape = tuple(str(d) if d.value is None else d.value for d in state.type.shape)
    element, layout = typed(state.type, dtype), state.layout
    sizes = [d.value for k, d in enumerate(state.type.shape) if k != state.axis and d != rows]
    grows = BYTES[element] * prod(n for n in sizes if n is not None) if state.kind == "append" else 0
    batch = next((k for k, d in enumerate(state.type.shape) if d == rows), 0)
    return State(state.name, state.kind, element, shape, batch, state.axis, layout.capacity if layout else None,
                 layout.window if layout else None, state.start, grows)


def _known(typical: Mapping[str, int] | None, graph: Graph) -> dict[str, int]:
    """The sizes of dimensions that one of the two models has."""
    return {k: n for k, n in (typical or {}).items() if k in dimensions(graph)}


def _check_typical(typical: Mapping[str, int], form: StepForm, steps: Graph) -> None:
    free = dict.fromkeys([*dimensions(steps), *(dimensions(form.prefix) if form.prefix is not None else ())])
    told = {form.along: f"along `{form.along}`, steps have `{CHUNK}` positions of a chunk, and `{SLOTS}` slots of a cache"}
    wrong = [diagnostic("unknown-name", f"the step form has no free dimension `{name}` to have a typical size", steps.root.origin.span,
                        help=told.get(name) or suggest(name, free, "dimensions")) for name in typical if name not in free]
    if wrong:
        raise Diagnostics(wrong)


def _check_without(model: Any, form: StepForm, without: frozenset[str]) -> None:
    known = {a.name: a.type.optional for a in model.lowered.root.arguments}
    wrong = [diagnostic("unknown-name", f"the model has no input `{name}` to leave out", model.lowered.root.origin.span,
                        help=suggest(name, known, "inputs")) for name in sorted(without - set(known))]
    wrong += [diagnostic("absent-value", f"input `{name}` cannot be left out: it is not optional", model.lowered.root.origin.span,
                         help=f"write `{name}: optional ...` in the spec's inputs")
              for name in sorted(without & set(known)) if not known[name] and name not in form.dropped]
    if wrong:
        raise Diagnostics(wrong)
