"""What GroupQueryAttention does itself where it writes into caches: it turns heads by their positions, and takes them from one product.

The tables of positions, for every slot of a cache, become inputs of the model: they are the same from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto, helper, numpy_helper

from ...ir.dimension import Dim
from ...ir.graph import TensorType, fresh
from ...runtime.steps import Table
from .builder import Store
from .fuse import Fuser, copied, on_cache
from .pack import Projection, packed, projections


def turn_inside(fuser: Fuser, store: Store) -> None:
    """Let kernels turn queries and keys, where both turn by the positions behind the cache and by frequencies that are known."""
    for at, node in enumerate(fuser.nodes):
        if node is None or not on_cache(node):
            continue
        query, key = (fuser.maker(name, "RotaryEmbedding") if fuser.alone(name) else None for name in node.input[:2])
        if query is None or key is None or query.input[1:] != key.input[1:] or _ways(query) != _ways(key):
            continue
        tables = [_table(store, name, node) for name in query.input[1:3]]
        if None in tables:
            continue
        made = copied(node)
        made.input[:2] = [query.input[0], key.input[0]]
        made.input.extend(t.name for t in tables if t)
        made.attribute.extend(helper.make_attribute(k, v) for k, v in (("do_rotary", 1), ("rotary_interleaved", _ways(query)[0])))
        fuser.drop(query, key)
        fuser.put(at, made)


def _ways(rope: NodeProto) -> tuple[int, bool]:
    """How a RotaryEmbedding pairs its entries, and whether its heads are side by side."""
    found = {a.name: a.i for a in rope.attribute}
    return found.get("interleaved", 0), "num_heads" in found


def _table(store: Store, name: str, node: NodeProto) -> Table | None:
    """The table of a wave for every slot of the cache that a node has, where the kernel takes it."""
    wave, (_, _, C, d) = store.waves.get(name), store.types[node.input[3]].shape
    constant = next((t for t in store.initializers if wave and t.name == wave.frequencies), None)
    if wave is None or constant is None or wave.positions not in store.clocks:
        return None
    numbers = tuple(map(float, numpy_helper.to_array(constant).ravel()))
    if len(numbers) % 8 or (d.value or 1) % 16:            # what the kernel takes
        return None
    key = (wave.function, wave.frequencies, wave.factor)
    if key not in store.tables:
        made = fresh(f"rotary.{wave.function.lower()}", store.names)
        store.names.add(made)
        type = TensorType("float", (C, Dim.const(len(numbers))))
        store.tables[key] = Table(made, wave.function.lower(), numbers, wave.factor), type
    return store.tables[key][0]


def heads_in_one(nodes: list[NodeProto], store: Store, held: Iterable[str]) -> list[NodeProto]:
    """Let kernels take query, key and value from one product where they are three of one value."""
    made = {p.out: p for p in projections(nodes, store, set(held))}
    place = {id(node): k for k, node in enumerate(nodes)}
    kept: list[list[NodeProto]] = [[node] for node in nodes]
    for node in nodes:
        group = [made[name] for name in node.input[:3] if name in made] if on_cache(node) else []
        if len(group) < 3 or not _one_value(group) or any(sum(p.out in n.input for n in nodes) > 1 for p in group):
            continue
        for p in group:
            for old in filter(None, (p.product, p.add)):
                kept[place[id(old)]] = []
        products, out = packed(group, store)
        taken = copied(node)
        taken.input[:3] = [out.name, "", ""]
        kept[place[id(node)]] = [*products, taken]
    return [node for some in kept for node in some]


def _one_value(group: list[Projection]) -> bool:
    return len({(p.product.input[0], p.bias is None) for p in group}) == 1
