"""Commands that read specs: validate, show, compile, list, explain."""

from __future__ import annotations

from pathlib import Path

import click

from ..lang.diagnostic import Diagnostic, Diagnostics, fault, nearest, suggest
from .common import FORM, FORMATS, Failed, cli, compiled, report, with_sizes, with_spec
from .cost import hold, with_budget


@cli.command()
@click.argument("specs", nargs=-1, required=True)
@with_sizes
@with_budget
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How to print what is wrong.")
def validate(specs: tuple[str, ...], sets: tuple[str, ...], budgets: tuple[str, ...], form: str) -> None:
    """Check specs: everything that is wrong, with file, line and a hint."""
    FORM[0] = form
    wrong: list[Diagnostic] = []
    over: list[Diagnostic] = []
    for spec in specs:
        try:
            model = compiled(spec, sets, limits=False)
            wrong += model.warnings if form != "text" else ()
            exceeded = [*model.over, *hold(model, budgets)]
            over += exceeded
            if form == "text" and not exceeded:
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
@click.option("--streaming", is_flag=True, help="Say whether the model can be run step by step, what it keeps and what that costs.")
@click.option("--along", metavar="AXIS", help="The axis of --streaming; default: the only one that is causal.")
def show(spec: str, sets: tuple[str, ...], depth: int | None, graph: bool, streaming: bool, along: str | None) -> None:
    """Print the interface, the exact parameter count and the tree."""
    if along is not None and not streaming:
        raise click.UsageError("`--along` goes with `--streaming`")
    model = compiled(spec, sets)
    if streaming:
        print(model.streaming(along), end="")
    elif graph:
        from ..ir.text import graph_text
        print(graph_text(model.graph), end="")
    else:
        print(model.show(depth), end="")


@cli.command("compile")
@with_spec
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the source to this file; default: print it.")
def compile_(spec: str, sets: tuple[str, ...], output: Path | None) -> None:
    """Write standalone PyTorch source that needs only torch."""
    from ..files import write_text
    source = compiled(spec, sets).source()
    if output is None:
        print(source, end="")
    else:
        write_text(output, source)
        print(f"wrote {output}")


@cli.command("list")
def list_() -> None:
    """List the models, blocks and ops that come with nnspec."""
    from ..printing import library
    print(library(), end="")


@cli.command()
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Explain a diagnostic code, an op or a library block; without a name, list the codes."""
    from ..explain import codes, page
    if name is None:
        print("\n".join(codes()))
    elif name in codes():
        print(page(name))
    else:
        from ..reference import describe, names
        found = describe(name)
        if found is None:
            from ..library import is_model
            known = [*names(), *codes()]
            if is_model(name):
                raise fault("unknown-code", f"`{name}` is a model, which is no diagnostic code, op or block", help=f"`nnspec show {name}`")
            raise fault("unknown-code", f"`{name}` is no diagnostic code, op or library block", help=suggest(name, known, "names")[:1]
                        if nearest(name, known) else ("`nnspec explain` lists the codes, `nnspec list` the ops and blocks",))
        print(found, end="")
