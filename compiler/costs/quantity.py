"""Numbers as people write and read them: `128k` positions, `16GiB`. Bytes are told in powers of 1024, all else in powers of 1000."""

from __future__ import annotations

import re

POSITIONS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
PREFIXES = tuple(enumerate("kmgt", 1))
AMOUNTS = {"": 1} | {f"{p}{b}": 1000**n for n, p in PREFIXES for b in ("", "b")} | {f"{p}ib": 1024**n for n, p in PREFIXES}
STEPS = ("", "K", "M", "G", "T", "P", "E")


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
    """Four digits and a prefix: `291.6 G`; bytes (`B`) as `36.00 MiB`."""
    base, ending = (1024, "iB") if unit == "B" else (1000, unit)
    step = 0
    while step + 1 < len(STEPS) and abs(n) >= base ** (step + 1):
        step += 1
    if not step:
        return f"{n:,} {unit}".rstrip()
    scaled = n / base**step
    return f"{scaled:.{4 - min(4, len(str(int(abs(scaled)))))}f} {STEPS[step]}{ending}"


def positions(n: int) -> str:
    """A size of an axis, short where that is exact: `2k`, `1M`, `1000`."""
    for unit in ("G", "M", "k"):
        if n % POSITIONS[unit.lower()] == 0 and n >= POSITIONS[unit.lower()]:
            return f"{n // POSITIONS[unit.lower()]}{unit}"
    return str(n)
