"""The ONNX forms of attention, and where each is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from . import attention_masks as masks
from .base import ALL_TARGETS, Form, Site, Types, tensor
from .emission import LOWEST

INT32 = 6                # of onnx.TensorProto.DataType
LONG = 1024              # positions from which the kernels of the CPU that do not hold all scores at once are faster in float32


def forms() -> tuple[Form, ...]:
    """In order of preference. ai.onnx Attention is refused where a kernel of ONNX Runtime's own is legal and better."""
    return (Form("Attention-24", frozenset({"ort-cuda", "ort-cpu"}), _why_not_as_it_is, _fused),
            Form("MultiHeadAttention", frozenset({"ort-cpu"}), _why_not_multi_head, _multi_head),
            Form("GroupQueryAttention", frozenset({"ort-cuda", "ort-cpu"}), _why_not_grouped, _grouped),
            Form("Attention-24 on wider heads", frozenset({"ort-cuda"}), _why_not_fused, _wider),
            Form("decomposed", ALL_TARGETS, lambda op, site: None, _decomposed, fused=False))


def _fused(op: Any, g: Any, query: Any, key: Any, value: Any, **given: Any) -> Any:
    """ai.onnx Attention. Right padding alone is `nonpad_kv_seqlen`, causality alone `is_causal`: no mask."""
    length, keep, bias = (given.get(p) for p in ("length", "keep", "score_bias"))
    T, S = (tensor(g.inputs, port).shape[2] for port in ("query", "key"))
    dense = keep is not None or bias is not None or op.window is not None or (op.causal and T != S)
    cuda = g.target == "ort-cuda"
    mask = None
    if dense:
        mask = masks.dense(op, g, length, keep, bias)
        if cuda:    # the memory-efficient kernel takes a mask only where S is a multiple of 4
            key, value = (_pad_keys(g, x, port) for x, port in ((key, "key"), (value, "value")))
            mask = _pad_mask(g, mask, S, bias is not None)
    repeats = repeats_of(g.inputs)
    if cuda and repeats.value != 1 and (dense or g.dtype == "float32"):    # only the flash kernel groups heads
        key, value = (repeat_heads(g, x, port, repeats) for x, port in ((key, "key"), (value, "value")))
    nonpad = length if not dense and not op.causal else None
    out = g.op("Attention", query, key, value, mask, None, None, nonpad, scale=op.scale, softcap=op.softcap,
               is_causal=1 if op.causal and not dense else None)
    rows = None if dense else masks.rows(op, g, length)
    return (out if rows is None else g.op("Where", rows, out, g.number(0.0))), None


def _wider(op: Any, g: Any, query: Any, key: Any, value: Any, **given: Any) -> Any:
    """Heads filled up to a multiple of 8 with zeros, which add nothing to the scores and are cut off the result."""
    d, v = (tensor(g.inputs, port).shape[3].value for port in ("query", "value"))
    assert d is not None and v is not None, "or the form before is legal"
    wide = {port: _widened(g, x, port) for port, x in (("query", query), ("key", key), ("value", value))}
    g.inputs = {**g.inputs, **{port: type for port, (_, type) in wide.items()}}
    op = op if op.scale is not None else replace(op, scale=d ** -0.5)
    out, _ = _fused(op, g, *(x for x, _ in wide.values()), **given)
    return (g.op("Slice", out, g.ints(0), g.ints(v), g.ints(3)) if v % 8 else out), None


def _decomposed(op: Any, g: Any, query: Any, key: Any, value: Any, **given: Any) -> Any:
    """MatMul, Softmax in float32, MatMul; grouped heads lie along T, so that keys and values are not copied."""
    length, keep, bias = (given.get(p) for p in ("length", "keep", "score_bias"))
    B, H, T, S = g.outputs[1].shape
    G, repeats = tensor(g.inputs, "key").shape[1], repeats_of(g.inputs)

    def grouped(x: Any, width: Dim) -> Any:
        return x if repeats.value == 1 else g.op("Reshape", x, g.shape((B, G, repeats * T, width)))

    def apart(x: Any, width: Dim) -> Any:
        return x if repeats.value == 1 else g.op("Reshape", x, g.shape((B, H, T, width)))

    d = tensor(g.inputs, "query").shape[3]
    scaled = g.op("Mul", g.to_f32(query), _scale(op, g, d))
    turned = g.op("Transpose", g.to_f32(key), perm=[0, 1, 3, 2])
    scores = apart(g.op("MatMul", grouped(scaled, d), turned), S)
    if op.softcap is not None:
        cap = g.number(op.softcap, "float32")
        scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, cap)), cap)
    added = masks.added(op, g, length, keep, bias)
    if added is not None:
        scores = g.op("Add", scores, added)
    weights = g.from_f32(g.op("Softmax", scores, axis=-1))
    seeing = masks.seeing(op, g, length, keep)
    gate_weights = seeing is not None and "weights" in g.used
    if gate_weights:
        weights = g.op("Where", seeing, weights, g.number(0.0))
    out = apart(g.op("MatMul", grouped(weights, S), value), g.outputs[0].shape[3])
    if seeing is not None and not gate_weights:
        out = g.op("Where", seeing, out, g.number(0.0))
    return out, weights


