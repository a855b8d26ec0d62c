"""Files, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .lang.diagnostic import Diagnostics, diagnostic


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when the block ends, and vanishes when it fails. Raises Diagnostics (`cannot-write`)."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as wrong:
        raise Diagnostics([diagnostic("cannot-write", f"`{path}` cannot be written: {wrong.strerror}",
                                      help="give a file in a folder that exists and can be written")]) from None


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step. Raises Diagnostics (`cannot-write`)."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
