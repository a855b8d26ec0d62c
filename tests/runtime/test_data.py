import json
import pickle

import numpy as np
import pytest
from nnspec.runtime import ArtifactError, load_inputs, random_inputs, save_npz
from nnspec.runtime.arguments import prepare
from nnspec.runtime.data import table
from nnspec.runtime.manifest import Input
from tiny import make_manifest


def test_random_inputs_satisfy_the_manifest():
    extra = (Input("mask", "bool", ("B", "S")), Input("image", "float16", ("B", "3*H + 1", "W"), {"W": 2}),
             Input("wide", "bfloat16", ("B",)), Input("step", "int32", ("B",)))
    manifest = make_manifest(inputs=(*make_manifest().inputs, *extra))
    for seed in range(20):
        made = random_inputs(manifest, {"S": 4}, seed)
        prepare(manifest, made)
        assert made["tokens"].shape == (2, 4)
        assert made["image"].shape == (2, 16, 2)
        assert made["mask"].any(axis=-1).all()
        assert made["length"].max() == 4
        assert made["length"].min() >= 1
        assert made["tokens"].max() < 11
        assert made["residual"].std() > 0.3


def test_random_inputs_follow_the_seed():
    a, b, c = (random_inputs(make_manifest(), seed=s) for s in (4, 4, 5))
    assert all((a[k] == b[k]).all() for k in a)
    assert (a["residual"] != c["residual"]).any()
    assert a["residual"].shape == (2, 7, 3)


def test_bounds_limit_the_default_sizes_but_not_the_asked_ones():
    manifest = make_manifest(inputs=(Input("x", "int64", ("B", "S"), {"S": 3}, ids_below=2),))
    assert random_inputs(manifest)["x"].shape == (2, 3)
    with pytest.raises(ArtifactError) as caught:
        random_inputs(manifest, {"S": 4, "T": 1, "B": -1})
    assert [i.headline for i in caught.value.items] == [
        "no input has a dimension `T`", "`B` cannot be -1", "`S` is 4, but the model takes at most 3"]


def test_size_zero():
    made = random_inputs(make_manifest(), {"S": 0})
    assert made["tokens"].shape == (2, 0)
    assert made["length"].tolist() == [0, 0]


def test_npz_round_trip_with_any_name(tmp_path):
    arrays = {"file": np.arange(5), "a/b": np.ones((2, 0), np.float16), "x": np.array([[True, False]])}
    for name in ("one.npz", "two.npz"):
        save_npz(tmp_path / name, arrays)
    back = load_inputs(tmp_path / "one.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_an_unwritable_place(tmp_path):
    with pytest.raises(ArtifactError) as caught:
        save_npz(tmp_path / "nowhere" / "x.npz", {"x": np.arange(3)})
    assert caught.value.code == "cannot-write"


def test_json_keeps_python_numbers(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"tokens": [[3, 1]], "residual": [[[1, 2.5, 3]] * 2], "length": [2]}))
    made = prepare(make_manifest(), load_inputs(tmp_path / "x.json"))
    assert made["residual"].dtype == np.float32
    assert made["residual"][0, 1].tolist() == [1, 2.5, 3]


@pytest.mark.parametrize(("name", "content", "part"), [
    ("a.npz", b"", "it is empty"), ("a.npz", b"hello", "not a zip"), ("a.json", b"{", "cannot be read as .json"),
    ("a.json", b"[1]", "expected an object"), ("a.json", b'{"x": 1, "x": 2}', "given twice"),
    ("a.json", b"\xff\xfe", "cannot be read"),
    ("a.npy", b"", "ends in .npz or .json"), ("a.json", b"[" * 100_000, "cannot be read"),
])
def test_bad_files(tmp_path, name, content, part):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        load_inputs(tmp_path / name)
    assert caught.value.code == "bad-inputs"
    assert part in str(caught.value)


def test_missing_and_truncated_files(tmp_path):
    with pytest.raises(ArtifactError, match="no file"):
        load_inputs(tmp_path / "a.npz")
    save_npz(tmp_path / "a.npz", {"x": np.arange(999)})
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:500] + content[700:])
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_inputs(tmp_path / "a.npz")


class Trap:
    def __reduce__(self):
        return (open, (Trap.path, "w"))


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    Trap.path = str(tmp_path / "sprung")
    np.savez(tmp_path / "a.npz", x=np.array([Trap()], dtype=object))
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_inputs(tmp_path / "a.npz")
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap())).close()  # the trap works
    assert (tmp_path / "sprung").exists()


def test_table():
    rows = table({"a": np.array([[1.5, -2.0], [4.0, 0.5]], np.float32), "n": np.array([], np.int64), "m": np.array(True)})
    assert tuple(rows[0]) == ("a", "float32", (2, 2), -2.0, 1.0, 4.0, (1.5, -2.0, 4.0, 0.5))
    assert tuple(rows[1]) == ("n", "int64", (0,), None, None, None, ())
    assert rows[2].first == (True,)
    assert rows[2].mean == 1.0


def test_random_ids_and_sizes_fit_what_the_model_needs():
    manifest = make_manifest(inputs=(Input("x", "float32", ("B", "T"), least={"T": 12}), Input("at", "int64", ("B", "K"), ids_below="T")))
    arrays = random_inputs(manifest, {"B": 40}, seed=1)
    assert arrays["x"].shape[1] >= 12
    assert arrays["at"].min() == 0 and 3 < arrays["at"].max() < arrays["x"].shape[1]


@pytest.mark.parametrize(("sizes", "seed", "text"), [({}, -1, "the seed cannot be -1"), ({"B": 10**30}, 0, "do not fit in memory")])
def test_random_inputs_that_cannot_be_made(sizes, seed, text):
    with pytest.raises(ArtifactError) as found:
        random_inputs(make_manifest(), sizes, seed)
    assert found.value.code == "bad-inputs" and text in found.value.headline
