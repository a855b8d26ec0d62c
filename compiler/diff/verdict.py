"""What an edit means for a checkpoint, and how an old one is brought over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..ir.graph import Branch, Call, Graph, Node, Region, Repeat, Value, bodies, walk
from .graphs.concepts import name_of
from .graphs.matching import source
from .migration.upcycle import upcycled
from .report import CHECKPOINT, Consequence, Contract, Conversion, Level, TensorChange
from .rules import RANK, RULES


def told(findings: Iterable[Consequence]) -> list[Consequence]:
    """The findings without those that follow from others; what is left is in the order of the rules."""
    found = _whole(list(findings))
    rules = {f.rule for f in found}
    explained = {x for r in rules for x in RULES[r].explains if x in rules and RANK[r] < RANK[x]}       # the first of two stays
    left = [f for f in found if f.rule not in explained]
    if any(RULES[f.rule].effect == "function" for f in left):
        left = [f for f in left if f.rule != "block.renamed"]
    if any(f.rule != "training.init-changed" for f in left):
        left = [f for f in left if f.rule != "training.init-changed" or not _follows(f, left)]
    nodes = {f.rule for f in left} & {"node.added", "node.removed", "node.swapped"}      # a norm that goes with others is not the headline
    return sorted(left, key=lambda f: RANK["node.swapped"] if nodes and f.rule in ("norm.added", "norm.removed") else RANK[f.rule])


def _follows(f: Consequence, others: Sequence[Consequence]) -> bool:
    """Whether how a parameter starts may follow from a number told elsewhere."""
    return any(RULES[o.rule].effect == "function" for o in others)


def _whole(found: list[Consequence]) -> list[Consequence]:
    """One thing removed and another of its kind added is one change of its type."""
    for kind in ("position", "norm", "ffn"):
        ups = [f for f in found if f.rule in (f"{kind}.added", "node.added") and f.rule.startswith(kind)]
        downs = [f for f in found if f.rule == f"{kind}.removed"]
        if ups and downs:
            before, after = downs[0].before, ups[0].after
            both = [Consequence(f"{kind}.type-changed", f.where, before, after) for f in (*downs, *ups)]
            found = [*both, *(f for f in found if f not in ups and f not in downs)]
    return found


def strict_load(tensors: Sequence[TensorChange]) -> bool:
    """Whether a strict load of the old checkpoint succeeds: the same names with the same shapes."""
    return not any(plain_load(tensors))


def plain_load(tensors: Sequence[TensorChange]) -> tuple[int, int, int]:
    """What a load by name finds: how many tensors are missing, unexpected, and of another shape."""
    moved = [t for t in tensors if t.status != "kept"]
    old = {p: t.before for t in moved if t.base for p in t.base.paths()}
    new = {p: t.after for t in moved if t.head for p in t.head.paths()}
    both = old.keys() & new.keys()
    return len(new) - len(both), len(old) - len(both), sum(old[p] != new[p] for p in both)


def checkpoint_class(found: Sequence[Consequence], tensors: Sequence[TensorChange], conversion: Conversion | None) -> str:
    """The class of one edit, of those in `report.CHECKPOINT`."""
    function = any(RULES[f.rule].effect == "function" for f in found)
    changed = [t for t in tensors if t.status != "kept"]
    if not function and all(t.status == "renamed" for t in changed):
        return "renamed" if changed else "same"
    if strict_load(tensors):
        return "silent"
    if conversion is not None and conversion.kind != "reinit":
        return conversion.kind
    if not any(t.status in ("kept", "renamed") for t in tensors):
        return "none"
    return "approx" if all(t.status in ("dropped", "renamed") for t in changed) else "partial"


def worst(classes: Iterable[str]) -> str:
    return max(classes, key=CHECKPOINT.index, default="same")


def level(checkpoint: str, found: Sequence[Consequence], interface: Sequence[Contract]) -> Level:
    """How bad an edit is."""
    if CHECKPOINT.index(checkpoint) >= CHECKPOINT.index("approx") or any(c.level == "breaking" for c in interface):
        return "breaking"
    mapped = any(RULES[f.rule].effect == "mapping" for f in found)
    return "warning" if checkpoint != "same" or mapped else "info"


def touched(checkpoint: str, found: Sequence[Consequence], interface: Sequence[Contract], deltas: dict[str, int],
            cache: bool) -> tuple[str, ...]:
    """The contracts that an edit touches."""
    effects = {RULES[f.rule].effect for f in found}
    return tuple(name for name, on in (
        ("checkpoint", checkpoint != "same" or "mapping" in effects), ("numerics", "function" in effects), ("interface", bool(interface)),
        ("cache", cache), ("cost", any(deltas.values())), ("training", "training" in effects)) if on)


# conversions


def conversion(first: Consequence, tensors: Sequence[TensorChange], after: Graph) -> Conversion | None:
    """How the checkpoint goes over an edit that `first` is the headline of; None where there is nothing to convert, or no way."""
    if all(t.status in ("kept", "renamed") for t in tensors) and first.rule not in ("block.removed", "stack.count-decreased"):
        return None
    make = _WAYS.get(first.rule)
    found = make(first.before, first.after, first, after) if make else None
    if found is not None and not _fits(found, {t.status for t in tensors}):
        found = None                                        # something else was edited with it
    if found is None and any(t.status in ("new", "reshaped") for t in tensors):
        n = sum(t.count for t in tensors if t.status in ("new", "reshaped"))
        return Conversion("reinit", "start", "1 tensor starts anew" if n == 1 else f"{n} tensors start anew")
    return found


def _fits(way: Conversion, statuses: set[str]) -> bool:
    """Whether a conversion accounts for what becomes of the tensors."""
    if way.op in ("mean-heads", "repeat-heads", "pad-rows", "cut-rows", "pad-hidden", "cut-hidden"):
        return not statuses & {"new", "dropped"}
    return way.op not in ("zero-blocks", "copy", "zero-bias") or not statuses & {"dropped", "reshaped"}


def _kv_heads(before: Any, after: Any, *_: Any) -> Conversion | None:
    if not isinstance(before, int) or not isinstance(after, int):
        return None
    if before % after == 0:
        return Conversion("approx", "mean-heads", f"mean of every {before // after} key and value heads", {"groups": before // after})
    if after % before == 0:
        return Conversion("exact", "repeat-heads", f"repeat every key and value head {after // before} times", {"times": after // before})
    return None


def _rows(before: Any, after: Any, *_: Any) -> Conversion | None:
    if not isinstance(before, int) or not isinstance(after, int):
        return None
    if after > before:
        return Conversion("exact", "pad-rows", f"append {after - before:,} rows; the first {before:,} stay", {"rows": after - before})
    return Conversion("approx", "cut-rows", f"keep the first {after:,} rows", {"rows": before - after})


def _hidden(before: Any, after: Any, *_: Any) -> Conversion | None:
    before, after = (v.get("width") if isinstance(v, dict) else v for v in (before, after))
    if not isinstance(before, int) or not isinstance(after, int):
        return None
    if after > before:
        more = after - before
        return Conversion("exact", "pad-hidden", f"append {more:,} inner units that the output reads with zeros", {"units": more})
    return Conversion("approx", "cut-hidden", f"keep {after:,} of {before:,} inner units", {"units": before - after})


def _grown(before: Any, after: Any, first: Consequence, graph: Graph) -> Conversion | None:
    ends = residual_ends(graph, first.where.pattern.removesuffix("{i}").rstrip("."))
    if not ends:
        return None
    names = " and ".join(f"`{e}`" for e in ends)
    text = f"start {names} of the new copies at zero: the function is kept"
    return Conversion("exact", "zero-blocks", text, {"copies": first.where.count})


def _fixed(kind: Any, op: str, text: str) -> Callable[..., Conversion]:
    return lambda *_: Conversion(kind, op, text)


def _ffn(before: Any, after: Any, first: Consequence, graph: Graph) -> Conversion | None:
    if "copy its weights" not in first.note:
        return None
    node = next((n for path, _, n in walk(graph.root) if path == first.where.pattern), None)
    exact = node is not None and isinstance(node.op, Call) and upcycled(node.op.body)
    return Conversion("exact" if exact else "reinit", "copy-experts", first.note)


_WAYS: dict[str, Callable[..., Conversion | None]] = {
    "attention.kv-heads-changed": _kv_heads, "embedding.rows-changed": _rows, "position.table-resized": _rows,
    "ffn.hidden-changed": _hidden, "stack.count-increased": _grown, "block.added": _grown, "ffn.type-changed": _ffn,
    "stack.count-decreased": _fixed("approx", "cut-blocks", "drop the copies that are gone"),
    "block.removed": _fixed("approx", "cut-blocks", "drop the copies that are gone"),
    "weights.untied": _fixed("exact", "copy", "copy the tensor that was shared"),
    "weights.unshared": _fixed("exact", "copy", "copy the tensors that were shared"),
    "weights.tied": _fixed("approx", "drop", "the tensor of its own is lost unless both are equal"),
    "bias.added": _fixed("exact", "zero-bias", "start the biases at zero"),
}


def residual_ends(graph: Graph, path: str, number: int | None = None) -> list[str]:
    """The last linear of every term that a copy adds to its input; none where a copy is no sum with it. The first copy stands for all where
    no `number` is given."""
    node, region = _find(graph.root, path)
    if node is None or region is None or not isinstance(node.op, Repeat) or len(node.op.carry) != 1:
        return []
    body = node.op.bodies[node.op.schedule[number or 0]]
    port, out = next(iter(node.op.carry.items()))
    carried = body.argument(port)
    ends: list[str] = []
    return ends if _sums(body, body.output(out), carried, ends) else []


def _find(region: Region, path: str) -> tuple[Node | None, Region | None]:
    """The node at a path without copies."""
    for n in region.nodes:
        if n.name == path:
            return n, region
    for n in region.nodes:
        if path.startswith(f"{n.name}.") and bodies(n) and not isinstance(n.op, Repeat):
            return _find(bodies(n)[0], path[len(n.name) + 1:])
    return None, None


def _sums(body: Region, value: Value, carried: Value, ends: list[str]) -> bool:
    """Whether a value is the carried one, plus terms that end in linear nodes, whose names go to `ends`."""
    value = source(body, value)
    if value == carried:
        return True
    node = body.nodes[value.node] if value.node >= 0 else None
    if node is None or name_of(node) != "add":
        return False
    given = node.inputs["in"]
    terms = [source(body, v) for v in (given if isinstance(given, tuple) else (given,)) if v is not None]
    for t in terms:
        mine: list[str] = []
        rest = [_end(body, o) for o in terms if o is not t]
        if all(rest) and _sums(body, t, carried, mine):
            ends += [*mine, *(r for r in rest if r)]
            return True
    return False


def _end(region: Region, value: Value, path: str = "") -> str | None:
    """The path of the linear node that a value is the result of."""
    value = source(region, value)
    if value.node < 0:
        return None
    node = region.nodes[value.node]
    here = f"{path}.{node.name}" if path else node.name
    if bodies(node):
        body = bodies(node)[0]
        if isinstance(node.op, Branch) and node.op.route:                       # a sum of experts
            found = {_end(b, b.outputs[0][1], f"{here}.{{i}}") for b in node.op.bodies}
            return found.pop() if len(found) == 1 else None
        return _end(body, body.outputs[0][1], here) if isinstance(node.op, Call) else None
    return here if name_of(node) == "linear" else None
