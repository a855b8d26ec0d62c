"""nnspec: compile declarative specs of neural sequence models to PyTorch and ONNX.

`nnspec.load(path, sizes={...})` gives a `Model`; bad input raises `Diagnostics`, which holds everything that is wrong.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lang.diagnostic import Diagnostic, Diagnostics
    from .model import Model, import_checkpoint, load

__version__ = "0.1.0"
__all__ = ["Diagnostic", "Diagnostics", "Model", "__version__", "import_checkpoint", "load", "runtime"]

_HOMES = {"Diagnostic": ".lang.diagnostic", "Diagnostics": ".lang.diagnostic", "Model": ".model", "load": ".model",
          "import_checkpoint": ".model", "runtime": None}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnspec' has no attribute {name!r}")
    home = _HOMES[name]
    return import_module(".runtime", __name__) if home is None else getattr(import_module(home, __name__), name)
