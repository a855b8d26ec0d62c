"""Emitted PyTorch against hand-written torch code that reads the same weights."""

import pickle
import subprocess
import sys
import textwrap
import traceback

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from modules import keys_hold, same
from nnspec.backends.torch import build, generate
from nnspec.backends.torch.names import TAKEN
from nnspec.ir.parameters import count, expand, parameter_table, state_shapes
from nnspec.lang.diagnostic import Diagnostics
from nnspec.pipeline import front
from torch import nn

TRANSFORMER = """
    about: 'A small "decoder", with back\\slash.'
    use: [attention, ffn, layers]
    sizes: {vocab: 11, width: 12, heads: 3, n: 2}
    inputs: {tokens: "int64[B, S]", keep: "optional bool[B, S]"}
    graph:
      embed: {op: embedding, in: tokens, entries: vocab, width: width}
      layers:
        repeat: n
        block: pre_norm_layer
        in: embed
        norm: {op: rms_norm, offset: 1.0}
        attention: {block: multi_head_attention, heads: heads, causal: true, keep: keep}
        ffn: {block: plain_ffn, hidden: 20, activation: gelu}
      logits: {op: linear, in: layers, weight: embed.weight, bias: false}
    outputs: {logits: logits}
"""


def transformer(w, tokens, keep):
    """The same model by hand, from a state dict."""
    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embed.weight"][tokens]
    B, S, D = x.shape
    sees = torch.ones(S, S).tril().bool() & (torch.ones(B, 1, S).bool() if keep is None else keep[:, None])
    for i in range(2):
        h = norm(x, w[f"layers.{i}.attention_norm.weight"])
        q, k, v = (linear(h, f"layers.{i}.attention.{n}").view(B, S, 3, 4).transpose(1, 2) for n in ("query", "key", "value"))
        scores = (q @ k.transpose(2, 3) / 2).masked_fill(~sees[:, None], float("-inf"))
        x = x + linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, S, D), f"layers.{i}.attention.output")
        h = norm(x, w[f"layers.{i}.ffn_norm.weight"])
        x = x + linear(F.gelu(linear(h, f"layers.{i}.ffn.up")), f"layers.{i}.ffn.down")
    return x @ w["embed.weight"].T


def test_transformer_equals_hand_written_code(compiled):
    graph = compiled(TRANSFORMER)
    module = build(graph, seed=3)
    keys_hold(graph, module)
    for p in module.parameters():                 # offsets of norms start at zero: make them count
        nn.init.normal_(p, std=0.5)
    tokens = torch.randint(11, (3, 5))
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 1, 0, 0, 0]]).bool()
    same(module(tokens), transformer(module.state_dict(), tokens, None), 1e-5)
    same(module(tokens, keep=keep), transformer(module.state_dict(), tokens, keep), 1e-5)
    module(tokens, keep=keep).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in module.named_parameters() if not n.endswith("key.bias"))


def test_source_reads_like_a_file(compiled):
    text = generate(compiled(TRANSFORMER))
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("class PreNormLayer") == text.count("class PlainFfn") == 1
    assert "self.layers = nn.ModuleList(PreNormLayer() for _ in range(2))" in text
    assert "query = self.query(x)  # [B, S, 12]" in text
    assert "F.linear(layers, self.embed.weight)" in text
    assert "import math" not in text and "nnspec" not in text
    compile(text, "<file>", "exec")


