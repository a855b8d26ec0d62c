"""repeat, branch and scan as PyTorch, against loops written by hand."""

import pytest
import torch
import torch.nn.functional as F
from modules import keys_hold, same
from nnspec.backends.torch import build, generate
from torch import nn

REPEATS = """
    sizes: {n: 6, width: 5}
    inputs: {x: "float[B, width]", gains: "float[n + 1, B, width]", tap: "float[B, width]"}
    graph:
      deep:
        repeat: n
        block: step
        in: x
        each: {gain: {from: gains, at: i + 1}}
        pattern:
          - inner: {block: tapped, tap: tap}
          - {times: 2, inner: {op: linear, width: width, bias: false}}
          - inner: {op: tanh}
      shared:
        repeat: n
        block: step
        in: deep
        each: {gain: {from: gains, at: 5 - i}}
        share: "i // 2 * 2"
        inner: {op: linear, width: width}
      albert: {repeat: 3, op: linear, in: shared, width: width, share: 0}
    outputs: {out: albert, all: deep.all, firsts: shared.all.double}
    blocks:
      step:
        slots: {inner: "float[B, W] -> float[B, W]"}
        inputs: {in: "float[B, W]", gain: "float[B, W]"}
        graph:
          inner: {slot: inner, in: in}
          out: {op: multiply, in: [inner, gain]}
          double: {op: add, in: [out, out]}
        outputs: {out: out, double: double}
      tapped:
        inputs: {in: "float[B, W]", tap: "float[B, W]"}
        graph:
          mix: {op: linear, in: in, width: W}
          out: {op: add, in: [mix, tap]}
"""


def test_repeat_pattern_each_share(compiled):
    graph = compiled(REPEATS)
    module = build(graph, seed=2)
    keys_hold(graph, module)
    w = module.state_dict()
    assert sorted({k.split(".")[1] for k in w if k.startswith("shared")}) == ["0", "2", "4"]
    assert [k for k in w if k.startswith("albert")] == ["albert.0.weight", "albert.0.bias"]
    x, gains, tap = torch.randn(3, 5), torch.randn(7, 3, 5), torch.randn(3, 5)
    got, deep, every, firsts = module(x=x, gains=gains, tap=tap), x, [], []
    for i in range(6):
        if i % 4 == 0:
            deep = F.linear(deep, w[f"deep.{i}.inner.mix.weight"], w[f"deep.{i}.inner.mix.bias"]) + tap
        else:
            deep = torch.tanh(deep) if i % 4 == 3 else F.linear(deep, w[f"deep.{i}.inner.weight"])
        deep = deep * gains[i + 1]
        every.append(deep)
    out = deep
    for i in range(6):
        out = F.linear(out, w[f"shared.{i // 2 * 2}.inner.weight"], w[f"shared.{i // 2 * 2}.inner.bias"]) * gains[5 - i]
        firsts.append(out * 2)
    for _ in range(3):
        out = F.linear(out, w["albert.0.weight"], w["albert.0.bias"])
    same(got["out"], out)
    same(got["all"], torch.stack(every))
    same(got["firsts"], torch.stack(firsts))


MEMORY = """
    sizes: {hops: 2, vocab: 7, width: 4}
    inputs: {question: "float[B, width]", story: "int64[B, N]"}
    graph:
      tables: {branch: hops + 1, op: parameter, shape: "[vocab, width]", init: {normal: 0.3}}
      hops:
        repeat: hops
        block: hop
        in: question
        each: {read: {from: tables.all, at: i}, write: {from: tables.all, at: i + 1}}
        story: story
      sides: {branch: 3, op: linear, in: hops, width: 2}
    outputs: {out: hops, sides: sides.all}
    blocks:
      hop:
        inputs: {in: "float[B, width]", read: "float[vocab, width]", write: "float[vocab, width]", story: "int64[B, N]"}
        graph:
          a: {op: embedding, in: story, weight: read}
          c: {op: embedding, in: story, weight: write}
          score: {op: einsum, in: [in, a], as: "b w, b n w -> b n"}
          weights: {op: softmax, in: score}
          read_out: {op: einsum, in: [weights, c], as: "b n, b n w -> b w"}
          out: {op: add, in: [in, read_out]}
"""


