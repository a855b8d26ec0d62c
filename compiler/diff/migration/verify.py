"""Claims of a comparison checked by running: both models with the same weights, brought over by the key map, on the same random inputs, by
PyTorch in float64 (float32 where they are large) and, in float32, by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...artifacts.certify import inputs, sweep
from ...artifacts.export import whole_inputs
from ...ir.graph import Control, Graph, Node, Repeat
from ...ir.parameters import count
from ...ir.twin import twin
from ...runtime.errors import ArtifactError
from ...runtime.manifest import Input, Manifest, ModelFile
from ...stages.hoist import hoist
from ...stages.simplify import simplify
from ..graphs.regions import compare_graphs
from ..report import Edit
from .engines import ENGINES, ONNX, TORCH, Arrays, Difference, NotRun, difference, diverging
from .keys import SILENT, KeyMap, Move
from .plan import plan
from .recipes import Read, Recipe, made

if TYPE_CHECKING:
    import torch

DOUBLE, MOST = 40_000_000, 400_000_000       # parameters up to which a model is run in float64, and at all
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}                   # of the largest number of an output
SHORT, CASES = 16, 8
SAME, OTHER, MEASURED = "same function", "another function", "measured"
BOTH = (TORCH, ONNX)
Cases = list[tuple[Mapping[str, int], Arrays]]                   # sizes of free dimensions, and random inputs of them


@dataclass(frozen=True)
class Ran:
    """What one engine showed: the largest difference, absolute and of the largest number of the outputs (`scale`), and how much of it
    is allowed. `note` says why where it did not run, and `max_abs` is None then."""

    engine: str
    dtype: str
    tolerance: float
    max_abs: float | None = None
    max_rel: float | None = None
    scale: float | None = None
    batches: int = 0
    note: str = ""

    @property
    def said(self) -> str:
        """The numbers in words; why there are none, where it did not run."""
        if self.max_abs is None:
            return f"did not run: {self.note}"
        more = f"; {self.note}" if self.note else ""
        batches = f"{self.batches} batch{'es' * (self.batches != 1)}"
        return f"differs by {self.max_abs:.2g}, {self.max_rel:.1g} of the largest number ({self.tolerance:.0e} allowed) on {batches}{more}"

    def __str__(self) -> str:
        return f"{self.engine} {self.dtype} {self.said}"

    def data(self) -> dict[str, Any]:
        return {"ran": self.max_abs is not None, **self.__dict__, "said": self.said}


@dataclass(frozen=True)
class Checked:
    """One claim: `holds` is None where it could not be decided, and `note` says why. Numbers are those of PyTorch; `runs` are of every
    engine. `scale` is the largest number of the outputs, `first` the first node whose value is another one, where outputs differ."""

    what: str
    claim: str
    holds: bool | None
    max_abs: float | None = None
    scale: float | None = None
    dtype: str = ""
    cases: int = 0
    note: str = ""
    first: str = ""
    runs: tuple[Ran, ...] = ()

    @property
    def said(self) -> str:
        """What came of it, in words; never that a claim was verified where nothing ran."""
        if self.max_abs is None:
            return f"not verified: {self.note}"
        said = {(SAME, True): "the same function", (SAME, False): "NOT the same function", (OTHER, True): "another function, as claimed",
                (OTHER, None): "no difference found", (OTHER, False): "no difference found"}.get((self.claim, self.holds), "measured")
        return "; ".join(filter(None, (said, f"the first node that differs is {self.first}" if self.first else "", self.note)))

    def __str__(self) -> str:
        return "; ".join([f"{self.what}: {self.said}", *map(str, self.runs)])

    def data(self) -> dict[str, Any]:
        return {"what": self.what, "claim": self.claim, "holds": self.holds, "max_abs": self.max_abs, "scale": self.scale,
                "dtype": self.dtype, "cases": self.cases, "note": self.note, "first": self.first, "said": self.said,
                "runs": [r.data() for r in self.runs]}


def verify(base: Graph, head: Graph, keys: KeyMap, edits: tuple[Edit, ...], read: Read | None = None,
           engines: Sequence[str] = BOTH) -> list[Checked]:
    """Every claim that can be run: edits that keep the function, edits that change it silently, and the whole where no edit changes it.

    `read` gives the base's parameters by path, for the whole; other claims are checked with random weights, each number of them moved.
    """
    out = []
    for move, edit in zip(keys.moves, edits, strict=False):
        if move.step is not None:
            out.append(edit_checked(move, read if len(keys.moves) == 1 else None, engines))
        else:
            out.append(Checked(edit.title, OTHER, None, note="the edit cannot be told apart"))
    if len(keys.moves) != 1 and keys.kind not in (SILENT, "refused"):
        out.append(whole_checked(base, head, keys, read, engines))
    return out


def whole_checked(base: Graph, head: Graph, keys: KeyMap, read: Read | None, engines: Sequence[str] = (TORCH,)) -> Checked:
    """All edits together, of which none is silent or refused; with the weights that `read` gives."""
    return _checked("the whole", SAME if keys.kind != "approx" else MEASURED, base, head, keys.recipes, read, engines)


def edit_checked(move: Move, read: Read | None = None, engines: Sequence[str] = (TORCH,)) -> Checked:
    """One edit: the model before it against the model after it."""
    step, made_ = move.step, move.plan
    assert step is not None and made_ is not None
    if move.kind == "refused":
        return Checked(move.title, MEASURED, None, note="some tensors cannot be made")
    claim = {SILENT: OTHER, "approx": MEASURED}.get(move.kind, SAME)
    before, after, recipes, note = step.before, step.after, made_.recipes, ""
    if max(count(before), count(after)) > MOST:
        small = shortened(before, after)
        if small is not None and read is None:
            before, after = small
            found = compare_graphs(before, after)
            recipes = plan(before, after, found.findings, found.tensors).recipes
            note = "on fewer copies of the same layers"
    found_ = _checked(move.title, claim, before, after, recipes, read, engines)
    return replace(found_, note="; ".join(n for n in (note, found_.note) if n))


def _checked(what: str, claim: str, before: Graph, after: Graph, recipes: Mapping[str, Recipe], read: Read | None,
             engines: Sequence[str]) -> Checked:
    numbers = max(count(before), count(after))
    if numbers > MOST:
        return Checked(what, claim, None, note=f"a model of {numbers:,} parameters is not run; at most {MOST:,} are")
    fed = {a.name for a in before.root.arguments}
    if lacking := [a.name for a in after.root.arguments if a.name not in fed and not a.type.optional]:
        return Checked(what, claim, None, note=f"the old model has no input `{lacking[0]}`")
    dtype = "float64" if numbers <= DOUBLE else "float32"
    try:
        pair = _Pair(before, after, recipes, read, dtype)
        cases = list(_cases(before, after, SHORT))
        found = pair.run(TORCH, dtype, cases)
        if claim == OTHER and found.within(TOLERANCE[dtype]):
            cases = list(_cases(before, after, None))
            found = pair.run(TORCH, dtype, cases)
        runs = (_ran(TORCH, dtype, found, len(cases)), *(pair.ran(e, _few(cases)) for e in engines if e != TORCH))
        near = found.within(TOLERANCE[dtype])
        first = "" if near else pair.first([a for _, a in cases])
    except ArtifactError as wrong:
        return Checked(what, claim, None, note=wrong.headline)
    fine = near and all(r.max_abs is None or _near(r) for r in runs[1:])
    holds = {SAME: fine, OTHER: True if not near else None, MEASURED: None}[claim]
    note = found.wrong or ("the inputs may be too short to show it" if claim == OTHER and near else "")
    return Checked(what, claim, holds, found.max_abs, found.scale, dtype, len(cases), note, first, runs)


def _ran(engine: str, dtype: str, found: Difference, batches: int) -> Ran:
    return Ran(engine, dtype, TOLERANCE[dtype], found.max_abs, found.max_rel, found.scale, batches, found.wrong)


def _near(run: Ran) -> bool:
    return run.max_abs is not None and run.max_rel is not None and run.max_rel <= run.tolerance and not run.note


def _few(cases: Cases) -> Cases:
    """Three of the batches, of which one at least has odd lengths where any has."""
    odd = [c for c in cases if any(n % 2 and n > 1 for n in [*c[0].values()][1:])]
    rest = [c for c in cases if not any(c is o for o in odd)]
    return [*odd[:2], *rest[::-1], *odd[2:]][:3]


class _Pair:
    """Two models, the second with weights made of those of the first."""

    def __init__(self, before: Graph, after: Graph, recipes: Mapping[str, Recipe], read: Read | None, dtype: str):
        self.graphs, self.dtype = (before, after), dtype
        old = {path: tensor.numpy() for path, tensor in _started(before, dtype, read).items()}
        new = {path: np.ascontiguousarray(made(recipe, old.__getitem__)) for path, recipe in recipes.items()}
        self.states = old, new

    def run(self, engine: str, dtype: str, cases: Cases) -> Difference:
        """The largest difference over some batches."""
        arrays = [a for _, a in cases]
        before, after = (ENGINES[engine](g, s, arrays, dtype) for g, s in zip(self.graphs, self.states, strict=True))
        return difference(before, after)

    def ran(self, engine: str, cases: Cases) -> Ran:
        """The same in float32, by another engine."""
        try:
            return _ran(engine, "float32", self.run(engine, "float32", cases), len(cases))
        except NotRun as why:
            return Ran(engine, "float32", TOLERANCE["float32"], note=str(why))

    def first(self, cases: list[Arrays]) -> str:
        """The first node that differs, in the first batch that shows one."""
        return next((f for a in cases[1:3] if (f := diverging(*self.graphs, self.states, a, self.dtype, TOLERANCE[self.dtype]))), "")


def _started(graph: Graph, dtype: str, read: Read | None) -> dict[str, torch.Tensor]:
    """The weights of the first model: those that `read` gives, or random ones."""
    import torch
    state = _module(simplify(hoist(graph)), dtype).state_dict()
    with torch.no_grad():
        for path, tensor in state.items():
            if read is not None:
                tensor.copy_(torch.from_numpy(np.ascontiguousarray(np.asarray(read(path)))))
            else:
                _moved(tensor, path)
    return dict(state)


def _module(graph: Graph, dtype: str) -> Any:
    import torch

    from ...backends.torch import build
    return build(graph, seed=0, dtype=getattr(torch, dtype))


def _moved(tensor: torch.Tensor, path: str) -> None:
    """Every number off its start, so that a lost bias or norm shows; the same for the same path."""
    import zlib

    import torch
    random = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    step = 0.2 * (float(tensor.abs().mean()) or 1.0)
    tensor.add_(torch.randn(tensor.shape, generator=random, dtype=torch.float32).to(tensor.dtype), alpha=step)


def _cases(before: Graph, after: Graph, longest: int | None) -> Iterator[tuple[Mapping[str, int], Arrays]]:
    """Random inputs that both models take: batch 1 and 3, odd lengths, padded and empty rows; short ones, or one that is long."""
    ours, theirs = (whole_inputs(simplify(hoist(twin(g)))) for g in (before, after))
    narrow = {x.name: x for x in theirs}
    manifest = _manifest(tuple(_both(x, narrow[x.name]) if x.name in narrow else x for x in ours))
    n = 0
    for k, case in enumerate(sweep(manifest, longest is None)):
        long = any(size > SHORT for size in case.sizes.values())
        if long == (longest is None) and n < (CASES if longest is not None else 1):
            n += 1
            yield case.sizes, inputs(manifest, case, seed=k)


def _both(x: Input, y: Input) -> Input:
    """What both models take of an input."""
    bounds = {n: min(b[n] for b in (x.bounds, y.bounds) if n in b) for n in {**x.bounds, **y.bounds} if n in str(x.shape)}
    least = {n: max(x.least.get(n, 0), y.least.get(n, 0)) for n in {**x.least, **y.least} if n in str(x.shape)}
    below = [b for b in (x.ids_below, y.ids_below) if isinstance(b, int)]
    return replace(x, bounds=bounds, least=least, ids_below=min(below) if len(below) == 2 else x.ids_below)


def _manifest(given: tuple[Input, ...]) -> Manifest:
    """What makes inputs, of no file."""
    nothing = ModelFile("model.onnx", "0" * 64)
    return Manifest("model", "full", "portable", "float32", "nnspec", nothing, (), given, (), "", "", 0)


# smaller models with the same layers


def shortened(before: Graph, after: Graph) -> tuple[Graph, Graph] | None:
    """Both with the first copies alone of their stacks, as many as show every pair of layers; None where that makes nothing smaller."""
    theirs = {n.name: n for n in after.root.nodes}
    cut: dict[str, int] = {}
    for node in before.root.nodes:
        other = theirs.get(node.name)
        if other is not None and _free(before, node) and _free(after, other) and len(node.op.schedule) == len(other.op.schedule):
            pairs = list(zip(node.op.schedule, other.op.schedule, strict=True))
            cut[node.name] = max(pairs.index(p) for p in set(pairs)) + 1
    if not cut:
        return None
    small = _cut(before, cut), _cut(after, cut)
    return small if max(map(count, small)) <= MOST else None


def _free(graph: Graph, node: Node) -> bool:
    """Whether copies of a stack can be left out: nothing reads single ones, and each has parameters of its own."""
    op = node.op
    if not isinstance(op, Control) or not isinstance(op, Repeat) or op.each or op.share != tuple(range(len(op.schedule))):
        return False
    return not any(v.node == node.id and node.outputs[v.output].startswith("all.") for v in graph.root.uses())


def _cut(graph: Graph, cut: Mapping[str, int]) -> Graph:
    def shorter(node: Node) -> Node:
        if node.name not in cut:
            return node
        n = cut[node.name]
        return replace(node, op=replace(node.op, schedule=node.op.schedule[:n], share=node.op.share[:n]))
    return replace(graph, root=replace(graph.root, nodes=tuple(map(shorter, graph.root.nodes))))

