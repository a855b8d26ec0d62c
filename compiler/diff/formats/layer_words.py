"""What a comparison tells beside its edits (a weight file, the key map, claims that were run, ONNX files), in words that all layouts share.

Layers are read as JSON has them: `layers.Asked` makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...costs.quantity import short
from ..file_layer import AS_IS, MISSING, SHAPED, TYPED, UNEXPECTED

WORDS = {SHAPED: "of other shapes", TYPED: "no plain floats", MISSING: "missing", UNEXPECTED: "unexpected"}
SHOWN, MOST = 6, 3              # lines of each kind of misfit, and changes of weights that are told one by one


# a weight file


def tally(side: Mapping[str, Any]) -> str:
    """`52 load as they are, 16 of other shapes`"""
    counts = side["counts"]
    return ", ".join([f"{counts[AS_IS]:,} load as they are", *(f"{counts[s]:,} {text}" for s, text in WORDS.items() if counts[s])])


def told(layer: Mapping[str, Any]) -> tuple[str, str, str]:
    """What the file is, whether it is one of BASE, and what of it goes into HEAD, in words."""
    dtypes = ", ".join(layer["dtypes"]) or "empty"
    base = "one of BASE" if layer["base"]["fits"] else f"NOT one of BASE: {tally(layer['base'])}"
    head = "it loads into HEAD as it is" if layer["head"]["fits"] else f"into HEAD: {tally(layer['head'])}"
    head += ", and computes something else there" if layer["silent"] else ""
    return f"{layer['file']}: {layer['tensors']:,} tensors ({dtypes})", base, head


def misfits(side: Mapping[str, Any], most: int = SHOWN) -> Iterator[str]:
    """What does not fit, one folded name a line, and of each kind so many."""
    for status, text in WORDS.items():
        found = [r for r in side["rows"] if r["status"] == status]
        for r in found[:most]:
            yield f"{text}: {r['names']}" + (f"  {r['text']}" if r["text"] else "")
        if len(found) > most:
            yield f"{text}: ... and {len(found) - most:,} more lines like these"


# the key map


def counts(keys: Mapping[str, Any]) -> str:
    """`12 same, 4 renamed`: how many tensors are made how."""
    return ", ".join(f"{n:,} {kind}" for kind, n in keys["counts"].items() if n)


def stops(keys: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The edits that no tensor can follow."""
    return [e for e in keys["edits"] if e["kind"] in ("silent", "refused")]


# claims that were run


def ran(run: Mapping[str, Any]) -> str:
    """One run of a claim: `PyTorch float64 differs by ...`."""
    return f"{run['engine']} {run['dtype']} {run['said']}"


def engines(claims: Sequence[Mapping[str, Any]]) -> str:
    """What ran the claims, in words: PyTorch in float64 and ONNX Runtime in float32, or only one of them, or none."""
    ran = dict.fromkeys(f"{r['engine']} in {r['dtype']}" for c in claims for r in c["runs"] if r["ran"])
    return " and ".join(ran) or "nothing could be run"


# ONNX files


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


def said(value: Any) -> str:
    """A value of one side."""
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
