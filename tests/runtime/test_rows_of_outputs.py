"""Outputs of steps whose rows and positions are on any axes, in long chunks as in short ones; and what is refused."""

import nnspec
import numpy as np
import pytest
import zoo
from nnspec.runtime import ArtifactError, ArtifactErrors
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate

SPEC = """
nnspec: 1
use: [attention, positions]
inputs: {tokens: "int64[B, T]"}
graph:
  x: {op: embedding, in: tokens, entries: 20, width: 16}
  bias: {block: alibi, like: tokens, heads: 2}
  a: {block: multi_head_attention, in: x, heads: 2, causal: true, score_bias: bias}
  rope: {block: multi_query_attention, in: a, heads: 2, head_width: 16, causal: true, position: rope}
  g: {op: gru, in: rope, hidden: 8}
  ways: {branch: 3, block: way, in: g}
  last: {op: rearrange, in: g, as: "b t w -> t w b"}
  logits: {op: linear, in: g, width: 20}
outputs: {logits: logits, ways: ways, last: last, final: g.state}
blocks:
  way: {inputs: {in: "float[*b, 8]"}, graph: {y: {op: linear, in: in, width: 5}}}
"""
ROW = {"logits": 0, "ways": 1, "last": 2, "final": 1}           # where rows are in the whole outputs
TIME = {"logits": 1, "ways": 2, "last": 0}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "s.yaml").write_text(SPEC)
    model = nnspec.load(folder / "s.yaml")
    module = zoo.stir(model.module(seed=1))
    model.export(folder / "out", weights=module, form="step", certify="none", attention=("weights=a",))
    return module, decoder(folder / "out", threads=1)


def alone(module, tokens):
    """The outputs for one row, without its axis."""
    return {k: np.take(v, 0, ROW[k]) for k, v in zoo.run(module, {"tokens": tokens[None]}).items()}


def at(whole, name, position):
    """An output of one row at a position."""
    return np.take(whole[name], position, TIME[name] - (ROW[name] < TIME[name]))


def test_rows_come_first_at_the_last_position(made):
    module, opened = made
    tokens, length = np.random.default_rng(0).integers(0, 20, (4, 9)), np.array([9, 3, 0, 1])
    found = opened.start(4).extend(length, tokens=tokens)
    for row, n in enumerate(length):
        whole = alone(module, tokens[row])
        for name in TIME:
            want = at(whole, name, n - 1) if n else np.zeros_like(at(whole, name, 0))
            np.testing.assert_allclose(found[name][row], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beams", [1, 2])
def test_outputs_collected_for_each_new_token(made, beams):
    module, opened = made
    prompts = [[3, 5, 7, 1], [2], [9, 9]]
    found = generate(opened, prompts, max_new_tokens=4, beams=beams, collect=["ways", "last"])
    for row, prompt in enumerate(prompts):
        whole = alone(module, np.array([*prompt, *found.tokens[row]]))
        for k in range(4):
            for name in ("ways", "last"):
                np.testing.assert_allclose(found.collected[name][row][k], at(whole, name, len(prompt) - 1 + k), rtol=1e-4, atol=1e-5)


def test_long_chunks_give_what_short_ones_give(made, monkeypatch):
    """Final states, and weights over slots that are as many for every piece though the capacity grew."""
    module, opened = made
    monkeypatch.setattr("nnspec.runtime.decoder.PIECE", 8)
    monkeypatch.setattr("nnspec.runtime.decoder._FEWEST", 8)
    tokens, length = np.random.default_rng(1).integers(0, 20, (3, 37)), np.array([37, 5, 20])
    found, last = opened.start(3, capacity=8).step(length, tokens=tokens), opened.start(3, capacity=8).extend(length, tokens=tokens)
    assert set(found) == {*ROW, "weights"} and set(last) == {*TIME, "weights"}
    for row, n in enumerate(length):
        whole = alone(module, tokens[row, :n])
        np.testing.assert_allclose(found["final"][:, row], whole["final"], rtol=1e-4, atol=1e-5)
        seen = found["weights"][row, :, :n]
        np.testing.assert_allclose(seen.sum(-1), 1, rtol=1e-5)
        assert not np.triu(seen[0, :, :n], 1).any() and not seen[..., n:].any()
        np.testing.assert_allclose(last["weights"][row], seen[:, n - 1], rtol=1e-5, atol=1e-7)
        for name in TIME:
            np.testing.assert_allclose(last[name][row], at(whole, name, n - 1), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(at({name: np.take(found[name], row, ROW[name])}, name, n - 1), last[name][row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call, told", [
    (lambda d: d.start(2).step(tokens=[[1, 2], [3]]), "input `tokens` is not rectangular"),
    (lambda d: d.start(2).extend(tokens=[[1, 2], [3]]), "input `tokens` is not rectangular"),
    (lambda d: d.start(2).extend(outputs=["logit"], tokens=[[1], [3]]), "the model has no output `logit` that grows"),
    (lambda d: d.start(2).extend(outputs="log", tokens=[[1], [3]]), "the model has no output `log` that grows"),
    (lambda d: d.start(2, capacity=0), "`capacity` is 0"), (lambda d: d.start(2, capacity="a"), "`capacity` is 'a'"),
    (lambda d: d.start(2, capacity=8.5), "`capacity` is 8.5"), (lambda d: d.start(True), "how many rows there are is not told"),
])
def test_what_cannot_be_is_refused(made, call, told):
    with pytest.raises((ArtifactError, ArtifactErrors), match=f"bad-inputs: {told}"):
        call(made[1])


def test_one_output_may_be_named_by_its_name(made):
    assert set(made[1].start(2).extend(outputs="logits", tokens=[[1], [3]])) == {"logits"}


def test_a_model_of_one_row_is_asked_for_no_more(tmp_path):
    (tmp_path / "s.yaml").write_text(SPEC.replace("[B, T]", "[1, T]"))
    nnspec.load(tmp_path / "s.yaml").export(tmp_path / "out", init=1, form="step", certify="none")
    opened = decoder(tmp_path / "out", threads=1)
    assert len(generate(opened, [1, 2], max_new_tokens=3).tokens[0]) == 3
    for call in (lambda: opened.start(2), lambda: opened.start(1).reorder([0, 0]),
                 lambda: generate(opened, [1, 2], max_new_tokens=3, beams=2), lambda: generate(opened, [[1], [2]], max_new_tokens=3)):
        with pytest.raises(ArtifactError, match="bad-inputs: there would be 2 rows, and the model always has 1"):
            call()
