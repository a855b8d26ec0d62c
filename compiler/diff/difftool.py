"""What `git difftool` runs: two files, or two folders of them, as a page for a browser."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import write_text
from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic
from ..pipeline import Compiled
from ..render import render
from .commits import SPEC, alone
from .compare import compare
from .git import changed_lines, compiled, text_of
from .html.page import page
from .report import Report


@dataclass(frozen=True)
class Shown:
    """The comparisons of specs, what was wrong with those that could not be made, and the lines of files that are no specs."""

    reports: tuple[Report, ...]
    wrong: tuple[Diagnostic, ...]
    failures: tuple[str, ...]
    lines: str

    def page(self) -> str:
        return page(self.reports, self.failures)


def shown(old: Path, new: Path, name: str | None = None) -> Shown:
    """Both sides of one file, which `name` is in the repository, or of all files in two folders. `/dev/null` is no file."""
    reports: list[Report] = []
    wrong: list[Diagnostic] = []
    failures: list[str] = []
    lines = ""
    for path, before, after in _pairs(old, new, name):
        if not (SPEC.search(before or "") or SPEC.search(after or "")):
            lines += changed_lines(path, path, before or "", after or "")
            continue
        try:
            reports.append(_report(path, before, after))
        except Diagnostics as found:
            wrong += found.items
            failures.append(render(found.items))
    return Shown(tuple(reports), tuple(wrong), tuple(failures), lines)


def _text(path: Path) -> str | None:
    """The text of a file. Raises Diagnostics."""
    try:
        return text_of(str(path))
    except OSError as wrong:
        code = "file-not-found" if isinstance(wrong, FileNotFoundError) else "file-not-readable"
        raise Diagnostics([diagnostic(code, f"`{path}` cannot be read: {wrong.strerror}")]) from None


def _pairs(old: Path, new: Path, name: str | None) -> Iterator[tuple[str, str | None, str | None]]:
    """(path, text before, text after) of every file that differs; None where a side lacks it."""
    if not (old.is_dir() and new.is_dir()):
        before, after = _text(old), _text(new)
        yield name or str(old if after is None else new), before, after
        return
    names = sorted({str(p.relative_to(top)) for top in (old, new) for p in top.rglob("*") if p.is_file()})
    for path in names:
        before, after = (_text(top / path) if (top / path).is_file() else None for top in (old, new))
        if before != after:
            yield path, before, after


def _report(path: str, before: str | None, after: str | None) -> Report:
    """One comparison. Raises Diagnostics with all that is wrong with either side."""
    sides: list[Compiled | None] = []
    wrong: list[Diagnostic] = []
    for text in (before, after):
        try:
            sides.append(None if text is None else compiled(path, text))
        except Diagnostics as found:
            wrong += found.items
    if wrong:
        raise Diagnostics(wrong)
    a, b = sides
    return compare(a, b, (f"a/{path}", f"b/{path}")) if a and b else alone(a, b, path, path)


def opened(found: Shown, name: str, path: Path | None, browser: bool) -> str:
    """Write the page, open it in the browser, and say where it is. A page that is given no `path` stays in a folder for temporary files,
    because the browser reads it later."""
    if path is None:
        stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).name) or "diff"
        path = Path(tempfile.mkdtemp(prefix="nnspec-")) / f"{stem}.html"
    write_text(path, found.page())
    if browser and not webbrowser.open(path.absolute().as_uri()):
        return f"{path} (no browser could be opened)"
    return str(path)
