"""The command `cost`, and `--budget` of the commands that compile a spec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..costs.budget import Limit
from ..costs.quantity import amount, size
from .common import Failed, cli, compiled, items, report, with_spec

DTYPES = ("float32", "float16", "bfloat16")
SWEEP = 2**17                           # the longest size of a sweep that is not given, where no bound is less
Sizes = tuple[dict[str, int], str | None]


def with_budget(command: Callable[..., Any]) -> Callable[..., Any]:
    """--budget, of the commands that hold a model against limits besides those of its spec."""
    return click.option("--budget", "budgets", multiple=True, metavar="NAME=LIMIT[@DIM=N,...]",
                        help="Fail where the model has more, such as parameters=125M or cache_bytes=2GiB@S=8k; may be repeated.")(command)


def limits(written: tuple[str, ...]) -> list[Limit]:
    """What `--budget` says."""
    found = []
    for text in written:
        name, _, rest = text.partition("=")
        most, _, at = rest.partition("@")
        try:
            number = amount(most)
        except ValueError:
            raise click.UsageError(f"`--budget {text}` is not NAME=LIMIT with a number such as 7e9, 125M or 2GiB") from None
        sizes, dtype = _at(at, "--budget")
        found.append(Limit(name.strip(), number, sizes, dtype))
    return found


def hold(model: Any, written: tuple[str, ...]) -> list[Any]:
    """What the model exceeds of `--budget`; nothing is counted where none is given."""
    if not written:
        return []
    from ..costs.budget import check
    return check(model.costs, limits(written))


def _at(text: str, option: str) -> Sizes:
    """`B=1,S=2k,dtype=float16`: sizes, and the dtype where one is given."""
    sizes: dict[str, int] = {}
    dtype = None
    for item in items(text):
        name, _, value = (part.strip() for part in item.partition("="))
        if name in sizes or (name == "dtype" and dtype):
            raise click.UsageError(f"`{option} {text}` says `{name}` twice")
        if name == "dtype":
            if value not in DTYPES:
                raise click.UsageError(f"`{option} {item}` is not one of {', '.join(DTYPES)}")
            dtype = value
        else:
            sizes[name] = _size(value, f"{option} {item}")
    return sizes, dtype


def _size(value: str, said: str) -> int:
    try:
        found = size(value)
    except ValueError:
        raise click.UsageError(f"`{said}` is not DIM=N, with a number such as 512, 2k or 1M") from None
    if found < 1:
        raise click.UsageError(f"`{said}` is not a size: the least is 1")
    return found


@cli.command()
@with_spec
@click.option("--at", "ats", metavar="DIM=N,...", multiple=True,
              help="Sizes and a dtype, such as B=1,S=2k,dtype=bfloat16; may be repeated, for a column each. Default: 1 row, and 1024 "
                   "or the bound of the others.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float16", show_default=True, help="The dtype where --at says none.")
@click.option("--sweep", metavar="DIM=N,...", help="A row for each size of one dimension, such as S=512,2k,8k,32k,128k.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE",
              help="Draw the sweep as .png, .svg or .pdf (needs matplotlib); without --sweep, powers of 2 of the last dimension.")
@click.option("--by", type=click.Choice(["path"]), help="Also print the FLOPs by path and what is held at the peak, the largest first.")
@click.option("--symbolic", is_flag=True, help="Also print the FLOPs as a formula in the free dimensions.")
@with_budget
def cost(spec: str, sets: tuple[str, ...], ats: tuple[str, ...], dtype: str, sweep: str | None, picture: Path | None, by: str | None,
         symbolic: bool, budgets: tuple[str, ...]) -> None:
    """Print what a model costs: parameters, FLOPs, cache and memory, prefill and decode.

    FLOPs are 2 x the multiply-accumulates of contractions, heads included, where every query counts every key or those of its window.
    Sizes take k, M and G as powers of 1024 (2k is 2048); limits take them as powers of 1000, and KiB, MiB and GiB.
    """
    from ..costs.plot import ENDINGS
    from ..costs.report import cost_report, sweep_report
    if picture is not None and picture.suffix not in ENDINGS:
        raise click.UsageError(f"pictures are written as .png, .svg or .pdf, and `{picture}` has another ending")
    if (sweep or picture) and (by or symbolic or len(ats) > 1):
        raise click.UsageError("`--sweep` and `--plot` go with one `--at`, and without `--by` and `--symbolic`")
    given, most = [_at(text, "--at") for text in ats] or [({}, None)], limits(budgets)
    model = compiled(spec, sets, limits=False)
    if sweep or picture:
        along, steps = _sweep(model, sweep)
        if along in given[0][0]:
            raise click.UsageError(f"`{along}` is swept, and `--at` gives it too")
        found = [model.cost(given[0][1] or dtype, **{**given[0][0], along: n}) for n in steps]
        print(sweep_report(model.name, along, found), end="")
        if picture is not None:
            from ..costs.plot import plot
            plot(model.name, along, found, picture)
            print(f"wrote {picture}")
    else:
        found = [model.cost(said or dtype, **sizes) for sizes, said in given]
        print(cost_report(model.name, found, by is not None, symbolic), end="")
    _held(model, found, most)


def _held(model: Any, found: list[Any], most: list[Limit]) -> None:
    """Fail where the spec's budget or one of `--budget` is exceeded: those without sizes hold at all that are printed."""
    from ..costs.budget import exceeded, exceeds
    from ..costs.table import FIXED
    over = list(model.over)
    for limit in most:
        everywhere = limit.name not in FIXED and not limit.sizes and limit.dtype is None
        over += [d for c in found for d in exceeds(c, limit)] if everywhere else exceeded(model.costs, limit)
    if over:
        report(over)
        raise Failed


def _sweep(model: Any, text: str | None) -> tuple[str, list[int]]:
    """The dimension that is swept, and its sizes from the least on."""
    from ..costs.cost import free_dimensions
    if text is not None:
        along, _, values = text.partition("=")
        sizes = [_size(v, f"--sweep {text}") for v in items(values)]
        if not sizes:
            raise click.UsageError(f"`--sweep {text}` names no sizes, as `S=512,2k` does")
        return along.strip(), sorted(set(sizes))
    free = free_dimensions(model.lowered)
    if not free:
        raise click.UsageError("the model has no free dimension to sweep")
    step = model.costs.step
    along = free[-1] if isinstance(step, str) else step.along
    bound = min([SWEEP, *(b.limit for b in model.graph.bounds if b.symbol == along)])
    return along, [2**k for k in range(5, bound.bit_length()) if 2**k <= bound] or [bound]
