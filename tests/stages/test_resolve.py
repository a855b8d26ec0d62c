"""The resolved spec is one file that means the same."""

from pathlib import Path

import nnspec
import onnx
import pytest
import yaml
from nnspec.ir.text import identity_hash

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(p for folder in ("specs/models", "specs/variants", "tests/specs/hard") for p in (ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_needs_no_other_file_and_has_the_same_identity(path, tmp_path):
    model = nnspec.load(path)
    alone = tmp_path / "alone.yaml"
    alone.write_text(model.spec_text)
    assert not {"use", "base", "set"} & set(yaml.safe_load(model.spec_text))
    assert identity_hash(nnspec.load(alone).graph) == identity_hash(model.graph)


def test_sizes_as_set_are_in_the_file(tmp_path):
    model = nnspec.load("g2p", {"hidden": 16, "embed": 8})
    model.export(tmp_path / "out", init=0, certify="none")
    data = {p.key: p.value for p in onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).metadata_props}
    (tmp_path / "again.yaml").write_text(data["nnspec.spec"])
    again = nnspec.load(tmp_path / "again.yaml")
    assert identity_hash(again.graph) == data["nnspec.identity"] == identity_hash(model.graph)


def test_two_blocks_of_one_name_leave_the_file_as_written(tmp_path):
    for name, width in (("a", 3), ("b", 4)):
        (tmp_path / f"{name}.yaml").write_text(
            f"nnspec: 1\nuse: [./{name}2.yaml]\n"
            f"blocks:\n  {name}: {{inputs: {{in: 'float[B, D]'}}, graph: {{x: {{block: same, in: in}}}}}}\n")
        (tmp_path / f"{name}2.yaml").write_text(
            f"nnspec: 1\nblocks:\n  same: {{inputs: {{in: 'float[B, D]'}}, graph: {{x: {{op: linear, in: in, width: {width}}}}}}}\n")
    text = "nnspec: 1\nuse: [./a.yaml, ./b.yaml]\ninputs: {x: 'float[B, 5]'}\n"
    text += "graph: {p: {block: a, in: x}, q: {block: b, in: x}}\noutputs: [p, q]\n"
    (tmp_path / "spec.yaml").write_text(text)
    model = nnspec.load(tmp_path / "spec.yaml")
    assert model.parameters == 5 * 3 + 3 + 5 * 4 + 4
    assert model.spec_text == text
