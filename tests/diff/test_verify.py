"""Claims of a comparison that are run: those that hold, those that do not, and those that cannot be decided."""

import json
from dataclasses import replace

import numpy as np
import pytest
from nnspec.cli import main
from nnspec.diff.migration import engines
from nnspec.diff.migration import verify as claims
from nnspec.diff.migration.migrate import keyed
from nnspec.diff.migration.recipes import Recipe

from .command import diff
from .convertible import APPROX, DEEPER, EXACT, GATED, GQA, JOINED, PLAIN, REFUSED, RENAMED, ROPE, SILENT, WIDER, put, saved
from .pairs import compiled


def checked(base, head, read=None, engines=(engines.TORCH,)):
    a, b = compiled(base), compiled(head)
    keys, report = keyed(a, b, ("a.yaml", "b.yaml"))
    return claims.verify(a.graph, b.graph, keys, report.edits, read, engines)


@pytest.mark.parametrize("name", [*EXACT, *SILENT])
def test_every_claim_holds(name):
    found = checked(*(EXACT | SILENT)[name])
    claim = claims.SAME if name in EXACT else claims.OTHER
    assert found and all(c.holds is True and c.claim == claim and c.cases > 0 and c.scale > 0 for c in found)
    assert all(c.max_abs <= 1e-9 * c.scale if name in EXACT else c.max_abs > 1e-9 * c.scale for c in found)


def test_a_rename_is_the_same_to_the_last_bit():
    (found,) = checked(PLAIN, RENAMED, engines=claims.BOTH)
    assert (found.max_abs, found.dtype, found.first) == (0.0, "float64", "")
    assert [(r.engine, r.dtype, r.max_abs) for r in found.runs] == [("PyTorch", "float64", 0.0), ("ONNX Runtime", "float32", 0.0)]


@pytest.mark.parametrize("name", ["join q, k, v", "join gate and up", "more words", "two at once"])
def test_onnx_runtime_agrees_on_three_batches(name):
    """Other operators run there: what agrees to 1e-15 in PyTorch differs in float32 by its rounding alone."""
    found = checked(*EXACT[name], engines=claims.BOTH)
    for c in found:
        torch_run, onnx_run = c.runs
        assert (onnx_run.batches, onnx_run.tolerance) == (3, 1e-4) and torch_run.batches >= 3
        assert onnx_run.max_rel <= 1e-5 and torch_run.max_rel <= 1e-12 and onnx_run.scale > 0.1


@pytest.mark.parametrize("name", ["window", "heads", "eps"])
def test_onnx_runtime_shows_silent_changes_too(name):
    (found,) = checked(*SILENT[name], engines=claims.BOTH)
    assert found.holds is True and found.runs[1].max_abs == pytest.approx(found.max_abs, rel=0.05)


def test_one_of_three_batches_has_an_odd_length():
    a = compiled(PLAIN)
    for longest in (claims.SHORT, None):
        cases = list(claims._cases(a.graph, a.graph, longest))
        few = claims._few(cases)
        assert len(few) == min(3, len(cases)) and any(c["S"] % 2 and c["S"] > 1 for c, _ in few)
    few = claims._few(list(claims._cases(a.graph, a.graph, claims.SHORT)))
    assert len({str(sorted(c.items())) for c, _ in few}) == 3 and {c["B"] for c, _ in few} == {1, 3}
    assert all(arrays["tokens"].shape == (c["B"], c["S"]) and arrays["tokens"].any() for c, arrays in few)


def test_the_first_node_that_differs_is_named():
    (found,) = checked(PLAIN, put(PLAIN, ("    norm: {op: layer_norm, eps: 1e-5}", "    norm: {op: layer_norm, eps: 1e-2}")))
    assert found.first.startswith("layers.0.attention_norm (") and found.holds is True and found.first in str(found)
    (found,) = checked(PLAIN, put(PLAIN, ("in: layers, eps: 1e-5}", "in: layers, eps: 1e-2}")))
    assert found.first == "norm (spec.yaml:16)"
    (found,) = checked(PLAIN, put(PLAIN, ("activation: gelu_tanh}", "activation: relu}")))
    assert found.first.startswith("layers.0.ffn.")


