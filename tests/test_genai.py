"""Exports for ONNX Runtime GenAI: its own engine, in an environment of its own, gives the tokens of the PyTorch module."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import nnspec
import numpy as np
import pytest
import torch
import zoo
from nnspec import runtime
from nnspec.cli import main
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime.data import random_inputs
from nnspec.runtime.errors import ArtifactErrors
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
OWN = HERE / "specs" / "decoders" / "sandwich-alibi.yaml"
SPECS = ["gpt2", "llama-3-8b", "mistral-7b", "qwen3-0.6b", "sandwich-alibi"]
PAD, LENGTH = 40, 15                    # an id that no prompt holds; mistral's window is 4
PROMPTS = [[[7, 3, 19, 3, 2]], [[5, 1, 4, 1, 5], [9, 2, PAD, PAD, PAD], [6, 5, 3, 0, PAD]]]


def made(name):
    """The model and its module, with weights away from their starts."""
    if name != "sandwich-alibi":
        return zoo.model(name), zoo.stirred(name)
    model = nnspec.load(OWN)
    return model, zoo.stir(model.module(seed=1))


@pytest.fixture(scope="session")
def python():
    """The Python of an environment with onnxruntime-genai, which cannot share one with onnxruntime-gpu. Made once, kept in build/."""
    place = HERE.parent / "build" / "genai"
    if not (place / "ready").exists():
        scratch = place.with_name(f"genai.{os.getpid()}")
        shutil.rmtree(scratch, ignore_errors=True)
        venv.create(scratch)
        install = [sys.executable, "-m", "pip", "--python", str(scratch / "bin" / "python"), "install", "-q", "onnxruntime-genai==0.18.*"]
        try:
            subprocess.run(install, check=True, capture_output=True, text=True, timeout=300)
        except subprocess.CalledProcessError as failed:
            shutil.rmtree(scratch)
            pytest.skip(f"pip cannot fetch onnxruntime-genai: {failed.stderr.strip().splitlines()[-1]}")
        (scratch / "ready").touch()
        try:
            scratch.rename(place)
        except OSError:                     # another process was faster
            shutil.rmtree(scratch)
    return place / "bin" / "python"


def engine(python, jobs):
    done = subprocess.run([python, HERE / "genai_tokens.py"], input=json.dumps(jobs), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def greedy(module, prompts, steps):
    """New ids of every row, each row decoded alone by the whole module; PAD ends a row, and fills it up."""
    rows = []
    for prompt in prompts:
        ids = [t for t in prompt if t != PAD]
        start = len(ids)
        for _ in range(steps):
            with torch.no_grad():
                ids.append(PAD if ids[-1] == PAD else int(module(torch.tensor([ids]))[0, -1].argmax()))
        rows.append(ids[start:])
    return rows


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One export of each spec; its certificate compares it with PyTorch too."""
    where = tmp_path_factory.mktemp("genai")
    found = {}
    for name in SPECS:
        model, module = made(name)
        found[name] = model.export(where / name, weights=module, target="genai", stop=(PAD,))
    return where, found


def test_tokens_of_the_engine_are_those_of_pytorch(python, folders):
    where, _ = folders
    jobs = [{"folder": str(where / name), "prompts": prompts, "length": LENGTH} for name in SPECS for prompts in PROMPTS]
    results = iter(engine(python, jobs))
    for name in SPECS:
        module, seen = made(name)[1], set()
        for prompts in PROMPTS:
            want = greedy(module, prompts, LENGTH - len(prompts[0]))
            assert [row[len(prompts[0]):] for row in next(results)] == want, (name, prompts)
            seen |= {t for row in want for t in row}
        assert len(seen) >= 4, name         # it does not say the same again and again


@pytest.mark.parametrize("name", ["llama-3-8b", "mistral-7b", "sandwich-alibi"])
def test_a_text_that_goes_on(python, folders, name):
    """Several ids at once behind kept ones, as in a second turn."""
    module, more = made(name)[1], [8, 2, 11]
    got = engine(python, [{"folder": str(folders[0] / name), "prompts": PROMPTS[0], "length": LENGTH, "more": more}])[0][0]
    said = PROMPTS[0][0] + greedy(module, PROMPTS[0], 2)[0] + more
    end = greedy(module, [said], LENGTH - len(said))[0]
    assert got == said + (end[:end.index(PAD)] if PAD in end else end)         # the id that ends a single row is not kept


@pytest.mark.parametrize("name", ["gemma2-2b", "bloom-560m", "mixtral-8x7b", "pythia-160m", "hard/padding"])
def test_more_models(tmp_path, name):
    assert zoo.model(name).export(tmp_path, weights=zoo.stirred(name), target="genai", stop=(3,)).certificate["status"] == "passed"


