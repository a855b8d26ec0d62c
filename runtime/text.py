"""Text in, text out: `tokenizer.json` of Hugging Face around `generate`, by the `tokenizers` package, which is optional."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .decoder import Decoder
from .errors import ArtifactError
from .generate import Generated, generate
from .manifest import Input

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"


def tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Read a `tokenizer.json`, or that of a folder. Raises `ArtifactError`: `missing-package`, `file-not-found`, and `bad-inputs` where
    the file is no tokenizer."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    try:
        import tokenizers
    except ImportError:
        raise ArtifactError("missing-package", f"`{file}` needs the package `tokenizers`", "text is made into ids by it",
                            "pip install tokenizers; or give ids instead of text") from None
    if not file.is_file():
        raise ArtifactError("file-not-found", f"no file `{file}`", helps="name the `tokenizer.json`; or give ids instead of text")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise ArtifactError("bad-inputs", f"`{file}` is not a tokenizer: {error}") from None


def generate_text(decoder: Decoder, tokenizer: Tokenizer, texts: str | Sequence[str], inputs: Mapping[str, Any] | None = None, *,
                  special: bool = True, callback: Callable[[list[str]], Any] | None = None, **options: Any) -> tuple[list[str], Generated]:
    """The texts that follow `texts`, or that the model says of them where its prefix model reads ids (a translator's source).

    `special` adds the tokenizer's own tokens, such as one at the start. `callback` gets the new characters of each row as they are
    complete. `inputs` and `options` are those of `generate`. Raises as it does.
    """
    rows = [tokenizer.encode(text, add_special_tokens=special).ids for text in ([texts] if isinstance(texts, str) else texts)]
    if callback is not None:
        options["callback"] = _decoding(tokenizer, callback, len(rows))
    made = generate_ids(decoder, rows, inputs, **options)
    return [tokenizer.decode(tokens.tolist(), skip_special_tokens=True) for tokens in made.tokens], made


def generate_ids(decoder: Decoder, rows: Sequence[Sequence[int]], inputs: Mapping[str, Any] | None = None, **options: Any) -> Generated:
    """The tokens that follow `rows`, or that the model says of them where its prefix model reads ids: then `ids` may be the prompts.

    `inputs` and `options` are those of `generate`. Raises as it does.
    """
    given, ids, source = dict(inputs or {}), options.pop("ids", None), source_input(decoder)
    if source is None or source.name in given:
        return generate(decoder, rows, given, **options)
    return generate(decoder, ids, given | _source(decoder, source, rows), **options)


def source_input(decoder: Decoder) -> Input | None:
    """The only input of the prefix model that takes ids, int64 [B, S]."""
    prefix = decoder.manifest.prefix
    found = [x for x in prefix.inputs if x.ids_below is not None and len(x.shape) == 2 and not x.optional] if prefix else []
    return found[0] if len(found) == 1 else None


def source_rows(decoder: Decoder, rows: Sequence[Sequence[int]], inputs: Mapping[str, Any]) -> list[list[int]]:
    """The ids of each row that the prefix model read, without padding: those in `inputs`, else `rows`; none where it reads no ids."""
    source = source_input(decoder)
    if source is None or source.name not in inputs:
        return [] if source is None else [list(row) for row in rows]
    ids, others = np.asarray(inputs[source.name]), decoder.manifest.prefix.inputs if decoder.manifest.prefix else ()
    told = next((inputs[x.name] for x in others if x.length_of == source.shape[1] and inputs.get(x.name) is not None), None)
    length = np.full(len(ids), ids.shape[1]) if told is None else np.asarray(told)
    return [row[:n].tolist() for row, n in zip(ids, length, strict=True)]


def _source(decoder: Decoder, source: Input, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """The rows padded on the right, with their lengths or a mask where the model takes one."""
    assert decoder.manifest.prefix is not None
    length = np.array([len(r) for r in rows], np.int64)
    ids = np.zeros((len(rows), int(length.max(initial=0))), np.int64)
    for k, row in enumerate(rows):
        ids[k, :len(row)] = row
    made: dict[str, np.ndarray] = {source.name: ids}
    others = [x for x in decoder.manifest.prefix.inputs if x is not source]
    of_length = [x for x in others if x.length_of is not None and x.length_of == source.shape[1]]
    masks = [x for x in others if x.dtype == "bool" and x.shape == source.shape]
    if of_length:
        made[of_length[0].name] = length
    elif masks:
        made[masks[0].name] = np.arange(ids.shape[1]) < length[:, None]
    elif len(set(length.tolist())) > 1:
        raise ArtifactError("bad-inputs", f"the texts have {length.tolist()} tokens, and the model takes no lengths for `{source.name}`",
                            "padding would be read as text", "give one text at a time")
    return made


def _decoding(tokenizer: Tokenizer, callback: Callable[[list[str]], Any], rows: int) -> Callable[[list[int | None]], Any]:
    from tokenizers.decoders import DecodeStream
    streams = [DecodeStream(skip_special_tokens=True) for _ in range(rows)]

    def told(tokens: list[int | None]) -> None:
        callback(["" if t is None else streams[row].step(tokenizer, t) or "" for row, t in enumerate(tokens)])
    return told
