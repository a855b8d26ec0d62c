"""Our PyTorch module and our ONNX against numpy loops written from the papers, at many lengths and with short rows."""

from functools import cache, partial

import loops
import nnspec
import numpy as np
import pytest
import zoo

SEQ2SEQ = [{"B": 3, "S": 5, "T": t} for t in (*range(1, 10), 17)] + [{"B": 1, "S": s, "T": 3} for s in (1, 2, 13)]
ONE = [{"B": 3, "S": t} for t in (*range(1, 10), 17)]
CASES = {
    "additive-seq2seq": (loops.additive, SEQ2SEQ), "luong": (loops.luong, SEQ2SEQ),
    "hard/luong": (partial(loops.luong, feed_too=True), SEQ2SEQ), "g2p": (loops.g2p, SEQ2SEQ), "hard/pointer": (loops.pointer, SEQ2SEQ),
    "hard/mamba": (loops.mamba, ONE),
    "hard/memory-network": (loops.memory_network, [{"B": 1, "N": 1, "L": 1}, {"B": 3, "N": 7, "L": 5}, {"B": 2, "N": 1, "L": 17}]),
    "hard/transformer-xl": (loops.transformer_xl, [{"B": 1, "S": 1, "M": 0}, {"B": 2, "S": 5, "M": 0}, {"B": 3, "S": 4, "M": 7},
                                                   {"B": 1, "S": 7, "M": 3}]),
}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    @cache
    def made(name):
        folder = tmp_path_factory.mktemp(name.replace("/", "-"))
        zoo.model(name).export(folder, weights=zoo.stirred(name), certify="none")
        return nnspec.runtime.open(folder)
    return made


@pytest.mark.parametrize("name", CASES)
def test_module_and_onnx_equal_the_equations(name, artifact):
    loop, cases = CASES[name]
    weights = {k: v.numpy().astype(np.float64) for k, v in zoo.stirred(name).state_dict().items()}
    for k, sizes in enumerate(cases):
        arrays = zoo.draw(name, sizes, seed=k)
        want = loop(weights, **arrays)
        for who, got in [("PyTorch", zoo.run(zoo.stirred(name), arrays, zoo.outputs(name))), ("ONNX", artifact(name)(**arrays))]:
            zoo.close(got, want, 1e-5, 1e-6, f"{who} of {name} at {sizes}")


@pytest.mark.parametrize("name", [n for n, (_, cases) in CASES.items() if cases is SEQ2SEQ])
def test_padding_of_the_source_changes_nothing(name, artifact):
    """Longer padding with other contents gives the same numbers, in both."""
    arrays = zoo.draw(name, {"B": 3, "S": 6, "T": 4}, seed=2)
    length = arrays[key := "length" if "length" in arrays else "source_length"]
    length[:] = [4, 0, 1]
    source = "points" if "points" in arrays else "source"
    rng = np.random.default_rng(8)
    wide = np.concatenate([arrays[source], arrays[source][:, :3]], axis=1)
    for row, n in zip(wide, length, strict=True):
        row[n:] = rng.permutation(row[n:])[::-1]
    if "points" in arrays:
        arrays["target"] = np.minimum(arrays["target"], length[:, None])        # a pointer points at what is there
    padded = arrays | {source: wide, key: length}
    for run in (partial(zoo.run, zoo.stirred(name), outputs=zoo.outputs(name)), lambda x: artifact(name)(**x)):
        a, b = run(arrays), run(padded)
        for output, value in a.items():
            longer = b[output]
            if value.shape != longer.shape:
                assert (longer[..., 6:] <= 0).all()                             # weight 0, or the lowest score
                longer = longer[..., :6]
            zoo.close({output: value}, {output: longer}, 1e-6, 1e-7, name)
