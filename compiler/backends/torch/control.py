"""repeat, branch and scan as statements: loops over copies, a routed mixture, steps in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...ir.graph import Branch, Node, Repeat, TensorType, Value
from ...lang.diagnostic import fault
from .helpers import MIXTURE, SCAN, SCAN_IN_GRAPH
from .names import reach
from .printer import keep, shape_comment
from .source import Py
from .state import span

if TYPE_CHECKING:
    from .forward import Forward
    from .writer import Unit

Emit = Callable[["Unit", Py, Mapping[str, Py]], None]


@dataclass
class Loop:
    """The `for` statement over copies: variables with what they run over, and the copy's module and elements in it."""

    items: list[tuple[str, str]]
    owner: Py
    elements: dict[str, Py]
    count: int

    def header(self, index: str | None) -> str:
        names = [n for n, _ in self.items]
        if not self.items:
            return f"for {index or '_'} in range({self.count}):"
        over = self.items[0][1] if len(names) == 1 else f"zip({', '.join(s for _, s in self.items)})"
        if index is None:
            return f"for {', '.join(names)} in {over}:"
        return f"for {index}, {names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'} in enumerate({over}):"


def repeat(f: Forward, node: Node) -> None:
    """Copies in depth: carried values are reassigned by each copy."""
    op: Repeat = node.op
    used = f.used[node.id]
    units = f.writer.units(node, used)
    ports: dict[str, list[str]] = {}
    for port, o in op.carry.items():
        ports.setdefault(o, []).append(port)
    targets = {o: f.name(node, o) for o in dict.fromkeys(o for u in units for o in u.outputs)}
    given = _fixed(f, node)
    extra: list[tuple[str, str]] = []
    for o, names in ports.items():
        for k, port in enumerate(names):
            variable = targets[o] if k == 0 else f.scope.name(f"{node.name}_{port}")
            f.scope.line(f"{variable} = {f.given(node, port)}")
            given[port] = Py(variable)
            if k:
                extra.append((variable, targets[o]))
    lists = _lists(f, node, [o for o in targets if f"all.{o}" in used])

    def emit(unit: Unit, owner: Py, arguments: Mapping[str, Py]) -> None:
        f.invoke(unit, owner, arguments, [targets[o] for o in unit.outputs], _comment(unit))
        for o in unit.outputs:
            if o in lists:
                f.scope.line(f"{lists[o]}.append({targets[o]})")

    copies(f, node, units, given, emit)
    for variable, target in extra:
        f.scope.lines.append(f"{'    ' * (f.scope.indent + 1)}{variable} = {target}")
    for o, place in targets.items():
        if o in used:
            f.define(node.output(o), Py(place), node.types[node.outputs.index(o)])


def branch(f: Forward, node: Node) -> None:
    """Copies side by side: a list of results, or the routed mixture."""
    op: Branch = node.op
    units = f.writer.units(node, f.used[node.id])
    if op.route:
        _mixture(f, node, units)
        return
    wanted = [o for o in units[0].outputs if f"all.{o}" in f.used[node.id]]
    if units[0].kind == "parameter" and op.owners == op.share:
        f.lists[node.output(f"all.{wanted[0]}")] = reach(node.name)
        return
    lists = _lists(f, node, wanted)
    targets = {o: f.scope.name(o if o != "out" else f"{node.name}_out") for o in wanted}

    def emit(unit: Unit, owner: Py, arguments: Mapping[str, Py]) -> None:
        f.invoke(unit, owner, arguments, [targets[o] for o in unit.outputs], _comment(unit))
        for o in wanted:
            f.scope.line(f"{lists[o]}.append({targets[o]})")

    copies(f, node, units, _fixed(f, node), emit)


def _comment(unit: Unit) -> str:
    region = unit.region
    return shape_comment(*(region.type(v) for o, v in region.outputs if o in unit.outputs))


def _fixed(f: Forward, node: Node) -> dict[str, Py]:
    """What every copy receives alike."""
    special = {*node.op.carry, *node.op.each, "route.weights", "route.indices"}
    return {p: f.given(node, p) for p in node.inputs if p not in special}


def _lists(f: Forward, node: Node, outputs: list[str]) -> dict[str, str]:
    """An empty list for each output that is kept for every copy."""
    made = {}
    for o in outputs:
        default = o == node.outputs[0].removeprefix("all.")
        made[o] = f.scope.name(f"{node.name}_all" if default else f"{node.name}_all_{o}")
        f.scope.line(f"{made[o]} = []")
        f.lists[node.output(f"all.{o}")] = Py(made[o])
    return made


