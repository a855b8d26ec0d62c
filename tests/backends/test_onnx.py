"""The ONNX backend against the PyTorch module, numpy and its own promises about files."""

import json
import shutil
import time

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
import torch
from nnspec import runtime
from nnspec.backends.onnx import emit, write
from nnspec.backends.onnx.interface import interface
from nnspec.backends.torch import build
from nnspec.ir.parameters import state_shapes
from nnspec.lang.diagnostic import Diagnostics
from nnspec.ops.base import ALL_TARGETS, Form
from nnspec.ops.linear import Linear
from nnspec.pipeline import front
from nnspec.runtime.data import random_inputs

TARGETS = ("ort-cpu", "ort-cuda", "portable")

TIED = """
sizes: {vocab: 31, width: 12}
inputs: {tokens: "int64[B, S]"}
graph:
  embed: {op: embedding, in: tokens, entries: vocab, width: width}
  mixed: {op: linear, in: embed, width: width}
  logits: {op: linear, in: mixed, weight: embed.weight, bias: false}
outputs: {logits: logits}
"""
AFFINE = """
inputs: {image: "float[B, 3, 4*H, 4*W + 5]"}
graph:
  patches: {op: conv2d, in: image, width: 5, kernel: 4, stride: 4}
  rows: {op: rearrange, in: patches, as: "b c h w -> b (h w) c"}
  ones: {op: full, value: 2, shape: "[B, H * (W + 1), 5]"}
  steps: {op: range, to: W, dtype: float}
  out: {op: add, in: [rows, ones]}
outputs: {out: out, steps: steps}
"""
REPEAT = """
sizes: {n: 5, width: 6}
inputs: {x: "float[B, S, width]", memory: "float[n, B, S, width]"}
graph:
  tables: {branch: n + 1, op: parameter, shape: "[width]"}
  layers:
    repeat: n
    block: layer
    in: x
    each: {memory: memory, low: {from: tables.all, at: i}, high: {from: tables.all, at: i + 1}, last: {from: memory, at: n - 1 - i}}
    pattern:
      - {times: 2, inner: {op: tanh}}
      - {inner: {block: wide, hidden: 2 * i + 1}}
  shared: {repeat: 4, share: "i // 2", block: layer, in: layers, inner: {op: sigmoid}, memory: x, low: first, high: first, last: x}
  first: {op: take, in: tables.all, axis: 0, at: 0}
  whole: {op: sum, in: layers.all.kept, axis: 0}
outputs: {layers: layers, kept: layers.kept, whole: whole, shared: shared, every: shared.all.kept}
blocks:
  layer:
    slots: {inner: "float[*b, w] -> float[*b, w]"}
    inputs: {in: "float[B, S, D]", memory: "float[B, S, D]", low: "float[D]", high: "float[D]", last: "float[B, S, D]"}
    graph:
      dense: {op: linear, in: in, width: D}
      inside: {slot: inner, in: dense}
      kept: {op: add, in: [inside, memory, low]}
      turned: {op: multiply, in: [last, high]}
      out: {op: add, in: [kept, turned]}
    outputs: {out: out, kept: kept}
  wide:
    settings: {hidden: int}
    inputs: {in: "float[*b, D]"}
    graph:
      up: {op: linear, in: in, width: hidden}
      down: {op: linear, in: up, width: D}
"""
ROUTED = """
sizes: {experts: 5, k: 2, width: 6}
inputs: {x: "float[B, S, width]"}
graph:
  score: {op: linear, in: x, width: experts}
  chance: {op: softmax, in: score}
  pick: {op: top_k, in: chance, k: k}
  mix: {branch: experts, block: expert, in: x, hidden: 4, route: {weights: pick.values, indices: pick.indices}}
outputs: {mix: mix, indices: pick.indices}
blocks:
  expert:
    settings: {hidden: int}
    inputs: {in: "float[*b, D]"}
    graph:
      up: {op: linear, in: in, width: hidden}
      act: {op: relu, in: up}
      down: {op: linear, in: act, width: D}
"""
SCAN = """
sizes: {width: 4}
inputs: {x: "float[B, T, width]", start: "float[B, width]", extra: "float[B, M, width]", length: "int64[B]"}
graph:
  s: {scan: step, along: T, each: {x: x}, carry: {h: start, seen: 0}, length: length, extra: extra, BACKWARD}
outputs: {y: s.y, h: s.last.h, seen: s.last.seen}
blocks:
  step:
    inputs: {x: "float[B, D]", h: "float[B, D]", seen: "int64[B]", extra: "float[B, M, D]"}
    graph:
      keys: {op: linear, in: extra, width: D}
      pooled: {op: mean, in: keys, axis: 1}
      mixed: {op: linear, in: h, width: D, bias: false}
      sum: {op: add, in: [mixed, x, pooled]}
      next: {op: tanh, in: sum}
      more: {op: add, in: [seen, 1]}
      y: {op: scale, in: next, by: 3}
    outputs: {y: y, h: next, seen: more}
"""
ENDLESS = SCAN.replace("length: length, extra: extra, BACKWARD", "extra: extra").replace(', length: "int64[B]"', "")
SCAN_FORWARD = SCAN.replace(", BACKWARD", "")
OPTIONAL = """
inputs: {x: "float[B, S, 8]", keep: "optional bool[B, S]", length: "optional int64[B]"}
graph:
  inside: {op: length_mask, in: length, like: x}
  both: {op: and, in: [keep, inside]}
  heads: {op: rearrange, in: x, as: "b s (h d) -> b h s d", h: 2}
  attend: {op: attention, query: heads, key: heads, value: heads, keep: both}
  out: {op: rearrange, in: attend, as: "b h s d -> b s (h d)"}
outputs: {out: out}
"""


