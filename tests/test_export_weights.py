"""Foreign weights to ours and back: the same names, dtypes and bits."""

import json
import re
import subprocess
import sys

import nnspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nnspec.checkpoints import weight_file
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics
from safetensors import safe_open
from safetensors.torch import load_file, save_file

GPT2 = {"layers": 3, "width": 24, "heads": 3, "vocab": 47}
MINILM = {"layers": 2, "width": 24, "heads": 3, "vocab": 47, "hidden": 40}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def foreign(model, dtype):
    """Random tensors as the spec's `checkpoint:` wants them, odd numbers among them."""
    from nnspec.checkpoints.rules import sources
    from nnspec.ir.parameters import state_shapes
    from nnspec.lang.diagnostic import Sink
    wanted = {s.names[0]: s.shape for s in sources(model.foreign.rules, state_shapes(model.graph), Sink()).values()}
    made = torch.Generator().manual_seed(3)
    tensors = {n: torch.randn(shape, generator=made, dtype=torch.float64).to(dtype) for n, shape in wanted.items()}
    next(iter(tensors.values())).reshape(-1)[:3] = torch.tensor([float("inf"), -0.0, 1e-7]).to(dtype)
    return tensors


def same(path, tensors):
    """Whether a file holds exactly these tensors, bit for bit."""
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].reshape(-1).view(torch.uint8).equal(tensor.contiguous().reshape(-1).view(torch.uint8)), name
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "sizes"), [("gpt2", GPT2), ("minilm", MINILM)])
@pytest.mark.parametrize("streamed", [False, True])
def test_there_and_back_is_the_identity(tmp_path, monkeypatch, name, sizes, dtype, streamed):
    """foreign -> foreign, and foreign -> a file of ours -> foreign; with all large tensors in pieces, too."""
    if streamed:
        monkeypatch.setattr(weight_file, "LARGE", 50)
        monkeypatch.setattr(weight_file, "CHUNK", 101)
    model = nnspec.load(name, sizes)
    tensors = foreign(model, dtype)
    save_file(tensors, tmp_path / "theirs.safetensors")
    written = model.export_weights(tmp_path / "theirs.safetensors", tmp_path / "again.safetensors")
    same(tmp_path / "again.safetensors", tensors)
    assert (written.tensors, written.bytes) == (len(tensors), (tmp_path / "again.safetensors").stat().st_size)
    made = model.module(dtype=dtype, weights=tmp_path / "theirs.safetensors")
    save_file(made.state_dict(), tmp_path / "ours.safetensors")
    assert set(load_file(tmp_path / "ours.safetensors")) != set(tensors)
    model.export_weights(tmp_path / "ours.safetensors", tmp_path / "back.safetensors")
    same(tmp_path / "back.safetensors", tensors)
    model.export_weights(made, tmp_path / "module.safetensors", prefix="model.")
    same(tmp_path / "module.safetensors", {f"model.{n}": t for n, t in tensors.items()})


