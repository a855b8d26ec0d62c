"""Compare emitted modules with references."""

import torch
from nnspec.ir.parameters import count, state_shapes


def same(got, want, atol=1e-6):
    torch.testing.assert_close(got, want, atol=atol, rtol=1e-5)


def keys_hold(graph, module):
    assert {k: tuple(v.shape) for k, v in module.state_dict().items()} == state_shapes(graph)
    assert count(graph) == sum(p.numel() for p in module.parameters())
