"""`text -> Tree`: YAML as its events come, with exact spans; no scalar is typed.

What YAML lets pass in silence (duplicate keys, tags, keys that are not text, alias bombs) is refused, with everything that is
wrong reported at once.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml

from ..lang.diagnostic import Diagnostics, Fault, Label, Sink, diagnostic, fault, suggest
from ..lang.source import Source, Span
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree, kind
from ..lang.yaml_syntax import CODE, MAX_DEPTH, SyntaxFailure, bracketed, explain, quote_it, too_deep, value_end

MAX_BYTES = 4 * 2**20
MAX_ALIASED = 100_000
_MAX_REPAIRS = 20
_MAX_PLACES = 3
_MAX_RESCAN = 2**16  # characters; the pure Python parser marks errors better, but takes about 5 us a character

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNFIT = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
                    "|[\u200b\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]|\r(?!\n)")
_PROPERTY = re.compile(r"#[^\n]*|[&!]\S*")
_PROPERTIES = re.compile(r"(?:[&!]\S*(?:(?:\s|#[^\n]*\n)+|$))*")


def read_source(path: str | Path) -> Source:
    """The text of a file of at most 4 MiB of UTF-8. Raises `Diagnostics` when it cannot be had."""
    name = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unreadable("file-not-found", f"there is no file `{name}`", help=_neighbour(Path(path))) from None
    except IsADirectoryError:
        raise _unreadable("file-not-readable", f"`{name}` is a folder, not a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable("file-not-readable", f"`{name}` cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise _unreadable("file-too-large", f"`{name}` is larger than {MAX_BYTES // 2**20} MiB",
                          note="a spec holds no weights; the largest are a few hundred lines")
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise _unreadable("file-not-utf8", f"`{name}` is not UTF-8",
                          note="it begins like a UTF-16 file" if utf16 else
                          f"line {line} holds the byte 0x{data[error.start]:02x}, which begins no UTF-8 character",
                          help="save the file as UTF-8") from None


def parse(source: Source) -> Tree:
    """The tree of a source that holds one YAML document. Raises `Diagnostics` with all that is wrong with it."""
    sink = Sink()
    _check_characters(source, sink)
    sink.check()
    text = source.text
    for _ in range(_MAX_REPAIRS):
        builder = _Builder(source)
        failure = builder.run(text)
        brackets = failure and bracketed(failure)
        if not brackets:
            break
        sink.add(quote_it(brackets))
        # the same number of characters without brackets lets the parser go on and find the other errors
        text = text[: brackets.start] + re.sub(r"[\[\]{},]", "_", brackets.text) + text[brackets.stop :]
    if failure and not brackets:
        sink.add(explain(failure))
    sink.items += builder.sink.items
    sink.check()
    return builder.root(failure)


def load(path: str | Path) -> tuple[Source, Mapping]:
    """Read and parse a file that must be a mapping. Raises `Diagnostics`."""
    source = read_source(path)
    return _mapping(source.name, source.text)


@lru_cache(maxsize=64)
def _mapping(name: str, text: str) -> tuple[Source, Mapping]:
    """A source and its tree; a file that several specs use is parsed once."""
    source = Source(name, text)
    tree = parse(source)
    if not isinstance(tree, Mapping):
        raise Diagnostics([diagnostic("bad-spec", f"a spec is a mapping, not {kind(tree)}", tree.span)])
    return source, tree


def _unreadable(code: str, headline: str, note: str | tuple[str, ...] = (), help: str | tuple[str, ...] = ()) -> Diagnostics:
    return Diagnostics([diagnostic(code, headline, note=note, help=help)])


def _neighbour(path: Path) -> tuple[str, ...]:
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except (OSError, ValueError):
        return ()
    return suggest(path.name, names, f"specs in `{path.parent}`")


def _check_characters(source: Source, sink: Sink) -> None:
    places: dict[str, list[int]] = {}
    for match in _UNFIT.finditer(source.text, 1 if source.text.startswith("\ufeff") else 0):
        places.setdefault(match.group(), []).append(match.start())
    for c, at in places.items():
        if c == "\r":
            headline, help = "a carriage return stands alone", "save the file with LF or CRLF line ends"
        else:
            name = unicodedata.name(c, "control character")
            headline, help = f"the character U+{ord(c):04X} ({name.lower()}) cannot stand in a spec", "delete it"
        sink.add(diagnostic("yaml-character", headline, *_places(source, at), help=help, note=_how_many(at)))
    tabs = [m.end() - 1 for m in re.finditer(r"^ *\t", source.text, re.MULTILINE)]
    if tabs:
        sink.add(diagnostic(CODE, "a tab is used for indentation", *_places(source, tabs), note=_how_many(tabs),
                            help="indent with spaces; YAML allows no tabs there"))


def _places(source: Source, at: list[int]) -> list[Label]:
    return [Label(Span(source, i, i + 1), "and here" if n else "here") for n, i in enumerate(at[:_MAX_PLACES])]


def _how_many(at: list[int]) -> tuple[str, ...]:
    return (f"it stands in {len(at):,} places",) if len(at) > _MAX_PLACES else ()


@dataclass
class _Frame:
    """A collection whose end has not been seen."""

    mapping: bool
    flow: bool
    start: int
    anchor: str | None = None
    nodes: int = 0
    stop: int = 0
    height: int = 1
    items: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class _Anchor:
    """An anchored tree, or None while it is still open; its size with all aliases expanded."""

    span: Span
    tree: Tree | None = None
    nodes: int = 0
    height: int = 0


class _Builder:
    """Builds the tree from events; errors that leave the shape intact are collected in `sink`."""

    def __init__(self, source: Source):
        self.source = source
        self.sink = Sink()
        self.stack: list[_Frame] = []
        self.anchors: dict[str, _Anchor] = {}
        self.nodes = 0
        self.aliased = 0
        self.documents: list[Span] = []
        self.done: Tree | None = None

    def run(self, text: str) -> SyntaxFailure | None:
        """Read `text`, of the source's length; the failure when it is not YAML."""
        skip = 1 if text.startswith("\ufeff") else 0
        try:
            with self.sink.catch():
                for event in yaml.parse(text[skip:], Loader=_FAST):
                    start, end = event.start_mark, event.end_mark
                    assert start is not None and end is not None
                    self.take(event, start.index + skip, end.index + skip)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            return _failure(self.source, text[skip:], error, skip)
        return None

    def root(self, failure: SyntaxFailure | None) -> Tree:
        if failure is not None or self.done is None:
            raise AssertionError("an error was not reported")
        return self.done

    def take(self, event: yaml.Event, start: int, stop: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self.scalar(event, start, stop)
        elif isinstance(event, yaml.CollectionStartEvent):
            self.open(event, start, stop)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.close(stop)
        elif isinstance(event, yaml.AliasEvent):
            self.alias(str(event.anchor), Span(self.source, start, stop))
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents.append(Span(self.source, start, stop))
            if len(self.documents) > 1:
                first, second = self.documents
                raise fault("yaml-documents", "a spec is one YAML document", Label(second, "a second document begins here"),
                            Label(first, "the first begins here"),
                            help="delete the `---`, or put the second document in a file of its own")
        elif isinstance(event, yaml.StreamEndEvent) and self.empty():
            raise fault("yaml-empty", "the file holds no spec", Span(self.source, 0, 0),
                        help="the smallest spec has `nnspec: 1`, `inputs:`, `graph:` and `outputs:`")

    def empty(self) -> bool:
        return self.done is None or (isinstance(self.done, Scalar) and not self.done.text and not self.done.quoted)

    def scalar(self, event: yaml.ScalarEvent, start: int, stop: int) -> None:
        self.nodes += 1
        plain = event.style in (None, "")
        inner = self.properties(event, start, stop)
        while stop > inner and self.source.text[stop - 1] in " \t\r\n" and event.style not in ("'", '"'):
            stop -= 1
        if stop <= inner:  # an empty value: the two parsers put it before or after the spaces
            inner = stop = len(self.source.text[: max(inner, stop)].rstrip(" \t"))
        found = Scalar(event.value, Span(self.source, inner, stop), not plain)
        if plain and self.stack and self.stack[-1].flow and found.text.count("(") > found.text.count(")"):
            self.check_comma(inner, stop)
        self.add(found, stop, event.anchor, 1, 0)

    def check_comma(self, start: int, stop: int) -> None:
        """Refuse `min(a, b)` in a flow collection, which YAML reads as two values."""
        whole = Span(self.source, start, value_end(self.source.text, start))
        if whole.stop > stop and whole.text.count("(") == whole.text.count(")"):
            self.sink.add(quote_it(whole))

    def properties(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, start: int, stop: int) -> int:
        """Refuse a tag, note an anchor; where the node itself begins."""
        if event.tag is None and event.anchor is None:
            return start
        # an anchored block collection ends where it starts, so look at the text from there on
        limit = stop if isinstance(event, yaml.ScalarEvent) else len(self.source.text)
        end = _PROPERTIES.match(self.source.text, start, limit).end()  # type: ignore[union-attr]
        written = {m.group()[0]: Span(self.source, m.start(), m.end()) for m in _PROPERTY.finditer(self.source.text, start, end)}
        if event.tag is not None:
            self.sink.add(diagnostic("yaml-tag", "tags are not allowed in a spec", Label(written["!"], "a YAML tag"),
                                     note="nothing in a spec is executed, and the field decides the type of a value",
                                     help="delete the tag, or quote the value if it begins with `!`"))
        if event.anchor is not None:
            self.anchor(event.anchor, written["&"])
        return end

    def anchor(self, name: str, span: Span) -> None:
        if name in self.anchors:
            first = Label(self.anchors[name].span, "first set here")
            self.sink.add(diagnostic("yaml-alias", f"the anchor `&{name}` is set twice", Label(span, "set again here"), first,
                                     help="give the two anchors different names"))
        self.anchors[name] = _Anchor(span)

    def open(self, event: yaml.CollectionStartEvent, start: int, stop: int) -> None:
        inner = self.properties(event, start, stop)
        if len(self.stack) >= MAX_DEPTH:
            raise Fault(too_deep(Label(Span(self.source, inner, inner + 1), "here")))
        mapping, flow = isinstance(event, yaml.MappingStartEvent), bool(event.flow_style)
        self.stack.append(_Frame(mapping, flow, inner, event.anchor, self.nodes))
        self.nodes += 1

    def close(self, stop: int) -> None:
        frame = self.stack.pop()
        span = Span(self.source, frame.start, stop if frame.flow else frame.stop)
        tree: Tree = self.mapping(frame, span) if frame.mapping else Sequence(tuple(frame.items), span, frame.flow)
        self.add(tree, span.stop, frame.anchor, self.nodes - frame.nodes, frame.height)

    def add(self, tree: Tree, stop: int, anchor: str | None, nodes: int, height: int) -> None:
        """Hand a complete tree of `nodes` values and `height` levels, written up to `stop`, to the collection around it."""
        if anchor is not None:
            self.anchors[anchor] = _Anchor(self.anchors[anchor].span, tree, nodes, height)
        if not self.stack:
            self.done = tree
            return
        frame = self.stack[-1]
        frame.items.append(tree)
        frame.stop = stop
        frame.height = max(frame.height, height + 1)

    def alias(self, name: str, span: Span) -> None:
        found = self.anchors.get(name)
        if found is None:
            raise fault("yaml-alias", f"no anchor `&{name}` stands above", Label(span, "unknown alias"), help=(
                *suggest(name, self.anchors, "anchors"), "quote the value if it is text that begins with `*`"))
        if found.tree is None:
            raise fault("yaml-alias", f"`*{name}` stands inside what `&{name}` names, so it would contain itself",
                        Label(span, "used here"), Label(found.span, "this value is not complete yet"))
        self.nodes += found.nodes
        self.aliased += found.nodes
        if self.aliased > MAX_ALIASED:
            raise fault("yaml-alias", f"the aliases expand to more than {MAX_ALIASED:,} values",
                        Label(span, "too many from here on"), Label(found.span, f"this one alone is {found.nodes:,} values"))
        if len(self.stack) + found.height > MAX_DEPTH:
            raise Fault(too_deep(Label(span, "here"), Label(found.span, "expanded from here")))
        self.add(found.tree, span.stop, None, found.nodes, found.height)

    def mapping(self, frame: _Frame, span: Span) -> Mapping:
        own: dict[str | None, Entry] = {}
        for key, value in zip(frame.items[::2], frame.items[1::2], strict=True):
            if not isinstance(key, Scalar) or not key.text:
                self.bad_key(key)
                continue
            if frame.flow:
                self.check_colon(key, value)
            name = _name(key)
            if name in own:
                self.duplicate(key, own[name].key)
            else:
                own[name] = Entry(key, value)
        entries: list[Entry] = []
        for name, entry in own.items():
            entries += self.merged(entry, own) if name is None else [entry]
        return Mapping(tuple(entries), span, frame.flow)

    def merged(self, merge: Entry, own: dict[str | None, Entry]) -> list[Entry]:
        """The entries that `<<` brings: a key of the mapping itself wins, then the first mapping of a list."""
        found: dict[str | None, Entry] = {}
        for source in merge.value if isinstance(merge.value, Sequence) else (merge.value,):
            if not isinstance(source, Mapping):
                self.sink.add(diagnostic("yaml-merge", f"`<<` takes a mapping or a list of mappings, not {kind(source)}",
                                         Label(source.span, "not a mapping"), Label(merge.key.span, "merged here"),
                                         help='quote the key if you mean a key named "<<"'))
                continue
            for entry in source:
                if _name(entry.key) not in own:
                    found.setdefault(_name(entry.key), entry)
        return list(found.values())

    def bad_key(self, key: Tree) -> None:
        if isinstance(key, Scalar):
            self.sink.add(diagnostic("yaml-key", "a key is empty", Label(key.span, "a name is missing here")))
            return
        doubled = key.span.text.startswith("{") and self.source.text[key.span.start - 1 : key.span.start] == "{"
        self.sink.add(diagnostic("yaml-key", f"a key must be a name, not {kind(key)}", Label(key.span, "used as a key"), help=(
            "quote text in double braces: `\"{{...}}\"`" if doubled else "quote the key if it is text with brackets",)))

    def check_colon(self, key: Scalar, value: Tree) -> None:
        """Refuse `{op:linear}`, which YAML reads as the key `op:linear` without a value."""
        bare = isinstance(value, Scalar) and not value.text and not value.quoted
        if bare and not key.quoted and re.fullmatch(r"[\w.-]+:\S.*", key.text) and key.span.text == key.text:
            label = Label(key.span, "YAML reads this as one key without a value")
            self.sink.add(diagnostic(CODE, "a space is missing after a colon", label,
                                     help=f"write `{key.text.replace(':', ': ', 1)}`"))

    def duplicate(self, key: Scalar, first: Scalar) -> None:
        note = () if key.text == first.text else "the two look alike and differ only in their Unicode form"
        help = "merge several mappings with one `<<: [*a, *b]`" if _name(key) is None else "delete or rename one of the two"
        self.sink.add(diagnostic("duplicate-key", f"the key `{key.text}` is written twice in one mapping",
                                 Label(key.span, "written again here"), Label(first.span, "first written here"),
                                 note=note, help=help))


def _name(key: Scalar) -> str | None:
    """What a key is compared by: NFKC, the form in which Python compares identifiers; None for the merge key `<<`."""
    if key.text == "<<" and not key.quoted:
        return None
    return key.text if key.text.isascii() else unicodedata.normalize("NFKC", key.text)


def _failure(source: Source, text: str, error: Exception, skip: int) -> SyntaxFailure:
    """What went wrong, in the words and marks of the pure Python parser, which are the better ones."""
    if _FAST is not yaml.SafeLoader and len(text) <= _MAX_RESCAN:
        try:
            for _ in yaml.parse(text, Loader=yaml.SafeLoader):
                pass
        except yaml.MarkedYAMLError as found:
            error = found
        except (ValueError, OverflowError):  # a number too large for Python in an escape or a directive
            pass
    problem, mark = getattr(error, "problem", None) or str(error), getattr(error, "problem_mark", None)
    begun = getattr(error, "context_mark", None)
    return SyntaxFailure(source, problem, (mark.index if mark else 0) + skip, begun.index + skip if begun else None)
