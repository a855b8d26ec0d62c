"""What the pipeline gives: a spec that is right, its graph, and what was said on the way."""

from __future__ import annotations

from dataclasses import dataclass

from .expect import Expectation
from .foreign.fit import Fitted
from .foreign.folder import Foreign
from .ir.graph import Graph
from .lang.diagnostic import Diagnostic
from .lang.spec import Spec
from .stages.compose import Used
from .stages.hoist import hoist
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
