"""Print one op's PyTorch source and run it in any dtype, in training, or with optional inputs that are absent."""

from __future__ import annotations

import math

import torch
from nnspec.backends.torch.printer import Printer, Scope
from nnspec.backends.torch.source import Py, source
from nnspec.ir.dimension import Dim
from nnspec.ir.graph import TensorType

DTYPES = {torch.int64: "int64", torch.bool: "bool"}


def typed(*axes, dtype="float", optional=False):
    """A TensorType: `typed("B", "S", 4)`."""
    return TensorType(dtype, tuple(Dim.symbol(a) if isinstance(a, str) else Dim.const(a) for a in axes), optional)


def print_op(op, types):
    """The text of a module with `run(self, ...)`, which takes the wired ports in order (a list port is several)."""
    types = {port: types.get(port) for port in {**op.ports(), **op.parameters()}}
    outputs, scope, helpers, names = op.infer(types), Scope(indent=1), {}, {}

    def enter(port, type):
        value = Py(scope.name(port))
        scope.tensors.append((value, type))
        return value

    for port, type in types.items():
        if isinstance(type, tuple):
            names[port] = [enter(f"{port}_{i}", each) for i, each in enumerate(type)]
        else:
            names[port] = None if type is None else enter(port, type)
    arguments = [str(value) for value, _ in scope.tensors]
    t = Printer(scope, helpers, "node", types, outputs, frozenset(op.outputs()), Py("self"))
    result = op.torch(t, **names)
    body = "\n".join([*scope.lines, f"    return {source(result)}"])
    return "\n\n".join([*helpers.values(), f"def run({', '.join(['self', *arguments])}):\n{body}\n"])


def run_printed(op, types, *values, training=False):
    """The result of the printed source on tensors (or None) given in port order."""
    text = print_op(op, types)
    space = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math}
    exec(compile(text, "<op>", "exec"), space)

    class Self:
        pass

    Self.training = training
    return space["run"](Self(), *values)


def free(value):
    """The type of a tensor with every axis of its own size."""
    return typed(*value.shape, dtype=DTYPES.get(value.dtype, "float"))
