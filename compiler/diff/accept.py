"""Edits that a team has accepted: a YAML list of `{id, spec, reason, until, rule, where}`; `rule` and `where` are for people.

An accepted edit is still told, with the reason, as `info`; nothing fails on it. An id is of what was edited, not of the file that it
stands in: the same edit of two specs has one. `spec` is the file that an entry is for; without it, it is for all.
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
from .formats import words
from .report import Edit, Report
from .sources import from_top, top

KEYS = ("id", "spec", "rule", "where", "reason", "until")


@dataclass(frozen=True)
class Accept:
    """One entry: the id of an edit, why it is fine, the last day on which it is accepted, and the spec whose edit it is; empty for all."""

    id: str
    reason: str
    until: datetime.date | None
    span: Span
    spec: str = ""

    def concerns(self, file: str) -> bool:
        """Whether the entry is for the spec of a file, from the top of the repository."""
        return self.spec in ("", file)


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
    return Accept(said["id"], said["reason"], until, item.span, said.get("spec", ""))


def _file(report: Report, range_: bool) -> str:
    """The file of a report from the top of the repository; as the user called it where that cannot be told."""
    side = report.head or report.base
    label = side.label if side is not None else ""
    if range_ or not label:
        return label
    ref, colon, inside = label.partition(":")
    try:
        if colon and len(ref) > 1 and not Path(label).exists():
            return from_top(inside)
        return from_top(f"./{label}") if not Path(label).is_absolute() else str(Path(label).relative_to(top()))
    except (Diagnostics, ValueError):
        return label


def accept(reports: Sequence[Report], entries: Sequence[Accept], today: datetime.date, range_: bool = False
           ) -> tuple[list[Report], list[Diagnostic]]:
    """The reports with accepted edits marked, and warnings of entries that are over, or that no edit has. Those of a `range_` of commits
    are called as their files are, from the top of the repository."""
    valid = [a for a in entries if a.until is None or today <= a.until]
    named = any(a.spec for a in entries)
    files = [_file(r, range_) if named else "" for r in reports]
    made = []
    for r, file in zip(reports, files, strict=True):
        mine = {a.id: a for a in valid if a.concerns(file)}
        made.append(replace(r, edits=tuple(_marked(e, mine[e.id]) if e.id in mine else e for e in r.edits)))
    said = []
    for a in entries:
        some = [r for r, file in zip(reports, files, strict=True) if a.concerns(file)]
        of = f" of `{a.spec}`" if a.spec else ""
        if some and a not in valid:
            said.append(diagnostic("unused", f"`{a.id}`{of} was accepted until {a.until}", a.span, severity="warning"))
        elif (some or not a.spec) and not any(e.id == a.id for r in some for e in r.edits):
            said.append(diagnostic("unused", f"`{a.id}` is accepted, and no edit{of} has that id", a.span, severity="warning",
                                   help="take the entry out, where the change is made"))
    return made, said


def _marked(e: Edit, a: Accept) -> Edit:
    return replace(e, level="info", accepted=a.reason, notes=(*e.notes, f"accepted: {a.reason}"))


def accept_text(reports: Sequence[Report], named: bool = False) -> str:
    """A file that accepts every edit above `info`, for its author to give reasons; of specs of a repository `named` by their files."""
    lines = ["# Edits that are accepted: `nnspec diff --accept` tells them as info.",
             "# Give each its reason, and `until: 2030-01-31` where it is for a while."]
    for r in reports:
        for e in r.edits:
            if e.level != "info" or e.accepted:
                spec = [f"  spec: {json.dumps(r.head.label, ensure_ascii=False)}"] if named and r.head is not None else []
                lines += [f"- id: {e.id}", *spec, f"  rule: {e.rule}", f"  where: {json.dumps(words.places(e.where), ensure_ascii=False)}",
                          f"  reason: {json.dumps(e.accepted or f'{e.title} {words.change(e)}'.strip(), ensure_ascii=False)}"]
    return "\n".join(lines if len(lines) > 2 else [*lines, "[]"]) + "\n"
