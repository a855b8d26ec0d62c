"""Where ONNX Runtime would place nodes: the table of kernels against its own placement, and what a comparison tells of it."""

import json
import os
import re
import subprocess
import sys

import nnspec
import onnx
import pytest
from nnspec.backends.onnx import emit
from nnspec.cli import main
from nnspec.diff.exported.onnx_layer import ONNX_RULES, Exported, findings
from nnspec.diff.exported.providers import CPU, CUDA, Placed, _table, misplaced
from nnspec.diff.formats.layer_words import placements
from nnspec.prove import Missing, ready, standin
from onnx import TensorProto, helper
from zoo import HARD, MODELS, model

from .command import diff
from .command import onnx_layer as layer
from .convertible import PLAIN

PLACE = """
import sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CUDAExecutionProvider"])
"""
GRU = """nnspec: 1
name: tiny
inputs: {x: "float[B, S, 6]"}
graph:
  h: {op: gru, in: x, hidden: 5}
  y: {op: linear, in: h, width: 3}
outputs: {y: y}
"""
BEFORE = GRU.replace("hidden: 5", "hidden: 5, reset: before")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", GRU), ("b", BEFORE)):
        (tmp_path / f"{name}.yaml").write_text(text)

    def go(*arguments):
        return diff(capsys, *arguments)
    return go


def on_the_cpu(path, scratch):
    """The operators that a session over the stand-in device leaves to the CPU, of those that have numbers in no size."""
    try:
        libraries = standin()
    except Missing as missing:
        pytest.skip(f"{missing}: {missing.help}")
    (scratch / "place.py").write_text(PLACE)
    done = subprocess.run([sys.executable, scratch / "place.py", path], env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
                          capture_output=True, text=True, check=True)
    provider, found = "", set()
    for line in done.stderr.splitlines():
        if place := re.search(r"(?:Node\(s\) placed on|All nodes placed on) \[(\w+)\]", line):
            provider = place[1]
        elif (node := re.search(r"\]\s+(\w+) \(.*\)\s*$", line)) and provider == "CPUExecutionProvider":
            found.add(node[1])
    assert provider, done.stderr[-500:]
    return found - {"Concat", "Squeeze", "Mod", "Sub", "Mul", "Cast", "Shape", "Gather", "Equal"}           # of sizes, and around others


@pytest.mark.parametrize(("name", "target", "dtype", "want"), [
    ("image_chain", "ort-cpu", "float32", {"InstanceNormalization", "MaxPool"}), ("image_chain", "ort-cuda", "float16", set()),
    ("recurrent_stack", "portable", "float16", {"GRU"}), ("recurrent_stack", "ort-cuda", "bfloat16", set()),
    ("int_and_bool", "portable", "float32", {"Pad"}), ("conv_chain", "ort-cpu", "float16", {"MaxPool"}),
    ("conv_chain", "portable", "float32", set())])
