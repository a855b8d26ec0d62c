"""Integer weights of linear layers: which layers, and how much they change what the model gives.

What changes is measured, not allowed for: the certificate of a quantised export is that of the model before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.onnx.emit import Emitted
from ..backends.onnx.nbits import narrowed
from ..backends.onnx.write import weight_bytes
from ..ir.graph import Graph
from ..lang.diagnostic import Diagnostics, diagnostic, suggest
from ..printing import progress
from ..runtime.compare import measure
from ..runtime.data import load_inputs, random_inputs
from ..runtime.decoder import decoder
from ..runtime.manifest import FULL, GENAI, STEP, Input, Manifest, read
from ..runtime.session import open
from .certify_step import run
from .genai import LOGITS, whole_logits
from .plan import Quantization

SEEDS, ROWS, LENGTH = 3, 2, 33                     # of the random inputs
Model = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def quantized(models: Sequence[Emitted], wanted: Quantization) -> tuple[list[Emitted], dict[str, Any]]:
    """The models with integer weights, and what `Manifest.quantization` says of them before anything is measured.

    Raises Diagnostics: `bad-command` where the package onnx-ir is missing or nothing is left to quantise, `unknown-path` for paths of
    `skip` that hold no linear layer.
    """
    _check_package()
    found = {r.name: r for m in models for r in m.weights}
    paths = sorted({p for r in found.values() for p in r.parameters})
    _check_skip(wanted.skip, paths)
    made, chosen, shared = [], dict[str, tuple[str, ...]](), list[str]()
    for model in models:
        narrow, some, others = narrowed(model, wanted.bits, wanted.block, lambda r: any(_under(p, wanted.skip) for p in r.parameters))
        made.append(narrow)
        chosen |= {r.name: r.parameters for r in some}
        shared += [p for p in others if p not in shared]
    if not chosen:
        raise Diagnostics([diagnostic("bad-command", "no linear layer is left to be quantised",
                                      note=[f"`{p}` is read elsewhere too" for p in shared], help="leave `--quantize` out, or skip less")])
    return made, {
        "kind": wanted.kind, "block": wanted.block, "weights": sum(map(len, chosen.values())), "skipped": [*wanted.skip], "shared": shared,
        "bytes": {"before": weight_bytes(models), "after": weight_bytes(made)}}


def _check_package() -> None:
    try:
        import onnx_ir  # noqa: F401
    except ImportError:
        raise Diagnostics([diagnostic("bad-command", "the quantiser of ONNX Runtime needs the package onnx-ir, which is not installed",
                                      help="pip install 'nnspec[quantize]'")]) from None


def _under(path: str, skip: Sequence[str]) -> bool:
    """Whether a path lies under one of `skip`, in which `*` stands for one name."""
    parts = path.split(".")
    return any(len(given) <= len(parts) and all(a in ("*", b) for a, b in zip(given, parts, strict=False))
               for given in (s.split(".") for s in skip))


def _check_skip(skip: Sequence[str], paths: Sequence[str]) -> None:
    known = list(dict.fromkeys(".".join(p.split(".")[:k + 1]) for p in paths for k in range(p.count(".") + 1)))
    wrong = [diagnostic("unknown-path", f"no weight lies under the path `{s}`, which is to be skipped", help=suggest(s, known, "paths"))
             for s in skip if not any(_under(p, [s]) for p in paths)]
    if wrong:
        raise Diagnostics(wrong)


# measures


def texts(graph: Graph, path: Path | None) -> dict[str, np.ndarray] | None:
    """The ids for the perplexity. Raises Diagnostics (`bad-command`) for a model that has none, ArtifactError for the file."""
    if path is None:
        return None
    if _language(graph) is None:
        raise Diagnostics([diagnostic("bad-command", "a perplexity is that of a language model, and this is none",
                                      graph.root.origin.span, note="one has int64[B, S] ids as its only needed input, and logits [B, S, V]",
                                      help="leave `--ids` out")])
    tokens, _ = _language(graph)  # type: ignore[misc]
    given = {k: np.asarray(v) for k, v in load_inputs(path).items()}
    if tokens not in given or given[tokens].ndim != 2 or given[tokens].shape[1] < 2 or given[tokens].dtype.kind not in "iu":
        raise Diagnostics([diagnostic("bad-inputs", f"`{path}` holds no `{tokens}` with integers [rows, at least 2]",
                                      note=f"it holds {', '.join(f'`{k}`' for k in given) or 'nothing'}")])
    return {tokens: given[tokens].astype(np.int64)}


def _language(graph: Graph) -> tuple[str, str] | None:
    """The names of a language model's ids and logits."""
    needed = [a for a in graph.root.arguments if not a.type.optional]
    if len(needed) != 1 or needed[0].type.dtype != "int64" or len(needed[0].type.shape) != 2:
        return None
    shape = needed[0].type.shape
    types = {n: graph.root.type(v) for n, v in graph.root.outputs}
    return next(((needed[0].name, n) for n, t in types.items()
                 if t.dtype == "float" and len(t.shape) == 3 and t.shape[:2] == shape and t.shape[2].value is not None), None)


