"""Inputs that a number stands for where they are left out: in PyTorch, in files with and without the input, in the manifest."""

import nnspec
import numpy as np
import pytest
import zoo

GRAPH = """
  kinds: {op: fill_absent, in: kind, value: 2}
  table: {op: embedding, in: kinds, entries: 4, width: 3}
  seen: {op: length_mask, in: length, like: x}
  out: {op: mean, in: {op: add, in: [x, table]}, axis: 1, keep: seen}
"""
INPUTS = 'x: "float[B, S, 3]", kind: "optional int64[B, S]", length: "optional int64[B]"'


@pytest.fixture
def written(tmp_path):
    def make(graph):
        made = zoo.Written(tmp_path, INPUTS, graph, "{out: out}")
        zoo.stir(made.module)
        return made
    return make


def manifest(written, **how):
    return written.model.export(written.folder / "export", weights=written.module, **how)


def test_module_and_files_fill_what_is_left_out(written):
    made, rng = written(GRAPH), np.random.default_rng(2)
    x, length = rng.normal(size=(3, 5, 3)).astype(np.float32), np.array([5, 1, 3])
    filled = {"x": x, "length": length, "kind": np.full((3, 5), 2)}
    other = filled | {"kind": rng.integers(0, 4, (3, 5))}
    want, moved = (zoo.run(made.module, arrays) for arrays in (filled, other))
    assert np.abs(want["out"] - moved["out"]).max() > 0.01
    for arrays, right in ((filled, want), (other, moved), ({"x": x, "length": length}, want)):
        for who, got in made.runs(arrays):
            zoo.close(got, right, 2e-5, 2e-6, who)
    made.model.export(made.folder / "lean", weights=made.module, without=("kind", "length"))
    got = nnspec.runtime.open(made.folder / "lean", threads=1)(x=x)
    zoo.close(got, zoo.run(made.module, {"x": x}), 2e-5, 2e-6)


def test_the_manifest_says_what_stands_for_an_input(written):
    said = {x.name: (x.optional, x.neutral, x.fill, x.ids_below) for x in manifest(written(GRAPH)).inputs}
    assert said == {"x": (False, False, None, None), "kind": (True, True, 2, 4), "length": (True, True, None, None)}


def test_an_input_with_two_fills_has_none(written):
    two = GRAPH.replace("  table:", "  others: {op: fill_absent, in: kind, value: 3}\n  table:").replace(
        "[x, table]", "[x, table, {op: embedding, in: others, weight: table.weight}]")
    made = manifest(written(two))
    assert {x.name: x.neutral for x in made.inputs} == {"x": False, "kind": False, "length": True}