@pytest.mark.parametrize("name", SPECS)
def test_certificates(folders, name):
    manifest = folders[1][name]
    assert (manifest.form, manifest.target, manifest.certificate["status"]) == ("genai", "ort-cpu", "passed")
    assert manifest.certificate["max_rel"] < 1e-4


def test_a_row_ends_at_a_stop_id(python, folders, tmp_path):
    model, module = made("gpt2")
    want = greedy(module, PROMPTS[0], 8)[0]
    stop = next(t for t in want[1:] if t not in PROMPTS[0][0])
    model.export(tmp_path / "out", weights=module, target="genai", stop=(stop,), certify="none")
    got = engine(python, [{"folder": str(tmp_path / "out"), "prompts": PROMPTS[0], "length": LENGTH}])[0][0]
    assert got[len(PROMPTS[0][0]):] in (want[:want.index(stop) + 1], want[:want.index(stop)])


def test_the_config(tmp_path):
    model, module = made("llama-3-8b")
    model.export(tmp_path, weights=module, target="genai", stop=(5, 7), certify="none")
    told = json.loads((tmp_path / "genai_config.json").read_text())["model"]
    assert (told["vocab_size"], told["eos_token_id"], told["pad_token_id"], told["context_length"]) == (47, [5, 7], 5, 8192)
    decoder = told["decoder"]
    assert (decoder["head_size"], decoder["num_key_value_heads"], decoder["num_hidden_layers"]) == (8, 2, 2)
    assert decoder["session_options"]["provider_options"] == []
    session = runtime.open(tmp_path)._session
    names = {x.name for x in session.get_inputs()}
    assert {decoder["inputs"]["past_key_names"] % 1, decoder["inputs"]["past_value_names"] % 0} < names


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_for_cuda(tmp_path, dtype):
    model, module = made("qwen3-0.6b")
    manifest = model.export(tmp_path, weights=module, target="genai", dtype=dtype, stop=(3,), pad=4)
    told = json.loads((tmp_path / "genai_config.json").read_text())
    assert told["model"]["decoder"]["session_options"]["provider_options"] == [{"cuda": {}}]
    assert (told["model"]["eos_token_id"], told["model"]["pad_token_id"]) == ([3], 4)
    assert (manifest.target, manifest.dtype, manifest.certificate["status"]) == ("ort-cuda", dtype, "passed")
    assert {x.dtype for x in manifest.inputs if x.name.startswith("past_")} == {dtype}


def test_halves_on_the_cpu_when_asked(python, tmp_path):
    model, module = made("gpt2")
    manifest = model.export(tmp_path, weights=module, target="genai", dtype="float16", device="cpu", stop=(PAD,))
    assert (manifest.target, manifest.certificate["status"]) == ("ort-cpu", "passed")
    got = engine(python, [{"folder": str(tmp_path), "prompts": PROMPTS[0], "length": 7}])[0][0]
    assert got[5:] == greedy(module, PROMPTS[0], 2)[0]


def test_the_folder_runs_with_random_inputs(folders):
    artifact = runtime.open(folders[0] / "gpt2")
    arrays = random_inputs(artifact.manifest, {"P": 3}, seed=4)
    out = artifact(**arrays)
    rows, new = arrays["input_ids"].shape
    assert arrays["attention_mask"].shape == (rows, 3 + new)
    assert out["present.1.key"].shape == (rows, 3, 3 + new, 8)
    assert np.array_equal(out["present.1.key"][:, :, :3], arrays["past_key_values.1.key"])


def test_tokenizer_files(tmp_path):
    model, module = made("gpt2")
    source = tmp_path / "tokenizer"
    source.mkdir()
    (source / "tokenizer.json").write_text('{"model": "größe"}')
    (source / "tokenizer_config.json").write_text("{}")
    for given in (source, source / "tokenizer.json"):
        model.export(tmp_path / "out", weights=module, target="genai", stop=(3,), tokenizer=given, certify="none")
        assert json.loads((tmp_path / "out" / "tokenizer.json").read_text("utf-8")) == {"model": "größe"}
        assert (tmp_path / "out" / "tokenizer_config.json").read_text() == "{}"
        shutil.rmtree(tmp_path / "out")


def test_the_engine_reads_the_tokenizer(python, tmp_path):
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    words.train_from_iterator(["the cat sat on the mat", "the dog sat on the log"], trained)
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>"}))
    model = nnspec.load("gpt2", sizes=zoo.MODELS["gpt2"] | {"vocab": 300})
    model.export(tmp_path / "out", init=1, target="genai", stop=(0,), tokenizer=tmp_path, certify="none")
    long, short = (words.encode(text).ids for text in ("the cat sat on the log", "dog"))
    got = engine(python, [{"folder": str(tmp_path / "out"), "texts": ["the cat sat on the log", "dog"]}])[0]
    assert len(long) > len(short) and got == [long, short + [0] * (len(long) - len(short))]


