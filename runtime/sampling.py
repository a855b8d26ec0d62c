"""How the next token is chosen from scores: the processors and warpers of `transformers`, by their definitions and in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .errors import ArtifactError, check, suggest

BLOCK = 256


@dataclass(frozen=True)
class Settings:
    """How to generate. Defaults are greedy.

    `max_new_tokens` None is as many as the model's bound leaves room for. `stop` are ids, one or several, that end a row, which keeps
    them. Sampling is on when any of `temperature` (0 is greedy), `top_k` (0 is all; Fan et al. 2018, arXiv:1805.04833), `top_p` (Holtzman
    et al. 2019, arXiv:1904.09751) or `min_p` (Nguyen et al. 2024, arXiv:2407.01082) is given. `seed` is one for every row or one each; with
    the prompt it tells a row's tokens, whatever the other rows are: rows of one prompt need seeds of their own to differ.
    `repetition_penalty` divides positive scores of tokens that the row has, and multiplies negative ones (Keskar et al. 2019,
    arXiv:1909.05858). `min_new_tokens` bars `stop` before. `suppress` are ids that never come, `begin_suppress` ids that do not come first.
    `decoder_start` is put before the ids of each row; `forced_bos` follows a prompt of one token, `forced_eos` is the last token of a row
    that reaches `max_new_tokens`. `beams` > 1 is beam search: a hypothesis scores the sum of its log-probabilities over its new length to
    the power `length_penalty`; `early_stopping` True stops when as many as beams have ended, False when no running one looks better at
    its length now, "never" when none can be.
    """

    max_new_tokens: int | None = None
    stop: int | Sequence[int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    suppress: Sequence[int] = ()
    begin_suppress: Sequence[int] = ()
    decoder_start: int | None = None
    forced_bos: int | None = None
    forced_eos: int | None = None
    seed: int | Sequence[int] | None = None
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """Settings by name. Raises `ArtifactErrors` (code `bad-inputs`) for names that there are not."""
        known = [f.name for f in fields(cls)]
        check([ArtifactError("bad-inputs", f"generation has no setting `{name}`", helps=suggest(name, known, "settings"))
               for name in given if name not in known])
        return cls(**given)

    @property
    def stops(self) -> list[int]:
        return _many(self.stop)

    @property
    def sampled(self) -> bool:
        return self.temperature != 0 and any(x is not None for x in (self.temperature, self.top_k, self.top_p, self.min_p))

    @property
    def plain(self) -> bool:
        """Whether the scores are taken as they are."""
        return self.repetition_penalty == 1 and not (self.min_new_tokens and self.stops) and self.forced_bos is None \
            and self.forced_eos is None and not _many(self.suppress) and not _many(self.begin_suppress)

    def problems(self, vocabulary: int, rows: int) -> list[ArtifactError]:
        """What is wrong with the settings, for scores of this many tokens and a batch of rows."""
        found = []
        for name, legal, told in RANGES:
            value = getattr(self, name)
            if value is not None and not (_number(value) and legal(value)):
                found.append(f"`{name}` is {value!r}, expected {told}")
        ids = [(n, getattr(self, n)) for n in ("decoder_start", "forced_bos", "forced_eos") if getattr(self, n) is not None]
        ids += [(n, i) for n in ("stop", "suppress", "begin_suppress") for i in _many(getattr(self, n))]
        found += [f"`{name}` has the id {i!r}, and ids lie in [0, {vocabulary})" for name, i in ids
                  if not (_whole(i) and 0 <= i < vocabulary)]
        if self.early_stopping not in (True, False, "never"):
            found.append(f"`early_stopping` is {self.early_stopping!r}, expected true, false or \"never\"")
        seeds = _many(self.seed)
        if np.asarray(self.seed).ndim and len(seeds) != rows:
            found.append(f"`seed` has {len(seeds)} entries, and the batch {rows} rows")
        found += [f"`seed` is {s!r}, expected whole numbers from 0" for s in seeds if not (_whole(s) and s >= 0)]
        barred = {*_many(self.suppress)}
        found += [f"`{n}` is {getattr(self, n)}, which `suppress` bars" for n in ("forced_bos", "forced_eos") if getattr(self, n) in barred]
        if not found and len(barred.union(_many(self.begin_suppress), self.stops if self.min_new_tokens else ())) >= vocabulary:
            found.append("no token is left to choose: `suppress`, `begin_suppress`, and `stop` before `min_new_tokens`, bar all of them")
        if self.beams > 1 and self.sampled:
            found.append("beam search does not sample: give `beams`, or `temperature`, `top_k`, `top_p`, `min_p`")
        return [ArtifactError("bad-inputs", x) for x in found]


Check = Callable[[Any], bool]
RANGES: tuple[tuple[str, Check, str], ...] = (
    ("max_new_tokens", lambda v: _whole(v) and v >= 1, "a whole number from 1"),
    ("min_new_tokens", lambda v: _whole(v) and v >= 0, "a whole number from 0"),
    ("temperature", lambda v: 0 <= v < np.inf, "a finite number from 0"),
    ("top_k", lambda v: _whole(v) and v >= 0, "a whole number from 0"),
    ("top_p", lambda v: 0 < v <= 1, "a number above 0, up to 1"),
    ("min_p", lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    ("repetition_penalty", lambda v: 0 < v < np.inf, "a finite number above 0"),
    ("beams", lambda v: _whole(v) and v >= 1, "a whole number from 1"),
    ("length_penalty", lambda v: abs(v) < np.inf, "a finite number"),
)


class Processors:
    """What changes the scores before a token is chosen, in the order of `transformers`: repetition, least length, forced tokens,
    suppressed ones. `lengths` int64 [R] are those of the prompts."""

    def __init__(self, settings: Settings, lengths: np.ndarray, vocabulary: int, most: int):
        self.settings, self.vocabulary, self.most = settings, vocabulary, most
        self.first_is_forced = (lengths == 1) & (settings.forced_bos is not None)

    def __call__(self, scores: np.ndarray, seen: np.ndarray, new: int) -> np.ndarray:
        """Scores float32 [R, V] of rows that have `new` new tokens; `seen` bool [R, V] are the tokens that each row has."""
        s = self.settings
        scores = scores.astype(np.float32)
        if s.repetition_penalty != 1:
            penalty = np.float32(s.repetition_penalty)
            found = np.nonzero(seen)
            part = scores[found]
            scores[found] = np.where(part < 0, part * penalty, part / penalty)
        if new < s.min_new_tokens and s.stops:
            scores[:, s.stops] = -np.inf
        if s.forced_bos is not None and new == 0:
            self._force(scores, self.first_is_forced, s.forced_bos)
        if s.forced_eos is not None and new == self.most - 1:
            self._force(scores, slice(None), s.forced_eos)
        scores[:, _many(s.suppress)] = -np.inf
        if new < 2:
            scores[np.ix_(np.flatnonzero(self.first_is_forced == new), _many(s.begin_suppress))] = -np.inf
        return scores

    def _force(self, scores: np.ndarray, rows: np.ndarray | slice, token: int) -> None:
        scores[rows] = -np.inf
        scores[rows, token] = 0


def candidates(scores: np.ndarray, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """What may be drawn from scores float32 [V]: ids int64 [n] in order, and their probabilities float32 [n].

    Temperature, top-k, top-p and min-p in this order; each sets a least score, and equal scores at it all stay.
    """
    if settings.temperature is not None and settings.temperature != 1:
        with np.errstate(over="ignore"):        # what is far below the largest is out of reach
            scores = (scores - scores.max()) / max(np.float32(settings.temperature), np.finfo(np.float32).tiny)
    least = np.float32(np.finfo(np.float32).min)
    if settings.top_k and settings.top_k < len(scores):
        least = max(least, np.partition(scores, len(scores) - settings.top_k)[len(scores) - settings.top_k])
    if settings.top_p is not None and settings.top_p < 1:
        held = np.sort(scores[scores >= least])
        least = held[min(_reached(_softmax(held), 1 - settings.top_p), len(held) - 1)]
    if settings.min_p:
        least = max(least, np.float32(scores.max() + np.log(settings.min_p)))
    ids = np.flatnonzero(scores >= least)
    return ids, _softmax(scores if len(ids) == len(scores) else scores[ids])


def draw(scores: np.ndarray, settings: Settings, random: np.random.Generator) -> int:
    """One token by the inverse of the cumulated probabilities: one random number a token."""
    ids, probabilities = candidates(scores, settings)
    return int(ids[min(_reached(probabilities, random.random()), len(ids) - 1)])


def _reached(parts: np.ndarray, share: float) -> int:
    """How many of the parts, which sum to 1, sum to no more than `share`: sums of blocks first, then inside one."""
    starts = np.arange(0, len(parts), BLOCK)
    sums = np.add.reduceat(parts, starts).astype(np.float64).cumsum()
    block = int(np.searchsorted(sums, share * sums[-1], side="right"))
    if block == len(sums):
        return len(parts)
    inside = parts[block * BLOCK:(block + 1) * BLOCK].astype(np.float64).cumsum() + (sums[block - 1] if block else 0.0)
    return block * BLOCK + int(np.searchsorted(inside, share * sums[-1], side="right"))


def generators(seed: int | Sequence[int] | None, prompts: Sequence[np.ndarray]) -> list[np.random.Generator]:
    """One for each row, of its seed and prompt, or of the machine's entropy."""
    seeds = [seed] * len(prompts) if seed is None or _whole(seed) else _many(seed)
    return [np.random.default_rng(None if s is None else [int(s), *ids.tolist()]) for s, ids in zip(seeds, prompts, strict=True)]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Float32 along the last axis."""
    with np.errstate(invalid="ignore"):           # infinite scores give NaN, which is told
        shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _softmax(scores: np.ndarray) -> np.ndarray:
    part = np.exp(scores - scores.max())
    return part / part.sum()


def _many(value: Any) -> list[Any]:
    """None, one, or several as a list."""
    return [] if value is None else [value] if np.ndim(value) == 0 else list(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
