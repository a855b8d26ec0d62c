"""What a comparison tells beside its edits (a weight file, the key map, claims that were run, ONNX files), in markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..report import Report
from . import facts, layer_words
from .markup import cell, code, details, pre, table

ROWS, OPEN = 200, 10            # of one table, and lines that are shown at once


def open_parts(r: Report) -> Iterator[str]:
    """What a reader sees at once."""
    if (layer := r.layers.get("checkpoint")) is not None:
        file, base, head = map(cell, layer_words.told(layer))
        yield f"- file {file}, **{base}**\n- {head}"
    if (claims := r.layers.get("verify")) is not None:
        yield "\n".join([f"Run with the same weights: {cell(layer_words.engines(claims))}.", "", *map(_claim, claims)])
    if (layer := r.layers.get("onnx")) is not None:
        yield "\n".join(_onnx_facts(layer))


def folded_parts(r: Report, keys: bool) -> Iterator[str]:
    """What a reader opens; of the key map only where `keys`."""
    if (layer := r.layers.get("checkpoint")) is not None:
        for side in ("head", "base"):
            if not layer[side]["fits"]:
                yield details(f"The file as a checkpoint of {side.upper()}", pre(layer_words.misfits(layer[side])))
    if keys and (layer := r.layers.get("keys")) is not None:
        yield details("Key map", _keys(layer))
    if (layer := r.layers.get("onnx")) is not None and layer["findings"]:
        found = list(layer_words.findings(layer))
        rows = [(level, f"`{rule}`", cell(where), cell(what)) for level, rule, where, what in found[:ROWS]]
        more = f"\n\n{len(found) - ROWS} more are not listed." if len(found) > ROWS else ""
        yield details("ONNX", table(("", "rule", "where", "what"), rows) + more)


def brief(r: Report) -> list[str]:
    """The headlines alone, of what is no mere fact."""
    told = [f"- {f.name} **{f.level}**: {cell(f.headline)}" for f in facts.facts(r) if f.level != "info"]
    return ["\n".join(told[:10])] if told else []


def _claim(claim: Mapping[str, Any]) -> str:
    said = cell(claim["said"])
    runs = "".join(f"<br>{cell(layer_words.ran(r))}" for r in claim["runs"])
    return f"- `{code(claim['what'])}`: {f'**{said}**' if claim['holds'] is False or not claim['runs'] else said}{runs}"


def _onnx_facts(layer: Mapping[str, Any]) -> Iterator[str]:
    if not layer["sides"]:
        yield f"- onnx: {cell(layer['note'])}"
        return
    one, two = (cell(layer_words.exported(s)) for s in layer["sides"])
    note = f" ({cell(layer['note'])})" if layer["note"] else ""
    yield f"- onnx: {one if one == two else f'{one} → {two}'}{note}" + ("" if layer["findings"] else "; nothing differs")
    yield from (f"- onnx: {cell(line)}" for line in layer_words.placements(layer))
    found = [f for f in layer["findings"] if f["level"] != "info"]
    for f in found[:OPEN]:
        said = filter(None, (cell(f["where"]), cell(layer_words.change(f))))
        yield f"- onnx **{f['level']}**: `{f['rule']}` {': '.join(said)}"
    if len(found) > OPEN:
        yield f"- onnx: {len(found) - OPEN} more above info"


def _keys(keys: Mapping[str, Any]) -> str:
    """How the tensors are made, those that are as before left out."""
    rows = [(r["kind"], cell(r["to"]), cell(r["from"]), cell(r["text"])) for r in keys["folded"] if r["kind"] != "same"]
    more = f"\n\n{len(rows) - ROWS} more are not listed." if len(rows) > ROWS else ""
    made = table(("", "new tensor", "made of", "how"), rows[:ROWS]) + more if rows else ""
    return "\n\n".join(filter(None, (*map(cell, facts.key_map(keys)), made)))
