"""The ONNX layer: what two exported models are as ONNX files, beside what their specs say. Nothing of a file is run.

Parameters and checkpoints are told from the specs, never from here: an export transposes, joins and folds tensors.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from ...checkpoints.weight_names import fold
from ...lang.diagnostic import Diagnostics, diagnostic
from ...pipeline import Compiled
from ...runtime.manifest import FULL, NAME, NO_WEIGHTS, Manifest, read
from .embedded import spec_text
from .providers import CPU, CUDA, Placed, misplaced, runtime

# rule -> (its mirror, level)
ONNX_RULES = {
    "onnx.target-changed": ("onnx.target-changed", "warning"), "onnx.dtype-changed": ("onnx.dtype-changed", "warning"),
    "onnx.form-changed": ("onnx.form-changed", "info"), "onnx.kind-changed": ("onnx.kind-changed", "warning"),
    "onnx.fusion-lost": ("onnx.fusion-gained", "warning"), "onnx.fusion-gained": ("onnx.fusion-lost", "info"),
    "onnx.opset-changed": ("onnx.opset-changed", "warning"), "onnx.domain-added": ("onnx.domain-removed", "warning"),
    "onnx.domain-removed": ("onnx.domain-added", "info"), "onnx.op-added": ("onnx.op-removed", "info"),
    "onnx.op-removed": ("onnx.op-added", "info"), "onnx.input-added": ("onnx.input-removed", "breaking"),
    "onnx.input-removed": ("onnx.input-added", "breaking"), "onnx.input-changed": ("onnx.input-changed", "breaking"),
    "onnx.output-added": ("onnx.output-removed", "info"), "onnx.output-removed": ("onnx.output-added", "breaking"),
    "onnx.output-changed": ("onnx.output-changed", "breaking"), "onnx.weight-dtype-changed": ("onnx.weight-dtype-changed", "info"),
    "onnx.weight-shape-changed": ("onnx.weight-shape-changed", "info"), "onnx.weight-added": ("onnx.weight-removed", "info"),
    "onnx.weight-removed": ("onnx.weight-added", "info"), "onnx.bytes-changed": ("onnx.bytes-changed", "info"),
    "onnx.ep-fallback": ("onnx.ep-restored", "warning"), "onnx.ep-restored": ("onnx.ep-fallback", "info"),
    "onnx.kernel-lost": ("onnx.kernel-gained", "warning"), "onnx.kernel-gained": ("onnx.kernel-lost", "info"),
    "onnx.kernel-changed": ("onnx.kernel-changed", "info"),
    "onnx.ep-unsupported": ("onnx.ep-supported", "breaking"), "onnx.ep-supported": ("onnx.ep-unsupported", "info"),
}
TARGETS = {CPU: ("ort-cpu", "float32"), CUDA: ("ort-cuda", "float16")}         # what specs are exported as, by the provider asked for
MAIN = "ai.onnx"
SDPA = ("FLASH", "EFFICIENT", "CUDNN", "TRT")                     # fused kernels of attention
BITS = {"FLOAT": 32, "DOUBLE": 64, "FLOAT16": 16, "BFLOAT16": 16, "INT64": 64, "INT32": 32, "INT8": 8, "UINT8": 8, "INT4": 4, "UINT4": 4,
        "BOOL": 8}


@dataclass(frozen=True)
class Site:
    """A place that has several forms: the one taken, why each better one was not, and the line of the spec."""

    form: str
    fused: bool
    missed: tuple[tuple[str, str], ...] = ()
    line: str = ""


@dataclass(frozen=True)
class Exported:
    """One model as ONNX: `weights` are initializers by name, [dtype, shape]; `sites` the fusion report by path; `lines` those of the spec
    that its nodes come from, by path; `placed` the nodes that a provider has no kernel for; `kernels` those of attention on CUDA, by path,
    where a run or a dry run showed them."""

    label: str
    target: str
    dtype: str
    kind: str
    opsets: Mapping[str, int]
    ops: Mapping[str, int]
    sites: Mapping[str, Site]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    weights: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)
    placed: Mapping[str, tuple[Placed, ...]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all initializers."""
        return sum(-(-prod(shape) * BITS.get(dtype, 32) // 8) for dtype, shape in self.weights.values())


def is_exported(given: str) -> bool:
    """Whether a side of a comparison is an exported model: an .onnx file, or a folder with one."""
    path = Path(given)
    return path.suffix == ".onnx" or (path / "model.onnx").is_file()


def read_exported(given: str) -> Exported:
    """An exported model. Raises Diagnostics (`bad-artifact`) where it is none of ours or damaged, and ArtifactErrors for its manifest."""
    import onnx
    path = Path(given) if given.endswith(".onnx") else Path(given) / "model.onnx"
    spec_text(path)
    data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except Exception as wrong:          # protobuf reports damage by classes of its own
        said = str(wrong).partition("\n")[0]
        raise Diagnostics([diagnostic("bad-artifact", f"`{path}` cannot be read as an ONNX file", note=said)]) from None
    given_in = {p.key.removeprefix("nnspec."): p.value for p in model.metadata_props}
    manifest = _manifest(path, data)
    sites = manifest.sites if manifest is not None else ()
    return _exported(given, model, given_in.get("target", ""), given_in.get("dtype", ""), manifest.form if manifest else FULL, sites)


def _manifest(path: Path, data: bytes) -> Manifest | None:
    """The manifest beside a model, where it names this file; None where there is none."""
    if not (path.parent / NAME).is_file():
        return None
    found = read(path.parent)
    models = {found.model.file: found.model.sha256} | ({found.prefix.model.file: found.prefix.model.sha256} if found.prefix else {})
    if models.get(path.name) == hashlib.sha256(data).hexdigest():
        return found
    raise Diagnostics([diagnostic("bad-artifact", f"`{path}` is not the model that its manifest names",
                                  note="the file changed after it was exported, or was put beside the manifest of another one",
                                  help="export the model again, or compare the file alone, in a folder without a manifest")])


def emitted(compiled: Compiled, label: str, target: str, dtype: str, kind: str = FULL) -> Exported:
    """What a spec would be exported as. Raises Diagnostics, as an export does."""
    from ...backends.onnx import emit
    made = emit(compiled.lowered(), target, dtype)
    names = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "uint8": "UINT8"}
    held = {r.name: (names[r.element or made.dtype], tuple(r.shape)) for r in made.weights}
    return _exported(label, made.model, made.target, made.dtype, kind, made.sites, held)


def _exported(label: str, model: Any, target: str, dtype: str, kind: str, sites: Any,
              more: Mapping[str, tuple[str, tuple[int, ...]]] | None = None) -> Exported:
    """`more` are weights that the model does not hold yet."""
    from onnx import TensorProto
    graph = model.graph
    held = {t.name: (TensorProto.DataType.Name(t.data_type), tuple(t.dims)) for t in graph.initializer} | dict(more or {})
    dtypes = {name: kind for name, (kind, _) in held.items()}
    told = [{p.key: p.value for p in n.metadata_props} for n in _nodes(graph)]
    return Exported(
        label, target, dtype, kind, {o.domain or MAIN: o.version for o in model.opset_import},
        Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in _nodes(graph)),
        {s["path"]: Site(s["form"], bool(s["fused"]), tuple((m["form"], m["reason"]) for m in s["missed"]), s.get("line", ""))
         for s in sites},
        {v.name: _typed(v) for v in graph.input if v.name not in held}, {v.name: _typed(v) for v in graph.output},
        {n: w for n, w in held.items() if not n.startswith("const/")},
        {t["nnspec.path"]: t.get("nnspec.line", "") for t in told if "nnspec.path" in t},
        {provider: tuple(misplaced(model, dtypes, provider)) for provider in (CPU, CUDA)})


