"""Costs against counts that do not come from us: torch's FLOP counter and its memory profiler on compiled modules, formulas by hand."""

import subprocess
import sys
from pathlib import Path

import nnspec
import numpy as np
import pytest
import torch
import zoo
from nnspec.cli import main
from nnspec.costs.cost import flops, free_dimensions
from nnspec.costs.memory import peak_activation
from nnspec.costs.quantity import amount, positions, short, size
from nnspec.costs.streaming import cache, decode_sizes
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

SPECS = Path(__file__).parent / "specs" / "hard"
UNCOUNTED = {                       # FLOPs of these paths that torch's counter does not see
    "luong": ["encoder"], "hard/luong": ["encoder"],          # an lstm of several layers is one kernel, mkldnn_rnn_layer
    "hard/mamba": ["ssm.added"],                              # an outer product, which torch multiplies with broadcasting
}
WINDOWED = {"mistral-7b", "gemma2-2b", "hard/gemma2"}        # the counter counts the keys that a window of 4 or 6 hides: let it hide none
IMAGES = {"hard/vit"}               # its positions are those of small images
UNEVEN = {"mixtral-8x7b"}           # its experts are not sent the same number of rows


def at(name: str, sizes: tuple[int, ...]) -> dict[str, int]:
    """Sizes of the free dimensions, no larger than their bounds."""
    limits = {b.symbol: b.limit for b in zoo.model(name).graph.bounds}
    return {s: min(limits.get(s, n), n) for s, n in zip(free_dimensions(zoo.model(name).graph), sizes, strict=False)}


