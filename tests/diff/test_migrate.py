"""`nnspec migrate`: every conversion against numbers computed here, refusals by name, and files that are not what they should be."""

import json

import numpy as np
import pytest
import torch
from nnspec.checkpoints import weight_file
from nnspec.cli import main
from nnspec.diff.migration.migrate import keyed
from safetensors.torch import load_file, save_file

from .convertible import (
    APPROX,
    DEEPER,
    EIGHT,
    EXACT,
    GATED,
    GQA,
    HIDDEN,
    JOINED_GQA,
    PLAIN,
    POST,
    REFUSED,
    SILENT,
    UNTIED,
    WIDER,
    WINDOWED,
    WOVEN,
    model,
    outputs,
    put,
    saved,
    weights,
)
from .pairs import compiled


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs `nnspec migrate` between two texts over weights of the first; gives the exit code, what was said, and the new tensors."""
    monkeypatch.chdir(tmp_path)

    def go(base, head, *more, dtype=torch.float32):
        (tmp_path / "a.yaml").write_text(base)
        (tmp_path / "b.yaml").write_text(head)
        if not (tmp_path / "old.safetensors").exists():
            saved(tmp_path / "old.safetensors", base, dtype)
        return command("migrate", "old.safetensors", "--from", "a.yaml", "--to", "b.yaml", "-o", "new.safetensors", *more)

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capsys.readouterr()
        new = tmp_path / "new.safetensors"
        return ended.value.code or 0, said.out, said.err, load_file(new) if new.exists() else None
    go.command = command
    return go


@pytest.mark.parametrize("name", EXACT)
def test_exact_conversions_keep_the_function(name, run):
    base, head = EXACT[name]
    code, said, err, new = run(base, head)
    assert code == 0 and new is not None, err
    want, got = outputs(base, weights(base)), outputs(head, new)
    torch.testing.assert_close(got[..., :want.shape[-1]], want, atol=1e-5, rtol=1e-5)
    assert "the same function" in said and "not verified" not in said


@pytest.mark.parametrize("name", APPROX)
def test_approximate_conversions_are_told_so(name, run):
    base, head = APPROX[name]
    code, said, err, new = run(base, head)
    assert code == 0 and "approx" in said, err
    assert outputs(head, new).isfinite().all()


def test_key_and_value_heads_are_means_of_their_groups(run):
    new, old = run(PLAIN, GQA)[3], weights(PLAIN)
    for part in ("key", "value"):
        for i in range(4):
            at = f"layers.{i}.attention.{part}"
            torch.testing.assert_close(new[f"{at}.weight"], old[f"{at}.weight"].view(4, 3, 2, 24).mean(1).reshape(8, 24))
            torch.testing.assert_close(new[f"{at}.bias"], old[f"{at}.bias"].view(4, 3, 2).mean(1).reshape(8))
    assert torch.equal(new["layers.0.attention.query.weight"], old["layers.0.attention.query.weight"])


def test_means_are_the_projection_on_what_a_repeat_gives(run, tmp_path):
    """Repeating heads and taking their means gives the old heads back."""
    there = run(GQA, PLAIN)[3]
    (tmp_path / "old.safetensors").unlink()
    save_file(there, tmp_path / "old.safetensors")
    back = run(PLAIN, GQA)[3]
    for name, tensor in weights(GQA).items():
        torch.testing.assert_close(back[name], tensor)


def test_new_rows_are_zero_and_old_ones_stay(run):
    new, old = run(PLAIN, WIDER)[3], weights(PLAIN)
    assert torch.equal(new["embed.weight"][:101], old["embed.weight"]) and not new["embed.weight"][101:].any()


def test_new_layers_are_their_neighbours_without_their_ends(run):
    new, old = run(PLAIN, DEEPER)[3], weights(PLAIN)
    for i in (4, 5):
        assert not new[f"layers.{i}.ffn.down.weight"].any() and not new[f"layers.{i}.attention.output.bias"].any()
        assert torch.equal(new[f"layers.{i}.ffn.up.weight"], old["layers.3.ffn.up.weight"])


def test_every_refusal_is_named_at_once_and_nothing_is_written(run):
    for name, (base, head) in {**SILENT, **REFUSED}.items():
        made = keyed(compiled(base), compiled(head), ("a", "b"))[0]
        assert made.kind == ("silent" if name in SILENT else "refused"), name
    both = put(GATED, ("heads: 12}", "heads: 8}"))
    code, out, err, new = run(PLAIN, both)
    assert (code, out, new) == (1, "", None)
    assert err.count("error[cannot-migrate]") == 2 and "`heads`" in err and "`layers.ffn`" in err
    assert "layers.{0..3}.ffn.gate.weight" in err and "b.yaml:" in err and "--init" in err and "--allow silent" in err


def test_silent_edits_are_passed_over_when_asked(run):
    assert run(PLAIN, EIGHT)[0] == 1
    code, _, _, new = run(PLAIN, EIGHT, "--allow", "silent")
    assert code == 0 and all(torch.equal(new[k], v) for k, v in weights(PLAIN).items())


def test_tensors_start_anew_when_asked(run):
    code, said, _, new = run(PLAIN, GATED, "--init", "7")
    assert code == 0 and "started anew" in said
    fresh, old = model(GATED).module(seed=7).state_dict(), weights(PLAIN)
    assert torch.equal(new["layers.2.ffn.gate.weight"], fresh["layers.2.ffn.gate.weight"])
    assert torch.equal(new["layers.2.attention.key.weight"], old["layers.2.attention.key.weight"]) and set(new) == set(fresh)


def test_foreign_names_are_read_through_the_spec(run, tmp_path):
    mapping = """checkpoint:
  prefix: transformer.
  tensors:
    "layers.{i}.attention.[query, key, value].weight": {from: "h.{i}.c_attn.weight", as: "i (s o) -> s o i"}
    "layers.{i}.attention.[query, key, value].bias": {from: "h.{i}.c_attn.bias", as: "(s o) -> s o"}
    embed.weight: wte.weight
