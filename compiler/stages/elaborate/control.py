"""repeat, scan and branch: copies in depth, in time and side by side, kept folded as distinct bodies."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from ...ir.dimension import Dim
from ...ir.graph import Branch, Region, Repeat, TensorType
from ...ir.text import describe
from ...lang.diagnostic import Label, fault
from ...lang.spec import NodeSpec
from .attributes import convert
from .copies import (
    MAX_COPIES,
    Copies,
    body,
    carried,
    count,
    each_of,
    given_once,
    mentions_index,
    outside,
    start,
    target_of,
    types_of,
)
from .scan import scan
from .scope import Result, Scope

if TYPE_CHECKING:
    from .expand import Expander


def expand(x: Expander, spec: NodeSpec, scope: Scope, name: str, index: int | None) -> Result:
    copies = Copies(spec, scope, name, index, scope.origin(spec.span))
    given_once(copies)
    if spec.control == "scan":
        return scan(x, copies)
    return _repeat(x, copies) if spec.control == "repeat" else _branch(x, copies)


def _repeat(x: Expander, c: Copies) -> Result:
    n = count(c)
    target = target_of(c)
    each = each_of(x, c, n)
    carry: dict[str, str] = {}
    starts = dict((k.text, (k, v)) for k, v in c.spec.carry)
    if "in" in target.ports and "in" in c.spec.fields and "in" not in each and "in" not in starts:
        f = c.spec.fields["in"]
        starts["in"] = (f.key, f.value)
    start(x, c, target, starts)
    bodies, schedule, ends = _schedule(x, c, n, starts, carry)
    share = _share(c, n, schedule)
    op = Repeat(tuple(bodies), tuple(schedule), share, carry, {p: at for p, (_, at) in each.items()})
    names = [o for o, _ in bodies[schedule[-1]].outputs]
    kinds = [types_of(bodies[k]) for k in schedule]
    same = [o for o in names if all(t.get(o) == kinds[0].get(o) for t in kinds)]
    outputs = [*names, *(f"all.{o}" for o in same)]
    types = [*(ends[o] for o in names), *(replace(kinds[0][o], shape=(Dim.const(n), *kinds[0][o].shape)) for o in same)]
    node = c.into.add(c.name, op, c.inputs, outputs, types, c.origin)
    result = x.called(node)
    if names[0] in same:
        result.outputs["all"] = node.output(f"all.{names[0]}")
    result.reasons = {f"all.{o}": "its shape differs between the copies" for o in names if o not in same}
    if names[0] not in same:
        result.reasons["all"] = result.reasons[f"all.{names[0]}"]
    return result


def _schedule(x: Expander, c: Copies, n: int, starts: dict[str, Any],
              carry: dict[str, str]) -> tuple[list[Region], list[int], dict[str, TensorType]]:
    """The distinct bodies, which one each copy runs, and the last copy's output types."""
    variants = _variants(c, n)
    bodies: list[Region] = []
    texts: dict[str, int] = {}
    known: dict[Any, int] = {}
    schedule: list[int] = []
    types: dict[str, TensorType] = {}
    for i in range(n):
        variant = variants[i % len(variants)]
        counted = mentions_index(variant)
        key = (id(variant), i if counted else None, tuple(c.special.items()))
        if key not in known:
            region = body(x, c, variant, i if counted else None)
            text = describe(region)
            if text not in texts:
                texts[text] = len(bodies)
                bodies.append(region)
            known[key] = texts[text]
        schedule.append(known[key])
        types = types_of(bodies[known[key]])
        for port, (written, _) in starts.items():
            carry[port] = carried(port, written, types)
            c.special[port] = types[carry[port]]
    return bodies, schedule, types


