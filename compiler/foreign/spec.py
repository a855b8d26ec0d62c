"""The text of an imported spec: the family's own file with the changes of a config."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..lang.source import Source
from ..lang.tree import Mapping, Scalar, Sequence
from ..stages.compose import change
from .fit import Fitted
from .folder import Foreign
from .section import Change
from .write import edited

_SCHEMA = "# yaml-language-server:"


def spec_text(foreign: Foreign, fitted: Fitted, source: Source, output: Path) -> str:
    """The spec of a checkpoint, to be written to `output`: files that the family uses from its own folder are found from there."""
    tree, moved = fitted.tree, list(_moved(fitted.tree, Path(source.name).parent, output.parent))
    for one in moved:
        tree = change(tree, one.what, one.path, one.value)
    text = edited(source.text, tree, (*fitted.changes, *moved))
    lines = [line for line in text.split("\n") if not line.startswith(_SCHEMA)]
    return "\n".join([f"# Imported from a config.json of model_type {foreign.kind}, by the family {foreign.family.stem}.", *lines])


def _moved(tree: Mapping, old: Path, new: Path) -> Iterator[Change]:
    used = tree.get("use")
    items = [("use", used)] if isinstance(used, Scalar) else []
    if isinstance(used, Sequence):
        items = [(f"use.{k}", item) for k, item in enumerate(used) if isinstance(item, Scalar)]
    for path, item in items:
        if "/" in item.text or item.text.endswith((".yaml", ".yml")):
            there = Path(os.path.relpath((old / item.text).resolve(), new.resolve())).as_posix()
            yield Change("set", Scalar(path, item.span), Scalar(there if there.startswith(".") else f"./{there}", item.span))