def _nodes(graph: Any) -> Iterator[Any]:
    """Every node, those of bodies too."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            for body in (*([a.g] if a.HasField("g") else []), *a.graphs):
                yield from _nodes(body)


def _typed(value: Any) -> str:
    from onnx import TensorProto
    kind = value.type.tensor_type
    dims = ", ".join(d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in kind.shape.dim)
    return f"{TensorProto.DataType.Name(kind.elem_type).lower()}[{dims}]"


# findings


@dataclass(frozen=True)
class Finding:
    """One folded change of the ONNX layer."""

    rule: str
    where: str
    before: Any
    after: Any
    count: int = 1
    note: str = ""
    line: str = ""                              # of the spec, `gpt2.yaml:12`: of the head, where it is there

    @property
    def level(self) -> str:
        return ONNX_RULES[self.rule][1]

    def data(self) -> dict[str, Any]:
        return {"rule": self.rule, "level": self.level, **self.__dict__}


def onnx_layer(base: str, head: str, a: Compiled, b: Compiled, provider: str = "", dtype: str = "") -> dict[str, Any]:
    """The ONNX layer of a comparison. A spec beside an exported model is emitted as that was; two specs for the `provider`, CUDA where none
    is given, in `dtype`. Where nodes are placed is told for the provider; where none is given, for that which both are made for."""
    ours = read_exported(base) if is_exported(base) else None
    theirs = read_exported(head) if is_exported(head) else None
    other = ours or theirs
    alone = other is not None and (ours is None or theirs is None)
    if other and alone and other.kind not in (FULL, NO_WEIGHTS):
        return _nothing(f"`{other.label}` is exported as {other.kind}: compare it with another export")
    if other and alone and not (other.target and other.dtype):
        return _nothing(f"`{other.label}` does not say for which target and dtype it was made")
    usual = TARGETS[provider or CUDA]
    target, dtype, kind = (other.target, other.dtype, other.kind) if other else (usual[0], dtype or usual[1], FULL)
    one, two = ours or emitted(a, base, target, dtype, kind), theirs or emitted(b, head, target, dtype, kind)
    note = "" if ours and theirs else "both" if other is None else f"`{base if ours is None else head}`"
    note = note and f"{note} as {'they' if note == 'both' else 'it'} would be exported for {target} in {dtype}"
    where, how = provider or (CPU if {one.target, two.target} == {"ort-cpu"} else CUDA), f"the kernels of {runtime()}"
    if provider == CUDA:
        one, two, how = _run(one, two, (base if ours else None, head if theirs else None), (a, b), how)
    return {"sides": [_side(one, where), _side(two, where)], "findings": [f.data() for f in findings(one, two, where)], "note": note,
            "provider": where, "runtime": runtime(), "how": how}


def _run(one: Exported, two: Exported, given: tuple[str | None, str | None], specs: tuple[Compiled, Compiled],
         how: str) -> tuple[Exported, Exported, str]:
    """Both sides as sessions on CUDA have them, where both can be run or dry-run; else as they are, and why."""
    from .dry_run import NoRun, seen
    try:
        x, y = (seen(g, s, e.target, e.dtype) for g, s, e in zip(given, specs, (one, two), strict=True))
    except NoRun as why:
        return one, two, f"{how} (no dry run: {why})"
    one, two = (replace(e, placed={**e.placed, CUDA: s.placed}, kernels=s.kernels) for e, s in ((one, x), (two, y)))
    return one, two, x.how if x.how == y.how else f"{x.how}; {y.how}"


def _nothing(why: str) -> dict[str, Any]:
    return {"sides": [], "findings": [], "note": why, "provider": "", "runtime": "", "how": ""}


def _side(x: Exported, provider: str) -> dict[str, Any]:
    return {"label": x.label, "target": x.target, "dtype": x.dtype, "kind": x.kind, "opsets": dict(x.opsets),
            "ops": dict(sorted(x.ops.items())),
            "sites": len(x.sites), "fused": sum(s.fused for s in x.sites.values()), "weights": len(x.weights), "bytes": x.bytes,
            "misplaced": [{"where": _listed(p.path for p in found), "op": op, "dtypes": dtypes, "on": on, "count": len(found)}
                          for (op, dtypes, on), found in _kinds(x.placed.get(provider, ())).items()],
            "kernels": dict(sorted(Counter(x.kernels.values()).items()))}


def _kinds(placed: Iterable[Placed]) -> dict[tuple[str, str, str], list[Placed]]:
    out: dict[tuple[str, str, str], list[Placed]] = {}
    for p in placed:
        out.setdefault((p.op, p.dtypes, p.on), []).append(p)
    return out


def findings(a: Exported, b: Exported, provider: str = CUDA) -> list[Finding]:
    """Every change from one file to another, copies folded; where nodes are placed, for a provider."""
    out = [Finding(f"onnx.{n}-changed", "", getattr(a, n), getattr(b, n)) for n in ("target", "dtype", "kind")
           if getattr(a, n) != getattr(b, n)]
    out += _opsets(a, b)
    out += _sites(a, b)
    out += [*_placements(a, b, provider), *_kernels(a, b)]
    for what in ("input", "output"):
        ours, theirs = getattr(a, f"{what}s"), getattr(b, f"{what}s")
        out += [Finding(f"onnx.{what}-{_change(ours, theirs, n)}", n, ours.get(n), theirs.get(n))
                for n in dict.fromkeys((*ours, *theirs)) if ours.get(n) != theirs.get(n)]
    out += [Finding(f"onnx.op-{'added' if op not in a.ops else 'removed'}", op, a.ops.get(op, 0), b.ops.get(op, 0),
                    max(a.ops.get(op, 0), b.ops.get(op, 0))) for op in sorted({*a.ops} ^ {*b.ops})]
    out += _weights(a, b)
    if a.bytes != b.bytes:
        out.append(Finding("onnx.bytes-changed", "", a.bytes, b.bytes))
    return out


def _change(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> str:
    return "added" if name not in ours else "removed" if name not in theirs else "changed"


def _opsets(a: Exported, b: Exported) -> Iterator[Finding]:
    for domain in dict.fromkeys((*a.opsets, *b.opsets)):
        was, now = a.opsets.get(domain), b.opsets.get(domain)
        if was != now:
            what = _change(a.opsets, b.opsets, domain)
            yield Finding("onnx.opset-changed" if what == "changed" else f"onnx.domain-{what}", domain, was, now)


def _sites(a: Exported, b: Exported) -> Iterator[Finding]:
    """Sites that both have in other forms; what only one has follows from an edit of the spec."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for path, old in a.sites.items():
        new = b.sites.get(path)
        if new is None or (new.form, new.fused) == (old.form, old.fused):
            continue
        rule = "onnx.form-changed" if old.fused == new.fused else "onnx.fusion-lost" if old.fused else "onnx.fusion-gained"
        lost = new if old.fused and not new.fused else old if new.fused and not old.fused else None
        better = (old if lost is new else new).form
        note = next((why for form, why in lost.missed if form == better), next((why for _, why in lost.missed), "")) if lost else ""
        found.setdefault((rule, old.form, new.form, note), []).append(path)
    yield from _folded(found, a, b)


