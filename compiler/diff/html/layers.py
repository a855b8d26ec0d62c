"""What a comparison tells beside the specs (the key map, claims that were run, a weight file, exported files) as tables of the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...costs.quantity import short
from ..file_layer import AS_IS
from ..formats.layer_words import counts, engines, ran, said, stops, told

Table = dict[str, Any]
MEASURED = "measured"
CLAIMS = {True: "holds", False: "wrong", None: "not decided"}
FIRST = re.compile(r"\{(\d+)[^}]*\}")             # of folded copies, the first: `layers.{0..11}.norm`


def tabs(layers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One tab for each layer: its name, notes, and its tables."""
    return [{"id": name, **TABS.get(name, _other)(value)} | {"title": TITLES.get(name, name)} for name, value in layers.items()]


def table(title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], quiet: Sequence[str] = ()) -> Table:
    """Columns are (name, kind) with a kind that the page knows; rows whose first cell is in `quiet` are shown when they are asked for."""
    return {"title": title, "columns": [list(c) for c in columns], "rows": [list(r) for r in rows], "quiet": list(quiet)}


def _keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    made = {t["to"] for t in keys["tensors"] if t["from"] == [t["to"]]}
    rows = [(r["kind"], r["to"], r["from"] or ("itself" if FIRST.sub(r"\1", r["to"]).partition(", ")[0] in made else ""), r["text"])
            for r in keys["folded"]]
    columns = [("What", "status"), ("New tensor", "path"), ("Made of", "path"), ("How", "prose")]
    out = [table("How every tensor is made", columns, rows, ["same"])]
    stuck = [(e["kind"], e["title"], "; ".join(e["why"])) for e in stops(keys)]
    if stuck:
        out.insert(0, table("Edits that no tensor can follow", [("What", "status"), ("Edit", "code"), ("Why", "prose")], stuck))
    return {"notes": [f"{keys['kind']}: {counts(keys)}"], "tables": out}


def _claims(claims: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = []
    for c in claims:
        result = MEASURED if c["claim"] == MEASURED else CLAIMS[c["holds"]]
        rows.append((result, c["what"], c["claim"], c["said"], [ran(r) for r in c["runs"]]))
    columns = [("Result", "status"), ("Edit", "code"), ("Claim", "text"), ("Found", "prose"), ("Runs", "list")]
    return {"notes": [f"run with the same weights: {engines(claims)}"], "tables": [table("Claims that were run", columns, rows)]}


def _weights(layer: Mapping[str, Any]) -> dict[str, Any]:
    columns = [("What", "status"), ("Tensors", "path"), ("", "text")]
    tables = [table(f"As a checkpoint of the {side}", columns, [(r["status"], r["names"], r["text"]) for r in layer[side]["rows"]], [AS_IS])
              for side in ("head", "base")]
    return {"notes": list(told(layer)), "tables": tables}


def _onnx(layer: Mapping[str, Any]) -> dict[str, Any]:
    notes = [layer["note"]] if layer["note"] else []
    if not layer["sides"]:
        return {"notes": notes, "tables": []}
    a, b = layer["sides"]
    found = [(f["level"], f["rule"], f["where"], f["count"], [said(f["before"]), said(f["after"])], f["note"]) for f in layer["findings"]]
    columns = [("Level", "level"), ("Rule", "code"), ("Where", "path"), ("Count", "number"), ("Change", "change"), ("Why", "prose")]
    ops = sorted({*a["ops"], *b["ops"]})
    changes = [(n, a["ops"].get(n, 0), b["ops"].get(n, 0), b["ops"].get(n, 0) - a["ops"].get(n, 0)) for n in ops]
    both = [("", "text"), ("Base", "text"), ("Head", "text")]
    counts = [("Op", "code"), ("Before", "number"), ("After", "number"), ("Delta", "delta")]
    tables = [table("Findings", columns, found)] if found else []
    return {"notes": notes if found else [*notes, "nothing differs"],
            "tables": [*tables, table("Files", both, _facts(a, b)), table("Ops", counts, changes)]}


def _facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    facts: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("file", lambda x: str(x["label"])), ("target", lambda x: str(x["target"])), ("dtype", lambda x: str(x["dtype"])),
        ("kind", lambda x: str(x["kind"])), ("opsets", lambda x: ", ".join(f"{k} {v}" for k, v in x["opsets"].items())),
        ("ops", lambda x: f"{sum(x['ops'].values()):,}"), ("fused sites", lambda x: f"{x['fused']:,} of {x['sites']:,}"),
        ("weights", lambda x: f"{x['weights']:,}"), ("bytes of weights", lambda x: f"{short(x['bytes'], 'B')}")]
    return [(name, of(a), of(b)) for name, of in facts]


def _other(value: Any) -> dict[str, Any]:
    """A layer that has no form of its own."""
    return {"notes": [], "tables": [], "text": json.dumps(value, indent=2, ensure_ascii=False, default=str)}


TABS: dict[str, Callable[[Any], dict[str, Any]]] = {"keys": _keys, "verify": _claims, "onnx": _onnx,
                                                     "checkpoint": _weights}
TITLES = {"keys": "Key map", "verify": "Claims", "onnx": "ONNX", "checkpoint": "Weights"}
