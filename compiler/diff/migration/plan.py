"""`Step -> Plan`: how every tensor after one edit is made of those before it, and whether the function is kept."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...checkpoints.weight_names import fold
from ...ir.graph import Branch, Graph, Region, Repeat, bodies
from ...ir.parameters import ParameterEntry, expand
from ..graphs.concepts import name_of
from ..replay import Step
from ..report import Consequence, Conversion, TensorChange
from ..rules import RULES
from ..verdict import residual_ends, told
from .recipes import KINDS, Recipe, Shape, source
from .unify import Rows, Unified, unify

# Changes of the function that tensors follow; others leave every tensor as it is.
FOLLOWED = frozenset({
    "attention.kv-heads-changed", "embedding.rows-changed", "position.table-resized", "ffn.hidden-changed", "stack.count-increased",
    "stack.count-decreased", "block.added", "block.removed", "weights.untied", "weights.tied", "weights.shared", "weights.unshared",
    "bias.added", "bias.removed"})
# Changes after which a model has to be trained again, that take tensors away or start some at a constant.
LOSSY = frozenset({"norm.type-changed", "norm.added", "norm.removed", "position.type-changed", "position.added", "position.removed",
                   "parameter.removed"})
# Changes that say little of what is computed: the function may be the same, written in another way.
VAGUE = frozenset({"node.attribute-changed", "node.rewired", "node.swapped", "node.added", "node.removed", "node.width-changed",
                   "block.swapped", "attention.type-changed", "ffn.type-changed", "model.changed"})
GROWN = ("stack.count-increased", "block.added")
KV = "attention.kv-heads-changed"
RESIZED = {"embedding.rows-changed": "rows", "position.table-resized": "rows", "ffn.hidden-changed": "units"}


@dataclass
class Plan:
    """`recipes` are over the tensors before the edit, by new path; `dropped` are those that nothing is made of. `kind` is same, renamed,
    exact, approx, silent or refused; `why` are the reasons of the last two, in words."""

    recipes: dict[str, Recipe]
    dropped: list[str]
    kind: str
    why: list[str] = field(default_factory=list)


def plan(before: Graph, after: Graph, findings: Sequence[Consequence], tensors: Sequence[TensorChange]) -> Plan:
    """What an edit from `before` to `after` does to a checkpoint; the findings are those of `compare_graphs`, unsorted."""
    work = _Planner(before, after, findings, tensors)
    for path, entry in work.theirs.items():
        work.recipes[path] = work.recipe(path, entry)
    uses = Counter(r.name for r in work.recipes.values() if r.op == "source")
    many = "a copy in every expert" if work.walked.free else "a copy: it was the same tensor"
    work.recipes |= {p: Recipe("copy", r.shape, "exact", (source(r.name, r.shape),), text=many)
                     for p, r in work.recipes.items() if uses[r.name] > 1 and p != r.name}
    used = {n for r in work.recipes.values() for n in r.sources()}
    dropped = [p for p in work.ours if p not in used]
    kind, why = work.kind(dropped)
    return Plan(work.recipes, dropped, kind, why)


class _Planner:
    def __init__(self, before: Graph, after: Graph, findings: Sequence[Consequence], tensors: Sequence[TensorChange]):
        self.before, self.after, self.findings = before, after, findings
        self.ours: dict[str, ParameterEntry] = dict(expand(before))
        self.theirs: dict[str, ParameterEntry] = dict(expand(after))
        self.walked: Unified = unify(before, after)
        self.rows = dict(_rows(self.walked)) if self.walked.rows else {}
        read = {new: old for b, a in self.walked.same.items() for old, new in zip(a.paths(), b.paths(), strict=True)}
        named = {new: old for t in tensors for old, new in t.renames()}
        if self.walked.differences:                     # what is read in the same way need not be the same: what was not edited stays
            still = {new for t in tensors if t.status in ("kept", "renamed") for _, new in t.renames()}
            taken = set() if {f.rule for f in findings} & {"weights.unshared", "weights.untied"} else {named[new] for new in still}
            self.rows = {k: v for k, v in self.rows.items() if f"{k}.weight" not in still and not {f"{o}.weight" for o in v[0]} & taken}
            read = {new: old for new, old in read.items() if new not in named and old not in taken}
        self.same = {**named, **read}
        self.free = {p for w in self.walked.free for p in w.paths()}
        self.fresh = {p for w in self.walked.fresh for p in w.paths()}
        self.fresh |= {p for f in findings if f.rule == "bias.added" for p in f.where.paths()}
        self.rules = {f.rule for f in told(findings)}
        self.raw = {f.rule for f in findings}
        self.recipes: dict[str, Recipe] = {}
        self.held: dict[tuple[str, str, Shape], list[tuple[int, str]]] | None = None
        self.ends: dict[tuple[str, int], list[str]] = {}
        self.stems = {p for f in findings if f.rule in GROWN for p in f.where.paths()}

    # tensors

    def recipe(self, path: str, entry: ParameterEntry) -> Recipe:
        """The tensor at a new path."""
        layer, _, port = path.rpartition(".")
        if layer in self.rows and port in ("weight", "bias"):
            found = self.of_rows(path, entry.shape, port, *self.rows[layer])
            if found is not None:
                return found
        old = self.same.get(path)
        if old in self.ours:
            return self.resized(path, entry, old)
        if path in self.free:
            return _random(path, entry)
        if path in self.fresh:
            return Recipe("fill", entry.shape, "exact", text="starts at zero, as if it was not there")
        return self.grown(path, entry) or _constant(entry) or _none(entry.shape, "new, and nothing of the old model says how it starts")

    def of_rows(self, path: str, shape: Shape, port: str, olds: tuple[str, ...], rows: Rows) -> Recipe | None:
        """A linear layer made of rows of others; None where it is one of them as it is."""
        import numpy as np
        names = [f"{o}.{port}" for o in olds]
        held = [n for n in names if n in self.ours]
        if not held:
            return None
        if len(held) < len(names):
            return _none(shape, f"only some of the layers that it is made of have a {port}")
        parts = tuple(source(n, self.ours[n].shape) for n in names)
        index, many = rows.index, rows.index.shape[1] > 1
        if any(p.shape[1:] != shape[1:] for p in parts):
            return None
        if not many and len(parts) == 1 and np.array_equal(index[:, 0], np.arange(parts[0].shape[0])):
            return _carried(path, parts[0])
        grouped = many or len(np.unique(index)) < len(index)
        if grouped and (KV not in self.raw or "attention.heads-changed" in self.raw):
            return _none(shape, "the number of heads changed, and heads of queries are not made of each other")
        if many:
            return Recipe("mean-rows", shape, "approx", parts, index=index, text=f"mean of every {index.shape[1]} heads of keys and values")
        if grouped:
            return Recipe("repeat-rows", shape, "exact", parts, index=index[:, 0], text="its heads of keys and values several times")
        return Recipe("rows", shape, "exact", parts, index=index[:, 0], text=_said(olds, len(index), sum(p.shape[0] for p in parts)))

    def resized(self, path: str, entry: ParameterEntry, old: str) -> Recipe:
        """A tensor of another size: rows or columns more or fewer, where an edit says so."""
        part, shape = source(old, self.ours[old].shape), entry.shape
        if part.shape == shape:
            return _carried(path, part)
        axes = [k for k in range(len(shape)) if len(part.shape) == len(shape) and part.shape[k] != shape[k]]
        for f in self.findings if len(axes) == 1 else ():
            was, now = (v.get("width") if isinstance(v, dict) else v for v in (f.before, f.after))
            heads = f.rule == "node.width-changed" and self.gives(path.rpartition(".")[0])
            if (heads or f.rule in RESIZED) and (was, now) == (part.shape[axes[0]], shape[axes[0]]):
                found = _resize(part, shape, axes[0], RESIZED.get(f.rule, "rows"), op_at(self.after.root, path.rpartition(".")[0]))
                if found is not None:
                    return found
        return _none(shape, f"{list(part.shape)} before, and its numbers have no place in the new shape")

    def gives(self, layer: str) -> bool:
        """Whether a layer gives an output of the model."""
        root = self.after.root
        return any(v.node >= 0 and root.nodes[v.node].name == layer for _, v in root.outputs)

    def grown(self, path: str, entry: ParameterEntry) -> Recipe | None:
        """A tensor of a new copy: that of the nearest copy, zero where its terms of the residual sum end."""
        for cut in re.finditer(r"\.(\d+)\.", path):
            stack, number, rest = path[:cut.start()], int(cut[1]), path[cut.end():]
            if f"{stack}.{number}" not in self.stems:
                continue
            if (stack, number) not in self.ends:
                self.ends[stack, number] = residual_ends(self.after, stack, number)
            ends = self.ends[stack, number]
            near = self.neighbour(stack, number, rest, entry.shape)
            if not ends:
                return _none(entry.shape, "the new copy is no sum with its input, so nothing keeps the function")
            if re.sub(r"\.\d+(?=\.)", ".{i}", rest.rpartition(".")[0]) in ends:
                return Recipe("fill", entry.shape, "exact", text="starts at zero: the new copy adds nothing")
            if near is None:
                return _none(entry.shape, "no old copy is like the new one")
            return Recipe("copy", entry.shape, "exact", (near,), text="as in the copy beside it")
        return None

    def neighbour(self, stack: str, number: int, rest: str, shape: Shape) -> Recipe | None:
        """The same tensor of the nearest copy that the old model has, those before first."""
        if self.held is None:
            self.held = {}
            for path, old in self.same.items():
                for cut in re.finditer(r"\.(\d+)\.", path) if old in self.ours else ():
                    key = (path[:cut.start()], path[cut.end():], self.ours[old].shape)
                    self.held.setdefault(key, []).append((int(cut[1]), old))
            for found in self.held.values():
                found.sort()
        copies = self.held.get((stack, rest, shape), [])
        at = bisect_left(copies, (number, ""))
        return source(copies[at - 1 if at else 0][1], shape) if copies else None

    # the edit

    def kind(self, dropped: list[str]) -> tuple[str, list[str]]:
        """What the edit does to the whole, and why where it cannot be followed."""
        refused = fold((p, r.why) for p, r in self.recipes.items() if r.worst == "refused")
        if refused:
            return "refused", [f"`{path}`: {why}" for path, why in refused]
        worst = max((r.worst for r in self.recipes.values()), key=KINDS.index, default="same")
        lossy = bool(dropped) or worst == "approx"
        if not self.walked.differences:
            return ("approx" if lossy else worst), []
        changed = {r for r in self.rules if RULES[r].effect == "function"}
        rest = changed - FOLLOWED
        if rest and not (rest <= LOSSY and lossy):
            return "silent", [f"{RULES[r].text} changed (`{r}`), and no tensor follows" for r in self.rules if r in rest]
        if lossy:
            return "approx", []
        return worst, []


def _rows(walked: Unified) -> Iterator[tuple[str, tuple[tuple[str, ...], Rows]]]:
    """Linear layers by path, with the layers that their rows come from."""
    for head, rows in walked.rows.items():
        for new, *olds in zip(head.paths(), *(s.paths() for s in rows.sources), strict=True):
            yield new, (tuple(olds), rows)


def _carried(path: str, part: Recipe) -> Recipe:
    """A tensor as it was, perhaps under another name."""
    return part if part.name == path else Recipe("source", part.shape, "renamed", name=part.name)


def _none(shape: Shape, why: str) -> Recipe:
    return Recipe("none", shape, "refused", text=why)


def _random(path: str, entry: ParameterEntry) -> Recipe:
    """The matrix of a router, as large as in a new model."""
    start = entry.start.get("normal") if isinstance(entry.start, dict) else None
    std = float(start) if start else (3 * entry.shape[-1]) ** -0.5
    return Recipe("random", entry.shape, "exact", name=path, value=std,
                  text="random: the experts are equal, so that any choice of them gives the same")


def _constant(entry: ParameterEntry) -> Recipe | None:
    """A new tensor that starts at one number."""
    value = {"zeros": 0.0, "ones": 1.0}.get(entry.start) if isinstance(entry.start, str) else None
    return None if value is None else Recipe("fill", entry.shape, "approx", value=value, text=f"starts at {value:g}, as in a new model")


def _resize(part: Recipe, shape: Shape, axis: int, what: str, op: str) -> Recipe | None:
    """More or fewer rows of a table, or inner units of a feed-forward block: new units read as old ones do, and are read with zeros."""
    more = shape[axis] - part.shape[axis]
    if what == "rows":
        if axis != 0 or op not in ("embedding", "linear"):
            return None
        return Recipe("pad-rows", shape, "exact", (part,), text=f"{more:,} rows of zeros behind its {part.shape[0]:,}") if more > 0 else \
            Recipe("cut-rows", shape, "approx", (part,), text=f"the first {shape[0]:,} of its {part.shape[0]:,} rows")
    if op != "linear" or axis > 1:
        return None
    if axis == 0:
        return Recipe("more-rows", shape, "exact", (part,), text=f"{more:,} more units, which read as the first ones do") if more > 0 else \
            Recipe("cut-rows", shape, "approx", (part,), text=f"the first {shape[0]:,} of {part.shape[0]:,} units")
    return Recipe("pad-columns", shape, "exact", (part,), text=f"{more:,} more units are read with zeros") if more > 0 else \
        Recipe("cut-columns", shape, "approx", (part,), text=f"the first {shape[1]:,} of {part.shape[1]:,} units")


def _said(olds: Sequence[str], rows: int, held: int) -> str:
    """`rows of query, key and value, one below the other`"""
    names = [o.rpartition(".")[2] for o in olds]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"rows of {listed}, joined" if len(names) > 1 else f"{rows:,} of the {held:,} rows of {listed}" if rows < held else \
        f"the rows of {listed} in another order"


def op_at(region: Region, path: str) -> str:
    """The name of the op at a concrete path; empty where there is none."""
    for node in region.nodes:
        if node.name == path:
            return name_of(node)
        held = bodies(node)
        if held and path.startswith(f"{node.name}." if node.name else ""):
            rest = path[len(node.name) + 1 if node.name else 0:]
            if isinstance(node.op, Repeat | Branch):
                number, _, rest = rest.partition(".")
                if not number.isdecimal():
                    continue
                held = (held[node.op.schedule[int(number)]],)
            return op_at(held[0], rest)
    return ""


def followed(step: Step, checkpoint: str, way: Conversion | None) -> tuple[str, Conversion | None]:
    """The class of an edit and its conversion, put right: what is told as exact where something else changed too is not, and tensors that
    are the old ones joined, split or in another order lose nothing."""
    rules = {f.rule for f in told(step.found.findings) if RULES[f.rule].effect == "function"}
    if checkpoint == "exact" and way is not None and way.op == "copy-experts":
        made = plan(step.before, step.after, step.found.findings, step.found.tensors)
        return (checkpoint, way) if made.kind == "exact" else ("partial", replace(way, kind="reinit"))
    if checkpoint == "exact" and rules - FOLLOWED - LOSSY and not (rules <= VAGUE):
        return "approx", way
    if checkpoint in ("partial", "none") and _elements(step.found.tensors, "base") != _elements(step.found.tensors, "head") \
            or checkpoint == "silent" and not rules <= VAGUE or checkpoint not in ("silent", "partial", "none"):
        return checkpoint, way                  # without a look at every row, which takes time and numpy
    made = plan(step.before, step.after, step.found.findings, step.found.tensors)
    if made.kind not in ("same", "renamed", "exact"):
        return checkpoint, way
    texts = "; ".join(dict.fromkeys(r.why for r in made.recipes.values() if r.why))
    return made.kind, Conversion("exact", "repack", texts) if made.kind == "exact" else None


def _elements(tensors: Sequence[TensorChange], side: Literal["base", "head"]) -> int:
    return sum(t.elements(side) for t in tensors)
