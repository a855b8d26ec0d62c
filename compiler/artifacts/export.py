"""Export: emit the graph, write an artifact with its weights, certify it against PyTorch, and put it into its folder.

What cannot be certified as it is gets a twin that can, and the certificate says so: bfloat16 files (they run on CUDA only) are
certified in float32, and models too large for a PyTorch module with one copy of each distinct layer and random weights.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.onnx import emit, write
from ..backends.onnx.emit import Emitted
from ..backends.onnx.interface import interface
from ..checkpoints.weight_names import match_weights
from ..expect import REQUIRE_FUSED, unmet
from ..ir.graph import Graph
from ..ir.parameters import state_shapes
from ..ir.twin import twin
from ..lang.diagnostic import CheckFailed, Diagnostics, diagnostic
from ..printing import counted
from ..runtime.manifest import GENAI, STEP, Input, Manifest
from ..runtime.steps import Stream
from ..stages.stream import with_weights
from .certify import certify, chooses
from .plan import Plan

if TYPE_CHECKING:
    from ..model import Model
    from ..prove import Missing

LARGEST = 3_000_000_000            # parameters above which no PyTorch module is built


def export(model: Model, folder: Path, weights: Any, init: int | None, plan: Plan, certificate: str, require_fused: bool = False,
           prove: bool = False, no_weights: bool = False) -> Manifest:
    """See `Model.export`."""
    _check_weights(weights, init, no_weights, prove)
    if prove:
        _check_provable()
    graph = with_weights(model.lowered, plan.attention) if plan.attention else model.lowered
    made = _made(_Lowered(graph, model.spec_text), plan)
    if short := unmet([*model.contract, *([REQUIRE_FUSED] if require_fused else [])], made.sites, model.lowered, plan.target):
        raise CheckFailed(short)
    if no_weights:
        return made.write(folder, None, lambda at: {"certificate": {"status": "none"}})
    large = model.parameters > LARGEST
    with ExitStack() as stack:
        module, tensors = _weights(model, weights, init, certificate != "none" and not large, stack)

        def check(folder: Path) -> dict[str, Any]:
            full = certificate == "full"
            if certificate == "none":
                return {"status": "none"}
            if not large and plan.dtype != "bfloat16":
                return made.certify(folder, _told(module, graph, plan), graph, full)
            small = twin(model.lowered) if large else graph
            other = _made(_Lowered(small), replace(plan, dtype="float32" if plan.dtype == "bfloat16" else plan.dtype))
            found = _twin(other, small, None if large else _told(module, graph, plan), full)
            return found | {"note": "certified on a twin with one copy of each distinct layer and random weights" if large else
                            "certified on its float32 twin: bfloat16 runs on CUDA only"}
        if plan.quantize is None:
            return made.write(folder, tensors, lambda at: {"certificate": check(at), "proof": _proof(at) if prove else None})
        return _write_quantized(model, made, plan, folder, tensors, check)


def _write_quantized(model: Model, made: Made, plan: Plan, folder: Path, tensors: Any, check: Any) -> Manifest:
    """Write integer weights. The model before them, which lies beside for the time, has the certificate; the change is measured."""
    from .quantize import measured, texts
    assert plan.quantize is not None
    ids, (narrow, told) = texts(model.lowered, plan.quantize.ids), made.quantized()
    runs = (made, narrow)
    if plan.dtype == "bfloat16":                            # which runs on CUDA only
        before = _made(model, replace(plan, dtype="float32"))
        runs = (before, before.quantized()[0])
    whole = whole_inputs(model.lowered) if plan.package == "genai" or plan.form == STEP else ()

    def fields(at: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=at) as scratch:
            before, after = Path(scratch) / "before", Path(scratch) / "after"
            runs[0].files(before, tensors)
            found = check(before)
            if runs[1] is not narrow:
                runs[1].files(after, tensors)
            change = measured(before, after if runs[1] is not narrow else at, model.lowered, whole, ids)
        note = "of the model before its weights were quantised" + (f"; {found['note']}" if "note" in found else "")
        return {"certificate": found if found["status"] == "none" else found | {"note": note}, "quantization": told | change}
    return narrow.write(folder, tensors, fields)


@dataclass(frozen=True)
class _Lowered:
    """A graph that stands for a model."""

    lowered: Graph
    spec_text: str = ""


@dataclass(frozen=True)
class Made:
    """The models of an artifact: the whole one, or a step with its stream and prefix."""

    model: Emitted
    stream: Stream | None = None
    prefix: Emitted | None = None
    plan: Plan | None = None
    beside: Mapping[str, str] | None = None         # texts of files, by name

    @property
    def sites(self) -> tuple[Mapping[str, Any], ...]:
        return (*self.model.sites, *(self.prefix.sites if self.prefix else ()))

    def files(self, folder: Path, tensors: Any, check: Any = None) -> Manifest:
        """Write the artifact itself."""
        form = GENAI if self.beside is not None else None
        if tensors is None:
            return write(self.model, folder, None, check, self.stream, self.prefix, self.beside, form)
        with counted(tensors, len(self.model.shapes), "writing") as (read, stop):
            return write(self.model, folder, read, check and (lambda at: stop() or check(at)), self.stream, self.prefix, self.beside, form)

    def write(self, folder: Path, tensors: Any, check: Any) -> Manifest:
        """Write the artifact, into Triton's repository where the plan says so."""
        if self.plan is not None and self.plan.package == "triton":
            from .triton import place
            return place(folder, self.model.graph.name, self.plan, check, lambda at, check: self.files(at, tensors, check))
        return self.files(folder, tensors, check)

    def quantized(self) -> tuple[Made, dict[str, Any]]:
        """With integer weights, and what the manifest says of them."""
        from .quantize import quantized
        assert self.plan is not None and self.plan.quantize is not None
        models, told = quantized([self.model, *([self.prefix] if self.prefix else [])], self.plan.quantize)
        return replace(self, model=models[0], prefix=models[1] if self.prefix else None), told

    def certify(self, folder: Path, module: Any, graph: Graph, full: bool) -> dict[str, Any]:
        """The certificate of a folder, against the module of the whole graph."""
        if self.beside is not None:
            from .genai import certify_genai
            return certify_genai(folder, module, graph, arguments(graph), whole_inputs(graph), self.model.dtype)
        if self.stream is None:
            return certify(folder, module, arguments(graph), self.model.dtype, full, chooses(graph))
        from .certify_step import certify_step
        return certify_step(folder, module, graph, arguments(graph), whole_inputs(graph), self.model.dtype)


