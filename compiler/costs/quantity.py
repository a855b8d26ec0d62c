"""Numbers as people write and read them: `128k` positions, `16GiB`, 4.5 GB."""

from __future__ import annotations

import re

POSITIONS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
PREFIXES = tuple(enumerate("kmgt", 1))
AMOUNTS = {"": 1} | {f"{p}{b}": 1000**n for n, p in PREFIXES for b in ("", "b")} | {f"{p}ib": 1024**n for n, p in PREFIXES}
STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


def size(text: str) -> int:
    """A size of an axis, such as 512, 2k (2048) or 1M; raises ValueError."""
    return _read(text, POSITIONS)


def amount(text: str) -> int:
    """A limit, such as 7e9, 124M (124 million), 16GB or 16GiB (2**34); raises ValueError."""
    return _read(text, AMOUNTS)


def _read(text: str, units: dict[str, int]) -> int:
    found = re.fullmatch(r"([\d_]+(?:\.\d+)?(?:[eE]\d+)?)\s*([a-zA-Z]*)", text.strip())
    if found is None or found[2].lower() not in units or not found[1].replace("_", ""):
        raise ValueError(text)
    number = found[1].replace("_", "")
    value = (int(number) if number.isdigit() else float(number)) * units[found[2].lower()]
    if value != int(value):
        raise ValueError(text)
    return int(value)


def short(n: int, unit: str = "") -> str:
    """Four digits and a power of 1000: `291.6 G`, `4.5 GB`."""
    for top, prefix in STEPS:
        if abs(n) >= top:
            return f"{n / top:.{4 - min(4, len(str(int(abs(n) / top))))}f} {prefix}{unit}"
    return f"{n:,} {unit}".rstrip()


def positions(n: int) -> str:
    """A size of an axis, short where that is exact: `2k`, `1M`, `1000`."""
    for unit in ("G", "M", "k"):
        if n % POSITIONS[unit.lower()] == 0 and n >= POSITIONS[unit.lower()]:
            return f"{n // POSITIONS[unit.lower()]}{unit}"
    return str(n)
