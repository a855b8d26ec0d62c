"""Recurrent layers: rnn, lstm, gru. Their single steps are in `cells.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.dimension import Dim
from ..ir.graph import Shape, TensorType
from .base import ALL_TARGETS, Form, Op, OpFault, Parameter, Site, Types, attribute, tensor
from .cells import GRU_STEPS, LSTM_STEP, rnn_step
from .scanned import casts, scanned

STEP_THROUGH = '''
def step_through(step, x, states, weights, length=None, backward=False):
    """One layer in one direction over x [B, S, i] from `states` ([B, h] each).

    Gives out [B, S, h] and the final states. Past a row's length the states stand still and the
    output is 0; backward, a row starts at its last real step.
    """
    outs = []
    for at in reversed(range(x.shape[1])) if backward else range(x.shape[1]):
        new = step(x[:, at], *states, *weights)
        if length is None:
            outs.append(new[0])
            states = new
        else:
            real = (at < length)[:, None]
            outs.append(new[0].masked_fill(~real, 0))
            states = tuple(torch.where(real, after, before) for after, before in zip(new, states))
    return torch.stack(outs[::-1] if backward else outs, 1), states
'''

RUN_ROWS = '''
def run_rows(rnn, x, length, start=None):
    """A recurrent module over x [B, S, i] whose rows end at `length`.

    Outputs are 0 past the end, final states those of the last real step. A row of length 0, which
    packing refuses, keeps its start state.
    """
    if length is None:
        return rnn(x, start)
    ends = length.cpu()
    for row, n in enumerate(ends.tolist()):
        if not 0 <= n <= x.shape[1]:
            raise ValueError(f"row {row} has length {n}, and there are {x.shape[1]} steps")
    packed = nn.utils.rnn.pack_padded_sequence(x, ends.clamp(min=1), batch_first=True, enforce_sorted=False)
    out, last = rnn(packed, start)
    out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    empty = (length == 0)[:, None]
    out = out.masked_fill(empty[:, :, None], 0)
    if isinstance(last, tuple):
        return out, tuple(torch.where(empty, a, b) for a, b in zip((0, 0) if start is None else start, last))
    return out, torch.where(empty, 0 if start is None else start, last)
'''

REVERSE_ROWS = '''
def reverse_rows(x, length=None):
    """x [B, S, i] with the first `length` steps of each row in reverse order."""
    if length is None:
        return x.flip(1)
    step, last = torch.arange(x.shape[1], device=x.device), length[:, None] - 1
    order = torch.where(step <= last, last - step, step)
    return x.gather(1, order[:, :, None].expand_as(x))
'''

LSTM_START = '''
def lstm_start(state, cell):
    """The pair that nn.LSTM starts from, zeros for an absent one; None for none."""
    if state is None and cell is None:
        return None
    return torch.zeros_like(cell) if state is None else state, torch.zeros_like(state) if cell is None else cell
'''


@dataclass(frozen=True)
class _Layers(Op):
    """A stack of recurrent layers with torch's parameters: `weight_ih_l0`, ..., `_reverse` for the second of two directions.

    `length` int64[B] ends each row: outputs are 0 from there on, final states are those of the last real step, a backward
    direction starts at the last real step, and a row of length 0 keeps its initial state. Parameters start uniform in
    +-1/sqrt(hidden), states at 0. The final states, as the initial ones, are ordered by layer, then direction.
    """

    site = True
    states: ClassVar[tuple[str, ...]] = ("state",)
    order: ClassVar[tuple[int, ...]] = (0,)         # the torch gate at each place of ONNX's order
    layer: ClassVar[str] = ""                       # what nn and ONNX call it

    hidden: int = attribute("int", doc="width of the state")
    layers: int = attribute("int", 1, "how many layers")
    direction: str = attribute("forward|backward|both", "forward", "`both` concatenates the two outputs, forward first")
    bias: bool = attribute("bool", True, "whether input and state each have a bias")

    @property
    def directions(self) -> int:
        return 2 if self.direction == "both" else 1

    def known(self) -> dict[str, Dim | int]:
        return {"h": self.hidden, "d": self.directions, "l": self.layers * self.directions}

    def names(self, layer: int, direction: int) -> list[str]:
        """The parameters of one layer in one direction: input weight, state weight, and their biases."""
        end = f"l{layer}" + ("_reverse" if direction else "")
        return [f"{kind}_{end}" for kind in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()))]

    def each(self) -> list[tuple[int, int]]:
        """(layer, direction) in torch's order."""
        return [(k, j) for k in range(self.layers) for j in range(self.directions)]

    def parameters(self) -> dict[str, Parameter]:
        init = {"uniform": self.hidden ** -0.5}
        return {name: Parameter(init) for k, j in self.each() for name in self.names(k, j)}

    def widths(self, inputs: Types) -> list[Dim]:
        """What each layer reads."""
        return [tensor(inputs, "in").shape[-1], *[Dim.const(self.directions * self.hidden)] * (self.layers - 1)]

    def parameter_shapes(self, inputs: Types) -> dict[str, Shape]:
        rows, h = Dim.const(len(self.order) * self.hidden), Dim.const(self.hidden)
        shapes: dict[str, Shape] = {}
        for k, j in self.each():
            kinds: list[Shape] = [(rows, self.widths(inputs)[k]), (rows, h), (rows,), (rows,)]
            shapes |= dict(zip(self.names(k, j), kinds, strict=False))
        return shapes

    def bind(self, inputs: Types) -> tuple[Any, Any]:
        return super().bind({port: inputs.get(port) for port in self.ports()})

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        for name, value in (("hidden", self.hidden), ("layers", self.layers)):
            if value < 1:
                raise OpFault("bad-attribute", f"`{name}` is {value}, expected at least 1", attribute=name)
        return super().infer(inputs)

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        B, S, _ = outputs[0].shape
        per_step = sum((width + self.hidden for width in self.widths(inputs)), Dim.const(0))
        return 2 * B * S * per_step * (len(self.order) * self.hidden * self.directions)

    # PyTorch: the nn module where it means the same, else a loop

    def step(self) -> str:
        """Source of one step, (x, *states, *parameters) -> states."""
        raise NotImplementedError  # pragma: no cover

    def settings(self) -> dict[str, Any]:
        """Further settings of the nn module."""
        return {}

    def module(self, t: Any, inputs: Types) -> Any:
        more = {"num_layers": self.layers} if self.layers > 1 else {}
        more |= {} if self.bias else {"bias": False}
        more |= {"bidirectional": True} if self.direction == "both" else {}
        width = tensor(inputs, "in").shape[-1].value
        return getattr(t.nn, self.layer)(width, self.hidden, **more, **self.settings(), batch_first=True)

    def module_call(self, t: Any, owner: Any, **ports: Any) -> Any:
        x, length = ports["in"], ports.get("length")
        lengths = () if length is None else (length,)
        backward = t.helper(REVERSE_ROWS) if self.direction == "backward" else None
        if backward is not None:
            x = backward(x, *lengths)
        start = self._start(t, [ports.get(name) for name in self.states])
        call = owner if length is None else lambda *args: t.helper(RUN_ROWS)(owner, *args)
        hints = ("out", "last" if t.used & {*self.states} else "_")
        out, last = t.lets(hints, call(x, *lengths, *(() if start is None else (start,))))
        if backward is not None:
            out = backward(out, *lengths)
        return (out, last) if len(self.states) == 1 else (out, *(last[i] for i in range(len(self.states))))

    def _start(self, t: Any, given: list[Any]) -> Any:
        if len(given) == 1:
            return given[0]
        if all(v is None for v in given):
            return None
        surely = all(v is not None and not tensor(t.inputs, name).optional for v, name in zip(given, self.states, strict=True))
        return tuple(given) if surely else t.helper(LSTM_START)(*given)

    def torch(self, t: Any, **ports: Any) -> Any:
        x, length = ports["in"], ports.get("length")
        step, through = t.helper(self.step()), t.helper(STEP_THROUGH)
        starts = [self._start_each(t, x, name, ports.get(name)) for name in self.states]
        settings = {} if length is None else {"length": length}
        finals = []
        for k in range(self.layers):
            outs = []
            for j in range(self.directions):
                back = {"backward": True} if j or self.direction == "backward" else {}
                weights = tuple(ports[name] for name in self.names(k, j))
                states = tuple(start[k * self.directions + j] for start in starts)
                out, last = t.lets(("out", "last"), through(step, x, states, weights, **settings, **back))
                outs.append(out)
                finals.append(last)
            x = outs[0] if len(outs) == 1 else t.let("out", t.torch.cat(outs, -1))
        return (x, *(t.torch.stack([last[i] for last in finals]) for i in range(len(self.states))))

    def _start_each(self, t: Any, x: Any, name: str, given: Any) -> Any:
        zeros = x.new_zeros(self.layers * self.directions, x.shape[0], self.hidden)
        if given is None:
            return t.let(f"start_{name}", zeros)
        return t.let(f"start_{name}", t.either(given == None, zeros, given)) if tensor(t.inputs, name).optional else given  # noqa: E711

    # ONNX: one native node a layer

    def attributes_of_node(self) -> dict[str, Any]:
        return {}

    def forms(self) -> tuple[Form, ...]:
        return (Form(self.layer, ALL_TARGETS, lambda op, site: None, type(self).native),)

    def native(self, g: Any, **ports: Any) -> Any:
        """Time comes first in ONNX, and each node has an axis of directions: in [S B i], out [S D B h], states [D B h]."""
        wide, narrow = casts(g)
        lengths, D, h = ports.get("length"), self.directions, self.hidden
        int32 = None if lengths is None else g.once(("int32", lengths.name), lambda: g.op("Cast", lengths, to=6))
        starts = [None if ports.get(name) is None else wide(ports[name]) for name in self.states]
        node = {"hidden_size": h, **self.attributes_of_node(),
                "direction": {"forward": None, "backward": "reverse", "both": "bidirectional"}[self.direction]}
        x, finals = g.op("Transpose", wide(ports["in"]), perm=[1, 0, 2]), []
        for k, width in enumerate(self.widths(g.inputs)):
            weights = [wide(v) if v is not None else None for v in self._weights(g, k, width, ports)]
            initial = [self._of_layer(g, start, k) for start in starts]
            out, *last = g.op(self.layer, x, *weights, int32, *initial, outputs=1 + len(starts), **node)
            finals.append(last)
            if k == self.layers - 1:
                out = narrow(out)       # not after the Transpose: ONNX Runtime 1.31 fuses that pair into a node it cannot run
            if D == 1:
                x = g.op("Squeeze", out, g.ints(1))
            elif k < self.layers - 1:
                x = g.op("Reshape", g.op("Transpose", out, perm=[0, 2, 1, 3]), g.ints(0, 0, D * h))
        if D == 1:
            x = g.op("Transpose", x, perm=[1, 0, 2])
        else:
            x = g.op("Reshape", g.op("Transpose", out, perm=[2, 0, 1, 3]), g.ints(0, 0, D * h))
        ends = [self._final(g, lengths, start, [last[i] for last in finals]) for i, start in enumerate(starts)]
        return (x, *(narrow(end) for end in ends))

    def _weights(self, g: Any, k: int, width: Dim, ports: Any) -> list[Any]:
        """Input weights, state weights and biases of layer k in ONNX's order of gates, directions stacked."""
        per_direction = [[ports[name] for name in self.names(k, j)] for j in range(self.directions)]
        made = [_gates(g, [v[i] for v in per_direction], self.order, self.hidden, joined=1, columns=c)
                for i, c in ((0, width.value), (1, self.hidden))]
        biases = [b for v in per_direction for b in v[2:]]
        return [*made, _gates(g, biases, self.order, self.hidden, joined=2) if self.bias else None]

    def _of_layer(self, g: Any, start: Any, k: int) -> Any:
        if start is None or self.layers == 1:
            return start
        D = self.directions
        return g.op("Slice", start, g.ints(k * D), g.ints((k + 1) * D), g.ints(0))

    def _final(self, g: Any, lengths: Any, start: Any, last: list[Any]) -> Any:
        """Final states [L*D B h]; kernels give 0 for a row of length 0, whatever it started from."""
        final = last[0] if len(last) == 1 else g.op("Concat", *last, axis=0)
        if lengths is None or start is None:
            return final
        empty = g.once(("no steps", lengths.name),
                       lambda: g.op("Unsqueeze", g.op("Equal", lengths, g.ints(0)), g.ints(1)))
        return g.op("Where", empty, start, final)


