"""`checkpoint: config:` of a family: what each key of a foreign config means."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ..lang.diagnostic import Sink, fault, suggest
from ..lang.expression import parse_expression
from ..lang.source import Span
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree
from ..library import CONFIGS
from ..stages.parse import parse, read_source

CODE = "bad-checkpoint"
CHANGES = ("remove", "set", "add")                # in the order in which they are made, as in a variant
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Change:
    """One edit of a spec's tree: `set`, `add` or `remove`, a path, and the new value."""

    what: str
    path: Scalar
    value: Tree
    layers: int | None = None                     # that a list of kinds speaks of, for `what` "pattern"


@dataclass(frozen=True)
class Later:
    """A value of the config that one of the `formulas` over the sizes must give, once these are known."""

    headline: str
    value: float
    formulas: tuple[Scalar, ...]
    span: Span


@dataclass(frozen=True)
class Choice:
    """What one value of a key changes, and the keys that are legal beside it."""

    value: Scalar
    changes: tuple[Change, ...] = ()
    config: Section | None = None
    formula: bool = False                         # the value is an expression over the sizes, such as `width`


@dataclass(frozen=True)
class Key:
    """One key: its spellings, such as `rope_theta` and `rope_parameters.rope_theta`, and what its value does."""

    name: Scalar
    spellings: tuple[str, ...]
    size: Scalar | None = None
    default: Tree | None = None
    choose: tuple[Choice, ...] = ()
    require: tuple[Scalar, ...] = ()
    pattern: Scalar | None = None
    items: tuple[tuple[Scalar, Mapping], ...] = ()
    at: tuple[Scalar, ...] = ()
    words: tuple[tuple[str, Scalar], ...] = ()    # of the config and of a spec

    def choice(self, text: str) -> Choice | None:
        return next((c for c in self.choose if same(c.value.text, text)), None)


@dataclass(frozen=True)
class Section:
    keys: tuple[Key, ...] = ()
    ignored: tuple[str, ...] = ()
    sizes: frozenset[str] = field(default=frozenset())

    def names(self) -> Iterator[str]:
        """Every spelling that is legal here, without those of choices."""
        yield from self.ignored
        for key in self.keys:
            yield from key.spellings

    def deep(self) -> Iterator[tuple[str, tuple[Key, Choice] | None]]:
        """Every spelling, those of choices with the key and the choice that they go with."""
        for name in self.names():
            yield name, None
        for key in self.keys:
            for choice in key.choose:
                for name, within in choice.config.deep() if choice.config else ():
                    yield name, within or (key, choice)


def number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def same(a: str, b: str) -> bool:
    """Whether two scalars say the same: as text, or as numbers (`1e-5` and `1e-05`)."""
    x, y = number(a), number(b)
    return a == b or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-12))


def read_section(tree: Tree | None, sizes: Collection[str], sink: Sink) -> Section:
    """The section of a checked file whose sizes have these names."""
    if not isinstance(tree, Mapping):
        return Section(sizes=frozenset(sizes))
    keys, ignored = [], []
    for entry in _entries(tree, sink):
        if entry.key.text == "ignore":
            ignored += [s.text for s in _scalars(entry.value)]
        else:
            with sink.catch():
                keys.append(_key(entry.key, entry.value, sizes, sink))
    seen: dict[str, Key] = {}
    for key in keys:
        for name in key.spellings:
            if name in seen or name in ignored:
                sink.add(fault(CODE, f"`{name}` stands twice in `config:`", key.name.span,
                               seen[name].name.span if name in seen else None).diagnostic)
            seen[name] = key
    return Section(tuple(keys), tuple(ignored), frozenset(sizes))


def _entries(tree: Mapping, sink: Sink) -> Iterator[Entry]:
    """Those of the section, and before them those of the files of the library that it uses."""
    for name in _scalars(tree.get("use")):
        with sink.catch():
            yield from shared(name)
    yield from (e for e in tree if e.key.text != "use")


def shared(name: Scalar) -> Mapping:
    """What a file of `specs/configs` holds. Raises Fault `bad-checkpoint` where there is none of that name."""
    known = {p.stem: p for p in sorted(CONFIGS.glob("*.yaml"))}
    if name.text not in known:
        raise fault(CODE, f"the library has no `{name.text}` for configs", name.span, help=suggest(name.text, known, "files"))
    found = parse(read_source(known[name.text]))
    assert isinstance(found, Mapping)
    return found


