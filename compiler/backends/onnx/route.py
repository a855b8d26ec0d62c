"""Mixtures of experts: the form of a routed branch, its experts, and its routing as ONNX Runtime's kernel takes it.

The kernel is given logits, of which it takes a softmax, keeps the k largest and scales them to a sum of 1. Where routing weights
are such numbers, it gets the logits they were made from; else the logarithm of each expert's weight, and its result is multiplied
by the sum of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ir.graph import Branch, Node
from ...ops.base import Site
from ...ops.experts import Leaf
from ...ops.mixture import MIXTURE
from .builder import Builder, Val
from .entries import Entries, Place, element, present
from .signs import maker, may_be_negative, softmax_logits

if TYPE_CHECKING:
    from .walk import Walker

ROWS, BATCH = 2, 3      # axes of [rows, d], which experts see, and [batch, rows, d], which the kernel takes too
NEVER = -1e4            # the logit of an expert that a row is not sent to: its softmax is 0, and float16 has it
SMALLEST = 1e-37        # a share of the largest weight, whose logarithm float32 has


@dataclass(frozen=True)
class Router:
    """Weights and indices [.., k] of the experts that each row is sent to, with so many axes."""

    g: Builder
    experts: int
    chosen: int | None
    weights: Val
    indices: Val
    rank: int

    def _rows(self, value: Val, width: int) -> Val:
        """[.., width] -> [n, width]"""
        return value if self.rank == ROWS else self.g.op("Reshape", value, self.g.ints(-1, width))

    def table(self) -> Val:
        """[n, experts]: the weight of each expert in each row, 0 where the row is not sent to it."""
        return self._rows(self._table(), self.experts)

    def _table(self) -> Val:
        """[.., experts]"""
        g = self.g
        wide = g.op("Unsqueeze", self.indices, g.ints(-1))
        chosen = g.op("Equal", wide, g.const(list(range(self.experts)), "int64"))
        each = g.op("Where", chosen, g.op("Unsqueeze", self.weights, g.ints(-1)), g.number(0.0))
        return g.op("ReduceSum", each, g.ints(-2), keepdims=0)

    def logits(self) -> tuple[Val, int, Val | None]:
        """[n, experts] for the kernel, whether it scales the chosen to a sum of 1, and what its result is multiplied by.

        That is [n, 1], or [batch, rows, 1] for an input of three axes.

        Weights are taken relative to the largest of their row, so that half precision has them as well.
        """
        g = self.g
        direct = softmax_logits(g, self.weights, self.indices, self.rank)
        if direct is not None:
            return self._rows(direct[0], self.experts), int(direct[1]), None
        wide = g.to_f32(self._table())
        sent = g.op("Greater", wide, g.number(0.0, "float32"))
        share = g.op("Div", wide, g.op("ReduceMax", wide, g.ints(-1), keepdims=1))
        share = g.op("Max", g.op("Where", sent, share, g.number(1.0, "float32")), g.number(SMALLEST, "float32"))
        logits = g.op("Where", sent, g.op("Log", share), g.number(NEVER, "float32"))
        total = g.from_f32(g.op("ReduceSum", wide, g.ints(-1), keepdims=1))
        return self._rows(g.from_f32(logits), self.experts), 1, total if self.rank == BATCH else self._rows(total, 1)


@dataclass(frozen=True)
class Experts:
    """The copies of a routed branch at their places."""

    at: Place
    op: Branch
    given: Entries
    walker: Walker

    def run(self, i: int, rows: Val) -> Val:
        """Expert i on rows [m, d]."""
        g, path, line = self.at.g, self.at.path, self.at.g.line
        region = self.op.bodies[self.op.schedule[i]]
        place = self.at.copy(i, self.op.share[i])
        own = {name: element(place, self.given[name], at[i]) for name, at in self.op.each.items()}
        name = region.outputs[0][0]
        made = self.walker.region(place, region, {**self.given, **own, "in": rows}, frozenset({name}))
        result = present(g, made[name])
        g.path, g.line = path, line
        return result

    def weights(self, i: int, leaf: Leaf) -> Val:
        """A parameter of expert i."""
        assert leaf.node is not None
        return self.walker.parameter(self.at.copy(i, self.op.share[i]).inside(leaf.name), leaf.node)


def route(at: Place, node: Node, types: Mapping[str, Any], given: Entries, walker: Walker) -> Val:
    """The mixture in the first form that is legal here; `types` are those of the node's inputs."""
    op, g, type = node.op, at.g, node.types[0]
    weights, indices = present(g, given["route.weights"]), present(g, given["route.indices"])
    site = Site(walker.store.target, walker.store.dtype, types, node.types, frozenset(node.outputs))
    rank = len(type.shape)
    router = Router(g, len(op.schedule), types["route.weights"].shape[-1].value, weights, indices, rank)
    missed = []
    for form in MIXTURE.forms():
        reason = form.when(op, site) if site.target in form.targets else f"not for target {site.target}"
        if reason is None and form.fused:
            reason = _sign(g, weights)
        if reason is None:
            break
        missed.append({"form": form.name, "reason": reason})
    walker.sites.append({"path": at.path, "op": MIXTURE.name, "line": node.origin.span.place, "form": form.name, "fused": form.fused,
                         "missed": missed})
    rows, flat = present(g, given["in"]), rank == ROWS or (form.fused and rank == BATCH)
    if not flat:
        body = op.bodies[0]
        rows = g.op("Reshape", rows, g.shape(body.type(body.argument("in")).shape), allowzero=1)
    mixed = form.emit(op, g, rows, router, Experts(at, op, given, walker))
    return mixed if flat else g.op("Reshape", mixed, g.shape(type.shape), allowzero=1)


def _sign(g: Builder, weights: Val) -> str | None:
    """Why the kernel's softmax may be unable to give these weights."""
    name = may_be_negative(g, weights.name)
    if name is None:
        return None
    node = maker(g, name)
    what = f"`{node.name.rpartition('/')[0]}` ({node.op_type})" if node is not None else f"`{name}`"
    return f"the routing weights may be negative, by {what}, and those of the kernel are a softmax's"