def graph_of(tmp_path, text):
    path = tmp_path / "spec.yaml"
    path.write_text("nnspec: 1\nname: small\n" + text.lstrip())
    return front(path).lowered()


def arrays_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {path: rng.standard_normal(shape).astype(np.float32) * 0.4 for path, shape in state_shapes(graph).items()}


def export(graph, folder, arrays, target="ort-cpu", dtype="float32", absent=()):
    emitted = emit(graph, target, dtype, absent, spec="the text")
    write(emitted, folder, arrays.__getitem__)
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=target == "portable")
    return emitted


def module_of(graph, arrays):
    made = build(graph, seed=0)
    made.load_state_dict({k: torch.from_numpy(v) for k, v in arrays.items()})
    return made.eval()


def reference(module, feeds, outputs):
    with torch.no_grad():
        got = module(**{k: torch.from_numpy(v) for k, v in feeds.items()})
    got = got if isinstance(got, dict) else {outputs[0].name: got}
    return {k: v.numpy() for k, v in got.items()}


def agree(got, want, atol=1e-5):
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        assert got[name].dtype.kind == value.dtype.kind, name
        np.testing.assert_allclose(got[name], value, atol=atol, rtol=atol, err_msg=name)


def sizes_of(manifest):
    return [{n: k + 3 for k, n in enumerate(manifest.free_names)}, dict.fromkeys(manifest.free_names, 1)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("text", [TIED, AFFINE, REPEAT, ROUTED, OPTIONAL, SCAN_FORWARD],
                         ids=["tied", "affine", "repeat", "routed", "optional", "scan"])
def test_equals_the_module(tmp_path, text, target):
    graph = graph_of(tmp_path, text)
    arrays = arrays_of(graph)
    export(graph, tmp_path / "out", arrays, target)
    artifact, module = runtime.open(tmp_path / "out"), module_of(graph, arrays)
    for seed, sizes in enumerate(sizes_of(artifact.manifest)):
        feeds = random_inputs(artifact.manifest, sizes, seed)
        agree(artifact(**feeds), reference(module, feeds, artifact.outputs))


@pytest.mark.parametrize("text", [TIED, ROUTED, SCAN_FORWARD], ids=["tied", "routed", "scan"])
def test_half_precision_is_near_the_float32_module(tmp_path, text):
    graph = graph_of(tmp_path, text)
    arrays = arrays_of(graph)
    export(graph, tmp_path / "out", arrays, dtype="float16")
    artifact = runtime.open(tmp_path / "out")
    feeds = random_inputs(artifact.manifest, sizes_of(artifact.manifest)[0], 0)
    wide = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()}
    got, want = artifact(**feeds), reference(module_of(graph, arrays), wide, artifact.outputs)
    assert {v.dtype for v in got.values()} - {np.dtype("int64")} == {np.dtype("float16")}
    agree({k: v.astype(want[k].dtype) for k, v in got.items()}, want, atol=2e-2)


