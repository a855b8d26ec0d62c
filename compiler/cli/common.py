"""What all commands share: how a spec is given and compiled, how faults are reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from ..lang.diagnostic import Diagnostic, diagnostic

FORMATS = ("text", "json", "github")
FORM = ["text"]             # of what is reported; `validate --format` sets it


class Failed(Exception):
    """A check failed: exit 1, the message is already printed."""


def usage(wrong: click.ClickException) -> Diagnostic:
    context = getattr(wrong, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context else "see `nnspec --help`"
    return diagnostic("bad-command", wrong.format_message().rstrip("."), help=hint)


def report(items: Sequence[Diagnostic]) -> None:
    """Print diagnostics to standard error, or as JSON or GitHub annotations to standard output."""
    from ..render import render, render_github, render_json
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


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    context.meta[f"nnspec.{option.name}"] = value


def with_sizes(command: Callable[..., Any]) -> Callable[..., Any]:
    """--set and --family, of the commands that compile specs; `compiled` finds the family itself."""
    family = click.option("--family", callback=_remember, expose_value=False, metavar="SPEC",
                          help="What a folder's config.json is read by; default: the library's for its model_type.")
    sets = click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Override a size; may be repeated.")
    return sets(family(command))


def with_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """SPEC, --set and --family, of the commands that compile one spec."""
    return click.argument("spec")(with_sizes(command))


def compiled(spec: str, sets: tuple[str, ...], limits: bool = True) -> Any:
    """The model, with its warnings printed. Over its budget it fails, unless the caller looks at the limits itself."""
    from ..model import load
    sizes = {}
    for item in sets:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise click.UsageError(f"`--set {item}` is not NAME=VALUE")
        if name.strip() in sizes:
            raise click.UsageError(f"`--set {name.strip()}` is given twice")
        sizes[name.strip()] = value
    model = load(spec, sizes, click.get_current_context().meta.get("nnspec.family"))
    if model.warnings and FORM[0] == "text":
        report(model.warnings)
    if model.over and limits:
        report(model.over)
        raise Failed
    return model


def items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def dims(given: tuple[str, ...], option: str = "--random", least: int = 0) -> dict[str, int]:
    """Sizes of free dimensions, `B=2,S=9` or one at a time."""
    out: dict[str, int] = {}
    for item in (part for text in given for part in items(text)):
        name, _, value = item.partition("=")
        if not name or not value.isdecimal() or int(value) < least:
            raise click.UsageError(f"`{option} {item}` is not DIM=N" + (f" with a number of at least {least}" if least else ""))
        if name in out:
            raise click.UsageError(f"`{option} {name}` is given twice")
        out[name] = int(value)
    return out
