"""Time by path: nested loops counted once, fused nodes found, a real profile whole."""

import nnspec
import pytest
from click.testing import CliRunner
from nnspec import cli
from nnspec.runtime.profile import OTHER, profile, spent

pytest.importorskip("onnxruntime")

SPEC = """
nnspec: 1
name: timed
inputs: {x: "float[B, S, 24]"}
graph:
  up: {op: linear, in: x, width: 48}
  steps: {scan: step, along: S, each: {x: up}, carry: {h: 0}}
  out: {op: linear, in: steps, width: 3}
outputs: {out: out}
blocks:
  step:
    inputs: {x: "float[B, D]", h: "float[B, D]"}
    graph:
      both: {op: add, in: [x, h]}
      next: {op: linear, in: both, width: D}
    outputs: {h: next}
"""


def event(name, ts, dur, op="", cat="Node"):
    return {"cat": cat, "name": name if cat == "Session" else f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {"op_name": op}}


def test_times_by_path():
    """Two runs, the first of them slow: only the second counts."""
    def one(at, slow):
        return [event("loop/Scan", at, 100 * slow, "Scan"), event("loop.a/MatMul", at + 1, 60 * slow, "MatMul"),
                event("fused loop.b.c/Add/AddFusion", at + 70 * slow, 20 * slow, "Gemm"),
                event("Cast_token_3", at + 100 * slow, 50 * slow, "Cast"), event("model_run", at, 160 * slow, cat="Session")]
    paths = {"loop/Scan": "loop", "loop.a/MatMul": "loop.a", "loop.b.c/Add": "loop.b.c"}
    found = spent([*one(0, 1000), *one(500_000, 1)], paths)
    assert [(s.path, round(s.milliseconds, 6), s.calls, s.operators) for s in found] == [
        ("loop.a", 0.06, 1, ("MatMul",)), (OTHER, 0.05, 1, ("Cast",)), ("loop", 0.02, 1, ("Scan",)), ("loop.b.c", 0.02, 1, ("Gemm",))]
    assert sum(s.share for s in found) == pytest.approx(1)
    (joined, other) = spent([*one(0, 1000), *one(500_000, 1)], paths, depth=1)
    assert (joined.path, joined.calls, joined.operators, other.path) == ("loop", 3, ("MatMul", "Scan", "Gemm"), OTHER)
    assert joined.milliseconds == pytest.approx(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("timed")
    (where / "spec.yaml").write_text(SPEC.lstrip())
    nnspec.load(where / "spec.yaml").export(where / "out", init=0, certify="none")
    return where / "out"


def test_a_loop_is_told_by_what_is_in_it(folder):
    x = nnspec.runtime.random_inputs(nnspec.runtime.open(folder).manifest, {"B": 3, "S": 11}, 0)
    found = {s.path: s for s in profile(folder, x, threads=1)}
    assert {"up", "steps", "steps.both", "steps.next", "out"} <= set(found)
    assert found["steps.both"].calls == 11 and found["out"].operators[0] in ("MatMul", "Add")
    assert all(s.milliseconds > 0 for s in found.values()) and sum(s.share for s in found.values()) == pytest.approx(1)


def test_the_command_prints_a_table(folder):
    done = CliRunner().invoke(cli.cli, ["run", str(folder), "--random", "S=11", "--profile", "--depth", "1", "--threads", "1", "--spin"])
    assert done.exit_code == 0, done.output
    lines = done.output.partition(" ms in operators per run\n")[2].splitlines()
    assert lines[0].split() == ["ms", "share", "calls", "path", "operators"] and max(map(len, lines)) <= 100
    times = [float(line.split()[0]) for line in lines[1:]]
    assert times == sorted(times, reverse=True) and {"up", "steps", "out"} <= {line.split()[3] for line in lines[1:]}


def test_a_depth_goes_with_a_profile(folder):
    assert CliRunner().invoke(cli.cli, ["run", str(folder), "--depth", "1"]).exit_code == 2
