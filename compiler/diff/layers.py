"""What a comparison tells beside the specs, each where it is asked for: the key map, claims that were run, the ONNX layer."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..costs.quantity import short
from ..pipeline import Compiled
from . import file_layer
from .keys import key_map
from .lock import Lock
from .replay import replay
from .report import Report

WIDE, MOST = 100, 3             # columns, and changes of weights that are told one by one
LEVELS = ("info", "warning", "breaking")


@dataclass(frozen=True)
class Asked:
    """What the user asked for: the key map, told or written to a file, claims run (with `weights` of the base, a file), how a `checkpoint`
    fits, the ONNX layer (of exported sides always, of two specs with
    `onnx`) for a `provider` of ONNX Runtime and in `dtype`. `loose` sizes may name dimensions that no side has;
    `explorer` is a folder for Model Explorer's files."""

    keys: bool = False
    run: bool = False
    weights: Path | None = None
    written: Path | None = None
    checkpoint: Path | None = None
    loose: bool = False
    explorer: Path | None = None
    onnx: bool = False
    provider: str = ""
    dtype: str = ""

    @property
    def graphs(self) -> bool:
        """Whether both graphs are needed, which a lock file lacks."""
        return self.followed or self.onnx or self.explorer is not None

    @property
    def followed(self) -> bool:
        """Whether every tensor is followed."""
        return self.keys or self.run or self.written is not None

    def __call__(self, labels: tuple[str, str], a: Compiled, b: Compiled, report: Report) -> dict[str, Any]:
        """The layers, as JSON has them. Raises Diagnostics for weights that do not fit, and files that are no exports of ours."""
        out: dict[str, Any] = {}
        if self.checkpoint is not None:
            out["checkpoint"] = self.held(a, b, report)
        if self.followed:
            steps = replay(a, b)[0] if report.edits else []
            made = key_map(a.graph, b.graph, steps, report.edits)
            if self.keys:
                out["keys"] = made.data()
            if self.run:
                out["verify"] = self.checked(a, b, made, report)
        if self.onnx or any(_exported(label) for label in labels):
            from .onnx_layer import onnx_layer
            out["onnx"] = onnx_layer(*labels, a, b, self.provider, self.dtype)
        if self.explorer is not None:
            from .model_explorer import write_model_explorer
            write_model_explorer(self.explorer, a, b, report)
        if self.written is not None:
            from ..files import write_text
            from .keymap import keymap_text
            write_text(self.written, keymap_text(made, report, self.written))
        return out

    def held(self, a: Compiled | Lock, b: Compiled | Lock, report: Report) -> dict[str, Any]:
        assert self.checkpoint is not None
        return file_layer.file_layer(self.checkpoint, a, b, bool(report.verdict.silent))

    def checked(self, a: Compiled, b: Compiled, keys: Any, report: Report) -> list[dict[str, Any]]:
        from ..checkpoints.weights import open_weights
        from ..model import Model
        from .verify import verify
        with ExitStack() as stack:
            read = None
            if self.weights is not None:
                loader = Model(a).loader(stack.enter_context(open_weights(self.weights)))
                read = lambda name: loader(name, whole=False)  # noqa: E731
            return [{**c.data(), "text": str(c)} for c in verify(a.graph, b.graph, keys, report.edits, read)]


def _exported(label: str) -> bool:
    path = Path(label)
    return path.suffix == ".onnx" or (path / "model.onnx").is_file()


def broken(report: Report) -> list[str]:
    """Claims of the report that did not hold when they were run."""
    return [c["text"] for c in report.layers.get("verify", ()) if c["holds"] is False]


def differs(report: Report) -> bool:
    """Whether anything at all is different, of the specs or of the files exported from them."""
    return report.changed or found_level(report) >= 0


def found_level(report: Report) -> int:
    """The worst level of the ONNX layer's findings, as a place in LEVELS; -1 where there are none."""
    return max((LEVELS.index(f["level"]) for f in report.layers.get("onnx", {}).get("findings", ())), default=-1)


def summary(layers: Mapping[str, Any]) -> Iterator[str]:
    """What of the layers stands with the verdicts."""
    if "checkpoint" in layers:
        yield from file_layer.summary(layers["checkpoint"])


def lines(layers: Mapping[str, Any]) -> Iterator[str]:
    """The layers as text."""
    if "checkpoint" in layers:
        yield from file_layer.lines(layers["checkpoint"])
    if "keys" in layers:
        yield from _keys(layers["keys"])
    if "verify" in layers:
        yield from _claims(layers["verify"])
    if "onnx" in layers:
        yield from _onnx(layers["onnx"])


def engines(claims: Sequence[Mapping[str, Any]]) -> str:
    """What ran the claims, in words: PyTorch in float64 and ONNX Runtime in float32, or only one of them, or none."""
    ran = dict.fromkeys(f"{r['engine']} in {r['dtype']}" for c in claims for r in c["runs"] if r["ran"])
    return " and ".join(ran) or "nothing could be run"


