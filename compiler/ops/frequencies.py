"""Frequencies of rotary embedding, and how public models stretch them to longer contexts.

They are float32 in a model of any dtype (their type is `float32`, not `float`): one rounded to float16 is off by as much as a
radian at position 4096. Where no input decides them they are constants of the ONNX file. Each step is rounded as float32
arithmetic does, so that the constants are those that the emitted PyTorch source computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import Op, OpFault, Types, attribute
from .positions import check_base, check_even, frequencies, rounded, torch_frequencies
from .shapes import check_dtypes


@dataclass(frozen=True, kw_only=True)
class RopeFrequencies(Op):
    """Frequencies of rotary embedding, theta^(-2i / width) (Su et al. 2021, arXiv:2104.09864), divided by `factor`: position
    interpolation (Chen et al. 2023, arXiv:2306.15595), which is as if every position were divided by it."""

    name = "rope_frequencies"
    signature = "-> float32[f]"

    width: int = attribute("int", doc="how many entries of a head turn; even")
    theta: float = attribute("float", 10000.0, "base of the frequencies")
    factor: float = attribute("float", 1.0, "divides all frequencies")

    def known(self) -> dict[str, Dim | int]:
        return {"f": self.width // 2}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        check_even("width", self.width)
        check_base("theta", self.theta)
        check_base("factor", self.factor)
        return super().infer(inputs)

    def table(self) -> list[float]:
        """The frequencies, where no input decides them."""
        plain = frequencies(self.width, self.theta)
        return plain if self.factor == 1 else [rounded(f / rounded(self.factor)) for f in plain]

    def torch(self, t: Any, **ports: Any) -> Any:
        plain = torch_frequencies(t, self.width, self.theta, t.device)
        return plain if self.factor == 1 else plain / self.factor

    def onnx(self, g: Any, **ports: Any) -> Any:
        return g.const(self.table(), "float32")


YARN = '''
def yarn_frequencies(width, theta, factor, low, high, device):
    """float32 [width / 2]: plain frequencies up to pair `low`, divided by `factor` from pair `high` on."""
    waves = theta ** (torch.arange(0, width, 2, device=device).float() / width)
    kept = 1 - ((torch.arange(width // 2, device=device).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (factor * waves) * (1 - kept) + 1.0 / waves * kept
'''


@dataclass(frozen=True, kw_only=True)
class YarnFrequencies(RopeFrequencies):
    """Frequencies of YaRN (Peng et al. 2023, arXiv:2309.00071, section 3.2, "NTK-by-parts", and the authors' code): a pair that
    turns more than `beta_fast` times within the `original` positions keeps its frequency, one that turns less than `beta_slow`
    times has it divided by `factor`, and those between are mixed linearly in the number of the pair."""

    name = "yarn_frequencies"

    original: int = attribute("int", doc="number of positions before the scaling")
    beta_fast: float = attribute("float", 32.0, "turns from which on a pair is kept")
    beta_slow: float = attribute("float", 1.0, "turns up to which a pair is scaled")
    truncate: bool = attribute("bool", True, "round the ends of the mixed range outwards to whole pairs")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        _check_original(self.original)
        _check_order(self.beta_slow, self.beta_fast, "beta_slow", "beta_fast")
        if self.theta == 1:
            raise OpFault("bad-attribute", "`theta` is not 1: all pairs would turn alike", attribute="theta")
        return super().infer(inputs)

    def ends(self) -> tuple[float, float]:
        """The pairs between which frequencies are mixed."""
        pair = lambda turns: self.width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))  # noqa: E731
        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.width - 1)
        return low, high + 0.001 if low == high else high    # the authors' guard against a range of no length

    def table(self) -> list[float]:
        low, high = self.ends()
        factor, low, span = rounded(self.factor), rounded(low), rounded(high - low)
        found = []
        for i, wave in enumerate(_waves(self.width, self.theta)):
            kept = rounded(1 - min(max(rounded(rounded(i - low) / span), 0.0), 1.0))
            scaled = rounded(rounded(1 / rounded(factor * wave)) * rounded(1 - kept))
            found.append(rounded(scaled + rounded(rounded(1 / wave) * kept)))
        return found

    def torch(self, t: Any, **ports: Any) -> Any:
        low, high = self.ends()
        return t.helper(YARN)(self.width, self.theta, self.factor, low, high, t.device)


LLAMA3 = '''
def llama3_frequencies(width, theta, factor, low, high, original, device):
    """float32 [width / 2]: plain where a pair turns `high` times in `original` positions, / factor where `low`."""
    plain = 1.0 / theta ** (torch.arange(0, width, 2, device=device).float() / width)
    kept = ((original / (2 * torch.pi / plain) - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / factor + kept * plain
'''


@dataclass(frozen=True, kw_only=True)
class Llama3Frequencies(RopeFrequencies):
    """Frequencies of Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783, and its reference code): a pair that turns more than
    `high` times within the `original` positions keeps its frequency, one that turns less than `low` times has it divided by
    `factor`, and those between are mixed linearly in the number of turns."""

    name = "llama3_frequencies"

    original: int = attribute("int", doc="number of positions before the scaling")
    low: float = attribute("float", 1.0, "turns up to which a pair is scaled")
    high: float = attribute("float", 4.0, "turns from which on a pair is kept")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        _check_original(self.original)
        _check_order(self.low, self.high, "low", "high")
        return super().infer(inputs)

    def table(self) -> list[float]:
        factor, low, span, circle = (rounded(x) for x in (self.factor, self.low, self.high - self.low, 2 * math.pi))
        found = []
        for plain in frequencies(self.width, self.theta):
            turns = rounded(self.original / rounded(circle / plain))
            kept = min(max(rounded(rounded(turns - low) / span), 0.0), 1.0)
            found.append(rounded(rounded(rounded(rounded(1 - kept) * plain) / factor) + rounded(kept * plain)))
        return found

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.helper(LLAMA3)(self.width, self.theta, self.factor, self.low, self.high, self.original, t.device)


DYNAMIC = '''
def dynamic_frequencies(positions, width, theta, factor, original):
    """float32 [..., width / 2]: theta grows with the length of each row of positions [..., S]."""
    length = (positions.amax(-1, keepdim=True) + 1).clamp(min=original).float()
    base = theta * (factor * length / original - (factor - 1)) ** (width / (width - 2))
    return 1.0 / base ** (torch.arange(0, width, 2, device=positions.device).float() / width)
'''


@dataclass(frozen=True, kw_only=True)
class DynamicFrequencies(RopeFrequencies):
    """Frequencies of dynamic NTK scaling (Peng et al. 2023, arXiv:2309.00071, section 3.3 and appendix A.2): in a row of L
    tokens, L > `original`, theta grows by (factor L / original - (factor - 1))^(width / (width - 2)). L is the row's largest
    position + 1, so that a row does not depend on what else is in its batch."""

    name = "dynamic_frequencies"
    signature = "positions: int64[*p s] -> float32[*p f]"

    original: int = attribute("int", doc="number of positions before the scaling")

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        _check_original(self.original)
        found = super().infer(inputs)
        if self.width < 4:
            raise OpFault("bad-attribute", "`width` is at least 4: the first pair's frequency never changes", attribute="width")
        return found

    def torch(self, t: Any, **ports: Any) -> Any:
        return t.helper(DYNAMIC)(ports["positions"], self.width, self.theta, self.factor, self.original)

    def onnx(self, g: Any, **ports: Any) -> Any:
        def make() -> Any:
            most = g.number(self.original, "float32")
            length = g.op("Max", g.op("Add", _last(g, ports["positions"]), g.number(1, "float32")), most)
            longer = g.op("Div", g.op("Mul", length, g.number(self.factor, "float32")), most)
            grown = g.op("Pow", g.op("Sub", longer, g.number(self.factor - 1, "float32")),
                         g.number(self.width / (self.width - 2), "float32"))
            base = g.op("Mul", grown, g.number(self.theta, "float32"))
            return g.op("Reciprocal", g.op("Pow", base, g.const(_steps(self.width), "float32")))

        return g.once((self, ports["positions"].name), make)


LONGROPE = '''
def longrope_frequencies(positions, width, theta, short, long, original):
    """float32 [..., width / 2]: divided by `long` for rows of positions [..., S] beyond `original`."""
    longer = positions.amax(-1, keepdim=True) >= original
    factors = torch.where(longer, *(torch.tensor(x, dtype=torch.float32, device=longer.device) for x in (long, short)))
    return 1.0 / (factors * theta ** (torch.arange(0, width, 2, device=longer.device).float() / width))
'''


@dataclass(frozen=True, kw_only=True)
class LongropeFrequencies(Op):
    """Frequencies of LongRoPE (Ding et al. 2024, arXiv:2402.13753, and Phi-3's code): each is divided by its own number, from
    `long` in a row of more than `original` tokens, else from `short`. A row has as many tokens as its largest position + 1."""

    name = "longrope_frequencies"
    signature = "positions: int64[*p s] -> float32[*p f]"

    short: tuple[float, ...] = attribute("numbers", doc="what divides each frequency of short rows")
    long: tuple[float, ...] = attribute("numbers", doc="what divides each frequency of long rows")
    original: int = attribute("int", doc="number of positions before the scaling")
    theta: float = attribute("float", 10000.0, "base of the frequencies")

    @property
    def width(self) -> int:
        """How many entries of a head turn."""
        return 2 * len(self.short)

    def known(self) -> dict[str, Dim | int]:
        return {"f": len(self.short)}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        check_dtypes(self, inputs)
        check_base("theta", self.theta)
        _check_original(self.original)
        for name, factors in (("short", self.short), ("long", self.long)):
            good = isinstance(factors, tuple | list) and all(isinstance(f, int | float) and f > 0 for f in factors)
            if not good or not factors:
                raise OpFault("bad-attribute", f"`{name}` is a list of positive numbers, one a pair", attribute=name)
        if len(self.short) != len(self.long):
            raise OpFault("bad-attribute", f"`long` has {len(self.long)} numbers, `short` {len(self.short)}", attribute="long",
                          help="each has one number a pair of entries that turns")
        return super().infer(inputs)

    def torch(self, t: Any, **ports: Any) -> Any:
        short, long = ([float(f) for f in x] for x in (self.short, self.long))
        return t.helper(LONGROPE)(ports["positions"], self.width, self.theta, short, long, self.original)

    def onnx(self, g: Any, **ports: Any) -> Any:
        def table(factors: Sequence[float]) -> Any:
            waves = _waves(self.width, self.theta)
            return g.const([rounded(1 / rounded(rounded(f) * w)) for f, w in zip(factors, waves, strict=True)], "float32")

        longer = lambda: g.op("GreaterOrEqual", _last(g, ports["positions"]), g.number(self.original, "float32"))  # noqa: E731
        made = lambda: g.op("Where", longer(), table(self.long), table(self.short))  # noqa: E731
        return g.once(("longrope", ports["positions"].name, tuple(self.short), tuple(self.long), self.theta, self.original), made)


def _steps(width: int) -> list[float]:
    """2i / width."""
    return [rounded(2 * i / width) for i in range(width // 2)]


def _waves(width: int, theta: float) -> list[float]:
    """theta^(2i / width)."""
    return [rounded(theta ** step) for step in _steps(width)]


def _last(g: Any, positions: Any) -> Any:
    """float32 [*p, 1]: the largest position of every row."""
    return g.op("ReduceMax", g.cast(positions, "float32", "int64"), g.ints(-1), keepdims=1)


def _check_original(original: int) -> None:
    if original < 1:
        raise OpFault("bad-attribute", f"`original` is a number of positions, not {original}", attribute="original")


def _check_order(low: float, high: float, least: str, most: str) -> None:
    if not 0 < low < high < math.inf:
        raise OpFault("bad-attribute", f"`{most}` is above `{least}`, and both are positive; they are {high} and {low}",
                      attribute=most)


OPS = (RopeFrequencies, YarnFrequencies, Llama3Frequencies, DynamicFrequencies, LongropeFrequencies)
