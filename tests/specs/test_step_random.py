"""Decoders put together at random from what streams give in chunks what the whole gives; with one part that cannot, they are refused."""

import random

import nnspec
import numpy as np
import pytest
import stepping
import yaml
import zoo
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.decoder import decoder

LENGTH, MEMORY, WIDTH = 11, 5, 8
CELL = {"inputs": {"x": "float[B, 8]", "h": "float[B, 8]"}, "graph": {"n": {"op": "gru_cell", "in": "x", "state": "h", "hidden": 8}},
        "outputs": {"o": "n", "h": "n"}}
LAYER = {"settings": {"window": "optional int"}, "inputs": {"in": "float[B, T, 8]"}, "graph": {
    "n": {"op": "rms_norm", "in": "in"}, "a": {"block": "multi_head_attention", "in": "n", "heads": 2, "causal": True, "window": "window"},
    "y": {"op": "add", "in": ["in", "a"]}}}
EXPERT = {"inputs": {"in": "float[*b, 8]"}, "graph": {"y": {"op": "linear", "in": "in", "width": 8}}}


class Decoder:
    """A spec under construction: `x` is the newest value [B, T, 8]."""

    def __init__(self, seed):
        self.random, self.graph, self.count = random.Random(seed), {}, 0
        self.inputs = {"tokens": "int64[B, T]"}
        self.outputs, self.blocks = {}, {}
        self.x = self.add(op="embedding", entries=20, width=WIDTH, **{"in": "tokens"})

    def add(self, **node):
        self.count += 1
        name = f"v{self.count}"
        self.graph[name] = node
        return name

    def unary(self, op, x=None, **more):
        return self.add(op=op, **{"in": x or self.x}, **more)

    def pick(self, *items):
        return self.random.choice(items)

    def place(self):
        return self.add(op="position", like="tokens")

    # parts that stream

    def attention(self):
        more = {k: v for k, v in {"window": self.pick(None, 1, 3, 6), "softcap": self.pick(None, None, 4)}.items() if v}
        kind = self.pick("plain", "rope", "alibi", "t5", "keep")
        if kind == "rope":
            more["position"] = {"block": "rope"}
        elif kind == "alibi":
            more["score_bias"] = self.add(block="alibi", like="tokens", heads=4)
        elif kind == "t5":
            more["score_bias"] = self.add(block="t5_bias", like="tokens", heads=4, buckets=8, max_distance=9, both_ways=False)
        elif kind == "keep":
            self.inputs["m"] = "bool[B, T]"
            more["keep"] = "m"
        return self.add(block="multi_head_attention", heads=4, kv_heads=self.pick(1, 2, 4), causal=True, **{"in": self.x}, **more)

    def by_hand(self):
        q, k, v = (self.unary("linear", width=WIDTH) for _ in range(3))
        if self.pick(True, False):
            turned = self.unary("rearrange", k, **{"as": "b k d -> b d k"})
            scores = self.add(op="matmul", **{"in": [q, turned]})
        else:
            scores = self.add(op="einsum", **{"in": [q, k], "as": "b q d, b k d -> b q k"})
        mask = self.mask()
        if self.pick(True, False):
            weights = self.unary("softmax", scores, keep=mask)
        elif self.pick(True, False):
            weights = self.unary("softmax", self.unary("mask_fill", scores, keep=mask))
        else:                                       # linear attention
            weights = self.add(op="multiply", **{"in": [scores, self.unary("cast", mask, to="float")]})
        return self.add(op="matmul", **{"in": [weights, v]})

    def mask(self, later=False):
        if self.pick(True, False) and not later:
            return self.add(op="causal_mask", like=self.x)
        place = self.place()
        query, key = (self.unary("rearrange", place, **{"as": f"b t -> b {axes}"}) for axes in ("t 1", "1 t"))
        if later:
            return self.add(op="less", **{"in": [query, key]})
        return self.add(op="less_equal", **{"in": [key, query]})

    def cross(self):
        self.inputs |= {"memory": "float[B, S, 8]", "memory_length": "int64[B]"}
        seen = self.pick({"length": "memory_length"}, {})
        return self.add(block="multi_head_attention", heads=2, memory=self.unary("linear", "memory", width=8), **{"in": self.x}, **seen)

    def recurrent(self):
        op = self.pick("gru", "lstm", "rnn")
        more = {}
        if self.pick(True, False):
            first = self.add(op="parameter", shape="[1, 1, 8]", init={"normal": 1})
            more["state"] = self.unary("expand", first, shape="[1, B, 8]")
            if op == "lstm":
                more["cell"] = more["state"]
        made = self.unary(op, hidden=8, **more)
        if self.pick(True, False, False):
            self.outputs[f"final{self.count}"] = f"{made}.state"
        return made

    def scan(self):
        self.blocks["cell"] = CELL
        start = self.pick(0, 0.5, None)
        if start is None:
            start = self.unary("expand", self.add(op="parameter", shape="[1, 8]", init={"normal": 1}), shape="[B, 8]")
        return self.add(scan="cell", each={"x": self.x}, carry={"h": start})

    def local(self):
        op = self.pick("conv", "delay", "cumsum")
        if op == "conv":
            more = {"kernel": self.pick(1, 2, 4), "dilation": self.pick(1, 3), "groups": self.pick(1, 4, 8)}
            return self.unary("conv1d", width=8, causal=True, **more)
        if op == "delay":
            return self.unary("delay", by=self.pick(1, 4))
        total = self.unary("cumsum", axis=1, exclusive=self.pick(True, False))
        return self.unary("tanh", total)

    def features(self):
        first = self.unary("slice", axis=2, start=2, stop=self.pick(5, 6))
        one = self.unary("rearrange", self.unary("take", axis=2, at=self.pick(0, 7)), **{"as": "b t -> b t 1"})
        index = self.add(op="constant", value=[3, 0, 3], dtype="int64")
        some = self.unary("gather", index=index, axis=2)
        return self.unary("linear", self.add(op="concat", **{"in": [first, one, some], "axis": 2}), width=8)

    def routed(self):
        self.blocks["expert"] = EXPERT
        best = self.unary("top_k", self.unary("softmax", self.unary("linear", width=3)), k=2)
        return self.add(branch=3, block="expert", route={"weights": f"{best}.values", "indices": f"{best}.indices"}, **{"in": self.x})

    def layers(self):
        self.blocks["layer"] = LAYER
        more = self.pick({}, {"share": 0}, {"pattern": [{"window": 3}, {}]})
        return self.add(repeat=3, block="layer", **{"in": self.x}, **more)

    def placed(self):
        return self.unary("embedding", self.place(), entries=LENGTH, width=8)

    def chunked(self):
        self.inputs["extra"] = "float[B, T, 3]"
        return self.unary("linear", "extra", width=8)

    def cached(self):
        kept = self.unary("cache", self.unary("linear", width=4))
        heads = {name: self.unary("rearrange", self.unary("linear", x, width=8), **{"as": "b t (h d) -> b h t d", "h": 2})
                 for name, x in (("query", self.x), ("key", kept), ("value", kept))}
        made = self.add(op="attention", causal=True, **heads)
        return self.unary("rearrange", made, **{"as": "b h t d -> b t (h d)"})

    # parts that do not

    def bidirectional(self):
        return self.add(block="multi_head_attention", heads=2, **{"in": self.x})

    def later(self):
        scores = self.add(op="einsum", **{"in": [self.x, self.x], "as": "b q d, b k d -> b q k"})
        weights = self.unary("softmax", scores, keep=self.mask(True))
        return self.add(op="matmul", **{"in": [weights, self.x]})

    def mixed(self):
        axis = self.pick(0, 1)
        op = self.pick("softmax", "flip", "l2_norm", "mean", "max", "cumsum")
        more = {"keep_axis": True} if op in ("mean", "max") else {"reverse": True} if op == "cumsum" else {}
        return self.unary(op, axis=axis, **more)

    def backwards(self):
        return self.unary(self.pick("gru", "lstm"), hidden=8, direction="backward")

    def shifted(self):
        return self.unary("slice", self.unary("pad", axis=1, after=2), axis=1, start=2)

    def blurred(self):
        return self.unary("conv1d", kernel=3, width=8, padding=1)

    # the whole

    GOOD = ("attention", "by_hand", "cross", "recurrent", "scan", "local", "features", "routed", "layers", "placed", "chunked", "cached")
    BAD = ("bidirectional", "later", "mixed", "backwards", "shifted", "blurred")

    def grow(self, parts):
        for part in parts:
            made = getattr(self, part)()
            joined = self.add(op="add", **{"in": [self.x, made]})
            self.x = self.unary(self.pick("rms_norm", "layer_norm", "tanh"), joined)

    def spec(self):
        self.graph["logits"] = {"op": "linear", "in": self.x, "weight": "v1.weight", "bias": False}
        self.outputs |= {"logits": "logits"}
        if "memory" in self.inputs:
            self.outputs["fixed"] = self.unary("linear", "memory", width=2)
        return {"nnspec": 1, "use": ["attention", "positions"], "inputs": self.inputs, "graph": self.graph, "outputs": self.outputs,
                **({"blocks": self.blocks} if self.blocks else {})}


