"""The text commands: what they print, where, and their exit codes (0 fine, 1 a check failed, 2 bad input)."""

import json
import subprocess
import sys

import numpy as np
import pytest
from nnspec.cli import main
from nnspec.explain import codes
from nnspec.library import MODELS
from nnspec.ops.registry import OPS
from nnspec.printing import run_report
from nnspec.runtime.data import table

GOOD = 'nnspec: 1\nsizes: {width: 8}\ninputs: {x: "float[B, 3]"}\ngraph: {up: {op: linear, in: x, width: width}}\noutputs: [up]\n'
WARNS = GOOD.replace('"float[B, 3]"', '"float[B, 3]", y: "float[B]"')
BAD = GOOD.replace("linear", "linaer").replace("in: x", "in: z")
OVER = GOOD + "budget: {parameters: 31}\n"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with four specs; returns its exit code and what it wrote to both streams."""
    for name, text in {"good": GOOD, "warns": WARNS, "bad": BAD, "over": OVER}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        return (done.value.code, *capsys.readouterr())
    return call


def test_a_right_spec(run):
    assert run("validate", "good.yaml") == (0, "good.yaml: fine, 32 parameters\n", "")


def test_warnings_do_not_fail(run):
    code, out, err = run("validate", "warns.yaml")
    assert (code, out) == (0, "warns.yaml: fine, 32 parameters\n")
    assert err.startswith("warning[unused]: input `y` does not reach any output\n --> warns.yaml:3:28\n")


def test_everything_wrong_with_every_file_at_once(run):
    code, out, err = run("validate", "bad.yaml", "good.yaml", "gone.yaml", "bad.yaml")
    assert (code, out) == (2, "good.yaml: fine, 32 parameters\n")
    assert err.count("error[unknown-name]: there is no op `linaer`") == 1
    assert err.count("error[file-not-found]: there is no file `gone.yaml`") == 1
    assert err.endswith("\n2 errors\n")


def test_a_budget_that_is_exceeded_is_a_failed_check(run):
    code, out, err = run("validate", "over.yaml")
    assert code == 1 and "error[over-budget]" in out + err


def test_a_broken_spec_beside_a_budget_that_is_exceeded_is_bad_input(run):
    assert run("validate", "over.yaml", "bad.yaml")[0] == 2


def test_json(run):
    code, out, err = run("validate", "--format", "json", "bad.yaml", "warns.yaml")
    found = json.loads(out)
    assert (code, err) == (2, "")
    assert (found["errors"], found["warnings"]) == (1, 1)
    assert [(d["code"], d["severity"], d["labels"][0]["file"], d["labels"][0]["line"]) for d in found["diagnostics"]] == [
        ("unknown-name", "error", "bad.yaml", 4), ("unused", "warning", "warns.yaml", 3)]
    assert out.endswith("}\n") and not out.endswith("\n\n")


def test_json_of_what_is_right(run):
    code, out, err = run("validate", "--format", "json", "good.yaml")
    assert (code, json.loads(out), err) == (0, {"errors": 0, "warnings": 0, "diagnostics": []}, "")


def test_github(run):
    code, out, err = run("validate", "--format", "github", "bad.yaml", "warns.yaml")
    first, second = out.splitlines()
    assert (code, err) == (2, "")
    assert first.startswith("::error file=bad.yaml,line=4,col=18,title=unknown-name::there is no op `linaer`%0A")
    assert second.startswith("::warning file=warns.yaml,line=3,col=28,title=unused::")
    assert run("validate", "--format", "github", "good.yaml") == (0, "", "")


def test_a_format_does_not_outlive_its_command(run):
    run("validate", "--format", "json", "good.yaml")
    assert run("show", "bad.yaml")[2].startswith("error[unknown-name]")


@pytest.mark.parametrize(("given", "parameters"), [("width=4", 16), ("width=2 ** 5", 128), ("width=round_to(9, 8)", 64)])
def test_set_overrides_a_size(run, given, parameters):
    assert run("validate", "good.yaml", "--set", given)[1] == f"good.yaml: fine, {parameters} parameters\n"


WRONG_SET = {
    "width": "bad-command", "=3": "bad-command", "width=": "bad-command", "": "bad-command", "widht=3": "unknown-name",
    "width=x": "unknown-name", "width=0": "bad-attribute", "width=[4, 8]": "bad-attribute", "width=4,": "bad-expression",
    "width=width": "cycle", "width={a: 1}": "bad-expression", "width=1.5": "bad-attribute", "width=true": "bad-spec",
    "width=B": "unknown-name",
}


@pytest.mark.parametrize("given", WRONG_SET)
def test_wrong_sets(run, given):
    code, out, err = run("validate", "good.yaml", "--set", given)
    assert (code, out) == (2, "")
    assert err.startswith(f"error[{WRONG_SET[given]}]: ") and err.endswith("\n1 error\n")


def test_a_size_set_twice(run):
    code, _, err = run("validate", "good.yaml", "--set", "width=4", "--set", "width=5")
    assert code == 2 and "`--set width` is given twice" in err


def test_a_set_is_shown_where_it_is_wrong(run):
    shown = " --> --set width=0:1:7\n  1 | width=0\n    |       ^ `width` is from here\n"
    assert shown in run("validate", "good.yaml", "--set", "width=0")[2]


@pytest.mark.parametrize("arguments", [[], ["--depth", "1"], ["--graph"], ["--set", "width=4"]])
def test_show(run, arguments):
    code, out, err = run("show", "good.yaml", *arguments)
    assert (code, err) == (0, "") and "up" in out and "linear" in out


def test_show_says_what_is_wrong(run):
    code, out, err = run("show", "bad.yaml")
    assert (code, out) == (2, "") and "did you mean `linear`?" in err


def test_list_names_everything(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert all(p.stem in out for p in MODELS.glob("*.yaml")) and all(name in out for name in OPS)


def test_explain(run):
    assert run("explain") == (0, "".join(f"{c}\n" for c in codes()), "")
    code, out, err = run("explain", "indivisible")
    assert (code, err) == (0, "") and out.startswith("# indivisible\n") and "error[indivisible]" in out
    code, out, err = run("explain", "alibi")
    assert code == 0 and out.startswith("alibi (op)\n") and "\n\nalibi (block, use: [positions])\n" in out
    code, out, err = run("explain", "gpt2")
    assert code == 2 and "help: `nnspec show gpt2`" in err
    code, out, err = run("explain", "indivisble")
    assert (code, out) == (2, "") and "did you mean `indivisible`?" in err


@pytest.mark.parametrize("arguments", [
    ["validate"], ["show"], ["show", "good.yaml", "--depth", "0"], ["show", "good.yaml", "bad.yaml"], ["lisst"], ["list", "more"],
    ["validate", "--format", "xml", "good.yaml"], ["--wrong"]])
def test_wrong_commands(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and err.startswith("error[bad-command]: ") and "--help`" in err


def test_no_command_prints_the_help(run):
    code, out, err = run()
    assert (code, err) == (2, "") and out.startswith("Usage: nnspec") and "validate" in out


@pytest.mark.parametrize("name", ["", "nothing", "gtp2", "a\nb.yaml", "gone/x.yaml"])
def test_specs_that_are_not_there(run, name):
    code, out, err = run("validate", name)
    assert (code, out) == (2, "") and err.startswith(("error[bad-path]", "error[file-not-found]"))


def test_files_that_hold_no_spec(run, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "data.yaml").write_bytes(bytes(range(128, 256)))
    (tmp_path / "huge.yaml").write_bytes(b"a: b\n" * 2**20)
    (tmp_path / "empty.yaml").write_text("")
    code, out, err = run("validate", *(f"{n}.yaml" for n in ("folder", "data", "huge", "empty")))
    assert (code, out) == (2, "")
    assert [c for c in ("file-not-readable", "file-not-utf8", "file-too-large", "yaml-empty") if f"error[{c}]" not in err] == []


def test_the_module_is_the_command(run, tmp_path):
    done = subprocess.run([sys.executable, "-m", "nnspec", "validate", "bad.yaml"], capture_output=True, text=True, cwd=tmp_path,
                          check=False)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr and "error[unknown-name]" in done.stderr


def test_a_run_report_keeps_to_100_columns():
    rows = table({f"layers.{i}.attention.key_placed.out": np.random.default_rng(i).normal(size=(2, 3, 11, 8)) for i in range(2)})
    report = run_report("CPUExecutionProvider", {r.name: np.empty(r.shape) for r in rows} | {"tokens": np.empty((2, 3))}, rows, None)
    assert max(map(len, report.splitlines())) <= 100
    assert report.count("layers.1.attention.key_placed.out") == 2 and "tokens [2, 3]\n" in report