def test_branch_of_parameters_and_of_ops(compiled):
    graph = compiled(MEMORY)
    module = build(graph, seed=2)
    keys_hold(graph, module)
    assert "torch.stack(self.tables" not in generate(graph)
    w = module.state_dict()
    assert 0.1 < w["tables.1"].std() < 0.6
    x, story = torch.randn(2, 4), torch.randint(7, (2, 3))
    got, u = module(x, story), x
    for i in range(2):
        a, c = w[f"tables.{i}"][story], w[f"tables.{i + 1}"][story]
        u = u + torch.einsum("bn,bnw->bw", torch.softmax(torch.einsum("bw,bnw->bn", u, a), -1), c)
    same(got["out"], u)
    same(got["sides"], torch.stack([F.linear(u, w[f"sides.{i}.weight"], w[f"sides.{i}.bias"]) for i in range(3)]))


MIXTURE = """
    sizes: {experts: 5, width: 6}
    inputs: {x: "float[B, S, width]", gain: "float[width]", scales: "float[experts, width]"}
    graph:
      score: {op: linear, in: x, width: experts, bias: false}
      chance: {op: softmax, in: score}
      pick: {op: top_k, in: chance, k: 2}
      mix: {branch: experts, block: expert, in: x, route: {weights: pick.values, indices: pick.indices}}
      more:
        branch: experts
        block: scaled
        in: x
        gain: gain
        each: {scale: scales}
        route: {weights: pick.values, indices: pick.indices}
      total: {op: add, in: [mix, more]}
    outputs: {out: total}
    blocks:
      expert:
        inputs: {in: "float[N, W]"}
        graph:
          up: {op: linear, in: in, width: 9}
          act: {op: silu, in: up}
          down: {op: linear, in: act, width: W}
      scaled:
        inputs: {in: "float[N, W]", gain: "float[W]", scale: "float[W]"}
        graph:
          up: {op: linear, in: in, width: W}
          out: {op: multiply, in: [up, gain, scale]}
"""


def test_routed_branch(compiled):
    graph = compiled(MIXTURE)
    module = build(graph, seed=4)
    keys_hold(graph, module)
    w = module.state_dict()
    x, gain, scales = torch.randn(2, 5, 6, requires_grad=True), torch.randn(6), torch.randn(5, 6)
    values, chosen = torch.softmax(x @ w["score.weight"].T, -1).topk(2)
    want = torch.zeros_like(x)
    for e in range(5):
        share = (values * (chosen == e)).sum(-1, keepdim=True)
        up = F.silu(F.linear(x, w[f"mix.{e}.up.weight"], w[f"mix.{e}.up.bias"]))
        more = F.linear(x, w[f"more.{e}.up.weight"], w[f"more.{e}.up.bias"]) * gain * scales[e]
        want = want + share * (F.linear(up, w[f"mix.{e}.down.weight"], w[f"mix.{e}.down.bias"]) + more)
    got = module(x, gain, scales)
    same(got, want)
    a, = torch.autograd.grad(got.square().sum(), x, retain_graph=True)
    b, = torch.autograd.grad(want.square().sum(), x)
    same(a, b, 1e-5)
    got.sum().backward()
    assert module.score.weight.grad.abs().sum() > 0
    same(torch.compile(module, fullgraph=True, backend="aot_eager")(x, gain, scales), want)