def test_bfloat16_is_written_as_its_bits(tmp_path):
    graph = graph_of(tmp_path, TIED)
    arrays = arrays_of(graph)
    write(emit(graph, "ort-cuda", "bfloat16"), tmp_path, arrays.__getitem__)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    bias = next(t for t in model.graph.initializer if t.name == "mixed.bias")
    want = torch.from_numpy(arrays["mixed.bias"]).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(np.frombuffer(bias.raw_data, np.int16), want)


# depth


def initializers(graph, **settings):
    return {r.name: r for r in emit(graph, "ort-cpu", **settings).weights}


def test_a_tied_matrix_is_stored_once(tmp_path):
    graph = graph_of(tmp_path, TIED)
    emitted = export(graph, tmp_path / "out", arrays_of(graph))
    held = [r for r in emitted.weights if "embed.weight" in r.parameters]
    assert [(r.name, r.kind) for r in held] == [("embed.weight", "plain")]
    assert [list(n.input) for n in emitted.model.graph.node if n.op_type == "Transpose"] == [["embed.weight"]]
    assert sum(d.bytes for d in runtime.open(tmp_path / "out").manifest.data) == 31 * 12 * 4


def test_shared_copies_share_initializers(tmp_path):
    graph = graph_of(tmp_path, REPEAT)
    emitted = emit(graph, "ort-cpu")
    used = [p for r in emitted.weights for p in r.parameters]
    assert sorted(used) == sorted(set(used)) == sorted(state_shapes(graph))
    nodes = [n for n in emitted.model.graph.node if n.name.startswith("shared.") and n.op_type == "MatMul"]
    assert [n.input[1].split(":")[0] for n in nodes] == [f"shared.{i}.dense.weight" for i in (0, 0, 2, 2)]


def test_elements_of_lists_are_read_from_the_list(tmp_path):
    graph = graph_of(tmp_path, REPEAT)
    nodes = emit(graph, "ort-cpu").model.graph.node
    add = next(n for n in nodes if n.name == "layers.3.kept/Add_2")
    assert add.input[1] == "tables.3"
    assert sum(n.op_type == "Concat" for n in nodes) == 2 + 1        # `first`, `whole` and the output `every` read a whole list


def test_names_are_paths_and_lines(tmp_path):
    nodes = emit(graph_of(tmp_path, TIED), "ort-cpu").model.graph.node
    add = next(n for n in nodes if n.op_type == "Add")
    assert add.name == add.output[0] == "mixed/Add"
    assert {p.key: p.value for p in add.metadata_props} == {"nnspec.path": "mixed", "nnspec.line": "spec.yaml:7", "namespace": "mixed"}


def test_only_what_reaches_an_output_is_emitted(tmp_path):
    text = TIED.replace("  logits:", "  idle: {op: linear, in: mixed, width: 3}\n  logits:")
    emitted = emit(graph_of(tmp_path, text), "ort-cpu")
    assert not [n.name for n in emitted.model.graph.node if "idle" in n.name]
    assert not [r.name for r in emitted.weights if "idle" in r.name]


# time


def scanned(arrays, feeds, backward):
    """The recurrence of SCAN, row by row."""
    x, h0, length = feeds["x"], feeds["start"], feeds["length"]
    pooled = (feeds["extra"] @ arrays["s.keys.weight"].T + arrays["s.keys.bias"]).mean(1)
    y, last = np.zeros_like(x), h0.copy()
    for b in range(len(x)):
        steps = range(int(length[b]))
        for t in reversed(steps) if backward else steps:
            last[b] = np.tanh(arrays["s.mixed.weight"] @ last[b] + x[b, t] + pooled[b])
            y[b, t] = 3 * last[b]
    return {"y": y, "h": last, "seen": length}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("backward", [False, True])
