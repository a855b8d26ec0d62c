"""The classes of one file: one for each distinct body, made when first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ...ir.dimension import Dim
from ...ir.graph import Branch, Node, Region, Repeat, Scan, Value
from ...ir.parameters import is_parameter
from ...lang.diagnostic import fault
from .forward import Forward
from .initial import fills, torch_does
from .layout import split_comment
from .names import camel
from .printer import Scope
from .regions import (
    constructor,
    is_control,
    live,
    lone_op,
    lone_parameter,
    own_parameters,
    shape_text,
    symbols,
)
from .source import Py
from .state import inside, parameter_values, plain_parameter, state

Need = str | int                    # "dtype", "device", or the number of a free dimension


@dataclass
class ClassText:
    """One class of the file. `order` are the indices of the region's arguments as `forward` takes them; `needs` are what
    it must be told besides (between the required and the optional ones)."""

    name: str
    required: list[int] = field(default_factory=list)
    optional: list[int] = field(default_factory=list)
    needs: dict[Need, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


@dataclass
class Unit:
    """How one body is made and called: kind is `class`, `op` (a module of torch) or `parameter`."""

    kind: str
    region: Region
    outputs: tuple[str, ...]            # the outputs that a call gives, in the region's order
    constructor: str
    cls: ClassText | None = None
    symbols: tuple[str, ...] = ()


class Writer:
    """Classes and helper functions of one file. `reserved` are names that no local may take."""

    def __init__(self, reserved: frozenset[str] = frozenset()):
        self.reserved = reserved
        self.helpers: dict[str, str] = {}
        self.classes: dict[tuple[str, str, tuple[str, ...]], ClassText] = {}
        self.finished: list[ClassText] = []
        self.names: set[str] = {"Tensor", "F"}
        self.locals: set[str] = set()
        self.made: dict[tuple[int, tuple[str, ...]], Unit] = {}

    def unit(self, region: Region, used: frozenset[str]) -> Unit:
        """How to make and call a body of which the outputs `used` are wanted (all of them when it is never called)."""
        outputs = tuple(o for o, _ in region.outputs if o in used) or tuple(o for o, _ in region.outputs)
        key = (id(region), outputs)
        if key not in self.made:
            self.made[key] = self._unit(region, outputs)
        return self.made[key]

    def units(self, node: Node, used: frozenset[str]) -> list[Unit]:
        """The units of a control node's bodies, when `used` of the node's outputs are read."""
        op = node.op
        carried = set(op.carry.values()) if isinstance(op, Repeat | Scan) else set()
        names = {o.removeprefix("all.").removeprefix("last.") for o in used} | carried
        if isinstance(op, Branch) and op.route:
            return [self.unit(b, frozenset({b.outputs[0][0]})) for b in op.bodies]
        return [self.unit(b, frozenset(names & {o for o, _ in b.outputs})) for b in op.bodies]

    def _unit(self, region: Region, outputs: tuple[str, ...]) -> Unit:
        parameter = lone_parameter(region)
        if parameter is not None:
            return Unit("parameter", region, outputs, plain_parameter(parameter))
        op = lone_op(region)
        made = constructor(region, op) if op is not None else None
        if op is not None and made is not None and self._starts_by_itself(region, op, str(made)):
            return Unit("op", region, outputs, str(made))
        names = symbols(region)
        key = (region.name, shape_text(region, names), outputs)
        if key not in self.classes:
            self.classes[key] = ClassText(self.class_name(region.name))
            self.write(self.classes[key], region, outputs, names)
            self.classes[key] = self._merged(self.classes[key], region.name)
        cls = self.classes[key]
        return Unit("class", region, outputs, f"{cls.name}()", cls, names)

    def _merged(self, cls: ClassText, name: str) -> ClassText:
        """The class, or an earlier one of a block with this name that differs in documented sizes alone, where they become `_`."""
        for (block, *_), known in self.classes.items():
            if block == name and known is not cls and known.needs == cls.needs and _code(known) == _code(cls):
                lines = _common(known.lines, cls.lines)
                if lines is not None:
                    known.lines = lines
                    self.finished.remove(cls)
                    self.names.discard(cls.name)
                    return known
        return cls

    def _starts_by_itself(self, region: Region, op: Node, made: str) -> bool:
        """Whether torch's module starts its parameters as they should and all of them train."""
        own = own_parameters(region, op)
        return all(p.op.trainable and torch_does(made, port, p.op.start, tuple(d.value or 0 for d in p.types[0].shape), op.op)
                   for port, p in own.items())

    def class_name(self, name: str) -> str:
        base = fresh = camel(name)
        n = 2
        while fresh in self.names:
            fresh, n = f"{base}{n}", n + 1
        self.names.add(fresh)
        return fresh

    # one class

    def write(self, cls: ClassText, region: Region, outputs: tuple[str, ...], names: tuple[str, ...], root: bool = False) -> None:
        """Fill in a class; the classes of inner bodies come before it."""
        for p in region.nodes:
            if is_parameter(p) and not p.name:
                raise fault("bad-node", "copies of a parameter cannot have inputs", p.origin.span)
        scope = self.scope(region)
        cls.required = [i for i, a in enumerate(region.arguments) if not a.type.optional]
        cls.optional = [i for i, a in enumerate(region.arguments) if a.type.optional]
        forward = Forward(self, region, [v for o, v in region.outputs if o in outputs], scope)
        forward.env.update(parameter_values(region))
        arguments = {i: self._argument(scope, a.name, root) for i, a in enumerate(region.arguments)}
        for i, a in enumerate(region.arguments):
            forward.define(Value(-1, i), Py(arguments[i]), a.type)
        scope.ask = self._asker(cls, region, scope, names, root)
        forward.run()
        results = [str(forward.read(v)) for o, v in region.outputs if o in outputs]
        cls.lines = [f"class {cls.name}(nn.Module):", *self._docstring(region, arguments, outputs), *self._init(region, forward)]
        cls.lines += [*self._signature(cls, region, arguments, outputs, root), *self._body(scope.lines, outputs, results, root)]
        self.locals |= scope.taken
        self.finished.append(cls)

    def scope(self, region: Region) -> Scope:
        return Scope(taken=set(self.reserved))

    def _argument(self, scope: Scope, name: str, root: bool) -> str:
        if root and name not in scope.taken and name.isidentifier() and name not in {"self", "torch", "nn", "math"}:
            import keyword
            if not keyword.iskeyword(name):
                scope.taken.add(name)
                return name
        return scope.name("x" if name == "in" and not root else name)

    def _asker(self, cls: ClassText, region: Region, scope: Scope, names: tuple[str, ...], root: bool) -> Callable[[str | Dim], Py]:
        """What stands in for a tensor in scope that tells dtype, device or a size: a parameter, else the caller."""
        own = next((v for v in parameter_values(region).values()), None)

        def ask(what: str | Dim) -> Py:
            if isinstance(what, str) and own is not None:
                return getattr(own, what)
            if isinstance(what, str) and root:
                return getattr(Py("next(self.parameters())"), what) if _any_parameter(region) else _default(what)
            if root:
                raise fault("unbound-dimension", f"no input tells the size `{what}`", region.origin.span)
            need = what if isinstance(what, str) else names.index(str(what))
            if need not in cls.needs:
                cls.needs[need] = scope.name(str(what).lower())
            return Py(cls.needs[need])
        return ask

    def _docstring(self, region: Region, arguments: dict[int, str], outputs: tuple[str, ...]) -> list[str]:
        given = ", ".join(f"{arguments[i]} {a.type}" for i, a in enumerate(region.arguments))
        results = ", ".join(f"{o} {region.type(v)}" for o, v in region.outputs if o in outputs)
        shapes = f"{given} -> {results}" if given else results
        about = escape(region.about)
        if not about:
            lines = _wrapped(shapes, width=92)
            return [f'    """{shapes}."""', ""] if len(lines) == 1 else ['    """' + lines[0].strip(), *lines[1:], '    """', ""]
        first = _wrapped(about, width=92)
        return ['    """' + first[0].strip(), *first[1:], "", *_wrapped(shapes), '    """', ""]

    def _init(self, region: Region, forward: Forward) -> list[str]:
        held = state(self, region, forward.used)
        body = held.lines(inside(region))
        start = fills(held.starts) + held.loops
        if not body:
            return []
        lines = ["    def __init__(self) -> None:", "        super().__init__()", *_indented(body)]
        reset = _indented(start)
        for node in held.sources:
            reset += self._computed(region, node)
        if not reset:
            return [*lines, ""]
        return [*lines, "        self.reset_parameters()", "", "    def reset_parameters(self) -> None:", *reset, ""]

    def _computed(self, region: Region, node: Node) -> list[str]:
        """Statements that start a parameter from the value that its `init` is wired to."""
        value = node.inputs["init"]
        assert isinstance(value, Value)
        needed = live(region, [value])
        dependent = fault("bad-attribute", "the initial value of a parameter must not depend on an input", node.origin.span,
                          help="compute it in the same block, from constants and settings")
        if any(v.node == -1 for v in needed):
            raise dependent
        scope = self.scope(region)
        own = parameter_values(region)[Value(node.id)]

        def ask(what: str | Dim) -> Py:
            if isinstance(what, Dim):           # a free size, which only inputs tell
                raise dependent
            return getattr(own, what)

        scope.ask = ask
        forward = Forward(self, region, [value], scope)
        forward.env.update(parameter_values(region))
        scope.indent = 3
        forward.run()
        self.locals |= scope.taken
        return ["        with torch.no_grad():", *scope.lines, f"            {own}.copy_({forward.read(value)})"]

    def _signature(self, cls: ClassText, region: Region, arguments: dict[int, str], outputs: tuple[str, ...], root: bool) -> list[str]:
        kinds = {"dtype": "torch.dtype", "device": "torch.device"}
        parts = ["self", *(f"{arguments[i]}: Tensor" for i in cls.required)]
        parts += [f"{name}: {kinds.get(str(need), 'int')}" for need, name in cls.needs.items()]
        parts += [f"{arguments[i]}: Tensor | None = None" for i in cls.optional]
        result = "Tensor" if len(outputs) == 1 else "dict[str, Tensor]" if root else f"tuple[{', '.join(['Tensor'] * len(outputs))}]"
        return [f"    def forward({', '.join(parts)}) -> {result}:"]

    def _body(self, lines: list[str], outputs: tuple[str, ...], results: list[str], root: bool) -> list[str]:
        """The statements of `forward`; a last one that only names the result is returned as it is."""
        lines = _without_dead_views(lines, results)
        last = f"        {', '.join(results)} = "
        if lines and lines[-1].startswith(last) and not (root and len(results) > 1):
            return [*lines[:-1], f"        return {lines[-1].removeprefix(last)}"]
        return [*lines, self._return(outputs, results, root)]

    def _return(self, outputs: tuple[str, ...], results: list[str], root: bool) -> str:
        if root and len(results) > 1:
            return f"        return {{{', '.join(f'{chr(34)}{o}{chr(34)}: {r}' for o, r in zip(outputs, results, strict=True))}}}"
        return f"        return {', '.join(results)}"


