"""Export: emit the graph, write an artifact with its weights, certify it against PyTorch, and put it into its folder.

What cannot be certified as it is gets a twin that can, and the certificate says so: bfloat16 files (they run on CUDA only) are
certified in float32, and models too large for a PyTorch module with one copy of each distinct layer and random weights.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends.onnx import emit, write
from .certify import certify
from .ir.graph import Graph
from .ir.twin import twin
from .lang.diagnostic import Diagnostics, diagnostic
from .runtime.manifest import Manifest

if TYPE_CHECKING:
    from .model import Model

LARGEST = 3_000_000_000            # parameters above which no PyTorch module is built


def export(model: Model, folder: Path, weights: Any, init: int | None, target: str, dtype: str, certificate: str,
           without: frozenset[str]) -> Manifest:
    """See `Model.export`."""
    if (weights is None) == (init is None):
        raise Diagnostics([diagnostic("bad-command", "an export needs either weights or the seed of random ones",
                                      help="give `weights`, or `init`; on the command line `--weights FILE` or `--init SEED`")])
    emitted = emit(model.lowered, target, dtype, without, model.spec_text)
    large = model.parameters > LARGEST
    with ExitStack() as stack:
        module, tensors = _weights(model, weights, init, certificate != "none" and not large, stack)

        def check(folder: Path) -> dict[str, Any]:
            full, twin_dtype = certificate == "full", "float32" if dtype == "bfloat16" else dtype
            if certificate == "none":
                return {"status": "none"}
            if large:
                found = _twin(twin(model.lowered), None, target, twin_dtype, without, full)
                return found | {"note": "certified on a twin with one copy of each distinct layer and random weights"}
            if dtype == "bfloat16":
                found = _twin(model.lowered, module, target, twin_dtype, without, full)
                return found | {"note": "certified on its float32 twin: bfloat16 runs on CUDA only"}
            return certify(folder, module, _arguments(model.lowered), dtype, full)
        return write(emitted, folder, tensors, check)


def _arguments(graph: Graph) -> tuple[str, ...]:
    """The inputs in the order of the module's `forward`: those that may be absent come last."""
    return tuple(a.name for a in sorted(graph.root.arguments, key=lambda a: a.type.optional))


def _weights(model: Model, weights: Any, init: int | None, module_needed: bool, stack: ExitStack) -> tuple[Any, Any]:
    """The PyTorch module (None when not needed) and a function from a parameter's path to its array."""
    file = weights if isinstance(weights, str | Path) else None
    if file is not None and not module_needed:
        from .weights import open_weights
        return None, model.loader(stack.enter_context(open_weights(file)))
    module = weights if weights is not None and file is None else model.module(seed=init, weights=file)
    return module, _reader(module)


def _reader(module: Any) -> Any:
    state = module.state_dict()
    return lambda path: _array(state[path])


def _array(tensor: Any) -> Any:
    import torch
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _twin(graph: Graph, module: Any, target: str, dtype: str, without: frozenset[str], full: bool) -> dict[str, Any]:
    """Certify another graph, in another dtype or with random weights, in a folder of its own."""
    if module is None:
        from .backends.torch import build
        module = build(graph, seed=0)
    with tempfile.TemporaryDirectory() as scratch:
        write(emit(graph, target, dtype, without), Path(scratch), _reader(module))
        return certify(Path(scratch), module, _arguments(graph), dtype, full)
