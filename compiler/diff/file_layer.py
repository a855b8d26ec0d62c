"""An actual weight file against both specs: which of its tensors go into HEAD as they are, and whether it is one of BASE.

Names, shapes and dtypes are read from its header; no tensor is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.rules import Foreign, Source, read_foreign, sources
from ..checkpoints.weight_names import fold, is_buffer
from ..compiled import Compiled
from ..ir.parameters import state_shapes
from ..lang.diagnostic import Sink
from .lock import Lock

if TYPE_CHECKING:
    from ..checkpoints.weight_file import WeightFile

Shapes = Mapping[str, tuple[int, ...]]
AS_IS, SHAPED, TYPED, MISSING, UNEXPECTED = STATUSES = ("as-is", "reshaped", "other-dtype", "missing", "unexpected")
FLOATS = ("float64", "float32", "float16", "bfloat16")


def file_layer(path: Path, base: Compiled | Lock, head: Compiled | Lock, silent: bool) -> dict[str, Any]:
    """The layer as JSON has it; `silent` is whether tensors that fit mean something else in the head. Raises Diagnostics (`bad-weights`)
    for a file that cannot be read."""
    from ..checkpoints.weights import open_weights
    with open_weights(path) as file:
        dtypes = Counter(file.dtype(n) for n in file.names())
        return {"file": str(path), "tensors": sum(dtypes.values()), "dtypes": dict(dtypes.most_common()),
                "base": _side(file, base), "head": _side(file, head), "silent": silent}


def _side(file: WeightFile, spec: Compiled | Lock) -> dict[str, Any]:
    if isinstance(spec, Lock):
        found = list(_rows(file, Foreign(), {p: shape for w, shape in spec.tensors.items() for p in w.paths()}))
    else:
        sink = Sink()
        foreign = read_foreign(spec.spec.checkpoint, spec.graph.sizes, sink)
        sink.check()
        found = list(_rows(file, foreign, state_shapes(spec.graph)))
    counts = Counter(status for status, _, _ in found)
    rows = []
    for status in STATUSES:
        some = [(name, text) for s, name, text in found if s == status]
        rows += [{"status": status, "names": name, "text": text} for name, text in fold(some)]
    return {"fits": counts[AS_IS] == len(found), "counts": {s: counts[s] for s in STATUSES}, "rows": rows}


def _rows(file: WeightFile, foreign: Foreign, shapes: Shapes) -> Iterator[tuple[str, str, str]]:
    """(status, name, in words) of every parameter, and of every other tensor of the file; a parameter that the file calls otherwise
    has that name behind its own."""
    held = set(file.names())
    own = {p: Source((p,), s) for p, s in shapes.items()}
    sink = Sink()
    theirs = sources(foreign.rules, shapes, sink)
    sink.check()
    there = lambda found: sum(any(n in held for name in s.names for n in foreign.spellings(name)) for s in found.values())  # noqa: E731
    found, said = (own, Foreign()) if sum(p in held for p in shapes) >= there(theirs) else (theirs, foreign)
    used: set[str] = set()
    for path, source in found.items():
        names = [n for name in source.names for n in said.spellings(name) if n in held]
        used.update(names)
        if not names:
            yield MISSING, path, str(list(shapes[path])) + ("" if source.names[0] == path else f", in the file `{source.names[0]}`")
        elif file.shape(names[0]) != source.shape:
            yield SHAPED, path, f"should be {list(source.shape)}, is {list(file.shape(names[0]))}"
        elif file.dtype(names[0]) not in FLOATS:
            yield TYPED, path, file.dtype(names[0])
        else:
            yield AS_IS, path, ""
    for name in file.names():
        if name not in used and not said.ignores(name) and not is_buffer(name, file.shape(name)):
            yield UNEXPECTED, name, str(list(file.shape(name)))


def problems(layers: Mapping[str, Any]) -> Iterable[str]:
    """Sides that the file does not fit, of those that were asked for."""
    layer = layers.get("checkpoint")
    return [] if layer is None else [side for side in ("base", "head") if not layer[side]["fits"]]
