"""`Report -> str`: a comparison as one HTML file that needs nothing else. What a spec says is data to the page, never markup or script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...render import clean
from ..formats import words
from ..report import LEVELS, STATUSES, Consequence, Contract, Edit, Metric, Place, Report, Side, TensorChange
from ..rules import RULES
from . import layers, source, trees, wiring

FILES = Path(__file__).parent
STYLES = ("page.css", "panels.css")
SCRIPTS = ("page.js", "table.js", "edits.js", "tree.js", "wiring.js", "source.js", "tabs.js", "links.js",
           "start.js")
TONES = {"info": "note", "warning": "warn", "breaking": "bad", None: "ok"}
FUNCTIONS = {
    "identical": ("ok", "Both specs compute the same, under the same names."),
    "equal-up-to-names": ("ok", "Both specs compute the same; only names differ."),
    "training-only": ("note", "Inference is the same; training differs."),
    "changed": ("warn", "The same weights would give other outputs."),
}
CHECKPOINTS = {
    "same": ("ok", "Old checkpoints load as they are."),
    "renamed": ("warn", "Every tensor is there under another name: a key map brings it over."),
    "exact": ("warn", "A conversion brings old checkpoints over and keeps the function."),
    "approx": ("bad", "Old weights can be converted, and need training after that."),
    "partial": ("bad", "Some tensors must start anew."),
    "silent": ("bad", "Names and shapes of tensors fit and the function is another: no load notices."),
    "none": ("bad", "Nothing of an old checkpoint can be used."),
}


def page(reports: Sequence[Report], failures: Sequence[str] = ()) -> str:
    """The whole file; of several reports, one shows at a time. `failures` are specs that could not be compared, in words.

    The file loads nothing, and its policy forbids any script or style but its own.
    """
    style = "\n".join((FILES / name).read_text("utf-8") for name in STYLES)
    script = "'use strict';\n(() => {\n" + "\n".join((FILES / name).read_text("utf-8") for name in SCRIPTS) + "\n})();\n"
    title = clean(f"{_label(reports[0].base)} → {_label(reports[0].head)}") if len(reports) == 1 else \
        f"{len(reports)} specs" if reports else f"{len(failures)} failed" if failures else "no spec differs"
    text = (FILES / "page.html").read_text("utf-8")
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    parts = {"policy": policy, "title": html.escape(title.replace("\n", " ")), "style": style, "script": script,
             "data": embedded({"reports": [data(r) for r in reports], "failures": failures,
                               "shared": words.shared(reports)})}
    pieces = text.split("@@")
    return "".join(parts[p] if k % 2 else p for k, p in enumerate(pieces))


def embedded(value: Any) -> str:
    """JSON that nothing in an HTML file can end or read as markup."""
    text = json.dumps(_cleaned(value), ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(k)): _cleaned(v) for k, v in value.items()}
    return [_cleaned(v) for v in value] if isinstance(value, list | tuple) else value


def _label(side: Side | None) -> str:
    return side.label if side else "nothing"


def data(report: Report) -> dict[str, Any]:
    """What the page shows, in words and numbers; layout is the page's, but for drawings."""
    beside = trees.rows(report)
    return {
        "base": _side(report.base), "head": _side(report.head),
        "verdicts": _verdicts(report),
        "sizes": words.at(report), "tally": words.tally(report),
        "metrics": [_metric(m) for m in words.rows(report)],
        "edits": [_edit(n, e, report) for n, e in enumerate(report.edits, 1)],
        "tree": trees.data(beside),
        "tensors": [_tensor(t) for t in report.tensors],
        "notes": list(report.notes),
        "diagnostics": [*report.diagnostics, *["A limit was reached, so some nodes were not matched."] * report.truncated],
        "wiring": wiring.drawings(report, beside), "sources": source.sources(report), "layers": layers.tabs(report.layers),
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {"label": side.label, "name": side.name, "structure": side.structure, "identity": side.identity,
            "facts": f"{side.parameters:,} parameters in {side.tensors:,} tensors"}


# verdicts


def _verdicts(report: Report) -> list[dict[str, Any]]:
    """None of a spec that has nothing to be compared with."""
    if report.base is None or report.head is None:
        return []
    return [_function(report), _checkpoint(report), _contracts("interface", report.verdict.interface),
            _contracts("cache", report.verdict.cache), _cost(report)]


def _function(report: Report) -> dict[str, Any]:
    tone, text = FUNCTIONS[report.verdict.function]
    return _verdict("function", tone, report.verdict.function, text)


def _checkpoint(report: Report) -> dict[str, Any]:
    tone, text = CHECKPOINTS[report.verdict.checkpoint]
    bar = [[s, report.elements(s, "base" if s == "dropped" else "head")] for s in STATUSES if report.count(s)]
    silent = [n for n, e in enumerate(report.edits, 1) if e.id in report.verdict.silent]
    return _verdict("checkpoint", tone, report.verdict.checkpoint, text) | {
        "facts": [t for t in (words.tensors(report), _share(report), words.loads(report)) if t], "bar": bar, "silent": silent}


def _share(report: Report) -> str:
    """How much of the head an old checkpoint fills."""
    whole = sum(report.elements(s, "head") for s in ("kept", "renamed", "reshaped", "new"))
    kept = report.elements("kept", "head") + report.elements("renamed", "head")
    if not whole or not report.changed:
        return ""
    return f"{kept:,} of {whole:,} parameters ({100 * kept / whole:.2f}%) load unchanged"


def _contracts(name: str, found: Sequence[Contract]) -> dict[str, Any]:
    if not found:
        text = "Inputs and outputs are as before." if name == "interface" else "What decoding keeps has the layout of before."
        return _verdict(name, "ok", "unchanged", text)
    worst = max((c.level for c in found), key=LEVELS.index)
    word = f"{len(found)} change{'s' if len(found) > 1 else ''}" if name == "interface" else "layout changed"
    items = [{"name": c.name, "rule": c.rule, "before": c.before, "after": c.after, "level": c.level} for c in found]
    return _verdict(name, TONES[worst], word, "") | {"items": items}


def _cost(report: Report) -> dict[str, Any]:
    changed = [m for m in words.rows(report) if m.delta]
    if not changed:
        return _verdict("cost", "ok", "unchanged", "Every cost is as before.")
    first = changed[0]
    word = f"{_percent(first.percent)} {_name(first.name)}" if first.percent is not None else f"{first.delta:+,}"
    rest = [f"{_name(m.name)} {_percent(m.percent)}" for m in changed[1:] if m.percent is not None]
    return _verdict("cost", "note", word, "; ".join(rest))


def _verdict(name: str, tone: str, word: str, text: str) -> dict[str, Any]:
    return {"name": name, "tone": tone, "word": word, "text": text}


# costs


def _name(metric: str) -> str:
    return words.METRICS.get(metric, metric)


def _metric(m: Metric) -> dict[str, Any]:
    return {"key": m.name, "name": words.cost(m), "before": _amount(m, m.before), "after": _amount(m, m.after), "delta": m.delta,
            "deltaText": _amount(m, m.delta, True), "percent": m.percent, "percentText": _percent(m.percent) if m.delta else ""}


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}%".replace("-", "−")


