"""The certificate catches wrong files: emission is broken in one place, and the comparison with PyTorch must fail."""

import json
from dataclasses import replace

import nnspec
import numpy as np
import pytest
import zoo
from click.testing import CliRunner
from nnspec import cli
from nnspec.backends.onnx import recipes, scan
from nnspec.backends.onnx.builder import Builder
from nnspec.ops.convolution import Delay
from nnspec.ops.masks import LengthMask
from nnspec.printing import export_report
from nnspec.runtime.compare import compare

SPEC = """
nnspec: 1
name: certified
use: [layers, ffn, attention]
sizes: {width: 8}
inputs: {ids: "int64[B, S]", keep: "bool[B, S]", length: "int64[B]"}
graph:
  embed: {op: embedding, in: ids, entries: 23, width: width}
  layers:
    repeat: 2
    block: pre_norm_layer
    in: embed
    norm: {op: layer_norm}
    attention: {block: multi_head_attention, heads: 2, causal: true, keep: keep}
    ffn: {block: plain_ffn, hidden: 8, activation: gelu_tanh}
  shifted: {op: delay, in: layers, by: 2}
  read: {op: gru, in: shifted, hidden: 5, length: length, direction: both}
  steps: {scan: step, along: S, each: {x: read}, carry: {h: 0}, length: length, backward: true}
  inside: {op: length_mask, in: length, like: ids}
  pooled: {op: mean, in: read, axis: 1, keep: inside}
  best: {op: argmax, in: pooled}
outputs: {layers: layers, read: read, steps: steps, last: steps.last.h, pooled: pooled, best: best}
blocks:
  step:
    inputs: {x: "float[B, D]", h: "float[B, D]"}
    graph: {cell: {op: gru_cell, in: x, state: h, hidden: D}}
    outputs: {h: cell}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.lstrip())
    return path


def certificate(spec, folder):
    model = nnspec.load(spec)
    return model.export(folder, weights=zoo.stir(model.module(seed=1))).certificate


def op(kind, change):
    """Every emitted node of one operator with its inputs and attributes changed."""
    def patch(monkeypatch):
        plain = Builder.op

        def changed(self, op_type, *given, **settings):
            if op_type == kind:
                given, settings = change(given, dict(settings))
            return plain(self, op_type, *given, **settings)
        monkeypatch.setattr(Builder, "op", changed)
    return patch


def attribute(name, value):
    return lambda given, settings: (given, settings | {name: value})


def recipe(kind, change):
    plain = recipes.RECIPES[kind]
    return lambda monkeypatch: monkeypatch.setitem(recipes.RECIPES, kind, lambda *given: change(plain(*given)))


def method(owner, name, make):
    return lambda monkeypatch: monkeypatch.setattr(owner, name, make(getattr(owner, name)))


MUTATIONS = {
    "another eps": op("LayerNormalization", attribute("epsilon", 1e-2)),
    "the norm over another axis": op("LayerNormalization", attribute("axis", 0)),
    "a norm without its bias": op("LayerNormalization", lambda given, settings: (given[:2], settings)),
    "the other gelu": op("Gelu", attribute("approximate", "none")),
    "a matrix not transposed": recipe("transpose", lambda w: w.T.copy() if w.shape[0] == w.shape[1] else w),
    "gates in another order": recipe("gates", lambda w: np.roll(w, w.shape[1] // 3, axis=1)),
    "a linear_before_reset of the paper": op("GRU", attribute("linear_before_reset", 0)),
    "lengths that the GRU does not see": op("GRU", lambda given, settings: ((*given[:4], None, *given[5:]), settings)),
    "attention over masked keys": op("Attention", lambda given, settings: (given[:3], settings)),
    "attention with another scale": op("Attention", attribute("scale", 0.4)),
    "a delay by one step less": method(
        Delay, "onnx", lambda plain: lambda self, g, **ports: plain(replace(self, by=self.by - 1), g, **ports)),
    "a mask of the other polarity": method(LengthMask, "onnx", lambda plain: lambda self, g, **ports: g.op("Not", plain(self, g, **ports))),
    "a scan in the other direction": op("Scan", attribute("scan_input_directions", [0, 0])),
    "carries that go on past the end": method(scan, "_frozen", lambda plain: lambda loop, g, name, alive, change: change[1]),
    "a file that does not load": op("Split", attribute("axis", 7)),
    "a file that does not run": op("Slice", lambda given, settings: ((*given[:3], given[0]), settings)),
    "the smallest for the largest": op("ArgMax", lambda given, settings: (given, settings | {"axis": 0})),
}


@pytest.mark.parametrize("wrong", MUTATIONS)
def test_a_wrong_file_is_not_certified(wrong, spec, tmp_path, monkeypatch):
    MUTATIONS[wrong](monkeypatch)
    found = certificate(spec, tmp_path / "out")
    assert found["status"] == "failed" and found["differences"], wrong


def test_a_right_file_is_certified(spec, tmp_path):
    found = certificate(spec, tmp_path / "out")
    assert found["status"] == "passed" and 0 < found["max_abs"] < 1e-5 and found["cases"] == 7


def test_a_mismatch_exits_1_and_the_manifest_says_so(spec, tmp_path, monkeypatch):
    MUTATIONS["another eps"](monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["export", str(spec), "--init", "0", "-o", str(tmp_path / "out")])
    assert stopped.value.code == 1
    held = json.loads((tmp_path / "out" / "manifest.json").read_text())["certificate"]
    assert held["status"] == "failed" and "`layers`" in held["differences"][0]


def test_what_exits_1_prints_where_it_differs(spec, tmp_path, monkeypatch):
    MUTATIONS["the other gelu"](monkeypatch)
    result = CliRunner().invoke(cli.cli, ["export", str(spec), "--init", "0", "-o", str(tmp_path / "out")])
    assert "certificate failed: 7 cases" in result.output and "off by" in result.output


NAN = """
nnspec: 1
name: nan
inputs: {x: "float[B, S]"}
graph: {root: {op: sqrt, in: EXPRESSION}, y: {op: exp, in: x}}
outputs: {root: root, y: y}
"""


@pytest.mark.parametrize(("inner", "status"), [("x", "passed"), ("{op: add, in: [{op: negate, in: {op: square, in: x}}, -1]}", "failed")])
def test_nan_on_both_sides_is_told_and_proves_nothing(tmp_path, inner, status):
    (tmp_path / "spec.yaml").write_text(NAN.lstrip().replace("EXPRESSION", inner))
    found = nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=0).certificate
    assert found["status"] == status
    assert found["nan"][0].startswith("`root` holds NaN in PyTorch too, at B=") and len(found["nan"]) == 1
    assert found.get("differences", []) == (["`root` was not a finite number in any case"] if status == "failed" else [])


def test_nan_on_one_side_is_a_difference():
    right = {"y": np.array([1.0, np.nan, 3.0], np.float32)}
    assert compare({"y": np.array([1.0, 2.0, 3.0], np.float32)}, right, 1, 1)[0].kind == "nonfinite"
    assert compare(right, {"y": np.array([1.0, 2.0, 3.0], np.float32)}, 1, 1)[0].kind == "nonfinite"
    assert compare(right, right, 0, 0) == []


OPTIONAL = """
nnspec: 1
name: optional
inputs: {x: "float[B, S, 8]", keep: "optional bool[B, S]", length: "optional int64[B]"}
graph:
  inside: {op: length_mask, in: length, like: x}
  both: {op: and, in: [keep, inside]}
  heads: {op: rearrange, in: x, as: "b s (h d) -> b h s d", h: 2}
  attend: {op: attention, query: heads, key: heads, value: heads, keep: both}
  more: MORE
