"""The step form: what it is made of, that it gives what the whole graph gives, and that what it cannot give is refused."""

from functools import cache
from pathlib import Path

import nnspec
import numpy as np
import pytest
import stepping
import yaml
import zoo
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.decoder import decoder

HERE = Path(__file__).parent
STREAMS, REFUSED = (yaml.safe_load((HERE / f"{name}.yaml").read_text()) for name in ("streams", "refused"))
LENGTH, MEMORY = 13, 5
TOKENS = 23


def load(folder, case):
    spec = {"nnspec": 1, "use": ["attention", "ffn", "layers", "positions"], "inputs": {"tokens": "int64[B, T]"}, "outputs": {"y": "y"}}
    spec |= {k: v for k, v in case.items() if k not in ("node", "why")}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False, default_flow_style=False, width=10_000))
    return nnspec.load(path)


def draw(model, rows, rng):
    """Random inputs. The lengths of the stream itself are whole: rows are packed to the left, and end where they end."""
    def one(name, type, shape):
        if type.dtype == "bool":
            return rng.random(shape) < 0.7
        if type.dtype != "int64":
            return rng.normal(size=shape).astype(np.float32)
        low, high = {"n": (LENGTH, LENGTH + 1), "ml": (1, MEMORY + 1), "ptr": (0, MEMORY), "seg": (0, 3)}.get(name, (0, TOKENS))
        return rng.integers(low, high, shape)
    sizes = {"B": rows, "T": LENGTH, "S": MEMORY}
    return {a.name: one(a.name, a.type, tuple(int(d.evaluate(sizes)) for d in a.type.shape)) for a in model.graph.root.arguments}


def whole(model, module, form, arrays):
    """What the whole graph gives; optional inputs that the step form does without are left out."""
    left = {a.name for a in model.graph.root.arguments if a.type.optional and a.name in form.dropped}
    return stepping.call(module, model.graph, {k: v for k, v in arrays.items() if k not in left})


@pytest.mark.parametrize("name", STREAMS)
def test_chunks_give_what_the_whole_graph_gives(tmp_path, name):
    model = load(tmp_path, STREAMS[name])
    form, module = model.step_form(), model.module(seed=1)
    module = zoo.stir(module) if [*module.parameters()] else module
    step = stepping.TorchStepper(form, module)
    model.export(tmp_path / "step", weights=module, form="step", certify="none", target="portable" if len(name) % 2 else "ort-cpu")
    opened = decoder(tmp_path / "step", threads=1)
    rng = np.random.default_rng(0)
    rows = (1, 3) if model.graph.root.arguments[0].type.shape[0].value is None else (1,)
    for count in rows:
        arrays = draw(model, count, rng)
        want = whole(model, module, form, arrays)
        for way in stepping.WAYS:
            zoo.close(step(arrays, LENGTH, way), want, 1e-4, 1e-6, f"PyTorch, {way}")
        zoo.close(stepping.run_decoder(opened, arrays, LENGTH, stepping.WAYS[-1])[0], want, 1e-4, 1e-6, "ONNX Runtime")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_stream_is_refused(tmp_path, name):
    case = REFUSED[name]
    model = load(tmp_path, case)
    with pytest.raises(Diagnostics) as found:
        model.step_form()
    first = found.value.items[0]
    assert all(d.code == "cannot-stream" for d in found.value.items)
    assert (first.notes[0] if first.notes else first.headline) == case["why"]
    assert first.headline.startswith(f"`{case['node']}`" if case["node"] else ("the model", "no input"))
    if case["node"] in case["graph"]:
        lines = (tmp_path / "spec.yaml").read_text().splitlines()
        assert lines[first.labels[0].span.line - 1].startswith(f"  {case['node']}:")
    else:
        assert first.labels


