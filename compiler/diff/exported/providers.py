"""Where ONNX Runtime would place the nodes of a file: which of them have no kernel on a provider, by its registry of kernels.

Nothing is run, and no ONNX Runtime is needed: the table is that of version 1.31 (of the operators that are exported). What the optimiser
joins or moves later is not seen; a dry run sees it (`nnspec export --prove`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CPU, CUDA = "cpu", "cuda"
PROVIDERS = {CPU: "CPUExecutionProvider", CUDA: "CUDAExecutionProvider"}
LETTERS = {"FLOAT": "f", "FLOAT16": "h", "BFLOAT16": "b", "DOUBLE": "d", "INT64": "l", "INT32": "i", "BOOL": "?", "UINT8": "B", "INT8": "c"}
NAMES = {letter: "float32" if name == "FLOAT" else "float64" if name == "DOUBLE" else name.lower() for name, letter in LETTERS.items()}
OLDEST = 18                     # opset of the oldest files
USUAL = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}            # all that cuDNN computes


@dataclass(frozen=True)
class Placed:
    """A node that a provider has no kernel for: `on` is where it runs instead, `cpu`, or `none` where the file does not load. `dtypes` are
    those of its inputs."""

    path: str
    op: str
    dtypes: str
    on: str


@cache
def _table() -> Mapping[str, Any]:
    return json.loads((Path(__file__).parent / "kernels.json").read_text("utf-8"))  # type: ignore[no-any-return]


def runtime() -> str:
    """The version that the table is of."""
    return str(_table()["runtime"])


def misplaced(model: Any, weights: Mapping[str, str], provider: str) -> list[Placed]:
    """The nodes of an ONNX model that `provider` has no kernel for, those of bodies too; `weights` are dtypes of initializers by name.

    What computes sizes has kernels on CUDA, though ONNX Runtime runs it on the CPU by choice: it is not told.
    """
    opset = next((o.version for o in model.opset_import if not o.domain), OLDEST)
    known = {name: LETTERS.get(dtype, "") for name, dtype in weights.items()}
    walk = _Walk(opset, provider)
    walk.weights = frozenset(known)
    return list(walk.graph(model.graph, known))


class _Walk:
    """Types are found on the way, from those of inputs and weights."""

    def __init__(self, opset: int, provider: str):
        self.opset, self.provider = opset, provider
        self.weights: frozenset[str] = frozenset()

    def graph(self, graph: Any, outer: Mapping[str, str]) -> Iterator[Placed]:
        types = dict(outer)
        self.weights |= {t.name for t in graph.initializer}
        types |= {t.name: _letter(t.data_type) for t in graph.initializer}
        types |= {v.name: _letter(v.type.tensor_type.elem_type) for v in graph.input if v.type.tensor_type.elem_type}
        for node in graph.node:
            bodies = [a.g for a in node.attribute if a.HasField("g")]
            for body in bodies:
                yield from self.graph(body, types)
            bound = _bound(node, self.opset, types)
            types |= _outputs(node, bound, bodies, self.opset)
            if not bodies and (found := self.node(node, _bound(node, self.opset, types), types)):
                yield found

    def node(self, node: Any, bound: Mapping[str, str], types: Mapping[str, str]) -> Placed | None:
        row = _table()["ops"].get(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
        since = _since(node, self.opset)
        if row is None or _fits(row[self.provider], since, bound) and not (self.provider == CUDA and _refused(node, self.weights)):
            return None
        half = {k: "f" if v == "h" else v for k, v in bound.items()}
        on = CPU if _fits(row[CPU], since, bound) or _fits(row[CPU], since, half) else "none"      # half precision is cast around
        if on == "none" and _is_function(node, self.opset) or self.provider == CPU and on == CPU:
            return None                                                                         # its body is written in its place
        path = next((p.value for p in node.metadata_props if p.key == "nnspec.path"), node.name)
        dtypes = ", ".join(dict.fromkeys(NAMES[types[i]] for i in node.input if types.get(i)))
        return Placed(path, node.op_type, dtypes, on)


def _refused(node: Any, weights: frozenset[str]) -> bool:
    """Whether CUDA leaves a node alone though it has a kernel, as its provider does."""
    given = {a.name: a for a in node.attribute}
    if node.op_type in USUAL:
        usual = USUAL[node.op_type] * (2 if "direction" in given and given["direction"].s == b"bidirectional" else 1)
        odd = "activations" in given and [s.decode().lower() for s in given["activations"].strings] != usual
        reset = node.op_type == "GRU" and ("linear_before_reset" not in given or not given["linear_before_reset"].i)
        peephole = node.op_type == "LSTM" and len(node.input) == 8 and bool(node.input[7])
        return odd or reset or peephole or bool({"activation_alpha", "activation_beta", "clip", "input_forget"} & {*given})
    return node.op_type in ("Conv", "ConvTranspose") and not node.domain and node.input[1] not in weights


def _letter(kind: int) -> str:
    from onnx import TensorProto
    return LETTERS.get(TensorProto.DataType.Name(kind), "")


def _fits(kernels: Any, since: int, bound: Mapping[str, str]) -> bool:
    """Whether one of the kernels takes the types; those that are not known fit."""
    return any(low <= since <= high and all(not bound.get(name) or bound[name] in letters for name, letters in takes.items())
               for low, high, takes in kernels)


@cache
def _schema(op: str, domain: str, opset: int) -> Any:
    """The schema of a plain operator; None of others."""
    import onnx
    return onnx.defs.get_schema(op, opset, domain) if not domain and onnx.defs.has(op, domain) else None


def _since(node: Any, opset: int) -> int:
    schema = _schema(node.op_type, node.domain, opset)
    return schema.since_version if schema is not None else 1


def _is_function(node: Any, opset: int) -> bool:
    schema = _schema(node.op_type, node.domain, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _formal(node: Any, opset: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(name of its type, name) of what an operator takes and gives."""
    schema = _schema(node.op_type, node.domain, opset)
    if schema is not None:
        return [(x.type_str, x.name) for x in schema.inputs], [(x.type_str, x.name) for x in schema.outputs]
    row = _table()["ops"].get(f"{node.domain}.{node.op_type}", {})
    return [(t, "") for t in row.get("inputs", ["T"])], [(t, "") for t in row.get("outputs", ["T"])]


def _bound(node: Any, opset: int, types: Mapping[str, str]) -> dict[str, str]:
    """The letter of each type of a node, by the type's name and by that of what has it."""
    out: dict[str, str] = {}
    for formal, actual in zip(_formal(node, opset), (node.input, node.output), strict=True):
        for k, name in enumerate(actual):
            if name and types.get(name) and formal:
                kind, called = formal[min(k, len(formal) - 1)]
                out.setdefault(kind, types[name])
                out.setdefault(called, types[name])
    return out


def _outputs(node: Any, bound: Mapping[str, str], bodies: list[Any], opset: int) -> dict[str, str]:
    """The types of what a node gives."""
    if bodies:
        kinds = [_letter(v.type.tensor_type.elem_type) for v in bodies[0].output]
        return dict(zip(node.output, kinds, strict=False))
    given = next((a.i if a.name == "to" else a.t.data_type for a in node.attribute if a.name in ("to", "value")), 0)
    _, formal = _formal(node, opset)
    out = {}
    for k, name in enumerate(node.output):
        kind = formal[min(k, len(formal) - 1)][0] if formal else "T"
        fixed = kind.removeprefix("tensor(").removesuffix(")").upper() if kind.startswith("tensor(") else ""
        out[name] = _letter(given) if given else LETTERS.get(fixed, "") if fixed else bound.get(kind, "")
    return out
