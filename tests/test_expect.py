"""The fusion contract: `expect:` of a spec and `--require-fused` against the forms that exports take."""

import json
from dataclasses import replace

import nnspec
import pytest
from nnspec.cli import main
from nnspec.lang.diagnostic import CheckFailed, Diagnostics
from nnspec.ops.attention import Attention
from nnspec.render import render

SPEC = """
nnspec: 1
use: [attention]
inputs: {x: "float[B, S, 24]"}
graph:
  attention: {block: multi_head_attention, in: x, heads: 3, causal: true}
  add: {op: add, in: [x, attention]}
  norm: {op: layer_norm, in: add}
  layers: {repeat: 2, block: layer, in: norm}
outputs: [layers]
blocks:
  layer:
    inputs: {in: "float[B, S, 24]"}
    graph:
      attention: {block: multi_head_attention, in: in, heads: 3}
      norm: {op: rms_norm, in: attention}
    outputs: {out: norm}
"""
SITES = ["attention.attended", "layers.0.attention.attended", "layers.0.norm", "layers.1.attention.attended", "layers.1.norm", "norm"]


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """Writes the spec with an `expect:`; returns the model."""
    monkeypatch.chdir(tmp_path)

    def write(expect, text=SPEC):
        (tmp_path / "spec.yaml").write_text(text.lstrip() + (f"expect: {expect}\n" if expect else ""))
        return nnspec.load("spec.yaml")
    return write


def exported(model, target="ort-cpu", **how):
    return model.export("out", init=1, target=target, certify="none", **how)


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(["export", "spec.yaml", "--init", "1", "-o", "out", "--certify", "none", *arguments])
    return (done.value.code, *capsys.readouterr())


@pytest.mark.parametrize("expect", [
    "{attention: fused}", "{attention: Attention-24, rms_norm: [decomposed, RMSNormalization-23]}", "{layers: fused}",
    "{'layers.{i}.attention': fused, layers.1.norm: RMSNormalization-23}", "{norm: SkipLayerNormalization}",
    "{layer_norm: LayerNormalization}", "{norm: fused}", "{}", "",
])
def test_what_is_kept(spec, expect):
    model = spec(expect)
    assert sorted(s["path"] for s in exported(model, "ort-cuda").sites) == SITES


def test_every_site_that_falls_short_is_told_once_a_line(spec):
    """Heads of width 6: CUDA takes them only filled up."""
    model = spec("{attention: Attention-24, rms_norm: fused}", SPEC.replace("heads: 3", "heads: 4"))
    short = "the form `Attention-24 on wider heads` on ort-cuda, not `Attention-24`"
    with pytest.raises(CheckFailed) as found:
        exported(model, "ort-cuda")
    assert [(d.headline[: d.headline.index(" (")], d.headline[d.headline.index(")") + 2:]) for d in found.value.items] == [
        ("`attention.attended`", "takes " + short), ("`layers.0.attention.attended`", "and 1 more like it take " + short)]
    assert [{label.span.line for label in d.labels if label.span.source.name == "spec.yaml"} for d in found.value.items] == [
        {5, 17}, {8, 14, 17}]


WEIGHTS = """
nnspec: 1
inputs: {x: "float[B, H, S, 8]"}
graph: {attended: {op: attention, query: x, key: x, value: x}}
outputs: {attended: attended, weights: attended.weights}
"""


def test_the_message(spec, tmp_path):
    model = spec("{attended: fused}", WEIGHTS)
    with pytest.raises(CheckFailed) as found:
        exported(model)
    assert render(found.value.items) == """\
error[unmet-expect]: `attended` (`attention`, spec.yaml:3) takes the form `decomposed` on ort-cpu, not `fused`
 --> spec.yaml:3:9
  3 | graph: {attended: {op: attention, query: x, key: x, value: x}}
    |         ^^^^^^^^
  5 | expect: {attended: fused}
    |          -------- expects `fused`
    = note: not `Attention-24`: its weights are used, which the fused kernels do not give
    = help: change the node, or what is expected

1 error
"""
    assert not (tmp_path / "out").exists()


