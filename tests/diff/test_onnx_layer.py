"""The ONNX layer: exported models against each other and against specs, and files that are no exports of ours."""


import onnx
import pytest
from nnspec.diff.exported.onnx_layer import ONNX_RULES, Exported, Site, findings, read_exported
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.errors import ArtifactErrors
from onnx import TensorProto, helper

from .command import diff
from .command import onnx_layer as layer
from .convertible import PLAIN, WIDER, model

DOCUMENTED = b"\x32\x02hi"                 # one more field of a model: its documentation


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """One model for two targets, in half precision, and with more words."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "a.yaml").write_text(PLAIN)
    for name, text, target, dtype in (("cpu", PLAIN, "ort-cpu", "float32"), ("portable", PLAIN, "portable", "float32"),
                                      ("half", PLAIN, "ort-cpu", "float16"), ("wider", WIDER, "ort-cpu", "float32")):
        model(text).export(folder / name, init=0, target=target, dtype=dtype, certify="none")
    return folder


@pytest.fixture
def run(exports, monkeypatch, capsys):
    monkeypatch.chdir(exports)

    def go(*arguments):
        return diff(capsys, *arguments)
    return go


def rules(found):
    return {f["rule"] for f in found["findings"]}


def test_rules_have_mirrors():
    for rule, (other, level) in ONNX_RULES.items():
        assert ONNX_RULES[other][0] == rule and level in ("info", "warning", "breaking")


def test_a_model_beside_itself_differs_in_nothing(run):
    found = layer(run, "cpu", "cpu/model.onnx")
    assert found["findings"] == [] and found["sides"][0]["ops"] == found["sides"][1]["ops"]
    assert run("cpu", "cpu", "--exit-code")[0] == 0


def test_a_spec_is_what_its_export_says(run):
    found = layer(run, "a.yaml", "half")
    assert found["findings"] == [] and "as it would be exported for ort-cpu in float16" in found["note"]
    assert found["sides"][0]["bytes"] == found["sides"][1]["bytes"] > 0


def test_a_fusion_that_is_lost_is_told_by_site_and_reason(run):
    found = layer(run, "cpu", "portable")
    (lost,) = [f for f in found["findings"] if f["rule"] == "onnx.fusion-lost"]
    assert (lost["before"], lost["after"], lost["count"], lost["level"]) == ("Attention-24", "decomposed", 4, "warning")
    assert lost["where"] == "layers.{0..3}.attention.attended" and lost["note"] == "not for target portable"
    assert {(f["rule"], f["before"], f["after"]) for f in found["findings"]} >= {
        ("onnx.opset-changed", 24, 18), ("onnx.target-changed", "ort-cpu", "portable"), ("onnx.domain-removed", 1, None),
        ("onnx.op-removed", 4, 0), ("onnx.op-added", 0, 4)}
    assert "onnx.fusion-gained" in rules(layer(run, "portable", "cpu"))


@pytest.mark.parametrize("pair", [("cpu", "portable"), ("cpu", "half"), ("cpu", "wider"), ("half", "portable")])
def test_the_way_back_is_the_inverse(run, pair):
    there, back = layer(run, *pair)["findings"], layer(run, *pair[::-1])["findings"]
    assert there and sorted((ONNX_RULES[f["rule"]][0], str(f["after"]), str(f["before"]), f["where"]) for f in there) == \
        sorted((f["rule"], str(f["before"]), str(f["after"]), f["where"]) for f in back)


def test_half_precision_is_told_of_weights_outputs_and_bytes(run):
    found = layer(run, "cpu", "half")
    assert rules(found) >= {"onnx.dtype-changed", "onnx.output-changed", "onnx.weight-dtype-changed", "onnx.bytes-changed"}
    (output,) = [f for f in found["findings"] if f["rule"] == "onnx.output-changed"]
    assert (output["before"], output["after"]) == ("float[B, S, 101]", "float16[B, S, 101]")
    assert found["sides"][0]["bytes"] == 2 * found["sides"][1]["bytes"]


def test_an_edit_of_the_spec_shows_in_the_file(run):
    found = layer(run, "cpu", "wider")
    assert rules(found) == {"onnx.output-changed", "onnx.weight-shape-changed", "onnx.bytes-changed"}


def test_text_and_exit_codes(run):
    code, out, _ = run("cpu", "portable")
    assert code == 0 and "13 of 13 sites fused" in out and "onnx.fusion-lost" in out and max(map(len, out.splitlines())) <= 100
    assert run("cpu", "portable", "--exit-code")[0] == run("cpu", "portable", "--fail-on", "deploy")[0] == 1
    assert run("cpu", "portable", "--fail-on", "breaking")[0] == 0 and run("cpu", "half", "--fail-on", "breaking")[0] == 1


def test_inputs_that_come_and_go():
    a, b = (Exported("", "portable", "float32", "full", {"ai.onnx": 18}, {"Add": 1}, {"x": Site(f, u)}, i, {"y": "float[B]"})
            for f, u, i in (("one", True, {"t": "int64[B]"}), ("two", True, {"u": "int64[B]"})))
    assert [f.rule for f in findings(a, b)] == ["onnx.form-changed", "onnx.input-removed", "onnx.input-added"]
    assert [f.level for f in findings(a, b)] == ["info", "breaking", "breaking"]


def test_files_that_are_not_ours_are_refused(run, tmp_path):
    strange = helper.make_model(helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])]))
    onnx.save(strange, tmp_path / "strange.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name, words in (("strange", "holds no spec"), ("text", "error["), ("empty", "holds no spec"), ("missing", "cannot be read")):
        code, out, err = run(str(tmp_path / f"{name}.onnx"), "a.yaml")
        assert (code, out) == (2, "") and words in err and "Traceback" not in err, name


def test_a_file_that_was_changed_or_cut_is_refused(run, exports, tmp_path):
    for name, change in (("changed", lambda data: data + DOCUMENTED), ("cut", lambda data: data[:-9])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_bytes((exports / "cpu" / "manifest.json").read_bytes())
        (folder / "model.onnx").write_bytes(change((exports / "cpu" / "model.onnx").read_bytes()))
        with pytest.raises((Diagnostics, ArtifactErrors)):
            read_exported(str(folder))
        assert run(str(folder), "a.yaml")[0] == 2
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "model.onnx").write_bytes((exports / "cpu" / "model.onnx").read_bytes())
    (bad / "manifest.json").write_text("{}")
    code, out, err = run(str(bad), "a.yaml")
    assert (code, out) == (2, "") and "not a manifest" in err


def test_a_step_form_is_compared_with_exports_alone(run, exports):
    model(PLAIN).export(exports / "step", init=0, form="step", certify="none")
    found = layer(run, "a.yaml", "step")
    assert found["findings"] == [] and found["sides"] == [] and "another export" in found["note"]
    assert "onnx.kind-changed" in rules(layer(run, "cpu", "step"))
