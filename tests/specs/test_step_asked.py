"""Positions that nobody asks for are not computed: `extend`, and any choice of positions, give what `step` gives for all of them."""

import nnspec
import numpy as np
import onnx
import pytest
import stepping
import zoo
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.decoder import decoder
from nnspec.runtime.steps import ASKED, NEW, WANTED
from test_step_form import LENGTH, STREAMED, cases, opened

GPT = {"vocab": 43, "width": 16, "layers": 2, "heads": 2, "positions": 32}


def begin(step, arrays):
    prefix = [x.name for x in step.manifest.prefix.inputs] if step.manifest.prefix else []
    return step.start(next(iter(arrays.values())).shape[0], **{k: arrays[k] for k in prefix if k in arrays})


@pytest.mark.parametrize("name", STREAMED)
def test_any_positions_are_those_of_the_whole_chunk(tmp_path, name):
    step, rng = opened(name, tmp_path / "out"), np.random.default_rng(2)
    arrays = cases(name)[1][0]
    chunk = {k: arrays[k] for k in step.stream.chunk}
    want = begin(step, arrays).step(**chunk)
    last = begin(step, arrays).extend(np.array([LENGTH, 1, 4]), **chunk)
    outputs = [x for x in step.outputs if NEW in x.shape]
    for x in outputs:
        axis = x.shape.index(NEW)
        for row, end in enumerate((LENGTH, 1, 4)):
            one = np.take(np.take(want[x.name], [row], 0), end - 1, axis)[0]
            np.testing.assert_allclose(last[x.name][row], one, rtol=1e-4, atol=1e-6)
    asked = [x for x in step.manifest.outputs if ASKED in x.shape]
    for wanted in (rng.integers(0, LENGTH, (3, 5)), np.full((3, 1), LENGTH - 1)) if asked else ():
        found = begin(step, arrays)._run({k: np.asarray(v) for k, v in chunk.items()}, np.full(3, LENGTH), LENGTH, tuple(outputs), wanted)
        for x in asked:
            axis = x.shape.index(ASKED)
            for row in range(3):
                np.testing.assert_allclose(found[x.name][row], np.take(want[x.name][row], wanted[row], axis - 1), rtol=1e-4, atol=1e-6)


def test_work_behind_the_last_layer_is_done_for_the_positions_asked_for(tmp_path):
    """The scores, the last feed-forward and the projection before it; all that makes keys and values is done for every position."""
    nnspec.load("gpt2", sizes=GPT).export(tmp_path / "out", init=1, form="step", certify="none")
    nodes, behind, late = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.node, {WANTED}, set()
    for node in nodes:
        if behind & set(node.input):
            behind |= set(node.output)
            late |= {p.value for p in node.metadata_props if p.key == "nnspec.path" and node.op_type == "MatMul"}
    assert late == {"layers.1.attention.output", "layers.1.ffn.up", "layers.1.ffn.down", "logits"}


SPEC = """
nnspec: 1
inputs: {x: "float[B, T, 4]", y: "float[B, M, 4]"}
graph:
  heads: {op: rearrange, in: x, as: "b t w -> b 1 t w"}
  seen: {op: attention, query: heads, key: heads, value: heads, causal: true}
  told: {op: linear, in: seen, width: 3}
  memory: {op: mean, in: y, axis: 1}
outputs: {seen: told, memory: memory}
"""


@pytest.mark.parametrize("name", ["N", "C", "K", "R"])
def test_dimensions_that_are_called_as_those_of_the_step_form(tmp_path, name):
    """Of the stream itself any name will do, others would be taken for one another."""
    (tmp_path / "other.yaml").write_text(SPEC.replace("B, M", f"B, {name}"))
    with pytest.raises(Diagnostics) as refused:
        nnspec.load(tmp_path / "other.yaml").step_form()
    assert refused.value.items[0].notes == (f"`{name}` is what the step form calls a dimension of its own: rename it",)
    (tmp_path / "own.yaml").write_text(SPEC.replace("B, T", f"B, {name}"))
    model = nnspec.load(tmp_path / "own.yaml")
    rng, module = np.random.default_rng(0), model.module(seed=0).eval()
    arrays = {"x": rng.normal(size=(3, LENGTH, 4)).astype(np.float32), "y": rng.normal(size=(3, 5, 4)).astype(np.float32)}
    model.export(tmp_path / "out", weights=module, form="step", certify="none")
    found, _ = stepping.run_decoder(decoder(tmp_path / "out"), arrays, LENGTH, "ragged chunks")
    zoo.close(found, zoo.run(module, arrays, ["seen", "memory"]), 1e-4, 1e-6)
