"""Portable files: opset 18 with standard operators only, whole to ONNX's own checker, and run by its reference evaluator."""

import nnspec
import numpy as np
import onnx
import pytest
import zoo
from onnx.reference import ReferenceEvaluator

SIZES = {"B": 3, "S": 5, "T": 4}
ORDINARY = ["bert-base", "gpt2", "llama-3-8b", "mistral-7b", "transformer-base"]
RECURRENT = ["additive-seq2seq", "g2p", "luong"]         # onnx.reference ignores the lengths of GRU and LSTM: here all are whole


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where, made = tmp_path_factory.mktemp("portable"), {}

    def folder(name):
        if name not in made:
            made[name] = where / name.replace("/", "-")
            zoo.model(name).export(made[name], weights=zoo.stirred(name), target="portable", certify="none")
        return made[name]
    return folder


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


@pytest.mark.parametrize("name", zoo.SPECS)
def test_files_are_whole_and_of_standard_operators(folders, name):
    path = folders(name) / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path, load_external_data=False)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)] and model.ir_version == 8 and not model.functions
    for node in (n for g in graphs(model.graph) for n in g.node):
        assert node.domain == "" and onnx.defs.has(node.op_type, 18, ""), f"{node.name}: {node.domain}:{node.op_type}"


@pytest.mark.parametrize("name", ORDINARY + RECURRENT)
def test_the_reference_evaluator_agrees_with_onnx_runtime(folders, name):
    artifact = nnspec.runtime.open(folders(name))
    arrays = zoo.draw(name, {d: SIZES.get(d, 3) for d in artifact.manifest.free_names})
    if name in RECURRENT:
        arrays |= {x.name: np.full_like(arrays[x.name], SIZES[x.length_of]) for x in artifact.inputs if x.length_of}
    got = ReferenceEvaluator(onnx.load(folders(name) / "model.onnx")).run(None, artifact.feeds(arrays))
    zoo.close(dict(zip(artifact(**arrays), got, strict=True)), artifact(**arrays), 1e-4, 1e-5)
