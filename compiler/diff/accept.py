"""Edits that a team has accepted: a YAML list of `{id, reason, until, rule, where}`, of which `rule` and `where` are for people.

An accepted edit is still told, with the reason, as `info`; nothing fails on it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..lang.diagnostic import Diagnostic, Diagnostics, Sink, diagnostic, suggest
from ..lang.source import Span
from ..lang.tree import Mapping, Scalar, Tree, kind
from ..lang.tree import Sequence as TreeSequence
from ..stages.parse import parse, read_source
from . import words
from .report import Edit, Report

KEYS = ("id", "rule", "where", "reason", "until")


@dataclass(frozen=True)
class Accept:
    """One entry: the id of an edit, why it is fine, and the last day on which it is accepted."""

    id: str
    reason: str
    until: datetime.date | None
    span: Span


def read_accepts(path: Path) -> list[Accept]:
    """The entries of a file. Raises Diagnostics with all that is wrong with it."""
    tree = parse(read_source(path))
    if not isinstance(tree, TreeSequence):
        raise Diagnostics([diagnostic("bad-spec", f"a file of accepted edits is a list, not {kind(tree)}", tree.span,
                                      help="`--write-accept FILE` writes one")])
    sink = Sink()
    found = [made for item in tree if (made := _entry(item, sink)) is not None]
    sink.check()
    return found


def _entry(item: Tree, sink: Sink) -> Accept | None:
    if not isinstance(item, Mapping) or any(not isinstance(e.value, Scalar) for e in item):
        sink.add(diagnostic("bad-spec", "an accepted edit is a mapping of text", item.span, help="`- {id: c0123456789a, reason: WHY}`"))
        return None
    said = {e.key.text: e.value.text.strip() for e in item if isinstance(e.value, Scalar)}
    for e in item:
        if e.key.text not in KEYS:
            sink.add(diagnostic("unknown-key", f"an accepted edit has no key `{e.key.text}`", e.key.span,
                                help=suggest(e.key.text, KEYS, "keys")))
    lacking = [k for k in ("id", "reason") if not said.get(k)]
    if lacking:
        sink.add(diagnostic("missing-key", f"an accepted edit has no `{lacking[0]}`", item.span,
                            help="the id stands in `-f json` and in `--write-accept`; the reason is for those who read this later"))
        return None
    until = None
    if said.get("until"):
        try:
            until = datetime.date.fromisoformat(said["until"])
        except ValueError:
            spot = item.get("until")
            sink.add(diagnostic("bad-attribute", f"`{said['until']}` is no day", spot.span if spot else item.span,
                                help="write `2030-01-31`"))
    return Accept(said["id"], said["reason"], until, item.span)


def accept(reports: Sequence[Report], entries: Sequence[Accept], today: datetime.date) -> tuple[list[Report], list[Diagnostic]]:
    """The reports with accepted edits marked, and warnings of entries that are over, or that no edit has."""
    valid = {a.id: a for a in entries if a.until is None or today <= a.until}
    there = {e.id for r in reports for e in r.edits}
    made = [replace(r, edits=tuple(_marked(e, valid[e.id]) if e.id in valid else e for e in r.edits)) for r in reports]
    said = [diagnostic("unused", f"`{a.id}` was accepted until {a.until}", a.span, severity="warning") if a.id not in valid
            else diagnostic("unused", f"`{a.id}` is accepted, and no edit has that id", a.span, severity="warning",
                            help="take the entry out, where the change is made")
            for a in entries if a.id not in valid or a.id not in there]
    return made, said


def _marked(e: Edit, a: Accept) -> Edit:
    return replace(e, level="info", accepted=a.reason, notes=(*e.notes, f"accepted: {a.reason}"))


def accept_text(reports: Sequence[Report]) -> str:
    """A file that accepts every edit above `info`, for its author to give reasons."""
    lines = ["# Edits that are accepted: `nnspec diff --accept` tells them as info.",
             "# Give each its reason, and `until: 2030-01-31` where it is for a while."]
    for r in reports:
        for e in r.edits:
            if e.level != "info" or e.accepted:
                lines += [f"- id: {e.id}", f"  rule: {e.rule}", f"  where: {json.dumps(words.places(e.where), ensure_ascii=False)}",
                          f"  reason: {json.dumps(e.accepted or f'{e.title} {words.change(e)}'.strip(), ensure_ascii=False)}"]
    return "\n".join(lines if len(lines) > 2 else [*lines, "[]"]) + "\n"
