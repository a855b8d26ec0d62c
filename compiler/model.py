"""The public face of a compiled spec: show it, make the PyTorch module, export ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .costs.cost import free_dimensions
from .ir.graph import Graph
from .ir.parameters import count, state_shapes
from .lang.diagnostic import Diagnostic, Diagnostics, Sink, diagnostic, suggest
from .pipeline import Compiled, front
from .show import show

if TYPE_CHECKING:
    import torch

    from .artifacts.plan import Quantization
    from .checkpoints.export_weights import Written
    from .checkpoints.rules import Foreign
    from .compare import Comparison
    from .costs.table import Costs, CostTable
    from .expect import Expectation
    from .runtime.manifest import Manifest
    from .stages.stream import StepForm


class Model:
    """A spec compiled to a typed graph. Nothing heavy is imported until a module or an artifact is made."""

    def __init__(self, compiled: Compiled):
        self._compiled = compiled
        self._lowered: Graph | None = None
        self._costs: CostTable | None = None

    @property
    def name(self) -> str:
        return self._compiled.graph.name

    def __repr__(self) -> str:
        return f"<Model {self.graph.name}: {self.parameters:,} parameters>"

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return self._compiled.warnings

    @property
    def over(self) -> tuple[Diagnostic, ...]:
        """The limits of the spec's `budget:` that the model exceeds."""
        return self._compiled.over

    @property
    def contract(self) -> tuple[Expectation, ...]:
        """What the spec's `expect:` asks of exports."""
        return self._compiled.contract

    @property
    def graph(self) -> Graph:
        """The typed graph as written."""
        return self._compiled.graph

    @property
    def lowered(self) -> Graph:
        """The typed graph that targets are made from."""
        if self._lowered is None:
            self._lowered = self._compiled.lowered()
        return self._lowered

    @property
    def parameters(self) -> int:
        """Number of parameters, shared ones counted once."""
        return count(self.graph)

    def show(self, depth: int | None = None, width: int = 100) -> str:
        """Interface, parameter count and folded tree as text."""
        return show(self.graph, self.parameters, depth, width)

    def step_form(self, along: str | None = None) -> StepForm:
        """The graphs and the state that decoding along an axis needs; the only causal axis when not given.

        Raises Diagnostics (`cannot-stream`) that name every node in the way, its line and why.
        """
        from .stages.stream import step_form
        return step_form(self.lowered, along)

    def streaming(self, along: str | None = None) -> str:
        """Whether the model can be run step by step, its state and what that costs, as text. Raises as `step_form` does."""
        from .costs.streaming import streaming
        return streaming(self.graph, self.step_form(along))

    @property
    def costs(self) -> CostTable:
        """The costs at any sizes; what depends on no size is found once."""
        if self._costs is None:
            from .costs.table import CostTable
            self._costs = CostTable(self.lowered)
        return self._costs

    def cost(self, dtype: str = "float16", **sizes: int) -> Costs:
        """Parameters, FLOPs of a pass and of a new position, cache and peak activations; `sizes` name free dimensions (`B=1, S=2048`).

        Those that are not given are 1 row, and 1024 or the bound of the others. Raises Diagnostics: `unknown-name` for a dimension that
        the model does not have, `bad-attribute` for a size beyond its bound.
        """
        known = free_dimensions(self.graph)
        bounds = {b.symbol: b for b in self.graph.bounds}
        wrong = [diagnostic("unknown-name", f"the model has no free dimension `{name}`", help=suggest(name, known, "dimensions"))
                 for name in sizes if name not in known]
        wrong += [diagnostic("bad-attribute", f"`{name}` is at most {bounds[name].limit:,} in this model, not {n:,}", bounds[name].span,
                             help="ask for a smaller size, or raise the bound") for name, n in sizes.items()
                  if name in bounds and n > bounds[name].limit]
        if wrong:
            raise Diagnostics(wrong)
        return self.costs.at(sizes, dtype)

    def source(self) -> str:
        """Standalone PyTorch source that needs only torch."""
        from .backends.torch import generate
        return generate(self.lowered)

    def module(self, seed: int | None = 0, dtype: Any = None, device: Any = None, weights: str | Path | None = None) -> torch.nn.Module:
        """The PyTorch module, in eval mode as built; `weights` is a file of ours or one the spec's `checkpoint:` maps.

        Raises Diagnostics (`bad-weights`, `checkpoint-mismatch`) that lists every tensor that does not fit.
        """
        from .backends.torch import build
        if weights is None:
            return build(self.lowered, seed=seed, dtype=dtype, device=device)
        made = build(self.lowered, seed=None, dtype=dtype, device="meta").to_empty(device=device or "cpu")     # no start to overwrite
        self.load_weights(made, weights)
        return made

    def load_weights(self, module: torch.nn.Module, path: str | Path) -> None:
        """Copy a weight file into a module of this model, tensor by tensor."""
        import torch

        from .checkpoints.weight_file import numbers
        from .checkpoints.weights import open_weights
        from .printing import progress
        state = module.state_dict()
        with open_weights(path) as file:
            loader = self.loader(file)
            with torch.no_grad():
                for name in progress(loader.paths(), "loading"):
                    start = 0
                    for piece in numbers(loader(name, whole=False)):
                        state[name].view(-1)[start:start + piece.size].copy_(torch.from_numpy(piece))
                        start += piece.size

    def export(self, folder: str | Path, weights: str | Path | torch.nn.Module | None = None, init: int | None = None,
               target: str = "ort-cpu", dtype: str = "float32", certify: str = "sweep", without: tuple[str, ...] = (),
               require_fused: bool = False, prove: bool = False, no_weights: bool = False,
               typical: Mapping[str, int] | None = None, form: str = "full", along: str | None = None, *, device: str | None = None,
               stop: tuple[int, ...] = (), pad: int | None = None, tokenizer: str | Path | None = None,
               max_batch: int | None = None, quantize: str | Quantization | None = None, attention: tuple[str, ...] = ()) -> Manifest:
        """Write `folder/model.onnx`, its weights and `folder/manifest.json`, and certify it against PyTorch.

        `form="step"` writes the model that decoding runs, a few positions of the axis `along` at a time with its state, and `prefix.onnx`
        for what is fixed before them; `runtime.decoder` opens it. `attention` are paths of attention, such as `decoder.3.cross`, whose
        weights become outputs (`decoder.3.cross.weights`, or `NAME` of `NAME=PATH`); only these sites take a form that gives them.

        Give `weights` (a file, or a module of this model), `init` (a seed) or `no_weights`: the graph and the manifest alone, to be looked
        at. `certify` is sweep, full or none. `typical` are sizes of free dimensions, 128 where not given, by which the faster of two right
        forms is taken.

        `target="genai"` writes a folder for ONNX Runtime GenAI: a decoder over growing keys and values, `genai_config.json`, in which the
        ids `stop` end a text and `pad` fills rows up (the first of `stop`), and the files of `tokenizer`. `target="triton"` writes
        `NAME/config.pbtxt` and `NAME/1/` into the model repository `folder`, for batches up to `max_batch` (32). Both run on `device`, cpu
        or cuda; by default CUDA for float16 and bfloat16. `quantize`, int4, int8 or a `Quantization`, stores weights of linear layers as
        integers, on ort-cpu and ort-cuda; the certificate is then that of the model before, and `manifest.quantization` says how much the
        results changed.

        A site that takes another form than `expect:` asks for, or with `require_fused` an attention site that is not fused, raises
        `CheckFailed`. `prove` finds the kernels that CUDA selects (`manifest.proof`). Raises Diagnostics; an export that fails leaves
        the folder as it was.
        """
        from .artifacts.export import export
        from .artifacts.plan import PACKAGES, Plan, Quantization, runs_on
        package = target if target in PACKAGES else ""
        plan = Plan(runs_on(package, device, dtype) if package else target, dtype, frozenset(without), typical, form, along, package,
                    tuple(stop), pad, Path(tokenizer) if tokenizer is not None else None, max_batch,
                    Quantization(quantize) if isinstance(quantize, str) else quantize, tuple(attention))
        plan.check(device, no_weights, prove)
        return export(self, Path(folder), weights, init, plan, certify, require_fused, prove, no_weights)

    def export_weights(self, given: str | Path | torch.nn.Module, path: str | Path, dtype: str | None = None, prefix: str | None = None,
                       like: str | Path | None = None) -> Written:
        """Write parameters as safetensors under the foreign names of the spec's `checkpoint:`, its rules backwards.

        `given` is a weight file, or a module of this model. A dtype that is not given is kept. Names are those of the foreign file `like`,
        or of `given` where that is one; else those of the rules, the first of several, each behind `prefix`. Raises Diagnostics
        (`cannot-write`, `bad-weights`, `checkpoint-mismatch`); a failure leaves `path` as it was.
        """
        from .checkpoints.export_weights import export_weights
        return export_weights(self, given, Path(path), dtype, prefix, like)

    def compare(self, reference: str | Path | Mapping[str, Any], weights: str | Path | torch.nn.Module,
                tolerance: float = 1e-4) -> Comparison:
        """The model's values against those of a reference: arrays by name, or an `.npz` file of them.

        Names of inputs are inputs; others are outputs, or paths of nodes with the number of a copy (`layers.0.attention.query`; in a scan,
        the values of all steps). A value differs where its largest difference is above `tolerance` times the largest number of the
        reference. Raises Diagnostics and ArtifactError for names, shapes and dtypes that do not fit.
        """
        from .compare import compare_values
        from .runtime.data import load_inputs
        return compare_values(self, reference if isinstance(reference, Mapping) else load_inputs(reference), weights, tolerance)

    @property
    def spec_text(self) -> str:
        """The spec as one file that needs no other, kept in the ONNX file; the file as written where it cannot be one."""
        return self._compiled.resolved() or self._compiled.spec.source.text

    def loader(self, file: Any) -> Any:
        """A function from a parameter's path to its array, for an open weight file that fits. Raises Diagnostics."""
        from .checkpoints.loader import match
        sink = Sink()
        return match(file, self.foreign, state_shapes(self.graph), sink)

    @property
    def foreign(self) -> Foreign:
        """What the spec's `checkpoint:` says of weight files made elsewhere."""
        from .checkpoints.rules import read_foreign
        sink = Sink()
        found = read_foreign(self._compiled.spec.checkpoint, self.graph.sizes, sink)
        sink.check()
        return found


