"""Decoding on the CPU, every contender in a process of its own and in turn within each round: our step form, the model that ONNX Runtime
GenAI's builder makes of the same weights in its own engine, and transformers eager with its cache.

All give the same greedy tokens, which is checked first. Prefill is from a prompt to its first new token.
"""

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

MODELS = {                              # of a public Llama's config
    "llama-tiny": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 352,
                   "vocab_size": 1000},
    "llama-100M": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
                   "intermediate_size": 2048, "vocab_size": 16000},
}
ROUNDS = {"llama-tiny": 40, "llama-100M": 5}
PROMPTS, NEW = (128, 512), 256
PAUSE = 0.05                            # seconds, in which the threads of the one before stop waiting busily
VERSION = "0.18.*"
# what each contender runs in a process of its own: a job of ids and a count a line, times and tokens a line back
LOOP = '''
import json, sys, time
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    times = [time.perf_counter()]
    tokens = run(job["ids"], job["new"], lambda: times.append(time.perf_counter()))
    print(json.dumps({"prefill": times[1] - times[0], "decode": times[-1] - times[1], "tokens": tokens}), flush=True)
'''
GENAI = '''
import sys
import numpy as np, onnxruntime_genai as og
model = og.Model(sys.argv[1])

def made(length, new):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=length + new, min_length=length + new, do_sample=False)
    return og.Generator(model, parameters)

held = {}                                                        # what holds the state is used again: making it takes longer than a prompt

def run(ids, new, tick):
    if len(ids) not in held:
        held[len(ids)] = made(len(ids), new)
    generator = held[len(ids)]
    generator.rewind_to(0)
    generator.append_tokens(np.array([ids], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
        tick()
    return list(map(int, generator.get_sequence(0)))[len(ids):]
'''
OURS = '''
import sys
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate
model = decoder(sys.argv[1], spin=True)                            # threads wait busily, as the engine's do

def run(ids, new, tick):
    return generate(model, ids, max_new_tokens=new, callback=lambda _: tick()).tokens[0].tolist()
'''
EAGER = '''
import sys
import torch, transformers
model = transformers.LlamaForCausalLM.from_pretrained(sys.argv[1]).eval()

def run(ids, new, tick):
    tokens, cache, given = [], None, torch.tensor([ids])
    with torch.no_grad():
        for _ in range(new):
            out = model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, given = out.past_key_values, out.logits[:, -1:].argmax(-1)
            tokens.append(int(given))
            tick()
    return tokens
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


class Contender:
    """A process that answers one job a line."""

    def __init__(self, python: Path | str, code: str, *arguments: Any):
        self.process = subprocess.Popen([python, "-W", "ignore", "-c", code + LOOP, *map(str, arguments)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None and self.process.stdout.readline().strip() == "ready", "it does not start"

    def __call__(self, ids: list[int], new: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"ids": ids, "new": new}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def contenders(name: str, scratch: Path) -> dict[str, Contender]:
    """The processes by name; the builder's is left out, with a word, where its wheel cannot be had."""
    folder = scratch / "hub"
    checkpoint(folder, MODELS[name])
    nnspec.load(folder).export(scratch / "ours", weights=folder, form="step", certify="none")
    made = {"eager": Contender(sys.executable, EAGER, folder), "ours": Contender(sys.executable, OURS, scratch / "ours")}
    try:
        python = engine()
        subprocess.run([python, "-m", "onnxruntime_genai.models.builder", "-i", folder, "-o", scratch / "genai", "-p", "fp32", "-e", "cpu",
                        "-c", scratch / "cache"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        made["genai"] = Contender(python, GENAI, scratch / "genai")
    except (subprocess.CalledProcessError, AssertionError, OSError) as lost:
        print(f"  {name}: no model of the builder: {lost}")
    return made


def compare_decoding(names: list[str] | None = None) -> Iterator[tuple[str, dict[str, float]]]:
    """(model and phase, our speed / that of each other contender); prints tokens a second and milliseconds behind the ratios."""
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            made = contenders(name, Path(scratch))
            try:
                for prompt in PROMPTS:
                    yield from _rounds(name, made, prompt)
            finally:
                for one in made.values():
                    one.end()


def _rounds(name: str, contenders: dict[str, Any], prompt: int) -> Iterator[tuple[str, dict[str, float]]]:
    ids = np.random.default_rng(3).integers(3, MODELS[name]["vocab_size"], prompt).tolist()
    first = {who: run(ids, NEW)["tokens"] for who, run in contenders.items()}
    for who, tokens in first.items():
        assert tokens == first["eager"], f"{who} gives other tokens: {tokens[:8]} and {first['eager'][:8]}"
    found: dict[str, dict[str, list[float]]] = {who: {"prefill": [], "decode": []} for who in contenders}
    names = [*contenders]
    for k in range(ROUNDS[name]):
        for who in (*names[k % len(names):], *names[:k % len(names)]):
            time.sleep(PAUSE)
            made = contenders[who](ids, NEW)
            for phase in ("prefill", "decode"):
                found[who][phase].append(made[phase])
    for phase, tokens in (("prefill", prompt), ("decode", NEW - 1)):
        speeds = {who: tokens / statistics.median(times[phase]) for who, times in found.items()}
        print(f"  {name} {phase}, a prompt of {prompt}: " + ", ".join(f"{who} {speed:,.0f} tokens/s" for who, speed in speeds.items()))
        yield f"{name} {phase}, a prompt of {prompt}", {who: speeds["ours"] / speed for who, speed in speeds.items() if who != "ours"}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for point, ratios in compare_decoding(sys.argv[1:] or None):
        print(point, {k: round(v, 2) for k, v in ratios.items()})
