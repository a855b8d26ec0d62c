"""ONNX Runtime's errors, told with the path and the spec line of the node they are about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ArtifactError

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_SOURCE = re.compile(r"/\S*onnxruntime\S*\.(?:h|cc|cpp|cu|cuh):\d+ ")


@dataclass(frozen=True)
class Node:
    """A node of the model file: its name, operator, path in the spec and line, where the file records them."""

    name: str
    op: str
    path: str | None
    line: str | None

    @property
    def text(self) -> str:
        return f"`{self.path or self.name}`" + (f" ({self.line})" if self.line else "")


def explain(code: str, doing: str, model: Path, error: Exception) -> ArtifactError:
    """The problem behind an exception of ONNX Runtime; `doing` begins the headline ("the model cannot be loaded")."""
    message = plain(error)
    node = find(message, list(nodes(model)))
    said = f"ONNX Runtime says: {message}"
    if node is None:
        return ArtifactError(code, doing, said)
    return ArtifactError(code, f"{doing}: {node.op} of {node.text} fails", (f"node `{node.name}`", said))


def plain(error: Exception) -> str:
    """The message of an exception of ONNX Runtime in one line, without its code and source files."""
    return " ".join(_SOURCE.sub("", _PREFIX.sub("", str(error))).split())


def find(message: str, known: list[Node]) -> Node | None:
    """The node a message is about: the longest name in it, else the first node of an operator that it calls `domain:Op(`."""
    quoted = {m for pair in re.findall(r"[Nn]ame:? ?'([^']+)'|Node \(([^)]+)\)", message) for m in pair if m}
    exact = [n for n in known if n.name in quoted]
    # A fused node's name, invented by ONNX Runtime, contains those of its parts.
    near = exact or [n for n in known if n.name and any(n.name in q for q in quoted)]
    if near:
        return max(near, key=lambda n: len(n.name))
    operator = re.search(r"\b[\w.]+:(\w+)\(-?\d+\)", message)
    return next((n for n in known if operator and n.op == operator[1]), None)


def nodes(model: Path) -> Iterator[Node]:
    """The nodes of an ONNX file with those of their subgraphs and functions; none when the file is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        loaded = onnx.load(model, load_external_data=False)
    except (DecodeError, OSError):
        return
    for graph in (loaded.graph, *loaded.functions):
        yield from _inside(graph)


def of(node: Any) -> Node:
    """A node of an ONNX graph as the spec knows it."""
    data = {p.key: p.value for p in node.metadata_props}
    return Node(node.name, node.op_type, data.get("nnspec.path"), data.get("nnspec.line"))


def _inside(graph: Any) -> Iterator[Node]:
    for node in graph.node:
        yield of(node)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _inside(inner)
