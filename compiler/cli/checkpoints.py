"""Commands for checkpoints made elsewhere: import, export-weights, compare."""

from __future__ import annotations

from pathlib import Path

import click

from .common import cli, compiled, with_spec


@cli.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Write the spec to this YAML file.")
@click.option("--family", help="The spec with the `checkpoint: config:` to read it by; default: the library's for its model_type.")
def import_(folder: Path, output: Path, family: str | None) -> None:
    """Write the spec of a checkpoint made elsewhere, from the config.json in its folder."""
    from ..files import write_text
    from ..model import import_checkpoint
    if output.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"a spec is a .yaml file, and `{output}` has another ending")
    old = output.exists()
    write_text(output, import_checkpoint(folder, family, output))
    if old:
        print(f"{output}: the file that was there is replaced")
    print(f"wrote {output}: {compiled(str(output), (), limits=False).parameters:,} parameters")


@cli.command("export-weights")
@with_spec
@click.option("--weights", required=True, type=click.Path(path_type=Path), help="Weights under our names, or under those of `checkpoint:`.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .safetensors file to write.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="Default: that of each tensor.")
@click.option("--prefix", metavar="TEXT", help="What every foreign name starts with, such as `bert.`.")
@click.option("--like", type=click.Path(path_type=Path),
              help="Name the tensors as this file of others does; default: as --weights, where that is one.")
def export_weights(spec: str, sets: tuple[str, ...], weights: Path, output: Path, dtype: str | None, prefix: str | None,
                   like: Path | None) -> None:
    """Write weights under the foreign names of the spec's `checkpoint:`, for other programs."""
    from ..printing import size
    written = compiled(spec, sets).export_weights(weights, output, dtype, prefix, like)
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
