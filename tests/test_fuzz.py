"""Broken specs: whatever is done to a spec, what comes back is a typed graph or diagnostics, soon and each once."""

import re
import time
from pathlib import Path

import pytest
from mutate import mutant
from nnspec.explain import codes
from nnspec.lang.diagnostic import Diagnostics
from nnspec.library import BLOCKS, MODELS
from nnspec.pipeline import front
from nnspec.render import render, render_github, render_json

SPECS = [*sorted(MODELS.glob("*.yaml")), *sorted((Path(__file__).parent / "specs" / "hard").glob("*.yaml"))]
MUTANTS = 10                                    # of each spec
SECONDS = 5.0                                   # for one mutant, at most
LEAK = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b| object at 0x|<class |Dim\(|Scalar\(|Span\(|Error:")   # Python in a message
NO_PLACE = {"file-not-found", "file-not-readable"}
PAGES = set(codes())


def findings(files, folder):
    """What is said of the files, or nothing for a spec that is right."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    try:
        compiled = front(folder / "spec.yaml")
    except Diagnostics as found:
        return found.items
    compiled.lowered()
    return compiled.warnings + compiled.over


def complaints(items, texts):
    """What is wrong with the findings themselves."""
    errors = [d for d in items if d.severity == "error"]
    for d in items:
        if d.code not in PAGES:
            yield f"{d.code} has no page"
        if not d.labels and d.code not in NO_PLACE:
            yield f"{d.code} shows no place"
        said = " ".join((d.headline, *d.notes, *d.helps, *(x.text for x in d.labels)))
        if (leak := LEAK.search(said)) and leak.group() not in texts:
            yield f"{d.code} speaks Python: {said}"
        for x in d.labels:
            if not 0 <= x.span.start <= x.span.stop <= len(x.span.source.text):
                yield f"{d.code} points beyond the file"
    if errors and any(d.code == "unused" for d in items):
        yield "a warning that follows from an error"
    places = [(d.code, d.headline, str(d.labels[0].span) if d.labels else "") for d in items]
    if len(set(places)) < len(places):
        yield f"the same is said twice: {max(places, key=places.count)}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_broken_specs(spec, tmp_path):
    first = 1000 * SPECS.index(spec)
    for seed in range(first, first + MUTANTS):
        files = mutant(spec, BLOCKS, seed)
        began = time.process_time()
        items = findings(files, tmp_path)
        assert time.process_time() - began < SECONDS, f"seed {seed} takes too long"
        assert list(complaints(items, " ".join(files.values()))) == [], f"seed {seed}"
        assert (render(items) == "") == (items == ())
        assert render_json(items).startswith("{") and render_github(items).count("\n") == len(items)


def test_mutations_reach_every_stage(tmp_path):
    """The mutants are of use: they break the YAML, the structure, the names, the numbers and the shapes."""
    seen = {d.code for seed in range(80) for d in findings(mutant(SPECS[seed % 4], BLOCKS, seed), tmp_path)}
    assert {"yaml-syntax", "bad-spec", "unknown-key", "unknown-name", "bad-expression", "missing-key", "missing-port"} <= seen
