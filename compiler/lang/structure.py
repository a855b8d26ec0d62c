"""The structure of spec files as JSON Schema definitions: which keys and forms stand where, without the keys of single ops.

`stages/check.py` validates against these; `schema.py` adds the ops and the grammar of values and publishes them for editors.
Every alternative is a type or an `if`, so that each violation has one place and one cause. `title` is the noun for messages.
"""

from __future__ import annotations

from typing import Any

from .spec import CONTROL_KEYS, CONTROLS, RENAMED, RESERVED, TARGETS

Schema = dict[str, Any]

CONTROL_OF = {  # which controls a key goes with
    "along": ("scan",), "each": CONTROLS, "carry": ("repeat", "scan"), "share": ("repeat", "branch"),
    "pattern": ("repeat", "branch"), "backward": ("scan",), "route": ("branch",),
}
DTYPES = ("float", "int64", "bool")
INITS = ("zeros", "ones", "normal", "uniform", "constant", "xavier_uniform", "xavier_normal", "fan_in_uniform", "orthogonal",
         "truncated_normal")                    # how a parameter may start: the first two alone, the others with a number
SCALARS = ["string", "number", "boolean"]
SCALAR: Schema = {"type": SCALARS}
TEXT: Schema = {"type": ["string", "number"]}
EXTRA: Schema = {"^x-": True}                   # keys for other tools
NEVER: Schema = {"not": {}}                     # as `false`, but validators say where it was
NO_CONTROL = dict.fromkeys((*CONTROLS, *CONTROL_KEYS), NEVER)


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def record(title: str, properties: Schema, required: tuple[str, ...] = (), **more: Any) -> Schema:
    """A mapping with these keys and no others."""
    return {"title": title, "type": "object", "required": list(required), "properties": properties,
            "patternProperties": EXTRA, "additionalProperties": False} | more


def table(about: str, value: Schema, names: str = "name", **more: Any) -> Schema:
    """A mapping from free names; it may be left empty."""
    return {"description": about, "type": ["object", "null"], "propertyNames": ref(names), "additionalProperties": value} | more


def one_of_required(names: tuple[str, ...]) -> Schema:
    return {"anyOf": [{"required": [n]} for n in names]}


def _shared() -> Schema:
    """Keys of a model and of a block alike."""
    return {
        "about": TEXT | {"description": "One sentence: what it is, and its paper."},
        "notes": {"description": "Anything for the reader; the compiler does not look at it."},
        "inputs": table("Inputs and their types, such as `tokens: int64[B, S <= 1024]`.", ref("type"), "port"),
        "graph": table("Named nodes.", ref("node"), type="object", minProperties=1),
        "outputs": ref("outputs"),
    }


def _file() -> Schema:
    return {
        "nnspec": {"description": "Version of the language: 1.", "enum": [1, "1"]},
        "name": TEXT | {"description": "Name of the model; the file's name when not given."},
        "stability": {"description": "A draft promises nothing to those who compare with it.", "enum": ["draft", "stable"]},
        "use": {"description": "Block files: a name of the library, or `./FILE.yaml` relative to this file.",
                "type": ["array", "string"], "items": TEXT},
        "sizes": table("Named numbers, or lists of numbers; expressions of other sizes.", ref("size")),
        "blocks": table("Blocks of this file.", ref("block")),
        "expect": {"description": "The fusion contract: the ONNX form that sites must take, `fused` or names of forms.",
                   "type": ["object", "null"]},
        "budget": {"description": "Limits that the model must stay under.", "type": ["object", "null"]},
        "checkpoint": ref("checkpoint"),
    } | _shared()


def _one_target() -> Schema:
    return {t: {"properties": dict.fromkeys(TARGETS[i + 1:], NEVER)} for i, t in enumerate(TARGETS[:-1])}


def _node() -> Schema:
    legal = {c: [k for k, by in CONTROL_OF.items() if c in by] for c in CONTROLS}
    illegal = {c: dict.fromkeys([k for k in (*CONTROL_KEYS, *CONTROLS[i + 1:]) if k not in legal[c]], NEVER)
               for i, c in enumerate(CONTROLS)}
    illegal["scan"] |= dict.fromkeys(TARGETS, NEVER)
    alone = {k: one_of_required(by) for k, by in CONTROL_OF.items()}
    return {
        "title": "a node",
        "description": "One of `op:`, `block:`, `slot:`, or `scan:`; its ports, attributes and settings.",
        "type": "object",
        "properties": {
            "op": TEXT | {"description": "Name of an op."},
            "block": TEXT | {"description": "Name of a block of this file or of a used file."},
            "slot": TEXT | {"description": "Name of a slot of this block."},
            "repeat": SCALAR | {"description": "Copies in depth: how many."},
            "scan": TEXT | {"description": "Copies in time: the block that each step runs."},
            "branch": SCALAR | {"description": "Copies side by side: how many."},
            "along": SCALAR | {"description": "The axis that a scan walks, by its size; the second one when not given."},
            "each": {"description": "Ports of which each copy takes its own element.", "type": ["object", "null"],
                     "additionalProperties": ref("each")},
            "carry": {"description": "Ports chained from copy to copy, and their starts.", "type": ["object", "null"],
                      "additionalProperties": ref("value")},
            "share": SCALAR | {"description": "Whose parameters copy `i` uses."},
            "pattern": {"description": "A cycle of overrides, one item a copy, or `times:` copies.", "type": "array",
                        "minItems": 1, "items": ref("override")},
            "backward": SCALAR | {"description": "Whether a scan walks from the end."},
            RENAMED: TEXT | {"description": "The name that this node had before, for `nnspec diff`."},
            "route": record("`route`", {"weights": TEXT, "indices": TEXT}, ("weights", "indices"),
                            description="Mixture of experts: each row's weights, and the copies that it goes to."),
        },
        "additionalProperties": ref("value"),
        "anyOf": one_of_required((*TARGETS, "scan"))["anyOf"],
        "dependentSchemas": _one_target() | {c: {"properties": keys} for c, keys in illegal.items()} | alone,
    }


