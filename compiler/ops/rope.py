"""Rotary embedding: the op that turns pairs of entries by position x frequency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import ALL_TARGETS, Form, Op, OpFault, Site, Types, attribute, tensor
from .patterns import reshape
from .positions import onnx_angles
from .shapes import check_dtypes

ROTATE_HALVES = '''
def rotate_halves(x, cos, sin):
    """Turn the pairs (x[i], x[i + d/2]) of the last axis; cos and sin are [..., d/2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
'''

ROTATE_INTERLEAVED = '''
def rotate_interleaved(x, cos, sin):
    """Turn the pairs (x[2i], x[2i + 1]) of the last axis; cos and sin are [..., d/2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
'''


@dataclass(frozen=True)
class Rope(Op):
    """Rotary embedding (Su et al. 2021, arXiv:2104.09864): pair i of the last axis is turned by position x frequency i.

    `layout: halves` pairs entry i with i + f, f being the number of frequencies (GPT-NeoX, LLaMA in transformers);
    `interleaved` pairs neighbours (the paper, GPT-J). The first 2f entries turn, the others stay. `frequencies` are those of
    `rope_frequencies` and the like, [f], or [B, f] where they depend on the row; floats that are learned are legal too.
    """

    name = "rope"
    signature = "in: float[b h s d]; positions: int64[*p s]; frequencies: [*q f] -> float[b h s d]"
    loops = frozenset("bhs")

    layout: str = attribute("halves|interleaved", "halves", "which entries form a pair")
    factor: float = attribute("float", 1.0, "multiplies the result, and so scores by its square (YaRN, LongRoPE)")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        _, bound = self.bind(inputs)
        at, table = tensor(inputs, "positions"), tensor(inputs, "frequencies")
        if bound.stars["p"] not in ((), (bound["b"],)):
            raise OpFault("shape-mismatch", "`rope` takes positions [S] or [B, S]",
                          ports={"positions": f"is {at}", "in": f"is {tensor(inputs, 'in')}"})
        if bound.stars["q"] not in ((), bound.stars["p"]):
            raise OpFault("shape-mismatch", "`rope` takes the same frequencies for all rows, or those of every row",
                          ports={"frequencies": f"is {table}", "positions": f"is {at}"})
        if table.dtype not in ("float", "float32"):
            raise OpFault("dtype-mismatch", f"`rope` takes frequencies that are floats, not {table.dtype}",
                          ports={"frequencies": f"this is {table.dtype}"}, help="`rope_frequencies` makes them")
        if not math.isfinite(self.factor):
            raise OpFault("bad-attribute", f"`factor` is a finite number, not {self.factor}", attribute="factor")
        pairs, full = bound["f"].value, bound["d"].value
        if pairs is None or full is None:
            port = "in" if full is None else "frequencies"
            raise OpFault("shape-mismatch", "`rope` needs a last axis of known size",
                          ports={port: f"its last axis is {bound['d' if full is None else 'f']}"})
        if not 1 <= pairs <= full // 2:
            raise OpFault("shape-mismatch", f"`rope` turns one pair of entries a frequency: {2 * pairs} entries for {pairs}",
                          ports={"frequencies": f"has {pairs}", "in": f"its last axis is {full}"})
        return (tensor(inputs, "in"),)

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        rows = [port for port in ("positions", "frequencies") if len(tensor(inputs, port).shape) == 2]
        found = super().follow(inputs, outputs, axis, output)
        return found if found is None or axis else found | dict.fromkeys(rows, 0)

    def turned(self, inputs: Types) -> int:
        """How many entries turn."""
        pairs = tensor(inputs, "frequencies").shape[-1].value
        assert pairs is not None
        return 2 * pairs

    def torch(self, t: Any, **ports: Any) -> Any:
        x, table, width = ports["in"], ports["frequencies"], self.turned(t.inputs)
        given = tensor(t.inputs, "frequencies")
        table = table.float() if given.dtype == "float" else table
        angle = ports["positions"].unsqueeze(-1).float() * (table if len(given.shape) == 1 else table.unsqueeze(-2))
        if len(tensor(t.inputs, "positions").shape) == 2:
            angle = angle.unsqueeze(1)                       # [B, 1, S, f]
        angle = t.let("angle", angle)
        turn = t.helper(ROTATE_HALVES if self.layout == "halves" else ROTATE_INTERLEAVED)
        waves = (f if self.factor == 1 else f * self.factor for f in (angle.cos(), angle.sin()))
        cos, sin = (f.to(x.dtype) for f in waves)
        if tensor(t.inputs, "in").shape[-1] == width:
            return turn(x, cos, sin)
        return t.torch.cat([turn(x[..., :width], cos, sin), x[..., width:]], dim=-1)

    def tables(self, g: Any, ports: dict[str, Any]) -> tuple[Any, Any]:
        """cos and sin in the model's dtype, [*p, S, f], made once for all that turn by the same positions and frequencies."""
        positions, table, given = ports["positions"], ports["frequencies"], tensor(g.inputs, "frequencies")
        key = ("rope", positions.name, table.name, self.factor)

        def angle() -> Any:
            rows = g.cast(table, "float32", given.dtype)
            rows = rows if len(given.shape) == 1 else g.op("Unsqueeze", rows, g.ints(-2))
            return onnx_angles(g, positions, rows)

        def wave(f: str) -> Any:
            made = g.op(f, g.once((*key, "angle"), angle))
            made = g.from_f32(made if self.factor == 1 else g.op("Mul", made, g.number(self.factor, "float32")))
            g.note_wave(made, f, positions, table, self.factor)
            return made

        return g.once((*key, "Cos"), lambda: wave("Cos")), g.once((*key, "Sin"), lambda: wave("Sin"))

    def fused(self, g: Any, **ports: Any) -> Any:
        """RotaryEmbedding-23 with tables [B, S, w/2], so that no maximum length is needed."""
        b, _, s, d = tensor(g.inputs, "in").shape
        cos, sin = self.tables(g, ports)
        if len(tensor(g.inputs, "positions").shape) == 1:
            cos, sin = (g.once(("rope", x.name, b), lambda x=x: g.op("Expand", x, g.shape((b, 1, 1)))) for x in (cos, sin))
        width = self.turned(g.inputs)
        return g.op("RotaryEmbedding", ports["in"], cos, sin, interleaved=self.layout == "interleaved",
                    rotary_embedding_dim=width if d != width else None)

    def decomposed(self, g: Any, **ports: Any) -> Any:
        x, shape, width = ports["in"], tensor(g.inputs, "in").shape, self.turned(g.inputs)
        cos, sin = self.tables(g, ports)
        if len(tensor(g.inputs, "positions").shape) == 2:
            cos, sin = (g.once(("rope", v.name, 1), lambda v=v: g.op("Unsqueeze", v, g.ints(1))) for v in (cos, sin))
        rest = []
        if shape[-1] != width:
            x, *rest = g.op("Split", x, g.shape((width, shape[-1] - width)), outputs=2, axis=-1)
        pairs = (*shape[:-1], Dim.const(width // 2), Dim.const(2))
        if self.layout == "interleaved":
            x = reshape(g, x, (*shape[:-1], Dim.const(width)), pairs)
            a, b = (g.op("Gather", x, g.scalar(i), axis=-1) for i in (0, 1))
        else:
            a, b = g.op("Split", x, outputs=2, axis=-1, num_outputs=2)
        first = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
        second = g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin))
        if self.layout == "interleaved":
            both = g.op("Concat", *(g.op("Unsqueeze", v, g.ints(-1)) for v in (first, second)), axis=-1)
            out = reshape(g, both, pairs, (*shape[:-1], Dim.const(width)))
            return g.op("Concat", out, *rest, axis=-1) if rest else out
        return g.op("Concat", first, second, *rest, axis=-1)

    def forms(self) -> tuple[Form, ...]:
        def legal(op: Rope, site: Site) -> str | None:
            return None

        ort = frozenset({"ort-cuda", "ort-cpu"})
        return Form("RotaryEmbedding", ort, legal, Rope.fused), Form("decomposed", ALL_TARGETS, legal, Rope.decomposed, fused=False)


OPS = (Rope,)
