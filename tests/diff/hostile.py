"""A report with hostile text wherever a file may fill some in."""

from dataclasses import replace

from nnspec.diff.file_layer import STATUSES
from nnspec.diff.report import Consequence, Contract, Conversion, Edit, Metric, Outline, Place, Report, Side, TensorChange, Verdict, Where

LONG = "a_name_of_ten_thousand_letters_" * 334
HOSTILE = ("</script><script>window.hit = 1</script>", "<img src=x onerror='window.hit = 2'>", "\"'`${window.hit = 3}", "<!--<script>",
           "\u202egnp.exe", "עברית و عربي", "\ud800 \u2028 \u0000", "&lt;b&gt; &amp;", "javascript:window.hit=4", LONG, "")


def hostile_onnx(t):
    sides = [{"label": t[k], "target": t[k + 1], "dtype": t[k + 2], "kind": t[k + 3], "opsets": {t[k + 4]: 17}, "ops": {t[k]: 3},
              "sites": 5, "fused": 2, "weights": 7, "bytes": 2**21} for k in (0, 1)]
    return {"sides": sides, "note": t[1], "findings": [{"rule": t[2], "level": "warning", "where": t[3], "before": t[4], "after": None,
                                                        "count": 3, "note": t[5]}]}


def hostile_keys(t):
    return {"kind": "approx", "counts": {"same": 3, "approx": 1, "dropped": 0}, "tensors": [],
            "folded": [{"kind": "approx", "to": t[0], "from": t[1], "text": t[2]}, {"kind": "same", "to": t[3], "from": "", "text": ""}],
            "edits": [{"kind": "silent", "title": t[4], "rule": t[5], "why": [t[6], t[7]]}]}


def hostile_claims(t):
    return [{"what": t[0], "claim": t[3], "holds": None, "note": t[1], "text": t[2], "said": t[4],
             "runs": [{"engine": t[5], "dtype": t[6], "said": t[7], "ran": True}]}]


def hostile_weights(t):
    rows = [{"status": s, "names": t[k], "text": t[k + 1]} for k, s in enumerate(STATUSES)]
    side = {"fits": False, "counts": {s: 3 for s in STATUSES}, "rows": rows}
    return {"file": t[0], "tensors": 5, "dtypes": {t[1]: 5}, "base": side, "head": side, "silent": True}


def hand_made(texts=HOSTILE):
    """A report with a text of its own in every field that a file may fill."""
    t = [texts[k % len(texts)] for k in range(40)]
    where = Where(f"layers.{{i}}.{t[0]}", ((0, 2, 4),))
    outline = tuple(Outline(Where(n), n, t[k], t[k + 1], 3, {t[k + 2]: t[k + 3]}, {t[k + 4]: t[k + 5]}) for k, n in enumerate(texts))
    written = [{t[0]: "\n".join(texts[k:]), t[k]: "\n".join(texts)} for k in (0, 1)]
    sides = [Side(t[k], t[k + 1], t[k + 2], t[k + 3], 17 + k, 5, outline[k:len(outline) - 1 + k], {t[k]: t[k + 1]}, written[k])
             for k in (0, 1)]
    edit = Edit("norm.eps-changed", "warning", "~", t[1], t[2], [t[3], {t[4]: t[5]}], (where, Where(t[6])), (t[7], t[8]), Place(t[9], 3, 1),
                Place(t[0], 4, 2), ("cost",), "silent", (Consequence(t[1], Where(t[2]), t[3], t[4], t[5]),),
                (TensorChange("reshaped", where, where, (3, 5), (3, 7)),), {"parameters": 18},
                Conversion("approx", t[6], t[7]), t[8], (t[9], t[1]))
    levels = ("breaking", "warning", "info")
    edits = tuple(replace(edit, title=x, rule=f"rule-{k}", level=levels[k % 3]) for k, x in enumerate(texts))
    contracts = tuple(Contract("interface.input-changed", x, x, x, "breaking") for x in texts)
    layers = {"onnx": hostile_onnx(t), "keys": hostile_keys(t), "verify": hostile_claims(t), "checkpoint": hostile_weights(t),
              t[0]: {x: [x, 3] for x in texts}}
    return Report(*sides, Verdict("changed", "silent", (edits[0].id,), contracts, contracts), edits, edit.tensors,
                  (Metric("parameters", "numbers", 17, 35), Metric("cache", "bytes", None, 2**21)), {"B": 1, t[3]: 7}, texts, texts, True,
                  layers=layers)
