"""Which tensor of an open weight file each parameter is made from, and reading them one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..lang.diagnostic import Diagnostic, Diagnostics, Sink, diagnostic
from .rules import Foreign, Shape, Source, sources
from .weight_file import WeightFile
from .weight_names import Origin, fold, match_weights


@dataclass
class Loader:
    """Reads our parameters from an open weight file, one at a time; a packed tensor is read once while it is in use."""

    file: WeightFile
    sources: Mapping[str, Source]
    names: Mapping[str, str]                     # our path -> the tensor in the file
    shapes: Mapping[str, Shape]                  # of our parameters
    last: tuple[str, np.ndarray] | None = None

    def __call__(self, path: str, whole: bool = True) -> Any:
        """The array; a large one may be left in the file, as `Deferred`, where the `whole` is not needed."""
        source, name = self.sources[path], self.names[path]
        if not whole and source.start is not None:
            found = self.file.deferred(name, source.start, self.shapes[path])
            if found is not None:
                return found
        if self.last is None or self.last[0] != name:
            self.last = None
            self.last = (name, self.file.read(name))
        return np.ascontiguousarray(source.apply(self.last[1], self.shapes[path]))

    @property
    def foreign(self) -> bool:
        """Whether the file has names of others."""
        return any(path != name for path, name in self.names.items())

    def paths(self) -> list[str]:
        """Ours, those of one packed tensor together."""
        return sorted(self.names, key=lambda path: self.names[path])


@dataclass(frozen=True)
class _Needed:
    """A weight file without the tensors that the spec has no use for."""

    file: WeightFile
    unused: frozenset[str]

    @property
    def path(self) -> Any:
        return self.file.path

    def names(self) -> list[str]:
        return [n for n in self.file.names() if n not in self.unused]

    def shape(self, name: str) -> Shape:
        return self.file.shape(name)


def match(file: WeightFile, foreign: Foreign, shapes: Mapping[str, Shape], sink: Sink) -> Loader:
    """A loader for a weight file that fits: our own names without a mapping, else through the rules.

    Raises Diagnostics (`checkpoint-mismatch`) that lists every missing, unexpected and mis-shaped tensor, then every pair that is
    tied in the spec and differs in the file; `bad-weights` for tensors that are no floats.
    """
    held = set(file.names())
    own = set(shapes) <= held
    found = {p: Source((p,), s) for p, s in shapes.items()} if own else sources(foreign.rules, shapes, sink)
    sink.check()
    said = Foreign() if own else foreign
    present = {p: [n for name in s.names for n in said.spellings(name) if n in held] for p, s in found.items()}
    names = {p: present[p][0] if present[p] else s.names[0] for p, s in found.items()}
    used = {n for some in present.values() for n in some}
    unused = frozenset(n for n in held - set(names.values()) if n in used or said.ignores(n))
    origins = {names[p]: Origin(s.rule.key.text, s.rule.pattern, s.names) for p, s in found.items() if s.rule}
    match_weights({names[p]: s.shape for p, s in found.items()}, _Needed(file, unused), origins=origins)
    _check_tied(file, found, present)
    _check_floats(file, list(dict.fromkeys(names.values())))
    return Loader(file, found, names, shapes)


def _check_tied(file: WeightFile, found: Mapping[str, Source], present: Mapping[str, list[str]]) -> None:
    """Tensors that are one parameter here must be equal in the file, bit for bit."""
    wrong: list[Diagnostic] = []
    for names, source in {tuple(present[p]): s for p, s in found.items() if not (s.rule and s.rule.first)}.items():
        for other in names[1:]:
            if (why := file.differ(names[0], other)) is not None:
                wrong.append(diagnostic(
                    "checkpoint-mismatch", f"`{names[0]}` and `{other}` are tied in the spec, but two different matrices in `{file.path}`",
                    source.rule.key.span if source.rule else None, note=why,
                    help="give the model two parameters and a rule for each: this checkpoint was made without tying them"))
    if wrong:
        raise Diagnostics(wrong)


def _check_floats(file: WeightFile, names: list[str]) -> None:
    """Integers are not silently taken for the numbers that they stand for in a quantised file."""
    other = [(name, file.dtype(name)) for name in names if "float" not in file.dtype(name)]
    if other:
        lines = [f"`{name}` is {dtype}" for name, dtype in fold(other)]
        raise Diagnostics([diagnostic("bad-weights", f"`{file.path}` holds {len(other)} of the parameters as other numbers than floats",
                                      note=lines[:8], help="save them as floats; a quantised file has to be dequantised first")])
