"""What `nnspec diff` shows and what it fails on, beyond levels: edits by name, renames, accepted edits, limits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .common import FORM, items, report

if TYPE_CHECKING:
    from ..diff.layers import Asked
    from ..diff.report import Report
    from ..lang.diagnostic import Diagnostic


def aside(found: Sequence[Diagnostic]) -> None:
    """Diagnostics beside a report: of one in JSON, on standard error, for standard output holds one document."""
    if FORM[0] == "json" and found:
        from ..render import render
        print(render(found), end="", file=sys.stderr)
    elif found:
        report(found)


def with_choice(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options, of which `Choice` is made."""
    path = click.Path(path_type=Path)
    for option in (
            click.option("--write-keymap", "keymap", type=path, metavar="FILE",
                         help="Write how every tensor of HEAD is made of those of BASE, as YAML or .json."),
            click.option("--checkpoint", type=path, metavar="FILE",
                         help="Tell which tensors of a weight file, or a folder of shards, load into HEAD, and whether it is one of BASE."),
            click.option("--model-explorer", "explorer", type=path, metavar="DIR",
                         help="Write both graphs and what corresponds, for Google's Model Explorer."),
            click.option("--write-accept", "write", type=path, metavar="FILE", help="Write a file that accepts the edits of now."),
            click.option("--accept", "accepts", type=path, metavar="FILE", help="Edits that are accepted: nothing fails on them."),
            click.option("--budget", "budgets", multiple=True, metavar="NAME=[+|-]N[%]",
                         help="Fail where HEAD costs more, such as parameters=125M, or grows more, such as flops=+5%; may be repeated."),
            click.option("--cost-epsilon", "epsilon", metavar="N%",
                         help="Show no costs that changed by less, other than parameters and cache; JSON has all."),
            click.option("--map", "maps", multiple=True, metavar="OLD=NEW",
                         help="A renamed node; or a file of `OLD: NEW` lines, or a key map."),
            click.option("--by", type=click.Choice(["edit", "path", "contract"]), default="edit", help="The order of the text."),
            click.option("--exclude", metavar="WHAT,...", default="", help="Show all edits but these."),
            click.option("--only", metavar="RULE|CONTRACT|PATH,...", default="", help="Show only these edits; verdicts are of all.")):
        command = option(command)
    return command


@dataclass(frozen=True)
class Choice:
    """What the user chose."""

    only: str
    exclude: str
    by: str
    maps: tuple[str, ...]
    budgets: tuple[str, ...]
    accepts: Path | None
    write: Path | None
    keymap: Path | None
    checkpoint: Path | None
    epsilon: str | None
    explorer: Path | None

    def check(self, commits: str | None, forms: tuple[str, ...]) -> None:
        if self.by != "edit" and forms != ("text",):
            raise click.UsageError("`--by` is an order of the text")
        for option, given in (("--map", self.maps), ("--write-keymap", self.keymap), ("--checkpoint", self.checkpoint),
                              ("--model-explorer", self.explorer)):
            if given and commits is not None:
                raise click.UsageError(f"`{option}` is about two specs, not a range of commits")
        self.limits()
        self.least()

    def asked(self, keys: bool, run: bool, weights: Path | None) -> Asked:
        """What is told beside the specs; sizes that a file says hold for specs that have them."""
        from ..diff.layers import Asked
        loose = click.get_current_context().get_parameter_source("at") is ParameterSource.DEFAULT_MAP
        return Asked(keys, run, weights, self.keymap, self.checkpoint, loose, self.explorer)

    def names(self) -> dict[str, str]:
        """The renames. Raises Diagnostics for a file that is not right."""
        from ..diff.renames import read_map
        out: dict[str, str] = {}
        for text in self.maps:
            old, equals, new = text.partition("=")
            if equals and not (old.strip() and new.strip()):
                raise click.UsageError(f"`--map {text}` is not OLD=NEW")
            out |= {old.strip(): new.strip()} if equals else read_map(Path(text))
        return out

    def limits(self) -> list[Any]:
        if not self.budgets:
            return []
        from ..diff.growth import growth
        return [growth(text) for text in self.budgets]

    def least(self) -> float:
        """The least change of a cost that is shown, in percent."""
        if self.epsilon is None:
            return 0.0
        from ..diff.growth import percent
        return percent(self.epsilon)

    def costs(self, found: list[Report]) -> list[Report]:
        """The reports as people read them, without costs that hardly changed."""
        from ..diff.choice import without_small_costs
        return [without_small_costs(r, self.least()) for r in found]

    def __call__(self, found: list[Report], range_: bool) -> tuple[list[Report], list[Report]]:
        """The reports with accepted edits marked, and what of them is shown. Warns of entries that are over or not used. What is written
        of a `range_` of commits names the specs."""
        if self.accepts is not None:
            from datetime import date

            from ..diff.accept import accept, read_accepts
            found, said = accept(found, read_accepts(self.accepts), date.today(), range_)
            aside(said)
        if self.write is not None:
            from ..diff.accept import accept_text
            from ..files import write_text
            write_text(self.write, accept_text(found, range_))
        from ..diff.choice import chosen
        return found, [chosen(r, items(self.only), items(self.exclude)) for r in found]

    def over(self, found: list[Report]) -> list[Diagnostic]:
        """What exceeds a limit."""
        limits = self.limits()
        if not limits:
            return []
        from ..diff.growth import exceeded
        return [d for r in found for d in exceeded(r, limits)]