"""
    old = weights(PLAIN)
    foreign = {"transformer.wte.weight": old.pop("embed.weight")}
    for i in range(4):
        for part, axis in (("weight", 1), ("bias", 0)):
            three = [old.pop(f"layers.{i}.attention.{n}.{part}") for n in ("query", "key", "value")]
            foreign[f"transformer.h.{i}.c_attn.{part}"] = torch.cat([t.t() for t in three], axis).contiguous()
    save_file({**foreign, **{f"transformer.{k}": v for k, v in old.items()}}, tmp_path / "old.safetensors")
    code, _, err, new = run(PLAIN + mapping, GQA)
    assert code == 0, err
    bias = weights(PLAIN)["layers.1.attention.key.bias"]
    torch.testing.assert_close(new["layers.1.attention.key.bias"], bias.view(4, 3, 2).mean(1).reshape(8))
    assert torch.equal(new["embed.weight"], weights(PLAIN)["embed.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_kept_bit_for_bit(dtype, run, tmp_path):
    code, said, err, new = run(PLAIN, WIDER, dtype=dtype)
    old = load_file(tmp_path / "old.safetensors")
    assert code == 0 and "the same function" in said, err
    assert all(t.dtype == dtype for t in new.values()) and torch.equal(new["embed.weight"][:101], old["embed.weight"])


def test_a_dtype_can_be_asked_for(run):
    new = run(PLAIN, UNTIED, "--dtype", "bfloat16")[3]
    assert {t.dtype for t in new.values()} == {torch.bfloat16}
    assert torch.equal(new["logits.weight"], weights(PLAIN)["embed.weight"].bfloat16())


@pytest.mark.parametrize("base, head", [
    (PLAIN, put(DEEPER, ("vocab: 101", "vocab: 107"))), (PLAIN, GQA), (GQA, PLAIN), (PLAIN, JOINED_GQA), (JOINED_GQA, PLAIN),
    (PLAIN, HIDDEN), (HIDDEN, PLAIN), (WIDER, PLAIN), (PLAIN, WOVEN)])
def test_large_tensors_are_made_in_pieces(base, head, run, monkeypatch):
    want = run(base, head, "--no-verify")[3]
    monkeypatch.setattr(weight_file, "LARGE", 100)
    monkeypatch.setattr(weight_file, "CHUNK", 64)
    read, part = weight_file.WeightFile.read, weight_file.WeightFile.deferred
    most = []

    def watched(self, name):
        assert np.prod(self.shape(name)) <= 100, name
        return read(self, name)

    def deferred(self, name, start, shape):
        found = part(self, name, start, shape)
        return found and weight_file.Deferred(shape, lambda i, j: (most.append(j - i), found.read(i, j))[1])
    monkeypatch.setattr(weight_file.WeightFile, "read", watched)
    monkeypatch.setattr(weight_file.WeightFile, "deferred", deferred)
    code, _, err, new = run(base, head, "--no-verify")
    assert code == 0, err
    assert new.keys() == want.keys() and all(torch.equal(new[k], v) for k, v in want.items())
    assert max(most) <= 64                                              # numbers of a tensor that are read at a time


def test_a_wrong_claim_is_caught_before_anything_is_written(run, monkeypatch):
    """Were a head put in the wrong place, the run would show it."""
    from nnspec.diff.migration import recipes
    right = recipes.made

    def wrong(recipe, read):
        x = right(recipe, read)
        return np.roll(x, 2, 0) if recipe.op == "repeat-rows" else x
    monkeypatch.setattr("nnspec.diff.migration.verify.made", wrong)
    code, out, err, new = run(GQA, PLAIN)
    assert (code, out, new) == (1, "", None) and "the function is not kept" in err


def test_what_the_user_may_get_wrong(run, tmp_path):
    run(PLAIN, WIDER)
    good = (tmp_path / "new.safetensors").read_bytes()
    (tmp_path / "broken.yaml").write_text(PLAIN.replace("op: linear", "op: liner"))
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "old.safetensors").read_bytes()[:-5])
    (tmp_path / "code.pkl").write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    other = {k: v for k, v in weights(PLAIN).items() if k != "norm.bias"}
    save_file({**other, "norm.weight": torch.zeros(5), "extra": torch.zeros(2)}, tmp_path / "other.safetensors")
    base = ["--from", "a.yaml", "--to", "b.yaml", "-o", "new.safetensors"]
    for arguments, words in (
            (["nothing.safetensors", *base], ["nothing.safetensors"]), (["cut.safetensors", *base], ["damaged"]),
            (["code.pkl", *base], ["pickle"]),
            (["other.safetensors", *base], ["norm.bias", "norm.weight", "extra"]),
            (["old.safetensors", "--from", "broken.yaml", "--to", "gone.yaml", "-o", "new.safetensors"], ["liner", "gone.yaml"]),
            (["old.safetensors", "--from", "a.yaml", "--to", "b.yaml", "-o", "new.bin"], [".safetensors"]),
            (["old.safetensors", "--from", "a.yaml", "--to", "b.yaml", "-o", "no/new.safetensors"], ["cannot be written"]),
            (["old.safetensors", "--from", "a.nnspec.lock", "--to", "b.yaml", "-o", "new.safetensors"], ["lock file"])):
        code, out, err, _ = run.command("migrate", *arguments)
        assert (code, out) == (2, "") and all(w in err for w in words), (arguments, err)
        assert (tmp_path / "new.safetensors").read_bytes() == good and not list(tmp_path.glob(".*"))


def test_a_checkpoint_may_take_the_place_of_the_old_one(run, tmp_path):
    run(PLAIN, WIDER)
    code, _, err, _ = run.command("migrate", "old.safetensors", "--from", "a.yaml", "--to", "b.yaml", "-o", "old.safetensors")
    assert code == 0, err
    assert load_file(tmp_path / "old.safetensors")["embed.weight"].shape == (107, 24)


def test_the_key_map_as_data(run, capsys):
    run(PLAIN, GQA)
    with pytest.raises(SystemExit):
        main(["diff", "a.yaml", "b.yaml", "--keys", "-f", "json"])
    keys = json.loads(capsys.readouterr().out)["layers"]["keys"]
    made = {t["to"]: t for t in keys["tensors"]}
    assert keys["kind"] == "approx" and keys["counts"]["approx"] == 16 and len(made) == 68
    assert made["layers.2.attention.key.weight"]["from"] == ["layers.2.attention.key.weight"]
    assert made["layers.2.attention.key.weight"]["steps"] == [
        {"op": "mean-rows", "shape": [8, 24], "text": "mean of every 3 heads of keys and values", "groups": 3}]
    with pytest.raises(SystemExit):
        main(["diff", "a.yaml", "b.yaml", "--keys"])
    assert "layers.{0..3}.attention.key.weight" in capsys.readouterr().out


def test_rows_of_a_joined_layer_are_named():
    keys = keyed(compiled(JOINED_GQA), compiled(PLAIN), ("a", "b"))[0]
    step, = keys.data()["tensors"][[*keys.recipes].index("layers.1.attention.query.weight")]["steps"]
    assert step["op"] == "rows" and step["rows"] == [[0, 24]]
    assert {m.kind for m in keys.moves} == {"exact"} and not keys.dropped


@pytest.mark.parametrize("head", [WINDOWED, POST])
def test_the_way_back_of_a_silent_edit_is_silent(head):
    assert keyed(compiled(head), compiled(PLAIN), ("a", "b"))[0].kind == "silent"
