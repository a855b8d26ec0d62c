"""What an export is to make: for whom, in which form and dtype. Everything that cannot go together is told here, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic
from ..runtime.manifest import FULL, STEP

PACKAGES = ("genai", "triton")                  # targets that are folders for a server, over a file for ONNX Runtime
BITS = {"int4": 4, "int8": 8}
BLOCKS = (16, 32, 64, 128, 256)                 # of the kernel MatMulNBits


@dataclass(frozen=True)
class Quantization:
    """Weights of linear layers as integers of `kind`, int4 or int8, with a scale and a zero point for every `block` numbers of a row.
    Those under the paths `skip` keep their floats; `ids` are inputs for the perplexity before and after."""

    kind: str
    block: int = 32
    skip: tuple[str, ...] = ()
    ids: Path | None = None

    @property
    def bits(self) -> int:
        return BITS[self.kind]


@dataclass(frozen=True)
class Plan:
    """What is made of a model, whatever its weights. `target` is ort-cpu, ort-cuda or portable, `package` genai, triton or nothing;
    `stop`, `pad` and `tokenizer` are for genai, `max_batch` for triton. `attention` are paths whose weights are outputs, too."""

    target: str
    dtype: str
    without: frozenset[str] = frozenset()
    typical: Mapping[str, int] | None = None
    form: str = FULL
    along: str | None = None
    package: str = ""
    stop: tuple[int, ...] = ()
    pad: int | None = None
    tokenizer: Path | None = None
    max_batch: int | None = None
    quantize: Quantization | None = None
    attention: tuple[str, ...] = ()

    def check(self, device: str | None, no_weights: bool, prove: bool) -> None:
        """Raises Diagnostics (`bad-command`) with all that does not go together."""
        wrong = [*_elements(self), *_packages(self, device, no_weights, prove), *_quantized(self, no_weights, prove)]
        if prove and self.target != "ort-cuda":
            wrong.append(_bad(f"`--prove` finds kernels of CUDA, and this export is for {self.target}", "add `--target ort-cuda`"))
        if wrong:
            raise Diagnostics(wrong)


def runs_on(package: str, device: str | None, dtype: str) -> str:
    """The target under a package: `device`, by default CUDA for float16 and bfloat16 and the CPU for float32."""
    return f"ort-{device or ('cpu' if dtype == 'float32' else 'cuda')}"


def _bad(what: str, help: str, *notes: str) -> Diagnostic:
    return diagnostic("bad-command", what, note=notes, help=help)


def _elements(plan: Plan) -> Iterator[Diagnostic]:
    if plan.dtype != "bfloat16":
        return
    if plan.target != "ort-cuda":
        yield _bad(f"bfloat16 runs on CUDA only, and this export is for {plan.target}",
                   f"add `{'--device cuda' if plan.package else '--target ort-cuda'}`, or export float32 or float16")
    elif plan.package == "triton":
        yield _bad("Triton's backend for ONNX Runtime takes and gives no bfloat16", "export float16 or float32")


def _packages(plan: Plan, device: str | None, no_weights: bool, prove: bool) -> Iterator[Diagnostic]:
    if not plan.package:
        if device is not None:
            yield _bad(f"`--device` goes with the targets genai and triton, and this export is for {plan.target}",
                       f"use `--target ort-{device}`")
    elif no_weights:
        yield _bad(f"an export for {plan.package} needs weights", "give `--weights FILE`, or random ones: `--init SEED`")
    if plan.package != "genai" and (plan.stop or plan.tokenizer or plan.pad is not None):
        yield _bad("`--stop`, `--pad` and `--tokenizer` go with `--target genai`", "leave them out")
    if plan.package != "triton" and plan.max_batch is not None:
        yield _bad("`--max-batch` goes with `--target triton`", "leave it out")
    if plan.package == "triton" and plan.form == STEP:
        yield _bad("a step form cannot be served by Triton's backend for ONNX Runtime: its state would travel with every request",
                   "export the whole model: `--form full`", "dynamic batching puts requests of any age together")
    if plan.package == "genai":
        yield from _genai(plan, prove)


def _genai(plan: Plan, prove: bool) -> Iterator[Diagnostic]:
    if plan.form == STEP or plan.without or plan.attention:
        yield _bad("`--form`, `--without` and `--attention` do not go with `--target genai`", "leave them out",
                   "its decoder takes token ids, and one step is its only form")
    if prove:
        yield _bad("kernels of a decoder for genai are not proven", "prove the export for `--target ort-cuda`")
    if not plan.stop:
        yield _bad("ONNX Runtime GenAI must know which id ends a text", "give the tokenizer's id of the end of a text: `--stop ID`")
    if plan.tokenizer is not None and not plan.tokenizer.exists():
        yield diagnostic("bad-path", f"there is no tokenizer `{plan.tokenizer}`",
                         help="give a tokenizer.json, or a folder that holds one")


def _quantized(plan: Plan, no_weights: bool, prove: bool) -> Iterator[Diagnostic]:
    wanted = plan.quantize
    if wanted is None:
        return
    if plan.target == "portable":
        yield _bad("quantised products are kernels of ONNX Runtime, and this export is portable", "use `--target ort-cpu` or ort-cuda")
    if wanted.kind not in BITS:
        yield _bad(f"weights cannot be quantised to {wanted.kind}", f"use {' or '.join(BITS)}")
    if wanted.block not in BLOCKS:
        yield _bad(f"a block of quantised weights cannot have {wanted.block} numbers", f"use one of {', '.join(map(str, BLOCKS))}")
    if no_weights:
        yield _bad("quantising needs weights, to tell what it changes", "give `--weights FILE`, or random ones: `--init SEED`")
    if prove:
        yield _bad("kernels of a quantised model are not proven", "prove the export without `--quantize`: attention is the same")
