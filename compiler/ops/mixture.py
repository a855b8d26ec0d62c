"""A routed branch as a site of the fusion report: the forms of a mixture of experts.

The sum over k of weights[.., k] * expert[indices[.., k]](in) for each row of `in`. Forms are emitted with
`emit(op, g, rows, router, experts)`: `rows` [n, d]; `router.table()` [n, experts] has each expert's weight in each row, 0 where the
row is not sent to it; `router.logits()` says the same to the kernel; `experts.run(i, rows)` applies expert i, and
`experts.weights(i, leaf)` is its parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ..ir.graph import Branch, Call, Control, Region
from .activations import TABLE
from .base import ALL_TARGETS, Form, Site, tensor
from .experts import Expert, experts
from .values import NamedParameter

MS = "com.microsoft"
# The functions of the kernel on each target. Its gelu is the tanh approximation on the CPU; on CUDA it is that or the exact one, by
# the GPU, so that neither can be asked for.
KERNEL = {"ort-cpu": {"relu": "relu", "silu": "silu", "identity": "identity", "gelu_tanh": "gelu"},
          "ort-cuda": {"relu": "relu", "silu": "silu", "identity": "identity"}}
CUDA_READ = 16                                             # bytes of one read: widths must be whole ones
BY_ROW = frozenset({"linear", "activate", *TABLE, "softcap", "dropout", "identity", "stop_gradient", "multiply", "add", "subtract",
                    "divide", "scale", "maximum", "minimum", "clip", "power", "layer_norm", "rms_norm", "softmax"})


class Mixture:
    """What the fusion report and `expect:` call a routed branch."""

    name: ClassVar[str] = "moe"

    @staticmethod
    def forms() -> tuple[Form, ...]:
        """In order of preference."""
        return (Form("MoE", frozenset({"ort-cuda", "ort-cpu"}), _why_not_fused, _fused),
                Form("gathered", frozenset({"ort-cpu"}), _why_not_gathered, _gathered, fused=False),
                Form("dense", ALL_TARGETS, lambda op, site: None, _dense, fused=False))


MIXTURE = Mixture()


def _why_not_fused(op: Branch, site: Site) -> str | None:
    if site.target == "ort-cpu" and site.dtype != "float32":
        return f"ONNX Runtime's MoE has no {site.dtype} for the CPU"
    if tensor(site.inputs, "route.weights").shape[-1].value is None:
        return "how many experts a row is sent to is not a constant"
    if len(set(op.share)) < len(op.schedule):
        return "experts share their weights, and the kernel takes those of each"
    found = experts(op)
    if isinstance(found, str):
        return found
    (expert, *_) = found
    if expert.gate is not None and expert.activation != "silu":
        return f"the kernel's gate is silu, and here it is {expert.activation}"
    if expert.activation not in KERNEL[site.target]:
        return _no_function(expert.activation, site.target)
    width = tensor(site.inputs, "in").shape[-1].value
    if expert.width != width:
        return f"the experts take rows of width {width} and give {expert.width}, and the kernel keeps the width"
    whole = CUDA_READ // (4 if site.dtype == "float32" else 2)
    if site.target == "ort-cuda" and (expert.width % whole or expert.hidden % whole):
        return f"the widths {expert.width} and {expert.hidden} are not both multiples of {whole}, as the kernel for CUDA asks"
    return None


def _no_function(activation: str, target: str) -> str:
    if activation == "gelu_tanh":
        return "the kernel's gelu on CUDA is the exact one or an approximation, by the GPU"
    if activation == "gelu":
        return "the kernel's gelu is not the exact one" + (" on every GPU" if target == "ort-cuda" else " on the CPU: `gelu_tanh` is")
    return f"the kernel has no {activation}"


def _why_not_gathered(op: Branch, site: Site) -> str | None:
    odd = next((name for body in op.bodies for name in _names(body) if name not in BY_ROW), None)
    return None if odd is None else f"an expert has `{odd}`, which may look at more than one row"


def _names(region: Region) -> Iterator[str]:
    for node in region.nodes:
        if isinstance(node.op, Call):
            yield from _names(node.op.body)
        elif isinstance(node.op, Control):
            yield type(node.op).__name__.lower()
        elif not isinstance(node.op, NamedParameter):
            yield node.op.name


def _fused(op: Branch, g: Any, rows: Any, router: Any, given: Any) -> Any:
    """One node. Its fc1 holds [hidden, d] of each expert, or [2 hidden, d] with the rows of gate and partner in turn."""
    found = experts(op)
    assert not isinstance(found, str)
    all_of = [found[body] for body in op.schedule]
    gated = all_of[0].gate is not None
    first = [_packed(g, given, all_of, ("gate", "up") if gated else ("up",), k) for k in range(2)]
    second = [_packed(g, given, all_of, ("down",), k) for k in range(2)]
    logits, normalize, total = router.logits()
    function = "swiglu" if gated else KERNEL[g.target][all_of[0].activation]
    extra = {"swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0} if gated else {}
    made = g.op("MoE", rows, logits, *first, *second, domain=MS, k=min(router.chosen, len(all_of)), activation_type=function,
                normalize_routing_weights=normalize, **extra)
    return made if total is None else g.op("Mul", made, total)


def _packed(g: Any, given: Any, all_of: list[Expert], parts: tuple[str, ...], place: int) -> Any:
    """The matrices (place 0) or biases (1) of all experts as one initializer; None without biases."""
    leaves = [getattr(expert, part)[place] for expert in all_of for part in parts]
    if leaves[0] is None:
        return None
    values = [given.weights(k // len(parts), leaf) for k, leaf in enumerate(leaves)]
    rows, *rest = (d.value for d in leaves[0].node.types[0].shape)
    return g.parameter("experts", values, (len(all_of), rows * len(parts), *rest), joined=len(parts))


def _gathered(op: Branch, g: Any, rows: Any, router: Any, given: Any) -> Any:
    """Each expert on the rows that are sent to it, added at their places; in float32, for ScatterND adds no halves on the CPU."""
    height = g.op("Shape", rows, start=0, end=1)
    mixed = None
    for i, column in enumerate(_columns(g, op, router)):
        places = g.op("Squeeze", g.op("NonZero", g.op("Squeeze", column, g.ints(1))), g.ints(0))
        made = given.run(i, g.op("Gather", rows, places, axis=0))
        part = g.to_f32(g.op("Mul", made, g.op("Gather", column, places, axis=0)))
        if mixed is None:
            width = g.op("Shape", made, start=1, end=2)
            mixed = g.op("Expand", g.number(0.0, "float32"), g.op("Concat", height, width, axis=0))
        mixed = g.op("ScatterND", mixed, g.op("Unsqueeze", places, g.ints(1)), part, reduction="add")
    return g.from_f32(mixed)


def _dense(op: Branch, g: Any, rows: Any, router: Any, given: Any) -> Any:
    """Every expert on every row."""
    mixed = None
    for i, column in enumerate(_columns(g, op, router)):
        part = g.op("Mul", given.run(i, rows), column)
        mixed = part if mixed is None else g.op("Add", mixed, part)
    return mixed


def _columns(g: Any, op: Branch, router: Any) -> tuple[Any, ...]:
    """[n, 1] for each expert: its weight in each row."""
    count = len(op.schedule)
    return g.op("Split", router.table(), outputs=count, axis=-1, num_outputs=count) if count > 1 else (router.table(),)