def _amount(m: Metric, n: int | None, signed: bool = False) -> list[str]:
    """[as people say it, exactly]; the second is empty where the first is exact."""
    if n is None or (signed and n == 0):
        return ["not known" if n is None else "0", ""]
    said, exact = words.amount(m, n), f"{n:,}{' B' if m.unit == 'bytes' else ''}"
    texts = [said, exact if said != exact else ""]
    return [(f"+{t}" if signed and n > 0 and t else t).replace("-", "−") for t in texts]


# edits


def _edit(number: int, e: Edit, report: Report) -> dict[str, Any]:
    by = {m.name: m for m in words.rows(report)}
    deltas = [{"key": k, "name": _name(k), "delta": n, "text": _amount(by[k], n, True)} for k, n in e.deltas.items() if k in by]
    return {
        "n": number, "id": e.id, "rule": e.rule, "what": _what(e.rule), "level": e.level, "symbol": e.symbol, "title": e.title,
        "before": _value(e.before), "after": _value(e.after), "where": [{"text": str(w), "key": trees.key(w)} for w in e.where],
        "keys": list(e.keys), "base": _place(e.base), "head": _place(e.head), "accepted": bool(e.accepted), "contracts": list(e.contracts),
        "checkpoint": e.checkpoint, "checkpointText": CHECKPOINTS[e.checkpoint][1], "deltas": deltas, "notes": list(e.notes),
        "consequences": [_consequence(c) for c in e.consequences], "tensors": [_tensor(t) for t in e.tensors],
        "conversion": e.conversion and {"kind": e.conversion.kind, "op": e.conversion.op, "text": e.conversion.text},
        "evidence": e.evidence if e.evidence != "path" else "",
    }


def _place(at: Place | None) -> list[Any] | None:
    return [at.file, at.line] if at else None


def _what(rule: str) -> str:
    """A rule in words."""
    verb = rule.rpartition("-")[2].rpartition(".")[2]
    found = RULES.get(rule)
    return f"{found.text}: {verb}" if found else rule


def _consequence(c: Consequence) -> dict[str, Any]:
    return {"rule": c.rule, "what": _what(c.rule), "where": str(c.where), "key": trees.key(c.where), "before": _value(c.before),
            "after": _value(c.after), "note": c.note}


def _value(x: Any) -> str | None:
    return None if x is None else words.value(x)


def _tensor(t: TensorChange) -> dict[str, Any]:
    shape = lambda s: None if s is None else " × ".join(map(str, s)) or "scalar"  # noqa: E731
    side = "base" if t.status == "dropped" else "head"
    return {"status": t.status, "base": t.base and str(t.base), "head": t.head and str(t.head), "before": shape(t.before),
            "after": shape(t.after), "count": t.count, "elements": f"{t.elements(side):,}"}  # type: ignore[arg-type]

