"""Weight files of every kind against the arrays that were saved, damaged files, and matching by name and shape."""

import json
import pickle
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from nnspec.checkpoints.weight_names import fold, is_buffer
from nnspec.checkpoints.weights import match_weights, open_weights
from nnspec.lang.diagnostic import Diagnostics

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


def tensors(seed=0) -> dict:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 5, generator=made)
    return {"layers.0.weight": x, "layers.0.half": x.half(), "layers.0.brain": x[:3].bfloat16(),
            "layers.1.weight": x.double() * 3, "ids": torch.arange(-3, 8),
            "mask": x[0] > 0, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4),
            "small": torch.arange(5, dtype=torch.uint8)}


def array(tensor):
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def save_npz(path, found):
    np.savez(path, **{k: v.numpy() for k, v in found.items() if v.dtype != torch.bfloat16})


SAVERS = {".safetensors": lambda path, t: save_file(t, path), ".npz": save_npz, ".pt": lambda path, t: torch.save(t, path),
          ".pth": lambda path, t: torch.save(t, path, _use_new_zipfile_serialization=False),
          ".bin": lambda path, t: torch.save({"state_dict": t, "epoch": 3}, path)}


def error(path, part, open_=open_weights):
    with pytest.raises(Diagnostics) as caught:
        open_(path)
    for item in caught.value.items:
        assert item.code == "bad-weights"
    text = "\n".join("\n".join((d.headline, *d.notes, *d.helps)) for d in caught.value.items)
    assert part in text
    assert str(path) in text
    return caught.value.items


@pytest.mark.parametrize(("suffix", "whole_folder"), [*((s, False) for s in SAVERS), (".safetensors", True), (".npz", True)])
def test_every_kind_gives_back_what_was_saved(tmp_path, suffix, whole_folder):
    saved = tensors()
    SAVERS[suffix](tmp_path / f"model{suffix}", saved)
    if suffix == ".npz":
        del saved["layers.0.brain"]
    with open_weights(tmp_path if whole_folder else tmp_path / f"model{suffix}") as file:
        assert sorted(file.names()) == sorted(saved)
        for name, tensor in saved.items():
            assert file.shape(name) == tuple(tensor.shape)
            assert file.dtype(name) == str(tensor.dtype).removeprefix("torch.")
            want = array(tensor)
            found = file.read(name)
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(found, want)


def test_reads_from_many_threads(tmp_path):
    saved = {f"t{i}": torch.full((300 + i,), float(i)) for i in range(40)}
    save_file(saved, tmp_path / "m.safetensors")
    with open_weights(tmp_path / "m.safetensors") as file, ThreadPoolExecutor(8) as pool:
        for name, found in zip(saved, pool.map(file.read, saved), strict=True):
            np.testing.assert_array_equal(found, saved[name].numpy())


