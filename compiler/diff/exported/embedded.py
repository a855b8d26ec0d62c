"""The spec inside an exported model, read from the bytes of the file: nothing of it is loaded.

A model is a protobuf message (onnx.proto); its metadata are field 14, entries of key (1) and value (2).
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ...lang.diagnostic import Diagnostics, diagnostic

METADATA, KEY, VALUE = 14, 1, 2
WANTED = b"nnspec.spec"
FIXED = {1: 8, 5: 4}                # bytes of the wire types of fixed size
LENGTH = 2


def spec_text(path: Path) -> str:
    """The text under `nnspec.spec` in the metadata of an ONNX file. Raises Diagnostics (`bad-artifact`)."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, 2)
            file.seek(0)
            found = _search(file, end)
    except (OSError, ValueError, EOFError, UnicodeDecodeError) as wrong:
        raise Diagnostics([diagnostic("bad-artifact", f"`{path}` cannot be read as an ONNX file", note=str(wrong))]) from None
    if found is None:
        raise Diagnostics([diagnostic("bad-artifact", f"`{path}` holds no spec", note="its metadata have no `nnspec.spec`",
                                      help="only files that `nnspec export` wrote can be compared")])
    return found


def _search(file: IO[bytes], end: int) -> str | None:
    while file.tell() < end:
        tag = _varint(file)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            _varint(file)
        elif wire in FIXED:
            file.seek(FIXED[wire], 1)
        elif wire == LENGTH:
            size = _varint(file)
            if file.tell() + size > end:
                raise EOFError("it ends in the middle of a field")
            if field == METADATA and (found := _entry(file.read(size))) is not None:
                return found
            if field != METADATA:
                file.seek(size, 1)
        else:
            raise ValueError("it is no protobuf message")
    return None


def _entry(data: bytes) -> str | None:
    """The value of one metadata entry, where it is the one wanted."""
    import io
    file, fields = io.BytesIO(data), {}
    while file.tell() < len(data):
        tag = _varint(file)
        if tag & 7 != LENGTH:
            raise ValueError("a metadata entry holds no text")
        fields[tag >> 3] = file.read(_varint(file))
    return fields.get(VALUE, b"").decode("utf-8") if fields.get(KEY) == WANTED else None


def _varint(file: IO[bytes]) -> int:
    value = shift = 0
    while shift < 70:
        byte = file.read(1)
        if not byte:
            raise EOFError("it ends in the middle of a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    raise ValueError("it is no protobuf message")
