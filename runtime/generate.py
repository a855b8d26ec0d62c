"""Tokens out of a step model: greedy, sampled, or by beam search, for one prompt or a batch of unequal ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from .beam import Beams
from .chunks import growing, rows_first
from .convert import Unfit, convert
from .decoder import Decoder, Running
from .errors import ArtifactError, check
from .manifest import FLOATS, Input, Output
from .sampling import Processors, Settings, draw, generators, log_softmax
from .steps import NEW, NEW_LENGTH

Callback = Callable[[list[int | None]], Any]


@dataclass(frozen=True)
class Generated:
    """What came out, row by row: `tokens` int64 [new], the stop token included, after `prompts` int64 [old]; `reasons` are `stop` or
    `length`. `scores` float32 [B] are those of beam search, else None. `collected` holds the asked outputs of the model for each new
    token, [new, ...] by row, where an axis that grows is filled up with zeros; `still` the outputs that do not grow."""

    prompts: tuple[np.ndarray, ...]
    tokens: tuple[np.ndarray, ...]
    reasons: tuple[str, ...]
    scores: np.ndarray | None = None
    collected: Mapping[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    still: Mapping[str, np.ndarray] = field(default_factory=dict)

    def array(self, pad: int = 0) -> np.ndarray:
        """The new tokens int64 [B, longest], filled up with `pad`."""
        made = np.full((len(self.tokens), max(map(len, self.tokens))), pad, np.int64)
        for row, tokens in enumerate(self.tokens):
            made[row, :len(tokens)] = tokens
        return made


def generate(decoder: Decoder, ids: Any = None, inputs: Mapping[str, Any] | None = None, *, keep: Any = None, collect: Sequence[str] = (),
             callback: Callback | None = None, logits: str | None = None, **settings: Any) -> Generated:
    """Tokens after the prompts.

    `ids` are one prompt, or rows of equal or unequal length; with `keep` bool [B, S], rows padded on the left or right whose kept tokens
    count. They may be left out where `decoder_start` is given. `inputs` go to the prefix model. `collect` names outputs to be kept for
    each new token, `logits` the output with the scores where the manifest does not tell. `callback` gets the token of each row as it
    comes, None for rows that have ended; beam search has none. `settings` are those of `Settings`.

    A row may fill the model's bound, and one more token comes of it. Raises `ArtifactErrors` (code `bad-inputs`) before anything is run:
    settings, ids, rows that would get too long.
    """
    job = Job(decoder, ids, inputs, keep, collect, logits, Settings.of(settings))
    if job.settings.beams > 1:
        if callback is not None:
            raise ArtifactError("bad-inputs", "beam search has no `callback`", "its tokens are known at the end only")
        return job.search()
    for tokens in job.steps():
        if callback is not None:
            callback(tokens)
    return job.result()


def stream(decoder: Decoder, ids: Any = None, inputs: Mapping[str, Any] | None = None, *, keep: Any = None, logits: str | None = None,
           **settings: Any) -> Iterator[list[int | None]]:
    """The tokens of each row as they come, None for rows that have ended; arguments and errors are those of `generate`, without beams."""
    job = Job(decoder, ids, inputs, keep, (), logits, Settings.of(settings))
    if job.settings.beams > 1:
        raise ArtifactError("bad-inputs", "beam search cannot be streamed", "its tokens are known at the end only")
    return job.steps()


class Job:
    """One call of `generate`, checked. `steps` or `search` runs it, once."""

    def __init__(self, decoder: Decoder, ids: Any, inputs: Mapping[str, Any] | None, keep: Any, collect: Sequence[str],
                 logits: str | None, settings: Settings):
        self.decoder, self.inputs, self.settings = decoder, dict(inputs or {}), settings
        self.entry = tokens_input(decoder)
        self.scores = scores_output(decoder, logits, self.entry)
        width = self.scores.shape[-1]
        assert isinstance(width, int)
        below = self.entry.ids_below if isinstance(self.entry.ids_below, int) else width
        self.vocabulary = min(width, below)
        self.kept = growing(decoder.outputs, collect)
        self.wanted = (self.scores, *(x for x in self.kept if x.name != self.scores.name))
        self.prompts = prompts(ids, keep, settings.decoder_start, decoder.rows_of(self.inputs))
        problems = settings.problems(self.vocabulary, len(self.prompts))
        given = slice(0 if settings.decoder_start is None else 1, None)
        problems += [p for row, ids in enumerate(self.prompts) for p in _ids_problems(self.entry, row, ids[given], below)]
        check(problems)
        lengths = np.array([len(p) for p in self.prompts], np.int64)
        self.first = int(lengths.max())
        self.most = self._most()
        self.processors = Processors(settings, np.repeat(lengths, settings.beams), self.vocabulary, self.most)
        self._tokens: list[list[int]] = [[] for _ in self.prompts]
        self._stopped = [False] * len(self.prompts)
        self._collected: dict[str, list[np.ndarray]] = {x.name: [] for x in self.kept}
        self._still: Mapping[str, np.ndarray] = {}

    def steps(self) -> Iterator[list[int | None]]:
        """Run to the end; gives the token of each row as it comes, None for rows that have ended."""
        s, rows = self.settings, len(self.prompts)
        running, found = self._begin()
        random = generators(s.seed, self.prompts) if s.sampled else []
        seen = None if s.plain else self._seen()
        alive, stops = np.ones(rows, np.int64), frozenset(s.stops)
        told, plain = self.scores.name, self.scores.dtype == "float32" and self.scores.shape[-1] == self.vocabulary
        for new in range(self.most):
            scores = found[told] if plain else found[told][:, :self.vocabulary].astype(np.float32, copy=False)
            if seen is not None:
                scores = self.processors(scores, seen, new)
            chosen = scores.argmax(1)
            _numbers(scores, chosen, alive)
            if random:
                chosen = np.array([draw(scores[b], s, random[b]) if alive[b] else 0 for b in range(rows)])
            self._collect(found)
            tokens = self._add(chosen, alive, stops)
            if seen is not None:
                seen[np.arange(rows), chosen] = True
            yield tokens
            if new + 1 == self.most or not any(alive.tolist()):
                self.decoder.done(running)
                return
            found = self._next(running, chosen, alive)

    def search(self) -> Generated:
        """Run beam search to its end."""
        s, rows = self.settings, len(self.prompts)
        running, found = self._begin()
        beams = Beams(rows, s.beams, self.most, s.stops, s.length_penalty, s.early_stopping)
        each = np.repeat(np.arange(rows), s.beams)
        running.reorder(each)
        found, seen, ones = {k: v[each] for k, v in found.items()}, self._seen()[each], np.ones(len(each), np.int64)
        while True:
            scores = log_softmax(found[self.scores.name].astype(np.float32))[:, :self.vocabulary]
            _numbers(scores, scores.argmax(1), ones)
            self._collect(found)
            tokens, origins = beams.advance(self.processors(scores, seen, beams.length))
            if beams.done:
                return self._best(beams)
            running.reorder(origins)
            seen = seen[origins]
            seen[np.arange(len(each)), tokens] = True
            found = self._next(running, tokens, ones)

    def result(self) -> Generated:
        """What `steps` found."""
        counts = [len(t) for t in self._tokens]
        collected = {k: tuple(_stacked([step[row] for step in v[:n]]) for row, n in enumerate(counts)) for k, v in self._collected.items()}
        return Generated(tuple(self.prompts), tuple(np.array(t, np.int64) for t in self._tokens),
                         tuple("stop" if stopped else "length" for stopped in self._stopped), None, collected, self._still)

    # inside

    def _most(self) -> int:
        limit, asked = self.decoder.limit, self.settings.max_new_tokens
        if asked is None and limit is None:
            raise ArtifactError("bad-inputs", "how many tokens to generate is not told", "the model's length has no bound",
                                "give `max_new_tokens`")
        most = int(asked) if asked is not None else max(1, (limit or 0) - self.first)
        read = self.first + most - 1                       # the last token is not read again
        if limit is not None and read > limit:
            row, room = max(range(len(self.prompts)), key=lambda b: len(self.prompts[b])), limit - self.first + 1
            raise ArtifactError("bad-inputs", f"the model would read {read} tokens of row {row}, and takes at most {limit}",
                                f"its prompt has {self.first}, and of {most} new tokens all but the last are read",
                                f"ask for at most {room} new token{'s' * (room > 1)}, or shorten the prompt" if room > 0 else
                                f"shorten the prompt to at most {limit}")
        return most

    def _begin(self) -> tuple[Running, dict[str, np.ndarray]]:
        """The state behind the prompts, and the outputs at the last token of each: [B, ...]."""
        running = self.decoder.start(len(self.prompts), min(2 * self.first, self.first + self.most), **self.inputs)
        running.expected = self.first + self.most
        self._still = running.still
        length = np.array([len(p) for p in self.prompts], np.int64)
        packed = np.zeros((len(length), self.first), np.int64)
        for row, ids in enumerate(self.prompts):
            packed[row, :len(ids)] = ids
        return running, running.extend(length, [x.name for x in self.wanted], **{self.entry.name: packed})

    def _next(self, running: Running, tokens: np.ndarray, alive: np.ndarray) -> dict[str, np.ndarray]:
        """One more token of each row: the outputs [B, ...], without their axis N, in memory that the next run overwrites."""
        found, row = running.advance(self.entry.name, tokens, alive, self.wanted), self.decoder.row
        made = {self.scores.name: found[self.scores.name][:, 0]}
        for x in self.wanted[1:]:
            made[x.name] = rows_first(found[x.name], x, row)[:, 0]
        return made

    def _seen(self) -> np.ndarray:
        made = np.zeros((len(self.prompts), self.vocabulary), bool)
        for row, ids in enumerate(self.prompts):
            made[row, ids[ids < self.vocabulary]] = True
        return made

    def _collect(self, found: Mapping[str, np.ndarray]) -> None:
        for name, held in self._collected.items():
            held.append(found[name].copy())

    def _add(self, chosen: np.ndarray, alive: np.ndarray, stops: frozenset[int]) -> list[int | None]:
        told: list[int | None] = []
        for row, token in enumerate(chosen.tolist()):
            if not alive[row]:
                told.append(None)
                continue
            told.append(token)
            self._tokens[row].append(token)
            if token in stops:
                self._stopped[row] = True
                alive[row] = 0
        return told

    def _best(self, beams: Beams) -> Generated:
        found = beams.best()
        collected = {k: tuple(_stacked([v[t][o] for t, o in enumerate(origins)]) for _, origins, _ in found)
                     for k, v in self._collected.items()}
        reasons = tuple("stop" if len(t) and t[-1] in self.settings.stops else "length" for t, _, _ in found)
        return Generated(tuple(self.prompts), tuple(t for t, _, _ in found), reasons, np.array([s for _, _, s in found], np.float32),
                         collected, self._still)


def tokens_input(decoder: Decoder) -> Input:
    """The chunk's input that takes the tokens. Raises `ArtifactError` (code `bad-inputs`) where the model takes more, or something else."""
    chunk = [x for x in decoder.chunk if x.name != NEW_LENGTH]
    if len(chunk) == 1 and chunk[0].dtype.startswith("int") and len(chunk[0].shape) == 2 and chunk[0].shape[1] == NEW:
        return chunk[0]
    named = ", ".join(f"`{x.name}`: {x.dtype}[{', '.join(map(str, x.shape))}]" for x in chunk) or "nothing"
    raise ArtifactError("bad-inputs", "the model cannot generate tokens: a step does not take them alone",
                        f"a step takes {named}; expected int64[B, N] alone",
                        "run it with `decoder(folder).start(...).step(...)`, which takes every input")


