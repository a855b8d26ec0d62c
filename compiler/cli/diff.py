"""Commands that compare specs: diff, lock, and those that git calls."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..lang.diagnostic import Diagnostic, Diagnostics
from .choice import Choice, aside, with_choice
from .common import FORM, Failed, cli, dims, items, report
from .config import CONTRACTS, DTYPES, LEVELS, with_config

if TYPE_CHECKING:
    from ..diff.layers import Asked
    from ..diff.report import Report

TOLD = {"commits", "at", "dtype", "keys", "run", "weights", "onnx", "provider", "maps", "only", "exclude", "checkpoint", "accepts",
        "budgets"}              # options that change what is told
FORMATS = ("text", "json", "md", "html", "github", "junit")


@cli.command()
@click.argument("specs", nargs=-1)
@click.option("--git", "commits", metavar="RANGE", help="Compare the specs that differ in A...B, A..B, or since A; arguments are paths.")
@click.option("-f", "--format", "forms", type=click.Choice(FORMATS), multiple=True, help="How to tell it; with several, one -o for each.")
@click.option("-o", "--output", "outputs", multiple=True, type=click.Path(path_type=Path), help="Write to this file; default: print.")
@click.option("--full", is_flag=True, help="In the text, also list every consequence and every tensor.")
@click.option("--summary", is_flag=True, help="In the text, the verdicts alone.")
@click.option("--fail-on", metavar="LEVEL|CONTRACT,...", default="", help="Exit 1 for edits at or above a level, or of a contract.")
@click.option("--exit-code", is_flag=True, help="Exit 1 for any difference.")
@click.option("--at", metavar="DIM=N,...", default="", help="Sizes for costs, such as B=1,S=2048.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float16", show_default=True, help="Of costs, and of `--onnx`.")
@click.option("--keys", is_flag=True, help="Also tell how every tensor of HEAD is made of those of BASE.")
@click.option("--verify", "run", is_flag=True, help="Run both models with the same weights; exit 1 where a claim is wrong.")
@click.option("--weights", type=click.Path(path_type=Path), help="With --verify: weights of BASE; default: random ones.")
@click.option("--onnx", is_flag=True, help="Also compare the ONNX files that both would be exported as (exported models always are).")
@click.option("--ep", "provider", type=click.Choice(["cpu", "cuda"]),
              help="The execution provider of --onnx: what specs are exported for, and where nodes run; default: cuda, or the files'.")
@click.option("--print-schema", is_flag=True, help="Print the JSON Schema of `--format json`.")
@with_choice
@with_config
def diff(specs: tuple[str, ...], commits: str | None, forms: tuple[str, ...], outputs: tuple[Path, ...], full: bool, summary: bool,
         fail_on: str, exit_code: bool, at: str, dtype: str, keys: bool, run: bool, weights: Path | None, onnx: bool,
         provider: str | None, print_schema: bool, **more: Any) -> None:
    """Say what changed from the spec BASE to the spec HEAD, edit by edit.

    Each is a file, a model of the library, REF:PATH of the git repository, an exported folder or .onnx file, a lock file, or `-`.
    """
    if print_schema:
        import json

        from ..diff.formats.as_json import schema
        print(json.dumps(schema(), indent=2))
        return
    wanted, forms = _wanted(fail_on), forms or ("text",)
    if commits is None and len(specs) != 2:
        raise click.UsageError("give two specs: `nnspec diff BASE HEAD`, or a range of commits: `--git main...HEAD`")
    if len(outputs) not in (0, len(forms)) or (len(forms) > 1 and not outputs):
        raise click.UsageError("give one `-o FILE` for each `--format`")
    FORM[0] = forms[0] if (forms == ("json",) and commits is None or forms == ("github",)) and not outputs else "text"
    if weights is not None and not run:
        raise click.UsageError("`--weights` are those that `--verify` runs the models with")
    if commits is not None and (keys or run or onnx or provider):
        raise click.UsageError("`--keys`, `--verify`, `--onnx` and `--ep` are about two specs, not a range of commits")
    choice = Choice(**more)
    choice.check(commits, forms)
    asked = replace(choice.asked(keys, run, weights), onnx=onnx or provider is not None, provider=provider or "", dtype=_given("dtype"))
    found, failures = _compared(specs, commits, dims(items(at), "--at"), dtype, asked, choice.names())
    if failures and commits is None and not outputs and forms[0] in ("text", "json", "github"):
        raise failures[0]
    found, shown = choice(found, commits is not None)
    command = _command(specs)
    _write(shown, choice.costs(shown), [_failure(d) for d in failures], forms, outputs, (full, summary, choice.by), command)
    if failures:
        raise Diagnostics([x for d in failures for x in d.items])
    from ..diff.layers import broken, differs
    over = choice.over(found)
    aside(over)
    if over or any((exit_code and differs(r)) or failing(r, wanted) or broken(r) for r in found):
        raise Failed


def _command(specs: Sequence[str]) -> str:
    """The command that tells the same again: what was asked for, not how it was told."""
    context = click.get_current_context()
    words = ["nnspec diff"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if isinstance(option, click.Option) and option.name in TOLD and value and _given(option.name):
            values = value if isinstance(value, tuple) else [value]
            words += [option.opts[0]] if option.is_flag else [w for v in values for w in (option.opts[0], shlex.quote(str(v)))]
    return " ".join([*words, *map(shlex.quote, specs)])


def _given(name: str) -> str:
    """An option of this command where it was written; empty where it is the default."""
    context = click.get_current_context()
    return str(context.params[name]) if context.get_parameter_source(name) is ParameterSource.COMMANDLINE else ""


def _compared(specs: Sequence[str], commits: str | None, sizes: dict[str, int], dtype: str,
              asked: Asked, names: dict[str, str]) -> tuple[list[Report], list[Diagnostics]]:
    """The reports, and what could not be compared."""
    if commits is None:
        from ..diff.sides import compared
        try:
            return [compared(specs[0], specs[1], sizes, dtype, asked, names)], []
        except Diagnostics as wrong:
            return [], [wrong]
    from ..diff.commits import compare_range
    made = compare_range(commits, specs, sizes, dtype, loose=asked.loose)
    return list(made.reports), [wrong for _, wrong in made.failures]


def _failure(wrong: Diagnostics) -> str:
    from ..render import render
    return render(wrong.items)


def _write(whole: list[Report], found: list[Report], failures: list[str], forms: tuple[str, ...], outputs: tuple[Path, ...],
           how: tuple[bool, bool, str], command: str) -> None:
    """Each format to its file, or printed; JSON has the `whole` of what the others tell."""
    from ..files import write_text
    for k, form in enumerate(forms):
        told = failures if outputs or form not in ("text", "github") else []            # these print them on their own
        made = layout(form, whole if form == "json" else found, told, how, command, not outputs and sys.stdout.isatty())
        if outputs:
            write_text(outputs[k], made)
        else:
            print(made, end="")


def layout(form: str, found: list[Report], failures: list[str], how: tuple[bool, bool, str], command: str, color: bool) -> str:
    """Reports in one of the formats; `how` is whether all is listed, whether the verdicts alone are, and the order."""
    if form == "json":
        from ..diff.formats.as_json import dumps, dumps_all
        return dumps(found[0]) if len(found) == 1 and not failures and "--git" not in command else dumps_all(found, failures)
    if form == "md":
        from ..diff.formats.markdown import markdown, run_link
        return markdown(found, command, failures, run_link(os.environ))
    if form == "html":
        from ..diff.html.page import page
        return page(found, failures)
    if form == "github":
        from ..diff.formats.annotations import github
        return github(found, failures)
    if form == "junit":
        from ..diff.formats.annotations import junit
        return junit(found, failures)
    from ..diff.formats.text import text
    from ..diff.formats.words import shared
    if not found and not failures:
        return "no spec differs\n"
    said = shared(found)
    return "\n".join([text(r, color, *how) for r in found] + ["".join(f"{line}\n" for line in said)] * bool(said) + failures)


def _wanted(fail_on: str) -> tuple[str, ...]:
    wanted = items(fail_on)
    for word in wanted:
        if word not in (*LEVELS, *CONTRACTS):
            raise click.UsageError(f"`--fail-on {word}` is no level ({', '.join(LEVELS)}) and no contract ({', '.join(CONTRACTS)})")
    return wanted


def failing(found: Report, wanted: tuple[str, ...]) -> bool:
    """Whether a report holds what the caller fails on."""
    least = min((LEVELS.index(w) for w in wanted if w in LEVELS), default=len(LEVELS))
    from ..diff.file_layer import problems
    from ..diff.layers import found_level
    worst = found_level(found)
    if worst >= least or (worst >= 0 and "deploy" in wanted) or ("checkpoint" in wanted and problems(found.layers)):
        return True
    return any(LEVELS.index(e.level) >= least or {*e.contracts, *(["silent"] if e.checkpoint == "silent" else [])} & {*wanted}
               for e in found.edits if not e.accepted)


@cli.command()
@click.argument("specs", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where a lock file is stale or missing.")
def lock(specs: tuple[str, ...], check: bool) -> None:
    """Write a lock file beside each spec: hashes, costs and tensors, one fact a line."""
    from ..diff.lock import lock_path, lock_text, stale
    from ..files import write_text
    from ..pipeline import front
    wrong: list[Diagnostic] = []
    old = 0
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


@cli.group()
def git() -> None:
    """Let git compare specs by what they mean."""


@git.command()
@click.option("--global", "everywhere", is_flag=True, help="For all repositories of this user.")
@click.option("--pattern", "patterns", multiple=True, help="Files that are specs; default: *.nnspec.yaml.")
@click.option("--disable", is_flag=True, help="Undo it.")
def install(everywhere: bool, patterns: tuple[str, ...], disable: bool) -> None:
    """Set up `git diff`, `git log -p` and `git show` for specs in this clone."""
    from ..diff import git as driver
    said = driver.uninstall(everywhere) if disable else driver.install(patterns or driver.PATTERNS, everywhere)
    print("\n".join(said))


@cli.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--path", "name", metavar="PATH", help="What the file is called in the repository.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the page here; default: a folder for temporary files.")
@click.option("--no-open", is_flag=True, help="Only print where the page is.")
def difftool(old: Path, new: Path, name: str | None, output: Path | None, no_open: bool) -> None:
    """Show two files, or two folders of specs, in the browser: what `git difftool -t nnspec` runs."""
    from ..diff.difftool import opened, shown
    found = shown(old, new, name)
    print(found.lines, end="")
    if found.reports or found.failures:
        print(opened(found, name or str(new), output, not no_open))
    if found.wrong:
        raise Diagnostics(found.wrong)


@cli.command("git-diff-driver", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, required=True)
def git_diff_driver(arguments: tuple[str, ...]) -> None:
    """What git runs for `git diff`: it never fails, and says what is wrong in its text."""
    from ..diff.git import driver, handed_on
    if (code := handed_on(arguments)) is not None:
        sys.exit(code)
    print(driver(arguments, sys.stdout.isatty()), end="")


@cli.command(hidden=True)
@click.argument("path", type=click.Path(path_type=Path))
def textconv(path: Path) -> None:
    """The text of a spec that `git log -p` and `git show` compare."""
    from ..diff.git import textconv as convert
    print(convert(path), end="")


__all__ = ["diff", "failing", "git", "layout", "lock", "report"]