def _placements(a: Exported, b: Exported, provider: str) -> Iterator[Finding]:
    """Nodes that have no kernel on the provider any more, or have one now, by the path of the spec's node."""
    ours, theirs = ({p.path: p for p in reversed(x.placed.get(provider, ()))} for x in (a, b))
    found: dict[tuple[str, Any, Any, str], list[str]] = {}
    for path in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(path), theirs.get(path)
        was, now = (p.on if p else provider if path in x.lines else None for p, x in ((old, a), (new, b)))
        bad = [0 if p is None else 2 if p.on == "none" else 1 for p in (old, new)]
        p = new if bad[1] > bad[0] else old
        if was == now or p is None:
            continue
        rules = ("unsupported", "supported") if 2 in bad else ("fallback", "restored")
        rule = f"onnx.ep-{rules[bad[1] < bad[0]]}"
        found.setdefault((rule, was, now, f"{provider.upper()} does not take {p.op} of {p.dtypes}"), []).append(path)
    yield from _folded(found, a, b)


def _kernels(a: Exported, b: Exported) -> Iterator[Finding]:
    """Attention that both sides have, in other kernels."""
    found: dict[tuple[str, Any, Any, str], list[str]] = {}
    for path, old in a.kernels.items():
        new = b.kernels.get(path)
        if new is not None and new != old:
            was, now = ({*x.split(" and ")} <= {*SDPA} for x in (old, new))
            rule = "changed" if was == now else "lost" if was else "gained"
            found.setdefault((f"onnx.kernel-{rule}", old, new, ""), []).append(path)
    yield from _folded(found, a, b)


