"""What must be formed in float32 in half-precision files, read from the types of their graphs: every spec, for CUDA.

Statistics of norms, softmax (attention's and a router's), tables of positions and running sums. Fused kernels take half precision
and form these in float32 by themselves; `KERNELS` says where that is known from.
"""

import nnspec
import onnx
import pytest
import zoo
from nnspec.backends.onnx import emit
from nnspec.backends.onnx.builder import Builder
from onnx import TensorProto

HALF = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
WIDE = {"Softmax", "LogSoftmax", "Sin", "Cos", "CumSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp",
        "InstanceNormalization", "GroupNormalization", "LpNormalization", "MeanVarianceNormalization"}
KERNELS = {
    # `stash_type` 1, of the operators' definition: the first stage, mean and variance, is in float32
    "LayerNormalization": "stash_type", "RMSNormalization": "stash_type",
    # since microsoft/onnxruntime#28682 (2026); ONNX Runtime 1.24 sums in half precision, microsoft/onnxruntime#29034
    "SkipLayerNormalization": "sums in float32", "SkipSimplifiedLayerNormalization": "sums in float32",
    # running maximum and sum of a row in float32 registers: Dao 2023, arXiv:2307.08691, and CUTLASS's memory-efficient kernel
    "Attention": "softmax in float32", "MultiHeadAttention": "softmax in float32", "GroupQueryAttention": "softmax in float32",
}
BOOL = {"And", "Or", "Not", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf"}
WHOLE = {"Shape", "Size", "ArgMax", "ArgMin", "NonZero"}


def typed(graph, known):
    """(node, element types of its inputs) of a graph and the graphs inside it; `known` are types of outer values."""
    known = dict(known)
    known |= {x.name: x.type.tensor_type.elem_type for x in graph.input}
    known |= {x.name: x.data_type for x in graph.initializer}
    for node in graph.node:
        given = [known[n] if n else None for n in node.input]
        settings = {a.name: a for a in node.attribute}
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from typed(a.g, known)
        made = results(node, given, settings)
        known |= dict(zip(node.output, made, strict=False))
        yield node, given
    for x in graph.output:
        assert known[x.name] == x.type.tensor_type.elem_type, f"`{x.name}` is declared otherwise"


def results(node, given, settings):
    """The element types of a node's outputs."""
    if node.op_type == "Cast":
        return [settings["to"].i]
    if node.op_type in BOOL | WHOLE:
        return [TensorProto.BOOL if node.op_type in BOOL else TensorProto.INT64]
    if node.op_type == "Scan":
        return [x.type.tensor_type.elem_type for x in settings["body"].g.output]
    if node.op_type == "TopK":
        return [given[0], TensorProto.INT64]
    if node.op_type in ("ConstantOfShape", "Constant"):
        return [settings["value"].t.data_type]
    return [given[{"Where": 1, "OneHot": 2}.get(node.op_type, 0)]] * len(node.output)


def seen(model, dtype, target="ort-cuda"):
    """Op types that are formed in float32, and what is wrong: nodes of `WIDE` that read half precision, norms that do not say float32."""
    found, wrong = set(), []
    made = emit(model.lowered, target, dtype)
    for node, given in typed(made.model.graph, {recipe.name: HALF[dtype] for recipe in made.weights}):
        if node.op_type in WIDE and TensorProto.FLOAT in given:
            found.add(node.op_type)
        if node.op_type in WIDE and HALF[dtype] in given:
            wrong.append(f"{node.op_type} `{node.name}` reads {dtype}")
        if KERNELS.get(node.op_type) == "stash_type":
            found.add(node.op_type)
            wrong += [f"`{node.name}` has another stash_type" for a in node.attribute if a.name == "stash_type" and a.i != 1]
        if "Normalization" in node.op_type and node.op_type not in WIDE and node.op_type not in KERNELS:
            wrong.append(f"nobody knows how {node.op_type} `{node.name}` sums")
    return found, wrong


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", zoo.SPECS)
def test_nothing_delicate_is_formed_in_half_precision(name, dtype):
    assert seen(zoo.model(name), dtype)[1] == []


COMPOSITIONS = sorted((zoo.HARD.parent / "compositions").glob("*.yaml"))


@pytest.mark.parametrize("path", COMPOSITIONS, ids=lambda path: path.stem)
def test_nor_in_compositions(path):
    assert seen(nnspec.load(path), "float16")[1] == []


def test_the_walk_meets_every_kind_and_finds_what_is_not_widened(monkeypatch):
    names = ["hard/moe", "hard/t5", "transformer-base", "hard/gemma2", "additive-seq2seq", "hard/vit"]
    met = set().union(*(seen(zoo.model(n), "float16")[0] for n in names))
    assert met >= {"Softmax", "Sin", "Cos", "LayerNormalization", "RMSNormalization"}
    monkeypatch.setattr(Builder, "to_f32", lambda self, x: x)
    monkeypatch.setattr(Builder, "from_f32", lambda self, x: x)
    for name in ("additive-seq2seq", "hard/moe"):
        assert any("Softmax" in text for text in seen(zoo.model(name), "float16")[1])