def test_the_table_places_nodes_as_onnx_runtime_does(tmp_path, name, target, dtype, want):
    nnspec.load(HARD.parent / "compositions" / f"{name}.yaml").export(tmp_path / "out", init=0, target=target, dtype=dtype, certify="none")
    path = tmp_path / "out" / "model.onnx"
    assert {p.op for p in misplaced(onnx.load(path, load_external_data=False), {}, CUDA)} == want == on_the_cpu(path, tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b", "t5-small", "whisper-tiny", "additive-seq2seq", "bloom-560m"])
def test_the_table_knows_every_operator_and_exports_for_a_device_stay_on_it(name):
    assert name in MODELS
    for target, dtype, provider in (("ort-cuda", "float16", CUDA), ("ort-cuda", "bfloat16", CUDA), ("ort-cpu", "float32", CPU),
                                    ("ort-cpu", "float16", CPU), ("portable", "float32", CPU), ("portable", "float16", CUDA)):
        made = emit(model(name).lowered, target, dtype)
        ops = {f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in made.model.graph.node}
        assert ops <= {*_table()["ops"]}
        dtypes = {r.name: {"uint8": "UINT8"}.get(r.element or "", dtype.upper().replace("FLOAT32", "FLOAT")) for r in made.weights}
        assert misplaced(made.model, dtypes, provider) == []


def test_bfloat16_has_no_kernels_on_the_cpu():
    made = emit(model("gpt2").lowered, "ort-cuda", "bfloat16")
    found = misplaced(made.model, {r.name: "BFLOAT16" for r in made.weights}, CPU)
    assert {"MatMul", "Add"} <= {p.op for p in found} and {p.on for p in found} == {"none"}
    assert all(p.path and "bfloat16" in p.dtypes for p in found)


def small(op, domain="", opset=24, inputs=("x", "x", "x"), kind=TensorProto.FLOAT, **attributes):
    node = helper.make_node(op, list(inputs), ["y"], name="n", domain=domain, **attributes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", kind, None)], [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])


def test_kernels_are_looked_up_by_type_and_version():
    """GroupQueryAttention has kernels for halves alone on CUDA; the newest MaxPool none."""
    gqa = {"op": "GroupQueryAttention", "domain": "com.microsoft", "num_heads": 2, "kv_num_heads": 1}
    assert misplaced(small(**gqa), {}, CUDA) == [Placed("n", "GroupQueryAttention", "float32", "cpu")]
    assert misplaced(small(**gqa, kind=TensorProto.FLOAT16), {}, CUDA) == misplaced(small(**gqa), {}, CPU) == []
    pool = {"op": "MaxPool", "inputs": ("x",), "kernel_shape": [2, 2]}
    assert [len(misplaced(small(**pool, opset=n), {}, CUDA)) for n in (18, 21, 22, 24)] == [0, 0, 1, 1]
    assert misplaced(small("Conv"), {}, CUDA)[0].on == "cpu"                            # its kernel is no weight
    assert misplaced(small("Swish", inputs=("x",)), {}, CUDA) == []                      # written out where it stands
    assert misplaced(small("TopK", opset=18, inputs=("x", "k"), kind=TensorProto.BFLOAT16), {}, CUDA)[0].on == "none"


@pytest.mark.parametrize("op, attributes, lost", [
    ("GRU", {"linear_before_reset": 1}, False), ("GRU", {}, True), ("LSTM", {}, False), ("LSTM", {"clip": 3.0}, True),
    ("LSTM", {"activations": ["Sigmoid", "Tanh", "Tanh"]}, False), ("LSTM", {"activations": ["Relu", "Tanh", "Tanh"]}, True),
    ("RNN", {"activations": ["Tanh", "Tanh"], "direction": "bidirectional"}, False), ("RNN", {"activations": ["Relu"]}, True)])
def test_cudnn_computes_some_recurrences_only(op, attributes, lost):
    assert [p.on for p in misplaced(small(op, hidden_size=3, **attributes), {}, CUDA)] == ["cpu"] * lost


def test_types_are_followed_into_bodies_and_through_casts():
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), helper.make_node("MatMul", ["h", "h"], ["y"])]
    body = helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, None)])
    node = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    graph = helper.make_graph([node, helper.make_node("Add", ["z", "z"], ["w"])], "g", [
        helper.make_tensor_value_info("c", TensorProto.BOOL, None), helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], [])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    assert [p.op for p in misplaced(made, {}, CPU)] == ["MatMul", "MatMul", "Add"]
    assert {(p.dtypes, p.on) for p in misplaced(made, {}, CPU)} == {("bfloat16", "none")}
    assert misplaced(made, {}, CUDA) == []


@pytest.fixture(params=[False, True], ids=["table", "dry run"])
def dry(request, monkeypatch):
    """Whether the device is dry-run; else the table alone is there."""
    def absent():
        raise Missing("there is no g++ here")
    if not request.param:
        monkeypatch.setattr("nnspec.diff.exported.dry_run.ready", absent)
        return False
    try:
        ready()
    except Missing as missing:
        pytest.skip(f"{missing}: {missing.help}")
    return True


