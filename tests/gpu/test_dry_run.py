"""ONNX Runtime's CUDA provider over the stand-in device: the kernel of every attention site, and what is left to the CPU.

Sizes are reduced; the widths of heads are those of the models, because kernels are chosen by them. Rows are padded wherever a
spec has lengths.
"""

from pathlib import Path

import nnspec
import pytest
from nnspec.cli import main
from nnspec.prove import Missing, ready
from nnspec.runtime.manifest import read

try:
    ready()
except Missing as missing:
    pytest.skip(f"{missing}: {missing.help}", allow_module_level=True)

HARD = Path(__file__).parents[1] / "specs" / "hard"
SMALL = {"vocab": 97, "width": 128, "layers": 2, "heads": 2}
DECODER = {"vocab": 97, "width": 512, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 96}
SPECS = {                                          # spec, sizes, sites of attention
    "transformer-base": ("transformer-base", SMALL | {"hidden": 96}, 6),
    "bert-base": ("bert-base", SMALL | {"hidden": 96}, 2),
    "gpt2": ("gpt2", SMALL, 2),
    "additive-seq2seq": ("additive-seq2seq", {"source_vocab": 97, "target_vocab": 97, "embed": 24, "hidden": 40, "align": 32}, 0),
    "gemma2": (HARD / "gemma2.yaml", {"head_width": 256, "layers": 4}, 4),
    "t5": (HARD / "t5.yaml", {"layers": 2}, 6),
    "llama-3-8b": ("llama-3-8b", DECODER, 2),
    "mistral-7b": ("mistral-7b", DECODER | {"window": 200}, 2),
}
EVERY = ("transformer-base", "bert-base", "gpt2", "additive-seq2seq", "gemma2", "t5")
CASES = [(name, dtype, ()) for name in EVERY for dtype in ("float32", "float16", "bfloat16")]
CASES += [(name, "float16", ()) for name in ("llama-3-8b", "mistral-7b")]
CASES += [("transformer-base", "float16", ("source_length",)), ("bert-base", "float16", ("length",)), ("gpt2", "float32", ("length",))]
FUSED = {"FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_FLASH_ATTENTION"}


def proof_of(spec, folder, **how):
    return nnspec.load(spec, sizes=how.pop("sizes", {})).export(folder, init=1, target="ort-cuda", certify="none", prove=True, **how).proof


def written(folder, text):
    (folder / "spec.yaml").write_text(text.lstrip())
    return folder / "spec.yaml"


@pytest.mark.parametrize(("name", "dtype", "without"), CASES)
def test_every_attention_site_is_fused_and_nothing_is_left_to_the_cpu(tmp_path, name, dtype, without):
    spec, sizes, count = SPECS[name]
    proof = proof_of(spec, tmp_path / "out", sizes=sizes, dtype=dtype, without=without)
    assert proof["shortfalls"] == [] and proof["status"] == "passed"
    assert len(proof["sites"]) == count
    assert all(len(s["kernels"]) == 2 and set(s["kernels"]) <= FUSED for s in proof["sites"])
    assert [[part.partition("=")[2] for part in case.split()[1:]] for case in proof["cases"]] == [
        [str(n)] * (len(proof["cases"][0].split()) - 1) for n in (128, 511)]


FAMILIES = {
    "mixtral-8x7b": DECODER | {"experts": 4}, "qwen2-0.5b": DECODER, "qwen3-0.6b": DECODER, "gemma-2b": DECODER | {"head_width": 256},
    "gemma2-2b": DECODER | {"head_width": 256, "window": 200}, "phi-2": DECODER | {"width": 320, "kv_heads": 4},
    "pythia-160m": SMALL | {"hidden": 96}, "bloom-560m": SMALL}


