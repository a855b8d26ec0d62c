"""Defaults of `nnspec diff` in `.nnspec.yaml`, and `--cost-epsilon`."""

import json
import os
import re

import pytest
import yaml

from .pairs import KV, NORM, edited
from .test_commands import TINY, files, run  # noqa: F401
from .test_git import ROOT, commit, git, repo  # noqa: F401

HEAD = edited(TINY, *NORM, "heads: 12} -> heads: 12}\nnotes: x")
WINDOW = edited(TINY, "causal: true -> causal: true, window: 5")


@pytest.fixture
def pair(files, tmp_path):  # noqa: F811
    files(a=TINY, b=HEAD, w=WINDOW, k=edited(TINY, *KV))

    def config(text, where="."):
        (tmp_path / where).mkdir(parents=True, exist_ok=True)
        (tmp_path / where / ".nnspec.yaml").write_text(text)
    return config


@pytest.mark.parametrize("text, head, code", [
    ("fail-on: breaking", "b", 1), ("fail-on: [silent, interface]", "b", 0), ("fail-on: [silent]", "w", 1),
    ("fail-on: cache, silent", "w", 1), ("exit-code: true", "b", 1), ("exit-code: false", "b", 0), ("budget: {parameters: +0}", "b", 0),
    ("budget: {cache_bytes: 1KiB}", "k", 1), ("budget: [parameters=1k]", "b", 1), ("budget: flops=-1%", "k", 0), ("{}", "b", 0)])
def test_what_fails_is_as_the_file_says_and_the_command_line_wins(pair, capsys, text, head, code):
    pair(f"diff: {text}\n" if text == "{}" else f"diff:\n  {text}\n")
    given = ("diff", "a.yaml", f"{head}.yaml")
    assert run(capsys, *given)[0] == code
    assert run(capsys, *given, "--no-config")[0] == 0
    if "fail-on" in text:
        assert run(capsys, *given, "--fail-on", "training")[0] == 0 and run(capsys, *given, "--fail-on", "checkpoint")[0] == 1
    if "budget" in text:
        assert run(capsys, *given, "--budget", "parameters=+9%")[0] == 0


def test_sizes_dtype_and_what_is_shown(pair, capsys):
    pair("diff:\n  at: {B: 3, S: 17, T: 5}\n  dtype: float32\n  exclude: [norm.*]\n")
    found = json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json")[1])
    assert found["sizes"] == {"B": 3, "S": 17} and found["hidden"] == 1 and found["edits"] == []
    assert next(c for c in found["costs"] if c["metric"] == "weights")["before"] % 4 == 0
    plain = json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json", "--no-config")[1])
    weights = [next(c for c in x["costs"] if c["metric"] == "weights")["before"] for x in (found, plain)]
    assert weights[0] == 2 * weights[1] and plain["hidden"] == 0
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--at", "T=5")[0] == 2                      # said by hand, it must be there
    assert json.loads(run(capsys, "diff", "a.yaml", "b.yaml", "-f", "json", "--at", "B=2")[1])["sizes"] == {"B": 2, "S": 33}


def test_accepted_edits_stand_beside_the_file(pair, capsys, tmp_path, monkeypatch):
    run(capsys, "diff", "a.yaml", "w.yaml", "--write-accept", "ok.yaml")
    pair("diff: {accept: ok.yaml, fail-on: silent}")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert run(capsys, "diff", "../a.yaml", "../w.yaml")[0] == 0                               # found from a folder below
    assert run(capsys, "diff", "../a.yaml", "../w.yaml", "--no-config", "--fail-on", "silent")[0] == 1
    pair("diff: {accept: gone.yaml}")
    code, _, err = run(capsys, "diff", "../a.yaml", "../w.yaml")
    assert code == 2 and "gone.yaml" in err


def test_the_nearest_file_is_read_and_none_above_the_repository(pair, capsys, tmp_path, monkeypatch):
    pair("diff: {exit-code: true}")
    pair("diff: {fail-on: training}", "top/deep")
    (tmp_path / "top" / ".git").mkdir()
    for here, code in (("top/deep", 0), ("top", 0), (".", 1)):
        monkeypatch.chdir(tmp_path / here)
        up = os.path.relpath(tmp_path)
        assert run(capsys, "diff", f"{up}/a.yaml", f"{up}/b.yaml")[0] == code, here
    monkeypatch.chdir(tmp_path / "top")
    assert run(capsys, "diff", "../a.yaml", "../b.yaml", "--config", "../.nnspec.yaml")[0] == 1
    for both in (("--config", "../.nnspec.yaml", "--no-config"), ("--no-config", "--config", "../.nnspec.yaml"), ("--config", "none.yaml")):
        assert run(capsys, "diff", "../a.yaml", "../b.yaml", *both)[0] == 2


@pytest.mark.parametrize("text, line, code, words", [
    ("[a]", 1, "bad-spec", "a mapping"), ("dif: {}", 1, "unknown-key", "those of `diff:`"),
    ("diff: [x]", 1, "bad-spec", "mapping of options"), ("diff:\n  fail-no: x", 2, "unknown-key", "did you mean `fail-on`"),
    ("diff:\n  dtype: f16\n  fail-on: loud", 3, "bad-command", "`loud`"),
    ("diff:\n  fail-on: {a: 1}", 2, "bad-command", "a word or a list"), ("diff:\n  exit-code: maybe", 2, "bad-command", "`maybe`"),
    ("diff:\n  at: {B: many}", 2, "bad-command", "`B=many`"), ("diff:\n  budget: {flop: 1}", 2, "bad-command", "did you mean `flops`"),
    ("diff:\n  budget: {flops: +x%}", 2, "bad-command", "is not NAME"), ("diff:\n  accept: [a]", 2, "bad-command", "one value"),
    ("diff:\n  cost-epsilon: few", 2, "bad-command", "such as 0.5%"), ("diff: {x", 1, "yaml-syntax", "never closed")])
