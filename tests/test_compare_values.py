"""`nnspec compare`: values by path against a reference, and the node that is named where one is wrong."""

import nnspec
import numpy as np
import pytest
import torch
import zoo
from nnspec.backends.torch import build
from nnspec.cli import main
from nnspec.compare_paths import by_path, places
from nnspec.ir.graph import Scan, walk
from nnspec.lang.diagnostic import CheckFailed, Diagnostics
from nnspec.runtime import ArtifactError
from safetensors.torch import save_file

SIZES = {"layers": 3, "width": 24, "heads": 3, "vocab": 47}
SPEC = """
nnspec: 1
name: small
use: [attention, ffn, layers, positions]
inputs: {tokens: "int64[B, S <= 1024]"}
graph:
  embed: {op: embedding, in: tokens, entries: 47, width: 24}
  placed: {block: learned_positions, in: embed, entries: 1024}
  layers:
    repeat: 3
    block: pre_norm_layer
    in: placed
    norm: {op: layer_norm, eps: 1e-5}
    attention: {block: multi_head_attention, heads: 3, causal: true}
    ffn: {block: plain_ffn, hidden: 96, activation: gelu_tanh}
  norm: {op: layer_norm, in: layers, eps: 1e-5}
  logits: {op: linear, in: norm, weight: embed.weight, bias: false}
outputs: {logits: logits}
"""


def hooked(module, names, **inputs):
    """What submodules give, by torch's own hooks: no part of what is tested here."""
    found = {}

    def keep(name):
        def hook(_module, _args, out):
            found[name] = out.detach().numpy()
        return hook

    handles = [module.get_submodule(n).register_forward_hook(keep(n)) for n in names]
    with torch.no_grad():
        out = module(**{k: torch.from_numpy(v) for k, v in inputs.items()})
    for h in handles:
        h.remove()
    return found, out


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A reference of GPT-2's values, from the hooks of its module, and the weights: (model, arrays, file)."""
    model = nnspec.load("gpt2", SIZES)
    module = model.module(seed=4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(8)))
    tokens = np.random.default_rng(1).integers(0, 47, (2, 9))
    names = ["embed", "placed", "norm", *(f"layers.{i}" for i in range(3)), *(f"layers.{i}.{n}" for i in range(3) for n in (
        "attention_norm", "attention.query", "attention.output", "attention", "ffn_norm", "ffn.up", "ffn.down"))]
    found, out = hooked(module, names, tokens=tokens)
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file({k: v.contiguous() for k, v in module.state_dict().items()}, file)
    return model, {**found, "logits": out.numpy(), "tokens": tokens}, file


def test_a_right_model_agrees_everywhere(gpt2):
    model, reference, file = gpt2
    found = model.compare(reference, file)
    assert found.first is None and found.check() is None
    assert {c.name for c in found.values} == set(reference) - {"tokens"}
    order = list(dict.fromkeys(p.path for p in places(model.graph)))
    at = [order.index(c.name) for c in found.values]
    assert at == sorted(at) and [c.name for c in found.values][:3] == ["embed", "placed", "layers.0.attention_norm"]
    assert max(c.summary.max_rel for c in found.values) < 1e-5


def altered(tmp_path, old, new):
    """GPT-2 with some words of its spec replaced."""
    assert old in SPEC
    (tmp_path / "spec.yaml").write_text(SPEC.lstrip().replace(old, new))
    return nnspec.load(tmp_path / "spec.yaml")


@pytest.mark.parametrize(("old", "new", "first", "between", "agrees"), [
    ("activation: gelu_tanh", "activation: relu", "layers.0.ffn.down", "layers.0.ffn.active", "layers.0.ffn.up"),
    ("norm: {op: layer_norm, eps: 1e-5}", "norm: {op: layer_norm, eps: 1e-1}", "layers.0.attention_norm", None, "placed"),
    ("norm: {op: layer_norm, in: layers, eps: 1e-5}", "norm: {op: layer_norm, in: layers, eps: 0.5}", "norm", None, "layers.2"),
    ("causal: true", "causal: false", "layers.0.attention.output", "layers.0.attention.attended", "layers.0.attention.query"),
])
def test_a_wrong_node_is_named(gpt2, tmp_path, old, new, first, between, agrees):
    _, reference, file = gpt2
    model = altered(tmp_path, old, new)
    found = model.compare(reference, file)
    assert found.first is not None and found.first.name == first
    assert (between in found.between) if between else found.between == ()
    with pytest.raises(CheckFailed) as failed:
        found.check()
    (item,) = failed.value.items
    assert (item.code, item.headline) == ("differs", f"`{first}` is the first value that differs from the reference")
    assert f"`{agrees}`, given before it, agrees" in item.notes
    assert item.labels[0].span.line == by_path(places(model.graph))[first].origin.span.line
    before = [c for c in found.values if c.wrong is None]
    assert before and all(c.summary.max_rel < 1e-5 for c in before)