def _checkpoint() -> dict[str, Schema]:
    names = {"type": ["array", "string"], "items": TEXT}
    checkpoint = {
        "model_type": names | {"description": "`model_type` of the configs that this spec is the family of."},
        "config": ref("config"),
        "tensors": {"description": "Foreign tensor of each parameter path; of a list, those that the file holds.", "type": "object"},
        "ignore": names | {"description": "Foreign tensors that we have no use for; `{i}` is a number, `*` any text."},
        "prefix": names | {"description": "What foreign names may start with, such as `model.`."}}
    return {
        "checkpoint": {"description": "A family of checkpoints made elsewhere."} | record("`checkpoint`", checkpoint),
        "config": {"description": "Every key of a foreign config.json, and what it means here.", "type": "object",
                   "properties": {"ignore": names | {"description": "Keys that change nothing."},
                                  "use": names | {"description": "Keys that families share: files of the library's specs/configs."}},
                   "additionalProperties": ref("config_key")},
        "config_key": {"description": "`size:`, `at:`, `choose:`, `require:`, or `pattern:`."} | record("a key of `config`", {
            "size": TEXT | {"description": "The size that its value becomes."},
            "at": names | {"description": "The path, or paths, where its value goes; without one the spec stays as it is."},
            "words": TEXT | {"description": "A file of the library's specs/configs: its words, and ours."},
            "default": {"description": "Its value when it is absent or null: an expression over sizes, or one of the choices.",
                        "type": [*SCALARS, "array"], "items": TEXT},
            "choose": {"description": "What each value changes.", "type": "object", "minProperties": 1,
                       "additionalProperties": ref("change")},
            "require": {"description": "The values that are supported, or expressions over sizes.",
                        "type": [*SCALARS, "array", "null"], "items": {"type": [*SCALARS, "null"]}},
            "pattern": TEXT | {"description": "The repeated node whose copies a list names the kinds of."},
            "items": {"description": "The changes of each kind of copy.", "type": "object", "minProperties": 1,
                      "additionalProperties": ref("override")}}),
        "change": record("a choice", {
            "set": {"description": "New values at paths.", "type": "object"},
            "add": {"description": "New keys at paths.", "type": "object"},
            "remove": names | {"description": "Paths to leave out."},
            "config": ref("config")}),
    }


def definitions() -> dict[str, Schema]:
    """The `$defs` by name. `model` and `library` are whole files after composition."""
    is_node = {"type": "object"} | one_of_required((*TARGETS, "scan"))
    name = {"title": "a name", "type": "string", "pattern": r"^[a-z][a-z0-9_]*$(?!\n)"}
    return {
        "model": record("a spec", _file(), ("graph", "outputs")),
        "library": record("a block file", _file(), ("blocks",)),
        "block": record("a block", {
            "settings": table("`int`, `float`, `bool`, `list`, `text`, `one of a | b`, ` = default`.", ref("setting"), "key"),
            "slots": table("Slots and their signatures, such as `float[*b, w] -> float[*b, w]`.", ref("slot"), "key"),
        } | _shared(), ("graph",)),
        "node": _node(),
        "value": {"title": "a value", "type": [*SCALARS, "array", "object"], "items": ref("value"),
                  "if": is_node, "then": ref("node"), "else": {"properties": NO_CONTROL, "additionalProperties": ref("value")}},
        "override": {"title": "an item of `pattern`", "type": "object",
            "properties": NO_CONTROL | dict.fromkeys(TARGETS, TEXT) | {
                "times": SCALAR | {"description": "How many copies in a row."}},
            "additionalProperties": ref("value"), "dependentSchemas": _one_target()},
        "each": {"type": [*SCALARS, "object"], "if": {"type": "object", "not": is_node}, "then": ref("choice"),
                 "else": ref("value")},
        "choice": record("an entry of `each`", {
            "from": ref("value") | {"description": "A value with one element for each copy, or more."},
            "at": SCALAR | {"description": "The element that copy `i` takes."}}, ("from",)),
        "outputs": {"description": "Outputs by name, a list of them, or one.", "type": ["string", "array", "object"],
                    "items": TEXT, "minItems": 1, "minProperties": 1, "propertyNames": ref("name"), "additionalProperties": TEXT},
        "size": {"type": ["string", "number", "array"], "items": ref("size")},
        "type": {"description": "`float`, `int64` or `bool` and a shape: `optional float[B, S, width]`.", "type": "string"},
        "setting": {"type": "string"},
        "slot": {"type": "string"},
        "name": name | {"not": {"enum": ["i", "in"]}},          # an input's default name and the number of a copy
        "key": name | {"not": {"enum": sorted({*RESERVED, "in", "i"})}},
        "port": name | {"not": {"enum": sorted({*RESERVED, "i"})}},
    } | _checkpoint()
