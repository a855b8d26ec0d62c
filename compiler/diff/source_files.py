"""`Compiled -> files`: what a model is written in, and what a report calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..lang.source import Source
from ..lang.tree import Mapping, Sequence, Tree
from ..library import SPECS, ships
from ..pipeline import Compiled


def named(source: Source) -> str:
    """A file as a report says it; those of the library by their name."""
    return str(Path(source.name).relative_to(SPECS)) if ships(source.name) else source.name


def texts(compiled: Compiled) -> dict[str, str]:
    """Every file that the model is written in, by its name: the spec first, then its bases, then the files of blocks that it uses."""
    found = dict.fromkeys([compiled.spec.source, *_sources(compiled.spec.tree)])
    for used in compiled.files:
        found |= dict.fromkeys([used.source, *_sources(used.tree)])
    return {named(s): s.text for s in found if s.text}


def _sources(tree: Tree) -> Iterator[Source]:
    """The files that the parts of a tree are from."""
    yield tree.span.source
    if isinstance(tree, Mapping):
        for entry in tree:
            yield entry.key.span.source
            yield from _sources(entry.value)
    elif isinstance(tree, Sequence):
        for item in tree:
            yield from _sources(item)
