"""Exports into folders of all kinds: whole or not at all, over each other, cut off, and beside each other."""

import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nnspec
import numpy as np
import onnx
import pytest
import torch
import zoo
from nnspec import runtime
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.manifest import read

SPEC = """
nnspec: 1
name: small
inputs: {x: "float[B, 40]"}
graph: {up: {op: linear, in: x, width: 40}, out: {op: linear, in: up, width: 3}}
outputs: {out: out}
"""
X = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(SPEC.lstrip())
    return nnspec.load(path)


def run(folder):
    return runtime.open(folder, verify=True)(x=X)["out"]


def wanted(model, seed):
    with torch.no_grad():
        return model.module(seed=seed)(torch.from_numpy(X)).numpy()


def listing(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("name", ["plain", "with spaces", "größe-漢字", "v1.2.json", "a/b/c", "there/../back", "manifest.json", ".hidden"])
def test_folders_of_any_name(model, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    model.export(name, init=3)
    np.testing.assert_allclose(run(tmp_path / name), wanted(model, 3), atol=1e-5)
    assert np.array_equal(run(name), run(tmp_path / name))
    assert sorted(p.name.partition("-")[0] for p in Path(name).iterdir()) == ["manifest.json", "model.onnx", "weights"]


def test_a_link_to_a_folder_stays_a_link(model, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    model.export(tmp_path / "link", init=3)
    assert (tmp_path / "link").is_symlink()
    assert np.array_equal(run(tmp_path / "link"), run(tmp_path / "real"))


@pytest.mark.parametrize("where", ["file", "file/inside", "dangling"])
def test_what_is_no_folder(model, tmp_path, where):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Diagnostics) as found:
        model.export(tmp_path / where, init=3)
    assert [d.code for d in found.value.items] == ["cannot-write"]
    assert (tmp_path / "file").read_text() == "mine"


def test_an_open_artifact_goes_on_while_its_folder_is_replaced(model, tmp_path):
    model.export(tmp_path / "out", init=1)
    artifact = runtime.open(tmp_path / "out")
    before = artifact(x=X)["out"]
    model.export(tmp_path / "out", init=2)
    assert np.array_equal(artifact(x=X)["out"], before)
    np.testing.assert_allclose(run(tmp_path / "out"), wanted(model, 2), atol=1e-5)
    assert len(listing(tmp_path / "out")) == 3


def test_exports_into_one_folder_at_the_same_time_leave_one_of_them(model, tmp_path):
    modules = [model.module(seed=seed) for seed in range(24)]          # torch's random numbers are one stream for all threads
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda module: model.export(tmp_path / "out", weights=module, certify="none"), modules))
    got = run(tmp_path / "out")
    assert sum(np.allclose(got, wanted(model, seed), atol=1e-5) for seed in range(24)) == 1
    assert len(listing(tmp_path / "out")) == 3


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
@pytest.mark.parametrize("place", ["nnspec.artifacts.export.certify", "nnspec.backends.onnx.write._make",
                                   "nnspec.backends.onnx.write.encode"])
def test_what_is_cut_off_leaves_the_folder_as_it_was(model, tmp_path, monkeypatch, place, error, old):
    folder = tmp_path / "deep" / "out"
    if old:
        model.export(folder, init=1)
    before = listing(folder) if old else None

    def cut(*_, **__):
        raise error
    home, _, name = place.rpartition(".")
    monkeypatch.setattr(sys.modules[home], name, cut)
    with pytest.raises(error):
        model.export(folder, init=2)
    assert listing(folder) == before if old else not folder.parent.exists()


def test_a_full_disk(model, tmp_path):
    """The system refuses to write more than 2 KB into a file; the export says so and leaves the older one."""
    model.export(tmp_path / "out", init=1)
    before = listing(tmp_path / "out")
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
        try:
            model.export(tmp_path / "out", init=2)
        except Diagnostics as error:
            os._exit(0 if [d.code for d in error.items] == ["cannot-write"] else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert listing(tmp_path / "out") == before


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_that_are_not_finite_are_named_all_at_once(model, tmp_path, dtype):
    module = model.module(seed=1)
    with torch.no_grad():
        module.up.weight[3, 5], module.out.bias[1] = float("nan"), float("-inf")          # and no other
    with pytest.raises(Diagnostics) as found:
        model.export(tmp_path / "out", weights=module, dtype=dtype, target="ort-cuda")
    (item,) = found.value.items
    assert item.headline == "2 parameters are not finite: `up.weight` holds nan" and item.notes == ("`up.weight`", "`out.bias`")
    assert not (tmp_path / "out").exists()


def test_an_artifact_is_not_seen_before_it_is_certified(model, tmp_path, monkeypatch):
    model.export(tmp_path / "out", init=1)
    before, plain = listing(tmp_path / "out"), nnspec.artifacts.export.certify

    def look(folder, *given):
        files = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.is_file()}
        assert files == before and folder.parent == tmp_path / "out"
        return plain(folder, *given)
    monkeypatch.setattr("nnspec.artifacts.export.certify", look)
    model.export(tmp_path / "out", init=2)
    np.testing.assert_allclose(run(tmp_path / "out"), wanted(model, 2), atol=1e-5)