def scores_output(decoder: Decoder, name: str | None, entry: Input) -> Output:
    """The output with the scores of the next token, float [B, N, V]. Raises `ArtifactError` (code `bad-inputs`)."""
    fit = [x for x in decoder.outputs if x.dtype in FLOATS and len(x.shape) == 3 and x.shape[1] == NEW and isinstance(x.shape[2], int)]
    if name is not None:
        fit = [x for x in fit if x.name == growing(decoder.outputs, name)[0].name]
    exact = [x for x in fit if x.shape[2] == entry.ids_below]
    for tried in (fit, exact, [x for x in exact if x.name == "logits"]):
        if len(tried) == 1:
            return tried[0]
    outputs = ", ".join(f"`{x.name}`: {x.dtype}[{', '.join(map(str, x.shape))}]" for x in decoder.outputs)
    raise ArtifactError("bad-inputs", "which output holds the scores of tokens is not told" if fit else "no output holds scores of tokens",
                        f"expected float[B, N, number of tokens]; there is {outputs or 'none'}",
                        "name it: `logits=`" if fit else ())


def prompts(ids: Any, keep: Any, start: int | None, rows: int | None) -> list[np.ndarray]:
    """The rows' tokens, int64 each, without padding. Raises `ArtifactErrors` (code `bad-inputs`)."""
    made = [np.zeros(0, np.int64)] * (rows or 1) if ids is None else _rows_of(ids)
    if keep is not None:
        made = _kept(made, keep)
    if start is not None:
        made = [np.concatenate([[np.int64(start)], row]) for row in made]
    if not made:
        raise ArtifactError("bad-inputs", "there is no prompt", helps="give one row of ids at least")
    short = [row for row, tokens in enumerate(made) if not len(tokens)]
    if short:
        raise ArtifactError("bad-inputs", f"the prompt of row {short[0]} is empty" if ids is not None else "there is no prompt",
                            "the source is another input: the target has no token to begin with" if rows is not None else (),
                            helps="give one token at least, such as the start of a text, or `decoder_start` (--start)")
    if rows is not None and rows != len(made):
        raise ArtifactError("bad-inputs", f"there {'is 1 prompt' if len(made) == 1 else f'are {len(made)} prompts'}, and the inputs have "
                            f"{rows} rows")
    return made


