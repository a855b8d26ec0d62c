"""Typed regions to ONNX nodes: blocks inlined, repeats unrolled, scans as loops; every node under its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ir.graph import ARGUMENT, Branch, Call, Control, Node, Region, Repeat, Scan, Value
from ...lang.diagnostic import Diagnostic, Label, diagnostic
from ...ops.base import Form, Site
from ...ops.values import NamedParameter
from .builder import Store, TooLarge, UnknownSize, Val
from .entries import Copies, Entries, Entry, Place, element, tensor
from .route import route
from .scan import scan
from .sizes import see

Env = Mapping[Value, Entry]


class Walker:
    """Emits regions. `sites` collects the fusion report, `faults` what no form can say."""

    def __init__(self, store: Store):
        self.store = store
        self.sites: list[dict[str, Any]] = []
        self.faults: list[Diagnostic] = []
        self.parameters: dict[str, tuple[int, ...]] = {}
        self._live: dict[tuple[Region, frozenset[str]], tuple[tuple[Node, frozenset[str]], ...]] = {}
        self._forms: dict[tuple[Node, frozenset[str], tuple[str, ...]], tuple[Form | None, list[dict[str, str]]]] = {}

    def region(self, at: Place, region: Region, given: Entries, needed: frozenset[str]) -> dict[str, Entry]:
        """Emit what the needed outputs depend on; arguments and outputs by name."""
        env: dict[Value, Entry] = {Value(ARGUMENT, k): given.get(a.name) for k, a in enumerate(region.arguments)}
        for node, used in self.live(region, needed):
            try:
                made = self._node(at, region, node, used, env)
            except UnknownSize as unknown:
                made = self._unknown_size(node, unknown)
            except TooLarge as number:
                made = self._too_large(node, number)
            env |= {Value(node.id, k): entry for k, entry in enumerate(made)}
        return {name: env[value] for name, value in region.outputs if name in needed}

    def live(self, region: Region, needed: frozenset[str]) -> tuple[tuple[Node, frozenset[str]], ...]:
        """The nodes that the needed outputs depend on, each with the names of its outputs in use."""
        key = (region, needed)
        if key not in self._live:
            wanted: dict[int, set[int]] = {}
            for name, value in region.outputs:
                if name in needed:
                    wanted.setdefault(value.node, set()).add(value.output)
            found = []
            for node in reversed(region.nodes):
                if node.id not in wanted:
                    continue
                found.append((node, frozenset(node.outputs[k] for k in wanted[node.id])))
                for value in () if isinstance(node.op, NamedParameter) else node.values:
                    wanted.setdefault(value.node, set()).add(value.output)
            self._live[key] = tuple(reversed(found))
        return self._live[key]

    def _node(self, at: Place, region: Region, node: Node, used: frozenset[str], env: Env) -> Sequence[Entry]:
        op, here = node.op, at.inside(node.name)
        at.g.path, at.g.line = here.path, node.origin.span.place
        if isinstance(op, NamedParameter):
            return [self.parameter(here, node)]
        if not isinstance(op, Control):
            return self._apply(here, region, node, used, env)
        given = {name: env[v] for name, v in node.inputs.items() if isinstance(v, Value)}
        if isinstance(op, Call):
            made = self.region(here, op.body, given, used)
        elif isinstance(op, Scan):
            made = scan(here, op, used, given, self.region)
        elif isinstance(op, Branch) and op.route:
            types = {port: region.type(v) for port, v in node.inputs.items() if isinstance(v, Value)}
            made = {node.outputs[0]: route(here, node, types, given, self)}
        else:
            made = self._copies(here, op, used, given)
        return [made.get(name) for name in node.outputs]

    def parameter(self, here: Place, node: Node) -> Val:
        """The parameter that a node makes."""
        shape = tuple(d.value for d in node.types[0].shape if d.value is not None)
        assert len(shape) == len(node.types[0].shape), f"{here.owner} has a free size"
        self.parameters[here.owner] = shape
        return here.g.stored(here.owner, shape)

    def _copies(self, here: Place, op: Repeat | Branch, used: frozenset[str], given: Entries) -> dict[str, Entry]:
        """Every copy in turn: outputs of the last one, and `all.x`."""
        stacked: dict[str, list[Entry]] = {o.removeprefix("all."): [] for o in used if o.startswith("all.")}
        last = frozenset(o for o in used if not o.startswith("all."))
        line, state = here.g.line, {name: given.get(name) for name in op.carry}
        outs: dict[str, Entry] = {}
        for i, body in enumerate(op.schedule):
            place = here.copy(i, op.share[i])
            inputs = {**given, **state, **{name: element(place, given[name], at[i]) for name, at in op.each.items()}}
            final = i == len(op.schedule) - 1
            needed = frozenset(stacked) | (last if final else frozenset(op.carry.values()))
            outs = self.region(place, op.bodies[body], inputs, needed)
            state = {name: outs.get(o) for name, o in op.carry.items()}
            here.g.line = line
            for o, items in stacked.items():
                items.append(outs[o])
        return {**{o: outs[o] for o in last}, **{f"all.{o}": Copies(tuple(items)) for o, items in stacked.items()}}

    # ops

    def _apply(self, here: Place, region: Region, node: Node, used: frozenset[str], env: Env) -> Sequence[Entry]:
        g = here.g
        ports: dict[str, Any] = {}
        types: dict[str, Any] = {}
        for port, given in node.inputs.items():
            if isinstance(given, tuple):
                ports[port], types[port] = [tensor(g, env[v]) for v in given], tuple(region.type(v) for v in given)
            else:
                ports[port] = None if given is None else tensor(g, env[given])
                types[port] = None if given is None or ports[port] is None else region.type(given)
        g.inputs, g.outputs, g.used = types, node.types, used
        form, missed = self._form(node, types, used)
        if form is None:
            return [Val("")] * len(node.outputs)
        if node.op.site:
            self.sites.append({"path": here.path, "op": node.op.name, "line": node.origin.span.place, "form": form.name,
                               "fused": form.fused, "missed": missed})
        result = form.emit(node.op, g, **ports)
        made = result if isinstance(result, tuple) else (result,)
        for name, value, type in zip(node.outputs, made, node.types, strict=True):
            if value is not None and name in used:
                self.store.types[value.name] = type
                see(g, value, type)
        return made

    def _form(self, node: Node, types: Mapping[str, Any], used: frozenset[str]) -> tuple[Form | None, list[dict[str, str]]]:
        """The first legal form, and why each better one is not."""
        key = (node, used, tuple(port for port, t in types.items() if t is None))
        if key not in self._forms:
            site = Site(self.store.target, self.store.dtype, types, node.types, used, self.store.typical)
            found, missed = None, []
            for form in node.op.forms():
                reason = form.when(node.op, site) if site.target in form.targets else f"not for target {site.target}"
                if reason is None:
                    found = form
                    break
                missed.append({"form": form.name, "reason": reason})
            if found is None:
                self.faults.append(diagnostic(
                    "no-form", f"`{node.op.name}` cannot be written for target `{site.target}` in {site.dtype}",
                    Label(node.origin.span), *(Label(span, "used here") for span in node.origin.chain[-1:]),
                    note=[f"{m['form']}: {m['reason']}" for m in missed],
                    help="export for another target or dtype, or change the node"))
            self._forms[key] = (found, missed)
        return self._forms[key]

    def _too_large(self, node: Node, found: TooLarge) -> list[Entry]:
        self.faults.append(diagnostic(
            "number-too-large", f"`{node.op.name}` needs {found.number:g} in {found.dtype}, which ends at {found.most:g}",
            Label(node.origin.span), *(Label(span, "used here") for span in node.origin.chain[-1:]),
            help="export in bfloat16 or float32, or write a smaller number" if found.dtype == "float16" else "write a smaller number"))
        return [Val("")] * len(node.outputs)

    def _unknown_size(self, node: Node, unknown: UnknownSize) -> list[Entry]:
        self.faults.append(diagnostic(
            "unbound-dimension", f"no input of the exported model tells the size `{unknown.args[0]}`, which is needed here",
            Label(node.origin.span), help=f"keep an input whose shape has `{unknown.args[0]}` as an axis of its own"))
        return [Val("")] * len(node.outputs)