@pytest.mark.parametrize("change", [lambda m: m.half(), lambda m: m.double(), lambda m: m.train(), torch.compile, lambda m: m.bfloat16()])
def test_modules_of_other_dtypes_and_modes(model, tmp_path, change):
    module = change(model.module(seed=4))
    modes = [part.training for part in module.modules()]
    manifest = model.export(tmp_path, weights=module)
    assert manifest.certificate["status"] == "passed", manifest.certificate
    np.testing.assert_allclose(run(tmp_path), wanted(model, 4), atol=2e-2)
    assert [part.training for part in module.modules()] == modes


@pytest.mark.parametrize(("weights", "code"), [(torch.nn.Linear(40, 40), "checkpoint-mismatch"), ({"up.weight": X}, "bad-weights")])
def test_weights_that_are_no_module_of_the_model(model, tmp_path, weights, code):
    with pytest.raises(Diagnostics) as found:
        model.export(tmp_path / "out", weights=weights)
    assert [d.code for d in found.value.items] == [code]


@pytest.mark.parametrize("certify", ["sweep", "none"])
def test_integers_are_not_taken_for_floats(model, tmp_path, certify):
    state = {name: tensor.numpy() for name, tensor in model.module(seed=1).state_dict().items()}
    state["up.weight"] = (state["up.weight"] * 100).astype(np.int8)
    np.savez(tmp_path / "w.npz", **state)
    with pytest.raises(Diagnostics) as found:
        model.export(tmp_path / "out", weights=tmp_path / "w.npz", certify=certify)
    (item,) = found.value.items
    assert item.code == "bad-weights" and item.notes == ("`up.weight` is int8",)


def test_without_weights_there_is_the_same_graph_and_no_data(tmp_path):
    """llama-3-8b, whose weights would be 32 GB, in seconds."""
    began, tied = time.monotonic(), nnspec.load("llama-3-8b")
    manifest = tied.export(tmp_path / "out", no_weights=True)
    assert time.monotonic() - began < 5
    assert manifest == read(tmp_path / "out") and manifest.parameters == 8_030_261_248
    assert (manifest.form, manifest.data, manifest.certificate) == ("no-weights", (), {"status": "none"})
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["manifest.json", "model.onnx"]
    assert sum(p.stat().st_size for p in (tmp_path / "out").iterdir()) < 5e6
    held = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    assert sum(int(np.prod(t.dims)) for t in held.graph.initializer if t.external_data) == 8_030_261_248
    with pytest.raises(runtime.ArtifactError, match="has no weights, so it cannot run"):
        runtime.open(tmp_path / "out")


def test_the_graph_without_weights_is_the_one_with_them(model, tmp_path):
    with_, without = (model.export(tmp_path / name, **given) for name, given in (("with", {"init": 1}), ("without", {"no_weights": True})))
    assert (with_.structure, with_.identity, with_.sites) == (without.structure, without.identity, without.sites)
    one, other = (onnx.load(tmp_path / name / "model.onnx", load_external_data=False).graph for name in ("with", "without"))
    assert [*one.node] == [*other.node] and [(t.name, t.dims) for t in one.initializer] == [(t.name, t.dims) for t in other.initializer]


@pytest.mark.parametrize("given", [{}, {"no_weights": True, "init": 1}, {"no_weights": True, "prove": True, "target": "ort-cuda"}])
def test_weights_are_given_once(model, tmp_path, given):
    with pytest.raises(Diagnostics) as found:
        model.export(tmp_path / "out", **given)
    assert [d.code for d in found.value.items] == ["bad-command"] and not (tmp_path / "out").exists()


def test_what_the_prefix_hands_to_the_steps_may_be_left_out(tmp_path):
    model = zoo.model("bart-base")
    made = model.export(tmp_path / "out", init=1, form="step", without=("source_length", "target_length"))
    assert made.certificate["status"] == "passed" and [x.name for x in made.prefix.inputs] == ["source"]
    assert not {"source_length", "seen"} & set(made.stream.fixed)
    with pytest.raises(Diagnostics) as caught:
        model.export(tmp_path / "other", init=1, form="step", without=("source", "sauce"))
    assert {d.headline for d in caught.value.items} == {"input `source` cannot be left out: it is not optional",
                                                        "the model has no input `sauce` to leave out"}
    assert not (tmp_path / "other").exists()
