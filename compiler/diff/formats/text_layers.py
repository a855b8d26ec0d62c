"""What a comparison tells beside its edits (a weight file, the key map, claims that were run, ONNX files), as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import layer_words

WIDE = 100                      # columns


def summary(layers: Mapping[str, Any]) -> Iterator[str]:
    """What of the layers stands with the verdicts."""
    if "checkpoint" in layers:
        yield from _file_summary(layers["checkpoint"])


def lines(layers: Mapping[str, Any]) -> Iterator[str]:
    """The layers as text."""
    if "checkpoint" in layers:
        yield from _file(layers["checkpoint"])
    if "keys" in layers:
        yield from _keys(layers["keys"])
    if "verify" in layers:
        yield from _claims(layers["verify"])
    if "onnx" in layers:
        yield from _onnx(layers["onnx"])


def _file_summary(layer: Mapping[str, Any]) -> Iterator[str]:
    """A weight file, among the verdicts."""
    file, base, head = layer_words.told(layer)
    first = [f"{file}, {base}"] if len(file) + len(base) + 16 <= WIDE else [file, base]
    for k, line in enumerate((*first, head)):
        yield from textwrap.wrap(line, WIDE, initial_indent=" " * 14 if k else "  file        ", subsequent_indent=" " * 14)


def _file(layer: Mapping[str, Any]) -> Iterator[str]:
    """The tensors that do not fit, of BASE only where the file is none of it."""
    for side in ("head", *(["base"] if not layer["base"]["fits"] else [])):
        if not layer[side]["fits"]:
            yield ""
            yield f"  {layer['file']} as a checkpoint of {side.upper()}"
            yield from (f"    {line}" for line in layer_words.misfits(layer[side]))


def _claims(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield f"  run with the same weights: {layer_words.engines(claims)}"
    for c in claims:
        yield from textwrap.wrap(f"{c['what']}: {c['said']}", WIDE, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for r in c["runs"]:
            yield from textwrap.wrap(layer_words.ran(r), WIDE, initial_indent=" " * 8, subsequent_indent=" " * 10)


def _keys(keys: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"  key map     {keys['kind']:<10}  " + layer_words.counts(keys)
    for r in keys["folded"]:
        if r["kind"] != "same":
            yield from _wrapped(r["kind"], " ".join(p for p in (r["to"], f"<- {r['from']}" if r["from"] else "") if p), r["text"])
    for e in layer_words.stops(keys):
        yield from _wrapped(e["kind"], f"the edit `{e['title']}`", e["why"][0])


def _onnx(layer: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    sides = layer["sides"]
    if not sides:
        yield from textwrap.wrap(layer["note"], WIDE, initial_indent="  onnx        ", subsequent_indent=" " * 14)
        return
    told = [layer_words.exported(s) for s in sides]
    yield f"  onnx        {told[0]}"
    if told[1] != told[0]:
        yield f"              -> {told[1]}"
    for text in (*([layer["note"]] if layer["note"] else []), *layer_words.placements(layer)):
        yield from textwrap.wrap(text, WIDE, initial_indent=" " * 14, subsequent_indent=" " * 16)
    for level, rule, where, text in layer_words.findings(layer):
        yield from _wrapped(level, f"{rule}  {where}".rstrip(), text)
    if not layer["findings"]:
        yield "    nothing differs"


def _wrapped(kind: str, what: str, text: str) -> Iterator[str]:
    """One fact, on as many lines as it needs."""
    line = f"    {kind:<8}  {what}"
    if text and len(line) + len(text) + 2 <= WIDE:
        line, text = f"{line}  {text}", ""
    for part, indent in ((line, 0), (text, 14)):
        yield from textwrap.wrap(part, WIDE, initial_indent=" " * indent, subsequent_indent=" " * 14, drop_whitespace=True)
