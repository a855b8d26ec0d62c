"""Defaults of `nnspec diff` that a repository keeps in `.nnspec.yaml`; what stands on the command line wins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..lang.diagnostic import Diagnostics, Fault, Sink, diagnostic, fault, suggest
from ..lang.source import Span
from ..lang.tree import Mapping, Scalar, Sequence, Tree, kind

NAME = ".nnspec.yaml"
LEVELS = ("info", "warning", "breaking")
CONTRACTS = ("checkpoint", "numerics", "interface", "cache", "cost", "training", "silent", "deploy")
DTYPES = ("float32", "float16", "bfloat16")


def with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """--config and --no-config: they are read before all others, which then have their defaults from the file."""
    path = click.option("--config", type=click.Path(path_type=Path), metavar="FILE", is_eager=True, expose_value=False, callback=_read,
                        help=f"Defaults of these options; without it, {NAME} here or in a folder above, up to the top of the repository.")
    none = click.option("--no-config", is_flag=True, is_eager=True, expose_value=False, callback=_none, help=f"Read no {NAME}.")
    return none(path(command))


def _none(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and context.default_map:
        raise click.UsageError("`--config` and `--no-config` exclude each other")
    context.meta["nnspec.no-config"] = value


def _read(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    if context.meta.get("nnspec.no-config"):
        if value is not None:
            raise click.UsageError("`--config` and `--no-config` exclude each other")
        return
    path = value if value is not None else nearest_config(Path.cwd())
    if path is not None:
        context.default_map = read_config(path)


def nearest_config(folder: Path) -> Path | None:
    """The file of a folder, or of the nearest one above it, no further than the top of a git repository."""
    for here in (folder, *folder.parents):
        if (here / NAME).is_file():
            return Path(os.path.relpath(here / NAME, folder))
        if (here / ".git").exists():
            return None
    return None


def read_config(path: Path) -> dict[str, Any]:
    """What a file says, as defaults of the command's parameters. Raises Diagnostics with all that is wrong with it."""
    from ..stages.parse import parse, read_source
    source = read_source(path)
    if not re.sub(r"(?m)^\s*#.*$", "", source.text).strip():
        return {}                                   # only words so far
    tree = parse(source)
    if not isinstance(tree, Mapping):
        raise Diagnostics([diagnostic("bad-spec", f"defaults are a mapping, not {kind(tree)}", tree.span,
                                      help="`diff: {fail-on: breaking}`")])
    sink = Sink()
    out: dict[str, Any] = {}
    for e in tree:
        if e.key.text != "diff":
            sink.add(diagnostic("unknown-key", f"defaults have no key `{e.key.text}`", e.key.span, help="they are those of `diff:`"))
        elif isinstance(e.value, Scalar) and not e.value.text and not e.value.quoted:
            continue
        elif not isinstance(e.value, Mapping):
            sink.add(diagnostic("bad-spec", f"`diff:` is a mapping of options, not {kind(e.value)}", e.value.span))
        else:
            for option in e.value:
                with sink.catch():
                    if option.key.text not in OPTIONS:
                        raise fault("unknown-key", f"`{option.key.text}` is no option that has a default", option.key.span,
                                    help=suggest(option.key.text, OPTIONS, "options"))
                    name, made = OPTIONS[option.key.text]
                    out[name] = made(option.value, path)
    sink.check()
    return out


# one function a form of values: the tree and the file -> what click takes


def _list(tree: Tree) -> list[Scalar]:
    """The texts of a list; of one text, what stands between its commas."""
    if isinstance(tree, Scalar):
        return [Scalar(text.strip(), tree.span) for text in tree.text.split(",") if text.strip()]
    if not isinstance(tree, Sequence) or any(not isinstance(x, Scalar) for x in tree):
        raise fault("bad-command", f"this option is a word or a list of them, not {kind(tree)}", tree.span)
    return [x for x in tree if isinstance(x, Scalar)]


def _fail_on(tree: Tree, _: Path) -> str:
    return ",".join(_known(word, (*LEVELS, *CONTRACTS), "levels and contracts") for word in _list(tree))


def _words(tree: Tree, _: Path) -> str:
    return ",".join(word.text for word in _list(tree))


def _known(word: Scalar, known: tuple[str, ...], what: str) -> str:
    if word.text not in known:
        raise fault("bad-command", f"`{word.text}` is none of the {what}", word.span, help=suggest(word.text, known, what))
    return word.text


def _one(tree: Tree) -> Scalar:
    if not isinstance(tree, Scalar):
        raise fault("bad-command", f"this option has one value, not {kind(tree)}", tree.span)
    return tree


def _flag(tree: Tree, _: Path) -> bool:
    return _known(_one(tree), ("true", "false"), "values of a switch") == "true"


def _dtype(tree: Tree, _: Path) -> str:
    return _known(_one(tree), DTYPES, "dtypes")


def _file(tree: Tree, path: Path) -> str:
    return str(path.parent / _one(tree).text)


def _pairs(tree: Tree) -> list[tuple[str, Span]]:
    """`NAME=VALUE` of a mapping, a list or a text."""
    if isinstance(tree, Mapping):
        return [(f"{e.key.text}={_one(e.value).text}", e.value.span) for e in tree]
    return [(word.text, word.span) for word in _list(tree)]


def _at(tree: Tree, _: Path) -> str:
    for text, span in _pairs(tree):
        name, _equals, value = text.partition("=")
        if not name or not value.isdecimal():
            raise fault("bad-command", f"`{text}` is no size of a dimension", span, help="`at: {B: 1, S: 2048}`")
    return ",".join(text for text, _span in _pairs(tree))


def _budget(tree: Tree, _: Path) -> list[str]:
    from ..diff.growth import growth
    return [_checked(text, span, growth) for text, span in _pairs(tree)]


def _epsilon(tree: Tree, _: Path) -> str:
    from ..diff.growth import percent
    return _checked(_one(tree).text, tree.span, percent)


def _checked(text: str, span: Span, check: Callable[[str], Any]) -> str:
    try:
        check(text)
    except Diagnostics as wrong:
        first = wrong.items[0]
        raise Fault(diagnostic("bad-command", first.headline, span, help=first.helps)) from None
    return text


OPTIONS: dict[str, tuple[str, Callable[[Tree, Path], Any]]] = {
    "fail-on": ("fail_on", _fail_on), "exit-code": ("exit_code", _flag), "at": ("at", _at), "dtype": ("dtype", _dtype),
    "budget": ("budgets", _budget), "only": ("only", _words), "exclude": ("exclude", _words), "accept": ("accepts", _file),
    "cost-epsilon": ("epsilon", _epsilon)}
