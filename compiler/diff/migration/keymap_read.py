"""A key map file, as `keymap.py` writes it, put in the place of what was found: every tensor that it names is made as it says."""

from __future__ import annotations

import re
from collections.abc import Mapping as Map
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from ...checkpoints.weight_names import fold
from ...lang.diagnostic import Sink, fault, suggest
from ...lang.tree import Mapping, Scalar, Sequence, Tree, kind
from ..report import Report, Side
from .keymap import CODE, opened_keymap, recipe_data
from .keys import REFUSED, KeyMap, Move
from .recipes import KINDS, OPS, Recipe, Shape, source

KEYS = ("kind", "op", "shape", "text", "rows", "columns", "value", "of")
MADE = tuple(op for op in OPS if op not in ("source", "start"))
ROWS = ("rows", "repeat-rows")
MAPPED = "model.changed"


def mapped(keys: KeyMap, report: Report, path: Path) -> KeyMap:
    """The key map with the tensors that a file names made as the file says; edits that no tensor could follow are followed where it
    names all that were missing. Raises Diagnostics (`bad-keymap`) with all that is wrong with the file."""
    tree = opened_keymap(path)
    sink = Sink()
    for key, side in (("base", report.base), ("head", report.head)):
        with sink.catch():
            _check_side(tree.get(key), side, key)
    sink.check()
    given = tree.get("tensors")
    reader = _Reader(keys.shapes, sum(map(prod, keys.shapes.values())) + sum(prod(r.shape) for r in keys.recipes.values()))
    made: dict[str, Recipe] = {}
    for e in given if isinstance(given, Mapping) else ():
        with sink.catch():
            if e.key.text not in keys.recipes:
                raise fault(CODE, f"HEAD has no tensor `{e.key.text}`", e.key.span, help=suggest(e.key.text, keys.recipes, "tensors"))
            made[e.key.text] = reader.tensor(e.key.text, e.value, keys.recipes[e.key.text].shape)
    sink.check()
    return _over(keys, {p: r for p, r in made.items() if recipe_data(r, p) != recipe_data(keys.recipes[p], p)}, path)


def _over(keys: KeyMap, made: Map[str, Recipe], path: Path) -> KeyMap:
    """The map with other recipes; as it was where there are none."""
    if not made:
        return keys
    recipes = {p: made.get(p, r) for p, r in keys.recipes.items()}
    used = {n for r in recipes.values() for n in r.sources()}
    title = f"the key map {path.name}"
    dropped = {n: keys.dropped.get(n, title) for n in keys.shapes if n not in used}
    lost = tuple(f"`{p}`: {why}" for p, why in fold((p, r.why) for p, r in recipes.items() if r.worst == REFUSED))
    moves = tuple(replace(m, kind=REFUSED if lost else "approx", why=lost) if m.kind == REFUSED else m for m in keys.moves)
    mine = max((r.worst for r in made.values()), key=KINDS.index)
    return KeyMap(recipes, dropped, (*moves, Move(title, MAPPED, None, mine, lost)), keys.shapes, title)


def _check_side(given: Tree | None, side: Side | None, key: str) -> None:
    said = given.get("identity") if isinstance(given, Mapping) else None
    if isinstance(said, Scalar) and side is not None and said.text != side.identity:
        raise fault(CODE, f"the key map was written for another {key.upper()} than `{side.label}`", said.span,
                    note=f"it was for {said.text}, this is {side.identity}",
                    help=f"write it again with `nnspec diff --write-keymap`, or take `{key}:` out where the map holds for this too")


