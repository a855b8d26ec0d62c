"""YAML scanner and parser errors put into the words of someone who writes a spec."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .diagnostic import Diagnostic, Label, diagnostic
from .source import Source, Span

CODE = "yaml-syntax"
MAX_DEPTH = 200
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True)
class SyntaxFailure:
    """What the YAML parser said: its words, where it stopped, and where the construct it was in began."""

    source: Source
    problem: str
    at: int
    begun: int | None = None

    def span(self, start: int, stop: int | None = None) -> Span:
        return Span(self.source, start, start + 1 if stop is None else stop)

    @property
    def rest(self) -> str:
        return self.source.text[self.at :]

    @property
    def before(self) -> str:
        """The text of the line up to where the parser stopped."""
        return self.source.text[self.source.text.rfind("\n", 0, self.at) + 1 : self.at]

    @property
    def word(self) -> Span:
        """The token the parser stopped at."""
        token = re.match(r"[\w.$@%-]+|\S|", self.rest)
        return self.span(self.at, self.at + max(1, token.end() if token else 1))

    @property
    def begun_line(self) -> int:
        return self.source.position(self.at if self.begun is None else self.begun)[0]


def explain(failure: SyntaxFailure) -> Diagnostic:
    """The diagnostic for a failure of the YAML parser."""
    for pattern, rule in _RULES:
        if re.search(pattern, failure.problem):
            found = rule(failure)
            if found:
                return _with_invisible_space(failure, found)
    context = None if failure.begun is None else Label(failure.span(failure.begun), "while reading what begins here")
    return _with_invisible_space(
        failure, diagnostic(CODE, f"not valid YAML: {failure.problem}", Label(failure.word, "here"), context))


def bracketed(failure: SyntaxFailure) -> Span | None:
    """The unquoted value with brackets that broke a flow collection, as `float[B, S]` in `{a: float[B, S]}`."""
    text, at = failure.source.text, failure.at
    if "expected ',' or" not in failure.problem or text[at : at + 1] not in ("[", "{"):
        return None
    starts = [text.rfind(c, 0, at) + len(c) for c in (", ", "[", "{", "\n", ": ", ",") if text.rfind(c, 0, at) >= 0]
    start = max(starts, default=0)
    start += len(text[start:at]) - len(text[start:at].lstrip())
    if start >= at or text[start] in "'\"&*!|>":
        return None
    return Span(failure.source, start, value_end(text, start))


def value_end(text: str, start: int) -> int:
    """Where an unquoted value ends when commas and brackets inside brackets are taken to belong to it."""
    depth = 0
    for i in range(start, len(text)):
        c = text[i]
        if c == "\n" or (depth == 0 and c in ",]}") or (c == "#" and text[i - 1] in " \t"):
            return start + len(text[start:i].rstrip())
        depth += (c in _OPEN) - (c in _CLOSE)
    return start + len(text[start:].rstrip())


def quote_it(span: Span) -> Diagnostic:
    """Ask for quotes around an unquoted value that holds brackets or commas inside a flow collection."""
    source, value = span.source, span.text
    line = source.line(span.line)
    left, right = line[: span.column - 1], line[span.column - 1 + len(value) :]
    key = re.search(r"([\w.-]+:\s+)$", left)
    mark = "'" if '"' in value else '"'
    quoted = f"{key.group(1) if key else ''}{mark}{value}{mark}"
    if key and left[: key.start()].rstrip().endswith("{") and right.lstrip().startswith("}"):
        quoted = f"{{{quoted}}}"
    return diagnostic(CODE, "brackets and commas need quotes inside `{ }` and `[ ]`",
                      Label(span, "YAML ends this value at its first bracket or comma"), help=f"quote it: `{quoted}`")


def too_deep(*labels: Label) -> Diagnostic:
    return diagnostic("too-deep", f"the spec is nested more than {MAX_DEPTH} levels deep", *labels,
                      help="put the inner parts in blocks of their own")


def _unclosed_quote(f: SyntaxFailure) -> Diagnostic | None:
    if f.begun is None:
        return None
    return diagnostic(CODE, "a quoted text is never closed", Label(f.span(f.begun), "this quote has no partner"),
                      help="close the quote; inside single quotes write '' for an apostrophe")


def _unclosed_bracket(f: SyntaxFailure) -> Diagnostic | None:
    if f.begun is None:
        return None
    bracket = f.source.text[f.begun]
    partner = {"{": "}", "[": "]"}.get(bracket)
    if partner is None:
        return None
    if f.source.position(f.at)[0] == f.begun_line and f.rest.strip():
        if f.rest[0] in "]}":
            headline, what = f"`{bracket}` is closed by `{f.rest[0]}`", f"`{partner}` was expected"
        else:
            headline, what = f"`,` or `{partner}` was expected", "this cannot follow"
        return diagnostic(CODE, headline, Label(f.word, what), Label(f.span(f.begun), "opened here"))
    end = None if not f.rest.strip() else Label(f.word, f"`,` or `{partner}` was expected before this")
    return diagnostic(CODE, f"`{bracket}` is never closed", Label(f.span(f.begun), "opened here"), end,
                      help=f"add `{partner}`")


def _block_end(f: SyntaxFailure) -> Diagnostic:
    before = f.before.rstrip()
    if before[-1:] in ("]", "}"):
        return diagnostic(CODE, "text follows a closing bracket", Label(f.word, "this cannot follow"),
                          help="quote the whole value when it begins with a bracket and is not a list or a mapping")
    if before[-1:] in ("'", '"'):
        return diagnostic(CODE, "text follows a closing quote", Label(f.word, "this cannot follow"),
                          help="put the whole value in quotes, or look for an earlier quote that is not closed")
    begun = None if f.begun is None else Label(f.span(f.begun), "the block begins here")
    return diagnostic(CODE, "this line does not line up with its block", Label(f.word, "unexpected here"), begun,
                      help="give all keys or items of one block the same indentation")


def _second_colon(f: SyntaxFailure) -> Diagnostic:
    if re.search(r"\S:\s", f.before):
        return diagnostic(CODE, "a second `: ` stands on one line", Label(f.span(f.at), "a mapping cannot begin here"),
                          help="quote the value, or put the inner mapping in braces: `key: {inner: value}`")
    key = len(f.before) - len(f.before.lstrip(" -"))
    span = f.span(f.at - len(f.before) + key, f.at) if key < len(f.before) else f.span(f.at)
    return diagnostic(CODE, "this key is indented under a value", Label(span, "the line above already ends with a value"),
                      help="align the key with its neighbours, or quote the text above if it goes on here")


def _no_colon(f: SyntaxFailure) -> Diagnostic:
    start = f.at if f.begun is None else f.begun
    stop = start + len(f.source.text[start:].split("\n", 1)[0].rstrip())
    return diagnostic(CODE, "this line is not `key: value`", Label(f.span(start, max(stop, start + 1)), "no `: ` here"),
                      help="write a colon and a space after the key")


def _bad_start(f: SyntaxFailure) -> Diagnostic:
    c = f.rest[:1]
    return diagnostic(CODE, f"a value cannot begin with `{c}`" if c != "`" else "a value cannot begin with a backtick",
                      Label(f.span(f.at), "not allowed here"), help="put the value in quotes")


def _list_item(f: SyntaxFailure) -> Diagnostic:
    return diagnostic(CODE, "a list item cannot begin here", Label(f.span(f.at), "a `- ` after other text"),
                      help="put each `- item` on a line of its own, or write `[item, item]`")


def _escape(f: SyntaxFailure) -> Diagnostic:
    at = f.source.text.rfind("\\", 0, f.at + 1) if "\\" in f.before else f.source.text.find("\\", f.at)
    span = f.span(at, at + 2) if at >= 0 else f.word
    return diagnostic(CODE, f"`{span.text}` is not a valid escape", Label(span, "in double quotes a backslash begins an escape"),
                      help="use single quotes, where a backslash is only a backslash")


def _missing_value(f: SyntaxFailure) -> Diagnostic:
    what = f"`{f.word.text}`" if f.rest.strip() else "the end of the file"
    return diagnostic(CODE, f"a value was expected, not {what}", Label(f.word, "a value was expected before this"))


def _tag(f: SyntaxFailure) -> Diagnostic:
    return diagnostic("yaml-tag", "tags are not allowed in a spec", Label(f.word, "a YAML tag"),
                      help="delete the tag, or quote the value if it begins with `!`")


def _version(f: SyntaxFailure) -> Diagnostic:
    return diagnostic(CODE, "this YAML version is not supported", Label(f.word, "a directive"), help="delete the `%YAML` line")


def _with_invisible_space(f: SyntaxFailure, found: Diagnostic) -> Diagnostic:
    number = f.source.position(f.at)[0]
    if "\u00a0" not in f.source.line(number):
        return found
    at = f.source.line_starts[number - 1] + f.source.line(number).index("\u00a0")
    label = Label(f.span(at), "a no-break space (U+00A0), which YAML takes for a letter")
    return Diagnostic(found.code, found.headline, (*found.labels, label), found.notes, found.helps)


def _second_start(failure: SyntaxFailure) -> Diagnostic:
    """What stands at the top is whole, and something follows it: most often the first line is indented, or ends early."""
    first = re.search(r"^(?! *(#|$|---|%)).*\S", failure.source.text, re.MULTILINE)
    context = Label(failure.span(first.start(), first.end()), "the spec begins here") if first else None
    indented = first is not None and first.group().startswith(" ")
    return diagnostic(CODE, "this does not belong to what stands above it", Label(failure.word, "unexpected here"), context,
                      help="begin all keys of the spec in the first column" if indented else "a spec is one mapping from its first line on")


_RULES: tuple[tuple[str, Callable[[SyntaxFailure], Diagnostic | None]], ...] = (
    (r"maximum nesting depth", lambda f: too_deep(Label(f.span(f.at), "here"))),  # libyaml looks ahead
    (r"incompatible (YAML )?document|version", _version),
    (r"tag|URI|handle", _tag),
    (r"found unexpected (end of stream|document separator|document indicator)", _unclosed_quote),
    (r"expected ',' or", _unclosed_bracket),
    (r"expected <?block end|block collection|expected '-' indicator|expected key", _block_end),
    (r"mapping values are not allowed", _second_colon),
    (r"could not find expected ':'", _no_colon),
    (r"cannot start any token", _bad_start),
    (r"sequence entries are not allowed", _list_item),
    (r"escape|hexdecimal|hexadecimal", _escape),
    (r"expected (the )?node content", _missing_value),
    (r"expected '?<document start>", _second_start),
)