@pytest.mark.parametrize("text", [None, "{", b"\xff\xfe"])
def test_what_is_no_tokenizer(tmp_path, text):
    if text is not None:
        (tmp_path / "tokenizer.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Diagnostics) as caught:
        made("gpt2")[0].export(tmp_path / "out", init=0, target="genai", stop=(3,), tokenizer=tmp_path)
    assert [d.code for d in caught.value.items] == ["bad-path"]
    assert not (tmp_path / "out").exists()


def test_an_export_of_another_kind_takes_its_config_away(tmp_path):
    model, module = made("gpt2")
    model.export(tmp_path, weights=module, target="genai", stop=(PAD,), certify="none")
    model.export(tmp_path, weights=module, certify="none")
    assert not (tmp_path / "genai_config.json").exists()
    assert runtime.open(tmp_path).manifest.form == "full"


@pytest.mark.parametrize("name, why", [
    ("bert-base", None), ("additive-seq2seq", "prefix model"), ("hard/mamba", None), ("vit-base-patch16-224", None), ("t5-small", None)])
def test_what_is_no_decoder(tmp_path, name, why):
    with pytest.raises(Diagnostics) as caught:
        zoo.model(name).export(tmp_path / "out", init=0, target="genai", stop=(3,))
    assert {d.code for d in caught.value.items} == {"cannot-stream"}
    assert all(d.labels for d in caught.value.items)
    assert why is None or any(why in d.headline for d in caught.value.items)
    assert not (tmp_path / "out").exists()


BOTH = """
nnspec: 1
inputs: {x: "float[B, S, 8]"}
graph:
  q: {op: rearrange, in: x, as: "b s (h d) -> b h s d", h: 2}
  a: {op: attention, query: q, key: q, value: q, causal: true}
  out: {op: cumsum, in: x, axis: 1}
  w: {op: rearrange, in: a, as: "b h s d -> b s (h d)"}
outputs: {w: w, out: out}
"""


def test_all_that_is_in_the_way_is_told_at_once(tmp_path):
    (tmp_path / "spec.yaml").write_text(BOTH.lstrip())
    with pytest.raises(Diagnostics) as caught:
        nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "out", init=0, target="genai", stop=(3,))
    assert [d.headline.partition(": ")[2][:8] for d in caught.value.items] == ["it takes", "it gives", "it carri"]


def test_copies_of_a_layer_are_told_once(tmp_path):
    with pytest.raises(Diagnostics) as caught:
        zoo.model("hard/mla").export(tmp_path / "out", init=0, target="genai", stop=(3,))
    (found,) = caught.value.items
    assert found.headline.endswith("the keys and values of `layers.*.attention.attend` are computed from what is kept")
    assert "op: attention" in found.labels[0].span.source.text.splitlines()[found.labels[0].span.line - 1]


@pytest.mark.parametrize("arguments, told", [
    (["--stop", "99"], "`--stop 99` is no id of this model"),
    (["--pad", "-1"], "`--pad -1` is no id of this model"),
    (["--form", "step", "--prove"], "`--form`, `--without` and `--attention` do not go with"),
    (["--tokenizer", "gone"], "there is no tokenizer `gone`"),
    (["--max-batch", "4"], "`--max-batch` goes with"),
    (["--dtype", "bfloat16", "--device", "cpu"], "bfloat16 runs on CUDA only"),
])
def test_bad_commands(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    sizes = [f"--set={k}={v}" for k, v in zoo.MODELS["gpt2"].items()]
    with pytest.raises(SystemExit) as done:
        main(["export", "gpt2", *sizes, "--init", "0", "--target", "genai", "-o", "out", "--stop", "3", *arguments])
    assert done.value.code == 2 and told in capsys.readouterr().err
    assert not Path("out").exists()


def test_the_end_of_a_text_must_be_told(tmp_path):
    with pytest.raises(Diagnostics, match="which id ends a text"):
        zoo.model("gpt2").export(tmp_path / "out", init=0, target="genai")


def test_options_of_genai_go_with_it(tmp_path):
    for given in ({"stop": (3,)}, {"pad": 3}, {"tokenizer": tmp_path}, {"device": "cpu"}):
        with pytest.raises(Diagnostics, match="with"):
            zoo.model("gpt2").export(tmp_path / "out", init=0, **given)


def test_a_past_that_does_not_fit_the_mask_is_told(folders):
    artifact = runtime.open(folders[0] / "gpt2")
    arrays = random_inputs(artifact.manifest, {"P": 3}, seed=4)
    arrays["past_key_values.0.key"] = arrays["past_key_values.0.key"][:, :2]
    with pytest.raises(ArtifactErrors, match="past_key_values.0.key"):
        artifact(**arrays)