def load(path: str | Path, sizes: Mapping[str, Any] | None = None, family: str | Path | None = None) -> Model:
    """Compile a spec: a file, the name of a model in the library, or a folder with the config.json of a checkpoint made elsewhere.

    `sizes` override those of the spec; `family` is the spec that a folder's config is read by, by default the library's for its
    model_type. Raises Diagnostics with everything that is wrong, each with file, line and a hint.
    """
    return Model(front(path, {k: _written(v) for k, v in (sizes or {}).items()}, family))


def import_checkpoint(folder: str | Path, family: str | Path | None = None, output: str | Path | None = None) -> str:
    """The spec of the checkpoint in a folder with a config.json, as text: that of its family with the config's sizes and choices.

    `output` is the file that it is meant for, which gives the model its name and says where the family's own files are from there.
    Raises Diagnostics (`bad-config`, `unknown-family`, `unknown-config-key`, `unsupported-config`, ...) with everything wrong.
    """
    from .foreign.spec import spec_text
    target = Path(output) if output is not None else Path(f"{Path(folder).resolve().name}.yaml")
    compiled = front(folder, family=family, name=target.stem)
    if compiled.foreign is None:
        raise Diagnostics([diagnostic("bad-path", f"`{folder}` is no folder with a config.json")])
    return spec_text(*compiled.foreign, compiled.spec.source, target)


def _written(value: Any) -> str:
    return "[" + ", ".join(map(_written, value)) + "]" if isinstance(value, list | tuple) else str(value)