def test_gelu_for_gelu_tanh_is_seen_at_its_own_node(gpt2, tmp_path):
    """Off by 5e-4 of the largest number: the default tolerance sees it in the node itself."""
    right, reference, file = gpt2
    up = reference["layers.0.ffn.up"]
    want = torch.nn.functional.gelu(torch.from_numpy(up), approximate="tanh").numpy()
    given = {"tokens": reference["tokens"], "layers.0.ffn.up": up, "layers.0.ffn.active": want, "layers.0": reference["layers.0"]}
    assert right.compare(given, file).first is None
    found = altered(tmp_path, "activation: gelu_tanh", "activation: gelu").compare(given, file, 1e-5)
    assert found.first is not None and found.first.name == "layers.0.ffn.active"
    assert 1e-5 < found.first.summary.max_rel < 1e-2


def test_a_lost_bias_in_one_layer(gpt2):
    """The module's key bias of layer 1 is lost: what is before agrees, and the first given value after is named."""
    model, reference, file = gpt2
    module = model.module(weights=file)
    with torch.no_grad():
        module.layers[1].attention.output.bias.zero_()
    found = model.compare(reference, module)
    assert found.first is not None and found.first.name == "layers.1.attention.output"
    assert [c.name for c in found.values if c.wrong is None][-1] == "layers.1.attention.query"


def test_paths_of_outputs_and_copies(gpt2):
    model, reference, file = gpt2
    given = {"tokens": reference["tokens"], "layers": reference["layers.2"], "layers.all.out": np.stack(
        [reference[f"layers.{i}"] for i in range(3)]), "layers.1.attention.query.output": reference["layers.1.attention.query"],
        "layers.1.out": reference["layers.1"]}
    assert model.compare(given, file).first is None
    given["layers.1.out"] = reference["layers.0"]
    assert model.compare(given, file).first.name == "layers.1.out"


def test_every_value_of_every_kind_of_body_has_its_own_numbers(tmp_path):
    """repeat with two bodies, branch, scan with lengths, repeat in a scan: against a loop in numpy over the module's weights."""
    (tmp_path / "spec.yaml").write_text(KINDS.lstrip())
    model = nnspec.load(tmp_path / "spec.yaml")
    module = build(model.lowered, seed=3)
    rng = np.random.default_rng(0)
    x, length = rng.standard_normal((2, 4, 3)).astype(np.float32), np.array([4, 2])
    w = {k: v.numpy() for k, v in module.state_dict().items()}

    def linear(name, value):
        return value @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    want, value = {}, x
    for i in range(4):
        want[f"stack.{i}.up"] = up = linear(f"stack.{i}.up", value)
        active = np.maximum(up, 0) if i % 2 == 0 else np.tanh(up)
        want[f"stack.{i}.active"] = active
        if i % 2:
            want[f"stack.{i}.extra"] = active.mean(-1)
        want[f"stack.{i}"] = value = value + linear(f"stack.{i}.down", active)
    want["stack"] = value
    for i in range(2):
        want[f"sides.{i}"] = linear(f"sides.{i}", value)
    state, steps = np.zeros((2, 3), np.float32), []
    for t in range(4):
        mixed = np.tanh(linear("run.mix", value[:, t]) + state)
        first = linear("run.deep.0", mixed)
        second = linear("run.deep.1", first)
        alive = (t < length)[:, None]
        steps.append([np.where(alive, v, 0) for v in (mixed, first, second)])
        state = np.where(alive, second, state)
    for k, name in enumerate(("run.mixed", "run.deep.0", "run.deep.1")):
        want[name] = np.stack([s[k] for s in steps], 1)
    found = model.compare({"x": x, "length": length, **want}, module)
    assert [c.name for c in found.values if c.wrong] == []
    assert len(found.values) == len(want)
    for name, right in want.items():
        off = {**want, name: right + np.float32(0.01)}
        assert [c.name for c in model.compare({"x": x, "length": length, **off}, module).values if c.wrong] == [name]


KINDS = """
nnspec: 1
name: kinds
inputs: {x: "float[B, T, 3]", length: "int64[B]"}
blocks:
  rises:
    inputs: {in: "float[B, T, 3]"}
    graph:
      up: {op: linear, in: in, width: 5}
      active: {op: activate, in: up, function: relu}
      down: {op: linear, in: active, width: 3}
      out: {op: add, in: [in, down]}
  bends:
    inputs: {in: "float[B, T, 3]"}
    graph:
      up: {op: linear, in: in, width: 5}
      active: {op: activate, in: up, function: tanh}
      extra: {op: mean, in: active, axis: 2}
      down: {op: linear, in: active, width: 3}
      out: {op: add, in: [in, down]}
  step:
    inputs: {x: "float[B, 3]", state: "float[B, 3]"}
    graph:
      mix: {op: linear, in: x, width: 3}
      both: {op: add, in: [mix, state]}
      mixed: {op: activate, in: both, function: tanh}
      deep: {repeat: 2, op: linear, in: mixed, width: 3}
    outputs: {state: deep}
graph:
  stack: {repeat: 4, block: rises, in: x, pattern: [{}, {block: bends}]}
  sides: {branch: 2, op: linear, in: stack, width: 2}
  left: {op: take, in: sides.all, axis: 0, at: 1}
  run: {scan: step, along: T, each: {x: stack}, carry: {state: 0}, length: length}
  joined: {op: concat, in: [left, run.state], axis: 2}
outputs: {joined: joined}
"""


