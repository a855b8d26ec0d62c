"""Graphemes to phonemes: a GRU encoder-decoder with public weights, exported to ONNX and run by ONNX Runtime.

    python examples/g2p.py hello tensor
"""

from __future__ import annotations

import sys
from pathlib import Path

import nnspec
import numpy as np
from packages import G2P, fetch

WORDS = ["activationist", "transformer", "attention", "sequence", "compiler"]
GRAPHEMES = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *(
    "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 "
    "F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
).split()]
LONGEST = 20


def export(folder: Path) -> Path:
    """Write the artifact of specs/models/g2p.yaml with the public weights."""
    (weights,) = fetch(*G2P)
    nnspec.load("g2p").export(folder, weights=weights)
    return folder


def pronounce(artifact, word: str) -> list[str]:
    """Greedy phonemes of one word: the graph is run on the growing prefix until it says </s>."""
    source = np.array([[GRAPHEMES.index(c) if c in GRAPHEMES else 1 for c in word.lower()] + [2]])
    target = [2]
    while len(target) <= LONGEST:
        logits = artifact(source=source, source_length=np.array([source.shape[1]]), target=np.array([target]))["logits"]
        best = int(logits[0, -1].argmax())
        if best == 3:
            break
        target.append(best)
    return [PHONEMES[p] for p in target[1:]]


def main(words: list[str]) -> None:
    artifact = nnspec.runtime.open(export(Path("build/demo/g2p")))
    print(f"g2p on {artifact.provider}: {artifact.manifest.parameters:,} parameters, certificate {artifact.manifest.certificate['status']}")
    for word in words:
        if not word.isalpha() or not word.isascii():
            print(f"  {word:<14} (the model knows the letters a to z)")
            continue
        print(f"  {word:<14} {' '.join(pronounce(artifact, word))}")


if __name__ == "__main__":
    main(sys.argv[1:] or WORDS)
