"""Commands that compare specs: diff, lock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..lang.diagnostic import Diagnostics
from .common import FORM, Failed, cli, dims, items, report

if TYPE_CHECKING:
    from ..diff.report import Report

FORMATS = ("text", "json", "html")
LEVELS = ("info", "warning", "breaking")
CONTRACTS = ("checkpoint", "numerics", "interface", "cache", "cost", "training", "silent")


@cli.command()
@click.argument("base", required=False)
@click.argument("head", required=False)
@click.option("-f", "--format", "forms", type=click.Choice(FORMATS), multiple=True, help="How to tell it; with several, one -o for each.")
@click.option("-o", "--output", "outputs", multiple=True, type=click.Path(path_type=Path), help="Write to this file; default: print.")
@click.option("--full", is_flag=True, help="Also list every consequence and every tensor.")
@click.option("--summary", is_flag=True, help="Print the verdicts alone.")
@click.option("--fail-on", metavar="LEVEL|CONTRACT,...", default="", help="Exit 1 for edits at or above a level, or of a contract.")
@click.option("--exit-code", is_flag=True, help="Exit 1 for any difference.")
@click.option("--at", metavar="DIM=N,...", default="", help="Sizes for costs, such as B=1,S=2048.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float16", show_default=True)
@click.option("--print-schema", is_flag=True, help="Print the JSON Schema of `--format json`.")
def diff(base: str | None, head: str | None, forms: tuple[str, ...], outputs: tuple[Path, ...], full: bool, summary: bool, fail_on: str,
         exit_code: bool, at: str, dtype: str, print_schema: bool) -> None:
    """Say what changed from the spec BASE to the spec HEAD, edit by edit.

    Each is a file, a model of the library, REF:PATH of the git repository, an exported folder or .onnx file, a lock file, or `-`.
    """
    if print_schema:
        import json

        from ..diff.as_json import schema
        print(json.dumps(schema(), indent=2))
        return
    if base is None or head is None:
        raise click.UsageError("give two specs: `nnspec diff BASE HEAD`")
    wanted = _wanted(fail_on)
    forms = forms or ("text",)
    if len(outputs) not in (0, len(forms)) or (len(forms) > 1 and not outputs):
        raise click.UsageError("give one `-o FILE` for each `--format`")
    FORM[0] = "json" if forms == ("json",) and not outputs else "text"
    from ..diff.sides import compared
    found = compared(base, head, dims(items(at), "--at"), dtype)
    write([found], forms, outputs, full, summary)
    if (exit_code and found.changed) or failing(found, wanted):
        raise Failed


def write(found: list[Report], forms: tuple[str, ...], outputs: tuple[Path, ...], full: bool, summary: bool) -> None:
    """Each format to its file, or printed."""
    from ..files import write_text
    for k, form in enumerate(forms):
        made = "".join(layout(form, full, summary, not outputs and sys.stdout.isatty())(r) for r in found)
        if outputs:
            write_text(outputs[k], made)
        else:
            print(made, end="")


def layout(form: str, full: bool, summary: bool, color: bool) -> Callable[[Report], str]:
    """The function that lays a report out."""
    if form == "json":
        from ..diff.as_json import dumps
        return dumps
    if form == "html":
        from ..diff.html import page
        return page
    from ..diff.text import text
    return lambda r: text(r, color, full, summary)


def _wanted(fail_on: str) -> tuple[str, ...]:
    wanted = items(fail_on)
    for word in wanted:
        if word not in (*LEVELS, *CONTRACTS):
            raise click.UsageError(f"`--fail-on {word}` is no level ({', '.join(LEVELS)}) and no contract ({', '.join(CONTRACTS)})")
    return wanted


def failing(found: Report, wanted: tuple[str, ...]) -> bool:
    """Whether a report holds what the caller fails on."""
    least = min((LEVELS.index(w) for w in wanted if w in LEVELS), default=len(LEVELS))
    return any(LEVELS.index(e.level) >= least or {*e.contracts, *(["silent"] if e.checkpoint == "silent" else [])} & {*wanted}
               for e in found.edits)


@cli.command()
@click.argument("specs", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where a lock file is stale or missing.")
def lock(specs: tuple[str, ...], check: bool) -> None:
    """Write a lock file beside each spec: hashes, costs and tensors, one fact a line."""
    from ..diff.lock import lock_path, lock_text, stale
    from ..files import write_text
    from ..pipeline import front
    wrong, old = [], 0
    for spec in specs:
        try:
            text, path = lock_text(front(spec)), lock_path(Path(spec))
            if not check:
                write_text(path, text)
                print(f"wrote {path}")
            elif (why := stale(path, text)) is not None:
                old += 1
                print(f"{path}: {why}; `nnspec lock {spec}` writes it")
        except Diagnostics as found:
            wrong += found.items
    if wrong:
        raise Diagnostics(wrong)
    if old:
        raise Failed


__all__ = ["diff", "failing", "layout", "lock", "report", "write"]
