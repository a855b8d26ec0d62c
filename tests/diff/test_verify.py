"""Claims of a comparison that are run: those that hold, those that do not, and those that cannot be decided."""

import json
from dataclasses import replace

import pytest
from nnspec.cli import main
from nnspec.diff import verify as claims
from nnspec.diff.migrate import keyed
from nnspec.diff.recipes import Recipe

from .convertible import APPROX, DEEPER, EXACT, GATED, GQA, JOINED, PLAIN, REFUSED, RENAMED, ROPE, SILENT, WIDER, put, saved
from .pairs import compiled


def checked(base, head, read=None):
    a, b = compiled(base), compiled(head)
    keys, report = keyed(a, b, ("a.yaml", "b.yaml"))
    return claims.verify(a.graph, b.graph, keys, report.edits, read)


@pytest.mark.parametrize("name", [*EXACT, *SILENT])
def test_every_claim_holds(name):
    found = checked(*(EXACT | SILENT)[name])
    claim = claims.SAME if name in EXACT else claims.OTHER
    assert found and all(c.holds is True and c.claim == claim and c.cases > 0 and c.scale > 0 for c in found)
    assert all(c.max_abs <= 1e-9 * c.scale if name in EXACT else c.max_abs > 1e-9 * c.scale for c in found)


def test_a_rename_is_the_same_to_the_last_bit():
    (found,) = checked(PLAIN, RENAMED)
    assert (found.max_abs, found.dtype) == (0.0, "float64")


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
        with pytest.raises(SystemExit) as ended:
            main(["diff", *arguments])
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err
    return go


def test_the_command_with_weights(run, tmp_path):
    saved(tmp_path / "w.safetensors", PLAIN)
    code, out, err = run("a.yaml", "b.yaml", "--verify", "--weights", "w.safetensors", a=PLAIN, b=WIDER)
    assert code == 0 and "the same function" in out, err
    code, out, _ = run("a.yaml", "b.yaml", "--verify", "-f", "json")
    (claim,) = json.loads(out)["layers"]["verify"]
    assert code == 0 and claim["holds"] is True and claim["claim"] == "same function"
    code, out, err = run("c.yaml", "b.yaml", "--verify", "--weights", "w.safetensors", c=GATED)
    assert (code, out) == (2, "") and "gate" in err
    for wrong in (["a.yaml", "b.yaml", "--weights", "w.safetensors"], ["--git", "HEAD", "--verify"]):
        assert run(*wrong)[0] == 2


def test_a_wrong_claim_fails_the_command(run, monkeypatch):
    monkeypatch.setitem(claims.TOLERANCE, "float64", -1.0)
    code, out, _ = run("a.yaml", "b.yaml", "--verify", a=GQA, b=PLAIN)
    assert code == 1 and "NOT the same function" in out


def test_lock_files_hold_no_graph(run, capsys):
    run("a.yaml", "a.yaml", a=PLAIN)
    with pytest.raises(SystemExit):
        main(["lock", "a.yaml"])
    capsys.readouterr()
    code, out, err = run("a.nnspec.lock", "a.yaml", "--verify")
    assert (code, out) == (2, "") and "holds no graph" in err


def test_nothing_is_told_of_specs_that_are_equal(run):
    code, out, _ = run("a.yaml", "b.yaml", "--verify", "--keys", a=PLAIN, b="# words\n" + PLAIN)
    assert code == 0 and "the same function" in out and "68 same" in out
