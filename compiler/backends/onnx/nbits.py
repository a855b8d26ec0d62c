"""Weights of matrix products as integers of 4 or 8 bits, by ONNX Runtime's quantiser, for its kernel MatMulNBits."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from ...ir.graph import fresh
from .builder import Recipe
from .emit import Emitted

DOMAIN = "com.microsoft"
KINDS = ("transpose", "packed")         # recipes of [i, o] matrices
PARTS = ("numbers", "scales", "zeros")  # of a quantised matrix, in the order in which they are asked for
_LAST: dict[Any, dict[str, np.ndarray]] = {}     # the matrix whose parts are being asked for


def narrowed(emitted: Emitted, bits: int, block: int, keep: Callable[[Recipe], bool]) -> tuple[Emitted, list[Recipe], list[str]]:
    """The model with integer weights, the weights that became so, and those that stay because something else reads them too.

    Each output of a product has a scale, in the model's dtype, and a zero point for every `block` of its inputs; weights for which
    `keep` holds stay as they are. Nodes keep their names and metadata.
    """
    model = type(emitted.model)()
    model.CopyFrom(emitted.model)
    nodes = [*_everywhere(model.graph)]
    fit = [r for r in emitted.weights if r.kind in KINDS and len(r.shape) == 2]
    uses = Counter(name for node in nodes for name in node.input)
    products: dict[str, list[NodeProto]] = {}
    for node in nodes:
        if node.op_type == "MatMul" and not node.domain:
            products.setdefault(node.input[1], []).append(node)
    chosen = [r for r in fit if len(products.get(r.name, ())) == uses[r.name] > 0]
    plain = {r.name: r for r in emitted.weights if r.kind == "plain"}
    turned = [plain[n.input[0]] for n in nodes if n.op_type == "Transpose" and n.input[0] in plain and n.output[0] in products]
    others = [r for r in (*fit, *turned) if r not in chosen and r.name in uses]
    chosen = [r for r in chosen if not keep(r)]
    made, taken = {}, {*uses, *(o for n in nodes for o in n.output)}
    for recipe in chosen:
        made[recipe.name] = parts = _recipes(recipe, bits, block, taken)
        for node in products[recipe.name]:
            _replace(node, parts, recipe, bits, block)
    if chosen and DOMAIN not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    weights = tuple(x for r in emitted.weights for x in made.get(r.name, [r]))
    return replace(emitted, model=model, weights=weights), chosen, list(dict.fromkeys(r.parameters[0] for r in others))


def _everywhere(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _everywhere(attribute.g)


def _recipes(recipe: Recipe, bits: int, block: int, taken: set[str]) -> list[Recipe]:
    """Numbers, scales and zero points of a weight [i, o]."""
    size, outputs = recipe.shape
    blocks = -(-size // block)
    shapes = ((outputs, blocks, block * bits // 8), (outputs, blocks), (outputs, -(-blocks * bits // 8)))
    made = []
    for part, shape in zip(PARTS, shapes, strict=True):
        name = fresh(f"{recipe.name}:{part}", taken)
        taken.add(name)
        settings = (("bits", bits), ("block", block), ("part", part))
        made.append(Recipe(name, "nbits", recipe.parameters, shape, settings, "" if part == "scales" else "uint8"))
    return made


def _replace(node: NodeProto, parts: list[Recipe], recipe: Recipe, bits: int, block: int) -> None:
    node.op_type, node.domain = "MatMulNBits", DOMAIN
    node.input[:] = [node.input[0], *(p.name for p in parts)]
    size, outputs = recipe.shape
    for key, value in (("K", size), ("N", outputs), ("bits", bits), ("block_size", block)):
        node.attribute.append(helper.make_attribute(key, value))


def integers(weights: list[Any], settings: dict[str, Any]) -> np.ndarray:
    """One part of the quantised matrix of [o, i] weights, one below the other."""
    matrix = np.ascontiguousarray(np.concatenate([np.asarray(w, np.float32) for w in weights]).T)                 # [i, o]
    key = (hashlib.blake2b(matrix.data).digest(), matrix.shape, settings["bits"], settings["block"])
    found = _LAST.get(key) or _quantised(matrix, settings["bits"], settings["block"])
    _LAST.clear()
    if settings["part"] != PARTS[-1]:
        _LAST[key] = found
    return found[settings["part"]]


def _quantised(matrix: np.ndarray, bits: int, block: int) -> dict[str, np.ndarray]:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer
    config = DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=False, bits=bits)
    return dict(zip(PARTS, DefaultWeightOnlyQuantizer(config).qbits_block_quant(matrix), strict=True))
