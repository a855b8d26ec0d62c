"""Single steps of recurrent networks: rnn_cell, lstm_cell, gru_cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..ir.dimension import Dim
from ..ir.graph import TensorType
from .base import Op, OpFault, Parameter, Types, attribute, tensor

RNN_STEP = '''
def rnn_{activation}_step(x, state, w_ih, w_hh, b_ih=None, b_hh=None):
    """One step of an Elman network: x [B, i], state [B, h]."""
    return (torch.{activation}(F.linear(x, w_ih, b_ih) + F.linear(state, w_hh, b_hh)),)
'''

LSTM_STEP = '''
def lstm_step(x, state, cell, w_ih, w_hh, b_ih=None, b_hh=None):
    """One LSTM step: x [B, i], state and cell [B, h]."""
    i, f, g, o = (F.linear(x, w_ih, b_ih) + F.linear(state, w_hh, b_hh)).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell
'''

GRU_STEPS = {
    "after": '''
def gru_after_step(x, state, w_ih, w_hh, b_ih=None, b_hh=None):
    """One GRU step, reset gate after the state's matrix: x [B, i], state [B, h]."""
    r, z, n = F.linear(x, w_ih, b_ih).chunk(3, -1)
    r_state, z_state, n_state = F.linear(state, w_hh, b_hh).chunk(3, -1)
    n = torch.tanh(n + torch.sigmoid(r + r_state) * n_state)
    z = torch.sigmoid(z + z_state)
    return ((1 - z) * n + z * state,)
''',
    "before": '''
def gru_before_step(x, state, w_ih, w_hh, b_ih=None, b_hh=None):
    """One GRU step, reset gate before the state's matrix: x [B, i], state [B, h]."""
    h = state.shape[-1]
    r, z, n = F.linear(x, w_ih, b_ih).chunk(3, -1)
    r_state, z_state = F.linear(state, w_hh[:2 * h], None if b_hh is None else b_hh[:2 * h]).chunk(2, -1)
    reset = torch.sigmoid(r + r_state) * state
    n = torch.tanh(n + F.linear(reset, w_hh[2 * h:], None if b_hh is None else b_hh[2 * h:]))
    z = torch.sigmoid(z + z_state)
    return ((1 - z) * n + z * state,)
