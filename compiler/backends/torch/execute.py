"""`typed Graph -> nn.Module`: the emitted text, executed."""

from __future__ import annotations

import hashlib
import linecache
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ...ir.graph import Graph
from .emit import source_and_class


def build(graph: Graph, seed: int | None = 0, dtype: Any = None, device: Any = None) -> nn.Module:
    """The model as an nn.Module in eval mode: what `generate(graph)` says, executed.

    Initialisation draws from `seed` alone and leaves torch's generator as it was; with None it draws from that.
    Parameters are made on the CPU and then moved, so that a seed gives the same ones on every device; on `meta` nothing is
    allocated.
    """
    text, name = source_and_class(graph)
    cls = getattr(load(text, graph.name), name)
    place = torch.device("meta" if torch.device(device or "cpu").type == "meta" else "cpu")
    if seed is None:
        with place:
            made = cls()
    else:
        with torch.random.fork_rng(devices=[]), place:
            torch.random.default_generator.manual_seed(seed)
            made = cls()
    return made.to(device=device, dtype=dtype).eval()


def load(text: str, title: str) -> ModuleType:
    """The text as a module. It is registered by its content, so that tracebacks show lines and its objects pickle."""
    name = f"nnspec_generated_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    path = f"<nnspec {title} {name[-16:]}>"
    module = ModuleType(name)
    module.__file__ = path
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    sys.modules[name] = module
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
