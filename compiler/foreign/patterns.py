"""A list with one kind a layer as the shortest `pattern:`."""

from __future__ import annotations

from itertools import groupby

from ..lang.source import Span
from ..lang.tree import Entry, Mapping, Scalar, Sequence, plain


def cycle(items: list[Mapping], span: Span) -> Sequence:
    """The shortest cycle of changes that gives these to the layers in turn, with `times:` for runs; empty where nothing changes."""
    said = [plain(item) for item in items]
    period = next(p for p in range(1, len(said) + 1) if all(said[i] == said[i % p] for i in range(len(said)))) if said else 0
    if period <= 1 and not any(said[:1]):
        return Sequence((), span, True)
    made = []
    for _, run in groupby(range(period), key=lambda i: said[i]):      # type: ignore[arg-type, return-value]
        first, *rest = run
        item = items[first]
        times = Entry(Scalar("times", span), Scalar(str(1 + len(rest)), span))
        made.append(Mapping((times, *item.entries) if rest else item.entries, item.span, True))
    return Sequence(tuple(made), span, True)