def copies(f: Forward, node: Node, units: list[Unit], given: Mapping[str, Py], emit: Emit) -> None:
    """The loop over copies; where bodies are called differently, one case for each way."""
    op: Repeat | Branch = node.op
    loop = _loop(f, node)
    groups: dict[object, list[int]] = {}
    for k in dict.fromkeys(op.schedule):
        groups.setdefault(f.same_call(units[k]), []).append(k)
    cases = list(groups.values())
    by_class = _distinct_classes(units, cases)
    index = f.scope.name("i") if len(cases) > 1 and not by_class else None
    f.scope.line(loop.header(index))
    f.scope.indent += 1
    known = len(f.scope.tensors)
    for n, bodies in enumerate(cases):
        if len(cases) > 1:
            last = n == len(cases) - 1
            test = _class_test(loop.owner, units, bodies) if by_class else _index_test(str(index), op.schedule, bodies)
            f.scope.line("else:" if last else f"{'if' if n == 0 else 'elif'} {test}:")
            f.scope.indent += 1
        region = units[bodies[0]].region
        places = {a.name: loop.elements[a.name] if a.name in loop.elements else given[a.name] for a in region.arguments}
        emit(units[bodies[0]], loop.owner, places)
        f.scope.indent -= len(cases) > 1
    f.scope.indent -= 1
    del f.scope.tensors[known:]


def _loop(f: Forward, node: Node) -> Loop:
    op: Repeat | Branch = node.op
    n, container, items = len(op.schedule), reach(node.name), []
    listed = op.owners == tuple(range(len(op.owners)))

    def at(index: str) -> Py:
        return Py(f"{container}[{index}]" if listed else f"{container}[str({index})]" if not index.isdigit() else f'{container}["{index}"]')

    if op.share == tuple(range(n)):
        name = f.scope.name(_singular(node.name, op.bodies[0].name))
        items.append((name, str(container)))
        owner = Py(name)
    elif len(op.owners) == 1:
        owner = at(str(op.owners[0]))
    else:
        name = f.scope.name("k")
        items.append((name, span(op.share)))
        owner = at(name)
    elements = {}
    for port, indices in op.each.items():
        name = f.scope.name(port if port != "in" else "x")
        items.append((name, _elements(f, node, port, indices)))
        elements[port] = Py(name)
    return Loop(items, owner, elements, n)


def _elements(f: Forward, node: Node, port: str, indices: tuple[int, ...]) -> str:
    """Source of what the copies take in turn from the leading axis of a value, or from a list."""
    value = node.inputs[port]
    assert isinstance(value, Value)
    extent = f.region.type(value).shape[0].value
    run = indices == tuple(range(indices[0], indices[0] + len(indices)))
    if value in f.lists and value not in f.env:
        source = str(f.lists[value])
        if run:
            stop = indices[0] + len(indices)
            return source if len(indices) == extent else f"{source}[{indices[0] or ''}:{stop if stop != extent else ''}]"
    else:
        source = str(f.read(value))
        if run:
            end = "" if indices[-1] + 1 == extent else indices[-1] + 1
            return f"{source}.unbind()" if len(indices) == extent else f"{source}[{indices[0] or ''}:{end}].unbind()"
    return f"[{source}[j] for j in {span(indices)}]"


def _singular(name: str, body: str) -> str:
    """What one copy is called: `layer` of `layers`, else the name of its block."""
    last = name.rpartition(".")[2]
    return last[:-1] if last.endswith("s") and not last.endswith("ss") and len(last) > 2 else body


def _distinct_classes(units: list[Unit], cases: list[list[int]]) -> bool:
    """Whether the class of a copy alone tells how it is called."""
    names = [{units[k].constructor.partition("(")[0] for k in bodies} for bodies in cases]
    return len(cases) > 1 and sum(map(len, names)) == len(set().union(*names))


def _class_test(owner: Py, units: list[Unit], bodies: list[int]) -> str:
    names = list(dict.fromkeys(units[k].constructor.partition("(")[0] for k in bodies))
    return f"isinstance({owner}, {names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'})"


