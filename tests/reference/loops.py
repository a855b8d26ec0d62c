"""Sequence models as loops in numpy, written from the equations of their papers; `w` maps parameter paths to arrays."""

from __future__ import annotations

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    """Over the last axis; nothing to weigh gives nothing."""
    if x.shape[-1] == 0:
        return x
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gru(x, h, w_ih, w_hh, b_ih, b_hh):
    """Cho et al. 2014 with torch's gates r, z, n; the reset gate acts on the projected state. x [i], h [h]."""
    n = len(h)
    a, b = w_ih @ x + b_ih, w_hh @ h + b_hh
    r, z = sigmoid(a[:n] + b[:n]), sigmoid(a[n:2 * n] + b[n:2 * n])
    return (1 - z) * np.tanh(a[2 * n:] + r * b[2 * n:]) + z * h


def lstm(x, h, c, w_ih, w_hh, b_ih, b_hh):
    """Hochreiter and Schmidhuber 1997 with torch's gates i, f, g, o. x [i], h and c [h]."""
    i, f, g, o = np.split(w_ih @ x + b_ih + w_hh @ h + b_hh, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def layer(w, path, suffix=""):
    return [w[f"{path}.{kind}{suffix}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def gru_row(xs, w, path, suffix="_l0", start=None):
    """[S, i] -> [S, h]."""
    weights = layer(w, path, suffix)
    h = np.zeros(weights[1].shape[1]) if start is None else start
    out = np.zeros((len(xs), len(h)))
    for t, x in enumerate(xs):
        out[t] = h = gru(x, h, *weights)
    return out


def g2p(w, source, source_length, target):
    """g2p_en 2.1: the encoder's last state starts the decoder."""
    rows = []
    for s, n, t in zip(source, source_length, target, strict=True):
        states = gru_row(w["source_embed.weight"][s[:n]], w, "encoder")
        start = states[-1] if n else np.zeros(states.shape[1])
        rows.append(gru_row(w["target_embed.weight"][t], w, "decoder", start=start) @ w["logits.weight"].T + w["logits.bias"])
    return {"logits": np.stack(rows)}


def additive(w, source, source_length, target):
    """Bahdanau et al. 2015, with a GRU cell of torch's form and a linear readout."""
    logits, weights = [], []
    for s, n, words in zip(source, source_length, target, strict=True):
        xs = w["source_embed.weight"][s[:n]]
        ahead = gru_row(xs, w, "encoder")
        back = gru_row(xs[::-1], w, "encoder", "_l0_reverse")[::-1]
        h = np.concatenate([ahead, back], axis=1)
        first = back[0] if n else np.zeros(back.shape[1])
        state = np.tanh(w["start.start.weight"] @ first)
        for word in words:
            y = w["target_embed.weight"][word]
            energy = np.tanh(w["decoder.attend.query_part.weight"] @ state + h @ w["decoder.attend.memory_part.weight"].T)
            alpha = softmax(energy @ w["decoder.attend.score.weight"][0])
            context = alpha @ h
            state = gru(np.concatenate([y, context]), state, *layer(w, "decoder.step"))
            out = w["decoder.output.weight"] @ np.concatenate([state, y, context]) + w["decoder.output.bias"]
            logits.append(w["logits.weight"] @ out + w["logits.bias"])
            weights.append(np.concatenate([alpha, np.zeros(len(s) - n)]))
    shape = target.shape
    return {"logits": np.reshape(logits, (*shape, -1)), "alignment": np.reshape(weights, (*shape, source.shape[1]))}


def luong(w, source, source_length, target, feed_too=False):
    """Luong et al. 2015: stacked LSTMs, the general score, the attentional state fed back."""
    depth = sum(name.startswith("encoder.weight_ih") for name in w)
    logits, weights, feeds = [], [], []
    for s, n, words in zip(source, source_length, target, strict=True):
        xs = w["source_embed.weight"][s[:n]]
        width = w["encoder.weight_hh_l0"].shape[1]
        states = []
        for k in range(depth):
            h, c, out = np.zeros(width), np.zeros(width), np.zeros((n, width))
            for t, x in enumerate(xs):
                out[t], c = lstm(x, h, c, *layer(w, "encoder", f"_l{k}"))
                h = out[t]
            xs = out
            states.append((h, c))
        feed = np.zeros(width)
        for word in words:
            x = np.concatenate([w["target_embed.weight"][word], feed])
            for k in range(depth):
                states[k] = lstm(x, *states[k], *layer(w, f"decoder.stack.{k}"))
                x = states[k][0]
            alpha = softmax(xs @ (w["decoder.attend.query_part.weight"] @ x))
            feed = np.tanh(w["decoder.mixed.weight"] @ np.concatenate([alpha @ xs, x]))
            logits.append(w["logits.weight"] @ feed)
            weights.append(np.concatenate([alpha, np.zeros(len(s) - n)]))
        feeds.append(feed)
    logits, weights = np.reshape(logits, (*target.shape, -1)), np.reshape(weights, (*target.shape, source.shape[1]))
    return {"logits": logits, "weights": weights, "feed": np.stack(feeds)} if feed_too else {"logits": logits, "alignment": weights}


def pointer(w, points, length, target):
    """Vinyals et al. 2015, section 2.3; what is not there scores the lowest float32."""
    logits, contexts = [], []
    for row, n, chosen in zip(points, length, target, strict=True):
        e = gru_row(row[:n], w, "encoder")
        items = np.concatenate([w["go"][0], row])
        state = e[-1] if n else np.zeros(e.shape[1])
        for k in chosen:
            state = gru(items[k], state, *layer(w, "decoder.step"))
            u = np.tanh(e @ w["decoder.items.weight"].T + w["decoder.query.weight"] @ state) @ w["decoder.score.weight"][0]
            contexts.append(softmax(u) @ e)
            logits.append(np.concatenate([u, np.full(len(row) - n, np.finfo(np.float32).min)]))
    return {"logits": np.reshape(logits, (*target.shape, -1)), "contexts": np.reshape(contexts, (*target.shape, -1))}


def memory_network(w, story, asked):
    """Sukhbaatar et al. 2015, with adjacent tying: hop k reads with table k and answers with table k + 1."""
    tables = [w[f"tables.{k}"] for k in range(4)]
    u = tables[0][asked].sum(1)
    weights = []
    for k in range(3):
        m, c = tables[k][story].sum(2), tables[k + 1][story].sum(2)
        p = softmax((m * u[:, None]).sum(-1))
        u = u + (p[..., None] * c).sum(1)
        weights.append(p)
    return {"logits": u @ tables[3].T, "weights": np.stack(weights)}


def mamba(w, tokens):
    """Gu and Dao 2023, algorithm 2 with equations 2 to 4, behind a token shift."""
    inner, state = w["a_log"].shape
    rank = w["rate.weight"].shape[1]
    silu = lambda x: x * sigmoid(x)  # noqa: E731
    logits, ends = [], []
    for row in tokens:
        e = w["embed.weight"][row]
        mean = e + np.concatenate([np.zeros((1, e.shape[1])), e[:-1]])
        x, gate = mean @ w["x.weight"].T, mean @ w["gate.weight"].T
        h = np.zeros((inner, state))
        for t in range(len(row)):
            taps = [x[t - 3 + k] if t - 3 + k >= 0 else np.zeros(inner) for k in range(4)]
            u = silu(sum(w["conv.weight"][:, 0, k] * taps[k] for k in range(4)) + w["conv.bias"])
            chosen = w["selected.weight"] @ u
            dt = np.log1p(np.exp(w["rate.weight"] @ chosen[:rank] + w["rate.bias"]))
            b, c = chosen[rank:rank + state], chosen[rank + state:]
            h = np.exp(dt[:, None] * -np.exp(w["a_log"])) * h + (dt * u)[:, None] * b
            y = h @ c + w["d"] * u
            logits.append(w["embed.weight"] @ (w["out.weight"] @ (y * silu(gate[t]))))
        ends.append(h)
    return {"logits": np.reshape(logits, (*tokens.shape, -1)), "state": np.stack(ends)}


def layer_norm(x, weight, bias, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight + bias


def transformer_xl(w, tokens, memory, heads=4):
    """Dai et al. 2019, section 3.3: terms (a) to (d) of the score, one pair of query and key at a time."""
    x = w["embed.weight"][tokens]
    memories = []
    width = x.shape[-1]
    d = width // heads
    frequency = 1 / 10000 ** (np.arange(0, width, 2) / width)
    for k, past in enumerate(memory):
        p = f"layers.{k}"
        context = np.concatenate([past, x], axis=1)
        memories.append(context[:, context.shape[1] - past.shape[1]:])
        q, key, value = x @ w[f"{p}.query.weight"].T, context @ w[f"{p}.key.weight"].T, context @ w[f"{p}.value.weight"].T
        out = np.zeros_like(x)
        for b in range(len(x)):
            for i in range(x.shape[1]):
                seen = past.shape[1] + i + 1
                for h in range(heads):
                    at = slice(h * d, (h + 1) * d)
                    scores = []
                    for j in range(seen):
                        angle = (seen - 1 - j) * frequency
                        r = w[f"{p}.relative.weight"] @ np.concatenate([np.sin(angle), np.cos(angle)])
                        scores.append((q[b, i, at] + w["u"][at]) @ key[b, j, at] + (q[b, i, at] + w["v"][at]) @ r[at])
                    out[b, i, at] = softmax(np.array(scores) / d ** 0.5) @ value[b, :seen, at]
        y = layer_norm(x + out @ w[f"{p}.output.weight"].T, w[f"{p}.attention_norm.weight"], w[f"{p}.attention_norm.bias"])
        up = np.maximum(y @ w[f"{p}.ffn.up.weight"].T + w[f"{p}.ffn.up.bias"], 0)
        x = layer_norm(y + up @ w[f"{p}.ffn.down.weight"].T + w[f"{p}.ffn.down.bias"], w[f"{p}.out.weight"], w[f"{p}.out.bias"])
    return {"logits": x @ w["embed.weight"].T, "memory": np.stack(memories)}
