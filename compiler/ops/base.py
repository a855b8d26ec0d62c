"""What an op is: one frozen dataclass whose fields are its attributes, with a shape rule and one method a target.

Op files import no framework: `torch` writes source through a printer `t`, `onnx` emits nodes through a builder `g`;
both are passed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.dimension import Dim
from ..ir.graph import Shape, TensorType
from ..ir.signature import Bindings, parse_signature

Types = Mapping[str, "TensorType | tuple[TensorType, ...] | None"]


class OpFault(Exception):
    """What a shape rule refuses: `ports` are the inputs to point at and what to say of each, `attribute` the field at fault."""

    def __init__(self, code: str, headline: str, *, ports: Mapping[str, str] | None = None, attribute: str | None = None,
                 note: str | None = None, help: str | None = None):
        self.code, self.headline, self.ports, self.attribute = code, headline, dict(ports or {}), attribute
        self.note, self.help = note, help
        super().__init__(headline)


def attribute(kind: str, default: Any = dataclasses.MISSING, doc: str = "", key: str | None = None) -> Any:
    """An attribute field. A default of None makes it optional; without a default it is required. `key` is how the YAML spells it
    where that is no Python name (`as`).

    Kinds: int, float, number (int, float or dimension), bool, dim, dims, ints, numbers (nested lists too), text, init, `a|b|c`
    (one of), `ints|a|b` (integers, or one of), open (the sizes that `open_attributes` collects; no key of its own).
    """
    meta = {"kind": kind, "doc": doc, "key": key}
    return dataclasses.field(metadata=meta) if default is dataclasses.MISSING else dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True)
class Parameter:
    """A parameter that an op owns when its port is not wired: how it starts, as the paper or framework says."""

    init: Any


@dataclass(frozen=True)
class Form:
    """One way to write an op in ONNX. `when` returns None where the form is legal, else the reason why not.

    `fused` forms are one kernel of the target's runtime. `joined` is what a form is called where ONNX Runtime's kernel for it
    adds the residual before it too.
    """

    name: str
    targets: frozenset[str]
    when: Callable[[Any, Site], str | None]
    emit: Callable[..., Any]
    fused: bool = True
    joined: str | None = None


@dataclass(frozen=True)
class Site:
    """What a form may ask about the place it is used: target, model dtype, input and output types, outputs in use.

    `typical` are sizes of free dimensions for which the faster of two right forms is taken.
    """

    target: str
    dtype: str
    inputs: Types
    outputs: tuple[TensorType, ...]
    used: frozenset[str]
    typical: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def typical_size(self, dim: Dim) -> int:
        """A size where free dimensions that nothing is said of are `TYPICAL`."""
        return dim.evaluate({s: self.typical.get(s, TYPICAL) for s in dim.symbols()})


TYPICAL = 128
ALL_TARGETS = frozenset({"ort-cuda", "ort-cpu", "portable"})


@dataclass(frozen=True)
class Op:
    """Base of all ops. `signature` documents and checks shapes; ops whose shapes it cannot say override `infer`."""

    name: ClassVar[str] = ""
    signature: ClassVar[str] = ""
    variadic: ClassVar[frozenset[str]] = frozenset()     # ports that take a list
    attribute_ports: ClassVar[frozenset[str]] = frozenset()   # ports that also take true / false (linear's bias)
    loops: ClassVar[frozenset[str]] = frozenset()        # letters of the signature that the op treats one by one, as it does a star
    open_attributes: ClassVar[bool] = False               # keys it does not name are dims, collected as pairs in `sizes`
    site: ClassVar[bool] = False                          # listed in the fusion report
    random: ClassVar[bool] = False                        # draws random numbers when training

    @classmethod
    def ports(cls) -> dict[str, bool]:
        """Port name -> may it be absent; in signature order, the first is the default port of a chain."""
        return {p.name: p.optional for p in parse_signature(cls.signature).inputs}

    @classmethod
    def attributes(cls) -> dict[str, dataclasses.Field[Any]]:
        return {f.name: f for f in dataclasses.fields(cls)}

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; the first is the default one."""
        return tuple(o.name for o in parse_signature(self.signature).outputs)

    def parameters(self) -> dict[str, Parameter]:
        """The parameters this op makes for ports that are not wired."""
        return {}

    def known(self) -> dict[str, Dim | int]:
        """Signature variables that the attributes fix."""
        return {}

    def parameter_shapes(self, inputs: Types) -> dict[str, Shape]:
        """Shapes of the owned parameters, from the other inputs."""
        signature, bound = self.bind(inputs)
        return {port: signature.port_shape(port, bound) for port in self.parameters() if inputs.get(port) is None}

    def bind(self, inputs: Types) -> tuple[Any, Bindings]:
        signature = parse_signature(self.signature)
        shapes = {k: v.shape if isinstance(v, TensorType) else None for k, v in inputs.items()}
        return signature, signature.bind(shapes, self.known())

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        """Types of the outputs. Raises OpFault or the signature's mismatches."""
        signature, bound = self.bind(inputs)
        out = []
        for port in signature.outputs:
            word = port.pattern.dtype
            out.append(TensorType(self.result_dtype(inputs) if word in ("any", "number") else word, signature.shape(port, bound)))
        return tuple(out)

    def result_dtype(self, inputs: Types) -> str:
        """dtype of outputs that the signature leaves open: the first input's."""
        first = next((t for t in inputs.values() if isinstance(t, TensorType)), None)
        return first.dtype if first else "float"

    def follow(self, inputs: Types, outputs: tuple[TensorType, ...], axis: int, output: int = 0) -> dict[str, int] | None:
        """The axes of the inputs that an axis of an output comes from, by port (`in.0` of a list), where the op does the same at each
        of its entries and nothing between them. None where it works along the axis. By default the signature says it: axes of a
        star, and of letters in `loops`, are such loops, but for the one that `axis` names.
        """
        shape = outputs[output].shape
        if isinstance(own := getattr(self, "axis", None), int) and axis_of(len(shape), own) == axis:
            return None
        signature = parse_signature(self.signature)
        name, at = signature.outputs[output].pattern.place(axis, len(shape))
        if not name.startswith("*") and name not in self.loops:
            return None
        found = {}
        for port in signature.inputs:
            given = inputs.get(port.name)
            rank = len(given.shape) if isinstance(given, TensorType) else 0
            for k in range(rank):
                if port.pattern.place(k, rank) == (name, at):
                    found[port.name] = k
        return found

    def absent(self, inputs: Types) -> bool:
        """Whether the result is optional: only ops that pass absence on say so."""
        return False

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        """Floating-point operations (2 x multiply-accumulates of contractions); 0 for what is linear in its size."""
        return Dim.const(0)

    def torch(self, t: Any, **ports: Any) -> Any:
        """Write PyTorch source: returns one expression, or a tuple of one per output."""
        raise NotImplementedError(self.name)  # pragma: no cover - every op overrides it, held by a test

    def module(self, t: Any, inputs: Types) -> Any:
        """Constructor source of the nn.Module that owns this op's parameters, or None for plain parameters."""
        return None

    def onnx(self, g: Any, **ports: Any) -> Any:
        """Emit ONNX nodes: returns one value, or a tuple of one per output. Ops with forms list them instead."""
        raise NotImplementedError(self.name)  # pragma: no cover

    def forms(self) -> tuple[Form, ...]:
        """ONNX forms in order of preference; the default is one form that every target takes."""
        return (Form("plain", ALL_TARGETS, lambda op, site: None, type(self).onnx, fused=False),)


def tensor(inputs: Types, port: str) -> TensorType:
    """The type of a single wired port."""
    found = inputs[port]
    assert isinstance(found, TensorType), f"{port} is not one tensor"
    return found


def tensors(inputs: Types, port: str) -> tuple[TensorType, ...]:
    """The types of a list port."""
    found = inputs[port]
    assert isinstance(found, tuple), f"{port} is not a list"
    return found


def axis_of(rank: int, axis: int, name: str = "axis", extra: int = 0) -> int:
    """A non-negative axis; raises OpFault when it is outside [-rank, rank)."""
    if not -(rank + extra) <= axis < rank + extra:
        raise OpFault("shape-mismatch", f"axis {axis} does not exist in a tensor of rank {rank}", attribute=name,
                      help=f"write an axis from {-rank} to {rank - 1}")
    return axis % (rank + extra)
