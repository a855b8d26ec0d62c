"""GroupQueryAttention that writes into caches: which sites take it, what it does itself, and that chunks give what the graph gives."""

from collections import Counter

import nnspec
import numpy as np
import onnx
import pytest
import stepping
import zoo
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate

SMALL = {"vocab": 47, "layers": 2, "heads": 4, "hidden": 44}
LLAMA = SMALL | {"width": 64, "kv_heads": 2}
# model -> sizes, and how often a layer takes its heads from one product and turns them itself
MODELS = {
    "llama-3-8b": (LLAMA, 1, 1), "qwen2-0.5b": (LLAMA, 1, 1), "qwen3-0.6b": (LLAMA | {"head_width": 32}, 0, 1),
    "phi-2": (SMALL | {"width": 128, "fraction": 0.5}, 1, 1),             # half of a head turns
    "pythia-160m": (SMALL | {"width": 128, "fraction": 0.5}, 1, 1),
    "gpt2": ({"vocab": 43, "width": 32, "layers": 2, "heads": 4, "positions": 96}, 1, 0),
    "gemma-2b": (LLAMA | {"kv_heads": 1, "head_width": 16}, 1, 1),        # one key head for all queries
    "phi-2 in heads too narrow": (SMALL | {"width": 96, "fraction": 0.5}, 0, 0),     # 6 pairs, and the kernel takes multiples of 8
}
LENGTH = 29


@pytest.fixture(scope="module", params=MODELS)
def made(request, tmp_path_factory):
    """The name, the whole module and the step artifact of a model."""
    sizes, *_ = MODELS[request.param]
    model, folder = nnspec.load(request.param.split()[0], sizes=sizes), tmp_path_factory.mktemp("step")
    module = model.module(seed=3).eval()
    model.export(folder, weights=module, form="step", certify="none")
    return request.param, module, folder


def test_the_kernel_takes_what_it_can(made):
    name, _, folder = made
    sizes, packed, turned = MODELS[name]
    opened = decoder(folder, threads=1)
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    count = Counter(n.op_type for n in graph.node)
    grouped = [n for n in graph.node if n.op_type == "GroupQueryAttention"]
    assert len(grouped) == sizes["layers"] and not count["TensorScatter"] and opened.stream.by_row
    assert [not n.input[1] for n in grouped] == [bool(packed)] * len(grouped)
    assert count["RotaryEmbedding"] + count["Cos"] == 0 or not turned
    assert len(opened.stream.tables) == 2 * turned
    assert {s["form"] for s in opened.manifest.sites if s["op"] == "attention"} == {"GroupQueryAttention on the cache"}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("way", stepping.WAYS)
def test_chunks_agree_with_the_whole_module(made, rows, way):
    _, module, folder = made
    ids = np.random.default_rng(rows).integers(0, 43, (rows, LENGTH))
    want = zoo.run(module, {"tokens": ids}, ["logits"])
    found, _ = stepping.run_decoder(decoder(folder, threads=1), {"tokens": ids}, LENGTH, way)
    zoo.close(found, want, 1e-4, 1e-5, way)


def test_rows_with_a_past_are_those_of_each_alone(made):
    """A chunk of several rows behind several pasts, in the order that `reorder` made, and after going back."""
    _, _, folder = made
    opened = decoder(folder, threads=1)
    name, rng = opened.stream.chunk[0], np.random.default_rng(5)
    first, more = rng.integers(0, 43, (3, 9)), rng.integers(0, 43, (3, 6))
    order, length, valid, back = np.array([2, 0, 1]), np.array([9, 4, 7]), np.array([6, 0, 3]), np.array([5, 4, 7])
    running = opened.start(3)
    running.step(length, **{name: first})
    running.forget(back)
    running.reorder(order)
    found = running.step(valid, **{name: more})["logits"]
    assert running.past.tolist() == (back[order] + valid).tolist()
    for row, source in enumerate(order):
        alone = opened.start(1)
        if back[source]:
            alone.step(**{name: first[source:source + 1, :back[source]]})
        want = alone.step(**{name: more[row:row + 1]})["logits"][0]
        np.testing.assert_allclose(found[row, :valid[row]], want[:valid[row]], rtol=1e-4, atol=1e-5)


def test_long_prompts_of_several_rows(made, monkeypatch):
    """Prompts beyond one piece, whose later pieces have a past."""
    _, _, folder = made
    opened, rng = decoder(folder, threads=1), np.random.default_rng(7)
    prompts = [rng.integers(0, 43, n).tolist() for n in (31, 5, 18)]
    want = [generate(opened, p, max_new_tokens=6).tokens[0].tolist() for p in prompts]
    monkeypatch.setattr("nnspec.runtime.decoder.PIECE", 8)
    monkeypatch.setattr("nnspec.runtime.decoder._FEWEST", 8)
    assert [t.tolist() for t in generate(opened, prompts, max_new_tokens=6).tokens] == want
