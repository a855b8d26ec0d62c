"""`Graph -> Graph`: laid out, and with the weights of some of its attention as further outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from ...ir.dimension import Dim
from ...ir.flat import SharedLoop, flatten
from ...ir.graph import Graph, Node, Region, TensorType, Value
from ...lang.diagnostic import Diagnostic, Diagnostics, diagnostic, suggest
from ...ops.layout import Stack, Take

WEIGHTS = "weights"                          # what attention calls its second output, as blocks and loops over attention do


def laid_out(graph: Graph) -> Graph:
    """The graph without blocks and repeats. Raises Diagnostics (`cannot-stream`) where parameters are shared into a loop."""
    try:
        return flatten(graph, lambda t, i: (Take(axis=0, at=i), TensorType(t.dtype, t.shape[1:])),
                       lambda ts: (Stack(), TensorType(ts[0].dtype, (Dim.const(len(ts)), *ts[0].shape))))
    except SharedLoop as found:
        raise Diagnostics([diagnostic("cannot-stream", f"`{found.path}` uses the parameters of another copy inside a loop",
                                      found.node.origin.span)]) from None


def with_weights(graph: Graph, asked: Iterable[str]) -> Graph:
    """The graph, laid out, with the weights of attention as outputs. Each of `asked` is a path, such as `decoder.3.cross`, of attention or
    of a block with one in it, whose output is `decoder.3.cross.weights`; or `NAME=PATH`. Only those asked for are computed.

    Raises Diagnostics (`unknown-name`) for a path without attention, with several, or a name that is taken.
    """
    flat = laid_out(graph)
    held = {n.name: n for n in flat.root.nodes if WEIGHTS in n.outputs}
    taken = {a.name for a in flat.root.arguments} | {name for name, _ in flat.root.outputs}
    outputs, wrong = list(flat.root.outputs), []
    for one in asked:
        name, _, path = one.rpartition("=")
        name = name or f"{path}.{WEIGHTS}"
        below = [n for at, n in held.items() if at == path or at.startswith(f"{path}.")]
        if len(below) != 1:
            wrong.append(_not_one(flat.root, path, below, held))
        elif name in taken:
            wrong.append(diagnostic("unknown-name", f"the model has an input or output `{name}` already", flat.root.origin.span,
                                    help=f"give another name: `NAME={path}`"))
        else:
            outputs.append((name, Value(below[0].id, below[0].outputs.index(WEIGHTS))))
        taken.add(name)
    if wrong:
        raise Diagnostics(wrong)
    return replace(flat, root=replace(flat.root, outputs=tuple(outputs)))


def _not_one(root: Region, path: str, below: list[Node], held: dict[str, Node]) -> Diagnostic:
    if below:
        return diagnostic("unknown-name", f"`{path}` holds {len(below)} attention sites, and one is asked for", below[0].origin.span,
                          note=[*_listed(n.name for n in below)], help=f"ask for one of them, such as `{below[-1].name}`")
    help = [*suggest(path, held, "attention")] if len(held) < 9 else [f"there is {', '.join(f'`{x}`' for x in _listed(held))}"]
    return diagnostic("unknown-name", f"there is no attention at `{path}`", root.origin.span,
                      help=help if held else "no node of this model has attention weights")


def _listed(names: Iterable[str]) -> Iterator[str]:
    """Names, of the copies of a layer once: `decoder.0-5.cross.attended`."""
    def pattern(name: str) -> tuple[str, ...]:
        return tuple("*" if part.isdigit() else part for part in name.split("."))
    for _, alike in groupby(sorted(names, key=pattern), pattern):
        parts = [name.split(".") for name in alike]
        columns = [list(dict.fromkeys(c)) for c in zip(*parts, strict=True)]
        yield ".".join(c[0] if len(c) == 1 else f"{min(map(int, c))}-{max(map(int, c))}" for c in columns)
