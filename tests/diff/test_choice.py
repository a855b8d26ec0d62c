"""What is shown, accepted and limited: `--only`, `--by`, `--map`, `--accept`, `--budget`; comparisons that fail, in each format."""

import datetime
import json
from xml.etree import ElementTree as xml

import jsonschema
import pytest
import yaml
from nnspec.diff.formats.as_json import schema

from .pairs import KV, NORM, edited
from .test_commands import MLP, TINY, files, run  # noqa: F401

HEAD = edited(TINY, *NORM, *KV, *MLP, "layers: 12 -> layers: 13")
SILENT = edited(TINY, "causal: true -> causal: true, window: 5")


@pytest.fixture
def pair(files):  # noqa: F811
    files(a=TINY, b=HEAD, s=SILENT, broken="graph: {x: {op: foo")


@pytest.mark.parametrize("options, rules", [
    (("--only", "norm.*"), ["norm.type-changed"]), (("--only", "cache"), ["attention.kv-heads-changed", "stack.count-increased"]),
    (("--only", "layers.{i}.ffn"), ["ffn.type-changed"]), (("--only", "cache", "--exclude", "stack.*"), ["attention.kv-heads-changed"]),
    (("--exclude", "checkpoint"), []), (("--only", "ffn.type-changed,norm.type-changed"), ["norm.type-changed", "ffn.type-changed"])])
def test_only_some_edits_are_shown_and_it_is_said(pair, capsys, options, rules):
    found = json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json", *options)[1])
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert [e["rule"] for e in found["edits"]] == rules and found["hidden"] == 4 - len(rules)
    assert found["changed"] and f"shown as asked: {len(rules)} of 4 edits" in found["notes"]
    assert found["verdict"]["checkpoint"] == "partial"                          # of all
    code, out, _ = run(capsys, "diff", "a.yaml", "b.yaml", "--fail-on", "checkpoint", *options)
    assert code == 1 and "no architectural change" not in out


def test_other_orders_of_the_text(pair, capsys):
    out = run(capsys, "diff", "a.yaml", "b.yaml", "--by", "path")[1]
    assert "\n  layers[0..11].attention.attended\n    ~  attention.kv-heads-changed  12 -> 4  (of layers.attention.kv_heads)" in out
    out = run(capsys, "diff", "a.yaml", "b.yaml", "--by", "contract")[1]
    cache = out.partition("\n  cache\n")[2].partition("\n  cost\n")[0]
    assert "kv_heads" in cache and "layers" in cache and "norm" not in cache
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--by", "path", "-f", "json")[0] == 2


def test_a_rename_that_the_user_knows(files, capsys, tmp_path):  # noqa: F811
    head = edited(TINY, "  norm: {op: layer_norm, in: layers, eps: 1e-5} -> \n  last: {op: rms_norm, in: layers, eps: 1e-5}\n",
                  "logits: {op: linear, in: norm -> logits: {op: linear, in: last")
    files(a=TINY, b=head)
    found = json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json", "--map", "norm=last")[1])
    assert found["tensors"]["counts"]["renamed"]["tensors"] == 1 and found["tensors"]["counts"]["new"]["tensors"] == 0
    (tmp_path / "names.yaml").write_text("norm: last\n")
    assert json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json", "--map", "names.yaml")[1]) == found
    assert json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json")[1])["tensors"]["counts"]["new"]["tensors"] == 1
    for bad, word in (("norm=lost", "lost"), ("=last", "OLD=NEW"), ("nothing.yaml", "nothing.yaml")):
        code, _, err = run(capsys, "diff", "a.yaml", "b.yaml", "--map", bad)
        assert code == 2 and word in err


def test_accepted_edits_are_told_and_nothing_fails_on_them(pair, capsys, tmp_path):
    assert run(capsys, "diff", "a.yaml", "s.yaml", "--fail-on", "silent", "--write-accept", "ok.yaml")[0] == 1
    (entry,) = yaml.safe_load((tmp_path / "ok.yaml").read_text())
    assert entry["rule"] == "attention.window-changed"
    for word in ("silent", "breaking", "checkpoint"):
        code, out, err = run(capsys, "diff", "a.yaml", "s.yaml", "--fail-on", word, "--accept", "ok.yaml")
        assert (code, err) == (0, "") and f"accepted: {entry['reason']}" in " ".join(out.split()) and "silent" in out
    found = json.loads(run(capsys, "diff", "a.yaml", "s.yaml", "-f", "json", "--accept", "ok.yaml")[1])
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert found["edits"][0]["accepted"] == entry["reason"] and found["level"] == "info" and found["verdict"]["checkpoint"] == "silent"
    code, _, err = run(capsys, "diff", "a.yaml", "b.yaml", "--fail-on", "breaking", "--accept", "ok.yaml")
    assert code == 1 and "no edit has that id" in err and "ok.yaml:3" in err
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--write-accept", "all.yaml")[0] == 0
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--fail-on", "warning", "--accept", "all.yaml")[0] == 0


