"""Projections of one value side by side, query, key and value or gate and up, as one matrix product and a Split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from .builder import Builder, Recipe, Store, Val, reads


@dataclass(frozen=True)
class Projection:
    """A product with a weight, and its bias where it has one."""

    product: NodeProto
    weight: Recipe
    add: NodeProto | None
    bias: Recipe | None

    @property
    def out(self) -> str:
        return (self.add or self.product).output[0]


def pack(nodes: list[NodeProto], store: Store, held: Iterable[str]) -> list[NodeProto]:
    """Join the projections of a value that stand under one path.

    A weight that anything else reads, as a tied one is, or whose neighbours differ in having a bias stays alone.
    """
    place = {id(node): k for k, node in enumerate(nodes)}
    kept: list[list[NodeProto]] = [[node] for node in nodes]
    groups: dict[tuple[str, str, bool], list[Projection]] = {}
    for p in projections(nodes, store, set(held)):
        groups.setdefault((p.product.input[0], _above(p.product), p.bias is None), []).append(p)
    for group in groups.values():
        if len(group) > 1:
            for p in group:
                for node in filter(None, (p.product, p.add)):
                    kept[place[id(node)]] = []
            kept[place[id(group[0].product)]] = _packed(group, store)
    return [node for some in kept for node in some]


def projections(nodes: list[NodeProto], store: Store, held: set[str]) -> Iterable[Projection]:
    """The products with a weight that nothing else reads, and with its bias."""
    uses = Counter(name for node in nodes for name in reads(node))
    reader = {name: node for node in nodes for name in reads(node)}
    owners = Counter(path for name in held for path in store.recipes[name].parameters)

    def own(name: str, kind: str, rank: int) -> Recipe | None:
        recipe = store.recipes[name] if name in held else None
        fits = recipe is not None and recipe.kind == kind and len(recipe.shape) == rank and uses[name] == 1
        return recipe if fits and recipe is not None and owners[recipe.parameters[0]] == 1 else None

    for node in nodes:
        weight = own(node.input[1], "transpose", 2) if node.op_type == "MatMul" and node.domain == "" else None
        if weight is None:
            continue
        out = node.output[0]
        add = reader.get(out) if uses[out] == 1 else None
        if add is None or add.op_type != "Add" or len(add.input) != 2:
            yield Projection(node, weight, None, None)
            continue
        bias = own(add.input[1] if add.input[0] == out else add.input[0], "plain", 1)
        bias = bias if bias is not None and bias.shape == weight.shape[1:] else None      # other vectors broadcast
        yield Projection(node, weight, add if bias else None, bias)


def _packed(group: list[Projection], store: Store) -> list[NodeProto]:
    """One product, and a Split that gives what the products of the group gave."""
    nodes, out = packed(group, store)
    g = _builder(group, store)
    g.op("Split", out, g.const(np.array([p.weight.shape[1] for p in group], np.int64)), outputs=len(group), axis=-1)
    g.nodes[-1].output[:] = [p.out for p in group]
    return [*nodes, *g.nodes]


def packed(group: list[Projection], store: Store) -> tuple[list[NodeProto], Val]:
    """One product, and what it gives: the results of the group side by side in the last axis."""
    g, first = _builder(group, store), group[0]
    total = sum(p.weight.shape[1] for p in group)
    weight = _recipe(g, "packed", [p.weight for p in group], (first.weight.shape[0], total))
    out = g.op("MatMul", Val(first.product.input[0]), weight)
    if biases := [p.bias for p in group if p.bias is not None]:
        out = g.op("Add", out, _recipe(g, "joined", biases, (total,)))
    return g.nodes, out


def _builder(group: list[Projection], store: Store) -> Builder:
    g, first = Builder(store), group[0].product
    g.path = _above(first) or _path(first)
    g.line = next((p.value for p in first.metadata_props if p.key == "nnspec.line"), "")
    return g


def _recipe(g: Builder, kind: str, parts: list[Recipe], shape: tuple[int, ...]) -> Val:
    paths = tuple(path for r in parts for path in r.parameters)
    return g.recipe(f"{paths[0]}:{kind}", kind, paths, shape)


def _path(node: NodeProto) -> str:
    return next((p.value for p in node.metadata_props if p.key == "nnspec.path"), "")


def _above(node: NodeProto) -> str:
    """The path that a node's own stands under."""
    return _path(node).rpartition(".")[0]