def test_a_node_that_leaves_cuda_is_a_fallback_and_coming_back_its_mirror(run, dry):
    for name in "ab":
        nnspec.load(f"{name}.yaml").export(name, init=0, certify="none")
    found = layer(run, "a", "b", "--ep", "cuda")
    (lost,) = [f for f in found["findings"] if f["rule"].startswith("onnx.ep")]
    assert [lost[k] for k in ("rule", "level", "where", "before", "after")] == ["onnx.ep-fallback", "warning", "h", "cuda", "cpu"]
    assert (lost["note"], lost["line"]) == ("CUDA does not take GRU of float32", "b.yaml:5")
    assert found["sides"][0]["misplaced"] == [] and found["provider"] == "cuda" and found["runtime"] == "ONNX Runtime 1.31"
    assert ("selected (dry run), ONNX Runtime" if dry else "(no dry run: there is no g++ here)") in found["how"]
    assert found["sides"][1]["misplaced"] == [{"where": "h", "op": "GRU", "dtypes": "float32", "on": "cpu", "count": 1}]
    (back,) = [f for f in layer(run, "b", "a", "--ep", "cuda")["findings"] if f["rule"].startswith("onnx.ep")]
    assert (back["rule"], back["before"], back["after"]) == ("onnx.ep-restored", "cpu", "cuda")
    assert not any(f["rule"].startswith("onnx.ep") for f in layer(run, "a", "b")["findings"])       # made for the CPU, where it runs
    assert run("a", "b", "--ep", "cuda", "--fail-on", "deploy")[0] == 1 and run("a", "b", "--fail-on", "deploy")[0] == 0


def test_attention_kernels_are_those_of_the_dry_run(run, tmp_path):
    """Exports for the CPU run on CUDA too, without fused kernels; specs are run with weights that are zeros."""
    try:
        ready()
    except Missing as missing:
        pytest.skip(f"{missing}: {missing.help}")
    text = PLAIN.replace("width: 24", "width: 48")
    (tmp_path / "c.yaml").write_text(text)
    (tmp_path / "d.yaml").write_text(text.replace("causal: true}", "causal: true, kv_heads: 4}"))
    for target, dtype in (("ort-cpu", "float32"), ("ort-cuda", "float16")):
        nnspec.load("c.yaml").export(target, init=0, target=target, dtype=dtype, certify="none")
    found = layer(run, "ort-cuda", "ort-cpu", "--ep", "cuda")
    (lost,) = [f for f in found["findings"] if f["rule"].startswith("onnx.kernel")]
    assert [lost[k] for k in ("rule", "level", "where", "before", "after", "count")] == [
        "onnx.kernel-lost", "warning", "layers.{0..3}.attention.attended", "FLASH", "MATH", 4]
    assert [s["kernels"] for s in found["sides"]] == [{"FLASH": 4}, {"MATH": 4}]
    (back,) = [f for f in layer(run, "ort-cpu", "ort-cuda", "--ep", "cuda")["findings"] if f["rule"].startswith("onnx.kernel")]
    assert (back["rule"], back["before"], back["after"]) == ("onnx.kernel-gained", "MATH", "FLASH")
    specs = layer(run, "c.yaml", "d.yaml", "--ep", "cuda")
    assert [s["kernels"] for s in specs["sides"]] == [{"FLASH": 4}] * 2 and not any("kernel" in f["rule"] for f in specs["findings"])
    assert "attention: FLASH x4 -> MATH x4" in run("ort-cuda", "ort-cpu", "--ep", "cuda")[1]


def test_what_cannot_be_run_is_looked_up(run, monkeypatch):
    nnspec.load("a.yaml").export("bare", no_weights=True, certify="none")
    found = layer(run, "bare", "b.yaml", "--ep", "cuda")
    assert "no dry run: " in found["how"] and "the kernels of ONNX Runtime" in found["how"]
    assert [f["where"] for f in found["findings"] if f["rule"] == "onnx.ep-fallback"] == ["h"]
    assert {s["kind"] for s in found["sides"]} == {"no-weights"}                    # the spec as the other was exported
    monkeypatch.setattr("nnspec.diff.exported.dry_run.LARGEST", 10)
    monkeypatch.setattr("nnspec.diff.exported.dry_run.ready", lambda: None)
    assert "parameters is not run" in layer(run, "a.yaml", "b.yaml", "--ep", "cuda")["how"]


