"""The experts of a routed branch as formulas, to find those that one kernel computes: two matrices, or three with a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ir.graph import ARGUMENT, Branch, Call, Control, Node, Region, Value, join, mapped
from .activations import TABLE
from .values import NamedParameter

SKIPPED = frozenset({"dropout", "identity", "stop_gradient"})        # those that give their input again when not training


@dataclass(frozen=True, eq=False)
class Leaf:
    """What a body starts from: its parameter `node` at path `name` inside it, or its argument `name`."""

    name: str
    node: Node | None = None


@dataclass(frozen=True, eq=False)
class Applied:
    """Output `output` of an op; `inputs` are terms, tuples of them, or None where absent."""

    op: Any
    inputs: Mapping[str, Any]
    output: int = 0


Term = Leaf | Applied | None


@dataclass(frozen=True)
class Expert:
    """down(activation(up x)), or with a gate down(activation(gate x) * up x). Matrices are [out, in], a bias may be None.

    `hidden` is the width inside, `width` that of the result.
    """

    activation: str
    up: tuple[Leaf, Leaf | None]
    down: tuple[Leaf, Leaf | None]
    gate: tuple[Leaf, Leaf | None] | None
    hidden: int
    width: int

    @property
    def shape(self) -> tuple[Any, ...]:
        """What the experts of one kernel have in common."""
        pairs = (self.up, self.down, *([self.gate] if self.gate else []))
        return (self.activation, self.gate is None, self.hidden, self.width, tuple(bias is None for _, bias in pairs))


def experts(op: Branch) -> tuple[Expert, ...] | str:
    """The expert of each distinct body, all of one shape; else why not."""
    found = []
    for body in op.bodies:
        expert = _expert(body)
        if isinstance(expert, str):
            return expert
        found.append(expert)
    return tuple(found) if len({e.shape for e in found}) == 1 else "the experts are not all of one shape"


def _expert(body: Region) -> Expert | str:
    args: dict[str, Term] = {a.name: Leaf(a.name) for a in body.arguments}
    result = _plain(_terms(body, args)[body.outputs[0][0]])
    rows = args["in"]
    down = _linear(result)
    if down is None:
        return "an expert's result is no `linear`"
    widths = _widths(down[1])
    inner = _plain(down[0])
    if isinstance(inner, Applied) and inner.op.name == "multiply":
        return _gated(inner, rows, down, widths)
    activation, before = _activation(inner)
    up = _linear(before)
    if up is None or _plain(up[0]) is not rows:
        return "an expert is no two matrices with an activation between, and no gated pair"
    return Expert(activation, up[1:], down[1:], None, widths[1], widths[0])


def _gated(product: Applied, rows: Term, down: Any, widths: Any) -> Expert | str:
    pair = [_plain(x) for x in product.inputs["in"]]
    sides = [(_activation(a), _linear(b)) for a, b in (pair, pair[::-1])] if len(pair) == 2 else []
    for (activation, before), up in sides:
        gate = _linear(before)
        if activation != "identity" and gate and up and _plain(gate[0]) is rows and _plain(up[0]) is rows:
            if (gate[2] is None) != (up[2] is None):
                return "of an expert's gate and its partner only one has a bias"
            return Expert(activation, up[1:], down[1:], gate[1:], widths[1], widths[0])
    return "an expert's product is not of an activated matrix and a plain one, both of its input"


def _widths(weight: Leaf) -> tuple[int, int]:
    """What a matrix [out, in] gives and takes; sizes of parameters are constants."""
    assert weight.node is not None
    out, inside = (d.value for d in weight.node.types[0].shape)
    assert out is not None and inside is not None
    return out, inside


def _terms(region: Region, args: Mapping[str, Term], at: str = "") -> dict[str, Any]:
    """The outputs of a region as formulas of its arguments and parameters; calls are looked into."""
    env: dict[Value, Any] = {Value(ARGUMENT, k): args.get(a.name) for k, a in enumerate(region.arguments)}
    for node in region.nodes:
        if isinstance(node.op, NamedParameter):
            made: list[Any] = [Leaf(join(at, node.name), node)]
        else:
            inputs = {port: mapped(given, env.__getitem__) for port, given in node.inputs.items()}  # type: ignore[arg-type,return-value]
            made = [Applied(node.op, inputs, k) for k in range(len(node.outputs))]
            if isinstance(node.op, Call):
                outs = _terms(node.op.body, inputs, join(at, node.name))  # type: ignore[arg-type]
                made = [outs[name] for name in node.outputs]
        env |= {Value(node.id, k): term for k, term in enumerate(made)}
    return {name: env[value] for name, value in region.outputs}


def _plain(term: Any) -> Any:
    """The term without what does nothing to it."""
    while isinstance(term, Applied) and _name(term) in SKIPPED | {"activate"} and _function(term) in (*SKIPPED, "identity"):
        term = term.inputs["in"]
    return term


def _name(term: Applied) -> str:
    return "" if isinstance(term.op, Control) else term.op.name


def _function(term: Applied) -> str:
    return term.op.function if _name(term) == "activate" else _name(term)


def _linear(term: Any) -> tuple[Any, Leaf, Leaf | None] | None:
    """Input, matrix and bias of a projection by parameters."""
    term = _plain(term)
    if not isinstance(term, Applied) or _name(term) != "linear":
        return None
    weight, bias = term.inputs["weight"], term.inputs["bias"]
    if not isinstance(weight, Leaf) or weight.node is None or not (bias is None or (isinstance(bias, Leaf) and bias.node is not None)):
        return None
    return term.inputs["in"], weight, bias


def _activation(term: Any) -> tuple[str, Any]:
    """The activation that a term ends with, and what it is of."""
    term = _plain(term)
    if isinstance(term, Applied) and _function(term) in TABLE:
        return _function(term), term.inputs["in"]
    return "identity", term