outputs: {attend: attend, more: more}
"""


def test_optional_inputs_may_be_left_out_and_the_certificate_covers_it(tmp_path):
    (tmp_path / "spec.yaml").write_text(OPTIONAL.lstrip().replace("MORE", "{op: gru, in: x, length: length, hidden: 3}"))
    manifest = nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=0)
    assert manifest.certificate["status"] == "passed" and manifest.certificate["cases"] == 8
    artifact, x = nnspec.runtime.open(tmp_path / "out"), np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    zoo.close(artifact(x=x), artifact(x=x, keep=np.ones((2, 5), bool), length=[5, 5]), 0, 0)


def test_masks_that_are_not_only_hiding_have_no_neutral_value(tmp_path):
    text = OPTIONAL.lstrip().replace("MORE", "{op: mean, in: x, axis: 1, keep: {op: not, in: keep}}")
    (tmp_path / "spec.yaml").write_text(text)
    manifest = nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=0)
    assert not any(x.neutral for x in manifest.inputs) and manifest.certificate["cases"] == 7
    with pytest.raises(nnspec.runtime.ArtifactError) as found:
        nnspec.runtime.open(tmp_path / "out")(x=np.ones((2, 5, 8), np.float32))
    assert "input `keep` is missing" in found.value.headline


def test_a_module_that_fails_is_a_difference_and_no_traceback(tmp_path):
    (tmp_path / "spec.yaml").write_text("""nnspec: 1
