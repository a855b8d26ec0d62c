"""Decoding on the CPU, every contender in turn within each round: our step form, the model that ONNX Runtime GenAI's builder makes of
the same weights in its own engine, and transformers eager with its cache. All give the same greedy tokens, which is checked first."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nnspec
import numpy as np
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate

MODELS = {                              # of a public Llama's config
    "llama-tiny": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 352,
                   "vocab_size": 1000},
    "llama-100M": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
                   "intermediate_size": 2048, "vocab_size": 16000},
}
PROMPT, NEW, ROUNDS = 128, 64, 9
VERSION = "0.18.*"
WORKER = '''
import json, sys, time
import numpy as np, onnxruntime_genai as og
model = og.Model(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(job["ids"]) + job["new"], min_length=len(job["ids"]) + job["new"], do_sample=False)
    generator = og.Generator(model, parameters)
    start = time.perf_counter()
    generator.append_tokens(np.array([job["ids"]], np.int32))
    generator.generate_next_token()
    first = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
    end = time.perf_counter()
    tokens = list(map(int, generator.get_sequence(0)))[len(job["ids"]):]
    print(json.dumps({"prefill": first - start, "decode": end - first, "tokens": tokens}), flush=True)
'''


def checkpoint(folder: Path, sizes: dict[str, int]) -> Any:
    """A random Llama of transformers with a tokenizer, which the builder insists on, saved as public checkpoints are."""
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
                                      pad_token_id=0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)               # no two scores are close
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(sizes["vocab_size"])}
    transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), eos_token="w2",
                                         pad_token="w0").save_pretrained(folder)
    return model


def engine() -> Path:
    """The Python of an environment with onnxruntime-genai, and everything of this one behind it."""
    place = Path("build") / "bench-genai"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        venv.create(place, clear=True)
        subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", f"onnxruntime-genai=={VERSION}"], check=True)
        ours = [p for p in sys.path if p.endswith("site-packages")]
        packages = next((place / "lib").glob("python*/site-packages"))
        (packages / "zz-behind.pth").write_text("\n".join(ours) + "\n")
        (place / "ready").touch()
    return python


class GenAI:
    """The builder's model in its own engine, a process that answers one job a line."""

    def __init__(self, folder: Path, scratch: Path):
        python = engine()
        subprocess.run([python, "-m", "onnxruntime_genai.models.builder", "-i", folder, "-o", scratch, "-p", "fp32", "-e", "cpu",
                        "-c", scratch / "cache"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen([python, "-c", WORKER, scratch], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None and self.process.stdout.readline().strip() == "ready", "the engine does not start"

    def __call__(self, ids: list[int], new: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"ids": ids, "new": new}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


class Ours:
    """The step form, with threads that wait busily as the engine's do."""

    def __init__(self, folder: Path, scratch: Path):
        nnspec.load(folder).export(scratch, weights=folder, form="step", certify="none", without=("keep",))
        self.model = decoder(scratch, spin=True)

    def __call__(self, ids: list[int], new: int) -> dict[str, Any]:
        times = [time.perf_counter()]
        made = generate(self.model, ids, max_new_tokens=new, callback=lambda _: times.append(time.perf_counter()))
        return {"prefill": times[1] - times[0], "decode": times[-1] - times[1], "tokens": made.tokens[0].tolist()}


class Eager:
    """transformers with its cache."""

    def __init__(self, model: Any):
        self.model = model

    def __call__(self, ids: list[int], new: int) -> dict[str, Any]:
        import torch
        times, tokens, cache = [time.perf_counter()], [], None
        given = torch.tensor([ids])
        with torch.no_grad():
            for _ in range(new):
                out = self.model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, given = out.past_key_values, out.logits[:, -1:].argmax(-1)
                tokens.append(int(given))
                times.append(time.perf_counter())
        return {"prefill": times[1] - times[0], "decode": times[-1] - times[1], "tokens": tokens}


def compare_decoding(names: list[str] | None = None) -> Iterator[tuple[str, dict[str, float]]]:
    """(model and phase, our speed / that of each other contender); prints tokens a second and milliseconds behind the ratios."""
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "hub"
            contenders: dict[str, Any] = {"eager": Eager(checkpoint(folder, MODELS[name])), "ours": Ours(folder, Path(scratch) / "ours")}
            try:
                contenders["genai"] = GenAI(folder, Path(scratch) / "genai")
            except (subprocess.CalledProcessError, AssertionError, OSError) as lost:
                print(f"  {name}: no model of the builder: {lost}")
            yield from _rounds(name, contenders)


def _rounds(name: str, contenders: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    ids = np.random.default_rng(3).integers(3, MODELS[name]["vocab_size"], PROMPT).tolist()
    first = {who: run(ids, NEW)["tokens"] for who, run in contenders.items()}
    for who, tokens in first.items():
        assert tokens == first["eager"], f"{who} gives other tokens: {tokens[:8]} and {first['eager'][:8]}"
    found: dict[str, dict[str, list[float]]] = {who: {"prefill": [], "decode": []} for who in contenders}
    for _ in range(ROUNDS):
        for who, run in contenders.items():
            made = run(ids, NEW)
            for phase in ("prefill", "decode"):
                found[who][phase].append(made[phase])
    for phase, tokens in (("prefill", PROMPT), ("decode", NEW - 1)):
        speeds = {who: tokens / statistics.median(times[phase]) for who, times in found.items()}
        print(f"  {name} {phase}: " + ", ".join(f"{who} {speed:,.0f} tokens/s" for who, speed in speeds.items()))
        yield f"{name} {phase}", {who: speeds["ours"] / speed for who, speed in speeds.items() if who != "ours"}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for point, ratios in compare_decoding(sys.argv[1:] or None):
        print(point, {k: round(v, 2) for k, v in ratios.items()})