def test_headers_alone_are_read_and_torch_is_not_imported(tmp_path):
    save_file({"big": torch.randn(64, 1000, 1000)[:, :, :500].contiguous(), "x": torch.arange(3)}, tmp_path / "m.safetensors")
    code = ("import resource, sys, nnspec.checkpoints.weights as w; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "before = peak(); f = w.open_weights(sys.argv[1]); f.read('x'); f.shape('big')\n"
            "assert peak() - before < 20_000, peak() - before\n"
            "assert not {'torch', 'onnx', 'onnxruntime', 'safetensors'} & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.safetensors"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def shards(folder: Path, count=3, stem="model", suffix=".safetensors") -> tuple[dict, list[Path]]:
    saved = {k: v for k, v in tensors().items() if v.numel()}
    names = list(saved)
    paths = [folder / f"{stem}-{i:05}-of-{count:05}{suffix}" for i in range(1, count + 1)]
    for i, path in enumerate(paths):
        SAVERS[suffix](path, {n: saved[n] for n in names[i::count]})
    places = {n: paths[i].name for i in range(count) for n in names[i::count]}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return saved, paths


@pytest.mark.parametrize(("stem", "suffix", "by"), [*(("model", ".safetensors", by) for by in ("index", "folder", "names")),
                                                    ("odd", ".safetensors", "folder"), ("pytorch_model", ".bin", "index")])
def test_shards(tmp_path, stem, suffix, by):
    saved, _ = shards(tmp_path, stem=stem, suffix=suffix)
    index = tmp_path / f"{stem}{suffix}.index.json"
    if by == "names":
        index.unlink()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_bytes(b"not weights")
    with open_weights(index if by == "index" else tmp_path) as file:
        assert sorted(file.names()) == sorted(saved)
        for name, tensor in saved.items():
            np.testing.assert_array_equal(file.read(name), array(tensor))


@pytest.mark.parametrize("with_index", [True, False])
def test_missing_shards_are_all_named(tmp_path, with_index):
    _, paths = shards(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    if not with_index:
        index.unlink()
    paths[0].unlink()
    paths[2].unlink() if with_index else None
    (item,) = error(index if with_index else tmp_path, paths[0].name)
    assert (paths[2].name in item.headline) == with_index
    assert f"lacks {2 if with_index else 1} of 3 shards" in item.headline


def test_shards_that_do_not_fit_together(tmp_path):
    _, paths = shards(tmp_path)
    save_file({"ids": torch.arange(3), "layers.0.weight": torch.ones(2)}, paths[2])
    items = error(tmp_path, "both hold")
    assert "`layers.0.weight`" in items[0].headline
    paths[1].write_bytes(b"x")
    items = error(tmp_path, "has only 1 bytes")
    assert len(items) == 3                       # and no shard holds what the third one lost
    shards(tmp_path)
    save_file({"other": torch.ones(2)}, paths[2])
    assert "no shard of" in error(tmp_path / "model.safetensors.index.json", "no shard of")[0].headline


def test_everything_wrong_with_shards_at_once(tmp_path):
    """A lost shard, a damaged one, places outside the folder, a tensor in no shard, one in another, and one in two."""
    saved, paths = shards(tmp_path, count=4)
    index = tmp_path / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    names = {p.name: [n for n, at in places.items() if at == p.name] for p in paths}
    paths[0].unlink()
    paths[1].write_bytes(b"x")
    moved, twice = names[paths[2].name][0], names[paths[3].name][0]
    save_file({n: saved[n] for n in (*names[paths[2].name], twice)}, paths[2])
    places |= {moved: paths[3].name, "gone": paths[3].name}
    places |= {"far": "../far.safetensors", "farther": str(paths[3]), "win": "a\\b.safetensors"}
    save_file({"far": torch.ones(2)}, tmp_path.parent / "far.safetensors")
    index.write_text(json.dumps({"weight_map": places}))
    told = "\n".join(d.headline for d in error(index, "lacks 1 of 4 shards"))
    assert len(error(index, "lacks")) == 6
    for part in ("has only 1 bytes", f"both hold `{twice}`", "no shard of", "holds `gone`", f"the one that holds `{moved}`",
                 "`../far.safetensors`", f"`{paths[3]}`", "are no weight files beside it"):
        assert part in told, told


def test_a_folder_as_hubs_have_it(tmp_path):
    """model.safetensors is taken whatever lies beside it, an index before other files; pickles alone are refused, and not opened."""
    def names():
        with open_weights(tmp_path) as file:
            return file.names()

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(1))
    for name in ("pytorch_model.bin.index.json", "config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    item, = error(tmp_path, "holds its weights as pickles alone: `pytorch_model.bin`")
    assert "safetensors.torch.save_file" in item.helps[0]
    save_file({"old": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    assert names() == ["old"]
    saved, _ = shards(tmp_path)
    assert sorted(names()) == sorted(saved)
    save_file({"whole": torch.ones(3)}, tmp_path / "model.safetensors")
    assert names() == ["whole"]


@pytest.mark.parametrize("suffix", [".pickle", ".pkl", ".ckpt"])
def test_pickles_are_not_opened(tmp_path, suffix):
    (tmp_path / f"w{suffix}").write_bytes(b"")
    error(tmp_path / f"w{suffix}", "may hold code")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {"a": "../m.safetensors"}}', '{"weight_map": {"a": 3}}',
                                     '{"weight_map": {"a": "x.index.json"}}', '{"weight_map": {"a": "m.pt", "a": "n.pt"}}'])
def test_bad_indices(tmp_path, content):
    (tmp_path / "x.index.json").write_text(content)
    error(tmp_path / "x.index.json", "is not an index of shards")


def test_places_without_one_weight_file(tmp_path):
    error(tmp_path / "nowhere.pt", "no weights at")
    error(tmp_path, "it holds none")
    (tmp_path / "w.txt").write_text("1 2 3")
    error(tmp_path / "w.txt", "is no weight file")
    for name in ("a.safetensors", "b.npz"):
        (tmp_path / name).write_bytes(b"")
    error(tmp_path, "several: `a.safetensors`, `b.npz`")
    shards(tmp_path, stem="other")
    error(tmp_path, "several:")


@pytest.mark.parametrize("suffix", SAVERS)
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"m{suffix}"
    SAVERS[suffix](path, tensors())
    content = path.read_bytes()
    for broken in (b"", b"\x00", b"hello, this is no weight file", content[: len(content) // 2], content[:-7], content[5:]):
        path.write_bytes(broken)
        (item,) = error(path, "or is damaged")
        assert "weights_only" not in item.headline


@pytest.mark.parametrize("suffix", [*SAVERS, "zipped.npz"])
def test_no_changed_byte_can_cause_a_traceback(tmp_path, suffix):
    found = {"w": torch.randn(3, 5), "v": torch.arange(4)}
    path = tmp_path / f"m{Path(suffix).suffix or suffix}"
    SAVERS.get(suffix, lambda path, t: np.savez_compressed(path, **t))(path, found)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little") if suffix == ".safetensors" else len(content)
    rng = np.random.default_rng(2)
    opened = 0
    for _ in range(300):
        changed = bytearray(content)
        changed[rng.integers(header)] ^= rng.integers(1, 256)
        path.write_bytes(changed)
        try:
            with open_weights(path) as file:
                for name in file.names():
                    file.read(name)
                opened += 1
        except Diagnostics as caught:
            assert {d.code for d in caught.items} == {"bad-weights"}
    assert opened < 299


def test_headers_that_lie(tmp_path):
    def write(entries, body=b"\0" * 8):
        header = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
        (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
        return tmp_path / "m.safetensors"

    def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
        return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}

    error(write({"a": entry(shape=(3,))}), "has 8 bytes, which is not float32 [3]")
    error(write({"a": entry(), "b": entry()}), "overlap")
    error(write({"a": entry(shape=(1,), offsets=(4, 8))}), "leave a gap")
    error(write({"a": entry()}, b"\0" * 9), "bytes, its header describes")
    error(write({"a": entry(shape=(-2,))}), "has not the form")
    error(write({"a": entry(shape=(2**40, 2**40))}), "which is not float32")
    error(write({"a": {"dtype": "F32"}}), "has not the form")
    error(write('{"a": 1, "a": 2}'), "given twice")
    error(write("[1]"), "not an object")
    error(write("[" * 100_000), "is not JSON")


def test_a_dtype_that_cannot_be_read_only_matters_when_it_is_read(tmp_path):
    save_file({"f8": torch.ones(4).to(torch.float8_e4m3fn), "ok": torch.arange(3)}, tmp_path / "m.safetensors")
    with open_weights(tmp_path / "m.safetensors") as file:
        assert file.dtype("f8") == "float8_e4m3fn"
        assert file.read("ok").tolist() == [0, 1, 2]
        error(tmp_path / "m.safetensors", "tensor `f8`", lambda _: file.read("f8"))
        error(tmp_path / "m.safetensors", "did you mean `ok`?", lambda _: file.read("okk"))


def test_a_file_that_shrinks_while_open(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"w": torch.randn(900, 50)}, path)
    with open_weights(path) as file:
        with path.open("r+b") as handle:
            handle.truncate(1000)
        error(path, "the file ends early", lambda _: file.read("w"))


class Trap:
    def __reduce__(self):
        return (open, (Trap.path, "w"))


def test_code_is_refused_and_not_run(tmp_path):
    Trap.path = str(tmp_path / "sprung")
    torch.save({"w": torch.ones(2), "trap": Trap()}, tmp_path / "a.pt")
    torch.save({"w": Trap()}, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 3), tmp_path / "c.pt")
    (tmp_path / "d.pt").write_bytes(pickle.dumps(Trap()))
    np.savez(tmp_path / "e.npz", w=np.array([Trap()], dtype=object))
    for name in "abcd":
        error(tmp_path / f"{name}.pt", "holds code or Python objects" if name != "d" else "is damaged")
    error(tmp_path / "e.npz", "never unpickled")
    assert not (tmp_path / "sprung").exists()
    pickle.loads((tmp_path / "d.pt").read_bytes()).close()  # the trap works
    assert (tmp_path / "sprung").exists()


def test_checkpoints_around_a_state_dict(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    path = tmp_path / "m.pt"
    torch.save({"model_state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 4}, path)
    with open_weights(path) as file:
        np.testing.assert_array_equal(file.read("weight"), model.weight.detach().numpy())
    torch.save({"state_dict": model.state_dict(), "ema": model.state_dict()}, path)
    error(path, "tensors under `state_dict`, `ema`")
    torch.save({"net": model.state_dict()}, path)
    error(path, 'torch.save(checkpoint["net"], path)')
    torch.save({**model.state_dict(), "sub": model.state_dict()}, path)
    error(path, "tensors under `sub`")
    torch.save([torch.ones(2)], path)
    error(path, "holds a list")
    torch.save({"epoch": 3}, path)
    error(path, "holds no tensors")
    torch.save({"w": torch.ones(3), "sizes": [1, 2]}, path)
    error(path, "holds `sizes`, a list")
    torch.save({"w": torch.ones(3), "epoch": 3, "tied": torch.nn.Parameter(torch.ones(3))}, path)
    with open_weights(path) as file:
        assert file.names() == ["w", "tied"]
    torch.save({"w": torch.eye(3).to_sparse()}, path)
    with open_weights(path) as file:
        error(path, "not a dense tensor", lambda _: file.read("w"))


def test_npz_with_names_twice_or_other_members(tmp_path):
    path = tmp_path / "m.npz"
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            with archive.open("w.npy", "w") as member:
                np.lib.format.write_array(member, np.arange(3))
    error(path, "holds `w` twice")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    error(path, "its member `readme.txt` is not an array")
    with zipfile.ZipFile(path, "w") as archive, archive.open("w.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
        member.write(b"12345678")
    error(path, "`w` has 8 bytes, which is not float64 [1125899906842624]")


class File(dict):
    path = "w.pt"

    def names(self):
        return list(self)

    def shape(self, name):
        return self[name]


SHAPES = {"norm.weight": (8,), "up.weight": (32, 8), "down.weight": (8, 32)}
WANTED = {f"layers.{i}.{n}": s for i in range(12) for n, s in SHAPES.items()}


def mismatch(wanted, held, rename=None):
    with pytest.raises(Diagnostics) as caught:
        match_weights(wanted, File(held), rename)
    (item,) = caught.value.items
    assert item.code == "checkpoint-mismatch"
    return item


def test_match_by_name_and_by_rename():
    assert match_weights(WANTED, File(WANTED)) == {n: n for n in WANTED}
    shared = match_weights({"a": (2,), "b": (2,), "c": ()}, File({"x": (2,), "c": ()}), {"a": "x", "b": "x"})
    assert shared == {"a": "x", "b": "x", "c": "c"}


def test_one_diagnostic_lists_everything_folded():
    held = {n.replace("norm", "ln"): s for n, s in WANTED.items()}
    held |= {"layers.3.up.weight": (8, 32), "layers.4.up.weight": (8, 32), "layers.5.down.weight": (8, 31), "head.bias": (5,)}
    item = mismatch(WANTED, held)
    assert item.headline == "`w.pt` does not fit the model: 12 missing, 13 unexpected, 3 of another shape"
    assert item.notes == (
        "missing: `layers.{0..11}.norm.weight` [8]; nearest in the file: `layers.{0..11}.ln.weight`",
        "unexpected: `layers.{0..11}.ln.weight` [8]",
        "unexpected: `head.bias` [5]",
        "another shape: `layers.{3..4}.up.weight` should be [32, 8], is [8, 32], matches if transposed",
        "another shape: `layers.5.down.weight` should be [8, 32], is [8, 31]",
    )


def test_long_lists_are_cut():
    names = ["".join(chr(97 + (i * k) % 26) for k in (1, 3, 5, 7)) for i in range(60)]
    wanted = {f"ours.{n}.w": (3,) for n in names} | {f"shape.{n}": (2, i) for i, n in enumerate(names)}
    held = {f"theirs.{n}.v": (4,) for n in names} | {f"shape.{n}": (3, i) for i, n in enumerate(names)}
    item = mismatch(wanted, held)
    assert len(item.notes) == 18
    assert sum("more lines like these" in n for n in item.notes) == 3


def test_renamed_parameters_show_both_names():
    rename = {n: n.replace("layers", "h") for n in WANTED}
    held = {rename[n]: s for n, s in WANTED.items() if "up" not in n}
    assert mismatch(WANTED, held, rename).notes == (
        "missing: `layers.{0..11}.up.weight` [32, 8], expected in the file as `h.{i}.up.weight`",)


def test_a_prefix_of_every_name_is_explained():
    item = mismatch(WANTED, {f"_orig_mod.{n}": s for n, s in WANTED.items()})
    assert item.helps == ("the file's names begin with `_orig_mod.`: save the inner module's state_dict()",)
    assert mismatch(WANTED, {}).helps == ()


BUFFERS = {"h.3.attn.bias": (1, 1, 9, 9), "h.3.attn.masked_bias": (), "embeddings.position_ids": (1, 512), "position_ids": (1, 9),
           "layers.2.self_attn.rotary_emb.inv_freq": (16,), "bn.num_batches_tracked": ()}


def test_saved_buffers_are_ignored_unless_wanted():
    assert match_weights({"w": (3,)}, File({"w": (3,)} | BUFFERS)) == {"w": "w"}
    assert match_weights(BUFFERS, File(BUFFERS)) == {n: n for n in BUFFERS}
    for name, shape in {"h.3.attn.bias": (9,), "attn.bias": (1, 1, 9, 8), "mlp.bias": (1, 1, 9, 9), "position_ids": (9, 3),
                        "my_position_ids": (1, 9)}.items():
        assert not is_buffer(name, shape)
        assert mismatch({"w": (3,)}, {"w": (3,), name: shape}).notes == (f"unexpected: `{name}` {list(shape)}",)


def test_fold():
    def names(*items):
        return [n for n, _ in fold((i, "") for i in items)]

    assert names("a.0.b", "a.2.b", "a.1.b", "a.7.b", "c") == ["a.{0..2,7}.b", "c"]
    assert names(*(f"l.{i}.e.{j}" for i in range(3) for j in range(4))) == ["l.{0..2}.e.{0..3}"]
    assert names("l.0.e.0", "l.0.e.1", "l.1.e.0") == ["l.{0..1}.e.0", "l.0.e.1"]
    assert fold([("a.0", "x"), ("a.1", "y")]) == [("a.0", "x"), ("a.1", "y")]
    assert names("0", "1", "10") == ["{0..1,10}"]
    assert names() == []
