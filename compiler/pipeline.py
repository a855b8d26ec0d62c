"""The whole compiler on one page.

text --parse--> Tree --compose, fit, override, check--> Tree --decode--> Spec --elaborate--> typed Graph --hoist, simplify--> typed Graph

Every stage reports all that is wrong with its input before the next one starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .budget import over
from .checkpoint import check_checkpoint
from .expect import Expectation, expectations
from .foreign.fit import Fitted, check_later, check_section
from .foreign.folder import Foreign, opened
from .ir.graph import Graph
from .lang.diagnostic import Diagnostic, Sink
from .lang.spec import Spec
from .library import BLOCKS, find
from .stages.bounds import check_bounds
from .stages.check import check
from .stages.compose import compose, override
from .stages.decode import decode
from .stages.elaborate import elaborate
from .stages.hoist import hoist
from .stages.parse import load, parse, read_source
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
    resolved: Callable[[], str | None] = lambda: None        # the spec as one file
    foreign: tuple[Foreign, Fitted] | None = None            # of a checkpoint made elsewhere

    def lowered(self) -> Graph:
        """The graph that every target is made from."""
        return simplify(hoist(self.graph))


def front(path: str | Path, sizes: Mapping[str, str] | None = None, family: str | Path | None = None, name: str | None = None) -> Compiled:
    """A file, a model of the library, or the folder of a checkpoint of a `family`, to a typed graph. Raises Diagnostics."""
    sink = Sink()
    foreign = opened(path, family)
    source = read_source(foreign.family if foreign else find(path))
    whole = compose(source, parse(source), load, sink, BLOCKS)
    sink.check()
    fitted = foreign.fit(check(whole.tree, sink), name, sink) if foreign else Fitted(whole.tree)
    tree = override(fitted.tree, dict(sizes or {}), sink)
    sink.check()
    check(tree, sink)
    for used in whole.files:
        check(used.tree, sink, "library")
    sink.check()
    check_section(tree, sink)
    spec = decode(source, tree, whole.files, sink, whole.uses)
    sink.check()
    assert spec is not None
    graph = elaborate(spec, sink)
    sink.check()
    assert graph is not None
    check_bounds(graph, sink)
    check_checkpoint(graph, spec.checkpoint, sink)
    check_later(fitted.later, graph.sizes, sink)
    limits, contract = over(graph, spec.budget, sink), expectations(graph, spec.expect, sink)
    sink.check()
    resolved = partial(resolve, tree, [used.tree for used in whole.files])
    return Compiled(spec, graph, tuple(sink.warnings), tuple(limits), tuple(contract), resolved, (foreign, fitted) if foreign else None)

