"""Training: gradients reach every parameter of every spec, and dropout acts in training only."""

import re

import numpy as np
import pytest
import torch
import zoo

SIZES = {"hard/vit": {"B": 3, "H": 3, "W": 2}}
DROPOUT = ["bert-base", "minilm", "roberta-base", "distilbert-base", "gpt2", "phi-2", "transformer-base", "transformer-big", "t5-small",
           "bart-base", "opus-mt-en-de"]
FROZEN = {"wave_table", "final_bias"}                # Whisper's sinusoids and Marian's bias of the logits do not train


def tensors(name, short):
    batch, *others = zoo.free(name)
    arrays = zoo.draw(name, SIZES.get(name) or {batch: 3} | dict(zip(others, (7, 5, 3), strict=False)), seed=4, short=short)
    return {k: torch.from_numpy(v) for k, v in arrays.items()}


def fresh(name):
    return zoo.stir(zoo.model(name).module(seed=2))


def results(module, given):
    out = module(**given)
    return list(out.values()) if isinstance(out, dict) else [out]


@pytest.mark.parametrize("short", [False, True], ids=["full rows", "short and empty rows"])
@pytest.mark.parametrize("name", zoo.SPECS)
def test_gradients_reach_every_parameter(name, short):
    module, generator = fresh(name).train(), torch.Generator().manual_seed(1)
    total = 0
    for out in results(module, tensors(name, short)):
        seen = torch.where(out.abs() < 1e30, out, 0)                            # a pointer's masked scores are the lowest float
        total = total + (seen * torch.randn(out.shape, generator=generator)).sum()
    total.backward()
    kinds: dict[str, bool] = {}
    for path, parameter in module.named_parameters():
        kind, grad = re.sub(r"\.\d+", ".{i}", path), parameter.grad
        assert parameter.requires_grad == (kind not in FROZEN), path
        assert grad is None or grad.isfinite().all(), path
        kinds[kind] = kinds.get(kind, False) or grad is not None and bool((grad.abs() > 1e-7).any())
    idle = {kind for kind, reached in kinds.items() if not reached} - FROZEN
    assert all(kind.endswith("key.bias") for kind in idle), idle                # softmax does not see a constant shift


@pytest.mark.parametrize("name", ["gpt2", "additive-seq2seq", "hard/mamba"])
def test_gradients_are_slopes(name):
    """Along a random direction through all parameters, in float64: backward equals the difference quotient."""
    module, given = fresh(name).double(), tensors(name, True)
    generator = torch.Generator().manual_seed(3)
    weigh = [torch.randn(out.shape, generator=generator, dtype=torch.float64) for out in results(module, given)]
    loss = lambda: sum((out * w).sum() for out, w in zip(results(module, given), weigh, strict=True))  # noqa: E731
    loss().backward()
    ways = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in module.parameters()]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(module.parameters(), ways, strict=True))
    ends = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, d in zip(module.parameters(), ways, strict=True):
                p.add_(d, alpha=step)
            ends.append(float(loss()))
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("name", zoo.SPECS)
def test_dropout_acts_in_training_only(name):
    module, given = fresh(name), tensors(name, True)
    with torch.no_grad():
        quiet = results(module, given)
        torch.manual_seed(1)
        first = results(module.train(), given)
        second = results(module, given)
        torch.manual_seed(1)
        again = results(module, given)
        after = results(module.eval(), given)
    equal = lambda a, b: all(map(torch.equal, a, b))  # noqa: E731
    assert equal(quiet, after) and equal(first, again)
    if name in DROPOUT:
        assert not equal(first, quiet) and not equal(first, second)
    else:
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(first, quiet, strict=True))


def test_every_spec_with_dropout_is_named():
    rates = {name for name in zoo.MODELS if float(zoo.model(name).graph.sizes.get("dropout", 0)) > 0}
    assert rates == set(DROPOUT)


def test_no_gradient_flows_into_the_memory_of_transformer_xl():
    module, given = fresh("hard/transformer-xl"), tensors("hard/transformer-xl", False)
    given["memory"].requires_grad_()
    module(**given)["logits"].sum().backward()
    grad = given["memory"].grad
    assert grad is None or not grad.any()
    assert np.any(zoo.run(module, {k: v.detach().numpy() for k, v in given.items()})["logits"]
                  != zoo.run(module, {k: (v.detach() * (1 + (k == "memory"))).numpy() for k, v in given.items()})["logits"])
