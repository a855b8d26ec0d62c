"""The command that brings a checkpoint over to another spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic
from .common import cli

if TYPE_CHECKING:
    from ..pipeline import Compiled


@cli.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.option("--from", "base", required=True, metavar="SPEC", help="The spec that OLD was trained with.")
@click.option("--to", "head", required=True, metavar="SPEC", help="The spec that NEW is for.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .safetensors file to write.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="Default: that of each old tensor.")
@click.option("--allow", type=click.Choice(["silent"]), multiple=True,
              help="Pass over edits that change the function while every tensor still fits.")
@click.option("--init", type=click.IntRange(0), metavar="SEED", help="Start tensors anew that no old one can be made into.")
@click.option("--keymap", type=click.Path(path_type=Path), metavar="FILE",
              help="Make the tensors that this file names as it says; `nnspec diff --write-keymap` writes it.")
@click.option("--no-verify", is_flag=True, help="Do not run both models to see that the function is kept.")
def migrate(old: Path, base: str, head: str, output: Path, dtype: str | None, allow: tuple[str, ...], init: int | None,
            keymap: Path | None, no_verify: bool) -> None:
    """Bring the checkpoint OLD over to another spec.

    Tensors are renamed, joined, split, padded, averaged or repeated as the edits between the two specs ask; new layers start so that they
    change nothing. Edits that no tensor can follow are refused, all at once. OLD may have foreign names, which the `checkpoint:` of its
    spec maps. Exit 1: an edit cannot be followed, or the function is not kept where it must be.
    """
    from ..diff.migration.migrate import migrate as run
    made = run(old, *_both(base, head), output, (base, head), dtype, frozenset(allow), init, not no_verify, keymap)
    print(made.text(), end="")
    if no_verify:
        print("  not verified")


def _both(base: str, head: str) -> tuple[Compiled, Compiled]:
    """Both specs. Raises Diagnostics with all that is wrong with either."""
    from ..diff.lock import ENDING
    from ..diff.sources import opened
    found: list[Compiled] = []
    wrong: list[Diagnostic] = []
    for given in (base, head):
        try:
            if given.endswith(ENDING):
                wrong.append(diagnostic("bad-lock", f"`{given}` is a lock file, which holds no graph", help="give the spec itself"))
            else:
                found.append(opened(given))
        except Diagnostics as fault:
            wrong += fault.items
    if wrong:
        raise Diagnostics(wrong)
    return found[0], found[1]
