"""A small artifact: an embedding, a matrix product with external weights, and a residual input."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from nnspec.runtime import manifest as m
from tiny import ENTRIES, WIDTH, finish, make_manifest, node, save_model


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {"table": rng.standard_normal((ENTRIES, WIDTH), np.float32), "kernel": rng.standard_normal((WIDTH, WIDTH), np.float32)}


@pytest.fixture
def artifact(tmp_path: Path, weights) -> Path:
    """`hidden = embed(tokens) @ kernel + residual`, `total = length + length`; both matrices are external."""
    from onnx import TensorProto, helper

    folder = tmp_path / "tiny"
    folder.mkdir()
    blob = weights["table"].tobytes() + weights["kernel"].tobytes()
    name = f"weights-{hashlib.sha256(blob).hexdigest()[:16]}.bin"
    (folder / name).write_bytes(blob)
    tensors, offset = [], 0
    for key, value in weights.items():
        tensor = TensorProto(name=key, dims=value.shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        for k, v in (("location", name), ("offset", str(offset)), ("length", str(value.nbytes))):
            tensor.external_data.add(key=k, value=v)
        tensors.append(tensor)
        offset += value.nbytes
    info = helper.make_tensor_value_info
    save_model(folder, [
        node("Gather", ["table", "tokens"], "embedded", "embed", 4, axis=0),
        node("MatMul", ["embedded", "kernel"], "product", "layers.3.attention.query", 7),
        node("Add", ["product", "residual"], "hidden", "residual_add", 9),
        node("Add", ["length", "length"], "total", "total", 10),
    ], [info("tokens", TensorProto.INT64, ["B", "S"]), info("residual", TensorProto.FLOAT, ["B", "S", WIDTH]),
        info("length", TensorProto.INT64, ["B"])],
        [info("hidden", TensorProto.FLOAT, ["B", "S", WIDTH]), info("total", TensorProto.INT64, ["B"])], tensors)
    return finish(folder, make_manifest(data=(m.DataFile(name, len(blob), hashlib.sha256(blob).hexdigest()),)))