''',
}


def rnn_step(activation: str) -> str:
    """Source of one Elman step."""
    return RNN_STEP.replace("{activation}", activation)


@dataclass(frozen=True)
class _Cell(Op):
    """One step from x [B, i] and states [B, h], with the parameters of torch's cell, uniform in +-1/sqrt(hidden) at first."""

    states: ClassVar[tuple[str, ...]] = ("state",)
    nn_name: ClassVar[str] = ""                     # the class of torch.nn

    hidden: int = attribute("int", doc="width of the state")
    bias: bool = attribute("bool", True, "whether input and state each have a bias")

    def known(self) -> dict[str, Dim | int]:
        return {"h": self.hidden}

    def parameters(self) -> dict[str, Parameter]:
        init = {"uniform": self.hidden ** -0.5}
        names = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()))
        return {name: Parameter(init) for name in names}

    def infer(self, inputs: Types) -> tuple[TensorType, ...]:
        if self.hidden < 1:
            raise OpFault("bad-attribute", f"`hidden` is {self.hidden}, expected at least 1", attribute="hidden")
        return super().infer(inputs)

    def flops(self, inputs: Types, outputs: tuple[TensorType, ...]) -> Dim:
        rows, (B, width) = tensor(inputs, "weight_hh").shape[0], tensor(inputs, "in").shape
        return 2 * B * rows * (width + self.hidden)

    def step(self) -> str:
        """Source of one step, (x, *states, *parameters) -> states."""
        raise NotImplementedError  # pragma: no cover

    def settings(self) -> dict[str, Any]:
        """Further settings of the nn module."""
        return {} if self.bias else {"bias": False}

    def module(self, t: Any, inputs: Types) -> Any:
        return getattr(t.nn, self.nn_name)(tensor(inputs, "in").shape[1].value, self.hidden, **self.settings())

    def module_call(self, t: Any, owner: Any, **ports: Any) -> Any:
        if len(self.states) == 1:
            state = t.let("state", owner(ports["in"], ports["state"]))
            return state, state
        states = t.lets(self.states, owner(ports["in"], tuple(ports[name] for name in self.states)))
        return states[0], *states

    def torch(self, t: Any, **ports: Any) -> Any:
        given = [ports[name] for name in ("in", *self.states, "weight_ih", "weight_hh")]
        biases = [ports[name] for name in ("bias_ih", "bias_hh") if ports.get(name) is not None]
        states = t.let("states", t.helper(self.step())(*given, *biases))
        return states[0], *(states[i] for i in range(len(self.states)))

    def onnx(self, g: Any, **ports: Any) -> Any:
        states = self.emit(g, ports, *(ports[name] for name in self.states))
        return states[0], *states

    def emit(self, g: Any, ports: Any, *states: Any) -> tuple[Any, ...]:
        """ONNX nodes of the new states."""
        raise NotImplementedError  # pragma: no cover


def _gates(g: Any, ports: Any, of: str, x: Any) -> Any:
    """[B gates*h]: x W^T + b, of the input (`ih`) or the state (`hh`)."""
    return g.op("Gemm", x, ports[f"weight_{of}"], ports.get(f"bias_{of}"), transB=1)


def _sum(g: Any, ports: Any, state: Any) -> Any:
    return g.op("Add", _gates(g, ports, "ih", ports["in"]), _gates(g, ports, "hh", state))


def _split(g: Any, x: Any, widths: list[int], axis: int = -1) -> tuple[Any, ...]:
    return g.op("Split", x, g.ints(*widths), outputs=len(widths), axis=axis)


@dataclass(frozen=True)
class RnnCell(_Cell):
    """One step of `rnn` (torch.nn.RNNCell)."""

    name = "rnn_cell"
    signature = ("in: float[B i]; state: float[B h]; weight_ih?: float[h i]; weight_hh?: float[h h]; bias_ih?: float[h]; "
                 "bias_hh?: float[h] -> out: float[B h]; state: float[B h]")
    nn_name = "RNNCell"

    activation: str = attribute("tanh|relu", "tanh", "the nonlinearity of the state")

    def step(self) -> str:
        return rnn_step(self.activation)

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({"nonlinearity": "relu"} if self.activation == "relu" else {})

    def emit(self, g: Any, ports: Any, *states: Any) -> tuple[Any, ...]:
        return (g.op(self.activation.capitalize(), _sum(g, ports, states[0])),)


@dataclass(frozen=True)
class LstmCell(_Cell):
    """One step of `lstm` (torch.nn.LSTMCell)."""

    name = "lstm_cell"
    signature = ("in: float[B i]; state: float[B h]; cell: float[B h]; weight_ih?: float[4*h i]; weight_hh?: float[4*h h]; "
                 "bias_ih?: float[4*h]; bias_hh?: float[4*h] -> out: float[B h]; state: float[B h]; cell: float[B h]")
    states = ("state", "cell")
    nn_name = "LSTMCell"

    def step(self) -> str:
        return LSTM_STEP

    def emit(self, g: Any, ports: Any, *states: Any) -> tuple[Any, ...]:
        i, f, new, o = _split(g, _sum(g, ports, states[0]), [self.hidden] * 4)
        i, f, o = (g.op("Sigmoid", x) for x in (i, f, o))
        cell = g.op("Add", g.op("Mul", f, states[1]), g.op("Mul", i, g.op("Tanh", new)))
        return g.op("Mul", o, g.op("Tanh", cell)), cell


@dataclass(frozen=True)
class GruCell(_Cell):
    """One step of `gru` (torch.nn.GRUCell with `reset: after`)."""

    name = "gru_cell"
    signature = ("in: float[B i]; state: float[B h]; weight_ih?: float[3*h i]; weight_hh?: float[3*h h]; "
                 "bias_ih?: float[3*h]; bias_hh?: float[3*h] -> out: float[B h]; state: float[B h]")
    nn_name = "GRUCell"

    reset: str = attribute("after|before", "after", "whether the reset gate acts after the state's matrix or before")

    def step(self) -> str:
        return GRU_STEPS[self.reset]

    def module(self, t: Any, inputs: Types) -> Any:
        return super().module(t, inputs) if self.reset == "after" else None

    def emit(self, g: Any, ports: Any, *states: Any) -> tuple[Any, ...]:
        return (gru_nodes(g, self.reset, self.hidden, _gates(g, ports, "ih", ports["in"]), states[0], ports),)


def gru_nodes(g: Any, reset: str, h: int, gates: Any, state: Any, ports: Mapping[str, Any]) -> Any:
    """ONNX nodes of the new state [B, h]: `gates` [B, 3*h] are those of the input, `ports` have `weight_hh` and `bias_hh`."""
    r, z, new = _split(g, gates, [h] * 3)
    if reset == "after":
        r_state, z_state, candidate = _split(g, _gates(g, ports, "hh", state), [h] * 3)
        candidate = g.op("Mul", g.op("Sigmoid", g.op("Add", r, r_state)), candidate)
    else:
        first, second = {}, {}
        for name in [n for n in ("weight_hh", "bias_hh") if ports.get(n) is not None]:
            first[name], second[name] = _split(g, ports[name], [2 * h, h], axis=0)
        r_state, z_state = _split(g, _gates(g, first, "hh", state), [h] * 2)
        candidate = _gates(g, second, "hh", g.op("Mul", g.op("Sigmoid", g.op("Add", r, r_state)), state))
    new = g.op("Tanh", g.op("Add", new, candidate))
    z = g.op("Sigmoid", g.op("Add", z, z_state))
    return g.op("Add", new, g.op("Mul", z, g.op("Sub", state, new)))


OPS: tuple[type[Op], ...] = (RnnCell, LstmCell, GruCell)
