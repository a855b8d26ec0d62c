"""Where the specs that come with nnspec live."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from .lang.diagnostic import Diagnostics, diagnostic, suggest

SPECS = Path(str(files("nnspec.specs")))
BLOCKS, MODELS = SPECS / "blocks", SPECS / "models"


def find(path: str | Path) -> Path:
    """The file, or the library model of that name. Raises Diagnostics (`bad-path`)."""
    text = str(path)
    if "/" in text or text.endswith((".yaml", ".yml")) or Path(text).exists():
        return Path(text)
    named = MODELS / f"{text}.yaml"
    if named.exists():
        return named
    known = sorted(p.stem for p in MODELS.glob("*.yaml"))
    raise Diagnostics([diagnostic("bad-path", f"there is no file and no library model `{text}`", help=suggest(text, known, "models"))])
