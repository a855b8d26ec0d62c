"""Where a token stands: sinusoidal tables, ALiBi, T5's relative buckets. Angles are float32."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import Op, OpFault, Types, attribute, tensor
from .patterns import reshape
from .shapes import check_dtypes


def rounded(x: float) -> float:
    """`x` in float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def frequencies(width: int, base: float) -> list[float]:
    """base^(-2i / width) for i < width / 2, each step rounded as float32 arithmetic does (the sources emitted here do)."""
    return [rounded(1 / rounded(base ** rounded(2 * i / width))) for i in range(width // 2)]


def torch_frequencies(t: Any, width: int, base: float, device: Any) -> Any:
    return 1.0 / float(base) ** (t.torch.arange(0, width, 2, device=device).float() / width)


def onnx_angles(g: Any, positions: Any, table: Any) -> Any:
    """float32 [*b, w/2]: position times frequency."""
    return g.op("Mul", g.op("Unsqueeze", g.cast(positions, "float32", "int64"), g.ints(-1)), table)


@dataclass(frozen=True)
class Sinusoidal(Op):
    """sin and cos of position x base^(-2i / width) (Vaswani et al. 2017, section 3.5).

    The paper interleaves them, sin first; tensor2tensor puts all sines before all cosines (`layout: halves`) and spaces the
    frequencies over width / 2 - 1 steps (`spacing: tensor2tensor`), so that the last one is exactly 1 / base.
    """

    name = "sinusoidal"
    signature = "in: int64[*b] -> float[*b w]"

    width: int = attribute("int", doc="size of the new last axis; even")
    layout: str = attribute("interleaved|halves", "interleaved", "sin and cos in turn, or all sines first")
    spacing: str = attribute("paper|tensor2tensor", "paper", "how the frequencies are spaced")
    base: float = attribute("float", 10000.0, "ratio of the longest to the shortest wavelength")

    def known(self) -> dict[str, Dim | int]:
        return {"w": self.width}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        check_even("width", self.width)
        check_base("base", self.base)
        return super().infer(inputs)

    @property
    def _step(self) -> float:
        return -math.log(self.base) / max(self.width // 2 - 1, 1)

    def torch(self, t: Any, **ports: Any) -> Any:
        x = ports["in"]
        if self.spacing == "paper":
            table = torch_frequencies(t, self.width, self.base, x.device)
        else:
            table = t.torch.exp(t.torch.arange(self.width // 2, device=x.device).float() * self._step)
        angle = t.let("angle", x.unsqueeze(-1).float() * t.let("frequency", table))
        pair = [angle.sin(), angle.cos()]
        both = t.torch.cat(pair, dim=-1) if self.layout == "halves" else t.torch.stack(pair, dim=-1).flatten(-2)
        return both.to(t.dtype)

    def onnx(self, g: Any, **ports: Any) -> Any:
        half, step = self.width // 2, rounded(self._step)
        spaced = [math.exp(rounded(i * step)) for i in range(half)]
        table = frequencies(self.width, self.base) if self.spacing == "paper" else spaced
        angle = onnx_angles(g, ports["in"], g.const(table, "float32"))
        pair = [g.op("Sin", angle), g.op("Cos", angle)]
        if self.layout == "halves":
            return g.from_f32(g.op("Concat", *pair, axis=-1))
        shape = tensor(g.inputs, "in").shape
        both = g.op("Concat", *(g.op("Unsqueeze", x, g.ints(-1)) for x in pair), axis=-1)
        return g.from_f32(reshape(g, both, (*shape, Dim.const(half), Dim.const(2)), (*shape, Dim.const(self.width))))


def check_even(name: str, width: int) -> None:
    if width < 2 or width % 2:
        raise OpFault("bad-attribute", f"`{name}` is even and at least 2, not {width}: angles come in pairs", attribute=name)


def check_base(name: str, base: float) -> None:
    if not (math.isfinite(base) and base > 0):
        raise OpFault("bad-attribute", f"`{name}` is a positive number, not {base}", attribute=name)


def slopes(heads: int) -> list[float]:
    """ALiBi's slope of every head, in the order of the authors' code: 2^(-8i/n) for the largest power of two n <= heads,
    then every other slope of the series for 2n."""
    n = 1 << (heads.bit_length() - 1)
    return [2 ** (-8 * i / n) for i in range(1, n + 1)] + [2 ** (-4 * i / n) for i in range(1, 2 * (heads - n), 2)]


ALIBI_SLOPES = '''
def alibi_slopes(heads, device):
    """Slopes of ALiBi in float32, [heads]; unsorted when heads is no power of two, as the authors have them."""
    n = 1 << (heads.bit_length() - 1)
    steps = [torch.arange(1, n + 1, device=device), torch.arange(1, 2 * (heads - n) + 1, 2, device=device) / 2]
    return torch.exp2(torch.cat(steps) * (-8 / n))
'''


@dataclass(frozen=True)
class AlibiSlopes(Op):
    """The slopes of ALiBi (Press et al. 2022, arXiv:2108.12409, and the authors' code for heads that are no power of two)."""

    name = "alibi_slopes"
    signature = "-> float[h]"

    heads: int = attribute("int", doc="number of attention heads")

    def known(self) -> dict[str, Dim | int]:
        return {"h": self.heads}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        if self.heads < 1:
            raise OpFault("bad-attribute", f"`heads` is at least 1, not {self.heads}", attribute="heads")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.helper(ALIBI_SLOPES)(self.heads, t.device).to(t.dtype)

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.const(slopes(self.heads), "float")


@dataclass(frozen=True)
class Alibi(AlibiSlopes):
    """ALiBi's score bias (Press et al. 2022, arXiv:2108.12409): -slope x |query position - key position|. Under a causal mask
    that is the paper's slope x (key - query)."""

    name = "alibi"
    signature = "query: int64[*b t]; key: int64[*b s] -> float[*b h t s]"
    loops = frozenset("ts")

    def torch(self, t: Any, **ports: Any) -> Any:
        query, key = ports["query"], ports["key"]
        distance = t.let("distance", (query.unsqueeze(-1) - key.unsqueeze(-2)).abs())
        slope = t.helper(ALIBI_SLOPES)(self.heads, query.device)[:, None, None]
        return (-slope * distance.unsqueeze(-3)).to(t.dtype)

    def onnx(self, g: Any, **ports: Any) -> Any:
        distance = g.op("Abs", _relative(g, ports))
        far = g.op("Unsqueeze", g.cast(distance, "float32", "int64"), g.ints(-3))
        return g.from_f32(g.op("Mul", far, g.const([[[-s]] for s in slopes(self.heads)], "float32")))


def _relative(g: Any, ports: dict[str, Any]) -> Any:
    """int64 [*b, T, S]: key position - query position."""
    return g.op("Sub", g.op("Unsqueeze", ports["key"], g.ints(-2)), g.op("Unsqueeze", ports["query"], g.ints(-1)))


@dataclass(frozen=True)
class RelativeBucket(Op):
    """Bucket of key position - query position (T5, Raffel et al. 2020, arXiv:1910.10683): one bucket a distance up to half of
    them, then logarithmic up to `max_distance`. `both_ways` gives half of the buckets to keys after the query; without it
    they all share bucket 0. The distances where buckets begin are integers found exactly, so no rounding moves one.
    """

    name = "relative_bucket"
    signature = "query: int64[*b t]; key: int64[*b s] -> int64[*b t s]"
    loops = frozenset("ts")

    buckets: int = attribute("int", 32, "number of buckets")
    max_distance: int = attribute("int", 128, "distance from which on all share the last bucket")
    both_ways: bool = attribute("bool", True, "whether keys after the query have buckets of their own")

    @property
    def side(self) -> int:
        """Buckets of one direction."""
        return self.buckets // 2 if self.both_ways else self.buckets

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        if self.side < 2 or (self.both_ways and self.buckets % 2):
            raise OpFault("bad-attribute", "`buckets` is even and at least 4, or at least 2 one way", attribute="buckets")
        if self.max_distance <= self.side // 2:
            raise OpFault("bad-attribute", f"`max_distance` is beyond the {self.side // 2} distances with a bucket each",
                          attribute="max_distance")
        return super().infer(inputs)

    def starts(self) -> list[int]:
        """The smallest distance of bucket 1, 2, ...: n with exact + floor(log(n / exact) / log(max / exact) x logs) >= bucket."""
        exact, far = self.side // 2, self.max_distance
        logs = self.side - exact
        reached = lambda j: lambda n: n**logs * exact**j >= exact**logs * far**j  # noqa: E731
        wide = range(exact, far + 1)
        return [*range(1, exact + 1), *(wide[bisect_left(wide, True, key=reached(j))] for j in range(1, logs))]

    def torch(self, t: Any, **ports: Any) -> Any:
        query, key = ports["query"], ports["key"]
        relative = t.let("relative", key.unsqueeze(-2) - query.unsqueeze(-1))
        starts = t.let("starts", t.torch.tensor(self.starts(), device=query.device))
        if self.both_ways:
            return t.torch.bucketize(relative.abs(), starts, right=True) + (relative > 0) * self.side
        return t.torch.bucketize((-relative).clamp(min=0), starts, right=True)

    def onnx(self, g: Any, **ports: Any) -> Any:
        starts, far = self.starts(), self.max_distance
        bucket = lambda n: sum(s <= n for s in starts)  # noqa: E731
        low, high = g.const(-far, "int64"), g.const(far if self.both_ways else 0, "int64")
        near = g.op("Clip", _relative(g, ports), low, high)
        after = [self.side + bucket(n) for n in range(1, far + 1)] if self.both_ways else []
        table = [bucket(-n) for n in range(-far, 1)] + after
        return g.op("Gather", g.const(table, "int64"), g.op("Add", near, g.const(far, "int64")), axis=0)


OPS = (Sinusoidal, AlibiSlopes, Alibi, RelativeBucket)
