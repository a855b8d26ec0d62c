"""`Tree, config -> Tree`: the spec of a family with the sizes and choices of one config."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from typing import Any

from ..ir.evaluate import evaluate
from ..lang.diagnostic import Label, Sink, diagnostic, fault
from ..lang.expression import parse_expression
from ..lang.source import Span
from ..lang.tree import Mapping, Scalar, Sequence, Tree, chosen_blocks, scalars
from ..stages.compose import change, walk
from .config import UNSUPPORTED, match_config
from .section import Change, Choice, Later, Section, read_section

DROPPED = ("checkpoint.model_type", "checkpoint.config")


@dataclass(frozen=True)
class Fitted:
    """A family's tree after the changes of a config, and the values that must agree with its sizes."""

    tree: Mapping
    changes: tuple[Change, ...] = ()
    later: tuple[Later, ...] = ()


def check_section(tree: Mapping, sink: Sink) -> None:
    """Whatever is wrong with the `config:` section of a checked file goes to `sink`, every path of every choice too. One that a
    variant has from its base is passed over: the variant may have removed what a choice changes."""
    written = _at(tree, "checkpoint.config")
    if written is not None and written.span.source is tree.span.source:
        _check_paths(_section(tree, sink), tree, sink)


def _section(tree: Mapping, sink: Sink) -> Section:
    sizes = tree.get("sizes")
    return read_section(_at(tree, "checkpoint.config"), sizes.keys() if isinstance(sizes, Mapping) else (), sink)


def _check_paths(section: Section, tree: Mapping, sink: Sink) -> None:
    for key in section.keys:
        if key.pattern is not None:
            with sink.catch():
                _repeated(tree, key.pattern)
        for at in key.at:
            with sink.catch():
                change(tree, _put(tree, at), at, at)
        for choice in key.choose:
            _check_choice(choice, tree, sink)


def _check_choice(choice: Choice, tree: Mapping, sink: Sink) -> None:
    for made in choice.changes:
        with sink.catch():
            tree = change(tree, made.what, made.path, made.value)
    if choice.config is not None:
        _check_paths(choice.config, tree, sink)


def fit(tree: Mapping, config: Mapping, name: str, harmless: Iterable[str], sink: Sink) -> Fitted:
    """The family's tree as `config` has it, under another name."""
    sink.check()
    start, section = tree, _section(tree, sink)
    sink.check()
    matched = match_config(section, config, harmless, sink, tree.get("sizes"))
    sink.check()
    done: list[Change] = []
    later = list(matched.later)
    for made in (*matched.changes, *_renamed(tree, name, config.span), *(_drop(p, config.span) for p in DROPPED if _at(tree, p))):
        with sink.catch():
            for one in _concrete(tree, made, later):
                tree = change(tree, one.what, one.path, one.value)
                done.append(one)
    for one in _idle(tree, _chosen(start)):
        tree = change(tree, one.what, one.path, one.value)
        done.append(one)
    return Fitted(tree, tuple(done), tuple(later))


def _chosen(tree: Mapping) -> set[str]:
    checkpoint = tree.get("checkpoint")
    return chosen_blocks(tree, checkpoint if isinstance(checkpoint, Mapping) else None)


def _idle(tree: Mapping, chosen: set[str]) -> Iterator[Change]:
    """The removal of blocks that choices use, where the choice was not made."""
    blocks = tree.get("blocks")
    if not isinstance(blocks, Mapping):
        return
    left = list(blocks)
    while idle := [e for e in left if e.key.text in chosen and not any(
            s.text == e.key.text for part in (tree.get("graph"), *(o.value for o in left if o is not e)) for s in scalars(part))]:
        left = [e for e in left if e not in idle]
        yield from (_drop(f"blocks.{e.key.text}", e.key.span) for e in idle if left)
    if not left and len(blocks):
        yield _drop("blocks", blocks.span)


def _renamed(tree: Mapping, name: str, span: Span) -> list[Change]:
    """Its own name, and `about:` that says it is one of a family."""
    about = tree.get("about")
    changes = [Change("set" if "name" in tree else "add", Scalar("name", span), Scalar(name, span))]
    if isinstance(about, Scalar):
        changes.append(Change("set", Scalar("about", span), Scalar(f"Of the family of {about.text}", about.span, True)))
    return changes


def _drop(path: str, span: Span) -> Change:
    return Change("remove", Scalar(path, span), Scalar(path, span))


def _at(tree: Tree | None, path: str) -> Tree | None:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _concrete(tree: Mapping, made: Change, later: list[Later]) -> list[Change]:
    """A pattern, or a value put at a path, as the change that it is here."""
    if made.what == "put":
        return [Change(_put(tree, made.path), made.path, made.value)]
    if made.what != "pattern":
        return [made]
    count, there = _repeated(tree, made.path)
    assert isinstance(made.value, Sequence)
    path = Scalar(f"{made.path.text}.pattern", made.path.span)
    if made.layers is not None:
        headline = f"the config lists the kinds of {made.layers} layers"
        later.append(Later(headline, float(made.layers), (count,), made.value.span))
    if not len(made.value):
        return [Change("remove", path, made.value)] if there else []
    return [Change("set" if there else "add", path, made.value)]


def _put(tree: Mapping, path: Scalar) -> str:
    """Which change puts a value at a path."""
    return "add" if walk(tree, path.text)[1] else "set"


def _repeated(tree: Mapping, path: Scalar) -> tuple[Scalar, bool]:
    """How many copies the node at a path has, and whether it has a pattern."""
    node = _at(tree, path.text if path.text.startswith(("graph.", "blocks.")) else f"graph.{path.text}")
    count = node.get("repeat") if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or not isinstance(count, Scalar):
        raise fault("unknown-path", f"`{path.text}` is no node that `repeat:` copies", path.span)
    return count, "pattern" in node


def check_later(later: Iterable[Later], sizes: AnyMapping[str, Any], sink: Sink) -> None:
    """The values of the config that expressions over the sizes must give."""
    def find(name: str, span: Span) -> Any:
        if name not in sizes:
            raise fault("unknown-name", f"no size is called `{name}`", span)
        return sizes[name]
    for one in later:
        with sink.catch():
            wanted = [evaluate(parse_expression(f.text, f.span), find) for f in one.formulas]
            if not any(isinstance(w, int | float) and math.isclose(one.value, w, rel_tol=1e-9) for w in wanted):
                said = " or ".join(f"`{f.text}`, which is {w}," for f, w in zip(one.formulas, wanted, strict=True))
                sink.add(diagnostic(UNSUPPORTED, f"{one.headline}, and the family needs {said.removesuffix(',')}", one.span,
                                    Label(one.formulas[0].span, "said here")))