def test_running_sums_keep_their_digits_in_half_precision(tmp_path):
    """4,000 times 0.75: one by one in float16 they would stop at 1,536 or so."""
    model = load(tmp_path, {"inputs": {"f": "float[B, T, 1]"}, "graph": {"y": {"op": "cumsum", "in": "f", "axis": 1}}})
    model.export(tmp_path / "step", init=0, form="step", certify="none", dtype="float16")
    running = decoder(tmp_path / "step", threads=1).start(1)
    chunk = np.full((1, 1, 1), 0.75, np.float16)
    got = [float(running.step(f=chunk)["y"][0, 0, 0]) for _ in range(4000)]
    np.testing.assert_allclose(got, 0.75 * np.arange(1, 4001), rtol=1e-3)


@cache
def form(name, along=None):
    return zoo.model(name).step_form(along)


def test_what_the_step_form_of_a_decoder_is_made_of():
    found = form("gpt2")
    assert (found.along, found.prefix, found.chunk, found.fixed) == ("S", None, ("tokens",), ())
    assert set(found.dropped) == {"length", "keep"}
    assert [(s.name, s.kind) for s in found.states][:3] == [
        ("past", "clock"), ("layers.0.attention.key_heads", "append"), ("layers.0.attention.value_heads", "append")]
    assert [a.name for a in found.step.root.arguments][:2] == ["tokens", "new_length"]
    assert [n for n, _ in found.step.root.outputs] == ["logits", *(s.name for s in found.states)]


def test_what_is_fixed_is_made_once():
    found = form("transformer-base")
    assert found.along == "T" and found.prefix is not None
    assert {a.name for a in found.prefix.root.arguments} == {"source", "source_length"}
    assert "decoder.0.cross.key_heads" in found.fixed and not any(n.name.startswith("encoder") for n in found.step.root.nodes)


def test_latent_attention_caches_the_latent():
    kept = {s.name.split(".")[-1]: s.type.shape[-1].value for s in form("hard/mla").states if s.kind == "append"}
    assert len(kept) == 2 and not any(name in ("key", "value") for name in kept)


def test_windows_are_rings():
    states = [s for s in form("mistral-7b").states if s.kind != "clock"]
    assert states and all(s.kind == "ring" and s.layout.window == 4 for s in states)


def test_an_axis_is_chosen_by_name(tmp_path):
    with pytest.raises(Diagnostics, match="no input has the axis `Q`"):
        form("gpt2", "Q")
    assert form("transformer-base", "T").along == "T"


JOINED = {
    "prefix": ({"prefix": "int64[B, P]"}, {"before": {"op": "embedding", "in": "prefix", "entries": 23, "width": 8}}, "before", "`P`"),
    "image": ({"before": "float[B, P, 8]"}, {}, "before", "`P`"),
    "start": ({}, {"one": {"op": "parameter", "shape": [1, 1, 8]}, "before": {"op": "expand", "in": "one", "shape": "[B, 1, 8]"}},
              "before", "`1`"),
}


@pytest.mark.parametrize("along", [None, "T"])
@pytest.mark.parametrize("name", JOINED)
def test_positions_behind_others_are_told_where_they_are_joined(tmp_path, name, along):
    """One error, at the `concat`, that says what to write, and none for what follows from it."""
    inputs, more, first, size = JOINED[name]
    model = load(tmp_path, {"inputs": inputs | {"tokens": "int64[B, T]"}, "graph": more | {
        "x": {"op": "embedding", "in": "tokens", "entries": 23, "width": 8}, "whole": {"op": "concat", "in": [first, "x"], "axis": 1},
        "mixed": {"block": "multi_head_attention", "in": "whole", "heads": 2, "causal": True},
        "y": {"op": "linear", "in": "mixed", "width": 5}}})
    with pytest.raises(Diagnostics) as found:
        model.step_form(along)
    (one,) = found.value.items
    assert one.headline == "`whole` cannot be computed step by step along `T`"
    assert one.notes == (f"`concat` joins positions along `T` with {size} more, and a step takes those of `T`",)
    assert ("op: delay" in one.helps[0]) if name == "start" else ("one input hold both" in one.helps[0] and "`where`" in one.helps[1])


