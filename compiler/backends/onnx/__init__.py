"""The ONNX backend: `emit` makes the model of a typed graph, `write` an artifact folder with its weights."""

from .emit import Emitted, emit
from .write import write

__all__ = ["Emitted", "emit", "write"]