def test_an_acceptance_ends(pair, capsys, tmp_path):
    run(capsys, "diff", "a.yaml", "s.yaml", "--write-accept", "ok.yaml")
    text = (tmp_path / "ok.yaml").read_text()
    today = datetime.date.today()
    (tmp_path / "ok.yaml").write_text(text + f"  until: {today}\n")
    assert run(capsys, "diff", "a.yaml", "s.yaml", "--fail-on", "silent", "--accept", "ok.yaml")[0] == 0
    (tmp_path / "ok.yaml").write_text(text + f"  until: {today - datetime.timedelta(days=1)}\n")
    code, _, err = run(capsys, "diff", "a.yaml", "s.yaml", "--fail-on", "silent", "--accept", "ok.yaml")
    assert code == 1 and "was accepted until" in err


@pytest.mark.parametrize("text, code", [("a: b", "bad-spec"), ("- {id: c1, why: x}", "unknown-key"), ("- {id: c1}", "missing-key"),
                                        ("- {id: c1, reason: x, until: soon}", "bad-attribute"), ("- c1", "bad-spec")])
def test_a_bad_file_of_accepted_edits(pair, capsys, tmp_path, text, code):
    (tmp_path / "bad.yaml").write_text(text + "\n")
    ended, _, err = run(capsys, "diff", "a.yaml", "b.yaml", "--accept", "bad.yaml")
    assert ended == 2 and f"error[{code}]" in err and "bad.yaml:1" in err


@pytest.mark.parametrize("limit, code", [
    ("parameters=+0", 1), ("parameters=+9%", 0), ("parameters=80k", 0), ("parameters=10k", 1), ("parameters=99%", 1),
    ("cache_bytes=+0", 1), ("cache_bytes=+9%", 0), ("flops=+0.1%", 1), ("activation_bytes=1GiB", 0), ("weight_bytes=-1KiB", 1)])
def test_limits_of_a_change(pair, files, capsys, limit, code):  # noqa: F811
    files(g=edited(TINY, "layers: 12 -> layers: 13"))                           # a twelfth more of all but embeddings and logits
    ended, out, err = run(capsys, "diff", "a.yaml", "g.yaml", "--budget", limit)
    assert ended == code and ("error[over-budget]" in err) == bool(code) and "1 edit" in out
    if limit.startswith("flops"):
        assert "  layers" in err                                                # which adds most


def test_a_bad_limit(pair, capsys):
    for bad in ("kv=1", "parameters=+x%", "parameters"):
        code, out, err = run(capsys, "diff", "a.yaml", "b.yaml", "--budget", bad)
        assert (code, out) == (2, "") and "bad-command" in err


@pytest.mark.parametrize("form", ["text", "json", "md", "html", "github", "junit"])
def test_a_comparison_that_cannot_be_made_never_reads_as_clean(pair, capsys, tmp_path, form):
    (tmp_path / "out").write_text("of the run before")
    code, out, err = run(capsys, "diff", "a.yaml", "broken.yaml", "-f", form, "-o", "out")
    text = (tmp_path / "out").read_text()
    assert code == 2 and "never closed" in err and "never closed" in text and "no architectural change" not in text
    if form == "junit":
        assert xml.fromstring(text.split("\n", 1)[1]).find("testsuite").get("errors") == "1"
    if form == "json":
        assert json.loads(text)["reports"] == [] and len(json.loads(text)["failures"]) == 1
    code, out, err = run(capsys, "diff", "a.yaml", "broken.yaml", "-f", form)
    assert code == 2 and "never closed" in out + err
    if form == "json":
        assert json.loads(out)["errors"] == 1
    if form == "github":
        assert out.startswith("::error file=broken.yaml,line=1,")


def test_a_folder_of_triton(pair, capsys, tmp_path):
    onnx = pytest.importorskip("onnx")
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    made.metadata_props.add(key="nnspec.spec", value=HEAD)
    for where in ("repo/one/1", "repo/one/12", "two/m/1", "two/n/1"):
        (tmp_path / where).mkdir(parents=True)
        onnx.save(made, str(tmp_path / where / "model.onnx"))
    from nnspec.diff.sources import exported, opened
    assert str(exported(tmp_path / "repo")).endswith("repo/one/12/model.onnx") and exported(tmp_path / "a.yaml") is None
    assert opened(str(tmp_path / "repo")).graph.name == "gpt2" and opened(str(tmp_path / "repo" / "one")).graph.name == "gpt2"
    code, _, err = run(capsys, "diff", "a.yaml", "two")
    assert code == 2 and "holds several models" in err


def test_a_draft_promises_nothing_and_becoming_one_excuses_nothing(files, capsys):  # noqa: F811
    draft = "stability: draft\n"
    files(a=TINY, d=TINY + draft, b=HEAD, e=HEAD + draft)
    for base, head, code in (("d", "b", 0), ("d", "e", 0), ("a", "e", 1), ("a", "b", 1)):
        found = run(capsys, "diff", f"{base}.yaml", f"{head}.yaml", "--fail-on", "warning")
        assert found[0] == code and ("is a draft" in found[1]) == (base == "d"), (base, head)
    assert run(capsys, "diff", "d.yaml", "b.yaml", "--fail-on", "checkpoint")[0] == 1              # a contract is no level
    assert run(capsys, "diff", "a.yaml", "d.yaml", "--exit-code")[:2] == (0, "d.yaml: no architectural change (formatting only)\n")
    files(x=TINY + "stability: maybe\n")
    code, _, err = run(capsys, "diff", "a.yaml", "x.yaml")
    assert code == 2 and "stability" in err
