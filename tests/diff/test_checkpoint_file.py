"""`nnspec diff --checkpoint`: an actual weight file held against both specs, by its header alone."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree as xml

import jsonschema
import numpy as np
import pytest
import torch
from nnspec.diff.formats.as_json import schema
from safetensors.torch import save_file

from .convertible import DEEPER, GATED, GQA, PLAIN, RENAMED, WINDOWED, put, saved, weights
from .test_commands import files, run  # noqa: F401

FOREIGN = PLAIN + """checkpoint:
  prefix: model.
  ignore: [mlm.*]
  tensors:
    embed.weight: wte
    layers.{i}.attention.[query, key, value].weight: {from: "h.{i}.qkv", as: "(s o) i -> s o i"}
"""


@pytest.fixture
def pair(files, tmp_path):  # noqa: F811
    files(a=PLAIN, g=GQA, x=GATED, d=DEEPER, r=RENAMED, w=WINDOWED, broken="graph: {x: {op: foo")
    saved(tmp_path / "old.safetensors", PLAIN)


def layer(capsys, *more):
    found = json.loads(run(capsys, "diff", *more, "-f", "json")[1])
    jsonschema.Draft202012Validator(schema()).validate(found)
    return found["layers"]["checkpoint"]


@pytest.mark.parametrize("head, counts", [
    ("a", (68, 0, 0, 0)), ("g", (52, 16, 0, 0)), ("x", (52, 8, 4, 8)), ("d", (68, 0, 32, 0)), ("r", (67, 0, 1, 1)), ("w", (68, 0, 0, 0))])
def test_counts_are_those_that_torch_finds(pair, capsys, tmp_path, head, counts):
    from nnspec.model import load
    found = layer(capsys, "a.yaml", f"{head}.yaml", "--checkpoint", "old.safetensors")
    assert found["base"]["fits"] and found["dtypes"] == {"float32": 68} and found["silent"] == (head == "w")
    said = found["head"]["counts"]
    assert tuple(said[k] for k in ("as-is", "reshaped", "missing", "unexpected")) == counts and said["other-dtype"] == 0
    old, module = weights(PLAIN), load(tmp_path / f"{head}.yaml").module(seed=0)
    new = module.state_dict()
    fits = {n for n in new if n in old and new[n].shape == old[n].shape}
    loaded = module.load_state_dict({n: v for n, v in old.items() if n not in new or n in fits}, strict=False)
    assert (len(fits), len(loaded.unexpected_keys)) == (counts[0], counts[3])
    assert len(set(loaded.missing_keys) - set(old)) == counts[2]
    code = run(capsys, "diff", "a.yaml", f"{head}.yaml", "--checkpoint", "old.safetensors", "--fail-on", "checkpoint")[0]
    assert code == (head != "a")


def test_a_file_that_is_none_of_the_base(pair, capsys):
    code, out, _ = run(capsys, "diff", "g.yaml", "a.yaml", "--checkpoint", "old.safetensors")
    assert code == 0 and "NOT one of BASE: 52 load as they are, 16 of other shapes" in out and "it loads into HEAD as it is" in out
    assert "layers.{0..3}.attention.key.weight  should be [8, 24], is [24, 24]" in out and all(len(x) <= 100 for x in out.splitlines())
    assert run(capsys, "diff", "g.yaml", "g.yaml", "--checkpoint", "old.safetensors", "--fail-on", "checkpoint")[0] == 1
    code, out, _ = run(capsys, "diff", "a.yaml", "w.yaml", "--checkpoint", "old.safetensors")
    assert "loads into HEAD as it is, and computes something else there" in out


def test_every_format_says_it(pair, capsys):
    given = ("g.yaml", "x.yaml", "--checkpoint", "old.safetensors")
    said = "NOT one of BASE: 52 load as they are, 16 of other shapes"
    for form in ("text", "md", "github", "junit", "html", "json"):
        out = run(capsys, "diff", *given, "-f", form)[1]
        assert said in out if form not in ("html", "json") else "old.safetensors" in out and "reshaped" in out, form
    suite = xml.fromstring(run(capsys, "diff", *given, "-f", "junit")[1].split("\n", 1)[1]).find("testsuite")
    assert suite.get("tests") == str(len(suite.findall("testcase"))) == "3"
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) == 2
    out = run(capsys, "diff", "a.yaml", "a.yaml", "--checkpoint", "old.safetensors", "-f", "md")[1]
    assert "No architectural change" in out and "**one of BASE**" in out
    out = run(capsys, "diff", "a.yaml", "a.yaml", "--checkpoint", "old.safetensors")[1]
    assert "no architectural change" in out and "one of BASE" in out


def test_a_file_with_foreign_names_and_shards(files, capsys, tmp_path):  # noqa: F811
    files(a=FOREIGN, b=put(FOREIGN, ("vocab: 101", "vocab: 103")))
    old = {f"model.{k}": v.to(torch.bfloat16) for k, v in weights(PLAIN).items()}
    old["model.wte"] = old.pop("model.embed.weight")
    for i in range(4):
        old[f"model.h.{i}.qkv"] = torch.cat([old.pop(f"model.layers.{i}.attention.{n}.weight") for n in ("query", "key", "value")])
    old |= {"mlm.bias": torch.ones(3), "model.h.0.attn.masked_bias": torch.ones(1)}
    names = sorted(old)
    shards = {"s1.safetensors": names[:30], "s2.safetensors": names[30:]}
    (tmp_path / "old").mkdir()
    for file, some in shards.items():
        save_file({n: old[n].contiguous() for n in some}, tmp_path / "old" / file)
    index = {"metadata": {}, "weight_map": {n: f for f, some in shards.items() for n in some}}
    (tmp_path / "old" / "model.safetensors.index.json").write_text(json.dumps(index))
    found = layer(capsys, "a.yaml", "b.yaml", "--checkpoint", "old")
    assert found["base"]["fits"] and found["tensors"] == len(old) and found["dtypes"] == {"bfloat16": len(old) - 2, "float32": 2}
    assert [(r["status"], r["names"]) for r in found["head"]["rows"] if r["status"] != "as-is"] == [("reshaped", "embed.weight")]


def test_quantised_tensors_are_told(pair, capsys, tmp_path):
    held = weights(PLAIN)
    held["norm.weight"] = torch.ones(24, dtype=torch.int8)
    save_file(held, tmp_path / "q.safetensors")
    found = layer(capsys, "a.yaml", "a.yaml", "--checkpoint", "q.safetensors")
    assert found["base"]["counts"]["other-dtype"] == 1 and not found["base"]["fits"]
    assert "no plain floats: norm.weight  int8" in run(capsys, "diff", "a.yaml", "a.yaml", "--checkpoint", "q.safetensors")[1]


def test_lock_files_and_archives(pair, capsys, tmp_path):
    np.savez(tmp_path / "old.npz", **{k: v.numpy() for k, v in weights(PLAIN).items()})
    run(capsys, "lock", "a.yaml", "g.yaml")
    one = layer(capsys, "a.nnspec.lock", "g.nnspec.lock", "--checkpoint", "old.npz")
    two = layer(capsys, "a.yaml", "g.yaml", "--checkpoint", "old.safetensors")
    for side in ("base", "head"):
        assert one[side]["counts"] == two[side]["counts"] and one[side]["fits"] == two[side]["fits"] == (side == "base")
        assert sorted(map(str, one[side]["rows"])) == sorted(map(str, two[side]["rows"]))


def test_a_file_that_cannot_be_read(pair, capsys, tmp_path):
    whole = (tmp_path / "old.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-9])
    (tmp_path / "text.safetensors").write_text("no weights")
    for bad in ("cut.safetensors", "text.safetensors", "nothing.safetensors", "a.yaml"):
        code, out, err = run(capsys, "diff", "a.yaml", "g.yaml", "--checkpoint", bad)
        assert (code, out) == (2, "") and "error[bad-weights]" in err and bad in err
    assert run(capsys, "diff", "--git", "HEAD", "--checkpoint", "old.safetensors")[0] == 2
    assert run(capsys, "diff", "a.yaml", "broken.yaml", "--checkpoint", "nothing.safetensors")[0] == 2


def test_only_the_header_is_read_and_no_framework(pair, tmp_path):
    entry = {"dtype": "F32", "shape": [101, 24], "data_offsets": [0, 9696]}
    shapes = {n: list(v.shape) for n, v in weights(PLAIN).items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = entry | {"shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(tmp_path / "sparse.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    code = ("import sys\nfrom nnspec.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as done:\n    assert not done.code\n"
            "print(sorted({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, "diff", "a.yaml", "g.yaml", "--checkpoint", "sparse.safetensors"],
                          capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]" and re.search(r"68 tensors \(float32\), one of BASE", done.stdout)
