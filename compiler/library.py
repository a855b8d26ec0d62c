"""Where the specs that come with nnspec live."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from .lang.diagnostic import Diagnostics, diagnostic, suggest

SPECS = Path(str(files("nnspec.specs")))
BLOCKS, MODELS, CONFIGS = SPECS / "blocks", SPECS / "models", SPECS / "configs"


def home(block: str) -> str | None:
    """The file of the library that defines a block of that name, as `use:` names it."""
    defines = re.compile(rf"^  {re.escape(block)}:(?: |$)", re.MULTILINE)
    return next((p.stem for p in sorted(BLOCKS.glob("*.yaml")) if defines.search(p.read_text(encoding="utf-8"))), None)


def find(path: str | Path) -> Path:
    """The file, or the library model of that name. Raises Diagnostics (`bad-path`)."""
    text = str(path)
    if "/" in text or text.endswith((".yaml", ".yml")) or (text and Path(text).exists()):
        return Path(text)
    named = MODELS / f"{text}.yaml"
    if named.exists():
        return named
    known = sorted(p.stem for p in MODELS.glob("*.yaml"))
    raise Diagnostics([diagnostic("bad-path", f"there is no file and no library model `{text}`",
                                  help=suggest(text, known, "models"))])
