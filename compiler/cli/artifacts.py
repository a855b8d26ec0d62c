"""The command that writes artifacts: export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..artifacts.plan import Quantization
from .common import Failed, cli, compiled, dims, report, with_spec
from .cost import hold, with_budget


@cli.command()
@with_spec
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for model.onnx, weights and manifest.json.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weights: safetensors, npz, or weights-only .pt/.bin; a folder of shards.")
@click.option("--init", "seed", type=int, help="Start from random weights with this seed instead.")
@click.option("--no-weights", is_flag=True, help="Write the graph and the manifest alone, to be looked at; nothing can run them.")
@click.option("--target", type=click.Choice(["ort-cpu", "ort-cuda", "portable", "genai", "triton"]), default="ort-cpu", show_default=True,
              help="ONNX Runtime on a device, any runtime, or a folder: a decoder for ONNX Runtime GenAI, a model in Triton's repository.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]),
              help="Where genai and triton run it; default: cuda for float16 and bfloat16, cpu for float32.")
@click.option("--form", type=click.Choice(["full", "step"]), default="full", show_default=True,
              help="The whole model, or the one that decoding runs: some positions at a time, with its state.")
@click.option("--along", metavar="AXIS", help="The axis that `--form step` walks; default: the only one that is causal.")
@click.option("--certify", type=click.Choice(["sweep", "full", "none"]), default="sweep", show_default=True,
              help="Compare the file with PyTorch: over a sweep of sizes, up to the maximum, or not.")
@click.option("--without", multiple=True, metavar="INPUT", help="Leave an optional input out of the file; may be repeated.")
@click.option("--attention", multiple=True, metavar="PATH",
              help="Give the weights of the attention at this path, such as decoder.3.cross, as an output too; may be repeated.")
@click.option("--typical", metavar="DIM=N,...", default="",
              help="Sizes that the file should be fast at, such as S=2048; default: 128 each. It takes every size.")
@click.option("--stop", type=int, multiple=True, metavar="ID", help="For genai: the id that ends a text; may be repeated.")
@click.option("--pad", type=int, metavar="ID", help="For genai: the id of padding, which prompts must not hold; default: the first --stop.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="For genai: a tokenizer.json, or a folder with one, to copy beside.")
@click.option("--max-batch", type=click.IntRange(1), metavar="N", help="For triton: rows of a batch of requests; default: 32.")
@click.option("--quantize", type=click.Choice(["int4", "int8"]),
              help="Store the weights of linear layers as integers; how much that changes is measured and printed.")
@click.option("--block", type=int, metavar="N", help="With --quantize: numbers that share a scale; default: 32.")
@click.option("--skip", multiple=True, metavar="PATH", help="With --quantize: leave the layers under a path as they are; may be repeated.")
@click.option("--ids", type=click.Path(path_type=Path), help="With --quantize: ids (.npz, .json) for the perplexity before and after.")
@click.option("--sites", is_flag=True, help="Print the form of every attention, recurrent and norm site, and why it is no better one.")
@click.option("--require-fused", is_flag=True, help="Fail where an attention site takes no fused form.")
@with_budget
@click.option("--prove", is_flag=True, help="Find the kernels that CUDA runs, on a GPU or by a dry run; fail where they are not fused.")
def export(spec: str, sets: tuple[str, ...], budgets: tuple[str, ...], output: Path, weights: Path | None, seed: int | None, target: str,
           dtype: str, certify: str, without: tuple[str, ...], typical: str, sites: bool, require_fused: bool, prove: bool,
           no_weights: bool, form: str, along: str | None, device: str | None, stop: tuple[int, ...], pad: int | None,
           tokenizer: Path | None, max_batch: int | None, attention: tuple[str, ...], **quantized: Any) -> None:
    """Write an ONNX model that ONNX Runtime runs, checked against PyTorch."""
    if (weights is not None) + (seed is not None) + no_weights > 1:
        raise click.UsageError("`--weights`, `--init` and `--no-weights` exclude each other")
    if along is not None and form != "step" and target != "genai":
        raise click.UsageError("`--along` goes with `--form step`")
    if weights is None and seed is None and not no_weights:
        if not (Path(spec) / "config.json").is_file():
            raise click.UsageError("give the weights with `--weights FILE`, or random ones with `--init SEED`")
        weights = Path(spec)
    from ..printing import export_report
    model = compiled(spec, sets)
    if over := hold(model, budgets):
        report(over)
        raise Failed
    at = output / model.name / "1" if target == "triton" else output
    old = (at / "manifest.json").exists()
    manifest = model.export(output, weights, seed, target, dtype, certify, without, require_fused, prove, no_weights,
                            dims((typical,), "--typical", 1), form, along, device=device, stop=stop, pad=pad, tokenizer=tokenizer,
                            max_batch=max_batch, quantize=_quantization(**quantized), attention=attention)
    if old:
        print(f"{at}: the export that was there is replaced")
    print(export_report(manifest, at, sites), end="")
    if any(found and found.get("status") == "failed" for found in (manifest.certificate, manifest.proof)):
        raise Failed


def _quantization(quantize: str | None, block: int | None, skip: tuple[str, ...], ids: Path | None) -> Quantization | None:
    if quantize is not None:
        return Quantization(quantize, block or 32, skip, ids)
    for name, given in (("--block", block is not None), ("--skip", skip), ("--ids", ids)):
        if given:
            raise click.UsageError(f"`{name}` goes with `--quantize`")
    return None
