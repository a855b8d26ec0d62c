"""Text files, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .lang.diagnostic import Diagnostics, diagnostic


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step. Raises Diagnostics (`cannot-write`)."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as wrong:
        raise Diagnostics([diagnostic("cannot-write", f"`{path}` cannot be written: {wrong.strerror}",
                                      help="give a file in a folder that exists and can be written")]) from None
