"""Reports as a comment of a pull request. It never fails for its size: what does not fit is dropped, and it says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..layers import differs
from ..report import Edit, Report
from . import markdown_layers, words
from .markup import cell, code, details, fence, table
from .mermaid import mermaid

BUDGET = 60_000                 # characters; GitHub refuses comments beyond 65,536
OPEN, FOLDED = 5, 50            # edits that are shown at once, and in each block that a reader opens
RANK = {"breaking": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Amount:
    """How much of a report is told: all of it, or its verdicts alone."""

    picture: bool = True
    tensors: bool = True                        # and the key map
    edits: int | None = None                    # most edits
    verdicts: bool = False


WAYS = (Amount(), Amount(False), Amount(False, False), Amount(False, False, FOLDED), Amount(False, False, OPEN),
        Amount(verdicts=True))                  # dropped in this order, until it fits


def markdown(reports: Sequence[Report], command: str = "nnspec diff BASE HEAD", failures: Sequence[str] = (), link: str = "") -> str:
    """One comment for several specs. `failures` are comparisons that could not be made, in words; `link` is where all of it can be seen."""
    for way in WAYS:
        made = _page(reports, way, command, failures, link)
        if len(made) <= BUDGET:
            return made
    return made[:BUDGET - 300].rpartition("\n")[0] + f"\n\nThe rest does not fit into a comment: {_whole(command, link)}.\n"


def run_link(environment: Mapping[str, str]) -> str:
    """The page of this run of GitHub's actions, which keeps what it made; empty elsewhere."""
    parts = [environment.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    return f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else ""


def _page(reports: Sequence[Report], way: Amount, command: str, failures: Sequence[str], link: str) -> str:
    told = [r for r in reports if differs(r) or r.layers]
    parts = [f"<!-- nnspec-diff:{','.join(_label(r) for r in reports)} -->"]
    if failures:
        parts += ["### nnspec diff: comparisons that could not be made", *(f"```text\n{fence(f)}\n```" for f in failures)]
    if len(reports) > 1:
        parts.append(_summary(reports, told))
    if shared := words.shared(reports):
        parts.append("\n".join(f"- {cell(line)}" for line in shared))
    parts += [_line(r) if way.verdicts else _report(r, way) for r in told]
    if not told and not failures:
        parts.append("### nnspec diff: no architectural change")
    if way != WAYS[0]:
        parts.append(f"Details were left out, because a comment has a limited size: {_whole(command, link)}.")
    return "\n\n".join([*parts, f"<sub>{_whole(command, link)}.</sub>"]) + "\n"


def _whole(command: str, link: str) -> str:
    run = f", and [this run]({code(link)}) has what it made" if link else ""
    return f"`{code(command)}` tells this again{run}"


def _label(r: Report) -> str:
    side = r.head or r.base
    return code(side.label) if side else ""


def _summary(reports: Sequence[Report], told: Sequence[Report]) -> str:
    """A row for each spec that differs, and how many do not."""
    rows = []
    for r in told:
        found = next((m for m in r.metrics if m.name == "parameters"), None)
        delta = words.signed(f"{found.delta:,}", found.delta) if found and found.delta is not None else ""
        change = "added" if r.base is None else "removed" if r.head is None else words.FUNCTION[r.verdict.function]
        both = r.base is not None and r.head is not None
        silent = f" ({len(r.verdict.silent)} silent)" if r.verdict.silent and r.verdict.checkpoint != "silent" else ""
        side = r.head or r.base
        rows.append((cell(_label(r)), change, r.verdict.checkpoint + silent if both else "", words.tally(r) if both else "",
                     delta if both or side is None else f"{side.parameters:,}"))
    same = len(reports) - len(told)
    rest = f"{same} spec{'s' if same > 1 else ''} without an architectural change." if same else ""
    made = table(("spec", "function", "checkpoint", "edits", "parameters"), rows, (4,)) if rows else ""
    return "\n\n".join(filter(None, (made, rest)))


def _line(r: Report) -> str:
    if r.base is None or r.head is None or not r.changed:
        return _report(r, WAYS[-2])
    return "\n\n".join([f"### {cell(_label(r))}", _verdicts(r), *markdown_layers.brief(r)])


def _report(r: Report, way: Amount) -> str:
    if r.base is None or r.head is None:
        side = r.head or r.base
        assert side is not None
        return f"### {cell(_label(r))}\n\n{'Added' if r.base is None else 'Removed'} spec: {side.parameters:,} parameters."
    head = [f"### {cell(_label(r))}", *([_verdicts(r), f"{_tally(r)}."] if r.changed else ["No architectural change."])]
    if contracts := list(_contracts(r)):
        head.append("\n".join(contracts))
    parts = [*head, *markdown_layers.open_parts(r)]
    if r.changed:
        parts += [_costs(r), *_edits(r, way.edits)]
    if way.picture and (drawn := mermaid(r)):
        parts.append(details("Diagram", f"```mermaid\n{drawn}```"))
    if way.tensors and any(t.status != "kept" for t in r.tensors):
        parts.append(details("Tensors", _tensors(r)))
    parts += markdown_layers.folded_parts(r, way.tensors)
    return "\n\n".join([*parts, *(f"> {cell(n)}" for n in (*r.notes, *r.diagnostics))])


def _verdicts(r: Report) -> str:
    silent = f" · **{len(r.verdict.silent)} silent**" if r.verdict.silent else ""
    return f"function **{words.FUNCTION[r.verdict.function]}** · checkpoint **{r.verdict.checkpoint}**{silent} · {words.tally(r)}"


def _tally(r: Report) -> str:
    share = f" ({words.share(r)})" if words.share(r) else ""
    return f"{words.tensors(r)}{share}; {words.loads(r)}"


def _contracts(r: Report) -> Iterator[str]:
    """What goes in and out, and what decoding keeps; of several that change alike, one."""
    if r.verdict.silent:
        yield f"- silent **breaking**: {cell(words.unseen(r))}"
    for name, found in (("interface", r.verdict.interface), ("cache", r.verdict.cache)):
        alike: dict[tuple[str, str, str], list[str]] = {}
        for c in found:
            alike.setdefault((c.level, *words.ends(c)), []).append(words.named(c))
        for (level, before, after), names in alike.items():
            what = f"`{code(words.listed(names))}` " if names[0] else ""
            yield f"- {name} **{level}**: {what}{cell(before)} → {cell(after)}"


def _costs(r: Report) -> str:
    rows = []
    for m in words.rows(r):
        delta = "0" if m.delta == 0 else words.signed(words.amount(m, m.delta), m.delta)
        rows.append((cell(words.cost(m)), words.amount(m, m.before), words.amount(m, m.after), delta, cell(words.percent(m))))
    return table((f"cost @ {words.at(r)}", "before", "after", "delta", ""), rows, (1, 2, 3, 4))


def _edits(r: Report, most: int | None) -> Iterator[str]:
    """The worst edits first: some of them open, the others folded."""
    ordered = sorted(r.edits, key=lambda e: RANK[e.level])
    shown = ordered[:most]
    yield _table(shown[:OPEN])
    for k in range(OPEN, len(shown), FOLDED):
        some = shown[k:k + FOLDED]
        yield details(f"{len(some)} more edit{'s' * (len(some) > 1)}", _table(some))
    if len(ordered) > len(shown):
        yield f"{len(ordered) - len(shown)} edits are not listed."


def _table(edits: Sequence[Edit]) -> str:
    rows = []
    for e in edits:
        way = f"{e.checkpoint}: {e.conversion.text}" if e.conversion else e.checkpoint
        silent = words.silent(e)
        said = "; ".join(filter(None, (way if e.checkpoint != "silent" else "", silent, *e.notes)))
        delta = e.deltas.get("parameters", 0)
        place = e.head or e.base
        rows.append((f"{e.symbol} {e.level}", cell(e.title) + (f"<br>{cell(str(place))}" if place else ""),
                     cell(words.change(e) or e.rule), cell(words.places(e.where)), words.signed(f"{delta:,}", delta), cell(said),
                     f"`{e.id}`"))
    return table(("", "edit", "what", "where", "parameters", "checkpoint", "id"), rows, (4,))


def _tensors(r: Report) -> str:
    rows = []
    for t in r.tensors:
        if t.status != "kept":
            shapes = ("" if s is None else cell(str(list(s))) for s in (t.before, t.after))
            rows.append((t.status, cell(str(t.base or "")), cell(str(t.head or "")), *shapes, str(t.count)))
    return table(("", "base", "head", "before", "after", "copies"), rows, (5,))