def test_scan_freezes_rows_past_their_end(tmp_path, target, backward):
    graph = graph_of(tmp_path, SCAN.replace("BACKWARD", f"backward: {str(backward).lower()}"))
    arrays = arrays_of(graph)
    export(graph, tmp_path / "out", arrays, target)
    artifact, rng = runtime.open(tmp_path / "out"), np.random.default_rng(3)
    for B, T, M, length in [(4, 5, 3, [5, 0, 2, 1]), (1, 1, 1, [1]), (2, 3, 1, [0, 0]), (3, 0, 2, [0, 0, 0]), (0, 3, 2, [])]:
        feeds = {"x": rng.standard_normal((B, T, 4)), "start": rng.standard_normal((B, 4)), "extra": rng.standard_normal((B, M, 4))}
        feeds = {k: v.astype(np.float32) for k, v in feeds.items()} | {"length": np.array(length, np.int64)}
        agree(artifact(**feeds), scanned(arrays, feeds, backward))


def test_a_scan_of_no_steps_ends_as_it_starts(tmp_path):
    graph = graph_of(tmp_path, ENDLESS)
    export(graph, tmp_path / "out", arrays_of(graph))
    feeds = random_inputs(runtime.open(tmp_path / "out").manifest, {"B": 3, "T": 4, "M": 2}, 0)
    feeds["x"] = feeds["x"][:, :0]
    agree(runtime.open(tmp_path / "out")(**feeds),
          {"y": np.zeros((3, 0, 4), np.float32), "h": feeds["start"], "seen": np.zeros(3, np.int64)})


def test_float16_steps_go_on_into_a_projection(tmp_path):
    """ONNX Runtime 1.31 crashes on a float16 Transpose of the first two axes that a MatMul by a weight follows at once."""
    text = ENDLESS.replace("outputs: {y: s.y", "  p: {op: linear, in: s.y, width: 3}\noutputs: {y: p", 1)
    graph = graph_of(tmp_path, text)
    arrays = arrays_of(graph)
    nodes = {n.name: n for n in export(graph, tmp_path / "out", arrays, dtype="float16").model.graph.node}
    assert nodes["p/MatMul"].input[0] == "p/Reshape"
    artifact = runtime.open(tmp_path / "out")
    feeds = random_inputs(artifact.manifest, {"B": 2, "T": 3, "M": 1}, 0)
    wide = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()}
    got, want = artifact(**feeds), reference(module_of(graph, arrays), wide, artifact.outputs)
    agree({k: v.astype(want[k].dtype) for k, v in got.items()}, want, atol=2e-2)


