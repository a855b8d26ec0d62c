"""Where the time of a run goes, by path in the spec: ONNX Runtime's profile, read back through the names of nodes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .origin import nodes
from .session import Artifact
from .session import open as open_artifact

RUNS = 5
OTHER = "(ONNX Runtime's own)"        # nodes that it put in, and names after none of the model's
_END = "_kernel_time"


@dataclass(frozen=True)
class Spent:
    """The time of the nodes under one path: milliseconds and node executions of one run, operators by their time."""

    path: str
    milliseconds: float
    share: float
    calls: float
    operators: tuple[str, ...]


def profile(folder: Path, arrays: Mapping[str, Any], device: str = "cpu", depth: int | None = None, **options: Any) -> list[Spent]:
    """Run an artifact on these inputs, once to warm up and `RUNS` times, and tell where the time went, longest first.

    Paths are cut to `depth` names. A loop's own time is without that of its body. `options` are those of `open`. Raises what `open`
    and calls raise.
    """
    with tempfile.TemporaryDirectory() as scratch:
        artifact: Artifact = open_artifact(folder, device, profile=Path(scratch) / "profile", **options)
        for _ in range(1 + RUNS):
            artifact(**arrays)
        events = json.loads(artifact.end_profile().read_text(encoding="utf-8"))
    found = list(nodes(artifact.folder / artifact.manifest.model.file))
    return spent(events, {n.name: n.path or n.name for n in found if n.name}, depth)


def spent(events: Iterable[Mapping[str, Any]], paths: Mapping[str, str], depth: int | None = None) -> list[Spent]:
    """The events of a profile by path; `paths` gives that of each node of the model. The first run is left out."""
    events = list(events)
    runs = sorted(e["ts"] + e["dur"] for e in events if e["name"] == "model_run")
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_END) and e["ts"] >= runs[0]]
    places = {name: _place(name.removesuffix(_END), paths, depth) for name in {e["name"] for e in kernels}}
    time: dict[str, dict[str, float]] = {}
    calls: dict[str, int] = {}
    for event, own in _own(kernels):
        place, op = places[event["name"]], event["args"].get("op_name", "")
        held = time.setdefault(place, {})
        held[op] = held.get(op, 0) + own
        calls[place] = calls.get(place, 0) + 1
    total, count = sum(sum(held.values()) for held in time.values()), len(runs) - 1
    made = [Spent(place, sum(held.values()) / count / 1000, sum(held.values()) / (total or 1), calls[place] / count,
                  tuple(sorted(held, key=lambda op: -held[op]))) for place, held in time.items()]
    return sorted(made, key=lambda s: -s.milliseconds)


def _own(events: list[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Each event with its duration in microseconds less that of the events inside it."""
    own: list[list[Any]] = []
    outer: list[list[Any]] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while outer and outer[-1][0]["ts"] + outer[-1][0]["dur"] <= event["ts"]:
            outer.pop()
        if outer:
            outer[-1][1] -= event["dur"]
        entry = [event, float(event["dur"])]
        own.append(entry)
        outer.append(entry)
    return [(event, max(time, 0.0)) for event, time in own]


def _place(name: str, paths: Mapping[str, str], depth: int | None) -> str:
    """The path of a node; one that ONNX Runtime fused or put in carries the name of a node in its own."""
    known = name if name in paths else max((n for n in paths if n in name), key=len, default=None)
    return ".".join(paths[known].split(".")[:depth]) if known is not None else OTHER
