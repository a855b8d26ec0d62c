"""The command that runs artifacts, and generation by it: run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..lang.diagnostic import diagnostic
from .common import cli, dims, report

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--ids", {"multiple": True, "metavar": "1,2,3", "help": "A prompt as token ids; an encoder-decoder's source. Repeated: a batch."}),
    ("--text", {"multiple": True, "help": "A prompt as text, with --tokenizer. Repeated: a batch."}),
    ("--tokenizer", {"type": click.Path(path_type=Path), "help": "A tokenizer.json, or the folder that holds it."}),
    ("--max-new", {"type": click.IntRange(1), "help": "New tokens at most; default: 128, or the room that the model's bound leaves."}),
    ("--stop", {"type": int, "multiple": True, "metavar": "ID", "help": "The id that ends a row, or one of several; may be repeated."}),
    ("--start", {"type": int, "metavar": "ID", "help": "The id that an encoder-decoder's target starts with."}),
    ("--forced-bos", {"type": int, "metavar": "ID", "help": "The id of the first new token."}),
    ("--forced-eos", {"type": int, "metavar": "ID", "help": "The id of the last token of a row that reaches --max-new."}),
    ("--temperature", {"type": click.FloatRange(0), "help": "Sample with this temperature; greedy without a sampling option."}),
    ("--top-k", {"type": click.IntRange(0), "help": "Sample among so many of the likeliest tokens."}),
    ("--top-p", {"type": click.FloatRange(0, 1), "help": "Sample among the likeliest tokens that make up this probability."}),
    ("--min-p", {"type": click.FloatRange(0, 1), "help": "Sample among tokens at least this share as likely as the likeliest."}),
    ("--repetition-penalty", {"type": click.FloatRange(0, min_open=True), "help": "Above 1: tokens that are there are less likely."}),
    ("--beams", {"type": click.IntRange(1), "help": "Beam search with so many beams."}),
    ("--length-penalty", {"type": float, "help": "Of beam search; default: 1."}),
    ("--attention", {"is_flag": True, "help": "Print which source tokens each new token looked at (see `export --attention`)."}),
    ("--plot", {"type": click.Path(path_type=Path), "help": "Draw these weights as a picture (.png, .svg, .pdf)."}),
)


def with_generation(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of --generate."""
    for name, settings in reversed(OPTIONS):
        command = click.option(name, **settings)(command)
    return command


def _check_unused(asked: Mapping[str, Any]) -> None:
    given = [name for name, _ in OPTIONS if asked[name[2:].replace("-", "_")] not in (None, (), False)]
    if given:
        raise click.UsageError(f"`{given[0]}` goes with `--generate`")


def run_generation(folder: Path, inputs: Path | None, device: str, options: dict[str, Any], seed: int, asked: dict[str, Any]) -> None:
    """Generate tokens and print them, as ids or as text."""
    from ..runtime.alignment import alignment_output, check_picture, looked_at
    from ..runtime.data import load_inputs
    from ..runtime.decoder import decoder
    from ..runtime.generate import generate
    from ..runtime.text import generate_ids, generate_text, tokenizer
    if asked["plot"]:
        check_picture(asked["plot"])
    opened = decoder(folder, device, **options)
    words = tokenizer(asked["tokenizer"]) if asked["tokenizer"] else None
    if asked["text"] and (words is None or asked["ids"]):
        raise click.UsageError("`--text` goes with `--tokenizer FILE`, and excludes `--ids`")
    weights = alignment_output(opened) if asked["attention"] or asked["plot"] else None
    settings = _settings(asked, seed, opened.limit) | ({"collect": [weights.name]} if weights else {})
    given = load_inputs(inputs) if inputs is not None else {}
    rows = [_ids(text) for text in asked["ids"]]
    if words is not None and asked["text"]:
        live = len(asked["text"]) == 1 and asked["beams"] in (None, 1) and sys.stdout.isatty()
        told = (lambda parts: print(parts[0], end="", flush=True)) if live else None
        texts, made = generate_text(opened, words, list(asked["text"]), given, callback=told, **settings)
        print("" if live else "\n".join(texts))
        rows = [words.encode(text).ids for text in asked["text"]]
    else:
        made = generate_ids(opened, rows, given, **settings) if rows else generate(opened, None, given, **settings)
        for tokens, reason in zip(made.tokens, made.reasons, strict=True):
            print(" ".join(map(str, tokens.tolist())) if words is None else words.decode(tokens.tolist()), f"({reason})")
    if weights is not None:
        _show_weights(made, weights.name, looked_at(opened, weights, made, rows, given), words, asked)