def test_nodes_that_do_not_change_leave_the_body_even_inside_an_op(tmp_path):
    """The graph as written: neither what a step's blocks compute from invariants, nor what an op makes on the way, is in the loop."""
    text = SCAN_FORWARD.replace("{op: mean, in: keys, axis: 1}", "{op: mean, in: keys, axis: 1, keep: keep}")
    text = text.replace("      keys:", "      keep: {op: length_mask, in: seen_length, like: extra}\n      keys:")
    text = text.replace('extra: "float[B, M, D]"}', 'extra: "float[B, M, D]", seen_length: "int64[B]"}')
    text = text.replace("extra: extra}", "extra: extra, seen_length: length}")
    (tmp_path / "spec.yaml").write_text("nnspec: 1\nname: small\n" + text.lstrip())
    scan = next(n for n in emit(front(tmp_path / "spec.yaml").graph, "ort-cpu").model.graph.node if n.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    assert sorted({n.op_type for n in body.node}) == ["Add", "Less", "MatMul", "Mul", "Tanh", "Unsqueeze", "Where"]


def test_scan_bodies_hold_only_what_changes(tmp_path):
    graph = graph_of(tmp_path, SCAN_FORWARD)
    nodes = {n.op_type: n for n in emit(graph, "ort-cpu").model.graph.node}
    body = next(a.g for a in nodes["Scan"].attribute if a.name == "body")
    assert [n.name for n in body.node if n.op_type == "MatMul"] == ["s.mixed/MatMul"]
    assert not body.initializer
    assert "s.keys/MatMul" in {n.name for n in emit(graph, "ort-cpu").model.graph.node}


# interface


@pytest.mark.parametrize("absent", [(), ("keep",), ("length",), ("keep", "length")])
def test_absent_inputs_are_not_in_the_model(tmp_path, absent):
    graph = graph_of(tmp_path, OPTIONAL)
    emitted = export(graph, tmp_path / "out", {}, absent=absent)
    artifact = runtime.open(tmp_path / "out")
    assert [x.name for x in artifact.inputs] == [n for n in ("x", "keep", "length") if n not in absent]
    feeds = random_inputs(artifact.manifest, {"B": 3, "S": 5}, 1)
    agree(artifact(**feeds), reference(module_of(graph, {}), feeds, artifact.outputs))
    if len(absent) == 2:
        assert not {"And", "Less"} & {n.op_type for n in emitted.model.graph.node}


def test_unknown_and_required_inputs_cannot_be_left_out(tmp_path):
    with pytest.raises(Diagnostics) as found:
        emit(graph_of(tmp_path, OPTIONAL), "ort-cpu", absent=("kep", "x"))
    assert {d.code: d.helps[0] for d in found.value.items}["unknown-name"] == "did you mean `keep`?"
    assert sorted(d.code for d in found.value.items) == ["absent-value", "unknown-name"]


def test_a_size_that_no_input_tells(tmp_path):
    graph = graph_of(tmp_path, """
inputs: {x: "float[B, 2]", more: "optional int64[M]"}
graph:
  ones: {op: full, value: 1, shape: "[B, M]"}
  sum: {op: sum, in: ones, axis: 1}
outputs: {sum: sum}
""")
    assert emit(graph, "ort-cpu").inputs[1].name == "more"
    with pytest.raises(Diagnostics) as found:
        emit(graph, "ort-cpu", absent=("more",))
    assert [d.code for d in found.value.items] == ["unbound-dimension"] and "`M`" in found.value.items[0].headline


def test_what_inputs_must_satisfy(tmp_path):
    graph = graph_of(tmp_path, """
sizes: {n: 2}
inputs: {tokens: "int64[B, S <= 40]", length: "optional int64[B]", targets: "int64[B, T]", kinds: "int64[B, S <= 50]"}
graph:
  embed: {op: embedding, in: tokens, entries: 17, width: 4}
  kind: {op: embedding, in: kinds, entries: 9, width: 4}
  layers: {repeat: n, block: again, in: embed, tokens: tokens}
  both: {op: add, in: [layers, kind]}
  read: {op: gru, in: both, length: length, hidden: 3}
  steps: {scan: pick, each: {t: targets}, carry: {h: 0}}
outputs: {read: read, steps: steps}
blocks:
  again:
    inputs: {in: "float[B, S, D]", tokens: "int64[B, S]"}
    graph:
      more: {op: embedding, in: tokens, entries: 13, width: D}
      out: {op: add, in: [in, more]}
  pick:
    inputs: {t: "int64[B]", h: "float[B, 3]"}
    graph:
      row: {op: embedding, in: t, entries: 23, width: 3}
      out: {op: add, in: [row, h]}
    outputs: {h: out}
""")
    inputs, outputs = interface(emit(graph, "ort-cpu"))
    assert [(x.name, x.ids_below, x.length_of, x.optional, dict(x.bounds)) for x in inputs] == [
        ("tokens", 13, None, False, {"S": 40}), ("length", None, "S", True, {}), ("targets", 23, None, False, {}),
        ("kinds", 9, None, False, {"S": 40})]
    assert [(x.name, x.shape) for x in outputs] == [("read", ("B", "S", 3)), ("steps", ("B", "T", 3))]


def test_no_form(tmp_path, monkeypatch):
    refused = Form("MatMul", frozenset(ALL_TARGETS), lambda op, site: "the width is odd", Linear.onnx)
    monkeypatch.setattr(Linear, "forms", lambda self: (Form("Gemm", frozenset({"portable"}), lambda op, site: None, Linear.onnx), refused))
    with pytest.raises(Diagnostics) as found:
        emit(graph_of(tmp_path, TIED), "ort-cpu")
    assert [d.code for d in found.value.items] == ["no-form"] * 2
    assert found.value.items[0].notes == ("Gemm: not for target ort-cpu", "MatMul: the width is odd")
    assert emit(graph_of(tmp_path, TIED), "portable").model.graph.node


def test_sites_say_which_form_was_taken_and_why(tmp_path):
    graph = graph_of(tmp_path, OPTIONAL)
    (site,) = emit(graph, "ort-cpu").sites
    assert (site["path"], site["op"], site["form"], site["missed"]) == ("attend", "attention", "Attention-24", [])
    (site,) = emit(graph, "portable").sites
    assert site["form"] == "decomposed" and {m["reason"] for m in site["missed"]} == {"not for target portable"}


# files


def test_portable_models_run_in_the_reference_evaluator(tmp_path):
    graph = graph_of(tmp_path, ROUTED)
    arrays = arrays_of(graph)
    export(graph, tmp_path / "out", arrays, "portable")
    model = onnx.load(tmp_path / "out" / "model.onnx")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    feeds = {"x": np.random.default_rng(5).standard_normal((2, 3, 6)).astype(np.float32)}
    got = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    want = reference(module_of(graph, arrays), feeds, [])
    agree(dict(zip(want, got, strict=True)), want)


def test_onnx_runtime_loads_without_a_warning(tmp_path, capfd):
    for k, text in enumerate((REPEAT, ROUTED, OPTIONAL, SCAN_FORWARD)):
        graph = graph_of(tmp_path, text)
        export(graph, tmp_path / str(k), arrays_of(graph))
        onnxruntime.InferenceSession(tmp_path / str(k) / "model.onnx", providers=["CPUExecutionProvider"])
    assert capfd.readouterr() == ("", "")


def test_exports_are_deterministic_movable_and_know_no_host(tmp_path):
    graph = graph_of(tmp_path, TIED)
    arrays = arrays_of(graph)
    for name in ("one", "two"):
        export(graph, tmp_path / name, arrays)
    files = {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()}
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()}
    assert sorted(files)[:2] == ["manifest.json", "model.onnx"] and sorted(files)[2].startswith("weights-")
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content or b"/tmp" in content]
    feeds = {"tokens": np.array([[1, 30, 4]])}
    before = runtime.open(tmp_path / "one", verify=True)(**feeds)
    shutil.move(tmp_path / "one", tmp_path / "moved" / "here")
    agree(runtime.open(tmp_path / "moved" / "here", verify=True)(**feeds), before, atol=0)


