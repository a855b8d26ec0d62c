"""The whole compiler on one page.

text --parse--> Tree --compose, fit, override, check--> Tree --decode--> Spec --elaborate--> typed Graph --hoist, simplify--> typed Graph

Every stage reports all that is wrong with its input before the next one starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .checkpoints.rules import check_checkpoint
from .costs.budget import over
from .expect import Expectation, expectations
from .foreign.fit import Fitted, check_later, check_section
from .foreign.folder import Foreign, opened
from .ir.graph import Graph
from .lang.diagnostic import Diagnostic, Sink
from .lang.source import Source
from .lang.spec import Spec
from .lang.tree import Mapping as Tree
from .library import BLOCKS, find
from .stages.bounds import check_bounds
from .stages.check import check
from .stages.compose import Load, Used, compose, override
from .stages.decode import decode
from .stages.elaborate import elaborate
from .stages.hoist import hoist
from .stages.parse import load
from .stages.resolve import resolve
from .stages.simplify import simplify


@dataclass(frozen=True, eq=False)
class Compiled:
    """A spec that is right: its graph as written, and what was said on the way."""

    spec: Spec
    graph: Graph
    warnings: tuple[Diagnostic, ...]
    over: tuple[Diagnostic, ...] = ()         # limits of `budget:` that the model exceeds
    contract: tuple[Expectation, ...] = ()    # of `expect:`
    files: tuple[Used, ...] = ()
    foreign: tuple[Foreign, Fitted] | None = None            # of a checkpoint made elsewhere

    def lowered(self) -> Graph:
        """The graph that every target is made from."""
        return simplify(hoist(self.graph))

    def resolved(self) -> str | None:
        """The spec as one file."""
        return resolve(self.spec.tree, [used.tree for used in self.files])


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
    for used in whole.files:
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
