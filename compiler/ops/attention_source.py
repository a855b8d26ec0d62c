"""How attention is written in PyTorch: functions that emitted files bring along, and masks that need none."""

from __future__ import annotations

from typing import Any

from .base import Types, tensor

VISIBLE_KEYS = '''
def visible_keys(query, key, causal=False, window=None, length=None, keep=None):
    """True where a query sees a key, broadcastable to [B, H, T, S]; None where all see all.

    A causal query at or past its row's length is padding and sees nothing.
    """
    row = torch.arange(query.shape[2], device=query.device)[:, None]
    column = torch.arange(key.shape[2], device=query.device)
    mask = None
    if causal:
        mask = column <= row
    if window is not None:
        mask = mask & (column > row - window)
    if length is not None:
        inside = (row if causal else column) < length[:, None, None, None]
        mask = inside if mask is None else mask & inside
    if keep is not None:
        keep = keep[(slice(None),) + (None,) * (4 - keep.dim())]
        mask = keep if mask is None else mask & keep
    return mask
'''

CAUSAL = '''
def causal_attention(query, key, value, length=None, scale=None):
    """Causal attention [B, H, T, v]; queries at or past `length`, which are padding, give zeros."""
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    if length is None:
        return out
    row = torch.arange(query.shape[2], device=query.device)[:, None]
    return out.masked_fill(row >= length[:, None, None, None], 0)
'''

ATTEND = '''
def attend(
    query, key, value, causal=False, window=None, scale=None, length=None, keep=None,
    score_bias=None,
):
    """Attention [B, H, T, v] over the keys that `visible_keys` allows."""
    if causal and window is None and keep is None and score_bias is None:
        return causal_attention(query, key, value, length, scale)
    mask = visible_keys(query, key, causal, window, length, keep)
    if score_bias is not None:
        mask = score_bias if mask is None else torch.where(mask, score_bias, float("-inf"))
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # the kernels that take a mask want as many key heads as query heads
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
'''

ATTENTION_WEIGHTS = '''
def attention_weights(
    query, key, causal=False, window=None, scale=None, softcap=None, length=None, keep=None,
    score_bias=None,
):
    """Attention weights [B, H, T, S], computed in float32 at least.

    They are zeros for a query that sees no key.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    if query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if score_bias is not None:
        scores = scores + score_bias
    mask = visible_keys(query, key, causal, window, length, keep)
    if mask is None:
        return torch.softmax(scores, -1).to(query.dtype)
    weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(wide).min), -1)
    return weights.masked_fill(~mask, 0).to(query.dtype)
'''


def one_mask(inputs: Types, masks: dict[str, Any]) -> bool:
    """Whether one expression says what keys are seen: `length` or `keep` alone, or with a score bias that is always there."""
    if masks.keys() - {"score_bias"} not in ({"length"}, {"keep"}):
        return False
    return "score_bias" not in masks or not any(tensor(inputs, port).optional for port in masks)


def mask_of(t: Any, key: Any, length: Any = None, keep: Any = None, score_bias: Any = None) -> Any:
    """What `scaled_dot_product_attention` takes as `attn_mask`, where `one_mask` holds."""
    port, given = ("length", length) if keep is None else ("keep", keep)
    if keep is not None:
        missing = 4 - len(tensor(t.inputs, "keep").shape)
        seen = keep[(slice(None), *[None] * missing)] if missing else keep
    else:
        seen = t.let("place", t.torch.arange(key.shape[2], device=key.device)) < length[:, None, None, None]
    if score_bias is not None:
        return t.torch.where(seen, score_bias, float("-inf"))
    return t.either(t.missing(given), None, seen) if tensor(t.inputs, port).optional else seen