def inputs(name: str, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Random inputs with whole rows, optional ones left out."""
    optional = {a.name for a in zoo.model(name).graph.root.arguments if a.type.optional}
    drawn = zoo.draw(name, sizes, short=False)
    drawn |= {k: np.full_like(v, zoo.longest(k, sizes)) for k, v in drawn.items() if "length" in k}
    return {k: torch.from_numpy(v) for k, v in drawn.items() if k not in optional}


def counted(module: torch.nn.Module, given: dict[str, torch.Tensor]) -> int:
    """FLOPs that torch counts on the module; only its math attention is counted on the CPU."""
    with FlopCounterMode(display=False) as mode, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad():
        module(**given)
    return mode.get_total_flops()


def allocated(module: torch.nn.Module, given: dict[str, torch.Tensor]) -> int:
    """The most bytes that PyTorch holds at once beside what it has before."""
    with torch.inference_mode():
        module(**given)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            module(**given)
    held = np.cumsum([e.nbytes() for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"])
    return int(held.max())


@pytest.mark.parametrize("name", zoo.SPECS)
def test_parameters_and_flops_are_those_that_torch_counts(name):
    model, sizes = zoo.model(name), at(name, (3, 4, 4) if name in WINDOWED else (3, 13, 7))
    module = zoo.stirred(name)
    found = model.cost(**sizes)
    unseen = sum(n for path, n in found.flop_parts if path in UNCOUNTED.get(name, ()))
    assert found.parameters == sum(p.numel() for p in module.parameters())
    assert (unseen > 0) == (name in UNCOUNTED)
    assert found.flops - unseen == counted(module, inputs(name, sizes))


@pytest.mark.parametrize("name", zoo.SPECS)
def test_peak_activations_are_what_pytorch_allocates(name):
    sizes = at(name, (3, 13, 7) if name in IMAGES else (3, 129, 65))
    ours = peak_activation(zoo.model(name).lowered, sizes, "float32").bytes
    real = allocated(zoo.stirred(name), inputs(name, sizes))
    assert abs(ours - real) <= (0.2 if name in UNEVEN else 0.1) * real, f"{ours:,} against {real:,}"


@pytest.mark.parametrize(("name", "sizes"), [("gpt2", {"B": 1, "S": 256}), ("gpt2", {"B": 2, "S": 100}),
                                             ("bert-base", {"B": 1, "S": 512}), ("bert-base", {"B": 3, "S": 200})])
def test_peak_activations_of_whole_models(name, sizes):
    model = nnspec.load(name, {"layers": 3})
    given = {a.name: torch.randint(0, 2, (sizes["B"], sizes["S"])) for a in model.graph.root.arguments if not a.type.optional}
    real = allocated(model.module(seed=0), given)
    assert abs(model.cost("float32", **sizes).peak.bytes - real) <= 0.01 * real


def test_peak_activations_by_hand():
    found = nnspec.load("gpt2").cost("float16", B=1, S=1000)
    row = 1000 * 768 * 2                                    # embed, placed, the last layer and its norm live beside the logits
    assert (found.peak.bytes, found.peak.path) == (4 * row + 1000 * 50257 * 2, "logits")
    assert sum(n for _, n in found.peak.held) == found.peak.bytes
    assert nnspec.load("gpt2", {"layers": 1}).cost(S=1000).peak.bytes == found.peak.bytes


def test_gpt2_and_its_formula():
    found = nnspec.load("gpt2").cost("float32", B=1, S=1024)
    assert (found.parameters, found.flops, found.weight_bytes) == (124_439_808, 291_648_307_200, 497_759_232)
    assert found.formula.evaluate({"B": 2, "S": 10}) == nnspec.load("gpt2").cost(B=2, S=10).flops
    assert sum(n for _, n in found.flop_parts) == found.flops


def test_decoding_by_hand():
    """llama-3-8b: 2 x (matrices read) + 4 x layers x keys x width; a key and a value of 8 heads of 128 a layer."""
    found = nnspec.load("llama-3-8b").cost("bfloat16", B=3, S=8192)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert found.decode_flops == 2 * (32 * layer + 4096 * 128256) + 32 * 4 * 8192 * 4096
    assert found.cache_position == 32 * 2 * 8 * 128 * 2
    assert found.cache_bytes == 3 * 8192 * found.cache_position
    assert found.total_bytes == found.weight_bytes + found.cache_bytes + found.peak.bytes


@pytest.mark.parametrize("name", zoo.SPECS)
def test_decoding_is_that_of_the_whole_step_form(name):
    """Costs are counted on a twin with one copy of each layer; here every layer is derived."""
    try:
        form = zoo.model(name).step_form()
    except nnspec.Diagnostics:
        assert zoo.model(name).cost().decode_flops is None
        return
    sizes = at(name, (1, 13, 7, 5))
    found, length = zoo.model(name).cost("float32", **sizes), sizes[form.along]
    assert found.decode_flops == flops(form.step, decode_sizes(form, length, sizes))
    assert found.cache_bytes == sum(n for _, n in cache(form, sizes, 4).held(length))
    assert found.cache_position == sum(n for _, n, kept in cache(form, sizes, 4).parts if kept != 0)


def test_a_window_bounds_the_cache_and_the_keys():
    near, at_end, beyond = (nnspec.load("mistral-7b").cost(S=n) for n in (1000, 4096, 20000))
    assert near.cache_bytes == 1000 * near.cache_position and near.cache_position == beyond.cache_position
    assert at_end.cache_bytes == beyond.cache_bytes == 4096 * near.cache_position
    assert at_end.decode_flops == beyond.decode_flops > near.decode_flops


SEEN = """
nnspec: 1
inputs: {bank: "float[B, S <= 200, 8]", tokens: "int64[B, T]"}
graph:
  embed: {op: embedding, in: tokens, entries: 31, width: 8}
  mixed: {repeat: 2, block: mix, in: embed, width: 8 + 8 * i}
  near: {op: einsum, in: [mixed, bank], as: "b t m, b s m -> b t s"}
  total: {op: cumsum, in: near, axis: 1}
outputs: [total]
blocks:
  mix:
    settings: {width: int}
    inputs: {in: "float[B, T, D]"}
    graph:
      up: {op: linear, in: in, width: width}
      down: {op: linear, in: up, width: D}
"""


def test_a_state_over_a_memory_of_free_size_and_copies_of_several_shapes(tmp_path):
    (tmp_path / "seen.yaml").write_text(SEEN)
    model = nnspec.load(tmp_path / "seen.yaml")
    assert model.cost(B=3, S=50, T=7).cache_bytes == 3 * 4 * 50                # sums are in float32
    assert dict(model.cost(B=1, S=50, T=7).flop_parts) == {
        "mixed.{i}.up": 2 * 7 * 8 * (8 + 16), "mixed.{i}.down": 2 * 7 * 8 * (8 + 16), "near": 2 * 7 * 50 * 8}
    assert model.streaming("T").endswith(f"{model.cost(S=200, T=1024).decode_flops:,} FLOPs at T=1024, S=200\n")


def test_a_model_that_cannot_be_run_step_by_step_has_no_cache():
    found = nnspec.load("bert-base").cost()
    assert found.decode_flops is None and found.cache_bytes is None and found.cache_position is None
    assert found.total_bytes == found.weight_bytes + found.peak.bytes


def test_a_scan_counts_its_steps():
    model = nnspec.load(f"{SPECS}/luong.yaml")
    one, many = model.cost(B=2, S=5, T=1).flops, model.cost(B=2, S=5, T=9).flops
    step = model.cost(B=2, S=5, T=2).flops - one
    assert step > 0 and many - one == 8 * step


def test_routed_copies_count_what_a_row_is_sent_to(tmp_path):
    text = """
nnspec: 1
inputs: {{x: "float[B, 6]"}}
graph:
  chance: {{op: softmax, in: {{op: linear, in: x, width: 4, bias: false}}}}
  pick: {{op: top_k, in: chance, k: {k}}}
  mix: {{branch: 4, block: expert, in: x, route: {{weights: pick.values, indices: pick.indices}}}}
outputs: [mix]
blocks:
  expert: {{inputs: {{in: "float[N, D]"}}, graph: {{y: {{op: linear, in: in, width: 6, bias: false}}}}}}
"""
    for k in (1, 2, 4):
        path = tmp_path / f"{k}.yaml"
        path.write_text(text.format(k=k))
        found = nnspec.load(path).cost(B=5)
        assert found.flops == 2 * 5 * 6 * 4 + k * 2 * 5 * 6 * 6
        assert (found.parameters, found.active) == (24 + 4 * 36, 24 + k * 36)


def test_unknown_dimensions_and_sizes_beyond_bounds_are_named():
    with pytest.raises(nnspec.Diagnostics) as found:
        nnspec.load("gpt2").cost(T=3, S=1025)
    assert [(d.code, d.headline) for d in found.value.items] == [
        ("unknown-name", "the model has no free dimension `T`"), ("bad-attribute", "`S` is at most 1,024 in this model, not 1,025")]
    assert found.value.items[1].labels[0].span.text == "S <= positions"


def test_a_window_counts_the_keys_that_it_shows():
    paths = ("models/gpt2.yaml", "variants/gpt2-rotary.yaml")
    plain, windowed = (nnspec.load(SPECS.parent.parent.parent / "specs" / path) for path in paths)
    assert plain.cost(S=1024).flops - windowed.cost(S=1024).flops == 12 * 4 * 1024 * (1024 - 256) * 768
    assert windowed.cost(S=100).flops == plain.cost(S=100).flops


def test_numbers_as_people_write_them():
    assert [size(t) for t in ("512", "2k", "1M", "1_000", "1.5k")] == [512, 2048, 2**20, 1000, 1536]
    assert [amount(t) for t in ("7e9", "125M", "2GiB", "16 GB", "3k")] == [7 * 10**9, 125 * 10**6, 2**31, 16 * 10**9, 3000]
    for wrong in ("", "k", "-3", "2kk", "1.3", "2KiB", "0x10"):
        with pytest.raises(ValueError):
            size(wrong)
    assert [short(n) for n in (999, 1000, 124_439_808, 5 * 10**18)] == ["999", "1.000 K", "124.4 M", "5.000 E"]
    assert [positions(n) for n in (512, 2048, 3000, 2**20)] == ["512", "2k", "3000", "1M"]


@pytest.fixture
def run(capsys):
    def go(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["cost", *arguments])
        told = capsys.readouterr()
        return int(done.value.code or 0), told.out, told.err
    return go


def rows(text: str) -> dict[str, list[str]]:
    """The numbers of each row of a report, by label."""
    return {parts[0]: parts[1:] for line in text.splitlines() if len(parts := [p for p in line.strip().split("  ") if p]) > 1}


def test_the_command_prints_a_column_for_each_at(run):
    code, out, _ = run("llama-3-8b", "--at", "B=1,S=2k", "--at", "B=8,S=8k,dtype=float32")
    found = {k: [v.strip() for v in cells] for k, cells in rows(out).items()}
    assert code == 0
    assert found["cache"] == ["256.0 MiB", "16.00 GiB"] and found["weights"] == ["14.96 GiB", "29.92 GiB"]
    assert found["FLOPs of a pass (prefill)"] == ["32.94 T", "1.265 P"]


def test_the_command_says_why_there_is_no_cache(run):
    code, out, _ = run("bert-base", "--by", "path", "--symbolic")
    assert code == 0 and "cannot be run step by step (the model has no axis that is causal)" in " ".join(out.split())
    assert "FLOPs of a pass = " in out and "activations held at layers.{i}.ffn.down" in out


@pytest.mark.parametrize("spec", ["gpt2", "mixtral-8x7b", "t5-small", "additive-seq2seq", "whisper-tiny"])
def test_reports_fit_100_columns(run, spec):
    outs = [run(spec, *more) for more in ([], ["--by", "path", "--symbolic"], ["--at", "B=1"] * 9, ["--sweep", "B=1,2,64k"])]
    assert all(code == 0 for code, _, _ in outs)
    assert max(len(line) for _, out, _ in outs for line in out.splitlines()) <= 100


def test_a_sweep_has_a_row_for_each_size(run):
    code, out, _ = run("gpt2", "--sweep", "S=1k,128,512", "--at", "B=2")
    table = [line.split() for line in out.splitlines()[2:]]
    assert code == 0 and [row[0] for row in table] == ["128", "512", "1k"]
    assert table[2][1:3] == ["583.3", "G"]                  # twice that of one row


@pytest.mark.parametrize(("arguments", "told"), [
    (["--sweep", "S=2k"], "`S` is at most 1,024 in this model, not 2,048"), (["--at", "S=x"], "`--at S=x` is not DIM=N"),
    (["--at", "S=0"], "the least is 1"), (["--at", "S=3,S=4"], "says `S` twice"), (["--at", "dtype=int8"], "is not one of float32"),
    (["--sweep", "S="], "names no sizes"), (["--sweep", "S=8", "--at", "S=9"], "`S` is swept"),
    (["--sweep", "S=8", "--by", "path"], "go with one `--at`"), (["--plot", "x.gif"], "another ending"),
    (["--budget", "flops"], "is not NAME=LIMIT"), (["--budget", "flop=3"], "`budget` has no key `flop`")])
def test_what_the_command_refuses(run, arguments, told):
    code, _, err = run("gpt2", *arguments)
    assert code == 2 and told in err and "Traceback" not in err


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
@pytest.mark.parametrize("spec", ["gpt2", "bert-base", "additive-seq2seq"])
def test_a_picture_is_drawn(run, tmp_path, spec, ending, start):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"costs.{ending}"
    code, out, _ = run(spec, "--plot", str(picture))
    assert code == 0 and f"wrote {picture}" in out and picture.read_bytes().startswith(start)


def test_a_picture_without_a_folder(run, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = run("gpt2", "--plot", str(tmp_path / "no" / "costs.png"))
    assert code == 2 and "error[cannot-write]" in err


def test_a_picture_without_its_package(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run("gpt2", "--plot", str(tmp_path / "costs.png"))
    assert code == 2 and "error[missing-package]" in err and "pip install matplotlib" in err and not list(tmp_path.iterdir())


def test_nothing_heavy_is_imported():
    code = ("import sys\nfrom nnspec.cli import main\ntry:\n    main(['cost', 'gpt2', '--sweep', 'S=8,16', '--budget', 'flops=1e15'])\n"
            "except SystemExit as done:\n    assert not done.code\n"
            "print(sorted({'torch', 'onnx', 'onnxruntime', 'numpy', 'matplotlib'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
