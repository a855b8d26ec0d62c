"""The specs that differ between two commits, and each compared; also those that did not change and use a file that did."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from ..lang.diagnostic import Diagnostics, diagnostic, suggest
from ..pipeline import Compiled, front
from .compare import compare, side
from .report import Report, Verdict
from .sides import had
from .sources import at_ref, git
from .sources import top as top_of

SPEC = re.compile(r"^(graph|base)\s*:", re.MULTILINE)
WORKTREE = ""
SHORT = 12                      # digits of a commit, as it is named in messages


@dataclass(frozen=True)
class Pair:
    """One spec on both sides, by its path from the top; None where it is not there."""

    base: str | None
    head: str | None


@dataclass(frozen=True)
class Compared:
    """All comparisons between two commits, and what could not be compared, with why."""

    reports: tuple[Report, ...]
    failures: tuple[tuple[Pair, Diagnostics], ...]


def compare_range(text: str, paths: Sequence[str] = (), sizes: Mapping[str, int] | None = None, dtype: str = "float16",
                  folder: Path | None = None, loose: bool = False) -> Compared:
    """Every spec that differs in `A...B` (from their merge base), `A..B`, or from `A` to the files as they are. `sizes` hold for the
    specs that have them; unless they are `loose`, one must. `paths`, from `folder`, are files, folders or patterns that choose among
    them. Raises Diagnostics."""
    top = top_of(folder)
    base, head = ends(text, top)
    paths = [_here(p, top, folder) for p in paths]
    reports, failures = [], []
    changed = changes(base, head, top)
    touched = {x for p in changed if _is_yaml(p) for x in (p.base, p.head) if x}
    for pair in pairs(changed, touched, base, head, paths, top):
        try:
            made = _one(pair, base, head, sizes, dtype, top)
            reports.append(replace(made, uses=tuple(sorted(touched & _files(made, top) - {str(pair.base), str(pair.head)}))))
        except Diagnostics as wrong:
            failures.append((pair, wrong))
    there = {name for r in reports for name in r.sizes}
    for name in () if loose or not there else sizes or ():
        if name not in there:
            raise Diagnostics([diagnostic("unknown-name", f"no spec that differs has a free dimension `{name}`",
                                          help=suggest(name, there, "dimensions"))])
    return Compared(tuple(reports), tuple(failures))


def ends(text: str, top: Path) -> tuple[str, str]:
    """The two commits of a range; the second is empty for the files as they are."""
    if "..." in text:
        a, b = (x or "HEAD" for x in text.split("...", 1))
        return _merge_base(_commit(a, top), _commit(b, top), text, top), _commit(b, top)
    if ".." in text:
        a, b = (x or "HEAD" for x in text.split("..", 1))
        return _commit(a, top), _commit(b, top)
    return _commit(text, top), WORKTREE


def _merge_base(a: str, b: str, text: str, top: Path) -> str:
    try:
        return _commit(git(["merge-base", a, b], top).strip(), top)
    except Diagnostics:
        raise Diagnostics([diagnostic("no-git", f"the commits of `{text}` have no merge base here",
                                      help="fetch the whole history, or write `A..B` to compare the two as they are")]) from None


def _commit(name: str, top: Path) -> str:
    if name.startswith("-"):
        raise Diagnostics([diagnostic("no-git", f"`{name}` is no commit")])
    try:
        return git(["rev-parse", "--verify", "--quiet", f"--short={SHORT}", f"{name}^{{commit}}"], top).strip()
    except Diagnostics:
        raise Diagnostics([diagnostic("file-not-found", f"git has no commit `{name}`",
                                      help="name a commit, a branch or a tag; a shallow clone does not have all of them")]) from None


def changes(base: str, head: str, top: Path) -> list[Pair]:
    """The files that differ, renames followed."""
    arguments = ["diff", "--no-ext-diff", "--name-status", "-z", "-M", base, *([head] if head else []), "--"]
    changed = _statuses(git(arguments, top))
    if not head:
        loose = git(["ls-files", "--others", "--exclude-standard", "-z"], top).split("\0")
        changed += [Pair(None, p) for p in loose if p]
    return changed


def pairs(changed: Sequence[Pair], touched: Set[str], base: str, head: str, paths: Sequence[str], top: Path) -> list[Pair]:
    """The specs among files that differ, and those that use a file that does, `touched`."""
    wanted = _wanted(paths, base, head, top)
    found = [p for p in changed if _is_yaml(p) and (not paths or {p.base, p.head} & wanted) and _is_spec(p, base, head, top)]
    seen = {p.head for p in changed}
    found += [Pair(f, f) for f in sorted(_users(touched, head, top)) if f not in seen and (not paths or f in wanted)
              and _is_spec(Pair(f, f), base, head, top)]
    return found


def _statuses(text: str) -> list[Pair]:
    parts = iter(text.split("\0"))
    out = []
    for status in parts:
        if status[:1] in ("R", "C"):
            old, new = next(parts), next(parts)
            out.append(Pair(old, new))
        elif status:
            name = next(parts)
            out.append(Pair(None if status == "A" else name, None if status == "D" else name))
    return out


def _here(path: str, top: Path, folder: Path | None) -> str:
    """A path or pattern of the user, from the top of the repository. Raises Diagnostics."""
    full = os.path.normpath((folder or Path()).resolve() / path)
    if not Path(full).is_relative_to(top):
        raise Diagnostics([diagnostic("bad-path", f"`{path}` is outside of the git repository")])
    return Path(full).relative_to(top).as_posix()


def _wanted(paths: Sequence[str], base: str, head: str, top: Path) -> set[str]:
    """The files that the patterns of the user match, on either side. Raises Diagnostics for a path that neither has."""
    if not paths:
        return set()
    there: set[str] = set()
    for ref in (base, head):
        there |= set(git(["ls-tree", "-r", "-z", "--name-only", ref] if ref else
                         ["ls-files", "-z", "--cached", "--others", "--exclude-standard"], top).split("\0")) - {""}
    found: set[str] = set()
    wrong = []
    for path in paths:
        matched = re.compile(_regex(path))
        hits = {f for f in there if path == "." or matched.fullmatch(f)}
        if not hits and not set("*?") & set(path):
            wrong.append(diagnostic("file-not-found", f"neither side has `{path}`", help=suggest(path, filter(_named, there), "specs")))
        found |= hits
    if wrong:
        raise Diagnostics(wrong)
    return found


def _regex(pattern: str) -> str:
    """A path pattern as git's globs have it: `**/` is any number of folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(p, re.escape(p)) for p in parts) + ("" if set("*?") & set(pattern) else "(?:/.*)?")