def _rows_of(ids: Any) -> list[np.ndarray]:
    if not isinstance(ids, list | tuple) and np.ndim(ids) == 0:
        raise ArtifactError("bad-inputs", f"the ids are {type(ids).__name__}", "expected one row of ids, or a list of rows")
    entries = list(ids) if isinstance(ids, list | tuple) else list(np.asarray(ids))
    nested = {type(x) is not int and (isinstance(x, list | tuple) or np.ndim(x) > 0) for x in entries}
    if len(nested) > 1:
        raise ArtifactError("bad-inputs", "the ids are numbers and rows at once", "expected one row of ids, or a list of rows")
    made, problems = [], []
    for row, tokens in enumerate(entries if True in nested else [entries]):
        try:
            array = convert(tokens, "int64")
            if array.ndim != 1:
                raise Unfit(f"has {array.ndim} axes, expected 1")
            made.append(array)
        except Unfit as unfit:
            problems.append(ArtifactError("bad-inputs", f"the prompt of row {row} {unfit.headline}", "expected ids", unfit.helps))
    check(problems)
    return made


def _kept(rows: list[np.ndarray], keep: Any) -> list[np.ndarray]:
    """The kept tokens of padded rows: the state has no holes, so that what stands left moves to the start."""
    try:
        mask = np.asarray(keep)
    except ValueError:                            # rows of different lengths
        mask = np.zeros(0)
    if mask.shape != (len(rows), len(rows[0]) if rows else 0) or len({len(r) for r in rows}) > 1:
        raise ArtifactError("bad-inputs", f"`keep` has shape {list(mask.shape)}, and the ids have {len(rows)} rows of "
                            f"{sorted({len(r) for r in rows})}", "expected bool[B, S] for ids of int64[B, S]")
    mask = mask.astype(bool)
    holes = np.flatnonzero((np.diff(mask.astype(int), axis=1, prepend=0) > 0).sum(1) > 1)
    if holes.size:
        raise ArtifactError("bad-inputs", f"`keep` has a hole in row {holes[0]}", "padding stands left or right of the tokens")
    return [row[m] for row, m in zip(rows, mask, strict=True)]