name: beyond
inputs: {ids: "int64[B]"}
graph:
  near: {op: embedding, in: ids, entries: 9, width: 2}
  far: {op: embedding, in: {op: add, in: [ids, 8]}, entries: 9, width: 2}
outputs: {near: near, far: far}
""")
    found = nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=0).certificate
    assert found["status"] == "failed" and "Gather of `far` (spec.yaml:6) fails" in found["differences"][0]


OVERFLOW = """
nnspec: 1
name: wide
inputs: {x: "float[B, S, 8]", keep: "bool[B, S]"}
graph:
  heads: {op: rearrange, in: x, as: "b s (h d) -> b h s d", h: 2}
  attend: {op: attention, query: heads, key: heads, value: heads, keep: keep}
  joined: {op: rearrange, in: attend, as: "b h s d -> b s (h d)"}
  grown: {op: multiply, in: [joined, 6000]}
  large: {op: multiply, in: [grown, grown]}
  less: {op: divide, in: [large, 6000]}
  small: {op: divide, in: [less, 6000]}
outputs: {small: small}
"""


@pytest.mark.parametrize("target", ["ort-cpu", "portable"])
@pytest.mark.parametrize("output", ["large", "small"])
def test_an_overflow_of_float16_is_traced_to_the_first_node(tmp_path, target, output):
    """Where the result is wrong it is a difference; a CPU may get over it in float32, where CUDA would not, and that is told."""
    (tmp_path / "spec.yaml").write_text(OVERFLOW.lstrip().replace("small: small", f"{output}: {output}"))
    model = nnspec.load(tmp_path / "spec.yaml")
    manifest = model.export(tmp_path / "out", init=0, dtype="float16", target=target)
    found = manifest.certificate
    assert found["status"] == ("failed" if output == "large" else "passed")
    text = found["differences"][0] if output == "large" else found["overflow"]
    assert "Mul of `large` (" in text and "spec.yaml:9) is the first to overflow float16: inf at [" in text
    assert "Mul of `large`" in export_report(manifest, tmp_path / "out", False)
    right = model.export(tmp_path / "out", init=0, target=target).certificate
    assert right["status"] == "passed" and "overflow" not in right


def test_masks_and_ordinary_float16_models_do_not_overflow(spec, tmp_path):
    found = nnspec.load(spec).export(tmp_path / "out", init=1, dtype="float16").certificate
    assert found["status"] == "passed" and "overflow" not in found
