"""`Report -> lines`: the files of both specs, line by line, with what changed in a line and the edits that are written there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import PurePosixPath
from typing import Any

from ..report import Report

MOST, CONTEXT = 5000, 20        # lines that a page holds, and of those that did not change, lines kept around a change where it is more
ALIKE = 0.5                     # how like two lines are that are told as one that changed
PAIRED = 60                     # lines of a block of which pairs are sought
TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
Line = list[Any]                # sign, number in the base, number in the head, pieces (plain, marked, plain, ...), edits


def sources(report: Report) -> dict[str, Any] | None:
    """The files that changed, and names of those that did not; None where a side has none to show (a lock file)."""
    sides = [s for s in (report.base, report.head) if s is not None]
    if not all(s.files for s in sides):
        return None
    base, head = (s.files if s else {} for s in (report.base, report.head))
    edits = _edits(report)
    changed, same, room = [], [], MOST
    for a, b in _pairs(list(base), list(head)):
        if a is not None and b is not None and base[a] == head[b]:
            same.append(b)
            continue
        lines = list(_lines(_split(base.get(a or "")), _split(head.get(b or ""))))
        made, left = _fitting(lines, room)
        room -= len(made)
        changed.append({"base": a, "head": b, "left": left, "lines": [_numbered(x, a, b, edits) for x in made]})
    return {"files": changed, "same": same}


def _split(text: str | None) -> list[str]:
    lines = [line.removesuffix("\r") for line in (text or "").split("\n")]
    return lines[:-1] if not lines[-1] else lines


def _pairs(base: Sequence[str], head: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """The files of both sides beside each other, those of the head first: by path, and the specs themselves whatever they are called."""
    ours = {_path(n): n for n in base}
    found = {n: ours[_path(n)] for n in head if _path(n) in ours}
    if base and head and head[0] not in found and base[0] not in found.values():
        found[head[0]] = base[0]
    ends = {PurePosixPath(_path(n)).name: n for n in base if n not in found.values()}
    found |= {n: ends.pop(end) for n in head if n not in found and (end := PurePosixPath(_path(n)).name) in ends}
    yield from ((found.get(n), n) for n in head)
    yield from ((n, None) for n in base if n not in found.values())


def _path(name: str) -> str:
    """A path without the commit that it is of: `main:./specs/a.yaml`."""
    return re.sub(r"^[^/:]{2,}:(\./)?", "", name)


def _edits(report: Report) -> dict[tuple[str, str, int], list[int]]:
    """(side, file, line) -> the edits that are written there."""
    found: dict[tuple[str, str, int], list[int]] = {}
    for n, e in enumerate(report.edits, 1):
        for side, at in (("base", e.base), ("head", e.head)):
            if at is not None:
                found.setdefault((side, at.file, at.line), []).append(n)
    return found


def _numbered(line: Line, a: str | None, b: str | None, edits: Mapping[tuple[str, str, int], list[int]]) -> Line:
    mine = [*edits.get(("base", a or "", line[1] or 0), ()), *edits.get(("head", b or "", line[2] or 0), ())]
    return [*line, sorted(set(mine))]


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    """All lines of both; what is replaced comes before what replaces it."""
    for what, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            yield from (["=", i + n + 1, k + n + 1, [text]] for n, text in enumerate(old[i:j]))
            continue
        pairs = dict(_alike(old[i:j], new[k:m]))
        back = {b: a for a, b in pairs.items()}
        for n, text in enumerate(old[i:j]):
            yield ["-", i + n + 1, None, _marked(text, new[k + pairs[n]]) if n in pairs else [text]]
        for n, text in enumerate(new[k:m]):
            yield ["+", None, k + n + 1, _marked(text, old[i + back[n]]) if n in back else [text]]


def _alike(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Lines of a replaced block that are one line changed, in the order of both."""
    after = 0
    if max(len(old), len(new)) > PAIRED:
        return
    for a, text in enumerate(old):
        ratios = ((SequenceMatcher(None, text.strip(), new[b].strip(), autojunk=False).ratio(), -b) for b in range(after, len(new)))
        ratio, near = max(ratios, default=(0.0, 0))
        if ratio >= ALIKE:
            yield a, -near
            after = 1 - near


def _marked(text: str, other: str) -> list[str]:
    """Pieces of a line: what the other has too, what it has not, and so on in turn."""
    mine, theirs = TOKEN.findall(text), TOKEN.findall(other)
    out: list[str] = [""]
    for what, i, j, _, _ in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        piece = "".join(mine[i:j])
        if not piece:
            continue
        if (what != "equal") == (len(out) % 2 == 0):
            out[-1] += piece
        else:
            out.append(piece)
    return out


def _fitting(lines: list[Line], room: int) -> tuple[list[Line], int]:
    """The lines, or where they are too many those near changes; and how many are left out. A line without a sign stands for some."""
    if len(lines) <= room:
        return lines, 0
    changed = [k for k, x in enumerate(lines) if x[0] != "="]
    near = sorted({n for k in changed for n in range(max(k - CONTEXT, 0), min(k + CONTEXT + 1, len(lines)))})[:max(room, 0)]
    out: list[Line] = []
    last = -1
    for k in [*near, len(lines)]:
        if k > last + 1:
            out.append(["", None, None, [f"{k - last - 1:,} lines are not in this file"]])
        if k < len(lines):
            out.append(lines[k])
        last = k
    return out, len(lines) - len(near)