def _variants(c: Copies, n: int) -> list[NodeSpec]:
    """The cycle of bodies as written, `times:` spelt out."""
    if not c.spec.pattern:
        return [c.spec]
    out: list[NodeSpec] = []
    for times, variant in c.spec.pattern:
        k = 1 if times is None else convert("int", c.scope.number(times, c.index), times, "`times`")
        if not 0 <= k <= MAX_COPIES:
            raise fault("bad-attribute", f"`times` is 0 to {MAX_COPIES:,}, not {k:,}", times.span if times else c.spec.span)
        out.extend([variant] * k)
    if not out:
        raise fault("bad-attribute", "the pattern holds no copy", Label(c.spec.span, "every `times` is 0"))
    if len(out) > n:
        several = [Label(t.span, "this many of one kind") for t, _ in c.spec.pattern if t]
        raise fault("bad-attribute", f"the pattern holds {len(out)} copies and `{c.spec.control}` makes {n}",
                    Label(c.spec.count.span if c.spec.count else c.spec.span, f"{n} copies"), *several)
    return out


def _share(c: Copies, n: int, schedule: list[int]) -> tuple[int, ...]:
    """The owner of each copy's parameters: the first of the copies for which `share` gives the same number."""
    if c.spec.share is None:
        return tuple(range(n))
    owners: dict[int, int] = {}
    out = []
    for i in range(n):
        k = owners.setdefault(convert("int", c.scope.number(c.spec.share, i), c.spec.share, "`share`"), i)
        if schedule[i] != schedule[k]:
            raise fault("bad-attribute", f"copies {k} and {i} differ, so they cannot share parameters", c.spec.share.span)
        out.append(k)
    return tuple(out)


def _branch(x: Expander, c: Copies) -> Result:
    n = count(c)
    each = each_of(x, c, n)
    routed = _route(x, c) if c.spec.route else None
    bodies, schedule, _ = _schedule(x, c, n, {}, {})
    share = _share(c, n, schedule)
    op = Branch(tuple(bodies), tuple(schedule), share, {p: at for p, (_, at) in each.items()}, routed is not None)
    kinds = [types_of(bodies[k]) for k in schedule]
    names = list(kinds[0])
    for o in names:
        odd = next((i for i, t in enumerate(kinds) if t.get(o) != kinds[0][o]), None)
        if odd is not None:
            raise fault("shape-mismatch", f"output `{o}` is {kinds[0][o]} in copy 0 and {kinds[odd].get(o)} in copy {odd}",
                        c.spec.span)
    if routed is not None:
        rows, width = routed.shape[:-1], kinds[0][names[0]].shape[-1:]
        node = c.into.add(c.name, op, c.inputs, ["out"], [TensorType("float", (*rows, *width))], c.origin)
        return x.called(node)
    types = [replace(kinds[0][o], shape=(Dim.const(n), *kinds[0][o].shape)) for o in names]
    result = x.called(c.into.add(c.name, op, c.inputs, [f"all.{o}" for o in names], types, c.origin))
    result.outputs["all"] = result.outputs[f"all.{names[0]}"]
    return result


def _route(x: Expander, c: Copies) -> TensorType:
    """Bind `route:`; the body sees its rows as one axis. Returns the type of `in`."""
    assert c.spec.route
    f = c.spec.fields.get("in")
    if f is None:
        raise fault("missing-port", "a routed branch needs `in`", c.spec.span,
                    help="wire what the copies are applied to: `in: NODE`")
    value = outside(x, c, f.value)
    given = c.into.type(value)
    for key, dtype in (("weights", "float"), ("indices", "int64")):
        ref = c.spec.route[key]
        routed = outside(x, c, ref)
        t = c.into.type(routed)
        if t.dtype != dtype or t.shape[:-1] != given.shape[:-1]:
            raise fault("shape-mismatch", f"`{key}` of `route` is {dtype}[..., k] over the rows of `in`",
                        Label(ref.span, f"this is {t}"),
                        Label(f.value.span, f"`in` is {given}"))
        c.inputs[f"route.{key}"] = routed
    c.inputs["in"] = value
    rows = reduce(lambda a, b: a * b, given.shape[:-1], Dim.const(1))
    c.special["in"] = TensorType(given.dtype, (rows, given.shape[-1]))
    return given
