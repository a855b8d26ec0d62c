"""The whole compiler on one page.

text --parse--> Tree --compose, fit, override, check--> Tree --decode--> Spec --elaborate--> typed Graph --hoist, simplify--> typed Graph

Every stage reports all that is wrong with its input before the next one starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .checkpoints.rules import check_checkpoint
from .compiled import Compiled
from .costs.budget import over
from .expect import expectations
from .foreign.fit import Fitted, check_later, check_section
from .foreign.folder import opened
from .ir.graph import Graph
from .lang.diagnostic import Sink
from .lang.source import Source
from .lang.spec import Spec
from .lang.tree import Mapping as Tree
from .library import BLOCKS, find, ships
from .stages.bounds import check_bounds
from .stages.check import check
from .stages.compose import Load, Used, compose, override
from .stages.decode import decode
from .stages.elaborate import elaborate
from .stages.parse import load


def front(path: str | Path, sizes: Mapping[str, str] | None = None, family: str | Path | None = None, name: str | None = None,
          opened_by: Load | None = None) -> Compiled:
    """A file, a model of the library, or the folder of a checkpoint of a `family`, to a typed graph. Raises Diagnostics."""
    sink = Sink()
    foreign = opened(path, family) if opened_by is None else None
    source, read = (opened_by or load)(foreign.family if foreign else find(path) if opened_by is None else Path(path))
    whole = compose(source, read, opened_by or load, sink, BLOCKS)
    sink.check()
    fitted = foreign.fit(check(whole.tree, sink), name, sink) if foreign else Fitted(whole.tree)
    tree = override(fitted.tree, dict(sizes or {}), sink)
    sink.check()
    check(tree, sink)
    for used in (u for u in whole.files if not ships(u.source.name)):         # ours are checked by tests
        check(used.tree, sink, "library")
    sink.check()
    check_section(tree, sink)
    spec, graph = typed(source, tree, sink, whole.files, whole.uses)
    check_checkpoint(graph, spec.checkpoint, sink)
    check_later(fitted.later, graph.sizes, sink)
    limits, contract = over(graph, spec.budget, sink), expectations(graph, spec.expect, sink)
    sink.check()
    return Compiled(spec, graph, tuple(sink.warnings), tuple(limits), tuple(contract), whole.files, (foreign, fitted) if foreign else None)


def typed(source: Source, tree: Tree, sink: Sink, files: Iterable[Used] = (), uses: Iterable[Source] = ()) -> tuple[Spec, Graph]:
    """A composed and checked tree to its typed graph; what is wrong raises Diagnostics, and the rest goes to `sink`."""
    spec = decode(source, tree, files, sink, uses)
    sink.check()
    graph = elaborate(spec, sink) if spec is not None else None
    sink.check()
    assert spec is not None and graph is not None
    check_bounds(graph, sink)
    return spec, graph