def test_a_norm_without_a_residual_is_not_joined(spec):
    text = SPEC.replace("in: add}", "in: x}").replace("  add: {op: add, in: [x, attention]}\n", "")
    model = spec("{norm: SkipLayerNormalization}", text.replace("outputs: [layers]", "outputs: [layers, attention]"))
    with pytest.raises(CheckFailed) as found:
        exported(model, "ort-cuda")
    assert [d.notes for d in found.value.items] == [
        ("not `SkipLayerNormalization`: its kernel takes a norm, with a weight, of a sum of two values of one shape and of rank 2 or 3",)]


def test_an_expectation_says_nothing_of_targets_without_the_form(spec):
    assert exported(spec("{rms_norm: RMSNormalization-23, norm: SkipLayerNormalization}"), "portable").sites


def test_require_fused(spec, capsys):
    spec("")
    assert command(capsys, "--target", "ort-cuda", "--require-fused")[0] == 0
    code, out, err = command(capsys, "--target", "portable", "--require-fused")
    assert (code, out) == (1, "")
    assert err.count("error[unmet-expect]") == 2
    assert "spec.yaml:5:3" in err and "not `Attention-24`: not for target portable" in err and "`--require-fused`" in err


def test_a_form_that_is_lost_fails_the_export(spec, capsys, monkeypatch, tmp_path):
    spec("{attention: fused}")
    assert command(capsys)[0] == 0
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    forms = Attention.forms
    monkeypatch.setattr(Attention, "forms", lambda self: tuple(
        replace(f, when=lambda op, site: "it is switched off") if f.fused else f for f in forms(self)))
    code, out, err = command(capsys)
    assert (code, out) == (1, "")
    assert "error[unmet-expect]: `attention.attended`" in err and "not `Attention-24`: it is switched off" in err
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


def test_the_table_of_sites(spec, capsys, tmp_path):
    spec("")
    code, out, _ = command(capsys, "--target", "ort-cuda")
    assert code == 0
    assert [line.split() for line in out.splitlines() if " x" in line] == [
        ["attention", "Attention-24", "x3"], ["layer_norm", "SkipLayerNormalization", "x1"], ["rms_norm", "RMSNormalization-23", "x2"]]
    assert "layers.1.norm" not in out
    code, out, _ = command(capsys, "--sites", "--target", "portable")
    assert "    layers.1.norm: decomposed\n      not RMSNormalization-23: not for target portable\n" in out
    sites = json.loads((tmp_path / "out" / "manifest.json").read_text())["sites"]
    assert sorted(s["path"] for s in sites) == SITES
    assert all(set(s) == {"path", "op", "line", "form", "fused", "missed"} and ":" in s["line"] for s in sites)


@pytest.mark.parametrize(("expect", "headline", "hint"), [
    ("{atention: fused}", "`atention` is no op with forms to choose, and no path of one", "did you mean `attention`?"),
    ("{lstm: fused}", "the model has no `lstm`", "known sites of this model: "),
    ("{add: fused}", "`add` is no op with forms to choose, and no path of one", "known sites of this model: "),
    ("{layers.2: fused}", "`layers.2` is no op with forms to choose, and no path of one", "did you mean"),
    ("{attention: RMSNormalization-23}", "no form of these sites is called `RMSNormalization-23`", "known forms: "),
    ("{attention: [fused, decompose]}", "no form of these sites is called `decompose`", "did you mean `decomposed`?"),
    ("{attention: {fused: true}}", "a site expects a form, or one of a list of forms", "write `fused`"),
    ("{attention: []}", "a site expects a form, or one of a list of forms", "write `fused`"),
])
def test_what_cannot_be_expected(spec, expect, headline, hint):
    with pytest.raises(Diagnostics) as found:
        spec(expect)
    assert [(d.code, d.headline, d.labels[0].span.line) for d in found.value.items] == [("bad-expect", headline, 17)]
    assert found.value.items[0].helps[0].startswith(hint)


def test_all_that_is_wrong_is_told_at_once(spec):
    with pytest.raises(Diagnostics) as found:
        spec("{a: fused, attention: b, norm: {c: d}}")
    assert [d.code for d in found.value.items] == ["bad-expect"] * 3