def test_an_engine_that_does_not_run_is_told_and_proves_nothing(monkeypatch):
    def broken(*given):
        raise engines.NotRun("no kernel for it")
    monkeypatch.setitem(engines.ENGINES, engines.ONNX, broken)
    (found,) = checked(GQA, PLAIN, engines=claims.BOTH)
    assert found.holds is True and found.runs[1].max_abs is None and "ONNX Runtime float32 did not run: no kernel for it" in str(found)
    assert found.data()["runs"][1]["ran"] is False


def test_a_difference_in_onnx_runtime_alone_fails_the_claim(monkeypatch):
    real = engines.run_onnx
    calls = []

    def spoiled(graph, state, cases, dtype):
        calls.append(graph)
        return real(graph, {k: v * 1.01 if len(calls) == 2 else v for k, v in state.items()}, cases, dtype)
    monkeypatch.setitem(engines.ENGINES, engines.ONNX, spoiled)
    (found,) = checked(GQA, PLAIN, engines=claims.BOTH)
    assert found.holds is False and found.runs[0].max_rel < 1e-12 and found.runs[1].max_rel > 1e-3 and "NOT the same" in str(found)


def test_numbers_that_one_side_lacks_are_a_difference():
    a = {"y": np.array([[1.0, np.nan, -np.inf, 3.0]])}
    assert engines.difference([a], [a]).max_abs == 0.0
    for other in ([1.0, 2.0, -np.inf, 3.0], [1.0, np.nan, 2.0, 3.0], [np.nan, np.nan, -np.inf, 3.0]):
        assert not engines.difference([a], [{"y": np.array([other])}]).within(1e-3)
    assert engines.difference([a], [{"y": np.array([[1.0]])}]).wrong == "`y` is [1, 1], and was [1, 4]"
    assert engines.difference([a], [{"y": np.array([[1.0, np.nan, -np.inf, 3.0, 7.0]])}]).within(0)         # appended entries


@pytest.mark.parametrize("name", ["mean of heads", "rope", "other norm", "fewer words"])
def test_what_needs_training_is_measured_and_nothing_is_claimed(name):
    (found,) = checked(*APPROX[name])
    assert (found.claim, found.holds) == (claims.MEASURED, None) and found.max_abs is not None and "measured" in str(found)


def test_what_cannot_be_made_is_not_verified():
    for base, head in REFUSED.values():
        (found,) = checked(base, head)
        assert found.holds is None and "not verified" in str(found)


def test_a_window_that_short_inputs_do_not_show_is_run_on_long_ones():
    roomy = PLAIN.replace("33", "300")
    window = put(roomy, ("causal: true}", "causal: true, window: 100}"))
    (found,) = checked(roomy, window)
    assert found.holds is True and found.claim == claims.OTHER
    (found,) = checked(ROPE, put(ROPE, ("causal: true,", "causal: true, window: 5000,")))
    assert found.holds is None and "too short" in str(found)


@pytest.mark.parametrize("spoil", ["roll", "zero", "swap"])
def test_a_claim_that_is_wrong_is_found(spoil, monkeypatch):
    """Heads in another order, one bias lost, key and value exchanged: each must show."""
    a, b = compiled(PLAIN), compiled(JOINED)
    keys, report = keyed(a, b, ("a", "b"))
    (move,) = keys.moves
    recipes = dict(move.plan.recipes)
    weight, bias = "layers.2.attention.qkv.weight", "layers.2.attention.qkv.bias"
    if spoil == "roll":
        recipes[weight] = replace(recipes[weight], index=recipes[weight].index[[*range(2, 24), 0, 1, *range(24, 72)]])
    elif spoil == "zero":
        recipes[bias] = Recipe("fill", (72,), "exact")
    else:
        recipes[weight] = replace(recipes[weight], index=recipes[weight].index[[*range(24), *range(48, 72), *range(24, 48)]])
    wrong = replace(keys, moves=(replace(move, plan=replace(move.plan, recipes=recipes)),))
    (found,) = claims.verify(a.graph, b.graph, wrong, report.edits)
    assert found.holds is False and "NOT the same function" in str(found)