@pytest.mark.parametrize("name", FAMILIES)
def test_decoders_are_fused_with_left_padding_and_need_no_mask_without(tmp_path, name):
    """BLOOM's bias is a mask of its own."""
    for without, kernels in (((), {"EFFICIENT"}), (("keep",), {"EFFICIENT"} if name == "bloom-560m" else {"FLASH", "CUDNN"})):
        proof = proof_of(name, tmp_path / str(len(without)), sizes=FAMILIES[name], dtype="float16", without=without)
        assert (proof["shortfalls"], proof["status"]) == ([], "passed")
        assert set(proof["kernels"]) <= kernels and sum(proof["kernels"].values()) == 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["conv_chain", "image_chain", "int_and_bool", "optional_everywhere", "padded_between_convolutions",
                                  "recurrent_stack"])
def test_other_forms_are_taken_where_cuda_has_no_kernel(tmp_path, name, dtype):
    """MaxPool of this opset, Pad of whole numbers, recurrent layers in bfloat16."""
    proof = proof_of(HARD.parent / "compositions" / f"{name}.yaml", tmp_path / "out", dtype=dtype)
    assert (proof["shortfalls"], proof["status"]) == ([], "passed")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_windows_need_no_mask_in_half_precision(tmp_path, dtype):
    """With lengths and without a `keep` mask a window is GroupQueryAttention's own, and the kernel one that takes no mask."""
    spec, sizes, count = SPECS["mistral-7b"]
    proof = proof_of(spec, tmp_path / "out", sizes=sizes, dtype=dtype, without=("keep",))
    assert proof["shortfalls"] == [] and {s["form"] for s in proof["sites"]} == {"GroupQueryAttention"}
    assert set(proof["kernels"]) <= {"FLASH", "CUDNN"} and sum(proof["kernels"].values()) == 2 * count


STEPPED = {"gpt2": SPECS["gpt2"][:2], "llama-3-8b": SPECS["llama-3-8b"][:2], "mistral-7b": SPECS["mistral-7b"][:2],
           "gemma2-2b": ("gemma2-2b", FAMILIES["gemma2-2b"]), "transformer-base": SPECS["transformer-base"][:2],
           "mla": (HARD / "mla.yaml", {}), "t5": SPECS["t5"][:2], "bloom-560m": ("bloom-560m", SMALL),
           "additive-seq2seq": SPECS["additive-seq2seq"][:2], "mamba": (HARD / "mamba.yaml", {})}
LEAN = {"gpt2", "llama-3-8b", "transformer-base"}                # causality alone says what is seen


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", STEPPED)
def test_steps_over_a_cache_are_fused_and_nothing_is_left_to_the_cpu(tmp_path, name, dtype):
    """One and five new positions, over caches of 64, 520 and 2048 slots; those of windows are rings."""
    spec, sizes = STEPPED[name]
    proof = proof_of(spec, tmp_path / "out", sizes=sizes, dtype=dtype, form="step")
    assert (proof["shortfalls"], proof["status"]) == ([], "passed")
    assert [part for case in proof["cases"] for part in case.split() if part.startswith("N=")] == ["N=1", "N=5", "N=1"]
    assert all(len(s["kernels"]) == 3 and set(s["kernels"]) <= FUSED for s in proof["sites"])
    if name in LEAN:
        assert set(proof["kernels"]) <= ({"EFFICIENT"} if dtype == "float32" else {"FLASH", "CUDNN"})


ATTENDS = """
nnspec: 1
inputs: {x: "float[B, S, 24]"}
graph:
  heads: {op: rearrange, in: x, as: "b s (h d) -> b h s d", h: 2}
  attended: {op: attention, query: heads, key: heads, value: heads}
outputs: [attended]
"""
GRU = """
nnspec: 1
inputs: {x: "float[B, S, 8]", length: "optional int64[B]"}
graph: {states: {op: gru, in: x, length: length, hidden: 8, layers: 2, direction: both, reset: before}}
outputs: {states: states, last: states.state}
"""


