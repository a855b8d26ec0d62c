"""The JSON Schema (2020-12) of spec files, for editors: `python -m nnspec.schema` prints it, `specs/schema.json` holds it.

The language's keys come from `lang/structure.py`, the ops and their keys from the registry. An editor types scalars as YAML
does and the compiler by field, so numbers and truth values may be written as either.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any

from .lang.structure import DTYPES, INITS, NEVER, SCALARS, Schema, definitions, one_of_required, record, ref
from .lang.tree import Mapping, Scalar, Sequence, Tree
from .ops.base import Op
from .ops.registry import OPS

_KINDS: dict[str, Schema] = {
    "int": {"type": ["integer", "string"]}, "dim": {"type": ["integer", "string"]}, "float": {"type": ["number", "string"]},
    "number": {"type": ["number", "string"]}, "bool": {"type": ["boolean", "string"]}, "text": {"type": ["string", "number"]},
    "ints": {"type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]}},
    "dims": {"type": ["string", "array"], "items": {"type": ["integer", "string"]}},
    "numbers": {"type": [*SCALARS, "array"]}, "init": ref("init"),
}
_ANYWHERE = "^(op|repeat|branch|each|carry|share|pattern|route|init|trainable|renamed_from)$"
_PATH = r"^[^.\s]+(\.[^.\s]+)*$"


def generate() -> Schema:
    """The schema as data."""
    defs = definitions()
    defs["type"] |= {"pattern": rf"^\s*(optional\s+)?({'|'.join(DTYPES)})\s*\[[^\n]*\]\s*$"}
    defs["setting"] |= {"pattern": r"^\s*(optional\s+)?(int|float|bool|list|text|one of\s+[^=]+?)\s*(=\s*\S.*)?$"}
    defs["slot"] |= {"pattern": rf"({'|'.join(DTYPES)})\s*\["}
    defs["init"] = {"description": "How a parameter starts: `zeros`, `ones`, or one rule with its number.",
                    "type": ["string", "object"], "properties": {n: {"type": ["number", "string"]} for n in INITS[2:]}}
    node = defs["node"]
    node["properties"]["op"] |= {"enum": list(OPS)}
    node["allOf"] = [{"if": {"required": ["op"], "properties": {"op": {"const": name}}}, "then": ref(f"op_{name}")}
                     for name in OPS]
    defs |= {f"op_{name}": op(cls) for name, cls in OPS.items()}
    keys = defs.pop("model")["properties"] | _variant()
    del defs["library"]
    file = record("nnspec", keys, description="A model, a file of blocks, or a variant of a model.",
                  dependentRequired={"graph": ["outputs"]} | {k: ["base"] for k in _variant()},
                  **one_of_required(("graph", "blocks", "base")))
    return _falses({"$schema": "https://json-schema.org/draft/2020-12/schema"} | file | {"$defs": defs})


def op(cls: type[Op]) -> Schema:
    """The keys of one op: its ports and attributes."""
    properties: Schema = {}
    left = cls.signature.partition("->")[0]
    for part in filter(None, (p.strip() for p in left.split(";"))):
        name, _, pattern = part.partition(":")
        optional = name.endswith("?")
        about = " ".join(filter(None, ("optional input" if optional else "input", pattern.strip())))
        properties[name.rstrip("?")] = ref("value") | {"description": about}
    for name, f in cls.attributes().items():
        if not f.metadata or f.metadata["kind"] == "open":
            continue
        key = f.metadata["key"] or name
        about = f.metadata["doc"] + ("" if f.default in (None, f.default_factory) else f" (default {_shown(f.default)})")
        kind = ref("value") if key in cls.attribute_ports else _kind(f.metadata["kind"])
        properties[key] = kind | {"description": about.strip()}
    if cls.parameters is not Op.parameters:
        properties |= {"init": ref("init"), "trainable": _KINDS["bool"] | {"description": "whether it is trained"}}
    return {"description": f"{_about(cls)}\n\n{cls.signature}", "properties": properties, "patternProperties": {_ANYWHERE: True},
            "additionalProperties": cls.open_attributes}


def text() -> str:
    """The canonical text of the schema."""
    return json.dumps(generate(), indent=1, ensure_ascii=False) + "\n"


def typed(tree: Tree) -> Any:
    """The tree as an editor sees it: plain scalars become numbers and truth values where YAML 1.2 says so."""
    if isinstance(tree, Sequence):
        return [typed(item) for item in tree]
    if isinstance(tree, Mapping):
        return {e.key.text: typed(e.value) for e in tree}
    return tree.text if tree.quoted else _typed(tree)


def _typed(scalar: Scalar) -> Any:
    simple = {"": None, "~": None, "null": None, "true": True, "false": False}
    if scalar.text in simple:
        return simple[scalar.text]
    if re.fullmatch(r"[-+]?\d+", scalar.text):
        return int(scalar.text)
    return float(scalar.text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", scalar.text) else scalar.text


def _kind(kind: str) -> Schema:
    """The schema of an attribute of a kind (see ops.base.attribute); any of them may name a setting."""
    if kind in _KINDS:
        return dict(_KINDS[kind])
    words = kind.removeprefix("ints|").split("|")
    return {"anyOf": [{"enum": words}, _KINDS["ints"] if kind.startswith("ints|") else {"type": "string"}]}


def _variant() -> Schema:
    about = "{} of the base, such as `graph.layers.attention.window`."
    paths = {"type": "object", "propertyNames": {"pattern": _PATH}}
    return {
        "base": {"description": "The spec that this one changes, relative to this file.", "type": "string"},
        "set": paths | {"description": about.format("New values at paths")},
        "remove": {"description": about.format("Paths to leave out"), "type": ["array", "string"],
                   "items": {"type": "string", "pattern": _PATH}},
        "add": paths | {"description": about.format("New keys at paths")},
    }


def _about(cls: type[Op]) -> str:
    """The first paragraph of an op's docstring, on one line."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())


def _shown(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _falses(schema: Any) -> Any:
    """`{"not": {}}` as the `false` that editors explain better."""
    if isinstance(schema, dict):
        return False if schema == NEVER else {k: _falses(v) for k, v in schema.items()}
    return [_falses(x) for x in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    sys.stdout.write(text())
