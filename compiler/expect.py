"""The fusion contract: `expect:` of a spec and `--require-fused`, held against the forms that an export took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .ir.graph import Branch, Call, Graph, Node, Region, Repeat, Scan, join
from .lang.diagnostic import Diagnostic, Label, Sink, diagnostic, fault, suggest
from .lang.tree import Mapping as TreeMapping
from .lang.tree import Scalar, Tree
from .lang.tree import Sequence as TreeSequence
from .ops.mixture import MIXTURE
from .ops.registry import OPS

FUSED = "fused"
SITES = (*(name for name, op in OPS.items() if op.site), MIXTURE.name)


@dataclass(frozen=True)
class Expectation:
    """One entry of `expect:`: sites (an op, or a path) and the forms of which each must take one. No `written`: of the command."""

    sites: str
    forms: tuple[str, ...]
    targets: frozenset[str]                    # those that one of the forms is for: nothing is asked of the others
    written: Scalar | None = None

    def covers(self, path: str, op: str) -> bool:
        return op == self.sites if self.sites in SITES else _covers(self.sites, path)


REQUIRE_FUSED = Expectation("attention", (FUSED,), frozenset({"ort-cuda", "ort-cpu", "portable"}))


def expectations(graph: Graph, expect: TreeMapping | None, sink: Sink) -> list[Expectation]:
    """`expect:` read and checked: every op, path and form in it exists in the model. What is wrong goes to `sink`."""
    there = list(sites(graph.root)) if expect else []
    found = []
    for entry in expect or ():
        with sink.catch():
            covered = _covered(entry.key, there)
            known = list(dict.fromkeys(f for node in covered for f in _offered(node)))
            forms = tuple(_named(s, known) for s in _scalars(entry.value))
            targets = frozenset(t for f in known if f.name in forms or (f.fused and FUSED in forms) for t in f.targets)
            found.append(Expectation(entry.key.text, forms, targets, entry.key))
    return found


def sites(region: Region, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every site of the fusion report with its path, each copy on its own."""
    for node in region.nodes:
        here, op = join(path, node.name), node.op
        if isinstance(op, Repeat | Branch):
            if isinstance(op, Branch) and op.route:
                yield here, node
            for i, body in enumerate(op.schedule):
                yield from sites(op.bodies[body], join(here, str(i)))
        elif isinstance(op, Call | Scan):
            yield from sites(op.body, here)
        elif op.site:
            yield here, node


def _op(node: Node) -> Any:
    """What has the forms of a site."""
    return MIXTURE if isinstance(node.op, Branch) else node.op


def unmet(contract: Iterable[Expectation], taken: Sequence[Mapping[str, Any]], graph: Graph, target: str) -> list[Diagnostic]:
    """The sites of an export that take another form than asked: one diagnostic for those of one node, form and reason."""
    nodes = dict(sites(graph.root))
    groups: dict[Any, list[str]] = {}
    for e in contract:
        for s in taken if target in e.targets else ():
            if e.covers(s["path"], s["op"]) and not _met(e, s, nodes[s["path"]]):
                at = nodes[s["path"]].origin
                key = (e, s["form"], at.span, at.chain, tuple((m["form"], m["reason"]) for m in s["missed"]))
                groups.setdefault(key, []).append(s["path"])
    return [_unmet(key, paths, nodes[paths[0]], target) for key, paths in groups.items()]


def _met(e: Expectation, site: Mapping[str, Any], node: Node) -> bool:
    """Whether the form is one asked for; a joined form is also the form that it contains."""
    parts = {f.name: f.part for f in _offered(node)}
    return site["form"] in e.forms or parts.get(site["form"]) in e.forms or (site["fused"] and FUSED in e.forms)


def _unmet(key: Any, paths: list[str], node: Node, target: str) -> Diagnostic:
    expectation, form, span, chain, missed = key
    offered = {f.name: target in f.targets for f in _offered(node)}
    reasons = [m for m in missed if offered[m[0]]] or list(missed)
    takes = f"and {len(paths) - 1} more like it take" if len(paths) > 1 else "takes"
    asked = " or ".join(f"`{f}`" for f in expectation.forms)
    labels = [Label(span), *(Label(s, "used here") for s in chain)]
    if expectation.written is not None:
        labels.append(Label(expectation.written.span, f"expects {asked}"))
    return diagnostic(
        "unmet-expect", f"`{paths[0]}` (`{_op(node).name}`, {span.place}) {takes} the form `{form}` on {target}, not {asked}", *labels,
        note=_reasons([*reasons, *_apart(expectation, form, node)]),
        help="change the node, or what is expected" if expectation.written else "change the node, or export without `--require-fused`")


def _reasons(missed: Iterable[tuple[str, str]]) -> list[str]:
    """Why not the forms; a reason that several share is told of the best one."""
    first: dict[str, str] = {}
    for form, reason in missed:
        first.setdefault(reason, form)
    return [f"not `{form}`: {reason}" for reason, form in first.items()]


def _apart(expectation: Expectation, form: str, node: Node) -> list[tuple[str, str]]:
    """The joined forms that were asked for and have the form taken as a part."""
    return [(f.name, "its kernel takes a norm, with a weight, of a sum of two values of one shape and of rank 2 or 3")
            for f in _offered(node) if f.name in expectation.forms and f.part == form]


def _covered(key: Scalar, there: Sequence[tuple[str, Node]]) -> list[Node]:
    """The sites that a key names."""
    found = [node for path, node in there if (_op(node).name == key.text if key.text in SITES else _covers(key.text, path))]
    if not found:
        paths = list(dict.fromkeys(_pattern(path) for path, _ in there))
        ops = list(dict.fromkeys(_op(node).name for _, node in there))
        headline = (f"the model has no `{key.text}`" if key.text in SITES
                    else f"`{key.text}` is no op with forms to choose, and no path of one")
        raise fault("bad-expect", headline, key.span, help=suggest(key.text, [*ops, *paths], "sites of this model"))
    return found


def _covers(pattern: str, path: str) -> bool:
    """Whether a path is at or below a pattern, in which `{i}` is any copy."""
    parts, given = pattern.split("."), path.split(".")
    return len(parts) <= len(given) and all(p == g or (p == "{i}" and g.isdigit()) for p, g in zip(parts, given, strict=False))


def _pattern(path: str) -> str:
    return ".".join("{i}" if part.isdigit() else part for part in path.split("."))


def _scalars(value: Tree) -> list[Scalar]:
    items = list(value) if isinstance(value, TreeSequence) else [value]
    if not items or not all(isinstance(x, Scalar) for x in items):
        raise fault("bad-expect", "a site expects a form, or one of a list of forms", value.span,
                    help="write `fused`, or names of forms such as `[Attention-24, decomposed]`")
    return [x for x in items if isinstance(x, Scalar)]


@dataclass(frozen=True)
class Offered:
    """A form's name, also that of a form joined with its residual."""

    name: str
    fused: bool
    targets: frozenset[str]
    part: str | None = None                    # the form that a joined one contains


def _offered(node: Node) -> Iterator[Offered]:
    for form in _op(node).forms():
        yield Offered(form.name, form.fused, form.targets)
        if form.joined is not None:
            yield Offered(form.joined, form.fused, frozenset({"ort-cuda"}), form.name)


def _named(written: Scalar, known: Sequence[Offered]) -> str:
    names = [FUSED, *(f.name for f in known)]
    if written.text not in names:
        raise fault("bad-expect", f"no form of these sites is called `{written.text}`", written.span,
                    help=suggest(written.text, names, "forms"))
    return written.text
