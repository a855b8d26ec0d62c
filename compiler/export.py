"""Export: emit the graph, write the artifact folder with its weights, and certify it against PyTorch."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends.onnx import Emitted, emit, write
from .certify import certify
from .lang.diagnostic import Diagnostics, diagnostic
from .runtime.manifest import Manifest
from .runtime.manifest import write as write_manifest

if TYPE_CHECKING:
    from .model import Model

LARGEST = 3_000_000_000            # parameters that a certificate builds a PyTorch module for


def export(model: Model, folder: Path, weights: Any, init: int | None, target: str, dtype: str, certificate: str,
           without: frozenset[str]) -> Manifest:
    """See `Model.export`."""
    if (weights is None) == (init is None):
        raise Diagnostics([diagnostic("bad-command", "an export needs either weights or the seed of random ones",
                                      help="give `weights`, or `init`; on the command line `--weights FILE` or `--init SEED`")])
    text = model.spec_text
    emitted = emit(model.lowered, target, dtype, without, text)
    with ExitStack() as stack:
        module, tensors = _weights(model, weights, init, certificate != "none", stack)
        manifest = write(emitted, folder, tensors)
        if certificate == "none":
            found: dict[str, Any] = {"status": "none"}
        elif dtype == "bfloat16":
            found = _twin(model, module, tensors, target, certificate, without, text)
        else:
            found = certify(folder, module, dtype, certificate == "full")
        manifest = replace(manifest, certificate=found)
        write_manifest(folder, manifest)
    return manifest


def _weights(model: Model, weights: Any, init: int | None, module_needed: bool, stack: ExitStack) -> tuple[Any, Any]:
    """The PyTorch module (None when not needed) and a function from a parameter's path to its array."""
    if module_needed and model.parameters > LARGEST:
        raise Diagnostics([diagnostic(
            "too-large", f"a certificate compares with a PyTorch module, and {model.parameters:,} parameters are too many to build one here",
            help="export with `--certify none`, and certify the same spec with smaller `--set` sizes")])
    if weights is None or module_needed or not isinstance(weights, str | Path):
        file = weights if isinstance(weights, str | Path) else None
        module = weights if weights is not None and file is None else model.module(seed=init, weights=file)
        state = module.state_dict()
        return module, lambda path: _array(state[path])
    from .weights import open_weights
    return None, model.loader(stack.enter_context(open_weights(weights)))


def _array(tensor: Any) -> Any:
    import torch
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _twin(model: Model, module: Any, tensors: Any, target: str, certificate: str, without: frozenset[str], text: str) -> dict[str, Any]:
    """bfloat16 does not run on the CPU: the same graph and weights in float32 are certified instead, and labelled so."""
    with tempfile.TemporaryDirectory() as scratch:
        twin: Emitted = emit(model.lowered, target, "float32", without, text)
        write(twin, Path(scratch), tensors)
        found = certify(Path(scratch), module, "float32", certificate == "full")
        return found | {"note": "certified on its float32 twin: bfloat16 runs on CUDA only"}
