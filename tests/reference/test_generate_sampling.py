"""What may be drawn, and how likely, is what the warpers of `transformers` leave."""

import itertools

import numpy as np
import pytest
import torch
from nnspec.runtime.sampling import Processors, Settings, candidates, draw, log_softmax
from transformers.generation import logits_process as theirs

VOCABULARY = 101
CHOICES = {"temperature": (None, 0.6, 2.5), "top_k": (None, 1, 13, 500), "top_p": (None, 0.05, 0.7, 1.0), "min_p": (None, 0.02, 0.4)}


def warped(scores, temperature, top_k, top_p, min_p):
    """Probabilities by the reference, in its order."""
    made = torch.tensor(scores)[None]
    for value, warper in ((temperature, theirs.TemperatureLogitsWarper), (top_k, theirs.TopKLogitsWarper), (top_p, theirs.TopPLogitsWarper),
                          (min_p, theirs.MinPLogitsWarper)):
        if value is not None and not (warper is theirs.TopPLogitsWarper and value == 1):
            made = warper(value)(None, made)
    return torch.softmax(made, -1)[0].numpy()


@pytest.mark.parametrize("seed", [0, 1])
def test_candidates_equal_the_warpers(seed):
    scores = (3 * np.random.default_rng(seed).normal(size=VOCABULARY)).astype(np.float32)
    for values in itertools.product(*CHOICES.values()):
        settings = dict(zip(CHOICES, values, strict=True))
        ids, probabilities = candidates(scores, Settings(**settings))
        want = warped(scores, *values)
        assert ids.tolist() == np.flatnonzero(want).tolist(), settings
        np.testing.assert_allclose(probabilities, want[ids], rtol=1e-4)


def test_draws_are_as_likely_as_they_should_be():
    scores = np.random.default_rng(5).normal(size=VOCABULARY).astype(np.float32)
    settings, random, count = Settings(temperature=0.8, top_k=9), np.random.default_rng(6), 20000
    ids, probabilities = candidates(scores, settings)
    drawn = np.bincount([draw(scores, settings, random) for _ in range(count)], minlength=VOCABULARY)
    assert drawn[ids].sum() == count
    spread = np.sqrt(count * probabilities * (1 - probabilities))
    assert (np.abs(drawn[ids] - count * probabilities) < 4 * spread).all()


@pytest.mark.parametrize("new", [0, 1, 4, 6])
def test_processors_equal_theirs(new):
    """At every step: the first, one before the least length, one at it, and the last."""
    rng = np.random.default_rng(new)
    scores = rng.normal(size=(3, VOCABULARY)).astype(np.float32)
    ids = rng.integers(0, VOCABULARY, (3, 1 + new))
    settings = Settings(repetition_penalty=1.4, min_new_tokens=2, stop=[4, 9], forced_bos=33, forced_eos=9, suppress=[1, 2],
                        begin_suppress=[7])
    want = torch.tensor(scores)
    for processor in (theirs.RepetitionPenaltyLogitsProcessor(1.4), theirs.MinNewTokensLengthLogitsProcessor(1, 2, [4, 9]),
                      theirs.ForcedBOSTokenLogitsProcessor(33), theirs.ForcedEOSTokenLogitsProcessor(1 + 7, 9),
                      theirs.SuppressTokensLogitsProcessor([1, 2]), theirs.SuppressTokensAtBeginLogitsProcessor([7], 2)):
        want = processor(torch.tensor(ids), want)
    seen = np.zeros((3, VOCABULARY), bool)
    seen[np.arange(3)[:, None], ids] = True
    got = Processors(settings, np.ones(len(scores), np.int64), VOCABULARY, 7)(scores, seen, new)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


def test_log_softmax():
    scores = (30 * np.random.default_rng(0).normal(size=(4, 50))).astype(np.float32)
    np.testing.assert_allclose(log_softmax(scores), torch.log_softmax(torch.tensor(scores), -1).numpy(), rtol=1e-5, atol=1e-5)
