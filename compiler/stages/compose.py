"""`Tree -> Tree`: lay a variant's changes over its base, and find the files of blocks that a spec uses.

Every piece keeps the span of where it was written, and a path is relative to the file that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import NamedTuple

from ..lang.diagnostic import Diagnostics, Fault, Label, Sink, diagnostic, fault, nearest, suggest, with_label
from ..lang.source import Source, Span
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree, kind

CHANGES = ("remove", "set", "add")
OWN_KEYS = ("name", "about", "notes", "nnspec", "stability")          # what a variant says of itself
Load = Callable[[Path], tuple[Source, Mapping]]


class Used(NamedTuple):
    """A file of blocks, composed; `uses` are the files whose blocks it sees."""

    source: Source
    tree: Mapping
    uses: tuple[Source, ...]


@dataclass(frozen=True)
class Composed:
    """A composed file; `files` are those it uses, directly or not, each once and after the files that it uses itself."""

    source: Source
    tree: Mapping
    uses: tuple[Source, ...] = ()
    files: tuple[Used, ...] = ()


def compose(source: Source, tree: Tree, load: Load, sink: Sink, library: Path) -> Composed:
    """The whole of a file: its base, the variant's changes, and the files it uses. `load` reads and parses a file and
    raises `Diagnostics`; `library` is the folder of the files that `use:` names without a path. Errors go to `sink`, and
    what they leave out is missing from the result."""
    composer = _Composer(load, sink, library)
    whole = composer.based(tree, (Path(source.name).resolve(),), ()) or Mapping((), tree.span)
    return Composed(source, whole, composer.used(whole, (Path(source.name).resolve(),), ()), tuple(composer.files.values()))


def override(tree: Mapping, values: dict[str, str], sink: Sink) -> Mapping:
    """The tree with other values under `sizes:`, written as `--set NAME=VALUE` on the command line."""
    sizes = tree.get("sizes")
    known = sizes.keys() if isinstance(sizes, Mapping) else []
    for name, text in values.items():
        source = Source(f"--set {name}={text}", f"{name}={text}")
        key, value = Span(source, 0, len(name)), Span(source, len(name) + 1, len(source.text))
        if name in known:
            tree = _edit(tree, ("sizes", name), lambda old, v=Scalar(text, value): v)  # type: ignore[misc]
        else:
            sink.add(diagnostic("unknown-name", f"no size is called `{name}`", key, help=suggest(name, known, "sizes")))
    return tree


@dataclass
class _Composer:
    load: Load
    sink: Sink
    library: Path
    files: dict[Path, Used] = dataclass_field(default_factory=dict)
    loaded: dict[Path, tuple[Source, Tree]] = dataclass_field(default_factory=dict)
    failed: set[Path] = dataclass_field(default_factory=set)

    # variants

    def based(self, tree: Tree, chain: tuple[Path, ...], via: tuple[Span, ...]) -> Mapping | None:
        """The file with its base under it, None when that cannot be had; `chain` are the files on the way here, `via` the
        places that named them."""
        if not isinstance(tree, Mapping):
            self.sink.add(diagnostic("bad-spec", f"a spec is a mapping, not {kind(tree)}", tree.span))
            return None
        base = tree.get("base")
        if base is None:
            for key in (e.key for e in tree if e.key.text in CHANGES):
                self.sink.add(diagnostic("missing-key", f"`{key.text}:` changes a base, and there is no `base:`", key.span,
                                         help="add `base: FILE`"))
            return Mapping(tuple(e for e in tree if e.key.text not in CHANGES), tree.span)
        self.variant_keys(tree)
        found = None
        with self.sink.catch():
            if not isinstance(base, Scalar):
                raise fault("bad-spec", f"`base:` is one value, not {kind(base)}", base.span)
            found = self.open(self.model(base) or _beside(base, "base"), base, chain, via)
        if found is None:
            return None
        path, _, below = found
        whole = self.based(below, (*chain, path), (*via, base.span))
        return whole and self.changed(tree, whole, base)

    def variant_keys(self, tree: Mapping) -> None:
        known = ("base", *CHANGES, *OWN_KEYS)
        for e in tree:
            key = e.key.text
            if key not in known and not key.startswith("x-"):
                near = nearest(key, known)
                help = f"did you mean `{near}`?" if near else f"write `set: {{{key}: ...}}`, or `add:` for a new key"
                self.sink.add(diagnostic("unknown-key", f"a variant has no key `{key}`", e.key.span, help=help,
                                         note="a variant says what it changes through `set:`, `remove:` and `add:`"))

    def model(self, base: Scalar) -> Path | None:
        """The model of the library that a bare name means."""
        if "/" in base.text or base.text.endswith((".yaml", ".yml")):
            return None
        models = self.library.parent / "models"
        if base.text not in _specs(models):
            raise fault("bad-path", f"the library has no model `{base.text}`", base.span,
                        help=[*suggest(base.text, _specs(models), "models"), "a file is written as a path: `./NAME.yaml`"])
        return models / f"{base.text}.yaml"

    def changed(self, tree: Mapping, whole: Mapping, base: Scalar) -> Mapping:
        """The base after `remove`, `set` and `add`, in this order, under the variant's own name."""
        own = tuple(e for e in tree if e.key.text in OWN_KEYS or e.key.text.startswith("x-"))
        said = {e.key.text for e in own} | {"name"}
        whole = Mapping((*own, *(e for e in whole if e.key.text not in said)), tree.span)
        for what in CHANGES:
            for path, value in self.listed(tree, what):
                with self.sink.catch():
                    whole = change(whole, what, path, value, base)
        return whole

    def listed(self, tree: Mapping, what: str) -> list[tuple[Scalar, Tree]]:
        """The paths under one of the change keys, with their values."""
        written = tree.get(what)
        if what == "remove" and isinstance(written, Scalar):
            written = Sequence((written,), written.span)
        if written is None or (isinstance(written, Scalar) and not written.text):
            return []
        with self.sink.catch():
            if what != "remove":
                if isinstance(written, Mapping):
                    return [(e.key, e.value) for e in written]
                raise fault("bad-spec", f"`{what}:` is a mapping, not {kind(written)}", written.span,
                            help=f"write `{what}: {{PATH: VALUE}}`")
            if isinstance(written, Sequence) and all(isinstance(x, Scalar) for x in written):
                return sorted(((x, x) for x in written if isinstance(x, Scalar)), key=_last_first, reverse=True)
            raise fault("bad-spec", "`remove:` is a list of paths", written.span, help="write `remove: [PATH, PATH]`")
        return []

    # used files

    def used(self, tree: Mapping, chain: tuple[Path, ...], via: tuple[Span, ...]) -> tuple[Source, ...]:
        """The files that `use:` names, loaded with the files that they use."""
        written = tree.get("use")
        single = isinstance(written, Scalar) and written.text
        names = written.items if isinstance(written, Sequence) else (written,) if single else ()
        out: dict[Source, None] = {}
        for name in names:
            if not isinstance(name, Scalar):
                continue                                  # `check` says that it is not a name
            with self.sink.catch():
                path = self.place(name)
                if path.resolve() not in self.files:
                    found = self.open(path, name, chain, via)
                    if found is None:
                        continue
                    real, source, below = found
                    deeper = (*chain, real), (*via, name.span)
                    whole = self.based(below, *deeper)
                    if whole is None:
                        self.failed.add(real)
                        continue
                    self.files[real] = Used(source, whole, self.used(whole, *deeper))
                out[self.files[path.resolve()].source] = None
        return tuple(out)

    def place(self, name: Scalar) -> Path:
        """Where the file of one `use:` item lies."""
        text = name.text
        if "/" in text or "\\" in text or text.endswith((".yaml", ".yml")):
            return _beside(name, "use")
        known = _specs(self.library)
        if text not in known:
            help = suggest(text, known, "files of the library")
            if text in _specs(Path(name.span.source.name).parent):
                help = (f"for the file beside this one write `./{text}.yaml`",)
            raise fault("bad-path", f"the library has no file `{text}`", name.span, help=help)
        return self.library / f"{text}.yaml"

    def open(self, path: Path, at: Scalar, chain: tuple[Path, ...], via: tuple[Span, ...]) -> tuple[Path, Source, Tree] | None:
        """The file at `path`, once; None when it, or its text, was found wrong and reported."""
        real = path.resolve()
        if real in chain:
            first = chain.index(real)
            names = " -> ".join(p.name for p in (*chain[first:], real))
            raise fault("cycle", f"files name each other in a loop: {names}", at.span,
                        *[Label(s, "on the way here") for s in via[first:]])
        if real in self.failed:
            return None
        try:
            if real not in self.loaded:
                self.loaded[real] = self.load(path)
        except Diagnostics as found:
            self.failed.add(real)
            missing = next((d for d in found.items if d.code in ("file-not-found", "file-not-readable")), None)
            if missing:
                raise fault("bad-path", missing.headline, at.span, help=missing.helps,
                            note="a path is relative to the file that names it") from None
            for d in found.items:
                self.sink.add(with_label(d, Label(at.span, "the file is named here")))
            return None
        return real, *self.loaded[real]


