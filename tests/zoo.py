"""Every model and hard spec at small sizes, with weights away from their starts, and random inputs with rows that end early."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import nnspec
import numpy as np
import torch

torch.set_num_threads(1)                # the tensors are small, and test processes share the cores

HARD = Path(__file__).parent / "specs" / "hard"
BERT = {"vocab": 41, "width": 24, "layers": 2, "heads": 3, "hidden": 40}
GPT = {"vocab": 43, "width": 24, "layers": 2, "heads": 3, "positions": 1024}
LLAMA = {"vocab": 47, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 44}
TWO = {"vocab": 41, "width": 24, "encoder_layers": 2, "encoder_heads": 3, "encoder_hidden": 40, "decoder_layers": 2, "decoder_heads": 2,
       "decoder_hidden": 28}
SEQ2SEQ = {"source_vocab": 31, "target_vocab": 37, "embed": 6, "hidden": 8}
MODELS = {
    "additive-seq2seq": SEQ2SEQ | {"align": 5}, "luong": SEQ2SEQ | {"layers": 2}, "g2p": {"embed": 7, "hidden": 9},
    "bert-base": BERT, "minilm": BERT, "gpt2": GPT, "gpt3-175b": GPT | {"positions": 2048},
    "llama-3-8b": LLAMA, "mistral-7b": LLAMA | {"window": 4}, "transformer-base": BERT, "transformer-big": BERT,
    "mixtral-8x7b": LLAMA | {"experts": 3}, "qwen2-0.5b": LLAMA, "qwen3-0.6b": LLAMA | {"head_width": 6},
    "gemma-2b": LLAMA | {"head_width": 10}, "gemma2-2b": LLAMA | {"head_width": 10, "layers": 3, "window": 4},
    "phi-2": LLAMA | {"fraction": 0.5}, "pythia-160m": BERT, "bloom-560m": {"vocab": 43, "width": 24, "layers": 2, "heads": 3},
    "roberta-base": BERT, "distilbert-base": BERT, "bart-base": TWO, "opus-mt-en-de": TWO, "whisper-tiny": TWO | {"mels": 5},
    "t5-small": {"vocab": 41, "width": 32, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "head_width": 12, "hidden": 44},
    "vit-base-patch16-224": {"classes": 7, "image": 14, "patch": 4, "width": 24, "layers": 2, "heads": 3, "hidden": 40},
}
TARGETS = ["ort-cpu", "ort-cuda", "portable"]
USE = "[attention, ffn, layers, positions]"
SPECS = [*MODELS, *(f"hard/{path.stem}" for path in sorted(HARD.glob("*.yaml")))]


@cache
def model(name: str) -> nnspec.Model:
    """A spec by the name it has in SPECS, at small sizes."""
    if name.startswith("hard/"):
        return nnspec.load(HARD.parent / f"{name}.yaml")
    return nnspec.load(name, sizes=MODELS[name])


def stir(module: torch.nn.Module, seed: int = 3) -> torch.nn.Module:
    """Move every parameter off its start, so that none can be lost unseen: vectors by 0.3, matrices to unit gain."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise / (parameter[0].numel() if parameter.dim() == 4 else parameter.shape[-1]) ** 0.5)
    return module.eval()


@cache
def stirred(name: str) -> torch.nn.Module:
    return stir(model(name).module(seed=1))


def draw(name: str, sizes: dict[str, int], seed: int = 0, short: bool = True) -> dict[str, np.ndarray]:
    """Random inputs by name at these sizes (ids up to 20, which every vocabulary here has).

    With `short` and three rows or more, row 1 sees nothing (length 0, all of its keys masked) and row 2 has length 1.
    """
    rng = np.random.default_rng(seed)
    root, known = model(name).graph.root, model(name).graph.sizes
    arrays = {}
    for argument in root.arguments:
        type = argument.type
        shape = tuple(int(d.evaluate(sizes)) for d in type.shape)
        if "length" in argument.name:
            arrays[argument.name] = rng.integers(1, longest(argument.name, sizes) + 1, shape)
            arrays[argument.name][0] = longest(argument.name, sizes)
        elif type.dtype == "int64":
            top = known.get("segments", 2) if argument.name == "segments" else sizes["S"] + 1 if name == "hard/pointer" else 20
            arrays[argument.name] = rng.integers(0, top, shape)
        elif type.dtype == "bool":
            arrays[argument.name] = rng.random(shape) < 0.7
            arrays[argument.name][..., 0] = True
        else:
            arrays[argument.name] = rng.normal(size=shape).astype(np.float32)
        if short and shape[0] >= 3 and ("length" in argument.name or type.dtype == "bool"):
            arrays[argument.name][1] = 0
            arrays[argument.name][2] = 1 if "length" in argument.name else np.arange(shape[1]) == 0
    return arrays