def _gates(g: Any, values: list[Any], order: tuple[int, ...], hidden: int, *, joined: int, columns: int | None = None) -> Any:
    """Recipe `gates`, or the same as nodes where a value is not an untouched parameter."""
    shape = (len(values) // joined, joined * len(order) * hidden, *([] if columns is None else [columns]))
    made = g.parameter("gates", values, shape, order=order, joined=joined)
    if made is not None:
        return made

    def reordered(v: Any) -> Any:
        if len(order) == 1:
            return v
        blocks = g.op("Split", v, g.ints(*[hidden] * len(order)), outputs=len(order), axis=0)
        return g.op("Concat", *(blocks[i] for i in order), axis=0)

    def stacked(first: int) -> Any:
        parts = [reordered(v) for v in values[first:first + joined]]
        return g.op("Unsqueeze", parts[0] if joined == 1 else g.op("Concat", *parts, axis=0), g.ints(0))

    rows = [stacked(i) for i in range(0, len(values), joined)]
    return rows[0] if len(rows) == 1 else g.op("Concat", *rows, axis=0)


@dataclass(frozen=True)
class Rnn(_Layers):
    """h' = activation(W_ih x + b_ih + W_hh h + b_hh) (Elman 1990; torch.nn.RNN). See `length` in `gru`."""

    name = "rnn"
    signature = "in: float[B S i]; length?: int64[B]; state?: float[l B h] -> out: float[B S d*h]; state: float[l B h]"
    layer = "RNN"

    activation: str = attribute("tanh|relu", "tanh", "the nonlinearity of the state")

    def step(self) -> str:
        return rnn_step(self.activation)

    def settings(self) -> dict[str, Any]:
        return {"nonlinearity": "relu"} if self.activation == "relu" else {}

    def attributes_of_node(self) -> dict[str, Any]:
        return {"activations": [self.activation.capitalize()] * self.directions}


@dataclass(frozen=True)
class Lstm(_Layers):
    """LSTM with forget gates and without peepholes (Hochreiter & Schmidhuber 1997; Gers et al. 2000; torch.nn.LSTM).

    i, f, o = sigmoid, g = tanh of W_ih x + b_ih + W_hh h + b_hh; c' = f c + i g; h' = o tanh(c'). Gates lie as i, f, g, o.
    """

    name = "lstm"
    signature = ("in: float[B S i]; length?: int64[B]; state?: float[l B h]; cell?: float[l B h] "
                 "-> out: float[B S d*h]; state: float[l B h]; cell: float[l B h]")
    states = ("state", "cell")
    order = (0, 3, 1, 2)        # ONNX: i, o, f, c
    layer = "LSTM"

    def step(self) -> str:
        return LSTM_STEP


@dataclass(frozen=True)
class Gru(_Layers):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078; torch.nn.GRU). Gates lie as r, z, n.

    r, z = sigmoid of W_ih x + b_ih + W_hh h + b_hh; h' = (1 - z) n + z h, where n = tanh(W_n x + b_n + r (U_n h + c_n)) with
    `reset: after` (torch, cuDNN), and n = tanh(W_n x + b_n + U_n (r h) + c_n) with `reset: before` (the paper).
    """

    name = "gru"
    signature = Rnn.signature
    order = (1, 0, 2)           # ONNX: z, r, h
    layer = "GRU"

    reset: str = attribute("after|before", "after", "whether the reset gate acts after the state's matrix or before")

    def step(self) -> str:
        return GRU_STEPS[self.reset]

    def module(self, t: Any, inputs: Types) -> Any:
        return super().module(t, inputs) if self.reset == "after" else None

    def attributes_of_node(self) -> dict[str, Any]:
        return {"linear_before_reset": 1 if self.reset == "after" else None}

    def forms(self) -> tuple[Form, ...]:
        return (Form("GRU", ALL_TARGETS, _why_not_cuda, Gru.native),
                Form("Scan", frozenset({"ort-cuda"}), lambda op, site: None, scanned, fused=False))


def _why_not_cuda(op: Gru, site: Site) -> str | None:
    slow = op.reset == "before" and site.target == "ort-cuda"
    return "CUDA has no GRU kernel with the reset gate before the state's matrix" if slow else None


OPS: tuple[type[Op], ...] = (Rnn, Lstm, Gru)
