"""Graphemes to phonemes: a GRU encoder-decoder with public weights, exported to ONNX and run by ONNX Runtime.

    python examples/g2p.py hello tensor
"""

from __future__ import annotations

import sys
from pathlib import Path

import nnspec
from nnspec.runtime.decoder import Decoder, decoder
from nnspec.runtime.text import generate_ids
from packages import G2P, fetch

WORDS = ["activationist", "transformer", "attention", "sequence", "compiler"]
GRAPHEMES = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *(
    "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 "
    "F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
).split()]
LONGEST = 20


def export(folder: Path) -> Path:
    """Write the step form of specs/models/g2p.yaml with the public weights: the encoder as a prefix model, the decoder step by step."""
    (weights,) = fetch(*G2P)
    nnspec.load("g2p").export(folder, weights=weights, form="step")
    return folder


def pronounce(model: Decoder, words: list[str]) -> list[list[str]]:
    """The likeliest phonemes of each word, one after the other until the model says </s>."""
    letters = [[GRAPHEMES.index(c) for c in word.lower()] + [2] for word in words]
    made = generate_ids(model, letters, decoder_start=2, stop=3, max_new_tokens=LONGEST)
    return [[PHONEMES[p] for p in tokens if p != 3] for tokens in made.tokens]


def main(words: list[str]) -> None:
    model = decoder(export(Path("build/demo/g2p")))
    print(f"g2p on {model.provider}: {model.manifest.parameters:,} parameters, certificate {model.manifest.certificate['status']}")
    known = [word for word in words if word.isalpha() and word.isascii()]
    said = dict(zip(known, pronounce(model, known), strict=True)) if known else {}
    for word in words:
        print(f"  {word:<14} {' '.join(said[word]) if word in said else '(the model knows the letters a to z)'}")


if __name__ == "__main__":
    main(sys.argv[1:] or WORDS)
