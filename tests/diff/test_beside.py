"""What stands beside the edits (ONNX files, claims that were run, the key map) in markdown, annotations and JUnit."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as xml

import jsonschema
import pytest
from nnspec.diff.formats import facts
from nnspec.diff.formats.annotations import github, junit
from nnspec.diff.formats.as_json import schema
from nnspec.diff.formats.markdown import markdown
from nnspec.diff.migration import engines
from nnspec.diff.migration import verify as claims

from .command import diff
from .convertible import GATED, GQA, PLAIN, RENAMED, WINDOWED, model
from .pairs import report


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def go(*arguments, **texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        code, out, err = diff(capsys, *arguments)
        assert "Traceback" not in err
        return code, out
    return go


def suite(text):
    return xml.fromstring(text.split("\n", 1)[1]).find("testsuite")


def cases(found):
    """The result of each case by name."""
    return {c.get("name"): [r.tag for r in c] for c in found.findall("testcase")}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    for name, target, dtype in (("cpu", "ort-cpu", "float32"), ("portable", "portable", "float32"), ("half", "ort-cpu", "float16")):
        model(PLAIN).export(folder / name, init=0, target=target, dtype=dtype, certify="none")
    return folder


def test_files_alone_that_differ_are_told_in_every_format(run, exports):
    pair = str(exports / "cpu"), str(exports / "portable")
    _, made = run(*pair, "-f", "md")
    assert "no architectural change" not in made.lower().replace("no architectural change.", "") and "### " in made
    assert "onnx: ort-cpu float32, opset 24, 13 of 13 sites fused → portable float32, opset 18, 9 of 13 sites fused" in made
    lost = "layers.{0..3}.attention.attended: Attention-24 -> decomposed (not for target portable)"
    assert f"- onnx **warning**: `onnx.fusion-lost` {lost}" in made
    assert "<summary>ONNX</summary>" in made and "| info | `onnx.op-removed` |  | Attention x4, com.microsoft.FastGelu x4 |" in made
    _, made = run(*pair, "-f", "github")
    lines = made.splitlines()
    assert [re.match(r"::(\w+) .*?title=nnspec ([\w.-]+)::", x).groups() for x in lines] == [
        ("warning", "onnx.target-changed"), ("warning", "onnx.opset-changed"), ("warning", "onnx.fusion-lost"), ("notice", "onnx")]
    assert "x4: Attention-24 -> decomposed (not for target portable)%0Aat attention.yaml:" in lines[2] and "2 onnx.op-removed" in lines[3]
    _, made = run(*pair, "-f", "junit")
    found = suite(made)
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("5", "0", "0")
    assert sorted(cases(found).values()) == [[], *[["system-out"]] * 4]


def test_a_breaking_finding_fails_in_junit_and_is_an_error(run, exports):
    pair = str(exports / "cpu"), str(exports / "half")
    found = suite(run(*pair, "-f", "junit")[1])
    assert found.get("failures") == "1" and cases(found)["onnx.output-changed"] == ["failure"]
    assert "float[B, S, 101] -> float16[B, S, 101]" in found.find("testcase/failure").get("message")
    (error,) = [x for x in run(*pair, "-f", "github")[1].splitlines() if x.startswith("::error")]
    assert error == "::error title=nnspec onnx.output-changed::logits: float[B, S, 101] -> float16[B, S, 101]"
    made = run(*pair, "-f", "md")[1]
    assert "- onnx **breaking**: `onnx.output-changed` logits: float\\[B, S, 101\\] -> float16" in made


def test_files_that_are_equal_say_so(run, exports):
    for form, words in (("md", "; nothing differs"), ("github", "nothing differs"), ("junit", "nothing differs")):
        assert words in run(str(exports / "cpu"), str(exports / "cpu"), "-f", form)[1]


def test_lines_are_those_of_the_spec_where_it_is_here(run):
    """A finding of a site that the head's spec writes itself stands at that line; one of a library block cannot."""
    text = """nnspec: 1
name: tiny
inputs: {x: "float[B, S, 6]"}
graph:
  h: {op: gru, in: x, hidden: 5}
  y: {op: linear, in: h, width: 3}
outputs: {y: y}
"""
    head = "# longer\n" + text.replace("hidden: 5", "hidden: 5, reset: before")
    code, made = run("a.yaml", "b.yaml", "--onnx", "-f", "github", a=text, b=head)
    (lost,) = [x for x in made.splitlines() if "fusion-lost" in x]
    assert code == 0 and lost.startswith("::warning file=b.yaml,line=6,title=nnspec onnx.fusion-lost::h: GRU -> Scan (CUDA has no GRU")


def test_claims_that_were_run(run):
    pair = "a.yaml", "b.yaml", "--verify"
    _, made = run(*pair, "-f", "md", a=GQA, b=PLAIN)
    assert "Run with the same weights: PyTorch in float64 and ONNX Runtime in float32." in made
    said = r"- `layers\.attention\.kv_heads`: the same function<br>PyTorch float64 differs by .*<br>ONNX Runtime float32 differs"
    assert re.search(said, made)
    lines = [x for x in run(*pair, "-f", "github")[1].splitlines() if "nnspec verify" in x]
    assert len(lines) == 1 and lines[0].startswith("::notice title=nnspec verify::layers.attention.kv_heads: the same function%0APyTorch")
    assert cases(suite(run(*pair, "-f", "junit")[1]))["verify"] == ["system-out"]


