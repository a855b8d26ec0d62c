"""Pieces of text that all layouts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...costs.quantity import short
from ..graphs.concepts import number
from ..report import Contract, Edit, Metric, Report, Where
from ..verdict import plain_load

METRICS = {"parameters": "parameters", "active": "active parameters", "weights": "weights", "flops": "prefill FLOPs",
           "decode": "decode FLOPs/token", "cache": "cache of a row", "peak": "peak activation"}
FUNCTION = {"identical": "identical", "equal-up-to-names": "equal up to names", "training-only": "the same at inference",
            "changed": "changed"}
SHOWN = ("parameters", "flops", "decode", "cache", "peak")
LISTED = 12                     # specs that are named in a line
# changes that no tensor shows
UNSEEN = {
    "norm.placement-changed": "norms stand elsewhere", "norm.eps-changed": "norms have another eps",
    "norm.offset-changed": "norms add another offset to their weights", "attention.heads-changed": "heads are cut otherwise",
    "attention.window-changed": "queries see other keys", "attention.causal-changed": "queries see other keys",
    "attention.scale-changed": "scores have another scale", "attention.softcap-changed": "scores have another cap",
    "position.theta-changed": "rotary frequencies differ", "position.scaling-changed": "rotary frequencies differ",
    "position.layout-changed": "other pairs are turned", "ffn.activation-changed": "the activation is another",
    "moe.top-k-changed": "rows go to another number of experts", "block.moved": "layers run in another order",
}


def value(v: Any) -> str:
    """A value of a spec, in words."""
    if v is None:
        return "none"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, dict):
        return ", ".join(f"{k}={value(x)}" for k, x in v.items())
    if isinstance(v, list):
        return "[" + ", ".join(map(value, v)) + "]"
    return number(v)


def change(edit: Edit) -> str:
    """`12 -> 4`; empty where there are no values."""
    if edit.before is None and edit.after is None:
        return ""
    return f"{value(edit.before)} -> {value(edit.after)}"


def places(where: tuple[Where, ...], most: int = 2) -> str:
    """`layers[0..11].attention_norm, .ffn_norm, norm`"""
    shown: list[str] = []
    stem = ""
    for w in where[:most + 1] if len(where) == most + 1 else where[:most]:
        text = str(w)
        head, dot, last = text.rpartition(".")
        shown.append(f".{last}" if dot and head == stem else text)
        stem = head if dot else ""
    more = len(where) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def listed(names: list[str]) -> str:
    """`layers.{i}.key, .value`"""
    stem = names[0].rpartition(".")[0]
    return ", ".join([names[0], *(n[len(stem):] if stem and n.rpartition(".")[0] == stem else n for n in names[1:])])


def ends(c: Contract) -> tuple[str, str]:
    """Both sides of a contract in words."""
    nothing = "no bound" if c.rule == "interface.input-bound-changed" else "none"
    return c.before or nothing, c.after or nothing


def named(c: Contract) -> str:
    """What a contract is about, where its sides do not say it: a bound names its dimension, a state that moved its node."""
    said = c.before or c.after or ""
    return "" if c.rule == "interface.input-bound-changed" or said.startswith(f"{c.name}: ") else c.name


def silent(edit: Edit) -> str:
    """What of an edit no load notices; empty where there is nothing."""
    own = [c.rule for c in edit.consequences if edit.checkpoint == "silent" or c.rule in UNSEEN]
    parts = list(dict.fromkeys(UNSEEN.get(rule, "") for rule in own))
    said = ", ".join(filter(None, parts)) or "the function is another"
    if edit.checkpoint == "silent":
        return f"silent: every tensor fits as before, but {said}"
    return f"silent part: {said}" if own and edit.checkpoint not in ("same", "renamed") else ""


def unseen(report: Report) -> str:
    """The edits that no load notices, by name; of those that are not shown, how many."""
    names = list(dict.fromkeys(e.title for e in report.edits if e.id in report.verdict.silent))
    more = len(report.verdict.silent) - sum(e.id in report.verdict.silent for e in report.edits)
    rest = [] if not more else [f"{more} more" if names else f"{more} edit{'s' * (more > 1)}"]
    said = " and ".join([*([", ".join(names)] if names else []), *rest])
    return f"{said}: no load notices, for names and shapes fit, and the function is another"


def share(report: Report) -> str:
    """How much of the head an old checkpoint fills by names and shapes; empty where a strict load fills all of it."""
    whole = sum(report.elements(s, "head") for s in ("kept", "renamed", "reshaped", "new"))
    kept = report.elements("kept", "head")
    return f"{100 * kept / whole:.1f}% of parameters fit" if 0 < whole != kept and any(plain_load(report.tensors)) else ""


def amount(m: Metric, n: int | None) -> str:
    """A metric as a person reads it: numbers in full, others with a unit."""
    if n is None:
        return "-"
    if m.unit == "numbers":
        return f"{n:,}"
    return short(n, "B" if m.unit == "bytes" else "")


def signed(text: str, n: int | None) -> str:
    return text if not n or n < 0 else f"+{text}"


def percent(m: Metric) -> str:
    if m.percent is None or not m.delta:
        return ""
    return f"{m.percent:+.2f}%" if abs(m.percent) >= 0.005 else "<0.01%"


def cost(m: Metric) -> str:
    """What a row of costs is called: of a peak, where it is too."""
    return METRICS[m.name] + (f" {m.note}" if m.note else "")


def rows(report: Report, names: tuple[str, ...] = SHOWN) -> list[Metric]:
    """The metrics that are told: active parameters only where they differ from all of them."""
    by = {m.name: m for m in report.metrics}
    found = [by[n] for n in names if n in by and (by[n].before is not None or by[n].after is not None)]
    if (active := by.get("active")) and (active.before, active.after) != (by["parameters"].before, by["parameters"].after):
        found.insert(1, active)
    return found


def tensors(report: Report) -> str:
    """`148 kept, 48 reshaped`"""
    return ", ".join(f"{n:,} {status}" for status in ("kept", "renamed", "reshaped", "new", "dropped") if (n := report.count(status)))


def loads(report: Report) -> str:
    """What PyTorch does with the old checkpoint."""
    missing, unexpected, shapes = plain_load(report.tensors)
    if report.base is None or report.head is None:
        return ""
    if not missing and not unexpected and not shapes:
        return "a strict load succeeds"
    said = [f"{n:,} {word}" for n, word in ((missing, "missing"), (unexpected, "unexpected"), (shapes, "reshaped")) if n]
    return f"a strict load fails: {', '.join(said)}; strict=False {'fails too' if shapes else 'loads the rest silently'}"


def shared(reports: Sequence[Report]) -> list[str]:
    """What files that differ do to the specs that use them: `parts/mine.yaml differs, and 2 of the 3 specs that use it change: ...`"""
    users: dict[str, list[Report]] = {}
    for r in reports:
        for file in r.uses:
            users.setdefault(file, []).append(r)
    out = []
    for file, some in sorted(users.items()):
        names = [side.label for r in some if r.changed and (side := r.head or r.base)]
        whole = f"{len(some)} spec{'s' if len(some) > 1 else ''} that use{'s' if len(some) == 1 else ''} it"
        if not names:
            out.append(f"{file} differs, and none of the {whole} changes")
            continue
        all_ = len(names) == len(some)
        count = f"the {whole}" if all_ and len(some) == 1 else f"all {whole}" if all_ else f"{len(names)} of the {whole}"
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        out.append(f"{file} differs, and {count} change{'s' if len(names) == 1 else ''}: {', '.join(names[:LISTED])}{more}")
    return out


def at(report: Report) -> str:
    """The sizes and the dtype of costs: `B=1 S=1024 float16`."""
    return " ".join([*(f"{k}={v}" for k, v in report.sizes.items()), *([report.dtype] if report.dtype else [])])


def tally(report: Report) -> str:
    """`5 edits: 4 breaking, 1 warning`"""
    levels = [e.level for e in report.edits]
    n = len(levels)
    kinds = ", ".join(f"{levels.count(k)} {k}" for k in ("breaking", "warning", "info") if k in levels)
    return f"{n} edit{'s' if n != 1 else ''}: {kinds}" if n else "no edits"