def test_metadata(tmp_path):
    emitted = emit(graph_of(tmp_path, TIED), "portable", "float16", spec="the text")
    data = {p.key: p.value for p in emitted.model.metadata_props}
    assert data.pop("nnspec.version") and len(data.pop("nnspec.structure")) == len(data.pop("nnspec.identity")) == 16
    assert data == {"nnspec.spec": "the text", "nnspec.target": "portable", "nnspec.dtype": "float16"}


def test_external_data_is_aligned(tmp_path):
    graph = graph_of(tmp_path, TIED.replace("vocab: 31, width: 12", "vocab: 9001, width: 67"))
    arrays = arrays_of(graph)
    export(graph, tmp_path, arrays)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    where = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data}
    assert int(where["embed.weight"]["offset"]) % 4096 == 0 and int(where["mixed.weight:transpose"]["offset"]) % 64 == 0
    assert next(t for t in model.graph.initializer if t.name == "mixed.bias").raw_data == arrays["mixed.bias"].tobytes()
    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert np.array_equal(held["embed.weight"], arrays["embed.weight"])
    assert np.array_equal(held["mixed.weight:transpose"], arrays["mixed.weight"].T)


def listing(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_second_export_replaces_the_first_and_leaves_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "weights-of-mine.bin").write_text("mine")
    graph = graph_of(tmp_path, TIED)
    for seed in (0, 1):
        export(graph, tmp_path, arrays_of(graph, seed))
    (data,) = runtime.open(tmp_path, verify=True).manifest.data
    assert set(listing(tmp_path)) == {"notes.txt", "weights-of-mine.bin", "spec.yaml", "manifest.json", "model.onnx", data.file}