def test_claims_that_do_not_hold_fail(run, monkeypatch):
    monkeypatch.setitem(claims.TOLERANCE, "float64", -1.0)
    pair = "a.yaml", "b.yaml", "--verify"
    code, made = run(*pair, "-f", "junit", a=GQA, b=PLAIN)
    assert code == 1 and cases(suite(made))["verify"] == ["failure"] and suite(made).get("failures") == "1"
    assert "::error title=nnspec verify::layers.attention.kv_heads: NOT the same function" in run(*pair, "-f", "github")[1]
    assert "`layers.attention.kv_heads`: **NOT the same function" in run(*pair, "-f", "md")[1]


def test_claims_that_were_not_run_are_skipped_and_warned_of(run, monkeypatch):
    monkeypatch.setattr(claims, "MOST", 100)
    pair = "a.yaml", "b.yaml", "--verify"
    found = suite(run(*pair, "-f", "junit", a=GQA, b=PLAIN)[1])
    assert cases(found)["verify"] == ["skipped", "system-out"] and found.get("skipped") == "1"
    assert "::warning title=nnspec verify::layers.attention.kv_heads: not verified: a model of" in run(*pair, "-f", "github")[1]
    made = run(*pair, "-f", "md")[1]
    assert "nothing could be run" in made and "**not verified: a model of" in made
    monkeypatch.undo()


def test_an_engine_that_did_not_run_is_warned_of(run, monkeypatch):
    def broken(*given):
        raise engines.NotRun("no kernel")
    monkeypatch.setitem(engines.ENGINES, engines.ONNX, broken)
    made = run("a.yaml", "b.yaml", "--verify", "-f", "github", a=PLAIN, b=RENAMED)[1]
    assert "::warning title=nnspec verify::" in made and "ONNX Runtime float32 did not run: no kernel" in made


def test_the_key_map(run):
    made = run("a.yaml", "b.yaml", "--keys", "-f", "md", a=PLAIN, b=GQA)[1]
    assert "<summary>Key map</summary>" in made and "| approx | layers.{0..3}.attention.key.weight |" in made and "| same |" not in made
    made = run("a.yaml", "b.yaml", "--keys", "-f", "github", a=PLAIN, b=GATED)[1]
    assert "::notice title=nnspec keys::key map refused: " in made and "%0Arefused: the edit `layers.ffn`: " in made
    assert cases(suite(run("a.yaml", "b.yaml", "--keys", "-f", "junit")[1]))["keys"] == ["system-out"]
    same = run("a.yaml", "c.yaml", "--keys", "-f", "md", c="# words\n" + PLAIN)[1]
    assert "No architectural change." in same and "key map same: 68 same" in same


def test_layers_keep_to_the_published_schema(run, exports):
    checked = jsonschema.Draft202012Validator(schema())
    for pair, found in (((str(exports / "cpu"), str(exports / "half")), "onnx"), (("a.yaml", "b.yaml", "--verify", "--onnx"), "verify")):
        code, made = run(*pair, "-f", "json", a=GQA, b=PLAIN)
        made = json.loads(made)
        checked.validate(made)
        assert made["layers"][found] and (made["dtype"], code) == ("float16", 0)
        with pytest.raises(jsonschema.ValidationError):
            checked.validate(made | {"layers": {"onnx": {"sides": []}}})


def test_many_weights_are_one_line(run, exports):
    lines = [x for x in run(str(exports / "cpu"), str(exports / "portable"), "--full")[1].splitlines() if "onnx.weight" in x]
    assert lines == []
    code, made = run("a.yaml", "b.yaml", "--onnx", a=PLAIN, b=PLAIN.replace("layers: 4,", "layers: 6,"))
    (line,) = [x for x in made.splitlines() if "onnx.weight-added" in x]
    assert code == 0 and re.search(r"onnx\.weight-added  x\d\d  layers\..* and others$", line)


def test_texts_of_a_model_are_no_commands_and_no_markup():
    layer = {"sides": [], "findings": [], "note": "::error::x\n<b> ]]> \x00 %", "provider": "", "runtime": ""}
    r = replace(report(PLAIN, WINDOWED), layers={"onnx": layer})
    made = github([r])
    assert made.count("\n") == 2 and "%0A<b> ]]> " in made and made.endswith("%25\n") and not re.search(r"^::error::", made, re.MULTILINE)
    assert "<b>" not in markdown([r]) and cases(suite(junit([r])))["onnx"] == ["skipped", "system-out"]


def test_annotations_of_commits_stand_at_files():
    assert [facts.plain(x) for x in ("a.yaml", "HEAD:./specs/a.yaml", "0123abcd:specs/a.yaml", "specs/a.yaml")] == [
        "a.yaml", "specs/a.yaml", "specs/a.yaml", "specs/a.yaml"]
