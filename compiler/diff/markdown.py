"""Reports as a comment of a pull request. It never fails for its size: what does not fit is dropped, and it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from . import file_layer, words
from .mermaid import mermaid
from .report import Edit, Report
from .text import FUNCTION

BUDGET = 60_000                 # characters; GitHub refuses comments beyond 65,536
OPEN, LISTED = 5, 50            # edits that are shown at once, and in all
RANK = {"breaking": 0, "warning": 1, "info": 2}


def markdown(reports: Sequence[Report], command: str = "nnspec diff BASE HEAD", failures: Sequence[str] = ()) -> str:
    """One comment for several specs. `failures` are comparisons that could not be made, in words."""
    ways: list[Callable[[Report], str]] = [lambda r: _report(r, True, LISTED, True), lambda r: _report(r, True, LISTED),
                                           lambda r: _report(r, False, LISTED), lambda r: _report(r, False, OPEN), _line]
    for way in ways:
        made = _page(reports, way, command, failures, cut=way is not ways[0])
        if len(made) <= BUDGET:
            return made
    return made[:BUDGET - 100].rpartition("\n")[0] + f"\n\nThe rest does not fit into a comment: `{command}` prints it.\n"


def _page(reports: Sequence[Report], way: Callable[[Report], str], command: str, failures: Sequence[str], cut: bool) -> str:
    changed = [r for r in reports if r.changed or "checkpoint" in r.layers]
    parts = [f"<!-- nnspec-diff:{','.join(_label(r) for r in reports)} -->"]
    if failures:
        parts += ["### nnspec diff: comparisons that could not be made", *(f"```text\n{_fence(f)}\n```" for f in failures)]
    if len(reports) > 1:
        parts.append(_summary(reports, changed))
    if shared := words.shared(reports):
        parts.append("\n".join(f"- {_cell(line)}" for line in shared))
    parts += [way(r) for r in changed]
    if not changed and not failures:
        parts.append("### nnspec diff: no architectural change")
    if cut:
        parts.append("Details were left out, because a comment has a limited size.")
    return "\n\n".join([*parts, f"<sub>`{_code(command)}` tells this again.</sub>"]) + "\n"


def _label(r: Report) -> str:
    side = r.head or r.base
    return _code(side.label) if side else ""


def _summary(reports: Sequence[Report], changed: Sequence[Report]) -> str:
    rows = ["| spec | function | checkpoint | edits | parameters |", "| --- | --- | --- | --- | ---: |"]
    for r in changed:
        found = next((m for m in r.metrics if m.name == "parameters"), None)
        delta = words.signed(f"{found.delta:,}", found.delta) if found and found.delta is not None else ""
        said = (_cell(_label(r)), FUNCTION[r.verdict.function], r.verdict.checkpoint, words.tally(r), delta)
        rows.append(f"| {' | '.join(said)} |")
    same = len(reports) - len(changed)
    rest = f"\n\n{same} spec{'s' if same > 1 else ''} without an architectural change." if same else ""
    return "\n".join(rows if changed else []) + rest


def _line(r: Report) -> str:
    return f"### {_cell(_label(r))}\n\n{FUNCTION[r.verdict.function]}, checkpoint {r.verdict.checkpoint}, {words.tally(r)}"


def _report(r: Report, tensors: bool, most: int, picture: bool = False) -> str:
    if r.base is None or r.head is None:
        side = r.head or r.base
        assert side is not None
        return f"### {_cell(_label(r))}\n\n{'Added' if r.base is None else 'Removed'} spec: {side.parameters:,} parameters."
    if not r.changed:
        return "\n\n".join([f"### {_cell(_label(r))}", "No architectural change.", *_file(r)])
    v = r.verdict
    silent = f" · **{len(v.silent)} silent**" if v.silent else ""
    parts = [f"### {_cell(_label(r))}",
             f"function **{FUNCTION[v.function]}** · checkpoint **{v.checkpoint}**{silent} · {words.tally(r)}",
             f"{words.tensors(r)}; {words.loads(r)}.", *_file(r)]
    parts += [f"- {name} **{c.level}**: `{_code(c.name)}` {_cell(c.before or 'none')} → {_cell(c.after or 'none')}"
              for name, found in (("interface", v.interface), ("cache", v.cache)) for c in found]
    parts.append(_costs(r))
    ordered = sorted(r.edits, key=lambda e: RANK[e.level])
    parts.append(_table(ordered[:OPEN]))
    if len(ordered) > OPEN:
        parts.append(_details(f"{len(ordered) - OPEN} more edits", _table(ordered[OPEN:most])))
    if len(ordered) > most:
        parts.append(f"{len(ordered) - most} edits are not listed.")
    if picture and (drawn := mermaid(r)):
        parts.append(_details("Diagram", f"```mermaid\n{drawn}```"))
    if tensors and any(t.status != "kept" for t in r.tensors):
        parts.append(_details("Tensors", _tensors(r)))
    return "\n\n".join([*parts, *(f"> {_cell(n)}" for n in (*r.notes, *r.diagnostics))])


def _file(r: Report) -> list[str]:
    """The weight file that the user named: what it is, and what of it does not fit."""
    if (layer := r.layers.get("checkpoint")) is None:
        return []
    file, base, head = map(_cell, file_layer.told(layer))
    shown = [_details(f"The file as a checkpoint of {side.upper()}", _pre(file_layer.rows(layer[side])))
             for side in ("head", "base") if not layer[side]["fits"]]
    return [f"- file {file}, **{base}**\n- {head}", *shown]


def _pre(lines: Iterable[str]) -> str:
    return "```text\n" + "\n".join(map(_fence, lines)) + "\n```"


def _costs(r: Report) -> str:
    rows = [f"| cost @ {words.at(r)} | before | after | delta | |", "| --- | ---: | ---: | ---: | ---: |"]
    for m in words.rows(r):
        delta = words.signed(words.amount(m, m.delta), m.delta)
        said = (_cell(words.cost(m)), words.amount(m, m.before), words.amount(m, m.after), delta, words.percent(m))
        rows.append(f"| {' | '.join(said)} |")
    return "\n".join(rows)


def _table(edits: Sequence[Edit]) -> str:
    rows = ["| | edit | what | where | parameters | checkpoint | id |", "| --- | --- | --- | --- | ---: | --- | --- |"]
    for e in edits:
        said = _cell("; ".join(x for x in (e.checkpoint, e.conversion.text if e.conversion else "") if x))
        delta = e.deltas.get("parameters", 0)
        place = f" ({e.head or e.base})" if e.head or e.base else ""
        cells = (f"{e.symbol} {e.level}", _cell(e.title + place), _cell(words.change(e) or e.rule), _cell(words.places(e.where)),
                 words.signed(f"{delta:,}", delta), said, f"`{e.id}`")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _tensors(r: Report) -> str:
    rows = ["| | base | head | before | after | copies |", "| --- | --- | --- | --- | --- | ---: |"]
    for t in r.tensors:
        if t.status != "kept":
            shapes = ("" if s is None else _cell(str(list(s))) for s in (t.before, t.after))
            rows.append(f"| {' | '.join((t.status, _cell(str(t.base or '')), _cell(str(t.head or '')), *shapes, str(t.count)))} |")
    return "\n".join(rows)


def _details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _cell(text: str) -> str:
    """Text of a spec in a cell: it must not end the cell, nor be markup."""
    out = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    for c in "|`*_[]@#":
        out = out.replace(c, f"\\{c}")
    return out


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ").replace("--", "- -") if "-->" in text else text.replace("`", "'").replace("\n", " ")


def _fence(text: str) -> str:
    return text.replace("```", "'''")