def longest(name: str, sizes: dict[str, int]) -> int:
    return sizes["T"] if name.startswith("target") else sizes["S"]


def run(module: torch.nn.Module, arrays: dict[str, np.ndarray], outputs: tuple[str, ...] = ("out",)) -> dict[str, np.ndarray]:
    """The outputs of a module as numpy; floats are given in the module's dtype."""
    dtype = next(module.parameters()).dtype
    given = {k: torch.from_numpy(v) for k, v in arrays.items()}
    with torch.no_grad():
        made = module(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items()})
    named = made if isinstance(made, dict) else dict(zip(outputs, [made], strict=True))
    return {k: v.numpy() for k, v in named.items()}


def outputs(name: str) -> tuple[str, ...]:
    return tuple(n for n, _ in model(name).graph.root.outputs)


def free(name: str) -> list[str]:
    """The free dimensions of a spec's inputs, in order."""
    found: dict[str, None] = {}
    for argument in model(name).graph.root.arguments:
        for d in argument.type.shape:
            found |= dict.fromkeys(sorted(d.symbols()))
    return [*found]


def close(got: dict[str, np.ndarray], want: dict[str, np.ndarray], rtol: float, atol: float, who: str = "") -> None:
    """Same names, shapes and numbers: |got - want| <= atol + rtol * max|want|, one scale for each output.

    Numbers beyond 6e4 in size fill masked scores: they stand at the same places and have no scale.
    """
    assert set(got) == set(want), f"{who}: {set(got)} against {set(want)}"
    for key, right in want.items():
        left = got[key]
        assert left.shape == right.shape, f"{who} {key}: {left.shape} against {right.shape}"
        assert np.isfinite(left).all() and np.isfinite(right).all(), f"{who} {key} is not finite"
        fills = [np.sign(x) * (np.abs(x) > 6e4) for x in (left.astype(np.float64), right.astype(np.float64))]
        assert np.array_equal(*fills), f"{who} {key}: masked in other places"
        sound = fills[0] == 0
        a, b = left[sound].astype(np.float64), right[sound].astype(np.float64)
        if b.size:
            worst, limit = np.abs(a - b).max(), atol + rtol * np.abs(b).max()
            assert worst <= limit, f"{who} {key}: differs by {worst:.3g}, allowed {limit:.3g}"


class Written:
    """A spec given as YAML, its module, and its artifacts by target."""

    def __init__(self, folder, inputs, graph, outputs, more=""):
        path = folder / "spec.yaml"
        path.write_text(f"nnspec: 1\nuse: {USE}\n{more}\ninputs: {{{inputs}}}\ngraph:\n  {graph.strip()}\noutputs: {outputs}\n")
        self.folder, self.model = folder, nnspec.load(path)
        self.module = self.model.module(seed=1)
        self.names = tuple(n for n, _ in self.model.graph.root.outputs)

    def runs(self, arrays, dtype="float32", targets=TARGETS):
        """Outputs by name, of PyTorch and then of every target."""
        if dtype == "float32":
            yield "PyTorch", run(self.module, arrays, self.names) if [*self.module.parameters()] else self.bare(arrays)
        for target in targets:
            self.model.export(self.folder / target, weights=self.module, target=target, dtype=dtype, certify="none")
            yield target, nnspec.runtime.open(self.folder / target, threads=1)(**arrays)

    def bare(self, arrays):
        with torch.no_grad():
            made = self.module(**{k: torch.from_numpy(v) for k, v in arrays.items()})
        return {k: v.numpy() for k, v in (made if isinstance(made, dict) else {self.names[0]: made}).items()}
