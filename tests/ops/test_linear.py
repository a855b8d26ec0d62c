"""linear and embedding against numpy."""

import numpy as np
from nnspec.ops.linear import Embedding, Linear
from support import check_op

rng = np.random.default_rng(1)


def test_linear_is_x_w_transposed_plus_b():
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((3, 1, 5), (7, 5), (7,)))
    check_op(Linear(width=7), {"in": x, "weight": w, "bias": b}, {"out": x @ w.T + b}, dims={"in": ("B", "S", 5)})


def test_embedding_takes_rows():
    table = rng.normal(size=(11, 3)).astype(np.float32)
    ids = rng.integers(0, 11, size=(2, 5))
    check_op(Embedding(entries=11, width=3), {"in": ids, "weight": table}, {"out": table[ids]}, dims={"in": ("B", "S")})
