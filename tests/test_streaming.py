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
from nnspec import weight_file
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
    with weight_file.Path(file).open("r+b") as handle, nnspec.weights.open_weights(file) as held:
        handle.truncate(5000)
        with pytest.raises(nnspec.lang.diagnostic.Diagnostics, match="ends early"):
            np.asarray(made.loader(held)("embed.weight", whole=False))


PEAK = """
import resource, sys, nnspec, nnspec.weights, nnspec.backends.onnx, nnspec.export
model = nnspec.load(sys.argv[1] + "/spec.yaml")
model.lowered
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.export(sys.argv[1] + "/out", weights=sys.argv[1] + "/w.safetensors", certify="none")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_the_peak_of_a_large_export_is_a_fraction_of_its_weights(tmp_path):
    """A sparse file of 0.4 GB: what is read at a time does not grow with the file, but for an eighth of a turned matrix."""
    entries, width = 24_001, 2048
    model(tmp_path, entries, width)
    header, at = {}, 0
    for name, shape in shapes(entries, width).items():
        size = 4 * int(np.prod(shape))
        header[name], at = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}, at + size
    text = json.dumps(header).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(tmp_path / "w.safetensors", 8 + len(text) + at)
    done = subprocess.run([sys.executable, "-c", PEAK, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 0.3 * at, f"{int(done.stdout) / at:.2f} of the weights"
