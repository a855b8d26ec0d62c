"""Running artifacts: `nnspec.runtime.open(folder)(**arrays)`. ONNX Runtime is imported when a session is opened."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import load_inputs, random_inputs, save_npz
    from .errors import ArtifactError, ArtifactErrors
    from .manifest import Manifest
    from .session import Artifact, open

_HOMES = {
    "open": "session", "Artifact": "session", "Manifest": "manifest", "ArtifactError": "errors", "ArtifactErrors": "errors",
    "load_inputs": "data", "random_inputs": "data", "save_npz": "data",
}

__all__ = ["Artifact", "ArtifactError", "ArtifactErrors", "Manifest", "load_inputs", "open", "random_inputs", "save_npz"]


_MODULES = ("decoder", "generate")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