def escape(text: str) -> str:
    """Text that may stand in a docstring."""
    return "".join(c if c.isprintable() else " " for c in text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"').strip()


def _without_dead_views(lines: list[str], results: list[str]) -> list[str]:
    """Without the views that nothing reads: an op may take only the device of its input, which every tensor here has."""
    for k, line in enumerate(lines):
        view = re.fullmatch(r" +(\w+) = \w+\[[^\[\]]*\](?:  # .*)?", line)
        if view and not any(re.search(rf"\b{view[1]}\b", text) for text in (*lines[:k], *lines[k + 1:], *results)):
            return _without_dead_views([*lines[:k], *lines[k + 1:]], results)
    return lines


def _code(cls: ClassText) -> list[str]:
    """The statements after the docstring, without comments."""
    end = next(k for k, line in enumerate(cls.lines) if line.endswith('"""') and (k > 1 or line.count('"""') == 2))
    return [split_comment(line)[0] for line in cls.lines[end + 1:]]


def _common(a: list[str], b: list[str]) -> list[str] | None:
    """The lines of both classes, with `_` for each number in which they differ; None where they differ in more."""
    first, second = (re.split(r"\b", "\n".join(lines[1:])) for lines in (a, b))
    if len(first) != len(second) or not all(x == y or (x == "_" or x.isdigit()) and y.isdigit()
                                            for x, y in zip(first, second, strict=True)):
        return None
    return [a[0], *"".join(x if x == y else "_" for x, y in zip(first, second, strict=True)).split("\n")]


def _default(what: str) -> Py:
    return Py("torch.get_default_dtype()") if what == "dtype" else Py('torch.get_default_device()')


def _any_parameter(region: Region) -> bool:
    return any(is_parameter(n) or (is_control(n) and any(_any_parameter(b) for b in n.op.bodies)) for n in region.nodes)


def _indented(lines: list[str]) -> list[str]:
    return [f"        {line}" for line in lines]


def _wrapped(text: str, width: int = 96) -> list[str]:
    import textwrap

    return [f"    {line}" for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]