SCANS = """
    sizes: {width: 4}
    inputs: {x: "float[B, T, 3]", flags: "bool[B, T]", memory: "float[B, width]", length: "optional int64[B]"}
    graph:
      there:
        scan: step
        along: T
        each: {x: x, flag: flags}
        carry: {state: 0.5, count: 0}
        memory: memory
        length: length
      back:
        scan: step
        along: T
        each: {x: x, flag: flags}
        carry: {state: memory, count: 0}
        memory: memory
        length: length
        backward: true
      cell: {scan: gru_step, along: T, each: {in: x}, carry: {state: memory}}
    outputs: {there: there.out, seen: there.seen, last: there.last.state, back: back.out, number: back.last.count, cell: cell}
    blocks:
      gru_step:
        inputs: {in: "float[B, D]", state: "float[B, width]"}
        graph:
          gru: {op: gru_cell, in: in, state: state, hidden: width}
        outputs: {out: gru, state: gru.state}
      step:
        inputs: {x: "float[B, D]", flag: "bool[B]", state: "float[B, width]", count: "int64[B]", memory: "float[B, width]"}
        graph:
          fixed: {op: linear, in: memory, width: width, bias: false}
          new: {op: linear, in: x, width: width}
          sum: {op: add, in: [new, fixed, state]}
          next: {op: tanh, in: sum}
          out: {op: scale, in: next, by: 2.0}
          more: {op: add, in: [count, 1]}
          seen: {op: not, in: flag}
        outputs: {out: out, state: next, count: more, seen: seen}
"""


def scans(w, x, flags, memory, length):
    """The two scans of `step` by hand, row by row."""
    def run(name, state, order):
        outs, ends, counts = torch.zeros(*x.shape[:2], 4), [], []
        for b in range(len(x)):
            h, n = state[b], 0
            for t in (t for t in order if length is None or t < length[b]):
                new = F.linear(x[b, t], w[f"{name}.new.weight"], w[f"{name}.new.bias"])
                h = torch.tanh(new + memory[b] @ w[f"{name}.fixed.weight"].T + h)
                outs[b, t], n = 2 * h, n + 1
            ends.append(h)
            counts.append(n)
        return outs, torch.stack(ends), torch.tensor(counts)

    steps = range(x.shape[1])
    there, last, _ = run("there", torch.full_like(memory, 0.5), steps)
    back, _, number = run("back", memory, list(reversed(steps)))
    live = torch.ones_like(flags) if length is None else torch.arange(x.shape[1]) < length[:, None]
    return {"there": there, "seen": ~flags & live, "last": last, "back": back, "number": number}


@pytest.mark.parametrize("length", [None, torch.tensor([5, 0, 3])])
def test_scan_with_length_and_backward(compiled, length):
    graph = compiled(SCANS)
    module = build(graph, seed=6)
    keys_hold(graph, module)
    w = module.state_dict()
    x, flags, memory = torch.randn(3, 5, 3), torch.rand(3, 5) > 0.5, torch.randn(3, 4)
    got = module(x=x, flags=flags, memory=memory, length=length)
    for name, want in scans(w, x, flags, memory, length).items():
        assert got[name].dtype == want.dtype
        same(got[name], want)
    cell = nn.GRUCell(3, 4)
    cell.load_state_dict({k.removeprefix("cell.gru."): v for k, v in w.items() if k.startswith("cell.")})
    h, hs = memory, []
    for t in range(5):
        h = cell(x[:, t], h)
        hs.append(h)
    same(got["cell"], torch.stack(hs, 1))
    got["there"].sum().backward()
    assert module.there.new.weight.grad.abs().sum() > 0


def test_scan_compiles_and_exports_for_any_length(compiled):
    module = build(compiled(SCANS), seed=6)
    B, T = torch.export.Dim("B"), torch.export.Dim("T")

    def inputs(b, t):
        return torch.randn(b, t, 3), torch.rand(b, t) > 0.5, torch.randn(b, 4), torch.randint(t + 1, (b,))

    given = inputs(3, 5)
    run = torch.compile(module, fullgraph=True, backend="aot_eager")
    sizes = {"x": {0: B, 1: T}, "flags": {0: B, 1: T}, "memory": {0: B}, "length": {0: B}}
    exported = torch.export.export(module, given, dynamic_shapes=sizes).module()
    for candidate, case in ((run, given), (exported, given), (exported, inputs(2, 9))):
        got, want = candidate(*case), module(*case)
        for name in want:
            same(got[name], want[name], 1e-5)
    got, want = run(*given), module(*given)
    weights = [*module.there.parameters(), *module.back.parameters()]
    grads = [torch.autograd.grad(o["there"].square().sum() + o["back"].sum(), weights) for o in (got, want)]
    for a, b in zip(*grads, strict=True):
        same(a, b, 1e-4)