def made(folder, seed, bad=None):
    built = Decoder(seed)
    parts = [built.pick(*Decoder.GOOD) for _ in range(built.pick(1, 2, 3, 4))]
    if bad is not None:
        parts.insert(built.random.randrange(len(parts) + 1), bad)
    built.grow([*parts, "recurrent" if bad else "local"])
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(built.spec(), sort_keys=False, width=10_000))
    return nnspec.load(path)


def draw(model, rows, rng):
    sizes = {"B": rows, "T": LENGTH, "S": MEMORY}
    arrays = {}
    for a in model.graph.root.arguments:
        shape = tuple(int(d.evaluate(sizes)) for d in a.type.shape)
        low, high = (0, MEMORY + 1) if a.name == "memory_length" else (0, 20)
        arrays[a.name] = {"int64": lambda: rng.integers(low, high, shape), "bool": lambda: rng.random(shape) < 0.7,  # noqa: B023
                          "float": lambda: rng.normal(size=shape).astype(np.float32)}[a.type.dtype]()  # noqa: B023
    return arrays


@pytest.mark.parametrize("seed", range(45))
def test_random_decoders_stream(tmp_path, seed):
    model = made(tmp_path, seed)
    form, module = model.step_form("T"), zoo.stir(model.module(seed=seed))
    step, rng = stepping.TorchStepper(form, module), np.random.default_rng(seed)
    arrays = draw(model, 3, rng)
    want = stepping.call(module, model.graph, arrays)
    for way in stepping.WAYS:
        zoo.close(step(arrays, LENGTH, way, seed), want, 2e-4, 1e-5, way)
    if seed % 3 == 0:
        model.export(tmp_path / "out", weights=module, form="step", certify="none", along="T")
        got, _ = stepping.run_decoder(decoder(tmp_path / "out", threads=1), arrays, LENGTH, stepping.WAYS[2], seed)
        zoo.close(got, want, 2e-4, 1e-5, "ONNX Runtime")


@pytest.mark.parametrize("bad", Decoder.BAD)
@pytest.mark.parametrize("seed", range(6))
def test_one_part_that_cannot_stream_is_enough(tmp_path, seed, bad):
    model = made(tmp_path, seed + 100, bad)
    with pytest.raises(Diagnostics) as found:
        model.step_form("T")
    assert all(d.code == "cannot-stream" and d.labels and d.notes for d in found.value.items)
