"""git's own commands with specs: the external diff driver, the text that git compares, and their installation in a clone."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..lang.diagnostic import Diagnostics
from ..lang.source import Source
from ..lang.tree import Mapping
from ..pipeline import Compiled, front
from ..render import render
from ..stages.parse import load
from .commits import SPEC
from .compare import compare
from .exported.embedded import spec_text
from .formats.text import text
from .lock import lock_text
from .sources import git, parsed

DRIVER = "nnspec"
PATTERNS = ("*.nnspec.yaml",)
NOTHING = "/dev/null"


def driver(arguments: Sequence[str], color: bool = False) -> str:
    """What `git diff` shows of one file. git gives PATH, OLD-FILE, OLD-HEX, OLD-MODE, NEW-FILE, NEW-HEX, NEW-MODE, and on a rename
    the new path and a text; a driver that fails would end `git diff`, so all that is wrong is part of what is shown."""
    if len(arguments) == 1:
        return f"{arguments[0]} is unmerged\n"
    path, old, _, _, new, _, _ = arguments[:7]
    moved = arguments[7] if len(arguments) > 7 else path
    before, after = text_of(old), text_of(new)
    head = f"diff --nnspec a/{path} b/{moved}\n"
    if before is None or after is None:
        side = _said(moved if before is None else path, after if before is None else before)
        return f"{head}{'new' if before is None else 'deleted'} file\n{side}{changed_lines(path, moved, before or '', after or '')}"
    if not (SPEC.search(before) or SPEC.search(after)):
        return head + changed_lines(path, moved, before, after)
    try:
        found = compare(compiled(path, before), compiled(moved, after), (f"a/{path}", f"b/{moved}"))
    except Diagnostics as wrong:
        return f"{head}these cannot be compared as specs:\n{render(wrong.items, color=color)}{changed_lines(path, moved, before, after)}"
    return head + text(found, color)


def handed_on(arguments: Sequence[str]) -> int | None:
    """The exit code of the tool that `git difftool` was asked for; None where git itself wants the text. A driver takes the place of
    what difftool sets up, whatever tool it is, so that it has to hand its files on."""
    if "difftool--helper" not in os.environ.get("GIT_EXTERNAL_DIFF", ""):
        return None
    return subprocess.run(["git", "difftool--helper", *arguments], check=False).returncode


def textconv(path: Path) -> str:
    """The facts of a spec, one a line, then the spec without other files: what git compares in `log -p` and `show`."""
    content = text_of(str(path)) or ""
    if not SPEC.search(content):
        return content
    try:
        found = compiled(str(path), content)
    except Diagnostics as wrong:
        return f"# this spec does not compile: {wrong.items[0].headline}\n{content}"
    return lock_text(found) + (found.resolved() or content)


def compiled(name: str, content: str) -> Compiled:
    """A spec from its text, with the files beside `name` that it uses as they are now."""
    def read(path: Path) -> tuple[Source, Mapping]:
        return parsed(Source(name, content)) if path == Path(name) else load(path)
    return front(name, opened_by=read)


def text_of(path: str) -> str | None:
    """The text of a file, or the spec inside an exported model; None for what git calls no file."""
    if Path(path).suffix == ".onnx":
        try:
            return spec_text(Path(path))
        except Diagnostics:
            return "# a file of ONNX that `nnspec export` did not write\n"
    return None if path == NOTHING else Path(path).read_text(encoding="utf-8", errors="replace")


def _said(path: str, content: str | None) -> str:
    """The size of a spec that one side has."""
    if content is None or not SPEC.search(content):
        return ""
    try:
        from ..ir.parameters import count
        return f"spec of {count(compiled(path, content).graph):,} parameters\n"
    except Diagnostics as wrong:
        return render(wrong.items)


def changed_lines(old: str, new: str, before: str, after: str) -> str:
    """A line diff, as git writes it."""
    found = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{old}", f"b/{new}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)


# installation


COMMAND = f'{DRIVER} difftool --path "$MERGED" "$LOCAL" "$REMOTE"'


def install(patterns: Sequence[str] = PATTERNS, everywhere: bool = False, folder: Path | None = None) -> list[str]:
    """Let git use the driver for files of these patterns. Returns what was done, in words."""
    scope = ["--global"] if everywhere else ["--local"]
    for key, value in (("command", "nnspec git-diff-driver"), ("textconv", "nnspec textconv"), ("cachetextconv", "false")):
        git(["config", *scope, f"diff.{DRIVER}.{key}", value], folder)
    git(["config", *scope, f"difftool.{DRIVER}.cmd", COMMAND], folder)
    path = attributes(everywhere, folder)
    wanted = [f"{p} diff={DRIVER}" for p in patterns]
    old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    new = [line for line in wanted if line not in old]
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*old, *new]) + "\n", encoding="utf-8")
    return [f"git config: diff.{DRIVER} runs nnspec; `git difftool -t {DRIVER}` opens a page",
            f"{path}: {', '.join(patterns)}" + ("" if everywhere else " (commit this file)")]


def uninstall(everywhere: bool = False, folder: Path | None = None) -> list[str]:
    """Undo `install`: lines of other tools stay."""
    scope = ["--global"] if everywhere else ["--local"]
    listed = git(["config", *scope, "--list", "--name-only"], folder)
    for section in (f"diff.{DRIVER}", f"difftool.{DRIVER}"):
        if any(line.startswith(f"{section}.") for line in listed.splitlines()):
            git(["config", *scope, "--remove-section", section], folder)
    path = attributes(everywhere, folder)
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not line.rstrip().endswith(f"diff={DRIVER}")]
        if not kept:
            path.unlink()
        elif kept != lines:
            path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return [f"git config: diff.{DRIVER} and difftool.{DRIVER} are gone", f"{path}: its lines are gone"]


def attributes(everywhere: bool, folder: Path | None = None) -> Path:
    """The file of attributes: that of the repository, or the user's own."""
    if not everywhere:
        return Path(git(["rev-parse", "--show-toplevel"], folder).strip()) / ".gitattributes"
    given = git(["config", "--global", "--default", "", "--get", "core.attributesFile"], folder).strip()
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(given).expanduser() if given else home / "git" / "attributes"
