"""The key map: how every tensor of a new checkpoint is made of those of an old one, edit by edit, and which edits no tensor can follow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...checkpoints.weight_names import fold
from ...ir.graph import Graph
from ...ir.parameters import state_shapes
from ..replay import Step
from ..report import Edit, Place
from .plan import Plan, plan
from .recipes import KINDS, Recipe, Shape, source

SILENT, REFUSED = "silent", "refused"
WORST = (*KINDS[:-1], SILENT, REFUSED)


@dataclass(frozen=True)
class Move:
    """One edit as a checkpoint sees it: `kind` is of WORST, `why` says why it cannot be followed."""

    title: str
    rule: str
    place: Place | None
    kind: str
    why: tuple[str, ...]
    step: Step | None = None
    plan: Plan | None = None


@dataclass(frozen=True)
class KeyMap:
    """`recipes` say how every tensor of the head is made of the base's, by path; `dropped` are tensors of the base that no tensor is made
    of, with the edit that drops them; `shapes` are the base's; `by` is a file that says some of it, in words."""

    recipes: Mapping[str, Recipe]
    dropped: Mapping[str, str]
    moves: tuple[Move, ...]
    shapes: Mapping[str, Shape]
    by: str = ""

    @property
    def kind(self) -> str:
        """The worst kind of all edits."""
        return max((m.kind for m in self.moves), key=WORST.index, default="same")

    def count(self, kind: str) -> int:
        """New tensors of a kind."""
        return sum(r.worst == kind for r in self.recipes.values())

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """(kind, new, old, in words) of every tensor, copies folded; dropped ones have no new one."""
        alike: dict[tuple[str, str, str, str], list[tuple[str, list[str]]]] = {}
        for path, r in self.recipes.items():
            olds = [] if r.sources() == [path] else r.sources()
            alike.setdefault((r.worst, r.why, _plain(path), _plain(" ".join(olds))), []).append((path, olds))
        for (kind, why, _, _), pairs in alike.items():
            columns = list(zip(*(olds for _, olds in pairs), strict=True))
            yield kind, _folded(p for p, _ in pairs), ", ".join(map(_folded, columns)), why
        for path, _ in fold((p, e) for p, e in self.dropped.items()):
            yield "dropped", "", path, ""

    def data(self) -> dict[str, Any]:
        """The map as JSON has it, tensor by tensor."""
        return {
            "kind": self.kind,
            "counts": {k: self.count(k) for k in KINDS} | {"dropped": len(self.dropped)},
            "folded": [{"kind": kind, "to": new, "from": old, "text": why} for kind, new, old, why in self.rows()],
            "edits": [{"title": m.title, "rule": m.rule, "kind": m.kind, "why": list(m.why)} for m in self.moves],
            "tensors": [{"to": p, "shape": list(r.shape), "kind": r.worst, "from": r.sources(), "steps": [step_data(s) for s in r.steps()]}
                        for p, r in self.recipes.items()],
            "dropped": [{"from": p, "shape": list(self.shapes[p]), "edit": e} for p, e in self.dropped.items()]}


def key_map(base: Graph, head: Graph, steps: Sequence[Step], edits: Sequence[Edit]) -> KeyMap:
    """The map over all edits, which `edits` name in the order of `steps`; further ones are those that no step explains."""
    shapes = state_shapes(base)
    state: dict[str, Recipe] = {p: source(p, s) for p, s in shapes.items()}
    dropped: dict[str, str] = {}
    moves = []
    for step, edit in zip(steps, edits, strict=False):
        made = plan(step.before, step.after, step.found.findings, step.found.tensors)
        gone = {n for p in made.dropped for n in state[p].sources()}
        state = {p: _over(r, state, p) for p, r in made.recipes.items()}
        left = {n for r in state.values() for n in r.sources()}
        dropped |= {n: edit.title for n in gone if n not in left}
        moves.append(Move(edit.title, edit.rule, edit.head or edit.base, made.kind, tuple(made.why), step, made))
    moves += [Move(e.title, e.rule, e.head or e.base, SILENT, ("the function is another, and no edit of the spec explains it",))
              for e in edits[len(steps):] if e.rule == "model.changed"]
    lost = Recipe("none", (), REFUSED, text="no tensor of the base is it")
    return KeyMap({p: state.get(p) or replace(lost, shape=s) for p, s in state_shapes(head).items()}, dropped, tuple(moves), shapes)


def _over(recipe: Recipe, state: Mapping[str, Recipe], path: str) -> Recipe:
    """A recipe over the tensors before an edit, as one over those of the base."""
    if recipe.op == "source":
        under = state[recipe.name]
        return replace(under, kind="same" if under.name == path else "renamed") if under.op == "source" else under
    return replace(recipe, parts=tuple(_over(p, state, path) for p in recipe.parts)) if recipe.parts else recipe


def _plain(text: str) -> str:
    """A path without the numbers of copies."""
    return re.sub(r"(?<![^. ])\d+(?![^. ])", "{i}", text)


def _folded(paths: Iterable[str]) -> str:
    """Paths that differ in numbers alone, as one: `layers.{0..11}.norm.weight`."""
    return ", ".join(name for name, _ in fold((p, "") for p in dict.fromkeys(paths)))


def step_data(step: Recipe) -> dict[str, Any]:
    """One step of a recipe; rows as ranges of numbers."""
    out: dict[str, Any] = {"op": step.op, "shape": list(step.shape), "text": step.text}
    if step.index is not None and step.index.ndim == 1:
        out["rows"] = ranges(step.index.tolist())
    elif step.index is not None:
        out["groups"] = step.index.shape[1]
    return out | ({"value": step.value} if step.op in ("fill", "random") else {})


def ranges(rows: list[int]) -> list[list[int]]:
    """[first, end] of every run of rows."""
    out: list[list[int]] = []
    for k in rows:
        if out and out[-1][1] == k:
            out[-1][1] = k + 1
        else:
            out.append([k, k + 1])
    return out
