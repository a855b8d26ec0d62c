"""How parameters start: source of initialisation, and what torch's own modules already do."""

from __future__ import annotations

from math import isclose
from typing import Any

from ...ir.graph import Node, Region
from ...ir.parameters import is_parameter, makers
from .source import Py, source

HIDDEN_UNIFORM = frozenset({"RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"})     # uniform in +-1/sqrt(hidden)
FAN_IN = frozenset({"Linear", "Conv1d", "Conv2d"})
FIXED: dict[tuple[str, str], Any] = {
    ("Embedding", "weight"): {"normal": 1.0}, ("LayerNorm", "weight"): "ones", ("LayerNorm", "bias"): "zeros",
    ("RMSNorm", "weight"): "ones", ("GroupNorm", "weight"): "ones", ("GroupNorm", "bias"): "zeros",
}


def torch_does(module: str, port: str, start: Any, shape: tuple[int, ...], op: Any) -> bool:
    """Whether the constructor `nn.NAME(...)` already starts parameter `port` as `start` says."""
    name = module.removeprefix("nn.").partition("(")[0]
    if name in FAN_IN:
        return start == {"fan_in_uniform": 1.0}
    if name in HIDDEN_UNIFORM:
        return isinstance(start, dict) and isclose(start.get("uniform", 0), op.hidden ** -0.5)
    return FIXED.get((name, port)) == start


def fan_in(region: Region, node: Node) -> int:
    """Inputs of one output: the last axis of the owner's `weight`, all axes after the first of a convolution's."""
    owner = makers(region).get(node.id)
    weight = node
    if owner is not None and not node.name.endswith("weight"):
        beside = node.name.rpartition(".")[0]
        wanted = f"{beside}.weight" if beside else "weight"
        weight = next((n for n in region.nodes if is_parameter(n) and n.name == wanted), node)
    shape = [d.value or 1 for d in weight.types[0].shape]
    if owner is not None and owner.op.name.startswith("conv"):
        total = 1
        for n in shape[1:]:
            total *= n
        return total
    return shape[-1] if shape else 1


def fill(start: Any, fan: int) -> tuple[str, str]:
    """`normal_`, `std=0.02`: the function of nn.init and its arguments after the tensor."""
    if isinstance(start, str):
        return f"{start}_", ""
    (kind, x), = start.items()
    if kind == "uniform":
        return "uniform_", f"{source(-x)}, {source(x)}"
    if kind == "fan_in_uniform":
        bound = f"{fan}**-0.5" if x == 1 else f"{source(float(x))} * {fan}**-0.5"
        return "uniform_", f"-{bound}, {bound}"
    if kind == "truncated_normal":
        return "trunc_normal_", f"std={source(x)}, a={source(-2 * x)}, b={source(2 * x)}"
    name, argument = {"normal": ("normal_", "std="), "constant": ("constant_", ""), "xavier_uniform": ("xavier_uniform_", "gain="),
                      "xavier_normal": ("xavier_normal_", "gain="), "orthogonal": ("orthogonal_", "gain=")}[kind]
    return name, f"{argument}{source(x)}"


def _draws(how: tuple[str, str]) -> bool:
    return how[0] not in ("zeros_", "ones_", "constant_")


def fills(starts: list[tuple[Py, tuple[str, str]]]) -> list[str]:
    """Statements that start parameters; those that start alike share a loop where the order of draws allows it."""
    groups: list[tuple[tuple[str, str], list[Py]]] = []
    for where, how in sorted(starts, key=lambda start: not _draws(start[1])):
        same = next((places for known, places in groups[-1 if _draws(how) else 0:] if known == how), None)
        if same is None:
            groups.append((how, [where]))
        else:
            same.append(where)
    lines = []
    for (name, arguments), places in groups:
        tail = f", {arguments}" if arguments else ""
        if len(places) == 1:
            lines.append(f"nn.init.{name}({places[0]}{tail})")
        else:
            lines += [f"for parameter in ({', '.join(map(str, places))}):", f"    nn.init.{name}(parameter{tail})"]
    return lines