def _why_not_fused(op: Any, site: Site) -> str | None:
    return "its weights are used, which the fused kernels do not give" if "weights" in site.used else None


def _why_not_as_it_is(op: Any, site: Site) -> str | None:
    if why := _why_not_fused(op, site):
        return why
    if site.target == "ort-cpu":
        return _slower(op, site)
    odd = [port for port in ("query", "value") if (tensor(site.inputs, port).shape[3].value or 0) % 8]
    if odd:
        width = tensor(site.inputs, odd[0]).shape[3]
        return f"heads of {' and '.join(odd)} are {width} wide, and CUDA's fused kernels take multiples of 8"
    if op.window is not None and _why_not_grouped(op, site) is None:
        return "a window is a dense mask for it, which CUDA's FLASH kernel does not take, and none for GroupQueryAttention"
    return None


def _slower(op: Any, site: Site) -> str | None:
    """Ratios of attention alone, 12 heads of width 64, medians of interleaved runs on two cores: see `LONG` for float32."""
    S = tensor(site.inputs, "key").shape[2]
    n = site.typical_size(S)
    at = f"{S} = {n}" if S.value is None else f"{n} keys"
    if _why_not_grouped(op, site) is None:
        if site.dtype == "float16":
            return "GroupQueryAttention is 1.1 to 3.9 times as fast in float16 on the CPU"
        if op.causal and n >= LONG:
            return f"causal GroupQueryAttention is faster on the CPU from {LONG} keys on, and {at} is typical"
    if _why_not_multi_head(op, site) is None and n >= LONG:
        return f"MultiHeadAttention is faster on the CPU from {LONG} keys on, and {at} is typical"
    return None


def _why_not_grouped(op: Any, site: Site) -> str | None:
    query, key, value = (tensor(site.inputs, port) for port in ("query", "key", "value"))
    d, v = query.shape[3].value, value.shape[3].value
    if why := _why_not_fused(op, site) or _why_not_numbered(site):
        return why
    for port in ("keep", "score_bias"):
        if site.inputs.get(port) is not None:
            return f"it takes no `{port}`"
    if query.shape[2] != key.shape[2]:
        return f"it takes as many queries as keys, and these are {query.shape[2]} and {key.shape[2]}"
    if d is None or d % 8 or v != d:
        return f"it takes heads as wide as their values, a multiple of 8, and these are {query.shape[3]} and {value.shape[3]} wide"
    if not op.causal and site.target != "ort-cpu":
        return "it is not causal"
    if site.target == "ort-cuda" and site.dtype == "float32":
        return "CUDA has no float32 kernel for it"
    return None


def _why_not_multi_head(op: Any, site: Site) -> str | None:
    if why := _why_not_fused(op, site) or _why_not_numbered(site):
        return why
    if site.dtype != "float32":
        return f"the CPU has no {site.dtype} kernel for it"
    given = [port for port in ("length", "keep", "score_bias") if site.inputs.get(port) is not None]
    if op.causal or given:
        return f"with {f'`{given[0]}`' if given else 'causality'} it holds all scores at once, as Attention-24 does"
    if repeats_of(site.inputs).value != 1 or op.softcap is not None:
        return "it takes no softcap" if op.softcap is not None else "its query heads share key heads"
    return None


def _why_not_numbered(site: Site) -> str | None:
    free = next((d for port in ("query", "key") if (d := tensor(site.inputs, port).shape[1]).value is None), None)
    return None if free is None else f"its heads must be a known number, and they are {free}"


def _grouped(op: Any, g: Any, query: Any, key: Any, value: Any, **given: Any) -> Any:
    """com.microsoft GroupQueryAttention, which needs no mask. Its lengths are those of the keys, less one.

    Where it is causal they are all S: valid queries see no padding then. Queries that see nothing are set to zeros.
    """
    length = given.get("length")
    keys = None if op.causal else length
    rows = masks.flat_rows(op, g, length) if keys is None else masks.filled(g, keys)
    S = tensor(g.inputs, "key").shape[2]
    total = g.once(("attention total", S), lambda: g.op("Cast", g.scalar(S), to=INT32))
    out = _in_rows(op, g, "GroupQueryAttention", (query, key, value), None, None, _last(g, keys), total, rows=rows,
                   kv_num_heads=tensor(g.inputs, "key").shape[1].value, softcap=op.softcap, local_window_size=op.window,
                   causal=None if op.causal else 0)
    return out, None