def whole_inputs(graph: Graph) -> tuple[Input, ...]:
    """What the inputs of the whole model must satisfy."""
    return interface(emit(graph, "portable"))[0]


def _made(model: Model | _Lowered, plan: Plan) -> Made:
    if plan.package == "genai":
        from .genai import emit_genai
        decoder, beside = emit_genai(model, plan)
        return Made(decoder, plan=plan, beside=beside)
    if plan.form != STEP:
        return Made(emit(model.lowered, plan.target, plan.dtype, plan.without, model.spec_text, plan.typical), plan=plan)
    from .step import emit_step
    step, prefix, stream = emit_step(model, plan.along, plan.target, plan.dtype, plan.without, plan.typical)
    return Made(step, stream, prefix, plan)


def _check_weights(weights: Any, init: int | None, no_weights: bool, prove: bool) -> None:
    if (weights is not None) + (init is not None) + no_weights != 1:
        raise Diagnostics([diagnostic("bad-command", "an export needs weights, or the seed of random ones, or to be told to do without",
                                      help="give `weights`, `init` or `no_weights`; on the command line `--weights FILE`, `--init SEED` or "
                                           "`--no-weights`, one of them")])
    if no_weights and prove:
        raise Diagnostics([diagnostic("bad-command", "kernels are found by running the model, which needs weights",
                                      help="give `--init SEED` with `--prove`")])


def _check_provable() -> None:
    """Refuse before any work is done what cannot be proven."""
    from ..prove import Missing, ready
    try:
        ready()
    except Missing as missing:
        raise _unproven(missing) from None


def _proof(folder: Path) -> dict[str, Any]:
    from ..prove import Missing, prove
    try:
        return prove(folder)
    except Missing as missing:
        raise _unproven(missing) from None


def _unproven(missing: Missing) -> Diagnostics:
    return Diagnostics([diagnostic("cannot-prove", f"kernels cannot be proven: {missing}", help=missing.help)])


def arguments(graph: Graph) -> tuple[str, ...]:
    """The inputs in the order of the module's `forward`: those that may be absent come last."""
    return tuple(a.name for a in sorted(graph.root.arguments, key=lambda a: a.type.optional))


def _weights(model: Model, weights: Any, init: int | None, module_needed: bool, stack: ExitStack) -> tuple[Any, Any]:
    """The PyTorch module (None when not needed) and a function from a parameter's path to its array."""
    file = weights if isinstance(weights, str | Path) else None
    if file is not None and not module_needed:
        from ..checkpoints.weights import open_weights
        loader = model.loader(stack.enter_context(open_weights(file)))
        return None, lambda path: loader(path, whole=False)
    module = model.module(seed=init, weights=file) if weights is None or file is not None else given_module(model, weights)
    reader = _reader(module)
    return (_plain(module) if module_needed else module), reader


def given_module(model: Model, weights: Any) -> Any:
    """A caller's module, out of `torch.compile`'s wrapping. Raises Diagnostics when it is not a module of this model."""
    import torch
    if not isinstance(weights, torch.nn.Module):
        raise Diagnostics([diagnostic("bad-weights", f"`weights` is a {type(weights).__name__}", note="expected a file or a PyTorch module",
                                      help="save a state dict to a file, or load it into `model.module()`")])
    module = getattr(weights, "_orig_mod", weights)
    match_weights(state_shapes(model.graph), _State(module.state_dict()))
    return module


@dataclass(frozen=True)
class _State:
    """The tensors of a module, as weight files have them."""

    held: Mapping[str, Any]
    path: str = "the module"

    def names(self) -> list[str]:
        return [*self.held]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.held[name].shape)


def _told(module: Any, graph: Graph, plan: Plan) -> Any:
    """A module that gives the weights of attention too, where they are asked for."""
    if not plan.attention:
        return module
    from ..backends.torch import build
    made, state = build(graph, seed=0), module.state_dict()
    made.load_state_dict({name: state[name] for name in made.state_dict()})
    return made.eval()


def _plain(module: Any) -> Any:
    """The module in float32 on the CPU, as the certificate runs it: itself where it is that, else a copy."""
    import torch
    plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in module.state_dict().values())
    return module if plain else copy.deepcopy(module).cpu().float()


def _reader(module: Any) -> Any:
    state = module.state_dict()
    return lambda path: read_tensor(state[path])


def read_tensor(tensor: Any) -> Any:
    import torch
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _twin(made: Made, graph: Graph, module: Any, full: bool) -> dict[str, Any]:
    """Certify another graph, in another dtype or with random weights, in a folder of its own."""
    if module is None:
        from ..backends.torch import build
        module = build(graph, seed=0)
    with tempfile.TemporaryDirectory() as scratch:
        made.files(Path(scratch), _reader(module))
        return made.certify(Path(scratch), module, graph, full)