def _specs(folder: Path) -> list[str]:
    return sorted(p.stem for p in folder.glob("*.yaml"))


def _beside(name: Scalar, key: str) -> Path:
    """The path that a scalar names, from the folder of the file it is written in."""
    text = name.text
    if not text.isprintable() or not text or "\\" in text or text.startswith(("/", "~")) or text[1:2] == ":":
        raise fault("bad-path", f"`{text}` is not a path relative to this file", name.span,
                    help=f"write `{key}: ../folder/file.yaml`, with `/` between folders")
    return Path(name.span.source.name).parent / text


# changes


def _last_first(item: tuple[Scalar, Tree]) -> list[tuple[int, str]]:
    """Orders removals so that none moves what a later one names, as the items of one list would."""
    return [(int(p) if p.isdecimal() else -1, p) for p in item[0].text.split(".")]


def change(whole: Mapping, what: str, path: Scalar, value: Tree, base: Scalar | None = None) -> Mapping:
    """`whole` after one change; `base` is where it is named. Raises `Fault` `unknown-path` or `path-exists`."""
    steps, left, holder, above = walk(whole, path.text)
    at = len(path.text) - len(left)
    span = path.span.part(at + path.quoted, len(path.text) + path.quoted)
    if what == "add" and not left:
        old = holder.entry(steps[-1]) if isinstance(holder, Mapping) else None
        raise fault("path-exists", f"`{path.text}` is there already", path.span, Label(old.key.span, "here") if old else None,
                    help="change it with `set:`")
    new = what == "add" and _last(holder, left, dotted=steps in (["checkpoint", "tensors"], ["checkpoint", "config"]))
    if left and not new:
        raise _unknown_path(what, path, left, holder, above or base)
    if new:
        return _edit(whole, (*steps, left), lambda old: value, Scalar(left, span))
    if what == "remove":
        return _edit(whole, tuple(steps), lambda old: None)
    key = None
    if isinstance(holder, Mapping) and isinstance(value, Mapping) and path.span.text.strip("'\"") == path.text:
        # another node under its name: messages about it point at the change
        key = Scalar(steps[-1], path.span.part(len(path.text) - len(steps[-1]) + path.quoted, len(path.text) + path.quoted))
    return _edit(whole, tuple(steps), lambda old: value, key)