def measured(before: Path, after: Path, graph: Graph, whole: Sequence[Input], ids: Mapping[str, np.ndarray] | None) -> dict[str, Any]:
    """How far the outputs of two artifacts are apart on random inputs, and the perplexity of both on `ids`, as manifests say it."""
    manifest = read(before)
    cases = [*_random(manifest, whole)]
    wanted, first = _results(before, cases, graph, ids)
    made, second = _results(after, cases, graph, ids)
    sums: dict[str, list[float]] = {}
    for want, got in zip(wanted, made, strict=True):
        for name, right in want.items():
            if right.dtype.kind == "f" and right.size:
                found = measure(got[name], right)
                each = np.abs(got[name].astype(np.float64) - right)
                each = each[np.isfinite(each)]
                total = sums.setdefault(name, [0.0, 0.0, 0.0, 0])
                total[0], total[1] = max(total[0], found.max_abs), max(total[1], found.scale)
                total[2], total[3] = total[2] + float(each.sum()), total[3] + each.size
    outputs = {k: {"max_abs": most, "mean_abs": total / max(n, 1), "max_rel": most / scale if scale else 0.0}
               for k, (most, scale, total, n) in sums.items()}
    if ids is None:
        return {"outputs": outputs}
    counted = sum(tokens[:, 1:].size for tokens in ids.values())
    return {"outputs": outputs, "perplexity": {"before": first, "after": second, "ids": counted}}


def _results(folder: Path, cases: Sequence[Mapping[str, np.ndarray]], graph: Graph,
             ids: Mapping[str, np.ndarray] | None) -> tuple[list[dict[str, np.ndarray]], float | None]:
    """What one artifact gives, so that only one is in memory at a time, and its perplexity."""
    model = _model(folder)
    made = [model(arrays) for arrays in progress(cases, "measuring")]
    if ids is None:
        return made, None
    name, logits = _language(graph)  # type: ignore[misc]
    return made, _perplexity(model, name, LOGITS if read(folder).form == GENAI else logits, ids[name])


def _perplexity(model: Model, name: str, logits: str, tokens: np.ndarray) -> float:
    """exp of the mean of -log p of every id but the first of a row."""
    total = 0.0
    for row in tokens:
        given = model({name: row[None]})[logits][0, :-1].astype(np.float64)
        given -= given.max(axis=-1, keepdims=True)
        total += float((np.log(np.exp(given).sum(axis=-1)) - given[np.arange(len(row) - 1), row[1:]]).sum())
    return float(np.exp(total / tokens[:, 1:].size))


def _model(folder: Path) -> Model:
    """An artifact as a function of whole sequences."""
    manifest = read(folder)
    if manifest.form == STEP:
        opened = decoder(folder)
        return lambda arrays: run(opened, arrays, arrays[opened.stream.chunk[0]].shape[1], "one chunk", 0)
    artifact = open(folder)
    if manifest.form == GENAI:
        return lambda arrays: whole_logits(artifact, next(iter(arrays.values())))
    return lambda arrays: artifact(**arrays)


def _random(manifest: Manifest, whole: Sequence[Input]) -> Iterator[dict[str, np.ndarray]]:
    """Random inputs of the whole model, with rows and lengths that it takes."""
    if manifest.form == GENAI:
        whole = [x for x in whole if not x.optional]
    elif manifest.stream is not None:
        whole = [x for x in whole if x.name not in manifest.stream.dropped]
    else:
        whole = manifest.inputs
    asked = replace(manifest, form=FULL, inputs=tuple(whole))
    bounds = {k: n for x in whole for k, n in x.bounds.items()}
    first, *others = asked.free_names or ("",)
    sizes = {k: max(min(LENGTH, bounds.get(k, LENGTH)), asked.least.get(k, 1)) for k in others}
    sizes |= {first: max(min(ROWS, bounds.get(first, ROWS)), asked.least.get(first, 1))} if first else {}
    for seed in range(SEEDS):
        yield random_inputs(asked, sizes, seed)
