"""The command line. Exit 0: fine; 1: a check failed; 2: bad input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from .lang.diagnostic import CheckFailed, Diagnostic, Diagnostics, Fault, diagnostic, fault, nearest, suggest
from .runtime.errors import ArtifactError

FORMATS = ("text", "json", "github")
FORM = ["text"]             # of what is reported; `validate --format` sets it


class Failed(Exception):
    """A check failed: exit 1, the message is already printed."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point: maps every kind of failure to its exit code."""
    FORM[0] = "text"
    try:
        cli.main(arguments, prog_name="nnspec", standalone_mode=False)
        code = 0
    except Failed:
        code = 1
    except Diagnostics as found:
        report(found.items)
        code = 1 if isinstance(found, CheckFailed) else 2
    except Fault as found:
        report([found.diagnostic])
        code = 2
    except click.exceptions.Abort:
        code = 130
    except click.exceptions.NoArgsIsHelpError as wrong:
        print(wrong.ctx.get_help() if wrong.ctx else "")
        code = 2
    except click.ClickException as wrong:
        report([_usage(wrong)])
        code = 2
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except ArtifactError as found:
        report([diagnostic(i.code, i.headline, note=i.notes, help=i.helps) for i in found.items])
        code = 2
    sys.exit(code)


def _usage(wrong: click.ClickException) -> Diagnostic:
    context = getattr(wrong, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context else "see `nnspec --help`"
    return diagnostic("bad-command", wrong.format_message().rstrip("."), help=hint)


def report(items: Sequence[Diagnostic]) -> None:
    """Print diagnostics to standard error, or as JSON or GitHub annotations to standard output."""
    from .render import render, render_github, render_json
    if FORM[0] == "json":
        print(render_json(items), end="")
    elif FORM[0] == "github":
        print(render_github(items), end="")
    elif items:
        print(render(items, color=sys.stderr.isatty()), end="", file=sys.stderr)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="nnspec")
def cli() -> None:
    """Compile declarative specs of neural sequence models to PyTorch and ONNX.

    SPEC is a YAML file, the name of a model that `nnspec list` shows, or a folder with the config.json of a public checkpoint.
    """


with_sizes = click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Override a size; may be repeated.")


def with_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """SPEC and --set, of the commands that compile one spec."""
    return click.argument("spec")(with_sizes(command))


def compiled(spec: str, sets: tuple[str, ...], limits: bool = True) -> Any:
    """The model, with its warnings printed. Over its budget it fails, unless the caller looks at the limits itself."""
    from .model import load
    sizes = {}
    for item in sets:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise click.UsageError(f"`--set {item}` is not NAME=VALUE")
        if name.strip() in sizes:
            raise click.UsageError(f"`--set {name.strip()}` is given twice")
        sizes[name.strip()] = value
    model = load(spec, sizes)
    if model.warnings and FORM[0] == "text":
        report(model.warnings)
    if model.over and limits:
        report(model.over)
        raise Failed
    return model


@cli.command()
@click.argument("specs", nargs=-1, required=True)
@with_sizes
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How to print what is wrong.")
def validate(specs: tuple[str, ...], sets: tuple[str, ...], form: str) -> None:
    """Check specs: everything that is wrong, with file, line and a hint."""
    FORM[0] = form
    wrong: list[Diagnostic] = []
    over: list[Diagnostic] = []
    for spec in specs:
        try:
            model = compiled(spec, sets, limits=False)
            wrong += model.warnings if form != "text" else ()
            over += model.over
            if form == "text" and not model.over:
                print(f"{spec}: fine, {model.parameters:,} parameters")
        except Diagnostics as found:
            wrong += found.items
    if any(d.severity == "error" for d in wrong):
        raise Diagnostics([*wrong, *over])
    if form != "text" or over:
        report([*wrong, *over])
    if over:
        raise Failed


@cli.command()
@with_spec
@click.option("--depth", type=click.IntRange(1), help="Levels of the tree to show.")
@click.option("--graph", is_flag=True, help="Print the canonical graph, one line a node.")
def show(spec: str, sets: tuple[str, ...], depth: int | None, graph: bool) -> None:
    """Print the interface, the exact parameter count and the tree."""
    model = compiled(spec, sets)
    if graph:
        from .ir.text import graph_text
        print(graph_text(model.graph), end="")
    else:
        print(model.show(depth), end="")