RULES = """
nnspec: 1
name: rules
inputs: {{x: "float[B, {i}]"}}
graph:
{nodes}
  sum: {{op: add, in: [{names}]}}
outputs: {{sum: sum}}
checkpoint:
  tensors:
    "[{names}].weight": {{from: packed, as: "{pattern}", {sizes}}}
    "one.bias": [first, second]
"""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_pattern_there_and_back(tmp_path, data):
    """Two matrices [h*d, i] of ours in one tensor whose pieces s, h, d, i stand in any order and grouping, with axes of one."""
    h, d, i = (data.draw(st.integers(2, 5)) for _ in range(3))
    order = data.draw(st.permutations(["s", "h", "d", "i"]))
    cuts = data.draw(st.sets(st.sampled_from([1, 2, 3])))
    groups, start = [], 0
    for cut in [*sorted(cuts), 4]:
        groups.append(order[start:cut])
        start = cut
    size = {"s": 2, "h": h, "d": d, "i": i}
    left = [(g[0] if len(g) == 1 else f"({' '.join(g)})", int(np.prod([size[n] for n in g]))) for g in groups]
    left.insert(data.draw(st.integers(0, len(left))), ("1", 1))
    nodes = "\n".join(f"  {n}: {{op: linear, in: x, width: {h * d}, bias: {'true' if n == 'one' else 'false'}}}" for n in ("one", "two"))
    text = RULES.format(i=i, nodes=nodes, names="one, two", pattern=f"{' '.join(a for a, _ in left)} -> s (h d) i", sizes=f"h: {h}")
    (tmp_path / "spec.yaml").write_text(text.lstrip())
    model = nnspec.load(tmp_path / "spec.yaml")
    tensors = {"packed": torch.randn([n for _, n in left]), "second": torch.randn(h * d)}
    save_file(tensors, tmp_path / "w.safetensors")
    made = model.module(weights=tmp_path / "w.safetensors").state_dict()
    axes = [n for g in groups for n in g]
    want = tensors["packed"].reshape([size[n] for n in axes]).permute([axes.index(n) for n in "shdi"]).reshape(2, h * d, i)
    assert made["one.weight"].equal(want[0]) and made["two.weight"].equal(want[1])
    model.export_weights(tmp_path / "w.safetensors", tmp_path / "back.safetensors")
    same(tmp_path / "back.safetensors", tensors)


TIED = """
nnspec: 1
name: tied
inputs: {x: "float[B, 5]"}
graph:
  one: {op: linear, in: x, width: 5, bias: false}
  two: {op: linear, in: one, width: 5, bias: false}
  three: {op: linear, in: two, width: 5, bias: false}
outputs: {three: three}
checkpoint:
  tensors: {one.weight: w, two.weight: w, three.weight: {from: v, as: "i o -> o i"}}
"""


def test_two_parameters_of_one_tensor_must_be_equal(tmp_path):
    (tmp_path / "spec.yaml").write_text(TIED.lstrip())
    model = nnspec.load(tmp_path / "spec.yaml")
    made = model.module(seed=2)
    out = tmp_path / "w.safetensors"
    out.write_bytes(b"before")
    with pytest.raises(Diagnostics, match="`one.weight` and `two.weight` would be one tensor `w`, and they differ") as caught:
        model.export_weights(made, out)
    assert caught.value.items[0].labels[0].span.text.startswith("one.weight")
    assert out.read_bytes() == b"before" and [*tmp_path.glob(".*")] == []
    with torch.no_grad():
        made.two.weight.copy_(made.one.weight)
    model.export_weights(made, out)
    same(out, {"w": made.one.weight.detach(), "v": made.three.weight.detach().T})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_dtype_is_rounded_to(tmp_path, dtype):
    model = nnspec.load("gpt2", GPT2)
    made = model.module(seed=5)
    model.export_weights(made, tmp_path / "w.safetensors", dtype)
    kind = getattr(torch, dtype)
    same(tmp_path / "w.safetensors", {n: t.to(kind) for n, t in export(model, made, tmp_path).items()})


def export(model, made, folder):
    model.export_weights(made, folder / "plain.safetensors")
    return load_file(folder / "plain.safetensors")


def test_what_does_not_fit_a_dtype_leaves_the_old_file(tmp_path):
    model = nnspec.load("gpt2", GPT2)
    made = model.module(seed=5)
    with torch.no_grad():
        made.layers[1].attention.key.weight[2, 3] = 1e6
    out = tmp_path / "w.safetensors"
    out.write_bytes(b"before")
    with pytest.raises(Diagnostics, match="too large for float16"):
        model.export_weights(made, out, "float16")
    assert out.read_bytes() == b"before" and [*tmp_path.iterdir()] == [out]