def _weights(a: Exported, b: Exported) -> Iterator[Finding]:
    found: dict[tuple[str, Any, Any, str], list[str]] = {}
    for name in dict.fromkeys((*a.weights, *b.weights)):
        old, new = a.weights.get(name), b.weights.get(name)
        if old == new:
            continue
        if old is None or new is None:
            dtype, shape = old or new or ("", ())
            said = f"{dtype.lower()}{list(shape)}"
            key = ("onnx.weight-added", None, said, "") if old is None else ("onnx.weight-removed", said, None, "")
            found.setdefault(key, []).append(name)
            continue
        if old[0] != new[0]:
            found.setdefault(("onnx.weight-dtype-changed", old[0].lower(), new[0].lower(), ""), []).append(name)
        if old[1] != new[1]:
            found.setdefault(("onnx.weight-shape-changed", str(list(old[1])), str(list(new[1])), ""), []).append(name)
    yield from _folded(found)


def _folded(found: Mapping[tuple[str, Any, Any, str], list[str]], *sides: Exported) -> Iterator[Finding]:
    lines = {path: line for x in sides for path, line in (*x.lines.items(), *((p, s.line) for p, s in x.sites.items())) if line}
    for (rule, before, after, note), paths in found.items():
        line = next((lines[p] for p in paths if p in lines), "")
        yield Finding(rule, _listed(paths), before, after, len(paths), note, line)


def _listed(paths: Iterable[str]) -> str:
    """Paths with their copies folded, three of them at most."""
    names = [n for n, _ in fold((p, "") for p in dict.fromkeys(paths))]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