def _is_yaml(p: Pair) -> bool:
    return _named(p.head or p.base or "")


def _named(path: str) -> bool:
    return path.endswith((".yaml", ".yml"))


def _is_spec(p: Pair, base: str, head: str, top: Path) -> bool:
    """Whether either side is a model; files of blocks alone are compared through their users."""
    return any(path is not None and SPEC.search(_text(ref, path, top)) for path, ref in ((p.head, head), (p.base, base)))


def _text(ref: str, path: str, top: Path) -> str:
    try:
        if ref:
            return git(["cat-file", "blob", f"{ref}:{path}"], top, missing=path)
        return (top / path).read_text(encoding="utf-8", errors="replace")
    except (Diagnostics, OSError):
        return ""                               # not there on this side, or no text: what is wrong is told when it is compiled


def _users(touched: Iterable[str], head: str, top: Path) -> set[str]:
    """The YAML files that name one of these files, directly or not."""
    names = git(["ls-tree", "-r", "-z", "--name-only", head], top).split("\0") if head else \
        git(["ls-files", "-z", "--cached", "--others", "--exclude-standard"], top).split("\0")
    texts = {n: _text(head, n, top) for n in names if n.endswith((".yaml", ".yml"))} if touched else {}
    found: set[str] = set()
    todo = list(touched)
    while todo:
        last = Path(todo.pop()).name
        new = {n for n, t in texts.items() if f"/{last}" in t and n not in found}
        found |= new
        todo += new
    return found - set(touched)


def _files(report: Report, top: Path) -> set[str]:
    """The files that either side is written in, from the top."""
    found: set[str] = set()
    for name in (n for s in (report.base, report.head) if s is not None for n in s.files):
        inside = re.sub(r"^[^:]+:\./", "", name)
        full = Path(name).resolve()
        found.add(inside if inside != name else str(full.relative_to(top)) if full.is_relative_to(top) else name)
    return found


def _one(pair: Pair, base: str, head: str, sizes: Mapping[str, int] | None, dtype: str, top: Path) -> Report:
    """One comparison. Raises Diagnostics with all that is wrong with either side."""
    sides: list[Compiled | None] = []
    wrong: list[Diagnostics] = []
    for path, ref in ((pair.base, base), (pair.head, head)):
        try:
            sides.append(None if path is None else at_ref(ref, path, folder=top) if ref else front(_near(top / path)))
        except Diagnostics as found:
            wrong.append(found)
    if wrong:
        raise Diagnostics([d for w in wrong for d in w.items])
    a, b = sides
    if a is not None and b is not None:
        return compare(a, b, (f"{base[:8]}:{pair.base}", str(pair.head)), had(sizes, a, b), dtype)
    return alone(a, b, str(pair.base), str(pair.head))


def alone(a: Compiled | None, b: Compiled | None, old: str, new: str) -> Report:
    """A spec that only one side has."""
    verdict = Verdict("changed", "same", (), (), ())
    return Report(None if a is None else side(a, old), None if b is None else side(b, new), verdict, (), (), (), {})


def _near(path: Path) -> Path:
    """The path as a person here would write it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
