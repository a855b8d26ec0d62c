"""`nnspec diff` and `nnspec lock` as a user runs them: sources, formats, exit codes."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree as xml

import jsonschema
import pytest
from nnspec.cli import main
from nnspec.diff.formats.as_json import schema
from nnspec.diff.rules import RULES, mirror

from .pairs import GPT2, KV, MODERN, NORM, WINDOW, edited

TINY = GPT2.replace("50257", "101").replace("768", "24").replace("3072", "36").replace("1024", "33").lstrip()
MLP = ("{block: plain_ffn, hidden: 36, activation: gelu_tanh} -> {block: gated_ffn, hidden: 20, activation: silu, bias: false}",)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text.lstrip("\n"))
    return write


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def test_exit_codes(files, capsys):
    files(a=TINY, b=edited(TINY, *NORM), c=TINY.replace("# ", "") + "notes: other words\n", broken=TINY.replace("op: linear", "op: liner"))
    assert run(capsys, "diff", "a.yaml", "c.yaml", "--fail-on", "info", "--exit-code")[:2] == (
        0, "c.yaml: no architectural change (formatting only)\n")
    assert run(capsys, "diff", "a.yaml", "b.yaml")[0] == 0
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--exit-code")[0] == 1
    for word, code in (("breaking", 1), ("checkpoint", 1), ("silent", 0), ("interface", 0), ("interface,numerics", 1)):
        assert run(capsys, "diff", "a.yaml", "b.yaml", "--fail-on", word)[0] == code, word
    for bad in (("diff", "a.yaml"), ("diff", "a.yaml", "b.yaml", "--fail-on", "loud"), ("diff", "a.yaml", "nothing.yaml"),
                ("diff", "a.yaml", "b.yaml", "--at", "Q=3"), ("diff", "a.yaml", "b.yaml", "-f", "json", "-f", "md")):
        code, out, err = run(capsys, *bad)
        assert (code, out) == (2, "") and "error[" in err, bad
    code, out, err = run(capsys, "diff", "broken.yaml", "a.yaml")
    assert (code, out) == (2, "") and "liner" in err and "broken.yaml:" in err
    code, out, err = run(capsys, "diff", "broken.yaml", "nothing.yaml")
    assert code == 2 and "liner" in err and "nothing.yaml" in err


def test_silent_is_a_contract(files, capsys):
    files(a=TINY, b=edited(TINY, "causal: true -> causal: true, window: 5"))
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--fail-on", "silent")[0] == 1


def test_json_keeps_to_the_published_schema(files, capsys):
    files(a=TINY, b=edited(TINY, *NORM, *MLP), w=edited(TINY, "layers: 12 -> layers: 13", "causal: true -> causal: true, window: 3"))
    code, out, _ = run(capsys, "diff", "--print-schema")
    assert code == 0 and json.loads(out) == schema()
    for pair in (("a.yaml", "b.yaml"), ("b.yaml", "w.yaml"), ("a.yaml", "a.yaml")):
        _, out, _ = run(capsys, "diff", *pair, "-f", "json")
        found = json.loads(out)
        jsonschema.Draft202012Validator(schema()).validate(found)
        assert found["changed"] == (pair[0] != pair[1])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(found | {"extra": 1})


def test_several_formats_go_to_files(files, capsys, tmp_path):
    files(a=TINY, b=edited(TINY, *NORM))
    assert run(capsys, "diff", "a.yaml", "b.yaml", "-f", "md", "-o", "c.md", "-f", "json", "-o", "d.json")[:2] == (0, "")
    assert (tmp_path / "c.md").read_text().startswith("<!-- nnspec-diff:b.yaml -->")
    assert json.loads((tmp_path / "d.json").read_text())["edits"][0]["rule"] == "norm.type-changed"


def test_markdown_holds_its_budget_and_escapes(files, capsys):
    files(a=TINY, b=edited(TINY, *NORM, *KV, *MLP, "heads: 12} -> heads: 8}", "vocab: 101 -> vocab: 103", "causal: true -> causal: false"))
    _, out, _ = run(capsys, "diff", "a.yaml", "b.yaml", "-f", "md")
    assert "<details><summary>1 more edit<" in out and "| ~ breaking |" in out and len(out) < 60_000
    assert out.count("\n| ~ ") == 6 and "attention\\_norm" in out and "<details><summary>Tensors" in out


def test_markdown_drops_details_rather_than_fail(files, capsys):
    from nnspec.diff.formats import markdown as md
    from nnspec.diff.sides import compared
    files(a=TINY, b=edited(TINY, *NORM))
    report = compared("a.yaml", "b.yaml")
    many = [report] * 80
    made = md.markdown(many, "nnspec diff --git main...HEAD")
    assert len(made) <= md.BUDGET and "limited size" in made


def test_annotations_stand_at_the_lines_of_the_head(files, capsys):
    files(a=TINY, b=edited(TINY, *KV))
    _, out, _ = run(capsys, "diff", "a.yaml", "b.yaml", "-f", "github")
    line = next(k for k, text in enumerate(edited(TINY, *KV).lstrip().splitlines(), 1) if "kv_heads: 4" in text)
    assert re.match(rf"::error file=b.yaml,line={line},col=\d+,title=nnspec attention.kv-heads-changed::", out) and out.count("\n") == 1
    _, out, _ = run(capsys, "diff", "b.yaml", "a.yaml", "-f", "github")
    assert f"file=a.yaml,line={line}," in out and "%0A" in out          # gone from the head: told at the key above


def test_junit_counts_breaking_edits(files, capsys):
    files(a=TINY, b=edited(TINY, *NORM, "layers: 12 -> layers: 13"))
    _, out, _ = run(capsys, "diff", "a.yaml", "b.yaml", "-f", "junit")
    suite = xml.fromstring(out.split("\n", 1)[1]).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1") and len(suite.findall("testcase/failure")) == 1


def test_a_spec_from_standard_input_a_library_name_and_a_folder_of_the_exporter(files, capsys, monkeypatch, tmp_path):
    import io
    import os
    files(a=TINY)
    monkeypatch.setattr(sys, "stdin", io.StringIO(edited(TINY, *NORM)))
    code, out, _ = run(capsys, "diff", "a.yaml", "-")
    assert code == 0 and "norm.type-changed" in out and "<stdin>:" in out
    assert "no architectural change" in run(capsys, "diff", "gpt2", "gpt2")[1]
    onnx = pytest.importorskip("onnx")
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    made.metadata_props.add(key="other", value="x")
    made.metadata_props.add(key="nnspec.spec", value=edited(TINY, *NORM))
    os.makedirs("exported")
    onnx.save(made, "exported/model.onnx")
    for given in ("exported", "exported/model.onnx"):
        code, out, _ = run(capsys, "diff", "a.yaml", given)
        assert code == 0 and "norm.type-changed" in out
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "exported" / "model.onnx").read_bytes()[:-9])
    (tmp_path / "text.onnx").write_text("no model")
    for bad in ("cut.onnx", "text.onnx"):
        assert run(capsys, "diff", "a.yaml", bad)[0] == 2


def test_lock_files(files, capsys, tmp_path):
    files(a=TINY)
    assert run(capsys, "lock", "--check", "a.yaml")[0] == 1
    assert run(capsys, "lock", "a.yaml")[:2] == (0, "wrote a.nnspec.lock\n")
    first = (tmp_path / "a.nnspec.lock").read_text()
    assert run(capsys, "lock", "--check", "a.yaml")[:2] == (0, "")
    files(a=TINY.replace("layers: 12", "layers: 14").replace("graph:\n", "# more\ngraph:\n"))
    code, out, _ = run(capsys, "lock", "--check", "a.yaml")
    assert code == 1 and "stale in" in out
    assert run(capsys, "lock", "a.yaml")[0] == 0
    second = (tmp_path / "a.nnspec.lock").read_text()
    assert first.count("\n") == second.count("\n") < 60                 # whatever the number of layers
    (tmp_path / "b.nnspec.lock").write_text(first)
    code, out, _ = run(capsys, "diff", "b.nnspec.lock", "a.nnspec.lock", "-f", "json")
    found = json.loads(out)
    assert code == 0 and found["edits"][0]["rule"] == "model.changed" and "edits cannot be told apart" in found["diagnostics"][0]
    assert found["tensors"]["counts"]["kept"]["tensors"] == 196 and found["tensors"]["counts"]["new"]["tensors"] == 32
    code, out, _ = run(capsys, "diff", "b.nnspec.lock", "a.yaml", "-f", "json")
    assert json.loads(out)["tensors"] == found["tensors"]
    for bad in ("lock: 2\n", "lock: 1\nname: x\n", first.replace("float [24]", "float [24")):
        (tmp_path / "bad.nnspec.lock").write_text(bad)
        code, _, err = run(capsys, "diff", "bad.nnspec.lock", "a.yaml")
        assert code == 2 and "bad-lock" in err


def test_a_lock_knows_a_silent_change(files, capsys):
    files(a=TINY, b=edited(TINY, "causal: true -> causal: true, window: 7"))
    run(capsys, "lock", "a.yaml", "b.yaml")
    found = json.loads(run(capsys, "diff", "a.nnspec.lock", "b.nnspec.lock", "-f", "json")[1])
    assert found["verdict"]["checkpoint"] == "silent" and found["level"] == "breaking"


def test_only_writing_never_makes_a_lock_stale(files, capsys):
    files(a=TINY)
    run(capsys, "lock", "a.yaml")
    files(a=edited(TINY, "vocab: 101, width: 24 -> width: 24, vocab: 101", "outputs: {logits: logits} -> outputs:\n  logits: logits"))
    assert run(capsys, "lock", "--check", "a.yaml")[0] == 0


def test_every_rule_has_its_mirror():
    for rule in RULES.values():
        assert mirror(mirror(rule.id)) == rule.id and all(e in RULES for e in rule.explains)


def test_a_large_pair_is_short_and_light(files):
    large = edited(GPT2, "layers: 12, heads: 12 -> layers: 96, heads: 96", "768 -> 12288", "hidden: 3072 -> hidden: 49152").lstrip()
    head = edited(large, *KV, *NORM, "{block: plain_ffn, hidden: 49152, activation: gelu_tanh} -> {block: gated_ffn, hidden: 32768}",
                  "layers: 96 -> layers: 80", "vocab: 50257 -> vocab: 50304")
    files(a=large, b=head)
    code = ("import sys\nfrom nnspec.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as done:\n    assert not done.code\n"
            "print(sorted({'torch', 'onnx', 'onnxruntime', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, "diff", "a.yaml", "b.yaml"], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert done.stdout.count("\n") < 30 and "5 edits" in done.stdout


def test_modern_and_window_are_told_at_other_sizes(files, capsys):
    files(a=GPT2, b=MODERN, w=WINDOW)
    found = json.loads(run(capsys, "diff", "a.yaml", "w.yaml", "-f", "json", "--at", "B=3,S=100")[1])
    assert found["sizes"] == {"B": 3, "S": 100}
    costs = {c["metric"]: c for c in found["costs"]}
    assert costs["cache"]["delta"] == 0 and costs["flops"]["delta"] == 3 * 6 * 4 * 768 * 100 * (100 - 100)


@pytest.mark.parametrize("name", ["additive-seq2seq", "mixtral-8x7b", "t5-small"])
def test_costs_are_those_of_the_command_cost(name):
    from nnspec.diff.costs import facts
    from nnspec.model import load
    model = load(name)
    costs = model.cost()
    found = facts(model.graph, costs.sizes).metrics
    assert found == {"parameters": costs.parameters, "active": costs.active, "weights": costs.weight_bytes, "flops": costs.flops,
                     "decode": costs.decode_flops, "cache": costs.cache_bytes, "peak": costs.peak.bytes}
