"""`Tree -> text`: one file that says all: variants applied, sizes as set, the blocks of used files written in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from ..lang.tree import Mapping, plain


def resolve(tree: Mapping, files: Iterable[Mapping]) -> str | None:
    """A spec that needs no other file and means the same, as YAML; None where the names of two files would meet in it."""
    whole: Any = plain(tree)
    blocks = dict(whole.pop("blocks", None) or {})
    for file in files:
        said: Any = plain(file)
        mine = said.get("blocks") or {}
        if said.get("sizes") or any(name in blocks and blocks[name] != block for name, block in mine.items()):
            return None
        blocks |= mine
    whole.pop("use", None)
    return yaml.safe_dump({**whole, **({"blocks": blocks} if blocks else {})}, sort_keys=False, allow_unicode=True, width=120)