@pytest.mark.parametrize("old", [False, True])
def test_a_failing_export_leaves_the_folder_as_it_was(tmp_path, old):
    graph, folder = graph_of(tmp_path, TIED), tmp_path / "deep" / "out"
    arrays = arrays_of(graph)
    if old:
        export(graph, folder, arrays_of(graph, 1))
    before = listing(folder) if old else None

    def tensors(path):
        if path == "mixed.weight":
            raise Diagnostics([])
        return arrays[path]

    with pytest.raises(Diagnostics):
        write(emit(graph, "ort-cpu"), folder, tensors)
    assert (listing(folder) if old else None) == before
    assert (tmp_path / "deep").exists() == old


@pytest.mark.parametrize("broken", ["model.onnx", "manifest.json"])
def test_a_failing_rename_brings_the_old_files_back(tmp_path, monkeypatch, broken):
    graph, folder = graph_of(tmp_path, TIED), tmp_path / "out"
    export(graph, folder, arrays_of(graph, 1))
    before = listing(folder)
    replace, failed = __import__("os").replace, []

    def fail(source, target):
        if str(target).endswith(broken) and not failed:
            failed.append(target)
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(Diagnostics) as found:
        write(emit(graph, "ort-cpu"), folder, arrays_of(graph, 2).__getitem__)
    assert failed and listing(folder) == before
    assert found.value.items[0].code == "cannot-write" and "No space left" in found.value.items[0].headline


def test_a_file_is_no_folder(tmp_path):
    graph = graph_of(tmp_path, TIED)
    for folder in (tmp_path / "spec.yaml", tmp_path / "spec.yaml" / "inner"):
        with pytest.raises(Diagnostics) as found:
            write(emit(graph, "ort-cpu"), folder, arrays_of(graph).__getitem__)
        assert found.value.items[0].code == "cannot-write"
    assert (tmp_path / "spec.yaml").read_text().startswith("nnspec: 1")


@pytest.mark.parametrize(("dtype", "change", "code"), [
    ("float32", lambda a: a[:-1], "checkpoint-mismatch"), ("float16", lambda a: a * 1e6, "bad-weights")])
def test_weights_that_do_not_fit(tmp_path, dtype, change, code):
    graph = graph_of(tmp_path, TIED)
    arrays = arrays_of(graph)
    arrays["mixed.weight"] = change(arrays["mixed.weight"])
    with pytest.raises(Diagnostics) as found:
        write(emit(graph, "ort-cpu", dtype), tmp_path / "out", arrays.__getitem__)
    assert found.value.items[0].code == code and "`mixed.weight`" in found.value.items[0].headline
    assert not (tmp_path / "out").exists()


def test_the_manifest_says_what_was_written(tmp_path):
    graph = graph_of(tmp_path, TIED)
    export(graph, tmp_path / "out", arrays_of(graph))
    text = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (text["parameters"], text["target"], text["dtype"], text["name"]) == (31 * 12 + 12 * 12 + 12, "ort-cpu", "float32", "small")
    assert text["inputs"][0]["ids_below"] == 31 and text["outputs"][0]["shape"] == ["B", "S", 31]


def test_emission_is_fast():
    graph = front("gpt2").lowered()
    start = time.process_time()
    emitted = emit(graph, "ort-cpu")
    assert time.process_time() - start < 0.5
    assert sum(n.op_type == "Attention" for n in emitted.model.graph.node) == 12
