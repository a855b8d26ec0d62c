"""Claims of a comparison checked by running: both modules with the same weights, brought over by the key map, on the same random inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.certify import inputs, sweep
from ..artifacts.export import arguments, whole_inputs
from ..ir.graph import Control, Graph, Node, Repeat
from ..ir.parameters import count
from ..ir.twin import twin
from ..runtime.errors import ArtifactError
from ..runtime.manifest import Input, Manifest, ModelFile
from ..stages.hoist import hoist
from ..stages.simplify import simplify
from .keys import SILENT, KeyMap, Move
from .plan import plan
from .recipes import Read, Recipe, made
from .regions import compare_graphs
from .report import Edit

if TYPE_CHECKING:
    import torch

DOUBLE, MOST = 40_000_000, 400_000_000       # parameters up to which a model is run in float64, and at all
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}                   # of the largest number of an output
SHORT, CASES = 16, 8
SAME, OTHER, MEASURED = "same function", "another function", "measured"


@dataclass(frozen=True)
class Checked:
    """One claim: `holds` is None where it could not be decided, and `note` says why. `scale` is the largest number of the outputs."""

    what: str
    claim: str
    holds: bool | None
    max_abs: float | None = None
    scale: float | None = None
    dtype: str = ""
    cases: int = 0
    note: str = ""

    def __str__(self) -> str:
        if self.max_abs is None:
            return f"{self.what}: not verified: {self.note}"
        said = {(SAME, True): "the same function", (SAME, False): "NOT the same function", (OTHER, True): "another function, as claimed",
                (OTHER, None): "no difference found", (OTHER, False): "no difference found"}.get((self.claim, self.holds), "measured")
        return (f"{self.what}: {said}: largest difference {self.max_abs:.2g} on outputs up to {self.scale:.3g}"
                f" ({self.dtype}, {self.cases} cases{'; ' + self.note if self.note else ''})")

    def data(self) -> dict[str, Any]:
        return {"what": self.what, "claim": self.claim, "holds": self.holds, "max_abs": self.max_abs, "scale": self.scale,
                "dtype": self.dtype, "cases": self.cases, "note": self.note}


def verify(base: Graph, head: Graph, keys: KeyMap, edits: tuple[Edit, ...], read: Read | None = None) -> list[Checked]:
    """Every claim that can be run: edits that keep the function, edits that change it silently, and the whole where no edit changes it.

    `read` gives the base's parameters by path, for the whole; other claims are checked with random weights, each number of them moved.
    """
    out = []
    for move, edit in zip(keys.moves, edits, strict=False):
        if move.step is not None:
            out.append(edit_checked(move, read if len(keys.moves) == 1 else None))
        else:
            out.append(Checked(edit.title, OTHER, None, note="the edit cannot be told apart"))
    if len(keys.moves) != 1 and keys.kind not in (SILENT, "refused"):
        out.append(whole_checked(base, head, keys, read))
    return out


def whole_checked(base: Graph, head: Graph, keys: KeyMap, read: Read | None) -> Checked:
    """All edits together, of which none is silent or refused; with the weights that `read` gives."""
    return _checked("the whole", SAME if keys.kind != "approx" else MEASURED, base, head, keys.recipes, read)


def edit_checked(move: Move, read: Read | None = None) -> Checked:
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
    found_ = _checked(move.title, claim, before, after, recipes, read)
    return replace(found_, note="; ".join(n for n in (note, found_.note) if n))


def _checked(what: str, claim: str, before: Graph, after: Graph, recipes: Mapping[str, Recipe], read: Read | None) -> Checked:
    numbers = max(count(before), count(after))
    if numbers > MOST:
        return Checked(what, claim, None, note=f"a model of {numbers:,} parameters is not run; at most {MOST:,} are")
    fed = {a.name for a in before.root.arguments}
    if lacking := [a.name for a in after.root.arguments if a.name not in fed and not a.type.optional]:
        return Checked(what, claim, None, note=f"the old model has no input `{lacking[0]}`")
    dtype = "float64" if numbers <= DOUBLE else "float32"
    try:
        pair = _Pair(before, after, recipes, read, dtype)
        cases = pair.measure(list(_cases(before, after, SHORT)))
        if claim == OTHER and cases.max_abs <= TOLERANCE[dtype] * cases.scale:
            cases = pair.measure(list(_cases(before, after, None)))
    except ArtifactError as wrong:
        return Checked(what, claim, None, note=wrong.headline)
    near = cases.max_abs <= TOLERANCE[dtype] * max(cases.scale, 1e-30) and not cases.wrong
    holds = {SAME: near, OTHER: True if not near else None, MEASURED: None}[claim]
    note = cases.wrong or ("the inputs may be too short to show it" if claim == OTHER and near else "")
    return Checked(what, claim, holds, cases.max_abs, cases.scale, dtype, cases.count, note)


@dataclass
class _Measured:
    max_abs: float = 0.0
    scale: float = 0.0
    count: int = 0
    wrong: str = ""


class _Pair:
    """Two modules, the second with weights made of those of the first."""

    def __init__(self, before: Graph, after: Graph, recipes: Mapping[str, Recipe], read: Read | None, dtype: str):
        import torch
        self.names = [arguments(g) for g in (before, after)]
        self.dtype = getattr(torch, dtype)
        lowered = simplify(hoist(before)), simplify(hoist(after))
        self.modules = _module(lowered[0], dtype), _module(lowered[1], dtype)
        old, new = (m.state_dict() for m in self.modules)
        self.outputs = [[n for n, _ in g.root.outputs] for g in (before, after)]
        with torch.no_grad():
            for path, tensor in old.items():
                if read is not None:
                    tensor.copy_(torch.from_numpy(np.ascontiguousarray(np.asarray(read(path)))))
                else:
                    _moved(tensor, path)
            for path, recipe in recipes.items():
                new[path].copy_(torch.from_numpy(np.ascontiguousarray(made(recipe, lambda name: old[name].numpy()))))

    def measure(self, cases: list[Mapping[str, np.ndarray]]) -> _Measured:
        """The largest difference over some cases. Padded entries of an output are not compared."""
        found = _Measured(count=len(cases))
        worst: dict[str, tuple[float, float]] = {}                      # of each output: difference, largest number
        for arrays in cases:
            one, other = (self._run(k, arrays) for k in range(2))
            for name in one:
                if name not in other or not one[name].is_floating_point():
                    continue
                a, b = one[name], other[name]
                if a.ndim != b.ndim or any(m > n for m, n in zip(a.shape, b.shape, strict=True)):
                    found.wrong = f"`{name}` is {list(b.shape)}, and was {list(a.shape)}"
                if a.ndim != b.ndim:
                    continue
                there = tuple(slice(0, min(n)) for n in zip(a.shape, b.shape, strict=True))
                a, b = a[there], b[there]
                now = [float(x.nan_to_num().abs().max()) if x.numel() else 0.0 for x in (a - b, a)]
                worst[name] = tuple(map(max, now, worst.get(name, (0.0, 0.0))))  # type: ignore[assignment]
        found.max_abs, found.scale = max(worst.values(), key=lambda w: w[0] / (w[1] or 1e-30), default=(0.0, 0.0))
        return found

    def _run(self, k: int, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        import torch
        given = []
        for name in self.names[k]:
            tensor = torch.from_numpy(np.asarray(arrays[name])) if name in arrays else None
            given.append(tensor.to(self.dtype) if tensor is not None and tensor.is_floating_point() else tensor)
        with torch.no_grad():
            out = self.modules[k](*given)
        return out if isinstance(out, dict) else {self.outputs[k][0]: out}


def _module(graph: Graph, dtype: str) -> Any:
    import torch

    from ..backends.torch import build
    return build(graph, seed=0, dtype=getattr(torch, dtype))


def _moved(tensor: torch.Tensor, path: str) -> None:
    """Every number off its start, so that a lost bias or norm shows; the same for the same path."""
    import zlib

    import torch
    random = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    step = 0.2 * (float(tensor.abs().mean()) or 1.0)
    tensor.add_(torch.randn(tensor.shape, generator=random, dtype=torch.float32).to(tensor.dtype), alpha=step)


def _cases(before: Graph, after: Graph, longest: int | None) -> Iterator[dict[str, np.ndarray]]:
    """Random inputs that both models take: batch 1 and 3, odd lengths, padded and empty rows; short ones, or one that is long."""
    ours, theirs = (whole_inputs(simplify(hoist(twin(g)))) for g in (before, after))
    narrow = {x.name: x for x in theirs}
    manifest = _manifest(tuple(_both(x, narrow[x.name]) if x.name in narrow else x for x in ours))
    n = 0
    for k, case in enumerate(sweep(manifest, longest is None)):
        long = any(size > SHORT for size in case.sizes.values())
        if long == (longest is None) and n < (CASES if longest is not None else 1):
            n += 1
            yield inputs(manifest, case, seed=k)


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

