"""Where the two sides of a comparison come from: files, library names, `REF:PATH` of a git repository, `-`, exported models, lock files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ..lang.diagnostic import Diagnostics, diagnostic
from ..lang.source import Source
from ..lang.tree import Mapping, kind
from ..library import ships
from ..pipeline import Compiled, front
from ..stages.parse import MAX_BYTES, load, parse
from .exported.embedded import spec_text


def opened(given: str, sizes: dict[str, str] | None = None) -> Compiled:
    """The spec that `given` names, compiled. Raises Diagnostics with all that is wrong with it."""
    if given == "-":
        return _from_text("<stdin>", sys.stdin.read(), sizes)
    path = Path(given)
    if (model := exported(path)) is not None:
        return _from_text(f"{model}:nnspec.spec", spec_text(model), sizes)
    ref, colon, inside = given.partition(":")
    if colon and len(ref) > 1 and not path.exists():
        return at_ref(ref, inside, sizes)
    return front(given, sizes)


def exported(path: Path) -> Path | None:
    """The ONNX file that a path names: itself, that of an exported folder, or the newest version in a folder of a Triton repository."""
    if path.suffix == ".onnx":
        return path
    if (path / "model.onnx").is_file() or not path.is_dir():
        return path / "model.onnx" if path.is_dir() else None
    found = [p for pattern in ("[0-9]*/model.onnx", "*/[0-9]*/model.onnx") for p in path.glob(pattern) if p.parent.name.isdecimal()]
    if len({p.parent.parent for p in found}) > 1:
        names = ", ".join(sorted(f"`{p.parent.parent}`" for p in found))
        raise Diagnostics([diagnostic("bad-artifact", f"`{path}` holds several models", note=names, help="name one of them")])
    return max(found, key=lambda p: int(p.parent.name), default=None)


def at_ref(ref: str, inside: str, sizes: dict[str, str] | None = None, folder: Path | None = None) -> Compiled:
    """A spec as a commit of the git repository around `folder` has it, with the files that it uses."""
    return front(f"{ref}:./{from_top(inside, folder)}", sizes, opened_by=_reader(ref, folder))


def from_top(inside: str, folder: Path | None = None) -> str:
    """A path of `REF:PATH` from the top of the repository; `./x` and `../x` are from here, as in git."""
    if not inside.startswith(("./", "../")):
        return inside
    above, here = top(folder), (folder or Path()).resolve()
    full = Path(*_dotless((here / inside).parts))
    if above not in full.parents:
        raise Diagnostics([diagnostic("bad-path", f"`{inside}` is outside of the git repository")])
    return str(full.relative_to(above))


def top(folder: Path | None = None) -> Path:
    """The top of the git repository. Raises Diagnostics."""
    return Path(git(["rev-parse", "--show-toplevel"], folder).strip()).resolve()


def _dotless(parts: tuple[str, ...]) -> list[str]:
    out: list[str] = []
    for p in parts:
        if p == "..":
            out.pop()
        elif p != ".":
            out.append(p)
    return out


def _reader(ref: str, folder: Path | None) -> Callable[[Path], tuple[Source, Mapping]]:
    """Opens files as the commit has them; those of the library as they are. A folder called `REF:.` stands for the top of the commit."""
    head = f"{ref}:."

    def read(path: Path) -> tuple[Source, Mapping]:
        if ships(path):
            return load(path)
        text = path.as_posix()
        at = text.find(head)
        if at < 0:
            raise Diagnostics([diagnostic("file-not-found", f"`{text}` is outside of the commit `{ref}`")])
        inside = "/".join(_dotless(tuple(p for p in text[at + len(head):].split("/") if p)))
        return parsed(Source(f"{head}/{inside}", blob(ref, inside, folder)))

    return read


def blob(ref: str, inside: str, folder: Path | None = None) -> str:
    """The text of a file at a commit. Raises Diagnostics."""
    spec = f"{ref}:{inside}"
    size = int(git(["cat-file", "-s", spec], folder, missing=spec).strip())
    if size > MAX_BYTES:
        raise Diagnostics([diagnostic("file-too-large", f"`{spec}` is larger than {MAX_BYTES // 2**20} MiB")])
    return git(["cat-file", "blob", spec], folder, missing=spec)


def git(arguments: list[str], folder: Path | None = None, missing: str | None = None) -> str:
    """What a git command prints. Raises Diagnostics (`no-git`, or `file-not-found` for what `missing` names)."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        raise Diagnostics([diagnostic("no-git", "git is not installed, and `REF:PATH` is read by it")]) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
        if missing:
            raise Diagnostics([diagnostic("file-not-found", f"git has no `{missing}`", note=said,
                                          help="a path of `REF:PATH` is from the top of the repository; `REF:./PATH` is from here")])
        raise Diagnostics([diagnostic("no-git", f"`git {arguments[0]}` failed", note=said)])
    try:
        return done.stdout.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Diagnostics([diagnostic("file-not-utf8", f"`{missing or arguments[0]}` is not UTF-8")]) from None


def _from_text(name: str, text: str, sizes: dict[str, str] | None) -> Compiled:
    def read(path: Path) -> tuple[Source, Mapping]:
        return parsed(Source(name, text)) if str(path) == str(Path(name)) else load(path)
    return front(name, sizes, opened_by=read)


def parsed(source: Source) -> tuple[Source, Mapping]:
    """A source and its tree. Raises Diagnostics with all that is wrong with it."""
    tree = parse(source)
    if not isinstance(tree, Mapping):
        raise Diagnostics([diagnostic("bad-spec", f"a spec is a mapping, not {kind(tree)}", tree.span)])
    return source, tree