@dataclass(frozen=True)
class _Reader:
    """`shapes` are those of the old tensors; no step makes more numbers than `most`."""

    shapes: Map[str, Shape]
    most: int

    def tensor(self, path: str, tree: Tree, wanted: Shape) -> Recipe:
        """The recipe of the new tensor `path`. Raises Fault."""
        found = self.recipe(tree, wanted)
        if found.shape != wanted:
            raise fault(CODE, f"`{path}` is {list(wanted)}, and the key map makes it {list(found.shape)}", tree.span)
        if found.op == "random":
            return replace(found, name=path)
        return replace(found, kind="renamed") if found.op == "source" and found.name != path else found

    def recipe(self, tree: Tree, wanted: Shape | None = None) -> Recipe:
        if isinstance(tree, Scalar):
            if tree.text not in self.shapes:
                raise fault(CODE, f"BASE has no tensor `{tree.text}`", tree.span, help=suggest(tree.text, self.shapes, "tensors"))
            return source(tree.text, self.shapes[tree.text])
        if not isinstance(tree, Mapping):
            raise fault(CODE, f"a tensor is made of the name of an old one, or by a mapping, not {kind(tree)}", tree.span)
        for e in tree:
            if e.key.text not in KEYS:
                raise fault(CODE, f"a step of a key map has no key `{e.key.text}`", e.key.span, help=suggest(e.key.text, KEYS, "keys"))
        op = _word(tree, "op", MADE)
        shape = self.shape(tree, wanted)
        if op == "none":
            return Recipe("none", shape, REFUSED, text=_text(tree))
        given = tree.get("of")
        parts = tuple(self.recipe(p) for p in (given if isinstance(given, Sequence) else () if given is None else (given,)))
        index = self.index(tree, op, shape, sum(p.shape[0] if p.shape else 0 for p in parts))
        made = Recipe(op, shape, _word(tree, "kind", KINDS, "exact"), parts, "", index, _number(tree), _text(tree))
        if (why := _misfit(made)) is not None:
            raise fault(CODE, f"`{op}` cannot make {list(shape)}: {why}", tree.span)
        return made

    def shape(self, tree: Mapping, wanted: Shape | None) -> Shape:
        given = tree.get("shape")
        if given is None and wanted is not None:
            return wanted
        found, at = _numbers(given), (given or tree).span
        if found is None:
            raise fault(CODE, "a step of a key map has the `shape` that it makes", at, help="`shape: [24, 8]`")
        if prod(found) > self.most:
            raise fault(CODE, f"{found} has more numbers than both models together", at)
        return tuple(found)

    def index(self, tree: Mapping, op: str, shape: Shape, rows: int) -> Any:
        """The rows that a step takes, [n] or [n, g]; None for steps that take none."""
        key = "rows" if op in ROWS else "columns" if op == "mean-rows" else None
        for other in ("rows", "columns"):
            if other in tree and other != key:
                raise fault(CODE, f"`{op}` takes no `{other}`", tree.entry(other).key.span)  # type: ignore[union-attr]
        if key is None:
            return None
        import numpy as np
        given = tree.get(key)
        lists = list(given) if key == "columns" and isinstance(given, Sequence) else [given]
        columns = [self.ranges(x, tree, key, shape, rows) for x in lists] or [self.ranges(None, tree, key, shape, rows)]
        return np.array(columns[0]) if key == "rows" else np.array(columns).T

    def ranges(self, given: Tree | None, tree: Mapping, key: str, shape: Shape, rows: int) -> list[int]:
        pairs = [_numbers(pair) for pair in given] if isinstance(given, Sequence) else [None]
        if any(p is None or len(p) != 2 or not p[0] < p[1] <= rows for p in pairs):
            raise fault(CODE, f"`{key}` are ranges of rows [first, end], of the {rows:,} that there are", (given or tree).span)
        n = sum(p[1] - p[0] for p in pairs if p)
        if not shape or n != shape[0]:
            raise fault(CODE, f"`{key}` are {n:,} rows, and the step makes {list(shape)}", (given or tree).span)
        return [k for p in pairs if p for k in range(*p)]


def _misfit(made: Recipe) -> str | None:
    """Why a step does not make its shape; None where it does."""
    op, shape, parts = made.op, made.shape, made.parts
    if op in ("fill", "random"):
        return None
    if not parts:
        return "it is made of nothing"
    if len({p.shape[1:] for p in parts}) > 1 or not all(p.shape for p in parts) and len(parts) > 1:
        return "its parts have rows of several shapes"
    held = (sum(p.shape[0] for p in parts), *parts[0].shape[1:]) if parts[0].shape else ()
    axis = 1 if op.endswith("columns") else 0
    if op == "copy":
        return None if held == shape else f"its parts are {list(held)}"
    others = len(shape) == len(held) and all(a == b for k, (a, b) in enumerate(zip(held, shape, strict=True)) if k != axis)
    if not others or len(held) <= axis or axis and len(held) != 2:
        return f"its parts are {list(held)}"
    if op.startswith(("pad", "more")) and shape[axis] < held[axis] or op.startswith("cut") and shape[axis] > held[axis]:
        return f"its parts are {list(held)}"
    return None


def _word(tree: Mapping, key: str, known: Seq[str], default: str | None = None) -> str:
    given = tree.get(key)
    if given is None and default is not None:
        return default
    word = given.text if isinstance(given, Scalar) else ""
    if word not in known:
        said = f"`{word}` is no `{key}`" if word else f"a step of a key map has its `{key}` as a word"
        raise fault(CODE, said, (given or tree).span, help=suggest(word, known, f"words of `{key}`"))
    return word


def _text(tree: Mapping) -> str:
    given = tree.get("text")
    return given.text if isinstance(given, Scalar) else ""


def _number(tree: Mapping) -> float:
    given = tree.get("value")
    try:
        return float(given.text) if isinstance(given, Scalar) else 0.0
    except ValueError:
        raise fault(CODE, "the `value` of a step is a number", given.span if given else None) from None


def _numbers(tree: Tree | None) -> list[int] | None:
    if not isinstance(tree, Sequence) or any(not isinstance(x, Scalar) or not re.fullmatch(r"\d{1,18}", x.text) for x in tree):
        return None
    return [int(x.text) for x in tree if isinstance(x, Scalar)]