def test_a_wrong_file_is_told_by_its_line(pair, capsys, tmp_path, text, line, code, words):
    pair(text + "\n")
    ended, out, err = run(capsys, "diff", "a.yaml", "b.yaml", "-o", "out")
    assert (ended, out) == (2, "") and f"error[{code}]" in err and words in " ".join(err.split()), err
    assert f"--> .nnspec.yaml:{line}:" in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "# later\n\n  # and more\n", "diff:\n", "diff: {}\n", "diff:\n  fail-on:\n  only: []\n"])
def test_a_file_that_says_nothing_yet(pair, capsys, text):
    pair(text)
    assert run(capsys, "diff", "a.yaml", "b.yaml")[0] == 0
    assert run(capsys, "diff", "a.yaml", "b.yaml", "--exit-code")[0] == 1


def test_every_mistake_is_told_at_once(pair, capsys):
    pair("diff:\n  fail-on: [loud, x]\n  dtype: f16\n  at: {B: y}\nother: 1\n")
    assert run(capsys, "diff", "a.yaml", "b.yaml")[2].count("error[") == 4


def test_the_example_of_the_manual_is_right(pair, capsys, tmp_path):
    text = (ROOT / "specs" / "DIFF.md").read_text()
    (example,) = re.findall(r"## Defaults\n.*?```yaml\n(.*?)```", text, re.DOTALL)
    pair(example)
    (tmp_path / "accepted.yaml").write_text("[]\n")
    from nnspec.cli.config import OPTIONS
    assert set(yaml.safe_load(example)["diff"]) == set(OPTIONS)
    assert run(capsys, "diff", "a.yaml", "w.yaml")[0] == 1 and run(capsys, "diff", "a.yaml", "a.yaml")[0] == 0


def test_a_range_of_commits_reads_it_too(repo, capsys):  # noqa: F811
    (repo / "specs" / "tiny.nnspec.yaml").write_text(WINDOW)
    (repo / ".nnspec.yaml").write_text("diff: {fail-on: silent, at: {S: 9, Q: 2}}\n")
    fixed = 'inputs: {x: "float[Q, 4]"}\ngraph: {y: {op: linear, in: x, width: 4}}\noutputs: [y]\n'
    (repo / "specs" / "fixed.yaml").write_text(fixed)
    commit("window")
    (repo / "specs" / "fixed.yaml").write_text(edited(fixed, "width: 4} -> width: 4, bias: false}"))
    assert run(capsys, "diff", "--git", "HEAD~1")[0] == 1
    assert run(capsys, "diff", "--git", "HEAD~1", "--fail-on", "training")[0] == 0
    found = json.loads(run(capsys, "diff", "--git", "HEAD", "-f", "json")[1])["reports"]
    assert [r["sizes"] for r in found] == [{"Q": 2}]
    assert [r["sizes"] for r in json.loads(run(capsys, "diff", "--git", "HEAD~1", "-f", "json", "--at", "S=7")[1])["reports"]
            if r["base"]] == [{"B": 1, "S": 7}]
    code, _, err = run(capsys, "diff", "--git", "HEAD~1", "--at", "Z=7")
    assert code == 2 and "no spec that differs has a free dimension `Z`" in err


def test_the_hooks_of_pre_commit_leave_the_file_alone():
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[:2]:
        assert re.search(hook["files"], "specs/tiny.nnspec.yaml") and re.search(hook["files"], "a.nnspec.yml")
        assert not re.search(hook["files"], ".nnspec.yaml") and not re.search(hook["files"], "specs/.nnspec.yaml")


def test_costs_that_hardly_change(pair, capsys):
    given = ("diff", "a.yaml", "b.yaml")                      # norms lose their biases: 0 FLOPs, 0 cache
    out = run(capsys, *given)[1]
    assert "prefill FLOPs" in out and "peak activation" in out
    out = run(capsys, *given, "--cost-epsilon", "0.1%")[1]
    assert "prefill FLOPs" not in out and "peak activation" not in out and "parameters" in out and "cache of a row" in out
    assert "3 costs that changed by less than 0.1% are not shown" in " ".join(out.split())
    whole = json.loads(run(capsys, *given, "-f", "json")[1])
    assert json.loads(run(capsys, *given, "-f", "json", "--cost-epsilon", "0.1%")[1]) == whole
    for form in ("md", "html"):
        shown = run(capsys, *given, "-f", form, "--cost-epsilon", "1")[1]
        assert "changed by less than 1%" in shown, form
    assert "prefill FLOPs" not in run(capsys, *given, "-f", "md", "--cost-epsilon", "1")[1]
    assert run(capsys, "diff", "a.yaml", "k.yaml", "--cost-epsilon", "99%", "--budget", "flops=1k")[0] == 1      # limits are of all
    assert "prefill FLOPs" in run(capsys, "diff", "a.yaml", "k.yaml", "--cost-epsilon", "0")[1]
    assert run(capsys, *given, "--cost-epsilon", "few")[:2] == (2, "")
