"""Neighbouring nodes that ONNX Runtime has one kernel for, joined: residual and norm, bias and GELU, heads and attention.

ONNX Runtime's own optimiser looks for such shapes by pattern; here the graph is known, so that they are written and stay
written. Only the `ort` targets are fused; the portable file keeps to plain operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, helper

from ...ir.dimension import Dim
from ...ir.graph import TensorType
from .builder import reads

MS = "com.microsoft"
NORMS = {"LayerNormalization": "SkipLayerNormalization", "RMSNormalization": "SkipSimplifiedLayerNormalization"}
HEADS = frozenset({"GroupQueryAttention", "MultiHeadAttention"})      # com.microsoft operators on [B, S, heads * width]


@dataclass
class Fuser:
    """The nodes of one graph in order. `types` are known for the values that ops gave; `ends` are the graph's outputs."""

    nodes: list[NodeProto | None]
    types: Mapping[str, TensorType]
    weights: Mapping[str, tuple[int, ...]]              # initializer -> shape
    ends: frozenset[str]

    def __post_init__(self) -> None:
        self.place = {o: k for k, n in enumerate(self.nodes) if n is not None for o in n.output if o}
        self.readers: dict[str, list[int]] = {}
        for k, node in enumerate(self.nodes):
            for name in reads(node) if node is not None else ():
                self.readers.setdefault(name, []).append(k)

    def maker(self, name: str, op: str) -> NodeProto | None:
        """The node of that kind that gives a value, where one does."""
        at = self.place.get(name)
        node = self.nodes[at] if at is not None else None
        return node if node is not None and node.op_type == op and node.domain == "" else None

    def alone(self, name: str) -> bool:
        """Whether a single node reads the value, and no output is it."""
        return len(self.reading(name)) == 1 and name not in self.ends

    def reading(self, name: str) -> list[NodeProto]:
        """The nodes that read a value, those that were joined since left out."""
        nodes = (self.nodes[k] for k in sorted(set(self.readers.get(name, ()))))
        return [n for n in nodes if n is not None and name in reads(n)]

    def reader(self, name: str, op: str) -> NodeProto | None:
        """The node of that kind that alone reads a value, where one does."""
        node = self.reading(name)[0] if self.alone(name) else None
        return node if node is not None and node.op_type == op else None

    def drop(self, *nodes: NodeProto) -> None:
        """Take nodes out, whose work another one does."""
        for node in nodes:
            self.nodes[self.place[node.output[0]]] = None

    def put(self, at: int, made: NodeProto) -> None:
        """Write `made` in place of the node at `at`."""
        self.nodes[at] = made
        for name in made.output:
            if name:
                self.place[name] = at
        for name in reads(made):
            self.readers.setdefault(name, []).append(at)

    def bias(self, name: str) -> tuple[NodeProto, str, str] | None:
        """A value that is only x + b with b a vector of weights as wide as x: the Add, x and b."""
        add = self.maker(name, "Add")
        if add is None or not self.alone(name):
            return None
        for x, b in ((add.input[0], add.input[1]), (add.input[1], add.input[0])):
            if len(self.weights.get(b, ())) == 1 and x not in self.weights and self.wide(x, b) and self.wide(name, b):
                return add, x, b
        return None

    def wide(self, name: str, vector: str) -> bool:
        """Whether the last axis of a value is as long as a vector; values inside of an op are as wide as their sum."""
        type = self.types.get(name)
        return type is None or type.shape[-1:] == (Dim.const(self.weights[vector][0]),)

    def stretched(self, name: str) -> bool:
        """Whether a vector of weights widens what it is added to: ONNX Runtime 1.31 joins it as a bias with the norm all the same."""
        add = self.maker(name, "Add")
        return add is not None and any(len(self.weights.get(b, ())) == 1 and not self.wide(x, b) for x, b in
                                       (add.input[:2], reversed(add.input[:2])))

    def run(self, dtype: str, target: str) -> None:
        """Join what can be joined, in order."""
        steps = any(n is not None and on_cache(n) for n in self.nodes)
        for k in range(len(self.nodes)):
            node = self.nodes[k]
            if node is None or node.domain:
                if node is not None and node.op_type in HEADS:
                    self.side_by_side(k, node)
            elif node.op_type in NORMS and (target == "ort-cuda" or node.op_type == "RMSNormalization" and steps):
                self.skip_norm(node)
            elif node.op_type == "Gelu" and (dtype == "float32" or target == "ort-cuda"):
                self.bias_gelu(k, node)
            elif node.op_type == "Attention":
                self.flat_attention(k, node)

    @property
    def left(self) -> list[NodeProto]:
        """The nodes that are left, in order."""
        return [n for n in self.nodes if n is not None]

    def skip_norm(self, norm: NodeProto) -> None:
        """norm(x + skip + bias): the sum is an output of the same kernel.

        On CUDA, since ONNX Runtime 1.31's CPU kernel takes 5 times as long as the sum and the layer norm apart; with an RMS norm 1.3 times
        as long for 128 positions, and less for the single positions that steps are made of (2 % of a token at width 128).
        """
        add = self.maker(norm.input[0], "Add")
        axis = next((a.i for a in norm.attribute if a.name == "axis"), -1)
        shapes = [self.types[i].shape if i in self.types else None for i in (add.input if add is not None else ())]
        if add is None or axis != -1 or None in shapes or shapes[0] != shapes[1] or len(shapes[0] or ()) not in (2, 3):
            return
        if any(len(self.weights.get(w, ())) != 1 for w in norm.input[1:]) or len(norm.input) < 2 or any(map(self.stretched, add.input)):
            return
        x, skip, vector = add.input[0], add.input[1], ""
        for a, b in ((x, skip), (skip, x)):
            found = self.bias(a)
            if found and not vector:
                self.drop(found[0])
                x, skip, vector = found[1], b, found[2]
        at, total = self.place[add.output[0]], add.output[0]
        kept = "" if self.alone(total) else total
        beta = [norm.input[2] if len(norm.input) > 2 else ""] if norm.op_type == "LayerNormalization" else []
        made = _node(NORMS[norm.op_type], [x, skip, norm.input[1], *beta, vector], [norm.output[0], "", "", kept], norm,
                     epsilon=next(a.f for a in norm.attribute if a.name == "epsilon"))
        self.drop(norm)
        self.put(at, made)

    def bias_gelu(self, at: int, gelu: NodeProto) -> None:
        """gelu(x + bias)."""
        found = self.bias(gelu.input[0])
        if found is None:
            return
        tanh = any(a.name == "approximate" and a.s == b"tanh" for a in gelu.attribute)
        self.drop(found[0])
        self.put(at, _node("FastGelu" if tanh else "BiasGelu", [found[1], found[2]], [gelu.output[0]], gelu))

    def flat_attention(self, at: int, node: NodeProto) -> None:
        """Heads are read from and written to [B, S, heads * width], as fused kernels want them."""
        heads = [self.types[i].shape[1].value if i in self.types else None for i in node.input[:3]]
        gate = self.gate(node.output[0])
        turned = self.reader((gate or node).output[0], "Transpose") if len([o for o in node.output if o]) == 1 else None
        merged = self.reader(turned.output[0], "Reshape") if turned is not None and _perm(turned) == [0, 2, 1, 3] else None
        flat = all(self.flat(i) for i in node.input[:3])
        if merged is None or turned is None or None in heads or not flat or heads[1] != heads[2]:
            return
        if not self.beside(turned.input[0], merged.output[0]):
            return
        sources = {i: self.flatten(i, h or 0) for i, h in dict(zip(node.input[:3], heads, strict=True)).items()}
        made = copied(node)
        made.input[:3] = [sources[i] for i in node.input[:3]]
        for name, value in (("q_num_heads", heads[0]), ("kv_num_heads", heads[1])):
            made.attribute.append(helper.make_attribute(name, value))
        self.drop(turned, merged)
        if gate is None:
            made.output[0] = merged.output[0]
        else:
            rows = self.maker(gate.input[0], "Unsqueeze")
            assert rows is not None
            self.regate(gate, rows.input[0], made.output[0], merged.output[0])
        self.put(at, made)

    def gate(self, name: str) -> NodeProto | None:
        """The Where that alone reads a value and takes it for some rows, [B 1 T 1] made from [B T 1]."""
        gate = self.reader(name, "Where")
        rows = self.maker(gate.input[0], "Unsqueeze") if gate is not None and gate.input[1] == name else None
        return gate if rows is not None else None

    def regate(self, gate: NodeProto, rows: str, value: str, out: str) -> None:
        """Let a gate take other rows and give another value."""
        made = copied(gate)
        made.input[:2] = [rows, value]
        made.output[0] = out
        at = self.place[gate.output[0]]
        self.drop(gate)
        self.put(at, made)

    def beside(self, heads: str, name: str) -> bool:
        """Whether a value is [B, S, H*d] where another is [B, H, S, d]."""
        apart, joined = (self.types[n].shape if n in self.types else () for n in (heads, name))
        return len(apart) == 4 and joined == (apart[0], apart[2], apart[1] * apart[3])

    def side_by_side(self, at: int, node: NodeProto) -> None:
        """Of operators that have heads side by side in the last axis: what took heads apart before and after them goes."""
        made = copied(node)
        for k in range(3):
            merged = self.maker(node.input[k], "Reshape")
            turned = self.maker(merged.input[0], "Transpose") if merged is not None and self.alone(node.input[k]) else None
            if merged is None or turned is None or not self.alone(turned.output[0]):
                continue
            if self.flat(turned.input[0]):
                heads = self.types[turned.input[0]].shape[1].value
                assert heads is not None, "held by the form"
                made.input[k] = self.flatten(turned.input[0], heads)
                self.drop(merged, turned)
            elif norm := self.normed(turned.input[0]):
                made.input[k] = self.norm_apart(norm, turned, merged)
        self.put(at, made)
        last = self.reader(made.output[0], "Where") or made
        apart = [last]
        for kind in ("Reshape", "Transpose", "Transpose", "Reshape"):
            found = self.reader(apart[-1].output[0], kind)
            if found is None or (kind == "Transpose" and _perm(found) != [0, 2, 1, 3]):
                return
            apart.append(found)
        if self.beside(apart[2].output[0], apart[-1].output[0]):
            self.drop(*apart[1:])
            if last is not made:
                self.regate(last, last.input[0], made.output[0], apart[-1].output[0])
            else:
                made.output[0] = apart[-1].output[0]
                self.put(at, made)

    def normed(self, name: str) -> NodeProto | None:
        """The norm of each head [B, H, S, d] of a value that is turned from [B, S, H, d], perhaps by rotary positions after it."""
        rope = self.maker(name, "RotaryEmbedding")
        inner = rope.input[0] if rope is not None else name
        norm = next((found for kind in NORMS if (found := self.maker(inner, kind))), None)
        turned = self.maker(norm.input[0], "Transpose") if norm is not None else None
        fits = turned is not None and _perm(turned) == [0, 2, 1, 3] and all(map(self.alone, (name, inner, turned.output[0])))
        return norm if fits else None

    def norm_apart(self, norm: NodeProto, turned: NodeProto, merged: NodeProto) -> str:
        """Norm heads as [B, S, H, d], and then put them side by side; returns the value. Rotary positions come after that."""
        before, rope = self.maker(norm.input[0], "Transpose"), self.maker(turned.input[0], "RotaryEmbedding")
        assert before is not None
        own, beside = copied(norm), copied(merged)
        own.input[0], beside.input[0] = before.input[0], norm.output[0]
        self.put(self.place[norm.output[0]], own)
        if rope is None:
            self.drop(before, turned)
            self.put(self.place[merged.output[0]], beside)
            return merged.output[0]
        heads = self.types[rope.output[0]].shape[1].value
        assert heads is not None, "held by the form"
        placed, first, second = copied(rope), self.place[rope.output[0]], self.place[turned.output[0]]
        beside.output[0] = placed.input[0] = turned.output[0]
        placed.attribute.append(helper.make_attribute("num_heads", heads))
        self.drop(before, merged)
        self.put(first, beside)
        self.put(second, placed)
        return rope.output[0]

    def flat(self, name: str) -> bool:
        """Whether a value [B, H, S, d] is made from [B, S, H*d], perhaps turned by rotary positions on the way."""
        if not self.alone(name):
            return False
        rope = self.maker(name, "RotaryEmbedding")
        if rope is not None:
            return self.flat(rope.input[0])
        return bool(self.parted(name))

    def parted(self, name: str) -> list[NodeProto]:
        """The nodes that take heads [B, H, S, d] apart from [B, S, H*d], the last one first; none where it is done in another way."""
        turned = self.maker(name, "Transpose")
        inner = turned.input[0] if turned is not None and _perm(turned) == [0, 2, 1, 3] else name
        split = self.maker(inner, "Unsqueeze") or (self.maker(inner, "Reshape") if inner != name else None)      # of one head, of several
        if split is None or not self.beside(name, split.input[0]):
            return []
        return [split] if turned is None else [turned, split] if self.alone(inner) else []

    def flatten(self, name: str, heads: int) -> str:
        """Take the heads out of the way to a value that `flat` found; returns the value without them."""
        rope = self.maker(name, "RotaryEmbedding")
        if rope is not None:
            at = self.place[name]
            made = copied(rope)
            made.input[0] = self.flatten(rope.input[0], heads)
            made.attribute.append(helper.make_attribute("num_heads", heads))
            self.put(at, made)
            return name
        found = self.parted(name)
        self.drop(*found)
        return found[-1].input[0]


def on_cache(node: NodeProto) -> bool:
    """Whether it is a GroupQueryAttention that writes into caches."""
    return node.op_type == "GroupQueryAttention" and len(node.input) > 3 and bool(node.input[3])


def copied(node: NodeProto) -> NodeProto:
    """A copy of a node."""
    made = NodeProto()
    made.CopyFrom(node)
    return made


def _perm(node: NodeProto) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == "perm"), [])


def _node(op: str, inputs: list[str], outputs: list[str], like: NodeProto, **attributes: float) -> NodeProto:
    while inputs and not inputs[-1]:
        inputs.pop()
    while outputs and not outputs[-1]:
        outputs.pop()
    made = helper.make_node(op, inputs, outputs, name=like.name, domain=MS)
    made.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    made.metadata_props.extend(like.metadata_props)
    return made
