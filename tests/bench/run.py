"""Speed and memory, as ratios measured in one run: `make bench`, or `python tests/bench/run.py front growth export latency`.

`--models` and `--quick` make `latency` shorter; `make bench PARTS="latency --quick"` passes them on. Nothing here is a test:
machines are noisy. Each line says what it is held against and the target of the design.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS: dict[str, Any] = {}


def say(name: str, value: float, unit: str, target: str = "") -> None:
    RESULTS[name] = value
    print(f"  {name:<58} {value:>10.3f} {unit:<6} {target}", flush=True)


def wall(command: list[str], runs: int = 7) -> float:
    """Median seconds of a whole process, after one warm-up."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def seconds(run: Callable[[], Any], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def front() -> None:
    """The author's loop: whole processes, interpreter start included."""
    print("front end")
    python = [sys.executable]
    say("python -c pass", wall([*python, "-c", "pass"]), "s")
    say("import yaml, networkx, jsonschema", wall([*python, "-c", "import yaml, networkx, jsonschema"]), "s")
    say("import nnspec", wall([*python, "-c", "import nnspec"]), "s", "under 0.3")
    for command in ("validate", "show"):
        say(f"nnspec {command} gpt3-175b", wall([*python, "-m", "nnspec", command, "gpt3-175b"]), "s", "under 0.5")
    text = (ROOT / "specs" / "models" / "gpt3-175b.yaml").read_text()
    for old, new in (("layers: 96", "layers: 80"), ("vocab: 50257", "vocab: 50304"), ("norm: {op: layer_norm", "norm: {op: rms_norm"),
                     ("{block: plain_ffn, hidden: 4 * width, activation: gelu_tanh", "{block: gated_ffn, hidden: 32768"),
                     ("block: multi_head_attention", "block: grouped_query_attention\n      kv_heads: 8")):
        assert old in text
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "head.yaml"
        path.write_text(text)
        say("nnspec diff gpt3-175b, five edits", wall([*python, "-m", "nnspec", "diff", "gpt3-175b", str(path)]), "s", "under 1")


def growth() -> None:
    """Compile time against depth: a repeat is flat, a stack of distinct layers (sizes by `i`) is linear."""
    print("growth with depth")
    import nnspec
    flat = {n: seconds(lambda n=n: nnspec.load("gpt2", {"layers": n}), 3) for n in (1, 1000)}
    say("gpt2: 1000 layers / 1 layer", flat[1000] / flat[1], "x", "flat: about 1")
    text = (ROOT / "tests" / "specs" / "hard" / "openelm.yaml").read_text()
    times = {}
    with tempfile.TemporaryDirectory() as scratch:
        for n in (10, 100):
            made = text.replace("repeat: layers", f"repeat: {n}") if "repeat: layers" in text else text.replace("repeat: 4", f"repeat: {n}")
            heads, ratio = ", ".join(str(2 + 2 * (k % 7)) for k in range(n)), ", ".join(str(1.0 + k / 8) for k in range(n))
            path = Path(scratch) / f"n{n}.yaml"
            path.write_text(_lists(made, heads, ratio))
            times[n] = seconds(lambda p=path: nnspec.load(p), 3)
    say("distinct layers: 100 / 10", times[100] / times[10], "x", "linear: about 10")


def _lists(text: str, heads: str, ratio: str) -> str:
    import re
    text = re.sub(r"heads: \[[^\]]*\]", f"heads: [{heads}]", text, count=1)
    return re.sub(r"ratio: \[[^\]]*\]", f"ratio: [{ratio}]", text, count=1)


def export() -> None:
    """GPT-2 124M: emission and writing, against torch's exporter on the same architecture in the same run."""
    print("export of gpt2 124M, float32")
    import nnspec
    import torch
    import transformers
    from nnspec.backends.onnx import emit, write
    model = nnspec.load("gpt2")
    state = model.module(seed=0).state_dict()
    with tempfile.TemporaryDirectory() as scratch:
        ours = seconds(lambda: write(emit(model.lowered, "ort-cpu"), Path(scratch) / "ours", lambda p: state[p].numpy()), 7)
        say("nnspec: emit and write", ours, "s")
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).eval()
        ids = torch.randint(0, 50257, (2, 16))
        dynamic = {"input_ids": {0: torch.export.Dim("B"), 1: torch.export.Dim("S", max=1024)}}
        start = time.perf_counter()
        torch.onnx.export(theirs, (), str(Path(scratch) / "theirs.onnx"), kwargs={"input_ids": ids}, dynamo=True,
                          dynamic_shapes=dynamic, verbose=False)
        taken = time.perf_counter() - start
    say("torch.onnx.export(dynamo=True)", taken, "s")
    say("nnspec / torch", ours / taken, "x", "at most 0.1")


def memory() -> None:
    """Peak memory of exporting gpt2 above the module that holds the weights, in a process of its own (Linux)."""
    print("memory of an export")
    code = ("import nnspec, pathlib, re, tempfile\nfrom nnspec.backends.onnx import emit, write\n"
            "m = nnspec.load('gpt2'); s = m.module(seed=0).state_dict(); e = emit(m.lowered, 'ort-cpu')\n"
            "def kib(what): return int(re.search(what + r':\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
            "pathlib.Path('/proc/self/clear_refs').write_text('5')\nbefore = kib('VmRSS')\n"
            "write(e, tempfile.mkdtemp(), lambda p: s[p].numpy())\nprint((kib('VmHWM') - before) / 1024)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    weights = 124_439_808 * 4 / 2**20
    say("peak growth / weights", float(done.stdout) / weights, "x", "at most 0.3")


def latency(models: list[str] | None = None, quick: bool = False) -> None:
    """ONNX Runtime on the CPU: our file against other graphs of the same module, inductor and PyTorch eager; interleaved medians."""
    from latency import MODELS, compare_all
    print("CPU latency: ours / the fastest of the others")
    for point, ratios in compare_all(models or list(MODELS), quick):
        RESULTS.update({f"{point}: nnspec / {who}": ratio for who, ratio in ratios.items()})
        worst = max(ratios, key=lambda who: ratios[who])
        say(f"{point}: nnspec / {worst}", ratios[worst], "x", "act above 1.05")


def decode() -> None:
    """Tokens a second of the step form against GenAI's builder and engine, and transformers eager; interleaved medians."""
    from decode import compare_decoding
    print("decoding on the CPU: our tokens a second / the fastest of the others'")
    for point, ratios in compare_decoding():
        RESULTS.update({f"{point}: nnspec / {who}": ratio for who, ratio in ratios.items()})
        best = min(ratios, key=lambda who: ratios[who])
        say(f"{point}: nnspec / {best}", ratios[best], "x", "at least 1")


PARTS: dict[str, Callable[..., None]] = {"front": front, "growth": growth, "export": export, "memory": memory, "latency": latency,
                                         "decode": decode}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("-o", "--output", help="write the numbers to this JSON file")
    parser.add_argument("--models", nargs="+", help="those of `latency`, by name; all without it")
    parser.add_argument("--quick", action="store_true", help="three shapes a model in place of six")
    chosen = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for part in chosen.parts or PARTS:
        PARTS[part](*((chosen.models, chosen.quick) if part == "latency" else ()))
    if chosen.output:
        Path(chosen.output).write_text(json.dumps(RESULTS, indent=1) + "\n")


if __name__ == "__main__":
    main()
