"""Neighbouring nodes joined, pass by pass."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto

from .builder import Store
from .fuse import Fuser
from .inside import heads_in_one, turn_inside
from .pack import pack


def fuse(nodes: Iterable[NodeProto], store: Store, held: Iterable[str], ends: Iterable[str]) -> list[NodeProto]:
    """The nodes of the main graph with neighbours joined where one kernel does the work of several. `held` are the values in use."""
    weights = {r.name: r.shape for r in store.recipes.values() if r.name in held}
    fuser = Fuser(list(nodes), store.types, weights, frozenset(ends))
    fuser.run(store.dtype, store.target)
    turn_inside(fuser, store)
    return (pack if store.target == "ort-cuda" else heads_in_one)(fuser.left, store, weights)
