"""A report as JSON, and the JSON Schema of it."""

from __future__ import annotations

import json
from typing import Any

from ..report import (
    CHECKPOINT,
    CONTRACTS,
    FUNCTION,
    LEVELS,
    SCHEMA_VERSION,
    STATUSES,
    Consequence,
    Contract,
    Edit,
    Place,
    Report,
    Side,
    TensorChange,
    Where,
)
from ..rules import RULES

Schema = dict[str, Any]


def dumps(report: Report) -> str:
    """The report as one JSON object, keys in a fixed order."""
    return json.dumps(data(report), indent=2, ensure_ascii=False) + "\n"


def dumps_all(reports: list[Report], failures: list[str]) -> str:
    """Several reports, and comparisons that could not be made, as one JSON object."""
    made = {"schema_version": SCHEMA_VERSION, "reports": [data(r) for r in reports], "failures": failures}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def data(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    v = report.verdict
    return {
        "schema_version": SCHEMA_VERSION, "base": _side(report.base), "head": _side(report.head), "changed": report.changed,
        "level": report.level,
        "verdict": {"function": v.function, "checkpoint": v.checkpoint, "silent": list(v.silent),
                    "interface": [_contract(c) for c in v.interface], "cache": [_contract(c) for c in v.cache]},
        "edits": [_edit(e) for e in report.edits],
        "tensors": {"counts": {s: {"tensors": report.count(s), "before": report.elements(s, "base"), "after": report.elements(s, "head")}
                               for s in STATUSES},
                    "changes": [_tensor(t) for t in report.tensors if t.status != "kept"]},
        "costs": [{"metric": m.name, "unit": m.unit, "before": m.before, "after": m.after, "delta": m.delta, "percent": m.percent,
                   "note": m.note}
                  for m in report.metrics],
        "sizes": dict(report.sizes), "dtype": report.dtype, "notes": list(report.notes), "diagnostics": list(report.diagnostics),
        "truncated": report.truncated, "hidden": report.hidden,
        "layers": dict(report.layers), "uses": list(report.uses),
    }


def _side(side: Side | None) -> Any:
    return side and {"label": side.label, "name": side.name, "structure_hash": side.structure, "identity_hash": side.identity,
                     "parameters": side.parameters, "tensors": side.tensors}


def _contract(c: Contract) -> Any:
    return {"rule": c.rule, "name": c.name, "before": c.before, "after": c.after, "level": c.level}


def _where(w: Where | None) -> Any:
    return w and {"pattern": w.pattern, "set": str(w), "count": w.count}


def _place(p: Place | None) -> Any:
    return p and {"file": p.file, "line": p.line, "column": p.column}


def _tensor(t: TensorChange) -> Any:
    return {"status": t.status, "base": _where(t.base), "head": _where(t.head), "before": t.before and list(t.before),
            "after": t.after and list(t.after), "count": t.count}


def _consequence(c: Consequence) -> Any:
    return {"rule": c.rule, "where": _where(c.where), "before": c.before, "after": c.after, "note": c.note}


def _edit(e: Edit) -> Any:
    way = e.conversion
    return {
        "id": e.id, "rule": e.rule, "level": e.level, "symbol": e.symbol, "title": e.title, "before": e.before, "after": e.after,
        "keys": list(e.keys), "where": [_where(w) for w in e.where], "contracts": list(e.contracts), "checkpoint": e.checkpoint,
        "silent": e.checkpoint == "silent", "deltas": dict(e.deltas), "source": {"base": _place(e.base), "head": _place(e.head)},
        "evidence": e.evidence, "consequences": [_consequence(c) for c in e.consequences], "tensors": [_tensor(t) for t in e.tensors],
        "accepted": e.accepted or None,
        "conversion": way and {"kind": way.kind, "op": way.op, "text": way.text, "values": dict(way.values)}, "notes": list(e.notes),
    }


# the schema


def _record(properties: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False} | more


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
ANY: Schema = {"description": "a value of the spec: a number, a word, true or false, null, or a list or an object of them"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def schema() -> Schema:
    """The JSON Schema of `nnspec diff --format json`."""
    shape = _or_null(_list(WHOLE))
    count = _record({"tensors": WHOLE, "before": WHOLE, "after": WHOLE})
    contract = _record({"rule": TEXT, "name": TEXT, "before": _or_null(TEXT), "after": _or_null(TEXT), "level": {"enum": list(LEVELS)}})
    cost = _record({"metric": TEXT, "unit": {"enum": ["numbers", "bytes", "FLOPs"]}, "before": _or_null(WHOLE), "after": _or_null(WHOLE),
                    "delta": _or_null(WHOLE), "percent": _or_null({"type": "number"}), "note": TEXT})
    whole = _record({
        "schema_version": {"const": SCHEMA_VERSION}, "base": _or_null(_ref("side")), "head": _or_null(_ref("side")),
        "changed": {"type": "boolean"}, "level": _or_null({"enum": list(LEVELS)}),
        "verdict": _record({"function": {"enum": list(FUNCTION)}, "checkpoint": {"enum": list(CHECKPOINT)}, "silent": _list(TEXT),
                            "interface": _list(contract), "cache": _list(contract)}),
        "edits": _list(_ref("edit")),
        "tensors": _record({"counts": _record(dict.fromkeys(STATUSES, count)), "changes": _list(_ref("tensor"))}),
        "costs": _list(cost), "sizes": {"type": "object", "additionalProperties": WHOLE}, "dtype": TEXT, "notes": _list(TEXT),
        "diagnostics": _list(TEXT), "truncated": {"type": "boolean"}, "hidden": WHOLE, "layers": _ref("layers"),
        "uses": _list(TEXT)})
    where = _record({"pattern": TEXT, "set": TEXT, "count": WHOLE})
    place = _record({"file": TEXT, "line": WHOLE, "column": WHOLE})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "nnspec diff", **whole, "$defs": {
        "side": _record({"label": TEXT, "name": TEXT, "structure_hash": TEXT, "identity_hash": TEXT, "parameters": WHOLE,
                         "tensors": WHOLE}),
        "where": where, "place": place,
        "tensor": _record({"status": {"enum": list(STATUSES)}, "base": _or_null(_ref("where")), "head": _or_null(_ref("where")),
                           "before": shape, "after": shape, "count": WHOLE}),
        "edit": _edit_schema(), "layers": _layers_schema()}}


def _layers_schema() -> Schema:
    """Of what stands beside the edits where it is asked for; the key map and weight files have forms of their own."""
    number, counts = _or_null({"type": "number"}), {"type": "object", "additionalProperties": WHOLE}
    numbers = {"max_abs": number, "scale": number, "dtype": TEXT, "note": TEXT, "said": TEXT}
    ran = _record({"ran": {"type": "boolean"}, "engine": TEXT, "tolerance": number, "max_rel": number, "batches": WHOLE, **numbers})
    claim = _record({"what": TEXT, "claim": {"enum": ["same function", "another function", "measured"]}, "cases": WHOLE, "first": TEXT,
                     "holds": _or_null({"type": "boolean"}), "text": TEXT, "runs": _list(ran), **numbers})
    finding = _record({"rule": {"type": "string", "pattern": r"^onnx\."}, "level": {"enum": list(LEVELS)}, "where": TEXT, "before": ANY,
                       "after": ANY, "count": WHOLE, "note": TEXT, "line": TEXT})
    misplaced = _record({"where": TEXT, "op": TEXT, "dtypes": TEXT, "on": {"enum": ["cpu", "none"]}, "count": WHOLE})
    side = _record({"label": TEXT, "target": TEXT, "dtype": TEXT, "kind": TEXT, "opsets": counts, "ops": counts, "sites": WHOLE,
                    "fused": WHOLE, "weights": WHOLE, "bytes": WHOLE, "misplaced": _list(misplaced), "kernels": counts})
    onnx = _record({"sides": _list(side), "findings": _list(finding), "note": TEXT, "provider": TEXT, "runtime": TEXT, "how": TEXT})
    return {"type": "object", "properties": {"verify": _list(claim), "onnx": onnx, "keys": {"type": "object"},
                                             "checkpoint": {"type": "object"}}}


def _edit_schema() -> Schema:
    consequence = _record({"rule": _ref_rule(), "where": _ref("where"), "before": ANY, "after": ANY, "note": TEXT})
    way = _record({"kind": {"enum": ["exact", "approx", "reinit"]}, "op": TEXT, "text": TEXT,
                   "values": {"type": "object", "additionalProperties": WHOLE}})
    return _record({
        "id": {"type": "string", "pattern": "^c[0-9a-f]{11}$"}, "rule": _ref_rule(), "level": {"enum": list(LEVELS)},
        "symbol": {"enum": ["~", "+", "-", ">"]}, "title": TEXT, "before": ANY, "after": ANY, "keys": _list(TEXT),
        "where": _list(_ref("where")), "contracts": _list({"enum": list(CONTRACTS)}), "checkpoint": {"enum": list(CHECKPOINT)},
        "silent": {"type": "boolean"}, "deltas": {"type": "object", "additionalProperties": WHOLE},
        "source": _record({"base": _or_null(_ref("place")), "head": _or_null(_ref("place"))}), "evidence": TEXT,
        "consequences": _list(consequence), "tensors": _list(_ref("tensor")), "conversion": _or_null(way), "notes": _list(TEXT),
        "accepted": _or_null(TEXT)})


def _ref_rule() -> Schema:
    return {"enum": list(RULES)}