def test_two_specs_are_compared_as_they_would_be_exported(run):
    found = layer(run, "a.yaml", "b.yaml", "--onnx")
    assert found["note"] == "both as they would be exported for ort-cuda in float16" and found["sides"][0]["target"] == "ort-cuda"
    (lost,) = [f for f in found["findings"] if f["rule"] == "onnx.fusion-lost"]
    assert (lost["before"], lost["after"], lost["line"]) == ("GRU", "Scan", "b.yaml:5")
    assert {f["rule"] for f in found["findings"]} >= {"onnx.op-added", "onnx.op-removed", "onnx.weight-added", "onnx.weight-removed"}
    assert [layer(run, "a.yaml", "b.yaml", *more)["sides"][0]["dtype"] for more in (["--ep", "cpu"], ["--onnx", "--dtype", "float32"])] == [
        "float32", "float32"]
    assert "onnx" not in json.loads(run("a.yaml", "b.yaml", "-f", "json")[1])["layers"]
    code, out, _ = run("a.yaml", "b.yaml", "--onnx")
    assert code == 0 and "onnx.fusion-lost  h" in out and max(map(len, out.splitlines())) <= 100
    assert re.search(r"onnx\.op-removed +GRU x1, ", out)                              # operators of one kind on one line


def test_a_file_that_no_session_opens_is_breaking(run):
    nnspec.load("a.yaml").export("half", init=0, target="ort-cuda", dtype="float16", certify="none")
    nnspec.load("a.yaml").export("brain", init=0, target="ort-cuda", dtype="bfloat16", certify="none")
    found = layer(run, "half", "brain", "--ep", "cpu")
    mine = [f for f in found["findings"] if f["rule"].startswith("onnx.ep")]
    assert mine and {(f["rule"], f["level"], f["after"]) for f in mine} == {("onnx.ep-unsupported", "breaking", "none")}
    back = [f for f in layer(run, "brain", "half", "--ep", "cpu")["findings"] if f["rule"].startswith("onnx.ep")]
    assert {(f["rule"], f["before"]) for f in back} == {("onnx.ep-supported", "none")}
    assert any("with no kernel on CPU, so that no session opens: " in line for line in placements(found))
    assert run("half", "brain", "--ep", "cpu", "--fail-on", "breaking")[0] == 1


@pytest.mark.parametrize("old, new, rule", [(None, "cpu", "fallback"), ("cpu", None, "restored"), (None, "none", "unsupported"),
                                            ("none", "cpu", "supported"), ("cpu", "none", "unsupported"), ("none", None, "supported")])
def test_every_step_of_a_placement_has_its_mirror(old, new, rule):
    made = [Exported("", "portable", "float32", "full", {}, {}, {}, {}, {}, {}, {"n": "a.yaml:3"},
                     {CUDA: (Placed("n", "MaxPool", "float32", on),) if on else ()}) for on in (old, new)]
    (there,), (back,) = findings(*made, CUDA), findings(*made[::-1], CUDA)
    assert there.rule == f"onnx.ep-{rule}" and ONNX_RULES[there.rule][0] == back.rule
    assert (there.before, there.after) == (back.after, back.before) == (old or "cuda", new or "cuda") and there.line == "a.yaml:3"


def test_wrong_commands(run):
    for wrong, words in ((["a.yaml", "b.yaml", "--ep", "gpu"], "gpu"), (["--git", "HEAD", "--onnx"], "range of commits"),
                         (["a.yaml", "nothing", "--onnx"], "nothing")):
        code, out, err = run(*wrong)
        assert (code, out) == (2, "") and words in err and "Traceback" not in err
    with pytest.raises(SystemExit):
        main(["lock", "a.yaml"])
    code, out, err = run("a.nnspec.lock", "b.yaml", "--onnx")
    assert code == 2 and "bad-lock" in err
