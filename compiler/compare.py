"""A model against the values of a reference, given by path: which differ, and which is the first."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare_paths import Place, by_path, expose, outputs, places
from .lang.diagnostic import CheckFailed, Diagnostic, Diagnostics, Label, diagnostic, suggest
from .printing import columns
from .runtime.arguments import prepare
from .runtime.compare import Difference, Summary, compare, measure

if TYPE_CHECKING:
    from .model import Model

BETWEEN = 8                                      # paths named between two values that were given


@dataclass(frozen=True)
class Compared:
    """One value of the reference: the largest difference, absolute and relative to its largest number; `wrong` where that is too much."""

    name: str
    place: Place
    shape: tuple[int, ...]
    summary: Summary
    wrong: Difference | None


@dataclass(frozen=True)
class Comparison:
    """Every given value in the order of the graph."""

    values: tuple[Compared, ...]
    tolerance: float
    between: tuple[str, ...] = ()                # paths that were not given, from the last value that agrees to the first that does not

    @property
    def first(self) -> Compared | None:
        """The first value that differs."""
        return next((c for c in self.values if c.wrong), None)

    def check(self) -> None:
        """Raise CheckFailed (`differs`) that names the first value that differs, and where it was written."""
        if self.first is not None:
            raise CheckFailed([_told(self, self.first)])

    def table(self) -> str:
        """A row for each value."""
        rows = [("value", "shape", "max abs", "max rel", "")]
        for c in self.values:
            mark = "" if c.wrong is None else "differs first" if c is self.first else "differs"
            rows.append((c.name, str(list(c.shape)), f"{c.summary.max_abs:.2e}", f"{c.summary.max_rel:.2e}", mark))
        return "\n".join(columns(rows, frozenset({2, 3}))) + "\n"


def compare_values(model: Model, reference: Mapping[str, np.ndarray], weights: Any, tolerance: float) -> Comparison:
    """See `Model.compare`."""
    found = places(model.graph)
    known = {**by_path(found), **outputs(model.graph, found)}
    inputs = {a.name for a in model.graph.root.arguments}
    given = {name: array for name, array in reference.items() if name in inputs}
    wanted = _wanted({n: a for n, a in reference.items() if n not in inputs}, known, inputs)
    order = {p.key: k for k, p in reversed(list(enumerate(found)))}
    names = sorted(wanted, key=lambda n: order[wanted[n].key])
    got = _run(model, given, {n: wanted[n] for n in names}, weights)
    _check_shapes(got, reference, {n: wanted[n] for n in names})
    values = tuple(_compared(n, wanted[n], got[n], np.asarray(reference[n]), tolerance) for n in names)
    made = Comparison(values, tolerance)
    return replace(made, between=_between(made, found, order))


def _wanted(reference: Mapping[str, Any], known: Mapping[str, Place], inputs: set[str]) -> dict[str, Place]:
    if not reference:
        raise Diagnostics([diagnostic("bad-inputs", "the reference holds no value to compare", help=(
            "beside the inputs, give outputs of the model or paths of nodes, such as "
            f"{', '.join(f'`{n}`' for n in list(known)[:3])}"))])
    wrong = [diagnostic("unknown-name", f"the model has no value `{name}`", help=suggest(name, [*known, *inputs], "values"))
             for name in reference if name not in known]
    if wrong:
        raise Diagnostics(wrong)
    return {name: known[name] for name in reference}


def _run(model: Model, given: Mapping[str, np.ndarray], wanted: Mapping[str, Place], weights: Any) -> dict[str, np.ndarray]:
    """What the PyTorch module computes in float32 on the CPU, with every wanted value as an output."""
    from .artifacts.certify import reference
    from .artifacts.export import arguments
    from .backends.torch import build
    from .stages.hoist import hoist
    from .stages.simplify import simplify
    with tempfile.TemporaryDirectory() as scratch:
        manifest = model.export(scratch, no_weights=True, certify="none")
    arrays = prepare(manifest, given)
    unique = {p.key: p for p in wanted.values()}
    graph, shown = expose(model.graph, list(unique.values()))
    at = dict(zip(unique, shown, strict=True))
    module = build(simplify(hoist(graph)), seed=0)
    _fill(model, module, weights)
    found = reference(module, arguments(graph), arrays, manifest)
    return {name: found[at[p.key]] for name, p in wanted.items()}


def _fill(model: Model, module: Any, weights: Any) -> None:
    if isinstance(weights, str | Path):
        model.load_weights(module, weights)
        return
    from .artifacts.export import given_module
    module.load_state_dict({name: tensor.detach().cpu() for name, tensor in given_module(model, weights).state_dict().items()})


def _check_shapes(got: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray], wanted: Mapping[str, Place]) -> None:
    """The reference must have the shapes and kinds of the model's values: nothing is broadcast."""
    wrong: list[Diagnostic] = []
    for name, place in wanted.items():
        have, want = got[name], np.asarray(reference[name])
        kinds = {"i": "whole numbers", "u": "whole numbers", "f": "numbers", "b": "true and false"}
        if kinds.get(have.dtype.kind) != kinds.get(want.dtype.kind):
            wrong.append(diagnostic("bad-inputs", f"`{name}` of the reference is {want.dtype.name}, the model's is {have.dtype.name}",
                                    Label(place.origin.span, f"{place.type}"), help="save it in the dtype that the node gives"))
        elif have.shape != want.shape:
            turned = sorted(have.shape) == sorted(want.shape)
            wrong.append(diagnostic("bad-inputs", f"`{name}` of the reference has shape {list(want.shape)}, the model's {list(have.shape)}",
                                    Label(place.origin.span, f"{place.type}"),
                                    help="its axes seem to stand in another order: transpose it" if turned else
                                    "was it saved for the same inputs, and is it the value of this node?"))
    if wrong:
        raise Diagnostics(wrong)