def test_a_packed_tensor_with_a_part_that_the_model_has_not(tmp_path):
    text = TIED.replace("{one.weight: w, two.weight: w,", '{"[one, two, four].weight": {from: w, as: "s o i -> s o i"},')
    (tmp_path / "spec.yaml").write_text(text.lstrip())
    model = nnspec.load(tmp_path / "spec.yaml")
    with pytest.raises(Diagnostics, match="it holds `four.weight` too"):
        model.export_weights(model.module(seed=1), tmp_path / "w.safetensors")


def test_wrong_requests(tmp_path):
    model = nnspec.load("gpt2", GPT2)
    made = model.module(seed=1)
    for path, dtype, part in ((tmp_path / "w.pt", None, "another ending"), (tmp_path / "no" / "w.safetensors", None, "cannot be written"),
                              (tmp_path / "w.safetensors", "int8", "no dtype `int8`")):
        with pytest.raises(Diagnostics, match=re.escape(part)):
            model.export_weights(made, path, dtype)
    with pytest.raises(Diagnostics, match="does not fit the model"):
        model.export_weights(torch.nn.Linear(3, 2), tmp_path / "w.safetensors")


def test_the_command(tmp_path, capsys):
    model = nnspec.load("minilm", MINILM)
    tensors = foreign(model, torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    sets = [f"--set={k}={v}" for k, v in MINILM.items()]
    with pytest.raises(SystemExit) as done:
        main(["export-weights", "minilm", *sets, "--weights", str(tmp_path), "-o", str(tmp_path / "o.safetensors"), "--prefix", "bert."])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / 'o.safetensors'}: {len(tensors)} tensors, ")
    same(tmp_path / "o.safetensors", {f"bert.{n}": t for n, t in tensors.items()})


def test_torch_is_not_imported_for_files(tmp_path):
    model = nnspec.load("gpt2", GPT2)
    save_file(foreign(model, torch.float32), tmp_path / "w.safetensors")
    code = (f"import sys, nnspec\nmodel, at = nnspec.load('gpt2', {json.dumps(GPT2)}), sys.argv[1]\n"
            "model.export_weights(at + '/w.safetensors', at + '/o.safetensors')\n"
            "assert not {'torch', 'onnx', 'onnxruntime', 'safetensors'} & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PREFIXED = """
nnspec: 1
name: prefixed
inputs: {x: "float[B, 5]"}
graph:
  one: {op: linear, in: x, width: 7, bias: false}
  head: {op: linear, in: one, width: 3, bias: false}
outputs: {head: head}
checkpoint:
  prefix: model.
  tensors: {one.weight: {from: w, as: "i o -> o i"}, head.weight: [w_head, lm_head]}
"""


def test_the_names_of_a_foreign_file_stay(tmp_path, capsys):
    """Some behind a prefix and some not, and the second of two names; those of a module are given by a file."""
    (tmp_path / "spec.yaml").write_text(PREFIXED.lstrip())
    model = nnspec.load(tmp_path / "spec.yaml")
    tensors = {"model.w": torch.randn(5, 7), "lm_head": torch.randn(3, 7)}
    save_file(tensors, tmp_path / "theirs.safetensors")
    model.export_weights(tmp_path / "theirs.safetensors", tmp_path / "again.safetensors")
    same(tmp_path / "again.safetensors", tensors)
    made = model.module(weights=tmp_path / "theirs.safetensors")
    model.export_weights(made, tmp_path / "plain.safetensors")
    same(tmp_path / "plain.safetensors", {"w": tensors["model.w"], "w_head": tensors["lm_head"]})
    save_file(made.state_dict(), tmp_path / "ours.safetensors")
    command = ["export-weights", str(tmp_path / "spec.yaml"), "--weights", str(tmp_path / "ours.safetensors"),
               "--like", str(tmp_path / "theirs.safetensors"), "-o", str(tmp_path / "like.safetensors")]
    with pytest.raises(SystemExit) as done:
        main(command)
    assert not done.value.code
    same(tmp_path / "like.safetensors", tensors)
    with pytest.raises(SystemExit) as done:
        main([*command, "--prefix", "model."])
    assert done.value.code == 2 and "not both" in capsys.readouterr().err