def test_file_alone_is_bit_equal(compiled, tmp_path):
    graph = compiled(TRANSFORMER)
    (tmp_path / "model.py").write_text(generate(graph))
    module, tokens = build(graph, seed=5), torch.randint(11, (2, 7))
    torch.save({"state": module.state_dict(), "tokens": tokens}, tmp_path / "case.pt")
    script = """
        import sys, torch
        sys.modules["nnspec"] = None
        sys.path.insert(0, sys.argv[1])
        from model import Spec
        case = torch.load(sys.argv[1] + "/case.pt")
        module = Spec()
        module.load_state_dict(case["state"])
        torch.save(module.eval()(case["tokens"]), sys.argv[1] + "/out.pt")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True, timeout=120)
    assert torch.equal(torch.load(tmp_path / "out.pt"), module(tokens))


def test_seeds_pickles_dtypes_and_tracebacks(compiled):
    graph = compiled(TRANSFORMER)
    before = torch.get_rng_state()
    a, b, c = build(graph, seed=1), build(graph, seed=1), build(graph, seed=2)
    assert torch.equal(before, torch.get_rng_state()) and not a.training
    tokens = torch.randint(11, (2, 4))
    assert torch.equal(a(tokens), b(tokens)) and not torch.equal(a(tokens), c(tokens))
    assert torch.equal(pickle.loads(pickle.dumps(a))(tokens), a(tokens))
    double = build(graph, seed=1, dtype=torch.float64)
    same(double(tokens).float(), a(tokens), 1e-5)
    assert build(graph, seed=1, dtype=torch.bfloat16)(tokens).dtype == torch.bfloat16
    assert next(build(graph, device="meta").parameters()).is_meta
    with pytest.raises(IndexError) as error:
        a(tokens + 11)
    assert "embed = self.embed(tokens)  # [B, S, 12]" in "".join(traceback.format_exception(error.value))


def test_compile_and_export(compiled):
    module, tokens = build(compiled(TRANSFORMER)), torch.randint(11, (2, 6))
    same(torch.compile(module, fullgraph=True, backend="aot_eager")(tokens), module(tokens))
    sizes = {"tokens": {0: torch.export.Dim("B"), 1: torch.export.Dim("S")}, "keep": None}
    exported = torch.export.export(module, (tokens,), {"keep": None}, dynamic_shapes=sizes).module()
    for shape in ((3, 9), (2, 2)):
        tokens = torch.randint(11, shape)
        same(exported(tokens, keep=None), module(tokens))


NAMES = """
    sizes: {width: 3}
    inputs: {type: "float[B, width]", input: "float[B, width]"}
    graph:
      class: {op: linear, in: type, width: width}
      forward: {op: linear, in: class, width: width}
      half: {op: parameter, shape: "[width]", init: {normal: 0.5}}
      if: {op: parameter, shape: "[width]", init: {normal: 0.5}}
      apply: {repeat: 2, op: linear, in: forward, width: width, bias: false}
      train: {block: inner, in: apply}
      torch: {op: add, in: [train, half, if, input]}
      self: {op: relu, in: torch}
    outputs: {out: self}
    blocks:
      inner:
        inputs: {in: "float[B, W]"}
        graph:
          eval: {op: linear, in: in, width: W}
          out: {op: linear, in: eval, weight: eval.weight, bias: eval.bias}
"""


def test_names_that_python_or_torch_use(compiled):
    graph = compiled(NAMES, "list")
    module = build(graph, seed=1)
    keys_hold(graph, module)
    w = module.state_dict()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    h = F.linear(x, w["class.weight"], w["class.bias"])
    h = F.linear(h, w["forward.weight"], w["forward.bias"])
    h = h @ w["apply.0.weight"].T @ w["apply.1.weight"].T
    for _ in range(2):
        h = F.linear(h, w["train.eval.weight"], w["train.eval.bias"])
    want = torch.relu(h + w["half"] + w["if"] + y)
    same(module(type=x, input=y), want)
    same(torch.compile(module, fullgraph=True, backend="aot_eager")(type=x, input=y), want)
    assert next(module.half().parameters()).dtype == torch.float16


def test_taken_names_are_those_of_modules():
    code = "from torch import nn; print(*dir(nn.Module()))"                      # by torch alone: other libraries add methods
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(told) > 50 and {n for n in told if not n.startswith("_")} <= TAKEN


INITS = """
    sizes: {width: 64}
    inputs: {x: "float[B, width]"}
    graph:
      a: {op: linear, in: x, width: 50, init: {normal: 0.02}}
      b: {op: linear, in: a, width: 40, init: {fan_in_uniform: 3.0}, bias: false}
      c: {op: linear, in: b, width: 30, init: {orthogonal: 2.0}, bias: false, trainable: false}
      d: {op: linear, in: c, width: 30, init: {weight: {xavier_uniform: 1.0}, bias: {constant: 7}}}
      steps: {op: range, from: 1, to: 31, dtype: float}
      logs: {op: log, in: steps}
      decay: {op: parameter, shape: "[30]", init: logs}
      e: {op: parameter, shape: "[30, 20]", init: {truncated_normal: 0.1}, trainable: false}
      f: {op: parameter, shape: "[30]", init: {uniform: 0.25}}
      scaled: {op: multiply, in: [d, decay, f]}
      out: {op: matmul, in: [scaled, e]}
    outputs: {out: out}