def test_large_models_are_run_on_fewer_copies_and_say_so(monkeypatch):
    base, head = (t.replace("layers: 4, heads", "layers: 40, heads") for t in (PLAIN, JOINED))
    size = 60_000
    monkeypatch.setattr(claims, "MOST", size)
    (found,) = checked(base, head)
    assert found.holds is True and "fewer copies" in found.note
    monkeypatch.setattr(claims, "MOST", 100)
    (found,) = checked(base, head)
    assert found.holds is None and "not verified" in str(found) and "is not run" in found.note


def test_between_float64_and_too_large_is_float32(monkeypatch):
    monkeypatch.setattr(claims, "DOUBLE", 100)
    (found,) = checked(GQA, PLAIN)
    assert found.holds is True and found.dtype == "float32"


def test_several_edits_are_run_one_by_one_and_together():
    found = checked(GQA, put(DEEPER, ("vocab: 101", "vocab: 107")))
    assert [c.what for c in found][-1] == "the whole" and len(found) == 4 and all(c.holds for c in found)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def go(*arguments, **texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return diff(capsys, *arguments)
    return go


def test_the_command_with_weights(run, tmp_path):
    saved(tmp_path / "w.safetensors", PLAIN)
    code, out, err = run("a.yaml", "b.yaml", "--verify", "--weights", "w.safetensors", a=PLAIN, b=WIDER)
    assert code == 0 and "the same function" in out and "PyTorch in float64 and ONNX Runtime in float32" in out, err
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = run("a.yaml", "b.yaml", "--verify", "-f", "json")
    (claim,) = json.loads(out)["layers"]["verify"]
    assert code == 0 and claim["holds"] is True and claim["claim"] == "same function"
    assert [(r["engine"], r["ran"], r["batches"]) for r in claim["runs"]] == [("PyTorch", True, claim["cases"]), ("ONNX Runtime", True, 3)]
    code, out, err = run("c.yaml", "b.yaml", "--verify", "--weights", "w.safetensors", c=GATED)
    assert (code, out) == (2, "") and "gate" in err
    for wrong in (["a.yaml", "b.yaml", "--weights", "w.safetensors"], ["--git", "HEAD", "--verify"]):
        assert run(*wrong)[0] == 2


def test_a_wrong_claim_fails_the_command(run, monkeypatch):
    monkeypatch.setitem(claims.TOLERANCE, "float64", -1.0)
    code, out, _ = run("a.yaml", "b.yaml", "--verify", a=GQA, b=PLAIN)
    assert code == 1 and "NOT the same function" in out


def test_what_was_not_run_is_never_called_verified(run, monkeypatch):
    monkeypatch.setattr(claims, "MOST", 100)
    code, out, _ = run("a.yaml", "b.yaml", "--verify", a=GQA, b=PLAIN)
    assert code == 0 and "nothing could be run" in out and "not verified: a model of" in out
    assert "verified" not in out.replace("not verified", "")


def test_lock_files_hold_no_graph(run, capsys):
    run("a.yaml", "a.yaml", a=PLAIN)
    with pytest.raises(SystemExit):
        main(["lock", "a.yaml"])
    capsys.readouterr()
    code, out, err = run("a.nnspec.lock", "a.yaml", "--verify")
    assert (code, out) == (2, "") and "bad-lock" in err


def test_nothing_is_told_of_specs_that_are_equal(run):
    code, out, _ = run("a.yaml", "b.yaml", "--verify", "--keys", a=PLAIN, b="# words\n" + PLAIN)
    assert code == 0 and "the same function" in out and "68 same" in out
