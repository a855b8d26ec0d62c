"""Which edits are shown, and in which order: `--only`, `--exclude` and `--by`. What is left out is counted, never in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from .formats import words
from .report import CONTRACTS, Consequence, Edit, Report

ORDERS = ("edit", "path", "contract")
ALWAYS = ("parameters", "cache")


def chosen(report: Report, only: Sequence[str], exclude: Sequence[str]) -> Report:
    """The report with the edits that one of `only` names (all, where it is empty) and none of `exclude`: rules, contracts or paths, with
    `*` for any text. Verdicts and costs are those of the whole."""
    if not only and not exclude:
        return report
    edits = tuple(e for e in report.edits if (not only or any(_fits(e, w) for w in only)) and not any(_fits(e, w) for w in exclude))
    if len(edits) == len(report.edits):
        return report
    return replace(report, edits=edits, hidden=len(report.edits) - len(edits),
                   notes=(*report.notes, f"shown as asked: {len(edits)} of {len(report.edits)} edits"))


def without_small_costs(report: Report, percent: float) -> Report:
    """The report without costs that changed by less than so many percent; parameters and the cache are always told."""
    small = [m for m in report.metrics if m.name not in ALWAYS and m.percent is not None and abs(m.percent) < percent]
    if not small:
        return report
    n = len({m.name for m in small} & {m.name for m in words.rows(report)})
    said = (f"{n} cost{'s' if n > 1 else ''} that changed by less than {percent:g}% {'are' if n > 1 else 'is'} not shown",) if n else ()
    return replace(report, metrics=tuple(m for m in report.metrics if m not in small), notes=(*report.notes, *said))


def _fits(e: Edit, word: str) -> bool:
    if word in e.contracts or (word == "silent" and e.checkpoint == "silent"):
        return True
    rules = {e.rule, *(c.rule for c in e.consequences)}
    places = {p for c in e.consequences for p in (c.where.pattern, str(c.where))} | {*e.keys}
    return any(fnmatchcase(r, word) for r in rules) or any(fnmatchcase(p, word) or p.startswith(f"{word}.") or p.startswith(f"{word}[")
                                                           for p in places)


def grouped_lines(report: Report, by: str) -> Iterator[str]:
    """The edits under the contracts that they touch, or the consequences under the nodes that they are at."""
    if by == "contract":
        for name in CONTRACTS:
            mine = [e for e in report.edits if name in e.contracts]
            if mine:
                yield f"  {name}"
                yield from (f"    {e.symbol}  {f'{e.title}  {words.change(e)}'.rstrip()}  {e.level}"
                            + (f", {e.checkpoint}" if name == "checkpoint" else "") for e in mine)
        rest = [e for e in report.edits if not e.contracts]
        yield from (f"  nothing else touched\n    {e.symbol}  {e.title}  {words.change(e)}".rstrip() for e in rest)
        return
    found: dict[str, list[tuple[Edit, Consequence]]] = {}
    for e in report.edits:
        for c in e.consequences:
            found.setdefault(str(c.where), []).append((e, c))
    for path in sorted(found):
        yield f"  {path}"
        for e, c in found[path]:
            change = "" if c.before is None and c.after is None else f"  {words.value(c.before)} -> {words.value(c.after)}"
            yield f"    {e.symbol}  {c.rule}{change}  (of {e.title})"