def test_what_is_told_to_be_written_instead_is_taken(tmp_path):
    """Kinds along one axis, chosen by `where`."""
    model = load(tmp_path, {"inputs": {"tokens": "int64[B, T]", "image": "float[B, T, 8]", "is_text": "bool[B, T]"}, "graph": {
        "text": {"op": "embedding", "in": "tokens", "entries": 23, "width": 8},
        "there": {"op": "rearrange", "in": "is_text", "as": "b t -> b t 1"},
        "whole": {"op": "where", "keep": "there", "in": ["text", "image"]},
        "mixed": {"block": "multi_head_attention", "in": "whole", "heads": 2, "causal": True},
        "y": {"op": "linear", "in": "mixed", "width": 5}}})
    assert model.export(tmp_path / "step", init=0, form="step").certificate["status"] == "passed"


def test_a_length_of_two_axes_is_told_with_the_input_to_add(tmp_path):
    case = {"inputs": {"tokens": "int64[B, T]", "memory": "float[B, S, 8]", "n": "int64[B]"}, "graph": {
        "x": {"op": "embedding", "in": "tokens", "entries": 23, "width": 8}, "g": {"op": "gru", "in": "x", "hidden": 8, "length": "n"},
        "y": {"block": "multi_head_attention", "in": "g", "memory": "memory", "heads": 2, "length": "n"}}}
    with pytest.raises(Diagnostics) as found:
        load(tmp_path, case).step_form()
    (one,) = found.value.items
    assert one.notes == ("`attention` ends another axis (`S`) by a length that counts positions of `T`",)
    assert one.helps == ("give each axis its own length: add an input such as `s_length: int64[B]`, and read it here",)
    case["inputs"]["s_length"], case["graph"]["y"]["length"] = "int64[B]", "s_length"
    assert load(tmp_path, case).step_form().fixed == ("y.key_heads", "y.value_heads", "s_length")


def test_several_axes_must_be_told_apart(tmp_path):
    model = load(tmp_path, {"inputs": {"tokens": "int64[B, T]", "others": "int64[B, S]"}, "outputs": {"y": "y", "z": "z"}, "graph": {
        "x": {"op": "embedding", "in": "tokens", "entries": 9, "width": 8},
        "u": {"op": "embedding", "in": "others", "entries": 9, "width": 8},
        "y": {"op": "gru", "in": "x", "hidden": 3}, "z": {"op": "gru", "in": "u", "hidden": 3}}})
    with pytest.raises(Diagnostics) as found:
        model.step_form()
    (one,) = found.value.items
    assert one.headline == "the model can be run step by step along several axes" and one.helps == ("choose one: `--along T`",)
    assert model.step_form("S").chunk == ("others",) and model.step_form("T").chunk == ("tokens",)


def test_every_fault_is_told_at_once(tmp_path):
    model = load(tmp_path, {"graph": {
        "x": {"op": "embedding", "in": "tokens", "entries": 9, "width": 8}, "g": {"op": "gru", "in": "x", "hidden": 8},
        "f": {"op": "flip", "in": "g", "axis": 1}, "b": {"op": "gru", "in": "g", "hidden": 8, "direction": "backward"},
        "y": {"op": "add", "in": ["f", "b"]}}})
    with pytest.raises(Diagnostics) as found:
        model.step_form()
    assert [d.headline.split()[0] for d in found.value.items] == ["`f`", "`b`"]


def test_copies_of_a_fault_are_told_once():
    with pytest.raises(Diagnostics) as found:
        zoo.model("bert-base").step_form("S")
    (attention,) = [d for d in found.value.items if "attention" in d.headline]
    assert attention.labels[1].text == "used here" and "bert-base.yaml" in str(attention.labels[1].span.source)
