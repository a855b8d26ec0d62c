"""Small artifacts written by hand with onnx.helper, without the compiler."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from nnspec.runtime import manifest as m

ENTRIES, WIDTH = 11, 3


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_manifest(**changes) -> m.Manifest:
    zeros = "0" * 64
    base = m.Manifest(
        name="tiny", form="full", target="ort-cpu", dtype="float32", producer="nnspec 0.1.0",
        model=m.ModelFile("model.onnx", zeros), data=(),
        inputs=(m.Input("tokens", "int64", ("B", "S"), {"S": 9}, ids_below=ENTRIES),
                m.Input("residual", "float32", ("B", "S", WIDTH)),
                m.Input("length", "int64", ("B",), length_of="S")),
        outputs=(m.Output("hidden", "float32", ("B", "S", WIDTH)), m.Output("total", "int64", ("B",))),
        structure="s1", identity="i1", parameters=42, sites=({"path": "layers.0.attention", "form": "none"},),
        certificate={"passed": True},
    )
    return replace(base, **changes)


def save_model(folder: Path, nodes, inputs, outputs, initializers=()) -> None:
    import onnx
    from onnx import helper

    graph = helper.make_graph(nodes, "tiny", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")


def node(op: str, inputs: list[str], output: str, path: str, line: int, **attributes):
    from onnx import helper

    made = helper.make_node(op, inputs, [output], name=f"{path}/{op}", **attributes)
    for key, value in (("nnspec.path", path), ("nnspec.line", f"tiny.yaml:{line}")):
        entry = made.metadata_props.add()
        entry.key, entry.value = key, value
    return made


def finish(folder: Path, manifest: m.Manifest) -> Path:
    """Write the manifest with the hash of the model file that lies in the folder."""
    m.write(folder, replace(manifest, model=m.ModelFile("model.onnx", sha(folder / "model.onnx"))))
    return folder