def _settings(asked: Mapping[str, Any], seed: int, limit: int | None) -> dict[str, Any]:
    names = {"max_new": "max_new_tokens", "start": "decoder_start"}
    taken = ("max_new", "start", "forced_bos", "forced_eos", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "beams",
             "length_penalty")
    found = {names.get(k, k): asked[k] for k in taken if asked[k] is not None}
    if "max_new_tokens" not in found and limit is None:
        found["max_new_tokens"] = 128
    return found | {"seed": seed} | ({"stop": list(asked["stop"])} if asked["stop"] else {})


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise click.UsageError(f"`--ids {text}` is not a list of whole numbers, such as 1,2,3") from None


def _show_weights(made: Any, name: str, rows: list[list[int]], words: Any, asked: Mapping[str, Any]) -> None:
    """Print, and draw, the weights of each row over its source; those of several heads are averaged."""
    from ..runtime.alignment import plot, table
    spell = (lambda ids: [words.id_to_token(int(i)) or str(i) for i in ids]) if words is not None else lambda ids: [str(i) for i in ids]
    for k, (tokens, weights) in enumerate(zip(made.tokens, made.collected[name], strict=True)):
        weights = weights.mean(1) if weights.ndim == 3 else weights         # [new, H, S]
        size = len(rows[k]) if k < len(rows) and rows[k] else weights.shape[1]
        source = spell(rows[k]) if k < len(rows) and rows[k] else [str(i) for i in range(size)]
        shown = weights[:len(tokens), :size]
        if asked["attention"]:
            print(table(shown, spell(tokens), source), end="")
        if asked["plot"]:
            path = asked["plot"] if len(made.tokens) == 1 else asked["plot"].with_stem(f"{asked['plot'].stem}-{k}")
            lacking = plot(shown, spell(tokens), source, path)
            print(f"wrote {path}")
            if lacking:
                report([diagnostic("missing-glyphs", f"the font of `{path}` has no {' '.join(lacking)}", severity="warning",
                                   note="they are drawn as boxes")])


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--inputs", type=click.Path(path_type=Path), help="Inputs from an .npz or .json file.")
@click.option("--random", "sizes", multiple=True, metavar="DIM=N,...",
              help="Random inputs with these sizes, such as --random B=2,S=9.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--allow-fallback", is_flag=True, help="Go on when another device than the one asked for is active.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads for one operator; default: all cores.")
@click.option("--spin", is_flag=True, help="Let idle threads wait busily: shorter runs, more processor time.")
@click.option("--profile", "profiled", is_flag=True, help="Print where the time goes, by path in the spec.")
@click.option("--depth", type=click.IntRange(1), help="Names of a path that --profile tells apart; default: all.")
@click.option("--generate", is_flag=True, help="Generate tokens with a step model (`export --form step`), by the options below.")
@with_generation
def run(folder: Path, inputs: Path | None, sizes: tuple[str, ...], seed: int, output: Path | None, device: str, allow_fallback: bool,
        threads: int | None, spin: bool, profiled: bool, depth: int | None, generate: bool, **asked: Any) -> None:
    """Run an exported folder with ONNX Runtime."""
    from .. import runtime
    from ..printing import profile_report, run_report
    from ..runtime.data import load_inputs, random_inputs, save_npz, table
    if output is not None and output.suffix != ".npz":
        raise click.UsageError(f"outputs are written as .npz, and `{output}` has another ending")
    if inputs is not None and sizes:
        raise click.UsageError("`--inputs` and `--random` exclude each other")
    if depth is not None and not profiled:
        raise click.UsageError("`--depth` goes with `--profile`")
    if generate:
        unused = [name for name, value in (("--random", sizes), ("--output", output), ("--profile", profiled)) if value]
        if unused:
            raise click.UsageError(f"`{unused[0]}` does not go with `--generate`")
        run_generation(folder, inputs, device, {"threads": threads, "spin": spin, "allow_fallback": allow_fallback}, seed, asked)
        return
    _check_unused(asked)
    artifact = runtime.open(folder, device, threads=threads, spin=spin, allow_fallback=allow_fallback, verify=True)
    if (artifact.manifest.certificate or {}).get("status") == "failed":
        report([diagnostic("failed-certificate", f"`{folder}` does not agree with PyTorch: its certificate failed", severity="warning",
                           help="export it again and read what differs")])
    arrays = load_inputs(inputs) if inputs is not None else random_inputs(artifact.manifest, dims(sizes), seed)
    outputs = artifact(**arrays)
    if output is not None:
        save_npz(output, outputs)
    print(run_report(artifact.provider, arrays, table(outputs), output), end="")
    if profiled:
        from ..runtime.profile import profile
        print(profile_report(profile(folder, arrays, device, depth, threads=threads, spin=spin, allow_fallback=allow_fallback)), end="")
