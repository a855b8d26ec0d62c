"""Costs against counts that do not come from us: torch's counter on the compiled module, and formulas written by hand."""

from pathlib import Path

import nnspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

SPECS = Path(__file__).parent / "specs" / "hard"


def counted(model, **inputs):
    """FLOPs that torch counts on the module; only its math attention is counted on the CPU."""
    module = model.module(seed=0)
    with FlopCounterMode(display=False) as mode, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad():
        module(**inputs)
    return mode.get_total_flops()


@pytest.mark.parametrize(("name", "sizes"), [
    ("gpt2", {"layers": 2, "width": 48, "heads": 4, "vocab": 61}),
    ("llama-3-8b", {"layers": 3, "width": 64, "heads": 4, "kv_heads": 4, "hidden": 80, "vocab": 61})])
def test_flops_are_those_that_torch_counts(name, sizes):
    model = nnspec.load(name, {k: v for k, v in sizes.items() if k in nnspec.load(name).graph.sizes})
    assert model.cost(B=3, S=17).flops == counted(model, tokens=torch.randint(0, 61, (3, 17)))


def test_gpt2_and_its_formula():
    found = nnspec.load("gpt2").cost("float32", B=1, S=1024)
    assert (found.parameters, found.flops, found.weight_bytes) == (124_439_808, 291_648_307_200, 497_759_232)
    assert found.formula.evaluate({"B": 2, "S": 10}) == nnspec.load("gpt2").cost(B=2, S=10).flops
    assert sum(n for _, n in found.flop_parts) == found.flops


def test_a_scan_counts_its_steps(tmp_path):
    model = nnspec.load(f"{SPECS}/luong.yaml")
    one, many = model.cost(B=2, S=5, T=1).flops, model.cost(B=2, S=5, T=9).flops
    step = model.cost(B=2, S=5, T=2).flops - one
    assert step > 0 and many - one == 8 * step


def test_routed_copies_count_what_a_row_is_sent_to(tmp_path):
    text = """
nnspec: 1
inputs: {{x: "float[B, 6]"}}
graph:
  chance: {{op: softmax, in: {{op: linear, in: x, width: 4, bias: false}}}}
  pick: {{op: top_k, in: chance, k: {k}}}
  mix: {{branch: 4, block: expert, in: x, route: {{weights: pick.values, indices: pick.indices}}}}
outputs: [mix]
blocks:
  expert: {{inputs: {{in: "float[N, D]"}}, graph: {{y: {{op: linear, in: in, width: 6, bias: false}}}}}}
"""
    for k in (1, 2, 4):
        path = tmp_path / f"{k}.yaml"
        path.write_text(text.format(k=k))
        found = nnspec.load(path).cost(B=5)
        assert found.flops == 2 * 5 * 6 * 4 + k * 2 * 5 * 6 * 6
        assert (found.parameters, found.active) == (24 + 4 * 36, 24 + k * 36)


def test_an_unknown_dimension_is_named():
    with pytest.raises(nnspec.Diagnostics) as found:
        nnspec.load("gpt2").cost(T=3)
    assert [(d.code, d.headline) for d in found.value.items] == [("unknown-name", "the model has no free dimension `T`")]


def test_a_window_counts_the_keys_that_it_shows():
    paths = ("models/gpt2.yaml", "variants/gpt2-rotary.yaml")
    plain, windowed = (nnspec.load(SPECS.parent.parent.parent / "specs" / path) for path in paths)
    assert plain.cost(S=1024).flops - windowed.cost(S=1024).flops == 12 * 4 * 1024 * (1024 - 256) * 768
    assert windowed.cost(S=100).flops == plain.cost(S=100).flops
