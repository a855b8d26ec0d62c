"""Every spec that streams: chunks of its step form give what the whole graph gives, in PyTorch and on every target."""

import sys
from functools import cache

import numpy as np
import onnx
import pytest
import stepping
import zoo
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.decoder import decoder

LENGTH = 13
STILL = {"bert-base", "minilm", "roberta-base", "distilbert-base", "vit-base-patch16-224", "hard/albert", "hard/memory-network",
         "hard/transformer-xl", "hard/vit"}                           # nothing in them is causal
STREAMED = [name for name in zoo.SPECS if name not in STILL]
WINDOWS = ["mistral-7b", "gemma2-2b", "hard/gemma2"]
HALF = 0.03                                                            # of the largest value, for float16 against float32


@cache
def form(name):
    return zoo.model(name).step_form()


@cache
def stepper(name):
    return stepping.TorchStepper(form(name), zoo.stirred(name))


@cache
def cases(name):
    """Random inputs of one row and of three, and what the whole module gives for them. Rows are packed: lengths are whole."""
    found, names, along = [], zoo.free(name), form(name).along
    for rows in (1, 3):
        sizes = {k: LENGTH + 2 * i for i, k in enumerate(names)} | {names[0]: rows, along: LENGTH}
        arrays = zoo.draw(name, sizes, seed=rows, short=False)
        for k in form(name).dropped:
            arrays[k] = np.ones_like(arrays[k]) if arrays[k].dtype == bool else np.full_like(arrays[k], LENGTH)
        found.append((arrays, zoo.run(zoo.stirred(name), arrays, zoo.outputs(name))))
    return found


def opened(name, folder, **how):
    zoo.model(name).export(folder, weights=zoo.stirred(name), form="step", certify="none", **how)
    return decoder(folder, threads=1)


@pytest.mark.parametrize("name", sorted(STILL & set(zoo.SPECS)))
def test_models_without_a_causal_axis_are_refused(name):
    with pytest.raises(Diagnostics, match="cannot-stream: the model has no axis that is causal"):
        zoo.model(name).step_form()


@pytest.mark.parametrize("name", STREAMED)
def test_chunks_agree_in_pytorch(name):
    """Unused slots of caches hold junk, chunks end in other tokens, and ragged chunks have rows without any."""
    for arrays, want in cases(name):
        for way in stepping.WAYS:
            zoo.close(stepper(name)(arrays, LENGTH, way), want, 1e-4, 1e-6, way)


@pytest.mark.parametrize("name", STREAMED)
def test_chunks_agree_in_onnx_runtime(tmp_path, name):
    step = opened(name, tmp_path / "out")
    for arrays, want in cases(name):
        for way in stepping.WAYS:
            zoo.close(stepping.run_decoder(step, arrays, LENGTH, way)[0], want, 1e-4, 1e-6, way)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("target", ["ort-cuda", "portable"])
def test_ragged_chunks_agree_for_other_targets(tmp_path, name, target):
    arrays, want = cases(name)[1]
    zoo.close(stepping.run_decoder(opened(name, tmp_path / "out", target=target), arrays, LENGTH, stepping.WAYS[2])[0], want, 1e-4, 1e-6)


@pytest.mark.parametrize("name", STREAMED)
def test_half_precision_is_near(tmp_path, name):
    arrays, want = cases(name)[1]
    got, _ = stepping.run_decoder(opened(name, tmp_path / "out", dtype="float16"), arrays, LENGTH, stepping.WAYS[2])
    zoo.close({k: v.astype(want[k].dtype) for k, v in got.items()}, want, HALF, 1e-3)


@pytest.mark.parametrize("name", WINDOWS)
def test_rings_stay_bounded_and_wrap(tmp_path, name, monkeypatch):
    """Rings of 16 slots for windows of 4 keys, and 61 positions: they wrap three times."""
    monkeypatch.setattr(sys.modules["nnspec.runtime.decoder"], "PIECE", 8)
    long, step = 61, opened(name, tmp_path / "out")
    arrays = zoo.draw(name, {k: long for k in zoo.free(name)} | {zoo.free(name)[0]: 3}, short=False)
    arrays = {k: v for k, v in arrays.items() if k not in form(name).dropped}
    want = zoo.run(zoo.stirred(name), arrays, zoo.outputs(name))
    for way in stepping.WAYS:
        got, running = stepping.run_decoder(step, arrays, long, way)
        zoo.close(got, want, 1e-4, 1e-6, way)
        rings = [s for s in step.stream.states if s.kind == "ring"]
        assert rings and all(running._slots(s) == 16 for s in rings)


HEAVY = {"MatMul", "Gemm", "Conv", "GRU", "LSTM", "RNN", "Attention", "MultiHeadAttention", "GroupQueryAttention", "Einsum", "FusedMatMul",
         "FusedGemm", "QMoE", "MoE", "GatherND", "LayerNormalization", "SkipLayerNormalization"}


def still(graph, moving, tables):
    """Heavy nodes, and look-ups in a table, that none of the `moving` names goes into."""
    moving, found = set(moving), []
    for node in graph.node:
        bodies = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        moves = any(x in moving for x in node.input) or any(x in moving for b in bodies for n in b.node for x in n.input)
        for body in bodies:
            inner = {x.name for x in body.input} if node.op_type in ("Scan", "Loop") else set()
            found += still(body, moving | inner, tables)
        if moves:
            moving |= set(node.output)
        elif node.op_type in HEAVY or (node.op_type == "Gather" and node.input[0] in tables):
            found.append(f"{node.op_type} {node.name}")
    return found


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("name", STREAMED)
def test_nothing_heavy_is_computed_again_in_every_step(tmp_path, name, target):
    """What depends on the prefix alone, and not on the chunk or the state, is in the prefix model."""
    folder = tmp_path / "out"
    manifest = zoo.model(name).export(folder, no_weights=True, form="step", certify="none", target=target)
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    stream = manifest.stream
    moving = {x.name for x in graph.input} - set(stream.fixed)
    tables = {t.name for t in graph.initializer if len(t.dims) == 2}
    assert still(graph, moving, tables) == []
    assert still(graph, set(), tables) != []
