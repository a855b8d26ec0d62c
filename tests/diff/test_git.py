"""Comparison in a real git repository: commits, branches, renames, a broken base, the diff driver, and what it is installed by."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nnspec.cli import main
from nnspec.diff.commits import compare_range

from .pairs import NORM, edited
from .test_commands import TINY

ROOT = Path(__file__).parents[2]
NAME = "tiny.nnspec.yaml"


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A repository with one committed spec on `main`; git sees no configuration of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for key in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_AUTHOR_{key}", "a@b.example")
        monkeypatch.setenv(f"GIT_COMMITTER_{key}", "a@b.example")
    top = tmp_path / "top"
    (top / "specs").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(top)
    git("init", "-q", "-b", "main")
    (top / "specs" / NAME).write_text(TINY)
    commit("first")
    return top


def git(*arguments):
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(message):
    git("add", "-A")
    git("commit", "-q", "-m", message)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def test_a_commit_against_the_file_as_it_is(repo, capsys):
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    code, out, _ = run(capsys, "diff", f"HEAD:specs/{NAME}", f"specs/{NAME}")
    assert code == 0 and "norm.type-changed" in out
    os.chdir("specs")
    assert run(capsys, "diff", f"HEAD:./{NAME}", NAME)[1].splitlines()[1:] == out.replace("specs/", "").splitlines()[1:]
    code, _, err = run(capsys, "diff", f"HEAD:{NAME}", NAME)
    assert code == 2 and "file-not-found" in err and "from the top" in err
    assert run(capsys, "diff", f"nowhere:specs/{NAME}", NAME)[0] == 2
    assert run(capsys, "diff", "HEAD:../../outside.yaml", NAME)[0] == 2


def test_files_that_a_commit_uses_are_those_of_the_commit(repo, capsys):
    block = 'blocks:\n  mix:\n    inputs: {in: "float[B, W]"}\n    graph: {up: {op: linear, in: in, width: 8}}\n'
    main_ = 'use: [../parts/mine.yaml]\ninputs: {x: "float[B, 4]"}\ngraph: {y: {block: mix, in: x}}\noutputs: [y]\n'
    variant = "base: ./user.yaml\nset: {graph.y.in: x}\n"
    (repo / "parts").mkdir()
    (repo / "parts" / "mine.yaml").write_text(block)
    (repo / "specs" / "user.yaml").write_text(main_)
    (repo / "specs" / "variant.yaml").write_text(variant)
    commit("a file of blocks")
    (repo / "parts" / "mine.yaml").write_text(block.replace("width: 8", "width: 9"))
    for name in ("user", "variant"):
        found = json.loads(run(capsys, "diff", f"HEAD:specs/{name}.yaml", f"specs/{name}.yaml", "-f", "json")[1])
        assert [c["delta"] for c in found["costs"] if c["metric"] == "parameters"] == [5]
        assert found["edits"][0]["source"]["head"]["file"].endswith("parts/mine.yaml")
    code, out, _ = run(capsys, "diff", "--git", "HEAD")
    assert code == 0 and out.count("nnspec diff ") == 2                # the specs that use it, and nothing else


def test_a_branch_from_its_merge_base(repo, capsys):
    git("checkout", "-q", "-b", "work")
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    (repo / "specs" / "new.yaml").write_text(TINY)
    (repo / "notes.yaml").write_text("a: 1\n")
    commit("norms")
    git("checkout", "-q", "main")
    (repo / "specs" / NAME).write_text(edited(TINY, "vocab: 101 -> vocab: 103"))
    commit("meanwhile")
    git("checkout", "-q", "work")
    code, out, _ = run(capsys, "diff", "--git", "main...HEAD")
    assert code == 0 and "norm.type-changed" in out and "embedding.rows-changed" not in out
    assert "specs/new.yaml: added spec: " in out and "notes.yaml" not in out
    code, out, _ = run(capsys, "diff", "--git", "main..HEAD", "--", f"specs/{NAME}")
    assert "embedding.rows-changed" in out and "new.yaml" not in out
    code, out, _ = run(capsys, "diff", "--git", "main..HEAD", "--", "specs/**/n*.yaml")
    assert NAME not in out and "new.yaml" in out
    assert run(capsys, "diff", "--git", "main...HEAD", "--fail-on", "breaking")[0] == 1
    assert run(capsys, "diff", "--git", "--output=x...HEAD")[0] == 2
    assert run(capsys, "diff", "--git", "HEAD...HEAD")[1] == "no spec differs\n"


def test_a_renamed_file_is_compared_with_what_it_was(repo):
    git("mv", f"specs/{NAME}", "specs/other.yaml")
    (repo / "specs" / "other.yaml").write_text(edited(TINY, "layers: 12 -> layers: 13"))
    commit("another name")
    (report,) = compare_range("HEAD~1..HEAD").reports
    assert report.base.label.endswith(f":specs/{NAME}") and report.head.label == "specs/other.yaml"
    assert [e.rule for e in report.edits] == ["stack.count-increased"]
    git("rm", "-q", "specs/other.yaml")
    commit("gone")
    (report,) = compare_range("HEAD~1..HEAD").reports
    assert report.head is None and report.changed


def test_a_broken_base_never_reads_as_clean(repo, capsys):
    (repo / "specs" / NAME).write_text(edited(TINY, "op: linear -> op: liner"))
    (repo / "specs" / "good.yaml").write_text(TINY)
    commit("broken")
    (repo / "specs" / NAME).write_text(TINY)
    (repo / "specs" / "good.yaml").write_text(edited(TINY, *NORM))
    commit("mended")
    for form in ("text", "md", "junit", "json"):
        code, out, err = run(capsys, "diff", "--git", "HEAD~1..HEAD", "-f", form)
        assert code == 2 and ("liner" in err or "liner" in out), form
        assert "norm" in out, form                                     # the other spec is told all the same
    assert "could not be made" in run(capsys, "diff", "--git", "HEAD~1..HEAD", "-f", "md")[1]
    assert 'errors="1"' in run(capsys, "diff", "--git", "HEAD~1..HEAD", "-f", "junit")[1]


def test_git_diff_log_and_show_after_an_installation(repo, capsys):
    code, out, _ = run(capsys, "git", "install")
    assert code == 0 and "commit this file" in out
    run(capsys, "git", "install")
    assert (repo / ".gitattributes").read_text() == "*.nnspec.yaml diff=nnspec\n"
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    shown = git("diff")
    assert "norm.type-changed" in shown and "-19" not in shown.splitlines()[0]
    commit("norms")
    assert "+    norm: {op: rms_norm" not in shown
    log = git("log", "-p", "-1", "--", f"specs/{NAME}")
    assert '-  "layers[0..11].attention_norm.bias": "float [24] x12"' in log and "+structure: " in log
    assert git("show", "HEAD", "--", f"specs/{NAME}").count("attention_norm.bias") == 1
    git("mv", f"specs/{NAME}", "specs/moved.nnspec.yaml")
    (repo / "specs" / "moved.nnspec.yaml").write_text(TINY)
    assert "b/specs/moved.nnspec.yaml" in git("diff", "-M", "HEAD")    # nine arguments
    code, out, _ = run(capsys, "git", "install", "--disable")
    assert code == 0 and not (repo / ".gitattributes").exists() and "nnspec" not in git("config", "--local", "--list")
    assert run(capsys, "git", "install", "--disable")[0] == 0


def test_the_driver_never_ends_git_diff(repo, capsys):
    run(capsys, "git", "install", "--pattern", "*.yaml")
    (repo / "specs" / NAME).write_text(edited(TINY, "op: linear -> op: liner"))
    (repo / "table.yaml").write_text("a: 1\n")
    git("add", "-A", "-N")
    shown = git("diff")
    assert "cannot be compared as specs" in shown and "+  logits: {op: liner" in shown and "+a: 1" in shown
    commit("broken")
    (repo / "specs" / NAME).unlink()
    assert "deleted file" in git("diff")
    assert "does not compile" in git("log", "-p", "-1", "--", f"specs/{NAME}")


def test_lines_of_other_tools_stay(repo, capsys):
    (repo / ".gitattributes").write_text("*.png binary")
    assert run(capsys, "git", "install", "--global")[0] == 0
    assert (repo / ".gitattributes").read_text() == "*.png binary"
    assert Path(os.environ["HOME"], ".config", "git", "attributes").read_text() == "*.nnspec.yaml diff=nnspec\n"
    run(capsys, "git", "install")
    run(capsys, "git", "install", "--disable")
    assert (repo / ".gitattributes").read_text() == "*.png binary\n"


def test_the_hooks_of_pre_commit_run(repo, capsys):
    hooks = {h["id"]: h for h in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert set(hooks) == {"nnspec-validate", "nnspec-lock-check", "nnspec-diff"}
    command = lambda name, *files: subprocess.run([*hooks[name]["entry"].split(), *files], capture_output=True, text=True, check=False)  # noqa: E731
    assert command("nnspec-lock-check", f"specs/{NAME}").returncode == 1
    assert command("nnspec-validate", f"specs/{NAME}").returncode == 0
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    done = command("nnspec-diff")
    assert done.returncode == 0 and "norm.type-changed" in done.stdout


@pytest.mark.parametrize("fail_on, code", [("", 0), ("breaking", 1)])
def test_the_steps_of_the_action_run(repo, fail_on, code, tmp_path):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = next(s for s in action["runs"]["steps"] if s.get("id") == "diff")
    git("checkout", "-q", "-b", "work")
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    commit("norms")
    output, summary = tmp_path / "output", tmp_path / "summary"
    inputs = {"BASE": "main", "PATHS": "", "FAIL_ON": fail_on}
    assert set(step["env"]) == set(inputs)
    given = inputs | {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(tmp_path)}
    command = ["bash", "-euo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | given)
    assert done.returncode == code, done.stderr
    assert f"::error file=specs/{NAME},line=" in done.stdout and "norm" in summary.read_text()
    said = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert said["changed"] == "true" and json.loads(Path(said["json"]).read_text())["reports"][0]["level"] == "breaking"
    assert set(action["outputs"]) == set(said)


def test_a_broken_spec_of_a_commit_is_annotated_at_its_file(tmp_path, monkeypatch, capsys):
    from .test_commands import TINY, run
    monkeypatch.chdir(tmp_path)
    git = lambda *a: subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@x", *a], cwd=tmp_path, check=True, capture_output=True)  # noqa: E731
    git("init", "-q", "-b", "main")
    (tmp_path / "m.yaml").write_text(TINY)
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "m.yaml").write_text(TINY.replace("op: linear", "op: liner"))
    git("commit", "-qam", "two")
    code, out, err = run(capsys, "diff", "--git", "main~1..main", "-f", "github")
    assert code == 2 and out.startswith("::error file=m.yaml,line=") and err == ""
    _, out, err = run(capsys, "diff", "--git", "main~1..main", "-f", "json")
    assert json.loads(out)["reports"] == [] and "liner" in json.loads(out)["failures"][0]
    assert re.search(r"--> [0-9a-f]{12}:\./m.yaml:\d", err)


def shown_pages(text):
    """The pages whose names a command printed, as their texts."""
    return [Path(line).read_text() for line in text.splitlines() if line.endswith(".html")]


def test_difftool_opens_a_page(repo, capsys, tmp_path, monkeypatch):
    run(capsys, "git", "install")
    opener = tmp_path / "browser"
    opener.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/urls\n')
    opener.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(opener))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    (repo / "specs" / "new.yaml").write_text(TINY)
    (repo / "table.yaml").write_text("a: 1\n")
    git("add", "-A")
    os.chdir("specs")                                                  # paths are from the top, wherever it is called
    said = git("difftool", "-y", "-t", "nnspec", "HEAD")
    pages = shown_pages(said)
    assert len(pages) == 2 and "norm.type-changed" in pages[1] + pages[0] and "+a: 1" in said
    assert [line.startswith("file:///") for line in (tmp_path / "urls").read_text().splitlines()] == [True, True]
    git("config", "difftool.other.cmd", 'echo other "$MERGED"')
    assert f"other specs/{NAME}" in git("difftool", "-y", "-t", "other", "HEAD")              # other tools see these files too
    os.chdir("..")
    (whole,) = shown_pages(git("difftool", "-y", "-d", "-t", "nnspec", "HEAD"))
    assert "norm.type-changed" in whole and "new.yaml" in whole
    run(capsys, "git", "install", "--disable")
    assert "difftool.nnspec" not in git("config", "--local", "--list")


def test_difftool_alone(repo, capsys, tmp_path, monkeypatch):
    import webbrowser
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    (repo / "b.yaml").write_text(edited(TINY, *NORM))
    (repo / "broken.yaml").write_text(edited(TINY, "op: linear -> op: liner"))
    code, out, _ = run(capsys, "difftool", f"specs/{NAME}", "b.yaml", "-o", "page.html")
    assert (code, out) == (0, "page.html (no browser could be opened)\n") and "norm.type-changed" in (repo / "page.html").read_text()
    assert run(capsys, "difftool", "/dev/null", "b.yaml", "-o", "page.html", "--no-open")[:2] == (0, "page.html\n")
    assert "norm.type-changed" not in (repo / "page.html").read_text()
    code, out, err = run(capsys, "difftool", "broken.yaml", "b.yaml", "-o", "page.html", "--no-open")
    assert code == 2 and "liner" in err and "liner" in (repo / "page.html").read_text()
    for bad in (("nowhere.yaml", "b.yaml"), ("b.yaml", "specs"), ("b.yaml", "b.yaml", "-o", "no/where.html")):
        code, out, err = run(capsys, "difftool", "--no-open", *bad)
        assert code == 2 and "error[" in err, bad


MIX = 'blocks:\n  mix:\n    inputs: {in: "float[B, W]"}\n    graph: {up: {op: linear, in: in, width: 8}}\n  other:\n' \
    '    inputs: {in: "float[B, W]"}\n    graph: {up: {op: linear, in: in, width: 8}}\n'
USER = 'use: [../parts/mine.yaml]\ninputs: {x: "float[B, 4]"}\ngraph: {y: {block: mix, in: x}}\noutputs: [y]\n'


@pytest.fixture
def users(repo):
    """Specs that use a file of blocks: two of its block `mix`, a variant of one of them, and one of its block `other`."""
    (repo / "parts").mkdir()
    (repo / "parts" / "mine.yaml").write_text(MIX)
    for name in ("a", "b"):
        (repo / "specs" / f"{name}.yaml").write_text(USER)
    (repo / "specs" / "c.yaml").write_text(USER.replace("mix", "other"))
    (repo / "specs" / "v.yaml").write_text("base: ./a.yaml\nset: {graph.y.in: x}\n")
    commit("users")
    return repo


@pytest.mark.parametrize("here", [".", "specs"])
@pytest.mark.parametrize("committed", [True, False])
def test_who_uses_a_file_that_differs_is_told(users, capsys, here, committed):
    (users / "parts" / "mine.yaml").write_text(MIX.replace("width: 8", "width: 9", 1))
    if committed:
        commit("wider")
    os.chdir(here)
    given = ("diff", "--git", "HEAD~1..HEAD" if committed else "HEAD")
    said = "parts/mine.yaml differs, and 3 of the 4 specs that use it change: specs/a.yaml, specs/b.yaml, specs/v.yaml"
    out = run(capsys, *given)[1]
    assert f"\n{said}\n" in out and out.count("differs, and") == 1
    assert f"\n- {said}\n" in run(capsys, *given, "-f", "md")[1]
    found = {r["head"]["label"]: r for r in json.loads(run(capsys, *given, "-f", "json")[1])["reports"]}
    assert {k: r["uses"] for k, r in found.items()} == {f"specs/{n}.yaml": ["parts/mine.yaml"] for n in "abcv"}
    assert not found["specs/c.yaml"]["changed"] and found["specs/v.yaml"]["changed"]


def test_a_base_that_differs_is_a_file_that_its_variants_use(users, capsys):
    (users / "specs" / "a.yaml").write_text(USER.replace("{block: mix", "{block: other"))
    out = run(capsys, "diff", "--git", "HEAD")[1]
    assert "specs/a.yaml differs, and" in out and "the 1 spec that uses it changes: specs/v.yaml" in out
    (users / "specs" / "a.yaml").write_text(USER + "notes: x\n")
    assert "specs/a.yaml differs, and none of the 1 spec that uses it changes" in run(capsys, "diff", "--git", "HEAD")[1]
    (users / "specs" / "a.yaml").write_text(USER)
    (users / "specs" / NAME).write_text(edited(TINY, *NORM))
    assert "differs, and" not in run(capsys, "diff", "--git", "HEAD")[1]


def test_equal_edits_of_two_specs_are_accepted_one_by_one(users, capsys, tmp_path):
    (users / "parts" / "mine.yaml").write_text(MIX.replace("width: 8", "width: 9", 1))
    run(capsys, "diff", "--git", "HEAD", "--write-accept", "ok.yaml")
    entries = yaml.safe_load((users / "ok.yaml").read_text())
    assert [e["spec"] for e in entries] == ["specs/a.yaml", "specs/b.yaml", "specs/v.yaml"] and len({e["id"] for e in entries}) == 1
    assert run(capsys, "diff", "--git", "HEAD", "--accept", "ok.yaml", "--fail-on", "warning")[::2] == (0, "")
    (users / "one.yaml").write_text(yaml.safe_dump(entries[:1]))
    code, out, err = run(capsys, "diff", "--git", "HEAD", "--accept", "one.yaml", "--fail-on", "warning", "-f", "json")
    levels = {r["head"]["label"]: r["level"] for r in json.loads(out)["reports"]}
    assert (code, err) == (1, "") and levels == {"specs/a.yaml": "info", "specs/b.yaml": "breaking", "specs/c.yaml": None,
                                                 "specs/v.yaml": "breaking"}
    for name, code in (("a", 0), ("b", 1)):                           # two sides by hand, from wherever it is called
        for here, given in ((".", f"specs/{name}.yaml"), ("specs", f"{name}.yaml"), ("specs", str(users / "specs" / f"{name}.yaml"))):
            os.chdir(users / here)
            sides = (f"HEAD:specs/{name}.yaml", given)
            ended, _, err = run(capsys, "diff", *sides, "--accept", str(users / "one.yaml"), "--fail-on", "warning")
            assert (ended, err) == (code, ""), (name, here)
    os.chdir(users)
    (users / "all.yaml").write_text(yaml.safe_dump([{k: v for k, v in entries[0].items() if k != "spec"}]))
    assert run(capsys, "diff", "--git", "HEAD", "--accept", "all.yaml", "--fail-on", "warning")[0] == 0          # no `spec:`, all of them
    (users / "old.yaml").write_text(yaml.safe_dump([entries[0] | {"id": "c00000000000"}, entries[0] | {"spec": "specs/gone.yaml"}]))
    err = run(capsys, "diff", "--git", "HEAD", "--accept", "old.yaml")[2]
    assert "no edit of `specs/a.yaml` has that id" in err and "gone" not in err           # not compared, not warned of


def test_exported_models_are_compared_by_the_spec_inside(repo, capsys):
    onnx = pytest.importorskip("onnx")

    def export(text, name="specs/model.onnx"):
        made = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
        if text:
            made.metadata_props.add(key="nnspec.spec", value=text)
        onnx.save(made, name)
    run(capsys, "git", "install", "--pattern", "*.onnx")
    export(TINY)
    export("", "other.onnx")
    commit("exported")
    export(edited(TINY, *NORM))
    Path("other.onnx").write_bytes(b"no model")
    shown = git("diff")
    assert "norm.type-changed" in shown and "b/specs/model.onnx" in shown and "other.onnx" in shown
    commit("norms")
    log = git("log", "-p", "-1", "--", "specs/model.onnx")
    assert '-  "layers[0..11].attention_norm.bias": "float [24] x12"' in log and "+structure: " in log
    assert run(capsys, "textconv", "other.onnx")[0] == 0


def test_paths_of_a_range_are_from_here_and_of_either_side(repo, capsys, monkeypatch):
    (repo / "specs" / "old.yaml").write_text(TINY)
    commit("another")
    (repo / "specs" / "old.yaml").unlink()
    (repo / "specs" / NAME).write_text(edited(TINY, *NORM))
    for given in (("HEAD",), ("HEAD~1..HEAD",)):
        for path in ("specs/old.yaml", "specs/o*.yaml", "specs/ol?.yaml"):
            assert "specs/old.yaml: removed spec: " in run(capsys, "diff", "--git", *given, "--", path)[1]
        assert "norm.type-changed" in run(capsys, "diff", "--git", *given, "--", "specs/")[1]
        code, out, err = run(capsys, "diff", "--git", *given, "--", "specs/odd.yaml")
        assert (code, out) == (2, "") and "neither side has `specs/odd.yaml`" in err and "did you mean `specs/old.yaml`?" in err
        assert run(capsys, "diff", "--git", *given, "--", "none/**/*.yaml")[:2] == (0, "no spec differs\n")
        with monkeypatch.context() as there:
            there.chdir(repo / "specs")
            for path in (NAME, f"../specs/{NAME}", ".", "*.yaml", ".."):
                assert "norm.type-changed" in run(capsys, "diff", "--git", *given, "--", path)[1]
            assert run(capsys, "diff", "--git", *given, "--", "../../x.yaml")[0] == 2
        if given == ("HEAD",):
            commit("gone")


def test_commits_that_are_not_there_are_named(repo, capsys):
    for given in ("nowhere", "nowhere..HEAD", "HEAD...nowhere"):
        code, out, err = run(capsys, "diff", "--git", given)
        assert (code, out) == (2, "") and "git has no commit `nowhere`" in err and "= note: \n" not in err
    git("checkout", "-q", "--orphan", "alone")
    commit("alone")
    code, _, err = run(capsys, "diff", "--git", "main...HEAD")
    assert code == 2 and "the commits of `main...HEAD` have no merge base here" in err
