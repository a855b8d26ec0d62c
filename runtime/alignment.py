"""Attention weights of generated tokens over a source: as text, and as a picture with tokens on the axes."""

from __future__ import annotations

import os
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .decoder import Decoder
from .errors import ArtifactError
from .generate import Generated, scores_output, tokens_input
from .manifest import FLOATS, Output
from .steps import NEW
from .text import source_input, source_rows

SHADES = " ░▒▓█"
WIDTH = 100
ENDINGS = (".png", ".svg", ".pdf")


def alignment_output(decoder: Decoder) -> Output:
    """The output with weights over the source, float [B, N, S] or, by heads, [B, H, N, S].

    Raises `ArtifactError` (code `bad-inputs`) unless there is one.
    """
    scores, source = scores_output(decoder, None, tokens_input(decoder)), source_input(decoder)
    extent = source.shape[1] if source is not None else None
    found = [x for x in decoder.outputs if x.dtype in FLOATS and len(x.shape) in (3, 4) and x.shape[-2] == NEW and x.name != scores.name
             and (extent is None or x.shape[-1] == extent)]
    if len(found) == 1:
        return found[0]
    headline = "several outputs hold weights" if found else "the model has no output with weights over its source"
    raise ArtifactError("bad-inputs", headline, [f"`{x.name}`: {x.dtype}[{', '.join(map(str, x.shape))}]" for x in decoder.outputs],
                        "export again with one `--attention`, or `generate` from Python with `collect=[NAME]`" if found else
                        "export again with the path of the attention, such as `--attention decoder.3.cross`, or name its `weights` in the "
                        "spec's `outputs:`")


def looked_at(decoder: Decoder, weights: Output, made: Generated, rows: Sequence[Sequence[int]],
              inputs: Mapping[str, Any]) -> list[list[int]]:
    """The ids that the weights of each row are over: the tokens before, where they are over a cache, else the source, as `source_rows`."""
    if weights.shape[-1] in {s.capacity for s in decoder.stream.states if s.kind == "append"}:
        return [[*map(int, prompt), *map(int, tokens[:-1])] for prompt, tokens in zip(made.prompts, made.tokens, strict=True)]
    return source_rows(decoder, rows, inputs)


def table(weights: np.ndarray, target: Sequence[str], source: Sequence[str]) -> str:
    """Weights [T, S] as text: a line for each new token, with the source token that it looks at most and a shade for each."""
    lines, left = [], max(map(len, target), default=0)
    most = max((len(source[int(k)]) for k in weights.argmax(1)), default=0) if weights.size else 0
    room = max(8, WIDTH - left - most - 16)
    for token, row in zip(target, weights, strict=True):
        best = int(row.argmax())
        cells = "".join(SHADES[min(int(w * len(SHADES)), len(SHADES) - 1)] * 2 for w in row)
        shown = cells if len(cells) <= room else cells[:room - 1] + "…"
        lines.append(f"  {token:<{left}}  {row[best]:4.2f} {source[best]:<{most}}  |{shown}|")
    head = f"  weights over {len(source)} source tokens: {' '.join(source)}"
    return "\n".join([*textwrap.wrap(head, WIDTH, subsequent_indent="    "), *lines]) + "\n"


def check_picture(path: str | os.PathLike[str]) -> None:
    """Whether `plot` can write there. Raises `ArtifactError`: `missing-package` without matplotlib, `cannot-write`."""
    if find_spec("matplotlib") is None:
        raise ArtifactError("missing-package", "a picture needs the package `matplotlib`", helps="pip install matplotlib")
    if Path(path).suffix not in ENDINGS:
        raise ArtifactError("cannot-write", f"`{path}` is no picture", helps=f"name a file that ends in {', '.join(ENDINGS)}")
    if not Path(path).parent.is_dir():
        raise ArtifactError("cannot-write", f"`{path}` cannot be written: there is no folder `{Path(path).parent}`")


def plot(weights: np.ndarray, target: Sequence[str], source: Sequence[str], path: str | os.PathLike[str]) -> str:
    """Write weights [T, S] as a picture; returns the characters that its font lacks. Raises as `check_picture` does."""
    check_picture(path)
    from matplotlib.figure import Figure
    rows, columns = weights.shape
    figure = Figure(figsize=(max(3.5, 1.8 + 0.36 * columns), max(2.6, 1.4 + 0.36 * rows)), layout="constrained", dpi=150)
    axes = figure.subplots()
    image = axes.imshow(weights, cmap="cividis", vmin=0, vmax=1, aspect="equal" if max(rows, columns) < 60 else "auto")
    axes.set_xticks(range(columns), source, rotation=0 if max(map(len, source), default=0) < 3 else 60, ha="center")
    axes.set_yticks(range(rows), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("source", loc="left")
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("generated")
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, label="attention weight")
    bar.outline.set_visible(False)  # type: ignore[operator]
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.filterwarnings("always", "Glyph")
            figure.savefig(path)
    except OSError as error:
        raise ArtifactError("cannot-write", f"`{path}` cannot be written: {error.strerror or error}") from None
    lacking = {m[1] for w in told if (m := re.match(r"Glyph (\d+)", str(w.message)))}
    return "".join(sorted(chr(int(code)) for code in lacking))
