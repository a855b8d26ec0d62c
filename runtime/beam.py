"""Beam search over rows of a batch, by the definition of `transformers` (its vectorized form), so that its hypotheses are found."""

from __future__ import annotations

import numpy as np

LOW = np.float32(-1e9)


class Beams:
    """The hypotheses of R rows, K each: `tokens` int64 [R, K, L], `origins` int64 [R, K, L] with the flat row (row * K + beam) whose run
    gave each token (-1 behind the end), `scores` float32 [R, K].

    `early_stopping` and `length_penalty` as in `Settings`; `most` is L, the largest number of new tokens.
    """

    def __init__(self, rows: int, beams: int, most: int, stops: list[int], length_penalty: float, early_stopping: bool | str):
        self.rows, self.beams, self.most, self.stops = rows, beams, most, np.array(stops, np.int64)
        self.length_penalty, self.early_stopping = length_penalty, early_stopping
        self.width = max(2, 1 + len(stops)) * beams          # so that as many as beams go on when all others end
        self.length = 0
        self.tokens = np.zeros((rows, beams, most), np.int64)
        self.origins = np.full((rows, beams, most), -1, np.int64)
        self.scores = np.zeros((rows, beams), np.float32)
        self.scores[:, 1:] = LOW                             # all beams are alike at first: only one counts
        self.ended_tokens, self.ended_origins = self.tokens.copy(), self.origins.copy()
        self.ended_scores = np.full((rows, beams), LOW, np.float32)
        self.ended = np.zeros((rows, beams), bool)
        self.open = np.ones((rows, 1), bool)                 # whether a running beam may still do better
        self.done = False

    def advance(self, log_probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One more token, from float32 [R * K, V]: the next ids int64 [R * K], and the flat rows int64 [R * K] whose state each goes on
        from. `done` tells when to stop."""
        vocabulary = log_probabilities.shape[-1]
        total = (log_probabilities.reshape(self.rows, self.beams, vocabulary) + self.scores[:, :, None]).reshape(self.rows, -1)
        index = _top(total, min(self.width, total.shape[1]))
        scores = np.take_along_axis(total, index, 1)
        beam, token = index // vocabulary, index % vocabulary
        tokens, origins = _rows(self.tokens, beam), _rows(self.origins, beam)
        tokens[:, :, self.length] = token
        origins[:, :, self.length] = beam + np.arange(self.rows)[:, None] * self.beams
        stopped = np.isin(token, self.stops) | (self.length + 1 >= self.most)
        self._go_on(scores, tokens, origins, stopped)
        flat = self.origins[:, :, self.length].reshape(-1)
        self._end(scores, tokens, origins, stopped)
        self.length += 1
        self._close(stopped)
        return self.tokens[:, :, self.length - 1].reshape(-1), flat

    def best(self) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """The best hypothesis of each row: its tokens, the flat rows that gave them, and its score."""
        made = []
        for row in range(self.rows):
            origins = self.ended_origins[row, 0]
            count = int((origins >= 0).sum())
            made.append((self.ended_tokens[row, 0, :count], origins[:count], float(self.ended_scores[row, 0])))
        return made

    def _go_on(self, scores: np.ndarray, tokens: np.ndarray, origins: np.ndarray, stopped: np.ndarray) -> None:
        running = scores + stopped.astype(np.float32) * LOW
        index = _top(running, self.beams)
        self.tokens, self.origins = _rows(tokens, index), _rows(origins, index)
        self.scores = np.take_along_axis(running, index, 1)

    def _end(self, scores: np.ndarray, tokens: np.ndarray, origins: np.ndarray, stopped: np.ndarray) -> None:
        """Candidates among the first K that stop are kept while they are better than those that stopped before."""
        ends = stopped & (np.arange(scores.shape[1]) < self.beams)
        scores = scores / np.float32((self.length + 1) ** self.length_penalty)
        full = self.ended.all(1, keepdims=True) & (self.early_stopping is True)
        for bar in (full, ~self.open, ~ends):
            scores = scores + bar.astype(np.float32) * LOW
        merged = np.concatenate([self.ended_scores, scores], 1)
        index = _top(merged, self.beams)
        self.ended_tokens = _rows(np.concatenate([self.ended_tokens, tokens], 1), index)
        self.ended_origins = _rows(np.concatenate([self.ended_origins, origins], 1), index)
        self.ended_scores = np.take_along_axis(merged, index, 1)
        self.ended = np.take_along_axis(np.concatenate([self.ended, ends], 1), index, 1)

    def _close(self, stopped: np.ndarray) -> None:
        longest = self.early_stopping == "never" and self.length_penalty > 0
        reach = np.float32((self.most if longest else self.length) ** self.length_penalty)
        worst = np.where(self.ended, self.ended_scores.min(1, keepdims=True), LOW)
        self.open = self.open & (self.scores[:, :1] / reach > worst).any(1, keepdims=True)
        full = self.ended.all() and self.early_stopping is True
        self.done = bool(not self.open.any() or full or stopped.all())


def _top(scores: np.ndarray, count: int) -> np.ndarray:
    """Where the `count` largest of each row are, largest first, of equal ones the first."""
    if count >= scores.shape[1]:
        return np.argsort(-scores, 1, kind="stable")[:, :count]
    least = np.partition(scores, scores.shape[1] - count, 1)[:, scores.shape[1] - count:].min(1, keepdims=True)
    made = np.empty((len(scores), count), np.int64)
    for row, found in enumerate(scores >= least):
        ids = np.flatnonzero(found)
        made[row] = ids[np.argsort(-scores[row, ids], kind="stable")[:count]]
    return made


def _rows(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """[R, K, L] by int64 [R, W] -> a copy, [R, W, L]."""
    return np.take_along_axis(array, index[:, :, None], 1)
