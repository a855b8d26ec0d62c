"""Two models learn to copy a sequence, and what they learnt is exported and decoded by ONNX Runtime.

    python examples/copy_task.py [additive-seq2seq | transformer-base]
"""

from __future__ import annotations

import sys
from pathlib import Path

import nnspec
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

SYMBOLS, LONGEST, START = 12, 6, 0               # the words are 1 to SYMBOLS - 1; 0 is the start symbol, and pads
SIZES = {
    "additive-seq2seq": {"source_vocab": SYMBOLS, "target_vocab": SYMBOLS, "embed": 32, "hidden": 64, "align": 32},
    "transformer-base": {"vocab": SYMBOLS, "width": 64, "layers": 2, "heads": 4, "hidden": 128, "dropout": 0.0},
}
BATCH, STEPS, RATE = 64, 3000, 4e-3
GOAL = 0.998                                     # stop at this token accuracy, averaged over some steps


def sequences(draw: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random words [rows, LONGEST], zeros past the end of each row, and the lengths [rows], from 1 to LONGEST."""
    length = draw.integers(1, LONGEST + 1, rows)
    words = draw.integers(1, SYMBOLS, (rows, LONGEST))
    return np.where(np.arange(LONGEST) < length[:, None], words, 0), length


def shifted(words: np.ndarray) -> np.ndarray:
    """What the decoder has read when it must say each word: the start symbol, then the words before."""
    return np.concatenate([np.full((len(words), 1), START), words[:, :-1]], axis=1)


def logits_of(module: nn.Module, words: np.ndarray, length: np.ndarray) -> Tensor:
    """Teacher-forced logits [rows, LONGEST, SYMBOLS]."""
    given = (words, length, shifted(words))
    out = module(**{name: torch.from_numpy(x) for name, x in zip(("source", "source_length", "target"), given, strict=True)})
    return out["logits"] if isinstance(out, dict) else out


def train(module: nn.Module, name: str, seed: int = 0) -> float:
    """Train until the words are right; gives the token accuracy, smoothed over the last steps."""
    draw, accuracy = np.random.default_rng(seed), 0.0
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    module.train()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=STEPS, now="")
        for _ in range(STEPS):
            words, length = sequences(draw, BATCH)
            logits, wanted = logits_of(module, words, length), torch.from_numpy(words)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            right = (logits.argmax(-1) == wanted)[wanted > 0].float().mean().item()
            accuracy += 0.05 * (right - accuracy)
            progress.update(bar, advance=1, now=f"loss {loss.item():.3f}, tokens right {accuracy:.1%}")
            if accuracy > GOAL:
                break
    module.eval()
    return accuracy


def decode(artifact, source: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Greedy decoding [rows, LONGEST]: the graph is run on the words so far, which grow by one a step."""
    target = np.full((len(source), 1), START)
    for _ in range(LONGEST):
        logits = artifact(source=source, source_length=length, target=target)["logits"]
        target = np.concatenate([target, logits[:, -1:].argmax(-1)], axis=1)
    return target[:, 1:]


def learn(name: str, folder: Path) -> float:
    """Train a small `name`, export it to `folder` and print what it makes of new sequences; gives the token accuracy."""
    torch.set_num_threads(1)                     # models this small only wait for more
    model = nnspec.load(name, sizes=SIZES[name])
    module = model.module(seed=0)
    trained = train(module, name)
    model.export(folder, weights=module)
    artifact = nnspec.runtime.open(folder)
    words, length = sequences(np.random.default_rng(12345), 200)
    said = decode(artifact, words, length)
    accuracy = float((said == words)[words > 0].mean())
    print(f"{name}: {artifact.manifest.parameters:,} parameters, tokens right: {trained:.1%} in training, "
          f"{accuracy:.1%} decoded by ONNX Runtime on new sequences")
    for row in range(3):
        print(f"  {' '.join(map(str, words[row, :length[row]])):<16} -> {' '.join(map(str, said[row, :length[row]]))}")
    return accuracy


def main(names: list[str]) -> None:
    unknown = set(names) - SIZES.keys()
    if unknown:
        sys.exit(f"no small sizes for {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    for name in names or SIZES:
        learn(name, Path("build/demo") / f"copy-{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