"""


def test_initialisation(compiled):
    graph = compiled(INITS)
    module = build(graph, seed=1)
    keys_hold(graph, module)
    w = module.state_dict()
    assert abs(w["a.weight"].std() - 0.02) < 0.002 and w["a.bias"].abs().max() <= 64 ** -0.5 and w["a.bias"].std() > 0
    assert 0.9 * 3 * 50 ** -0.5 < w["b.weight"].abs().max() <= 3 * 50 ** -0.5
    same(w["c.weight"] @ w["c.weight"].T, 4 * torch.eye(30), 1e-5)
    assert 0.9 * 0.1 ** 0.5 < w["d.weight"].abs().max() <= 0.1 ** 0.5 and (w["d.bias"] == 7).all()
    same(w["decay"], torch.log(torch.arange(1, 31.0)))
    assert w["e"].abs().max() <= 0.2 and 0.08 < w["e"].std() < 0.1
    assert 0.2 < w["f"].abs().max() <= 0.25
    assert {n for n, p in module.named_parameters() if not p.requires_grad} == {"c.weight", "e"}
    x = torch.randn(3, 64)
    h = F.linear(F.linear(F.linear(F.linear(x, w["a.weight"], w["a.bias"]), w["b.weight"]), w["c.weight"]), w["d.weight"], w["d.bias"])
    same(module(x), h * w["decay"] * w["f"] @ w["e"], 1e-4)
    assert "torch.log" not in generate(graph).split("def forward")[1]


def test_start_from_an_input_is_refused(compiled):
    graph = compiled("""
        inputs: {x: "float[3]"}
        graph:
          p: {op: parameter, shape: "[3]", init: x}
          out: {op: add, in: [p, x]}
        outputs: {out: out}
    """)
    with pytest.raises(Diagnostics, match="must not depend on an input"):
        generate(graph)


def test_start_from_a_free_size_is_refused(compiled):
    graph = compiled("""
        inputs: {x: "float[B, 3]"}
        graph:
          twos: {op: full, shape: "[B, 3]", value: 2}
          start: {op: mean, in: twos, axis: 0}
          p: {op: parameter, shape: "[3]", init: start}
          out: {op: add, in: [p, x]}
        outputs: {out: out}
    """)
    with pytest.raises(Diagnostics, match="must not depend on an input"):
        generate(graph)


def test_sizes_and_dtype_that_no_argument_tells(compiled):
    graph = compiled("""
        inputs: {tokens: "int64[B, S]"}
        graph:
          embed: {op: embedding, in: tokens, entries: 5, width: 4}
          steps: {block: steps}
          scaled: {op: multiply, in: [embed, steps]}
        outputs: {out: scaled}
        blocks:
          steps:
            graph:
              out: {op: range, to: 4, dtype: float}
    """)
    tokens = torch.randint(5, (2, 3))
    for dtype in (torch.float32, torch.float16):
        module = build(graph, dtype=dtype)
        got = module(tokens)
        assert got.dtype == dtype
        assert torch.equal(got, module.embed(tokens) * torch.arange(4, dtype=dtype))


def test_blocks_that_differ_in_dimension_names_share_a_class(compiled):
    graph = compiled("""
        inputs: {x: "float[B, S, 4]", y: "float[B, T, 4]", z: "float[B, T, 6]"}
        graph:
          a: {block: norm, in: x}
          b: {block: norm, in: y}
          c: {block: norm, in: z}
        outputs: {a: a, b: b, c: c}
        blocks:
          norm:
            inputs: {in: "float[B, N, D]"}
            graph:
              out: {op: layer_norm, in: in}
    """)
    text = generate(graph)
    assert text.count("class Norm(") == text.count("class Norm2(") == 1 and "class Norm3" not in text
    module, arrays = build(graph), [torch.randn(2, n, d) for n, d in ((3, 4), (5, 4), (5, 6))]
    for got, x in zip(module(*arrays).values(), arrays, strict=True):
        same(got, F.layer_norm(x, x.shape[-1:]))


def test_weights_nobody_asks_for_are_not_computed(compiled):
    text = generate(compiled("""
        inputs: {q: "float[B, 2, T, 4]", k: "float[B, 2, S, 4]"}
        graph:
          a: {block: both, q: q, k: k}
        outputs: {out: a}
        blocks:
          both:
            inputs: {q: "float[B, H, T, D]", k: "float[B, H, S, D]"}
            graph:
              attend: {op: attention, query: q, key: k, value: k}
            outputs: {out: attend, weights: attend.weights}
    """))
    assert "scaled_dot_product_attention" in text and "attention_weights" not in text


def test_what_a_block_did_not_choose_is_not_computed(compiled):
    """Its parameters stay, under their paths."""
    graph = compiled("""
        inputs: {x: "float[B, 5]"}
        graph:
          one: {block: pick, in: x}
          two: {block: pick, in: one, other: x}
        outputs: {out: two, one: one}
        blocks:
          pick:
            inputs: {in: "float[B, D]", other: "optional float[B, D]"}
            graph:
              mine: {op: linear, in: in, width: D}
              many: {repeat: 2, block: inner, in: mine}
              out: {op: first_of, in: [other, many]}
          inner:
            inputs: {in: "float[B, D]"}
            graph: {out: {op: linear, in: in, width: D}}
    """)
    text = generate(graph)
    assert text.count("self.mine(x)") == 1 and "        return other" in text
    module, x = build(graph), torch.randn(3, 5)
    assert set(module.state_dict()) == {p for p, _ in expand(graph)} and module(x)["out"].equal(x)


def test_table_stays_folded():
    graph = front("gpt3-175b").lowered()
    assert count(graph) == 174_604_259_328
    assert len(parameter_table(graph)) < 40
    paths = [path for path, _ in expand(graph)]
    assert len(paths) == len(set(paths)) > 96 * 10
    assert len(generate(graph)) < 20_000
    assert np.prod(state_shapes(graph)["layers.95.ffn.up.weight"]) == 12288 * 49152