def test_a_form_that_is_not_fused_after_all_is_found(tmp_path, monkeypatch):
    """Heads of width 12 taken as they are: no fused kernel of ONNX Runtime has them."""
    spec = written(tmp_path, ATTENDS)
    assert proof_of(spec, tmp_path / "wide")["status"] == "passed"
    monkeypatch.setattr("nnspec.ops.attention_forms._why_not_as_it_is", lambda op, site: None)
    proof = proof_of(spec, tmp_path / "plain")
    assert proof["status"] == "failed" and proof["kernels"] == {"MATH": 2}
    assert proof["shortfalls"] == [f"`attended` (spec.yaml:5) gets MATH at B=3 S={n}" for n in (128, 511)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("without", [(), ("length",)])
def test_a_gru_that_resets_before_the_product_is_a_loop_on_cuda(tmp_path, dtype, without):
    proof = proof_of(written(tmp_path, GRU), tmp_path / "out", dtype=dtype, without=without)
    assert (proof["shortfalls"], proof["status"]) == ([], "passed")


@pytest.fixture
def native_gru(monkeypatch):
    """The kernel whatever it does: ONNX Runtime has one for CUDA only in the variant that resets after the product."""
    monkeypatch.setattr("nnspec.ops.recurrent._why_not_cuda", lambda op, site: None)


def test_a_node_on_the_cpu_is_found(tmp_path, native_gru):
    spec = written(tmp_path, GRU)
    proof = proof_of(spec, tmp_path / "out")
    assert proof["status"] == "failed"
    assert {s.split()[0] for s in proof["shortfalls"]} >= {"GRU"}


def test_the_command_prints_the_proof_and_keeps_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, ATTENDS)
    with pytest.raises(SystemExit) as done:
        main(["export", "spec.yaml", "--init", "1", "-o", "out", "--target", "ort-cuda", "--dtype", "float16", "--prove"])
    assert done.value.code == 0
    proof = read("out").proof
    assert proof["status"] == "passed" and proof["how"] in ("ran", "selected (dry run)") and sum(proof["kernels"].values()) == 2
    kernels = ", ".join(f"{kernel} x{n}" for kernel, n in proof["kernels"].items())
    assert f"proof passed: {kernels} {proof['how']}, {proof['runtime']}, at B=3 S=128 and B=3 S=511\n" in capsys.readouterr().out


def test_a_failed_proof_exits_1(tmp_path, monkeypatch, capsys, native_gru):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, GRU)
    with pytest.raises(SystemExit) as done:
        main(["export", "spec.yaml", "--init", "1", "-o", "out", "--target", "ort-cuda", "--certify", "none", "--prove"])
    assert done.value.code == 1
    assert "proof failed: no attention kernels" in capsys.readouterr().out


MIXTRAL = """
nnspec: 1
use: [attention, layers, ffn, positions]
sizes: {width: 64, layers: 2, heads: 4, experts: 4}
inputs: {tokens: "int64[B, S]"}
graph:
  embed: {op: embedding, in: tokens, entries: 97, width: width}
  layers:
    repeat: layers
    block: pre_norm_layer
    in: embed
    norm: {op: rms_norm, eps: 1e-6}
    attention: {block: multi_head_attention, heads: heads, causal: true, bias: false, position: rope}
    ffn: {block: sparse_ffn, experts: experts, top_k: 2, expert: {block: gated_ffn, hidden: 96, activation: silu, bias: false}}
outputs: {out: layers}
expect: {moe: fused}
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_mixture_of_experts_is_one_node_on_cuda(tmp_path, dtype):
    """A MoE node on the CPU would be a shortfall: it gives more than sizes."""
    proof = proof_of(written(tmp_path, MIXTRAL), tmp_path / "out", dtype=dtype)
    assert proof["shortfalls"] == [] and proof["status"] == "passed"
    assert [(s["op"], s["form"]) for s in read(tmp_path / "out").sites if s["op"] == "moe"] == [("moe", "MoE")] * 2
