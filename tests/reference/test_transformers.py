"""Our PyTorch module and our ONNX against the classes of `transformers`, all with the same random weights."""

import re

import nnspec
import numpy as np
import pytest
import torch
import zoo

pytest.importorskip("transformers")
from theirs import CASES  # noqa: E402


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """The case, our module with its weights, and an artifact of it."""
    torch.manual_seed(11)
    made = CASES[request.param]()
    zoo.stir(made.theirs)
    with torch.no_grad():
        made.prepare(made.theirs)
    folder = tmp_path_factory.mktemp(request.param)
    module = made.load(folder)
    zoo.model(made.spec).export(folder / "onnx", weights=module, certify="none")
    return made, module, nnspec.runtime.open(folder / "onnx")


def valid(arrays, name, value):
    """Entries of an output that a person would read: tokens within their row; None where the row has no token at all."""
    if "keep" in arrays:
        return value[arrays["keep"]]
    lengths = arrays.get("target_length", arrays.get("length"))
    if "source_length" in arrays:
        value = value[arrays["source_length"] > 0]
        lengths = lengths[arrays["source_length"] > 0]
    if lengths is None or name in ("pooled", "embedding"):
        return value if lengths is None else value[lengths > 0]
    inside = np.arange(value.shape[1]) < lengths[:, None]
    return value[inside]


def compare(case, got, arrays, who):
    with torch.no_grad():
        want = case.call(case.theirs, {k: torch.from_numpy(v) for k, v in arrays.items()})
    for name, right in want.items():
        assert got[name].shape == tuple(right.shape)
        assert np.isfinite(got[name]).all(), f"{who} {name} of a row without tokens"
        a, b = (valid(arrays, name, v) for v in (got[name], right.numpy()))
        zoo.close({name: a}, {name: b}, case.rtol, 1e-6, who)
    assert set(want) == set(got)


def test_module_and_onnx_equal_transformers(case):
    case, module, artifact = case
    for k, sizes in enumerate(case.sizes):
        arrays = zoo.draw(case.spec, sizes, seed=k)
        if "keep" in arrays and sizes["B"] > 1:
            arrays["keep"][1] = np.arange(sizes["S"]) >= 2                       # padding in front; row 0 has holes
        compare(case, zoo.run(module, arrays, zoo.outputs(case.spec)), arrays, f"PyTorch at {sizes}")
        compare(case, artifact(**arrays), arrays, f"ONNX at {sizes}")


def test_every_kind_of_parameter_matters(case):
    """The comparison above can see them: of every kind (`layers.{i}.ffn.up.bias`), moving one moves an output."""
    case, module, _ = case
    arrays = zoo.draw(case.spec, case.sizes[-1], seed=9, short=False)
    base = zoo.run(module, arrays, zoo.outputs(case.spec))

    def moves(parameter):
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.1).add_(torch.linspace(0.1, 0.3, parameter.shape[-1]))
        moved = zoo.run(module, arrays, zoo.outputs(case.spec))
        with torch.no_grad():
            parameter.copy_(kept)
        return any(np.abs(moved[k] - base[k]).max() > 1e-4 for k in base)

    kinds: dict[str, list] = {}
    for name, parameter in module.named_parameters():
        kinds.setdefault(re.sub(r"\.\d+", ".{i}", name), []).append(parameter)
    idle = {kind for kind, found in kinds.items() if not any(map(moves, found))}
    assert all(kind.endswith("key.bias") for kind in idle), idle                 # softmax does not see a constant shift