def _last(g: Any, length: Any) -> Any:
    """int32 [B]: the position of a row's last key, 0 where it has none."""
    B, _, S, _ = tensor(g.inputs, "key").shape
    one = g.ints(1)

    def make() -> Any:
        if length is not None:
            return g.op("Cast", g.op("Max", g.op("Sub", length, one), g.ints(0)), to=INT32)
        return g.op("Expand", g.op("Cast", g.op("Sub", g.size(S), one), to=INT32), g.shape((B,)))

    return g.once(("attention last", B, S, length and length.name), make)


def _multi_head(op: Any, g: Any, query: Any, key: Any, value: Any, **given: Any) -> Any:
    """com.microsoft MultiHeadAttention, which on the CPU takes the scores of a few queries at a time where it has no mask."""
    return _in_rows(op, g, "MultiHeadAttention", (query, key, value)), None


def _in_rows(op: Any, g: Any, name: str, heads: tuple[Any, ...], *more: Any, rows: Any = None, **settings: Any) -> Any:
    """An operator that has the heads side by side in the last axis, [B S H*d], between [B H S d] before and after it."""
    caches = 2 if name == "GroupQueryAttention" and g.target == "ort-cuda" else 0      # CUDA's kernel fails without places for them
    made = g.op(name, *flat(g, heads), *more, outputs=1 + caches, domain="com.microsoft", num_heads=g.outputs[0].shape[1].value,
                scale=op.scale, **settings)
    out = made[0] if caches else made
    return apart(g, out if rows is None else g.op("Where", rows, out, g.number(0.0)))


def flat(g: Any, heads: tuple[Any, ...]) -> list[Any]:
    """Query, key and value [B H S d] with their heads side by side, [B S H*d]."""
    made = []
    for x, port in zip(heads, ("query", "key", "value"), strict=True):
        _, H, _, d = tensor(g.inputs, port).shape
        made.append(g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.shape((0, 0, H * d))))
    return made


def apart(g: Any, out: Any) -> Any:
    """[B S H*d] as the first output [B H S d] of the node is."""
    _, H, _, v = g.outputs[0].shape
    return g.op("Transpose", g.op("Reshape", out, g.shape((0, 0, H, v))), perm=[0, 2, 1, 3])


def _widened(g: Any, x: Any, port: str) -> tuple[Any, TensorType]:
    """[B H T d] with d filled up to a multiple of 8, and its type."""
    *axes, d = tensor(g.inputs, port).shape
    missing = -(d.value or 0) % 8
    if not missing:
        return x, tensor(g.inputs, port)
    zeros = g.once(("attention zeros", *axes, missing), lambda: g.op("Expand", g.number(0.0), g.shape((*axes, missing))))
    return g.op("Concat", x, zeros, axis=3), TensorType("float", (*axes, d + missing))


def repeats_of(inputs: Types) -> Dim:
    """How many query heads share a key head."""
    found = tensor(inputs, "query").shape[1].exact_div(tensor(inputs, "key").shape[1])
    assert found is not None, "held by infer"
    return found


def _scale(op: Any, g: Any, d: Dim) -> Any:
    if op.scale is not None or d.value is not None:
        return g.number(op.scale if op.scale is not None else d.value ** -0.5, "float32")    # type: ignore[operator]
    return g.op("Reciprocal", g.op("Sqrt", g.op("Cast", g.scalar(d), to=1)))


def _pad(g: Any, x: Any, before: Any, S: Dim, after: Any, *, fill: Any) -> Any:
    """`x` of shape [*before S *after], int64 vectors, with S filled up to a multiple of 4 (Pad has no bfloat16 kernel)."""
    if S.value is not None and S.value % 4 == 0:
        return x

    def filling() -> Any:
        missing = g.once(("attention missing", S), lambda: g.op("Mod", g.op("Sub", g.ints(0), g.size(S)), g.ints(4)))
        return g.op("Expand", fill, g.op("Concat", before, missing, *after, axis=0))

    made = g.once(("attention filling", before.name, S, *(v.name for v in after), fill.name), filling)
    return g.once(("attention padded", x.name), lambda: g.op("Concat", x, made, axis=-1 - len(after)))


def _pad_keys(g: Any, x: Any, port: str) -> Any:
    B, G, S, d = tensor(g.inputs, port).shape
    return _pad(g, x, g.shape((B, G)), S, (g.size(d),), fill=g.number(0.0))


def _pad_mask(g: Any, mask: Any, S: Dim, biased: bool) -> Any:
    before = g.once(("attention mask shape", mask.name), lambda: g.op("Shape", mask, end=3))
    return _pad(g, mask, before, S, (), fill=g.number(LOWEST[g.dtype]) if biased else g.const(False))


def repeat_heads(g: Any, x: Any, port: str, repeats: Dim) -> Any:
    """[B G s d] -> [B H s d], each head `repeats` times in a row."""
    G, d = tensor(g.inputs, port).shape[1], tensor(g.inputs, port).shape[3]
    wide = g.op("Expand", g.op("Unsqueeze", x, g.ints(2)), g.shape((1, 1, repeats, 1, 1)))
    return g.op("Reshape", wide, g.shape((0, G * repeats, -1, d)))
