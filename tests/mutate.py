"""Seeded mutations of specs: of their text, which mostly breaks the YAML, and of their trees, which breaks the meaning."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

from nnspec.lang.tree import Mapping, Scalar, Tree
from nnspec.stages.parse import parse, read_source

TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*|\d+(?:\.\d+)?|[^\sA-Za-z_0-9]")
PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+/<=()*^-]*(?: [A-Za-z0-9_.+/<=()*^-]+)*")
TEXTS = [
    "0", "-1", "1", "2", "3", "7", "512", "", "null", "0.5", "1e-5", "1e9", "10**9", "99999999999999999999", "nan",
    "1/0", "1_000", "012", "true", "no", "zeros", "i", "i + 1", "B", "S", "S + 1", "B*S", "2 * B", "width", "width/7",
    "heads", "hidden", "vocab", "layers", "embed", "embed.weight", "embed.nothing", "all", "layers.all", "last.state",
    "in", "out", "op", "block", "slot", "repeat", "scan", "branch", "carry", "each", "length", "position", "x.y.z", ".",
    "a.", ".a", "é", "日本", "a b", "*", "~", "-", "int", "one of a | b", "one of", "float = x", "float[B, S]", "float[]",
    "float[*b, *c]", "optional int64[B]", "float[B, S <= 0]", "bool[-1]", "float[B -> S", "float[B] -> float[B]",
    "[1, 2]", "[B, 1, width]", "512 if true else 3", "add", "linear", "rope", "gated_ffn", "relu", "1.5", "width * 1.5",
    "max(", "min()",
]
KEYS = [
    "in", "op", "block", "slot", "repeat", "scan", "branch", "each", "carry", "share", "pattern", "route", "along",
    "backward", "length", "width", "heads", "init", "trainable", "weight", "bias", "times", "from", "at", "x-y",
    "memory", "keep", "causal", "window", "norm", "attention", "hidden", "axis", "é", "A", "0", "",
]

Data = str | list["Data"] | dict[str, "Data"]


def data(tree: Tree) -> Data:
    """A tree as plain lists, dicts and strings."""
    if isinstance(tree, Scalar):
        return tree.text
    if isinstance(tree, Mapping):
        return {e.key.text: data(e.value) for e in tree}
    return [data(x) for x in tree]


def load(path: Path) -> Data:
    return data(parse(read_source(path)))


def write(value: Data, indent: int = 0) -> str:
    """YAML of a tree: two levels in blocks, what is deeper in flow style."""
    if isinstance(value, dict) and value and indent < 2:
        return "".join("\n" * (indent > 0 and k == 0) + "  " * indent + f"{quoted(key)}: {write(v, indent + 1).rstrip()}\n"
                       for k, (key, v) in enumerate(value.items()))
    return flow(value) + "\n"


def flow(value: Data) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(k)}: {flow(v)}" for k, v in value.items()) + "}"
    return quoted(value) if isinstance(value, str) else "[" + ", ".join(map(flow, value)) + "]"


def quoted(text: str) -> str:
    return text if PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def places(value: Data) -> list[tuple[dict | list, str | int]]:
    """Every container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [p for k in keys for p in ((value, k), *places(value[k]))]


def anything(r: Random, depth: int = 0) -> Data:
    kind = r.randrange(6 if depth < 2 else 4)
    if kind < 4:
        return r.choice(TEXTS)
    if kind == 4:
        return [anything(r, depth + 1) for _ in range(r.randrange(4))]
    return {r.choice(KEYS[:-4]): anything(r, depth + 1) for _ in range(r.randrange(4))}


def mutate_tree(root: Data, r: Random) -> None:
    """Change one thing in the tree, in place."""
    holder, key = r.choice(places(root))
    other, there = r.choice(places(root))
    kind = r.choice(["delete", "copy", "swap", "text", "text", "anything", "rename", "insert", "expression"])
    if kind == "delete":
        del holder[key]
    elif kind == "copy":
        holder[key] = copied(other[there])
    elif kind == "swap" and not (nested(holder[key], other) or nested(other[there], holder)):
        holder[key], other[there] = other[there], holder[key]
    elif kind == "text":
        holder[key] = r.choice(TEXTS)
    elif kind == "anything":
        holder[key] = anything(r)
    elif kind == "expression" and isinstance(holder[key], str):
        holder[key] += r.choice([" + 1", " * 2", " // 3", " / 7", " ** 3", " - 99", "[0]", ".x", " i", " < 3", " if i else 2"])
    elif kind in ("rename", "insert") and isinstance(holder, dict):
        new = r.choice(KEYS if r.random() < 0.5 or not isinstance(other, dict) else list(other))
        items = [(new if k == key and kind == "rename" else k, v) for k, v in holder.items()]
        holder.clear()
        holder.update(items)
        if kind == "insert":
            holder[new] = anything(r) if r.random() < 0.5 else copied(other[there])


def copied(value: Data) -> Data:
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list) else value


def nested(outer: Data, inner: object) -> bool:
    """Whether the container `inner` is `outer` or lies in it."""
    return outer is inner or any(nested(h[k], inner) for h, k in places(outer))


def mutate_text(text: str, r: Random) -> str:
    """Change one token or line of the text."""
    tokens = [m.span() for m in TOKEN.finditer(text)]
    (a, b), (c, d) = sorted(r.sample(tokens, 2))
    kind = r.choice(["delete", "double", "replace", "swap", "line", "tab"])
    if kind == "delete":
        return text[:a] + text[b:]
    if kind == "double":
        return text[:b] + " " + text[a:b] + text[b:]
    if kind == "replace":
        return text[:a] + text[c:d] + text[b:]
    if kind == "swap":
        return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]
    if kind == "tab":
        return text[:a] + "\t" + text[a:]
    lines = text.splitlines(keepends=True)
    i, j = r.randrange(len(lines)), r.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return "".join(lines)


def mutant(path: Path, blocks: Path, seed: int) -> dict[str, str]:
    """Files of the spec at `path` after one to three mutations of it, or of a file of blocks that it uses: `spec.yaml` first."""
    r = Random(seed)
    times = r.choice([1, 1, 1, 2, 3])
    if r.random() < 0.15:
        text = path.read_text(encoding="utf-8")
        for _ in range(times):
            text = mutate_text(text, r)
        return {"spec.yaml": text}
    root = load(path)
    uses = root.get("use") if isinstance(root, dict) else None
    if r.random() < 0.2 and isinstance(root, dict) and isinstance(uses, list) and uses:
        name = r.choice([str(u) for u in uses])
        root["use"] = [f"./{u}.yaml" if u == name else u for u in uses]
        used = load(blocks / f"{name}.yaml")
        for _ in range(times):
            mutate_tree(used, r)
        return {"spec.yaml": write(root), f"{name}.yaml": write(used)}
    for _ in range(times):
        mutate_tree(root, r)
    return {"spec.yaml": write(root)}