@pytest.mark.parametrize("name", zoo.SPECS)
def test_every_model_gives_what_hooks_see(name):
    """Every submodule that runs once and has the path of a node, by torch's hooks, against the values by path."""
    model, module = zoo.model(name), zoo.stirred(name)
    sizes = {d: n for d, n in zip(zoo.free(name), (3, 7, 5, 4), strict=False)}
    arrays = zoo.draw(name, sizes, short=False)
    scans = [at for at, _, node in walk(model.graph.root) if isinstance(node.op, Scan)]
    known = {p: at for p, at in by_path(places(model.graph)).items() if not any(p.startswith(f"{s}.") for s in scans)}
    seen = {}
    handles = [part.register_forward_hook(lambda _m, _a, out, at=at: seen.setdefault(at, []).append(out))
               for at, part in module.named_modules() if at in known and not isinstance(part, torch.nn.Conv1d | torch.nn.Conv2d)]
    try:
        out = zoo.run(module, arrays, zoo.outputs(name))
    finally:
        for h in handles:
            h.remove()
    want = {at: found[0].detach().numpy() for at, found in seen.items() if len(found) == 1 and isinstance(found[0], torch.Tensor)}
    found = model.compare({**out, **want, **arrays}, module, 1e-5)
    assert {c.name: c.wrong.text for c in found.values if c.wrong} == {}
    assert len(found.values) >= max(len(want), 1)


def test_bad_input(gpt2, tmp_path):
    model, reference, file = gpt2
    tokens = reference["tokens"]

    def wrong(given, kind, *parts):
        with pytest.raises(kind) as caught:
            model.compare(given, file)
        text = "\n".join("\n".join((i.headline, *i.notes, *i.helps)) for i in caught.value.items)
        for part in parts:
            assert part in text, text

    wrong({"tokens": tokens, "layers.0.attention.qury": tokens, "layer.1": tokens}, Diagnostics,
          "no value `layers.0.attention.qury`", "did you mean `layers.0.attention.query`?", "no value `layer.1`",
          "did you mean `layers.1`?")
    wrong({"tokens": tokens}, Diagnostics, "holds no value to compare")
    wrong({"logits": reference["logits"]}, ArtifactError, "tokens")
    wrong({"tokens": tokens + 47, "logits": reference["logits"]}, ArtifactError, "tokens")
    wrong({"tokens": tokens, "layers.0": reference["layers.0"].transpose(1, 0, 2), "embed": reference["embed"][:, :-1],
           "norm": reference["norm"].astype(np.int64)}, Diagnostics,
          "`layers.0` of the reference has shape [9, 2, 24], the model's [2, 9, 24]", "transpose it",
          "`embed` of the reference has shape [2, 8, 24]", "`norm` of the reference is int64, the model's is float32")


def test_the_command(gpt2, tmp_path, capsys):
    _, reference, file = gpt2
    sets = [f"--set={k}={v}" for k, v in SIZES.items()]
    np.savez(tmp_path / "right.npz", **reference)
    np.savez(tmp_path / "wrong.npz", **{**reference, "layers.1.ffn.up": reference["layers.1.ffn.up"] * 1.01})
    np.savez(tmp_path / "bad.npz", nothing=reference["embed"], tokens=reference["tokens"])

    def call(name, *more):
        with pytest.raises(SystemExit) as done:
            main(["compare", "gpt2", *sets, "--weights", str(file), "--reference", str(tmp_path / f"{name}.npz"), *more])
        return (done.value.code, *capsys.readouterr())

    code, out, err = call("right")
    assert (code, err) == (0, "") and "differs" not in out
    assert out.splitlines()[0].split() == ["value", "shape", "max", "abs", "max", "rel"]
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["embed", "placed"]
    code, out, err = call("wrong")
    assert code == 1 and "error[differs]: `layers.1.ffn.up` is the first value that differs from the reference" in err
    assert "ffn.yaml:" in err and "gpt2.yaml:" in err
    assert [line.split()[0] for line in out.splitlines() if line.endswith("differs first")] == ["layers.1.ffn.up"]
    assert call("wrong", "--tolerance", "0.02")[0] == 0
    assert call("bad")[0] == 2
    assert call("gone")[0] == 2