def _ids_problems(entry: Input, row: int, ids: np.ndarray, below: int) -> list[ArtifactError]:
    bad = np.flatnonzero((ids < 0) | (ids >= below))
    return [ArtifactError("bad-inputs", f"the prompt of row {row} has the id {ids[bad[0]]} at index {bad[0]}",
                          f"ids of `{entry.name}` lie in [0, {below})")] if bad.size else []


def _numbers(scores: np.ndarray, best: np.ndarray, alive: np.ndarray) -> None:
    """NaN is found by argmax before any number; infinity is the largest, or all there is."""
    for row, token in enumerate(best.tolist()):
        value = float(scores[row, token])
        if not isfinite(value) and alive[row]:
            raise ArtifactError("run-failed", f"the scores of row {row} are not numbers ({value})", "nothing can be chosen among them",
                                "compare the model with its reference: `nnspec compare`; float16 overflows where float32 does not")


def _stacked(values: list[np.ndarray]) -> np.ndarray:
    """[n, ...]; shorter ones are filled up with zeros."""
    if not values:
        return np.zeros(0, np.float32)
    made = np.zeros((len(values), *np.max([v.shape for v in values], axis=0).astype(int)), values[0].dtype)
    for k, value in enumerate(values):
        made[k][tuple(slice(n) for n in value.shape)] = value
    return made