@cli.command()
@with_spec
@click.option("--at", metavar="DIM=N,...", default="",
              help="Sizes, such as B=1,S=2048; default: 1 row, and 1024 or the bound of the others.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float16", show_default=True)
@click.option("--by", type=click.Choice(["path"]), help="Also print the FLOPs of every path, the largest first.")
@click.option("--symbolic", is_flag=True, help="Also print the FLOPs as a formula in the free dimensions.")
def cost(spec: str, sets: tuple[str, ...], at: str, dtype: str, by: str | None, symbolic: bool) -> None:
    """Print what a model costs: parameters, weight bytes and FLOPs of one forward pass."""
    from .printing import cost_report
    sizes = _dims(_items(at), "--at")
    print(cost_report(compiled(spec, sets).cost(**sizes), dtype, by is not None, symbolic), end="")


@cli.command("compile")
@with_spec
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the source to this file; default: print it.")
def compile_(spec: str, sets: tuple[str, ...], output: Path | None) -> None:
    """Write standalone PyTorch source that needs only torch."""
    from .files import write_text
    source = compiled(spec, sets).source()
    if output is None:
        print(source, end="")
    else:
        write_text(output, source)
        print(f"wrote {output}")


@cli.command()
@with_spec
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for model.onnx, weights and manifest.json.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weights: safetensors, npz, or weights-only .pt/.bin; a folder of shards.")
@click.option("--init", "seed", type=int, help="Start from random weights with this seed instead.")
@click.option("--no-weights", is_flag=True, help="Write the graph and the manifest alone, to be looked at; nothing can run them.")
@click.option("--target", type=click.Choice(["ort-cpu", "ort-cuda", "portable"]), default="ort-cpu", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32", show_default=True)
@click.option("--certify", type=click.Choice(["sweep", "full", "none"]), default="sweep", show_default=True,
              help="Compare the file with PyTorch: over a sweep of sizes, up to the maximum, or not.")
@click.option("--without", multiple=True, metavar="INPUT", help="Leave an optional input out of the file; may be repeated.")
@click.option("--typical", metavar="DIM=N,...", default="",
              help="Sizes that the file should be fast at, such as S=2048; default: 128 each. It takes every size.")
@click.option("--sites", is_flag=True, help="Print the form of every attention, recurrent and norm site, and why it is no better one.")
@click.option("--require-fused", is_flag=True, help="Fail where an attention site takes no fused form.")
@click.option("--prove", is_flag=True, help="Find the kernels that CUDA runs, on a GPU or by a dry run; fail where they are not fused.")
def export(spec: str, sets: tuple[str, ...], output: Path, weights: Path | None, seed: int | None, target: str, dtype: str,
           certify: str, without: tuple[str, ...], typical: str, sites: bool, require_fused: bool, prove: bool,
           no_weights: bool) -> None:
    """Write an ONNX model that ONNX Runtime runs, checked against PyTorch."""
    if (weights is not None) + (seed is not None) + no_weights > 1:
        raise click.UsageError("`--weights`, `--init` and `--no-weights` exclude each other")
    if weights is None and seed is None and not no_weights:
        if not (Path(spec) / "config.json").is_file():
            raise click.UsageError("give the weights with `--weights FILE`, or random ones with `--init SEED`")
        weights = Path(spec)
    from .printing import export_report
    model = compiled(spec, sets)
    old = (output / "manifest.json").exists()
    manifest = model.export(output, weights, seed, target, dtype, certify, without, require_fused, prove, no_weights,
                            _dims(_items(typical), "--typical"))
    if old:
        print(f"{output}: the export that was there is replaced")
    print(export_report(manifest, output, sites), end="")
    if any(found and found.get("status") == "failed" for found in (manifest.certificate, manifest.proof)):
        raise Failed


@cli.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Write the spec to this YAML file.")
@click.option("--family", help="The spec with the `checkpoint: config:` to read it by; default: the library's for its model_type.")
def import_(folder: Path, output: Path, family: str | None) -> None:
    """Write the spec of a checkpoint made elsewhere, from the config.json in its folder."""
    from .files import write_text
    from .model import import_checkpoint, load
    if output.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"a spec is a .yaml file, and `{output}` has another ending")
    write_text(output, import_checkpoint(folder, family, output))
    print(f"wrote {output}: {load(output).parameters:,} parameters")