def _index_test(index: str, schedule: tuple[int, ...], bodies: list[int]) -> str:
    return f"{index} in {span(tuple(i for i, k in enumerate(schedule) if k in bodies))}"


# a routed mixture


def _mixture(f: Forward, node: Node, units: list[Unit]) -> None:
    op: Branch = node.op
    x, weights, indices = (f.given(node, p) for p in ("in", "route.weights", "route.indices"))
    width = node.types[0].shape[-1]
    plain = all(not u.region.arguments[1:] and (u.cls is None or not u.cls.needs) for u in units)
    direct = plain and op.share == tuple(range(len(op.share))) and not any(hasattr(n.op, "module_call") for u in units
                                                                           if u.kind == "op" for n in u.region.nodes)
    experts = str(reach(node.name)) if direct else _experts(f, node, units)
    mixture = keep(f.writer.helpers, MIXTURE)
    name = f.name(node, node.outputs[0])
    f.scope.line(f"{name} = {mixture}({experts}, {x}, {weights}, {indices}, {width})", shape_comment(node.types[0]))
    f.define(Value(node.id), Py(name), node.types[0])


def _experts(f: Forward, node: Node, units: list[Unit]) -> str:
    """A list of functions of the rows alone, one a copy."""
    experts, function, rows = (f.scope.name(n) for n in ("experts", "expert", "rows"))
    f.scope.line(f"{experts} = []")
    result = f.scope.name("out")

    def emit(unit: Unit, owner: Py, arguments: Mapping[str, Py]) -> None:
        bound = [str(p) for a, p in arguments.items() if a in node.op.each]
        head = str(owner).partition("[")[0]
        if str(owner).isidentifier():
            bound.insert(0, head)
        elif "[k" in str(owner):
            bound.insert(0, str(owner).partition("[")[2].strip("]").removeprefix("str(").strip(")"))
        f.scope.line(f"def {function}({', '.join([rows, *(f'{b}={b}' for b in bound)])}):")
        f.scope.indent += 1
        f.invoke(unit, owner, arguments, [result], _comment(unit))
        f.scope.line(f"return {result}")
        f.scope.indent -= 1
        f.scope.line(f"{experts}.append({function})")

    copies(f, node, units, {**_fixed(f, node), "in": Py(rows)}, emit)
    return experts


# time


def scan(f: Forward, node: Node) -> None:
    """A step function, run along time by the helper `scan`."""
    op = node.op
    used = f.used[node.id]
    unit = f.writer.units(node, used)[0]
    stacked = [o for o, _ in op.body.outputs if o in used]
    each = {p: f.given(node, p) for p in op.each}
    live = _live(f, node, str(each[op.each[0]])) if op.length else None
    given, starts = _fixed(f, node), [str(f.given(node, p)) for p in op.carry]
    step = f.scope.name(f"{node.name}_step")
    outer = set(f.scope.taken)
    carries, inputs = f.scope.name("carries"), f.scope.name("inputs")
    given |= {p: Py(f.scope.name(p if p != "in" else "x")) for p in (*op.carry, *op.each)}
    known = len(f.scope.tensors)
    f.scope.lines.append("")
    f.scope.line(f"def {step}({carries}, {inputs}):")
    f.scope.indent += 1
    alive = f.scope.name("alive") if live else ""
    if op.carry:
        f.scope.line(f"{_targets([str(given[p]) for p in op.carry])} = {carries}")
    f.scope.line(f"{_targets([str(given[p]) for p in op.each] + [alive] * bool(live))} = {inputs}")
    targets = {o: f.scope.name(o if o != "out" else f"{node.name}_now") for o in unit.outputs}
    f.invoke(unit, reach(node.name), {a.name: given[a.name] for a in unit.region.arguments}, list(targets.values()), _comment(unit))
    after = [_frozen(f, node, alive, targets[o], str(given[p]), op.body.type(op.body.output(o))) for p, o in op.carry.items()]
    shown = [_frozen(f, node, alive, targets[o], None, op.body.type(op.body.output(o))) for o in stacked]
    if alive:
        outputs = f.scope.name("outputs")
        f.scope.line(f"{carries} = {_tuple(after)}")
        f.scope.line(f"{outputs} = {_tuple(shown)}")
        f.scope.line(f"return {carries}, {outputs}")
    else:
        f.scope.line(f"return {_tuple(after)}, {_tuple(shown)}")
    f.scope.lines.append("")
    f.scope.indent -= 1
    del f.scope.tensors[known:]
    f.writer.locals |= f.scope.taken
    f.scope.taken = outer                                # names of the step may serve again
    _run_scan(f, node, step, starts, [*map(str, each.values()), *([live] if live else [])], stacked)


