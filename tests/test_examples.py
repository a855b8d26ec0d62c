"""Every example runs; the two with public weights give the right results."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import packages  # noqa: E402

PHONEMES = {
    "activationist": "AE2 K T IH0 V EY1 SH AH0 N IH0 S T",
    "transformer": "T R AE0 N S F AO1 R M ER0",
    "attention": "AH0 T EH1 N SH AH0 N",
    "sequence": "S IY1 K W AH0 N S",
    "compiler": "K AH0 M P IH1 L ER0",
}


def fetched(*wanted):
    """Files of a package, or a skip where pip cannot download it."""
    try:
        return packages.fetch(*wanted)
    except SystemExit as failed:
        pytest.skip(str(failed).splitlines()[0])


def run(example, *arguments):
    done = subprocess.run([sys.executable, f"examples/{example}", *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_g2p_pronounces_words():
    fetched(*packages.G2P)
    out = run("g2p.py")
    assert "certificate passed" in out
    for word, phonemes in PHONEMES.items():
        assert f"{word:<14} {phonemes}\n" in out
    assert run("g2p.py", "hello", "tensor").splitlines()[1].split()[:2] == ["hello", "HH"]


def test_similar_sentences_are_close():
    fetched(*packages.MINILM)
    lines = run("minilm.py").splitlines()[1:]
    found = np.array([[float(x) for x in line.split()[:5]] for line in lines])
    assert np.allclose(np.diag(found), 1)
    assert found[0, 1] > 0.4 and found[2, 3] > 0.4
    assert np.abs(found[4, :4]).max() < 0.2
