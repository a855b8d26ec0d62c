"""The key map as a file: written for people and scripts to read and to change, and read back by `nnspec migrate --keymap`.

It is YAML, or JSON where its name ends so. `tensors:` holds a tensor of the head a line: the name of the old one that it is, or the steps
that it is made by. A file that a person writes needs only the tensors that are to be made otherwise than found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...lang.diagnostic import Diagnostics, diagnostic, suggest
from ...lang.tree import Mapping, Scalar, kind
from ...stages.parse import parse, read_source
from ..lock import quoted
from ..report import Edit, Report, Side
from .keys import KeyMap, ranges, step_data
from .recipes import Recipe

VERSION = 1
CODE = "bad-keymap"
KEYS = ("keymap", "base", "head", "kind", "renames", "tensors", "dropped")
ABOUT = ("# How each tensor of the new checkpoint is made of those of the old one: `nnspec migrate --keymap` follows it, also as changed.",
         "# `renames:` are nodes, old and new, as `nnspec diff --map` takes them.")


def keymap_data(keys: KeyMap, report: Report) -> dict[str, Any]:
    """The file as plain data, in a fixed order."""
    return {"keymap": VERSION, "base": _spec(report.base), "head": _spec(report.head), "kind": keys.kind,
            "renames": dict(renames(report.edits)), "tensors": {p: recipe_data(r, p) for p, r in keys.recipes.items()},
            "dropped": dict(keys.dropped)}


def keymap_text(keys: KeyMap, report: Report, path: Path) -> str:
    """The text of the file that `path` names: JSON or YAML."""
    data = keymap_data(keys, report)
    if path.suffix == ".json":
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    lines = list(ABOUT)
    for key, value in data.items():
        if key in ("renames", "tensors", "dropped") and value:
            lines += [f"{key}:", *(f"  {quoted(k)}: {_flow(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def _spec(side: Side | None) -> dict[str, str]:
    return {"name": side.name, "identity": side.identity} if side else {}


def renames(edits: Sequence[Edit]) -> Iterator[tuple[str, str]]:
    """(old, new) names of the nodes that were renamed, behind the name of their block."""
    for e in edits:
        for c in e.consequences:
            if c.rule == "node.renamed":
                key = next((k.split(".") for k in e.keys if k.endswith(f"graph.{c.after}")), [])
                block = f"{key[1]}." if key[:1] == ["blocks"] else ""
                yield f"{block}{c.before}", f"{block}{c.after}"


def recipe_data(recipe: Recipe, path: str = "") -> Any:
    """A recipe as plain data: the name of an old tensor, or what is done with it; empty where no old tensor will do."""
    if recipe.op == "source":
        return recipe.name
    parts = [recipe_data(p) for p in recipe.parts]
    made = {"kind": recipe.kind, **{k: v for k, v in step_data(recipe).items() if v != "" and k != "groups"}}
    if recipe.index is not None and recipe.index.ndim == 2:
        made["columns"] = [ranges(recipe.index[:, k].tolist()) for k in range(recipe.index.shape[1])]
    return made | ({"of": parts[0] if len(parts) == 1 else parts} if parts else {})


# reading


def opened_keymap(path: Path) -> Mapping:
    """The mapping that a file holds. Raises Diagnostics (`bad-keymap`, and those of reading YAML) with all that is wrong outside of
    its tensors."""
    tree = parse(read_source(path))
    if not isinstance(tree, Mapping):
        raise Diagnostics([diagnostic(CODE, f"a key map is a mapping, not {kind(tree)}", tree.span,
                                      help="`nnspec diff --write-keymap FILE` writes one")])
    wrong = [diagnostic(CODE, f"a key map has no key `{e.key.text}`", e.key.span, help=suggest(e.key.text, KEYS, "keys"))
             for e in tree if e.key.text not in KEYS]
    version = tree.get("keymap")
    if not isinstance(version, Scalar) or version.text != str(VERSION):
        wrong.append(diagnostic(CODE, f"`{path}` is no key map of version {VERSION}", version.span if version else tree.span,
                                help=f"a key map begins with `keymap: {VERSION}`"))
    wrong += [diagnostic(CODE, f"`{key}:` of a key map is a mapping, not {kind(value)}", value.span)
              for key in ("base", "head", "renames", "tensors", "dropped") if not isinstance(value := tree.get(key), Mapping | None)]
    if wrong:
        raise Diagnostics(wrong)
    return tree