def _run_scan(f: Forward, node: Node, step: str, starts: list[str], inputs: list[str], stacked: list[str]) -> None:
    op, used = node.op, f.used[node.id]
    names = {o: f.name(node, o) for o in stacked}
    first = {o: p for p, o in reversed(op.carry.items())}
    ends = {p: f.name(node, f"last.{o}").replace(".", "_") if f"last.{o}" in used and first[o] == p else "_" for p, o in op.carry.items()}
    left = _tuple(list(ends.values())) if any(e != "_" for e in ends.values()) else "_"
    right = _tuple(list(names.values())) if names else "_"
    dtypes = [node.types[node.outputs.index(o)].dtype for o in stacked]
    options = ", backward=True" if op.backward else ""
    if any(d != "float" for d in dtypes):
        options += f", dtypes={_tuple(['None' if d == 'float' else f'torch.{d}' for d in dtypes])}"
    keep(f.writer.helpers, SCAN_IN_GRAPH)
    kinds = [node.types[node.outputs.index(o)] for o in [f"last.{op.carry[p]}" for p, e in ends.items() if e != "_"] + stacked]
    f.scope.line(f"{left}, {right} = {keep(f.writer.helpers, SCAN)}({step}, {_tuple(starts)}, {_tuple(inputs)}, {op.axis}{options})",
                 shape_comment(*kinds))
    for o in stacked:
        f.define(node.output(o), Py(names[o]), node.types[node.outputs.index(o)])
    for p, o in op.carry.items():
        if ends[p] != "_":
            f.define(node.output(f"last.{o}"), Py(ends[p]), node.types[node.outputs.index(f"last.{o}")])


def _live(f: Forward, node: Node, like: str) -> str:
    """Whether each row is still running at each step: the local for bool [B, T], with time on the scan's axis."""
    axis, value, first = node.op.axis, node.inputs["scan.length"], node.inputs[node.op.each[0]]
    assert isinstance(value, Value) and isinstance(first, Value)
    length = str(f.read(value))
    steps = f"{like}.shape[{axis}]"
    if f.region.type(value).optional:
        rows = _batch(node, f.region.type(value), f.region.type(first))
        every = f"{like}.new_full(({like}.shape[{rows}],), {steps}, dtype=torch.int64)"
        length = f.scope.name(f"{node.name}_length")
        f.scope.line(f"{length} = {every} if {f.read(value)} is None else {f.read(value)}")
    name = f.scope.name(f"{node.name}_live")
    times = f"torch.arange({steps}, device={like}.device)"
    text = f"{times}[:, None] < {length}" if axis == 0 else f"{times} < {length}[:, {', '.join(['None'] * axis)}]"
    f.scope.line(f"{name} = {text}", "[T, B]" if axis == 0 else f"[B, {'1, ' * (axis - 1)}T]")
    return name


def _batch(node: Node, length: TensorType, type: TensorType) -> int:
    """The axis of `type` that counts the rows of `length`."""
    if length.shape[0] not in type.shape:
        raise fault("shape-mismatch", f"`length` ends the rows of {length.shape[0]}, and {type} has no such axis", node.origin.span)
    return type.shape.index(length.shape[0])


def _frozen(f: Forward, node: Node, alive: str, new: str, old: str | None, type: TensorType) -> str:
    """The new value where the row is still running; past its end the old one, or zeros."""
    if not alive:
        return new
    value = node.inputs["scan.length"]
    assert isinstance(value, Value)
    axis = _batch(node, f.region.type(value), type)
    view = ", ".join("-1" if k == axis else "1" for k in range(len(type.shape)))
    past = old or {"float": "0.0", "int64": "0", "bool": "False"}[type.dtype]
    return f"torch.where({alive}.view({view}), {new}, {past})"


def _targets(items: list[str]) -> str:
    """`a, b`, `(a,)`: names that a tuple is unpacked to."""
    return ", ".join(items) if len(items) > 1 else _tuple(items)


def _tuple(items: list[str]) -> str:
    """`(a, b)`, `(a,)`, `()`."""
    if not items:
        return "()"
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
