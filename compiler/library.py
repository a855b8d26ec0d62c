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


def is_model(name: str) -> bool:
    """Whether the library has a model of that name."""
    return bool(re.fullmatch(r"[\w.-]+", name)) and (MODELS / f"{name}.yaml").is_file()


def ships(path: str | Path) -> bool:
    """Whether a file comes with nnspec."""
    return Path(path).is_absolute() and SPECS in Path(path).parents


def find(path: str | Path) -> Path:
    """The file, or the library model of that name. Raises Diagnostics (`bad-path`)."""
    text = str(path)
    if "/" in text or text.endswith((".yaml", ".yml")) or Path(text).is_file():
        return Path(text)
    if is_model(text):
        return MODELS / f"{text}.yaml"
    if text and Path(text).exists():
        return Path(text)
    known = sorted(p.stem for p in MODELS.glob("*.yaml"))
    raise Diagnostics([diagnostic("bad-path", f"there is no file and no library model `{text}`",
                                  help=suggest(text, known, "models"))])