def walk(whole: Mapping, path: str) -> tuple[list[str], str, Tree, Scalar | None]:
    """Follow `a.b.c` as far as it goes: the keys found, the rest of the path, the tree that the last key (or the rest) is
    looked up in, and the key of that tree. A key may hold dots itself."""
    steps: list[str] = []
    tree: Tree = whole
    above, here = None, None
    parts = path.split(".")
    holder: Tree = whole
    while parts:
        choices = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        key = next((k for k in choices if _child(tree, k) is not None), None)
        if key is None:
            return steps, ".".join(parts), tree, here
        entry = tree.entry(key) if isinstance(tree, Mapping) else None
        child = _child(tree, key)
        assert child is not None
        holder, above, here, tree = tree, here, entry.key if entry else here, child
        steps.append(key)
        parts = parts[key.count(".") + 1:]
    return steps, "", holder, above


def _child(tree: Tree, key: str) -> Tree | None:
    if isinstance(tree, Mapping):
        return tree.get(key)
    if isinstance(tree, Sequence) and key.isdecimal() and int(key) < len(tree):
        return tree.items[int(key)]
    return None


def _last(holder: Tree, left: str, dotted: bool) -> bool:
    """Whether `left` may be a new key of `holder`: one key, or the number after the last item of a list; dots where keys have them."""
    if isinstance(holder, Sequence):
        return left == str(len(holder))
    return isinstance(holder, Mapping) and (dotted or "." not in left)


