"""A feed-forward block that becomes a mixture of experts: exact where the weights of the chosen ones sum to one, and refused elsewhere."""

import pytest
import torch
from nnspec.diff.compare import compare
from nnspec.diff.migration.keymap import keymap_text
from nnspec.diff.migration.migrate import keyed, migrate
from nnspec.lang.diagnostic import CheckFailed
from safetensors.torch import load_file

from .convertible import FFN, GATED, PLAIN, compiled, outputs, put, saved, weights

GATED_FFN = "{block: gated_ffn, hidden: 20, activation: silu, bias: false}"
MIXTURE = "{block: sparse_ffn, experts: 5, top_k: 2, expert: EXPERT}"
BLOCK = """
blocks:
  mine:
    settings: {experts: int, top_k: int}
    slots: {expert: "float[*b, w] -> float[*b, w]"}
    inputs: {in: "float[B, S, W]"}
    graph:
      score: {op: linear, in: in, width: experts, bias: false}
      CHANCE
      pick: {op: top_k, in: FROM, k: top_k}
      WEIGHT
      mix: {branch: experts, slot: expert, in: in, route: {weights: weight, indices: pick.indices}}
"""
TOTAL = "total: {op: sum, in: pick.values, axis: -1, keep_axis: true}\n      "
EVEN = TOTAL + "weight: {op: divide, in: [pick.values, total]}"
AS_THEY_ARE = "weight: {op: dropout, in: pick.values, rate: 0}"


def mixture(weight, op="softmax", top_k=2, expert=FFN):
    """The plain model with a mixture whose weights are made in this way of the scores' softmax, or of another op of them."""
    block = BLOCK.replace("CHANCE", f"chance: {{op: {op}, in: score}}" if op else "").replace("FROM", "chance" if op else "score")
    return put(PLAIN, (FFN, f"{{block: mine, experts: 5, top_k: {top_k}, expert: {expert}}}")) + block.replace("WEIGHT", weight)


EXACT = {
    "of the library": (PLAIN, put(PLAIN, (FFN, MIXTURE.replace("EXPERT", FFN)))),
    "of gated experts": (GATED, put(GATED, (GATED_FFN, MIXTURE.replace("EXPERT", GATED_FFN)))),
    "a softmax of the chosen": (PLAIN, mixture("weight: {op: softmax, in: pick.values}", op="")),
    "normalised sigmoids": (PLAIN, mixture(EVEN, "sigmoid")), "all experts": (PLAIN, mixture(AS_THEY_ARE, top_k=5)),
    "and more layers": (PLAIN, put(PLAIN, (FFN, MIXTURE.replace("EXPERT", FFN)), ("layers: 4, heads", "layers: 6, heads"))),
}
OTHERS = {
    "chances of the chosen as they are": mixture(AS_THEY_ARE),
    "scaled": mixture(TOTAL + "even: {op: divide, in: [pick.values, total]}\n      weight: {op: scale, in: even, by: 2.5}"),
    "scores that may be negative": mixture(EVEN, op=""),
    "a sum over another axis": mixture(EVEN.replace("axis: -1", "axis: 1")),
    "a softmax over another axis": mixture("weight: {op: softmax, in: pick.values, axis: 1}", op=""),
    "other experts": mixture(EVEN, expert=FFN.replace("gelu_tanh", "relu")),
    "smaller experts": mixture(EVEN, expert=FFN.replace("36", "20")),
}


def brought(tmp_path, base, head, **more):
    saved(tmp_path / "old.safetensors", base)
    made = migrate(tmp_path / "old.safetensors", compiled(base), compiled(head), tmp_path / "new.safetensors", ("a", "b"), **more)
    return made, load_file(tmp_path / "new.safetensors")


@pytest.mark.parametrize("name", EXACT)
def test_experts_that_are_copies_keep_the_function(name, tmp_path):
    base, head = EXACT[name]
    r = compare(compiled(base), compiled(head), ("a", "b"))
    assert r.verdict.checkpoint == "exact" and r.edits[0].conversion.kind == "exact" and r.level == "warning"
    made, new = brought(tmp_path, base, head)
    torch.testing.assert_close(outputs(head, new), outputs(base, weights(base)), atol=1e-12, rtol=1e-12)
    assert made.keys.kind == "exact" and [c.holds for c in made.checked] == [True]
    score = new["layers.2.ffn.score.weight"]
    assert 0.05 < score.std() < 0.5 and not torch.equal(score, new["layers.1.ffn.score.weight"])
    old = weights(base)
    for expert in range(5):
        assert torch.equal(new[f"layers.3.ffn.mix.{expert}.down.weight"], old["layers.3.ffn.down.weight"])


@pytest.mark.parametrize("name", OTHERS)
def test_other_mixtures_are_refused(name, tmp_path):
    head = OTHERS[name]
    r = compare(compiled(PLAIN), compiled(head), ("a", "b"))
    assert r.verdict.checkpoint == "partial" and r.level == "breaking"
    with pytest.raises(CheckFailed, match="cannot-migrate"):
        brought(tmp_path, PLAIN, head)
    assert not (tmp_path / "new.safetensors").exists()


def test_a_seed_starts_the_router_as_in_a_new_model(tmp_path):
    head = EXACT["of the library"][1]
    one, two, three = (brought(tmp_path, PLAIN, head, init=seed, run=False)[1] for seed in (3, 3, 4))
    name = "layers.0.ffn.score.weight"
    assert torch.equal(one[name], two[name]) and not torch.equal(one[name], three[name])
    torch.testing.assert_close(outputs(head, one), outputs(PLAIN, weights(PLAIN)), atol=1e-12, rtol=1e-12)


def test_a_mixture_does_not_become_one_block(tmp_path):
    with pytest.raises(CheckFailed, match="cannot-migrate"):
        brought(tmp_path, *EXACT["of the library"][::-1])


def test_the_key_map_says_the_router_and_can_be_given_back(tmp_path):
    head = EXACT["of the library"][1]
    keys, r = keyed(compiled(PLAIN), compiled(head), ("a", "b"))
    file = tmp_path / "map.yaml"
    file.write_text(keymap_text(keys, r, file))
    assert "op: random" in file.read_text() and "a copy in every expert" in file.read_text()
    said, again = brought(tmp_path, PLAIN, head, keymap=file)[1], brought(tmp_path, PLAIN, head)[1]
    assert said.keys() == again.keys() and all(torch.equal(said[k], v) for k, v in again.items())