@cli.command("export-weights")
@with_spec
@click.option("--weights", required=True, type=click.Path(path_type=Path), help="Weights under our names, or under those of `checkpoint:`.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .safetensors file to write.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="Default: that of each tensor.")
@click.option("--prefix", default="", metavar="TEXT", help="What the foreign names start with, such as `model.`.")
def export_weights(spec: str, sets: tuple[str, ...], weights: Path, output: Path, dtype: str | None, prefix: str) -> None:
    """Write weights under the foreign names of the spec's `checkpoint:`, for other programs."""
    from .printing import size
    written = compiled(spec, sets).export_weights(weights, output, dtype, prefix)
    print(f"wrote {written.path}: {written.tensors:,} tensors, {size(written.bytes)}")


@cli.command()
@with_spec
@click.option("--weights", required=True, type=click.Path(path_type=Path), help="The weights that the reference was computed with.")
@click.option("--reference", required=True, type=click.Path(path_type=Path), help="An .npz file: inputs, outputs and values by path.")
@click.option("--tolerance", type=click.FloatRange(0), default=1e-4, show_default=True,
              help="Largest difference, relative to the largest number of a value.")
def compare(spec: str, sets: tuple[str, ...], weights: Path, reference: Path, tolerance: float) -> None:
    """Compare values with those of a reference, and name the first node that differs."""
    found = compiled(spec, sets).compare(reference, weights, tolerance)
    print(found.table(), end="")
    found.check()


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--inputs", type=click.Path(path_type=Path), help="Inputs from an .npz or .json file.")
@click.option("--random", "sizes", multiple=True, metavar="DIM=N", help="Random inputs with these sizes, such as --random B=2.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--allow-fallback", is_flag=True, help="Go on when another device than the one asked for is active.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads for one operator; default: all cores.")
@click.option("--spin", is_flag=True, help="Let idle threads wait busily: shorter runs, more processor time.")
@click.option("--profile", "profiled", is_flag=True, help="Print where the time goes, by path in the spec.")
@click.option("--depth", type=click.IntRange(1), help="Names of a path that --profile tells apart; default: all.")
def run(folder: Path, inputs: Path | None, sizes: tuple[str, ...], seed: int, output: Path | None, device: str, allow_fallback: bool,
        threads: int | None, spin: bool, profiled: bool, depth: int | None) -> None:
    """Run an exported folder with ONNX Runtime."""
    from . import runtime
    from .printing import profile_report, run_report
    from .runtime.data import load_inputs, random_inputs, save_npz, table
    if output is not None and output.suffix != ".npz":
        raise click.UsageError(f"outputs are written as .npz, and `{output}` has another ending")
    if inputs is not None and sizes:
        raise click.UsageError("`--inputs` and `--random` exclude each other")
    if depth is not None and not profiled:
        raise click.UsageError("`--depth` goes with `--profile`")
    artifact = runtime.open(folder, device, threads=threads, spin=spin, allow_fallback=allow_fallback, verify=True)
    if (artifact.manifest.certificate or {}).get("status") == "failed":
        report([diagnostic("failed-certificate", f"`{folder}` does not agree with PyTorch: its certificate failed", severity="warning",
                           help="export it again and read what differs")])
    arrays = load_inputs(inputs) if inputs is not None else random_inputs(artifact.manifest, _dims(sizes), seed)
    outputs = artifact(**arrays)
    if output is not None:
        save_npz(output, outputs)
    print(run_report(artifact.provider, arrays, table(outputs), output), end="")
    if profiled:
        from .runtime.profile import profile
        print(profile_report(profile(folder, arrays, device, depth, threads=threads, spin=spin, allow_fallback=allow_fallback)), end="")


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _dims(items: tuple[str, ...], option: str = "--random") -> dict[str, int]:
    out = {}
    for item in items:
        name, _, value = item.partition("=")
        if not value.isdigit():
            raise click.UsageError(f"`{option} {item}` is not DIM=N")
        out[name] = int(value)
    return out


@cli.command("list")
def list_() -> None:
    """List the models, blocks and ops that come with nnspec."""
    from .printing import library
    print(library(), end="")


@cli.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain a diagnostic code, an op or a library block; without a name, list the codes."""
    from .explain import codes, page
    if name is None:
        print("\n".join(codes()))
    elif name in codes():
        print(page(name))
    else:
        from .reference import describe, names
        found = describe(name)
        if found is None:
            known = [*names(), *codes()]
            raise fault("unknown-code", f"`{name}` is no diagnostic code, op or library block", help=suggest(name, known, "names")[:1]
                        if nearest(name, known) else ("`nnspec explain` lists the codes, `nnspec list` the ops and blocks",))
        print(found, end="")