def _unknown_path(what: str, path: Scalar, left: str, holder: Tree, above: Scalar | None) -> Fault:
    at, word = len(path.text) - len(left), left.partition(".")[0]
    done = path.text[:at].rstrip(".")
    span = path.span.part(at + path.quoted, at + len(word) + path.quoted)
    known = holder.keys() if isinstance(holder, Mapping) else []
    where = Label(above.span, f"`{done}` is written here" if done else "the base is named here") if above else None
    whole = "the base" if above else "the spec"
    if isinstance(holder, Scalar):
        return fault("unknown-path", f"`{done}` is one value and has no keys", span, where,
                     help=f"set the whole of it: `{done}: {{...}}`")
    if isinstance(holder, Sequence):
        return fault("unknown-path", f"`{done}` is a list of {len(holder)} and has no item `{word}`", span, where,
                     help=f"items count from 0; `add:` takes {len(holder)}, which goes after the last")
    helps = suggest(word, known, "keys")
    prefix = f"{done}." if done else ""
    if helps and helps[0].startswith("did you mean"):
        helps = (helps[0].replace("`", f"`{prefix}", 1),)
    elif what == "set" and "." not in left:
        helps = (*helps, f"a new key goes under `add:`: `add: {{{path.text}: ...}}`")
    return fault("unknown-path", f"{f'`{done}`' if done else whole} has no `{word}`", span, where, help=helps)


def _edit(tree: Tree, steps: tuple[str, ...], change: Callable[[Tree | None], Tree | None], key: Scalar | None = None) -> Mapping:
    """The tree with the value at `steps` replaced by what `change` makes of it (None removes it); `key` is of the entry."""
    found = _edited(tree, steps, change, key)
    assert isinstance(found, Mapping)
    return found


def _edited(tree: Tree, steps: tuple[str, ...], change: Callable[[Tree | None], Tree | None], key: Scalar | None) -> Tree | None:
    if not steps:
        return change(tree)
    step, rest = steps[0], steps[1:]
    if isinstance(tree, Sequence):
        k = int(step)
        made = _edited(tree.items[k], rest, change, key) if k < len(tree) else change(None)
        return Sequence((*tree.items[:k], *([made] if made is not None else []), *tree.items[k + 1:]), tree.span, tree.flow)
    assert isinstance(tree, Mapping)
    out: list[Entry] = []
    for e in tree:
        value = _edited(e.value, rest, change, key) if e.key.text == step else e.value
        if value is not None:
            out.append(e if value is e.value else Entry(e.key if rest or key is None else key, value))
    if step not in tree:
        made = change(None)
        assert key is not None and made is not None
        out.append(Entry(key, made))
    return Mapping(tuple(out), tree.span, tree.flow)
