"""What parts of a graph are called by people: norms, positions, feed-forward blocks, attention; and the rule of each attribute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ir.dimension import Dim
from ...ir.graph import Branch, Control, Node, Region, Value, bodies

NORMS = ("layer_norm", "rms_norm", "group_norm", "l2_norm")
COMMUTATIVE = ("add", "multiply", "and", "or", "equal", "maximum", "minimum")
GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "sigmoid": "glu", "relu": "reglu"}
FREQUENCIES = {"rope_frequencies": "rope", "yarn_frequencies": "yarn", "llama3_frequencies": "llama3 rope",
               "dynamic_frequencies": "dynamic rope", "longrope_frequencies": "longrope"}
ATTRIBUTES = {
    ("attention", "window"): "attention.window-changed", ("attention", "causal"): "attention.causal-changed",
    ("attention", "scale"): "attention.scale-changed", ("attention", "softcap"): "attention.softcap-changed",
    ("activate", "function"): "ffn.activation-changed", ("dropout", "rate"): "training.dropout-changed",
    ("parameter", "init"): "training.init-changed", ("parameter", "trainable"): "training.trainable-changed",
    ("rope", "layout"): "position.layout-changed", ("rope", "factor"): "position.scaling-changed",
    **{(norm, "eps"): "norm.eps-changed" for norm in NORMS}, ("rms_norm", "offset"): "norm.offset-changed",
    **{(f, "theta"): "position.theta-changed" for f in FREQUENCIES}, ("sinusoidal", "base"): "position.theta-changed",
    **{(f, a): "position.scaling-changed" for f in FREQUENCIES
       for a in ("factor", "original", "beta_fast", "beta_slow", "low", "high", "short", "long", "truncate")},
}


def name_of(node: Node) -> str:
    """Name of a node's op; empty for a control form."""
    return getattr(node.op, "name", "")


def transparent(node: Node) -> bool:
    """Whether a node passes its input through at inference."""
    return bool(getattr(node.op, "random", False))


def attribute_rule(region: Region, node: Node, field: str) -> str:
    """The rule that tells a change of an attribute."""
    op = name_of(node)
    if (op, field) in ATTRIBUTES:
        return ATTRIBUTES[op, field]
    if op == "top_k" and field == "k" and routed(region):
        return "moe.top-k-changed"
    if op == "embedding" and field == "entries":
        return "position.table-resized" if _by_position(region, node) else "embedding.rows-changed"
    if op == "embedding" and field == "width" and not _by_position(region, node):
        return "width.changed"
    if op == "linear" and field == "width":
        return "ffn.hidden-changed" if hidden(region) is not None and not _is_output(region, node) else "node.width-changed"
    return "node.width-changed" if field in ("width", "entries") else "node.attribute-changed"


def routed(region: Region) -> Node | None:
    """The node of a region that sends rows to experts."""
    return next((n for n in region.nodes if isinstance(n.op, Branch) and n.op.route), None)


def _by_position(region: Region, node: Node) -> bool:
    given = node.inputs.get("in")
    while isinstance(given, Value) and given.node >= 0:
        source = region.nodes[given.node]
        if name_of(source) == "position":
            return True
        given = next(iter(source.values), None) if name_of(source) in ("add", "mask_fill") else None
    return False


def _is_output(region: Region, node: Node) -> bool:
    return any(v.node == node.id for _, v in region.outputs)


def _source(region: Region, given: Any) -> Node | None:
    """The node that a value comes from, through nodes that pass it on."""
    while isinstance(given, Value) and given.node >= 0:
        node = region.nodes[given.node]
        if not transparent(node):
            return node
        given = node.inputs.get("in")
    return None


def hidden(region: Region) -> tuple[str, int, bool] | None:
    """(activation, inner width, gated) of a feed-forward block: its output is linear over an activation, or over a product with one."""
    last = _source(region, region.outputs[0][1]) if region.outputs else None
    if last is None or name_of(last) != "linear":
        return None
    inner = _source(region, last.inputs["in"])
    if inner is None:
        return None
    factors = [inner]
    gated = name_of(inner) == "multiply"
    if gated:
        given = inner.inputs["in"]
        factors = [n for v in (given if isinstance(given, tuple) else (given,)) if (n := _source(region, v)) is not None]
    active = next((n for n in factors if name_of(n) == "activate"), None)
    if active is None:
        return None
    width = inner.types[0].shape[-1].value
    return (active.op.function, width, gated) if width is not None else None


def _ops(region: Region) -> dict[str, Node]:
    return {name_of(n): n for n in region.nodes if not isinstance(n.op, Control)}


def concept(region: Region) -> tuple[str, str]:
    """What a block is, and how it is told: `("ffn", "gelu 3072")`; ("", its name) where it is nothing known."""
    ops = _ops(region)
    for op, name in FREQUENCIES.items():
        if op in ops and "rope" in ops:
            return "position", f"{name}({number(getattr(ops[op].op, 'theta', ''))})"
    for op, name in (("rope", "rope"), ("alibi", "alibi"), ("relative_bucket", "relative buckets"), ("sinusoidal", "sinusoidal")):
        if op in ops:
            return "position", name
    table = next((n for n in region.nodes if name_of(n) == "embedding" and _by_position(region, n)), None)
    if table is not None and "attention" not in ops:
        weight = table.inputs["weight"]
        return "position", f"learned({region.type(weight).shape[0]})" if isinstance(weight, Value) else "learned"
    if "attention" in ops:
        return "attention", region.name
    if (experts := routed(region)) is not None:
        return "ffn", _moe(region, experts)
    if (found := hidden(region)) is not None:
        return "ffn", _ffn(region, *found)
    only = [n for n in region.nodes if name_of(n) not in ("parameter", "constant")]
    if len(only) == 1 and name_of(only[0]) in NORMS:
        return "norm", name_of(only[0])
    return "", region.name


def _moe(region: Region, node: Node) -> str:
    body = bodies(node)[0]
    pick = _ops(region).get("top_k")
    return f"{len(node.op.schedule)} experts" + (f", top {pick.op.k}" if pick else "") + f", of {concept(body)[1]}"


def _ffn(region: Region, function: str, width: int, gated: bool) -> str:
    linear = [n for n in region.nodes if name_of(n) == "linear"]
    bias = "" if any(n.inputs.get("bias") is not None for n in linear) else ", no bias"
    return f"{GATED.get(function, 'gated ' + function) if gated else function} {width}{bias}"


def node_concept(node: Node) -> tuple[str, str]:
    """The concept of one node, and how it is told."""
    held = bodies(node)
    if held:
        found, text = concept(held[0])
        return found, text
    name = name_of(node)
    if name in NORMS:
        return "norm", name
    if name in ("rope", "alibi", "sinusoidal"):
        return "position", name
    return ("dropout", name) if transparent(node) else ("", name)


def number(value: Any) -> str:
    """A number as a person writes it."""
    return f"{int(value)}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def plain(value: Any) -> Any:
    """An attribute's value as JSON has it."""
    if isinstance(value, Dim):
        return value.value if value.value is not None else str(value)
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def heads(region: Region, node: Node) -> Iterator[tuple[str, Any]]:
    """What the types around an attention op say: rule, value."""
    query, key = node.inputs["query"], node.inputs["key"]
    if isinstance(query, Value) and isinstance(key, Value):
        yield "attention.heads-changed", plain(region.type(query).shape[1])
        yield "attention.kv-heads-changed", plain(region.type(key).shape[1])
        yield "attention.head-width-changed", plain(region.type(query).shape[-1])
