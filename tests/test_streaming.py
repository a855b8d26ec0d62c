"""Large tensors go from their file into an artifact some numbers at a time, and give the bytes that whole ones give."""

import json
import os
import struct
import subprocess
import sys

import nnspec
import numpy as np
import pytest
import torch
from nnspec.checkpoints import weight_file
from safetensors.torch import save_file

SPEC = """
nnspec: 1
name: large
inputs: {ids: "int64[B, S]"}
graph:
  embed: {op: embedding, in: ids, entries: ENTRIES, width: WIDTH}
  one: {op: linear, in: embed, width: WIDTH}
  two: {op: linear, in: one, width: WIDTH}
  head: {op: linear, in: two, width: ENTRIES, bias: false}
outputs: {head: head}
checkpoint: {tensors: {"[one, two].weight": {from: both, as: "(s o) i -> s o i"}, "embed.weight": table}}
"""


def save_npz(tensors, path):
    np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in tensors.items()})


SAVERS = {".safetensors": save_file, ".pt": torch.save, ".npz": save_npz}


def model(folder, entries, width):
    (folder / "spec.yaml").write_text(SPEC.lstrip().replace("ENTRIES", str(entries)).replace("WIDTH", str(width)))
    return nnspec.load(folder / "spec.yaml")


def shapes(entries, width):
    return {"table": (entries, width), "both": (2 * width, width), "one.bias": (width,), "two.bias": (width,),
            "head.weight": (entries, width)}


def checkpoint(entries, width, dtype=torch.float32):
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes(entries, width).items()}


@pytest.mark.parametrize(("suffix", "dtype"), [(".safetensors", torch.float32), (".safetensors", torch.bfloat16), (".npz", torch.float16),
                                               (".pt", torch.bfloat16), (".pt", torch.float32)])
def test_streamed_exports_have_the_bytes_of_whole_ones(tmp_path, monkeypatch, suffix, dtype):
    made, file = model(tmp_path, 301, 57), tmp_path / f"w{suffix}"
    SAVERS[suffix](checkpoint(301, 57, dtype), file)
    whole = made.export(tmp_path / "whole", weights=file, certify="none")
    read, plain = [], weight_file.WeightFile.deferred
    monkeypatch.setattr(weight_file, "LARGE", 1000)
    monkeypatch.setattr(sys.modules["nnspec.backends.onnx.write"], "CHUNK", 1009)
    monkeypatch.setattr(weight_file.WeightFile, "deferred", lambda self, *given: watch(plain(self, *given), read))
    streamed = made.export(tmp_path / "streamed", weights=file, certify="none")
    assert streamed == whole and len(streamed.data) == 1
    sizes = [stop - start for start, stop in read]
    assert max(sizes) == 1009 and sum(sizes) > 2 * 301 * 57 + 2 * 57 * 57         # all four matrices, the turned ones repeatedly


def watch(found, read):
    if found is None:
        return None

    def noted(start, stop):
        read.append((start, stop))
        return found.read(start, stop)
    return weight_file.Deferred(found.shape, noted)


def test_a_file_that_shrinks_is_told_while_it_streams(tmp_path, monkeypatch):
    made, file = model(tmp_path, 301, 57), tmp_path / "w.safetensors"
    save_file(checkpoint(301, 57), file)
    monkeypatch.setattr(weight_file, "LARGE", 1000)
    with weight_file.Path(file).open("r+b") as handle, nnspec.checkpoints.weights.open_weights(file) as held:
        handle.truncate(5000)
        with pytest.raises(nnspec.lang.diagnostic.Diagnostics, match="ends early"):
            np.asarray(made.loader(held)("embed.weight", whole=False))


PEAK = """
import re, sys, nnspec, nnspec.checkpoints.weights, nnspec.backends.onnx, nnspec.artifacts.export, nnspec.checkpoints.export_weights, torch
at, dtype = sys.argv[1], getattr(torch, sys.argv[2])
model = nnspec.load(at + "/spec.yaml")
model.lowered
if "module" in sys.argv[3]:
    model.module(seed=None, device="meta")
open("/proc/self/clear_refs", "w").write("5")
memory = lambda key: int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = memory("VmRSS")
exec(sys.argv[3])
print(memory("VmHWM") - before)
"""
# The dtype of the file, and the peak as a part of its size. A module holds it once, and one packed or turned matrix at a time.
WAYS = {"export": ("float32", "model.export(at + '/out', weights=at, certify='none')", 0.3),
        "export-weights": ("bfloat16", "model.export_weights(at, at + '/o.safetensors')", 0.3),
        "module": ("bfloat16", "kept = model.module(weights=at, dtype=dtype)", 1.3)}


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel tells no peak of memory")
@pytest.mark.parametrize("way", WAYS)
def test_the_peak_of_a_large_checkpoint(tmp_path, way):
    """A sparse file of 0.3 or 0.4 GB in two shards, with a packed tensor: what is read at a time does not grow with the file."""
    (dtype, do, most), width = WAYS[way], 2048
    entries, itemsize, code = (24_001, 4, "F32") if dtype == "float32" else (34_003, 2, "BF16")
    model(tmp_path, entries, width)
    names = shapes(entries, width)
    total, places = 0, {}
    for k, part in enumerate(([*names][::2], [*names][1::2])):
        header, at = {}, 0
        for name in part:
            size = itemsize * int(np.prod(names[name]))
            header[name], at = {"dtype": code, "shape": names[name], "data_offsets": [at, at + size]}, at + size
        text = json.dumps(header).encode()
        shard = tmp_path / f"model-{k + 1:05}-of-00002.safetensors"
        shard.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(shard, 8 + len(text) + at)
        places |= dict.fromkeys(part, shard.name)
        total += at
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    done = subprocess.run([sys.executable, "-c", PEAK, tmp_path, dtype, do], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most * total, f"{int(done.stdout) / total:.2f} of the weights"


def test_progress_is_shown_on_terminals_only(tmp_path, capfd):
    made = model(tmp_path, 31, 7)
    save_file(checkpoint(31, 7), tmp_path / "w.safetensors")
    made.module(weights=tmp_path / "w.safetensors")
    made.export_weights(tmp_path / "w.safetensors", tmp_path / "o.safetensors")
    assert capfd.readouterr() == ("", "")
    for do, words in (("m.export_weights(w, at + '/o.safetensors')", ["writing"]), ("m.module(weights=w)", ["loading"]),
                      ("m.export(at + '/out', weights=w, certify='none')", ["writing"]),
                      ("m.export(at + '/out', weights=w)", ["loading", "writing", "certifying"])):
        leader, follower = os.openpty()
        code = f"import sys, nnspec; at = sys.argv[1]; m = nnspec.load(at + '/spec.yaml'); w = at + '/w.safetensors'; {do}"
        done = subprocess.run([sys.executable, "-c", code, tmp_path], stderr=follower, check=False)
        os.close(follower)
        shown = os.read(leader, 1 << 16).decode()
        assert done.returncode == 0 and all(word in shown for word in words), (do, shown)
