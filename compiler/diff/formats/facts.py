"""What a comparison tells beside its edits, each as one fact for machines: a weight file, the key map, claims that were run, ONNX files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..report import Level, Report
from . import layer_words


@dataclass(frozen=True)
class Fact:
    """`name` is a rule or a layer; `text` begins with a headline, or `brief` is it; `failed` is what fails a build, `skipped` what could
    not be found out; `place` is a file and a line of it, where there is one."""

    name: str
    level: Level
    text: str
    failed: bool = False
    skipped: bool = False
    place: tuple[str, str] | None = None
    brief: str = ""

    @property
    def headline(self) -> str:
        return self.brief or self.text.partition("\n")[0]


def facts(report: Report) -> Iterator[Fact]:
    """Every fact of the layers of a report."""
    found = report.layers
    if "checkpoint" in found:
        fits = found["checkpoint"]["base"]["fits"]
        said = layer_words.told(found["checkpoint"])
        yield Fact("checkpoint", "info" if fits else "warning", "\n".join(said), not fits, brief=said[1])
    if "keys" in found:
        yield Fact("keys", "info", "\n".join(key_map(found["keys"])))
    for claim in found.get("verify", ()):
        ran = bool(claim["runs"]) and all(r["ran"] for r in claim["runs"])
        level: Level = "breaking" if claim["holds"] is False else "info" if ran else "warning"
        runs = map(layer_words.ran, claim["runs"])
        yield Fact("verify", level, "\n".join([f"{claim['what']}: {claim['said']}", *runs]), claim["holds"] is False, not claim["runs"])
    if "onnx" in found:
        yield from _onnx(report, found["onnx"])


def key_map(keys: Mapping[str, Any]) -> list[str]:
    """The kind of a key map, how many tensors are made how, and which edits none can follow."""
    return [f"key map {keys['kind']}: {layer_words.counts(keys)}",
            *(f"{e['kind']}: the edit `{e['title']}`: {e['why'][0]}" for e in layer_words.stops(keys))]


def _onnx(report: Report, layer: Mapping[str, Any]) -> Iterator[Fact]:
    """Each finding above `info`, and one fact for all others."""
    if not layer["sides"]:
        yield Fact("onnx", "info", layer["note"], skipped=True)
        return
    for f in layer["findings"]:
        if f["level"] != "info":
            where = f["where"] + (f" x{f['count']}" if f["count"] > 1 else "")
            said = f"{where}: {layer_words.change(f)}" if where else layer_words.change(f)
            at = [f"at {f['line']}"] if f["line"] else []
            yield Fact(f["rule"], f["level"], "\n".join([said, *at]), f["level"] == "breaking", place=_place(report, f["line"]))
    rest = Counter(f["rule"] for f in layer["findings"] if f["level"] == "info")
    counts = ", ".join(f"{n} {rule}" for rule, n in rest.items()) or ("nothing else differs" if layer["findings"] else "nothing differs")
    one, two = (layer_words.exported(s) for s in layer["sides"])
    told = [*([layer["note"]] if layer["note"] else []), *layer_words.placements(layer)]
    yield Fact("onnx", "info", "\n".join([counts, one if one == two else f"{one} -> {two}", *told]))


def _place(report: Report, line: str) -> tuple[str, str] | None:
    """The file of `gpt2.yaml:12` as this repository has it: that of the side that is called so."""
    name, _, number = line.rpartition(":")
    for side in (report.head, report.base):
        file = plain(side.label) if side is not None else ""
        if name and number.isdecimal() and PurePosixPath(file.replace("\\", "/")).name == name:
            return file, number
    return None


def plain(label: str) -> str:
    """The file alone of `REF:./FILE`, or of `COMMIT:FILE`."""
    return re.sub(r"^(?:[^:]+:\./|[0-9a-f]{8}:)", "", label)
