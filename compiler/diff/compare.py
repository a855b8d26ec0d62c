"""`Compiled, Compiled -> Report`: the whole comparison of two specs that compile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..costs.cost import LENGTH, ROWS, free_dimensions
from ..ir.graph import Graph
from ..ir.parameters import parameter_table
from ..ir.text import identity_hash, structure_hash
from ..lang.diagnostic import Diagnostics, diagnostic, suggest
from ..lang.source import Span
from ..lang.tree import Mapping as TreeMapping
from ..lang.tree import Scalar
from ..pipeline import Compiled
from .costs import Facts, facts, metrics
from .graphs.function import same_function
from .graphs.moves import followed as followed_moves
from .graphs.moves import without_moves
from .graphs.regions import Found, compare_graphs
from .interface import contracts
from .migration.plan import followed
from .outline import outline, outputs
from .replay import Step, renamed_nodes, replay
from .report import Consequence, Contract, Edit, Place, Report, Side, Verdict, Where
from .rules import RULES
from .source_files import named, texts
from .tree import ASIDE, Group, aside, at, canonical
from .verdict import checkpoint_class, conversion, level, told, touched, worst

MOVED = {"node.renamed", "node.moved", "block.moved"}
SYMBOLS = {"added": "+", "increased": "+", "removed": "-", "decreased": "-", "renamed": ">", "moved": ">", "shifted": ">"}


def compare(base: Compiled, head: Compiled, labels: tuple[str, str], sizes: Mapping[str, int] | None = None,
            dtype: str = "float16") -> Report:
    """What changed from `base` to `head`. `sizes` name free dimensions, at which costs are told.

    Raises Diagnostics (`unknown-name`) for a dimension that neither model has.
    """
    shared = common_sizes((base.graph, head.graph), sizes or {})
    sides = side(base, labels[0]), side(head, labels[1])
    interface = contracts(base.graph, head.graph)
    steps: list[Step] = []
    notes: list[str] = []
    if sides[0].identity != sides[1].identity or interface:
        steps, notes = replay(base, head)
    known: dict[int, Facts] = {}

    def at_sizes(graph: Graph) -> Facts:
        if id(graph) not in known:
            known[id(graph)] = facts(graph, shared, dtype)
        return known[id(graph)]

    tree = canonical(head, base) if steps else None
    edits = [edit(s, at_sizes(s.before), at_sizes(s.after), tree) for s in steps]
    before, after = at_sizes(base.graph), at_sizes(head.graph)
    total = without_moves(compare_graphs(base.graph, head.graph, _names(head, steps)), base.graph, head.graph)
    total.tensors = followed_moves(total.tensors, [s.found.tensors for s in steps])
    mapping, said = _aside(base, head, total, edits)
    edits += mapping
    if not any(RULES[f.rule].effect == "function" for e in edits for f in e.consequences) and not same_function(base.graph, head.graph):
        edits.append(_unknown(labels))
    verdict = _verdict(sides, edits, total, interface, _cache(before, after))
    made = Report(*sides, verdict, tuple(edits), tuple(total.tensors), metrics(before, after),
                  {**before.sizes, **after.sizes}, tuple(said), tuple(notes), total.truncated, dtype=dtype)
    return _of_draft(made) if is_draft(base) else made


def is_draft(compiled: Compiled) -> bool:
    """Whether a spec says that it promises nothing yet."""
    found = compiled.spec.tree.get("stability")
    return isinstance(found, Scalar) and found.text == "draft"


def _of_draft(report: Report) -> Report:
    """Changes of a draft: told, and no level of them is above `info`. That the head became a draft excuses nothing."""
    if not report.edits:
        return report
    v = report.verdict
    calm = replace(v, interface=tuple(replace(c, level="info") for c in v.interface),
                   cache=tuple(replace(c, level="info") for c in v.cache))
    return replace(report, verdict=calm, edits=tuple(replace(e, level="info") for e in report.edits),
                   notes=(*report.notes, "the base is a draft (`stability: draft`): nothing counts as breaking"))


def side(compiled: Compiled, label: str) -> Side:
    """One side as the report names it."""
    table = parameter_table(compiled.graph)
    return Side(label, compiled.graph.name, structure_hash(compiled.graph), identity_hash(compiled.graph),
                sum(e.elements for e in table), sum(e.count for e in table), outline(compiled.graph), outputs(compiled.graph.root),
                texts(compiled))


def common_sizes(graphs: Iterable[Graph], given: Mapping[str, int]) -> dict[str, int]:
    """The sizes of free dimensions at which models are compared: those given, else 1 row, and 1024 or the tightest bound."""
    sizes: dict[str, int] = {}
    for graph in graphs:
        limits = {b.symbol: b.limit for b in graph.bounds}
        for k, name in enumerate(free_dimensions(graph)):
            n = ROWS if k == 0 else min(LENGTH, limits.get(name, LENGTH))
            sizes[name] = min(n, sizes.get(name, n))
    for name in given:
        if name not in sizes:
            raise Diagnostics([diagnostic("unknown-name", f"neither model has a free dimension `{name}`",
                                          help=suggest(name, sizes, "dimensions"))])
    return sizes | dict(given)


# edits


def edit(step: Step, before: Facts, after: Facts, tree: TreeMapping | None) -> Edit:
    """One edit of the report."""
    interface = contracts(step.before, step.after)
    found = told(_guarded(step))
    found += [Consequence(c.rule, Where(c.name), c.before, c.after) for c in interface
              if c.rule not in RULES[found[0].rule].explains] if found else [Consequence(c.rule, Where(c.name), c.before, c.after)
                                                                             for c in interface]
    first = found[0]
    if step.group.rename and first.rule == "node.renamed":
        first = replace(first, before=step.group.rename[0], after=step.group.rename[1])
    tensors = tuple(step.found.tensors)
    way = conversion(first, tensors, step.after)
    checkpoint = checkpoint_class(found, tensors, way)
    if all(f.rule != "model.changed" for f in found):
        checkpoint, way = followed(step, checkpoint, way)
    deltas = {n: new - old for n, new in after.metrics.items() if (old := before.metrics[n]) is not None and new is not None}
    changed = tuple(t for t in tensors if t.status != "kept")
    where = tuple(f.where for f in found if f.rule == first.rule and (f.before, f.after) == (found[0].before, found[0].after))
    return Edit(
        first.rule, level(checkpoint, found, interface), SYMBOLS.get(first.rule.rsplit("-", 1)[-1].rsplit(".", 1)[-1], "~"),  # type: ignore[arg-type]
        title(step.group, first.rule), first.before, first.after, where, step.group.keys, _place(step.group, "before", None),
        _place(step.group, "after", tree), touched(checkpoint, found, interface, deltas, before.layout != after.layout), checkpoint,
        tuple(found), changed, deltas, way, _evidence(step) if MOVED & {f.rule for f in found} else "path",
        tuple(dict.fromkeys(f.note for f in found if f.note and (way is None or f.note != way.text))))


def _guarded(step: Step) -> list[Consequence]:
    """The findings; where the function changed and none of them says so, one that says that."""
    found = list(step.found.findings)
    if any(RULES[f.rule].effect == "function" for f in found):
        return found
    unseen = not found and not contracts(step.before, step.after) or not same_function(step.before, step.after)
    return [*found, Consequence("model.changed", Where(""))] if unseen else found


def title(group: Group, rule: str) -> str:
    """What was edited, as the spec calls it: `layers.attention.kv_heads`."""
    keys = group.keys
    if group.rename and group.pure:
        return f"{group.rename[0]} -> {group.rename[1]}"
    short = [k.removeprefix("graph.").removeprefix("sizes.").removeprefix("blocks.") for k in keys]
    heads = list(dict.fromkeys(k.rpartition(".")[0] if k.rsplit(".", 1)[-1] in ("op", "block", "slot") else k for k in short))
    near = [h for h in heads if not any(h != o and h.startswith(f"{o}.") for o in heads)]
    if not near:
        return rule.partition(".")[0]
    kind = rule.partition(".")[0]
    if len(near) == 1 or kind in ("node", "block", "model", "interface", "training"):
        return near[0] + (f" and {len(near) - 1} more" if len(near) > 1 else "")
    return kind


def _evidence(step: Step) -> str:
    if step.group.rename:
        return step.group.evidence
    weak = [e for e in step.found.evidence if e != "path"]
    return min(weak, key=("similarity", "hash, in order", "hash", "declared").index) if weak else "path"


def _place(group: Group, which: str, tree: TreeMapping | None) -> Place | None:
    """Where an edit is written on one side; of what is gone, the nearest key above it."""
    for c in group.changes:
        key, value = (c.key_before, c.before) if which == "before" else (c.key_after, c.after)
        if value is not None:
            return place(value.span if key is None or key.span.source is not value.span.source else key.span)
    for c in group.changes if tree is not None else ():
        for n in range(len(c.path) - 1, 0, -1):
            above = at(tree, c.path[:n - 1])
            entry = above.entry(c.path[n - 1]) if isinstance(above, TreeMapping) else None
            if entry is not None:
                return place(entry.key.span)
    return None


def place(span: Span) -> Place:
    """A span as a report says it."""
    return Place(named(span.source), span.line, span.column)


# the whole


def _names(head: Compiled, steps: Iterable[Step]) -> dict[str, dict[str, str]]:
    """All renames, declared and found."""
    names = {k: dict(v) for k, v in renamed_nodes(head).items()}
    for s in steps:
        if s.group.rename:
            path = s.group.changes[0].path
            names.setdefault(path[1] if path[0] == "blocks" else "", {})[s.group.rename[1]] = s.group.rename[0]
    return names


def _aside(base: Compiled, head: Compiled, total: Found, edits: list[Edit]) -> tuple[list[Edit], list[str]]:
    """Changes of sections beside the architecture: an edit where foreign weights are read in another way, else a note."""
    ours, theirs = aside(base), aside(head)
    changed = [n for n in ASIDE if ours.get(n) != theirs.get(n)]
    notes = [f"`{n}:` changed too" for n in changed]
    if "checkpoint" not in changed or edits or any(t.status != "kept" for t in total.tensors):
        return [], notes
    spot = head.spec.tree.entry("checkpoint") or base.spec.tree.entry("checkpoint")
    where = place(spot.key.span) if spot else None
    found = Consequence("checkpoint.mapping-changed", Where("checkpoint"))
    made = Edit(found.rule, "warning", "~", "checkpoint", None, None, (found.where,), ("checkpoint",), where, where,
                ("checkpoint",), "same", (found,), (), {})
    return [made], notes


def _unknown(labels: tuple[str, str]) -> Edit:
    found = Consequence("model.changed", Where(""))
    return Edit(found.rule, "breaking", "~", "model", labels[0], labels[1], (found.where,), (), None, None,
                ("numerics", "checkpoint"), "silent", (found,), (), {})


def _cache(before: Facts, after: Facts) -> list[Contract]:
    """How the state between steps of decoding changed."""
    if before.layout == after.layout:
        return []
    return states(_by_name(before), _by_name(after), (before.why, after.why))


def states(ours: Mapping[str, str], theirs: Mapping[str, str], why: tuple[str, str] = ("", "")) -> list[Contract]:
    """How states, by their names, changed; `why` says of a side without any that it has none."""
    rule = "cache.layout-changed"
    if ours == theirs:
        return []
    if not ours or not theirs:
        old, new = (f"{len(x)} states" if x else f"none: {w}" if w else "none" for x, w in ((ours, why[0]), (theirs, why[1])))
        return [Contract(rule, "cache", old, new, "breaking" if ours else "info")]
    gone, come = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    out = [Contract(rule, n, ours[n], theirs[n], "breaking") for n in ours if n in theirs and ours[n] != theirs[n]]
    out += [Contract(rule, old, f"{old}: {ours[old]}", f"{new}: {theirs[new]}", "breaking") for old, new in zip(gone, come, strict=False)]
    n = min(len(gone), len(come))
    return out + [Contract(rule, x, ours.get(x), theirs.get(x), "breaking") for x in (*gone[n:], *come[n:])]


def _by_name(found: Facts) -> dict[str, str]:
    """The states by name: what one is, or what some copies and others are."""
    out: dict[str, str] = {}
    for name, what in found.layout:
        out[name] = f"{out[name]} and {what}" if name in out else what
    return out


def _verdict(sides: tuple[Side, Side], edits: list[Edit], total: Found, interface: list[Contract], cache: list[Contract]) -> Verdict:
    effects = {RULES[f.rule].effect for e in edits for f in e.consequences}
    names = any(RULES[f.rule].effect == "names" and f.rule != "node.respelled" for e in edits for f in e.consequences)
    if sides[0].identity == sides[1].identity or not edits:
        named = sides[0].structure == sides[1].structure and sides[0].identity != sides[1].identity
        function = "equal-up-to-names" if named else "identical"
    elif sides[0].structure == sides[1].structure:
        function = "equal-up-to-names"
    else:
        function = "changed" if "function" in effects else "training-only" if "training" in effects else \
            "equal-up-to-names" if names else "identical"
    kept = any(t.status in ("kept", "renamed") for t in total.tensors) or not total.tensors
    checkpoint = worst(e.checkpoint for e in edits) if kept else "none"
    return Verdict(function, checkpoint, tuple(e.id for e in edits if e.checkpoint == "silent"), tuple(interface), tuple(cache))