def _compared(name: str, place: Place, got: np.ndarray, want: np.ndarray, tolerance: float) -> Compared:
    wrong = compare({name: got}, {name: want}, tolerance, 0.0)
    return Compared(name, place, got.shape, measure(got, want), wrong[0] if wrong else None)


def _between(made: Comparison, known: list[Place], order: Mapping[Any, int]) -> tuple[str, ...]:
    """The values that lie before the first that differs and after the last before it, inside which the cause is."""
    if made.first is None:
        return ()
    at = {c.name: order[c.place.key] for c in made.values}
    stop = at[made.first.name]
    start = max((k for k in at.values() if k < stop), default=-1)
    found: dict[Any, str] = {}
    for place in known[start + 1:stop]:
        if order[place.key] > start and not place.again:
            found.setdefault(place.key, place.path)
    return tuple(found.values())


def _told(made: Comparison, first: Compared) -> Diagnostic:
    assert first.wrong is not None
    place, count = first.place, sum(c.wrong is not None for c in made.values)
    before = [c.name for c in made.values[:made.values.index(first)]]
    notes = [first.wrong.text, f"{count} of {len(made.values)} values differ"]
    notes += [f"`{before[-1]}`, given before it, agrees"] if before else []
    few = made.between if len(made.between) <= BETWEEN else (*made.between[:BETWEEN - 1], f"... {len(made.between) - BETWEEN + 1} more")
    help = (f"look at its attributes, its inputs, and the parameters under `{place.path}`",)   # noqa: A001
    if made.between:
        help = (f"between them lie {', '.join(f'`{p}`' if ' ' not in p else p for p in few)}: give these in the reference too",)   # noqa: A001
    name = f"`{first.name}`" if first.name == place.path else f"`{first.name}` (`{place.path}`)"
    return diagnostic("differs", f"{name} is the first value that differs from the reference", Label(place.origin.span, place.what),
                      *(Label(span, "used here") for span in place.origin.chain), note=notes, help=help)