def _key(name: Scalar, tree: Tree, sizes: Collection[str], sink: Sink) -> Key:
    assert isinstance(tree, Mapping)
    spellings = tuple(s.strip() for s in name.text.split("|"))
    if not all(spellings):
        raise fault(CODE, "a spelling between `|` is missing", name.span)
    size, require, pattern = _one(tree.get("size")), tree.get("require"), _one(tree.get("pattern"))
    default = tree.get("default")
    if pattern is None and not isinstance(default, Scalar | None):
        raise fault(CODE, f"the default of `{name.text}` is one value", default.span)
    ways = [w for w in ("size", "at", "pattern", "choose", "require") if w in tree]
    if not ways:
        raise fault(CODE, f"`{name.text}` does not say what it means", name.span,
                    help="write `size: NAME`, `at: PATH`, `choose: {VALUE: {...}}`, `require: VALUE` or `pattern: NODE`, "
                         "or list it under `ignore:`")
    if len(ways) > 1 and (ways[1:] != ["choose"]):
        raise fault(CODE, f"`{name.text}` takes `{ways[0]}:` or `{ways[1]}:`, not both", name.span)
    if ("pattern" in tree) != ("items" in tree):
        raise fault(CODE, "`pattern: NODE` goes with `items: {WORD: {...}}`", name.span)
    if "words" in tree and "at" not in tree:
        raise fault(CODE, "`words: FILE` goes with `at: PATH`", name.span)
    if "require" in tree and "default" in tree:
        raise fault(CODE, "a key with `require:` may be absent, and takes no `default:`", name.span)
    if size is not None and size.text not in sizes:
        raise fault("unknown-name", f"no size is called `{size.text}`", size.span, help=suggest(size.text, sizes, "sizes"))
    choose, items = tree.get("choose"), tree.get("items")
    table = _one(tree.get("words"))
    ours = tuple((e.key.text, e.value) for e in shared(table) if isinstance(e.value, Scalar)) if table else ()
    made = Key(name, spellings, size, default,
               tuple(_choice(e.key, e.value, sizes, sink) for e in choose) if isinstance(choose, Mapping) else (),
               tuple(_scalars(require)) if require is not None else (), pattern,
               tuple((e.key, e.value) for e in items if isinstance(e.value, Mapping)) if isinstance(items, Mapping) else (),
               tuple(_scalars(tree.get("at"))), ours)
    for value in (*_scalars(made.default), *made.require):
        with sink.catch():
            _check_value(made, value, sizes)
    return made


def _check_value(key: Key, value: Scalar, sizes: Collection[str]) -> None:
    """A default or a required value: one of the key's own, a word, or an expression over sizes."""
    known = [c.value.text for c in key.choose] + [word.text for word, _ in key.items] + [word for word, _ in key.words]
    if any(same(value.text, k) for k in known) or (key.require and words(value.text, sizes)):
        return
    if not key.require and key.size is None and (not key.at or key.words):
        raise fault(CODE, f"the default `{value.text}` is none of its values", value.span, key.name.span,
                    help=suggest(value.text, known, "values"))
    _check_names(value, sizes)


def _check_names(value: Scalar, sizes: Collection[str]) -> None:
    for name in sorted(parse_expression(value.text, value.span).names()):
        if name not in sizes:
            raise fault("unknown-name", f"no size is called `{name}`", value.span, help=suggest(name, sizes, "sizes"))


def words(text: str, sizes: Collection[str]) -> bool:
    """Whether a required value is a word of the config and no expression over sizes."""
    return text not in sizes and (re.fullmatch(r"[\w./:-]*", text) is not None)


def _choice(value: Scalar, tree: Tree, sizes: Collection[str], sink: Sink) -> Choice:
    assert isinstance(tree, Mapping)
    changes: list[Change] = []
    for what in CHANGES:
        written = tree.get(what)
        if what == "remove":
            changes += [Change(what, s, s) for s in _scalars(written)]
        elif isinstance(written, Mapping):
            changes += [Change(what, e.key, e.value) for e in written]
    new = {c.path.text.removeprefix("sizes.") for c in changes if c.what == "add" and c.path.text.startswith("sizes.")}
    config = read_section(tree.get("config"), {*sizes, *new}, sink) if "config" in tree else None
    return Choice(value, tuple(changes), config, _formula(value, sizes, sink))


def _formula(value: Scalar, sizes: Collection[str], sink: Sink) -> bool:
    """Whether a choice is made by an expression over sizes, and not by a word or a number."""
    if value.quoted or number(value.text) is not None or words(value.text, sizes):
        return False
    with sink.catch():
        _check_names(value, sizes)
    return True


def _one(tree: Tree | None) -> Scalar | None:
    assert tree is None or isinstance(tree, Scalar)
    return tree


def _scalars(tree: Tree | None) -> Iterable[Scalar]:
    if isinstance(tree, Scalar):
        return [tree] if tree.text or tree.quoted else []
    return [s for s in tree if isinstance(s, Scalar)] if isinstance(tree, Sequence) else []