def _claims(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield f"  run with the same weights: {engines(claims)}"
    for c in claims:
        yield from textwrap.wrap(f"{c['what']}: {c['said']}", WIDE, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for r in c["runs"]:
            yield from textwrap.wrap(f"{r['engine']} {r['dtype']} {r['said']}", WIDE, initial_indent=" " * 8, subsequent_indent=" " * 10)


def _keys(keys: Mapping[str, Any]) -> Iterator[str]:
    counts = keys["counts"]
    yield ""
    yield f"  key map     {keys['kind']:<10}  " + ", ".join(f"{n:,} {k}" for k, n in counts.items() if n)
    for r in keys["folded"]:
        if r["kind"] != "same":
            yield from _wrapped(r["kind"], " ".join(p for p in (r["to"], f"<- {r['from']}" if r["from"] else "") if p), r["text"])
    for e in keys["edits"]:
        if e["kind"] in ("silent", "refused"):
            yield from _wrapped(e["kind"], f"the edit `{e['title']}`", e["why"][0])


def _onnx(layer: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    sides = layer["sides"]
    if not sides:
        yield from textwrap.wrap(layer["note"], WIDE, initial_indent="  onnx        ", subsequent_indent=" " * 14)
        return
    told = [exported(s) for s in sides]
    yield f"  onnx        {told[0]}"
    if told[1] != told[0]:
        yield f"              -> {told[1]}"
    for text in (*([layer["note"]] if layer["note"] else []), *placements(layer)):
        yield from textwrap.wrap(text, WIDE, initial_indent=" " * 14, subsequent_indent=" " * 16)
    for level, rule, where, text in findings(layer):
        yield from _wrapped(level, f"{rule}  {where}".rstrip(), text)
    if not layer["findings"]:
        yield "    nothing differs"


def exported(side: Mapping[str, Any]) -> str:
    """One side in words."""
    return f"{side['target']} {side['dtype']}, opset {side['opsets'].get('ai.onnx', '?')}, {side['fused']} of {side['sites']} sites fused"


def findings(layer: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """(level, rule, where, what) of every finding; operators that only one side has are one, and so are many weights."""
    ops: dict[tuple[str, str], list[str]] = {}
    weights = Counter(f["rule"] for f in layer["findings"] if f["rule"].startswith("onnx.weight-"))
    for f in layer["findings"]:
        if f["rule"] in ("onnx.op-added", "onnx.op-removed"):
            ops.setdefault((f["level"], f["rule"]), []).append(f"{f['where']} x{f['count']}")
        elif weights[f["rule"]] > MOST:
            alike = [x for x in layer["findings"] if x["rule"] == f["rule"]]
            if alike[0] is f:
                yield f["level"], f["rule"], f"x{sum(x['count'] for x in alike)}", f"{f['where'].partition(', ')[0]} and others"
        else:
            yield f["level"], f["rule"], f["where"] + (f" x{f['count']}" if f["count"] > 1 else ""), change(f)
    for (level, rule), names in ops.items():
        yield level, rule, "", ", ".join(names)


def change(finding: Mapping[str, Any]) -> str:
    """What a finding says of both sides, and why."""
    before, after = (short(v, "B") if finding["rule"] == "onnx.bytes-changed" else said(v) for v in (finding["before"], finding["after"]))
    return f"{before} -> {after}" + (f" ({finding['note']})" if finding["note"] else "")


def placements(layer: Mapping[str, Any]) -> Iterator[str]:
    """The operators that each side has no kernel for on the provider, its kernels of attention, and how that was found."""
    provider = layer["provider"].upper()
    kernels = [", ".join(f"{k} x{n}" for k, n in side["kernels"].items()) or "none" for side in layer["sides"]]
    if any(side["kernels"] or side["misplaced"] for side in layer["sides"]):
        yield f"on {provider}: {layer['how']}"
    if any(side["kernels"] for side in layer["sides"]):
        yield f"attention: {kernels[0]}" + (f" -> {kernels[1]}" if kernels[0] != kernels[1] else "")
    for name, side in zip(("base", "head"), layer["sides"], strict=True):
        for on, what in (("cpu", f"not on {provider} but on the CPU"), ("none", f"with no kernel on {provider}, so that no session opens")):
            ops = [f"{m['op']} of {m['dtypes']} x{m['count']}" for m in side["misplaced"] if m["on"] == on]
            if ops:
                yield f"{name}, {what}: {', '.join(ops)}"


def _wrapped(kind: str, what: str, text: str) -> Iterator[str]:
    """One fact, on as many lines as it needs."""
    line = f"    {kind:<8}  {what}"
    if text and len(line) + len(text) + 2 <= WIDE:
        line, text = f"{line}  {text}", ""
    for part, indent in ((line, 0), (text, 14)):
        yield from textwrap.wrap(part, WIDE, initial_indent=" " * indent, subsequent_indent=" " * 14, drop_whitespace=True)


def said(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
