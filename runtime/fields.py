"""Strict reading of JSON objects: every field is asked for once, problems are collected and not raised."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from .dimension import parse
from .errors import suggest

_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}
_MISSING = object()


class Fields:
    """A JSON object at `path`; what is missing, of a wrong kind or left over becomes a line in `problems`."""

    def __init__(self, value: dict[str, Any], path: str, problems: list[str]):
        self.value, self.path, self.problems = value, path, problems
        self.asked: list[str] = []
        self.inner: list[Fields] = []

    def take(self, key: str, kind: type, default: Any = _MISSING, optional: bool = False) -> Any:
        """The value of `key` when it is of the kind; null counts as absent for optional keys."""
        self.asked.append(key)
        found = self.value.get(key, _MISSING)
        if found is _MISSING or (found is None and optional):
            if not optional:
                self._wrong(key, "is missing")
            return kind() if default is _MISSING else default
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            self._expected(key, _KINDS[kind], found)
            return kind() if default is _MISSING else default
        return found

    def text(self, key: str) -> str:
        found = self.take(key, str)
        if found == "" and self.value.get(key) == "":
            self._wrong(key, "is empty")
        return found

    def one_of(self, key: str, known: Sequence[str]) -> str:
        found = self.take(key, str)
        if isinstance(self.value.get(key), str) and found not in known:
            self._expected(key, f"one of {', '.join(known)}", found)
        return found

    def count(self, key: str) -> int:
        found = self.take(key, int)
        if found < 0:
            self._expected(key, "a number from 0", found)
        return found

    def below(self, key: str) -> int | str | None:
        """A number from 1, or a dimension such as `S + 1`."""
        self.asked.append(key)
        found = self.value.get(key)
        if found is None or isinstance(found, int) and not isinstance(found, bool) and found >= 1:
            return found
        try:
            if not isinstance(found, str):
                raise ValueError
            parse(found)
        except ValueError:
            self._expected(key, "a number from 1 or a dimension", found)
            return None
        return found

    def number(self, key: str) -> float:
        self.asked.append(key)
        found = self.value.get(key)
        if not _number(found):
            self._expected(key, "a number", found)
            return 0.0
        return float(found)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        found = self.take(key, list)
        if not all(map(_number, found)):
            self._expected(key, "numbers", found)
            return ()
        return tuple(map(float, found))

    def file(self, key: str) -> str:
        """The name of a file beside the manifest: no folder, drive or `..` in it."""
        found = self.text(key)
        if found and (re.search(r"[/\\:\0]", found) or found in (".", "..")):
            self._expected(key, "the name of a file in the same folder", found)
        return found

    def sha256(self, key: str) -> str:
        found = self.text(key)
        if found and not re.fullmatch(r"[0-9a-f]{64}", found):
            self._expected(key, "64 hexadecimal digits", found)
        return found

    def shape(self, key: str, solvable: bool = False) -> tuple[int | str, ...]:
        """Lengths and dimension strings; with `solvable` only strings that one name can be read from."""
        entries = []
        for entry in self.take(key, list):
            if isinstance(entry, bool) or not isinstance(entry, int | str) or entry == "" or str(entry).startswith("-"):
                self._expected(key, "lengths and dimensions", entry)
                continue
            if solvable:
                try:
                    parse(entry)
                except ValueError as error:
                    self._wrong(key, f"has a dimension that cannot be solved: {error}")
                    continue
            entries.append(entry)
        return tuple(entries)

    def bounds(self, key: str) -> dict[str, int]:
        found = self.take(key, dict, optional=True)
        for name, bound in found.items():
            if not isinstance(bound, int) or isinstance(bound, bool) or bound < 1:
                self._expected(f"{key}.{name}", "a number from 1", bound)
        return found

    def objects(self, key: str) -> list[dict[str, Any]]:
        found = self.take(key, list)
        for i, entry in enumerate(found):
            if not isinstance(entry, dict):
                self._expected(f"{key}[{i}]", "an object", entry)
        return [entry for entry in found if isinstance(entry, dict)]

    def child(self, key: str) -> Fields:
        """An object inside; one that is missing or of another kind is reported once, not field by field."""
        return self._inside(key, self.take(key, dict), quiet=not isinstance(self.value.get(key), dict))

    def maybe(self, key: str) -> Fields | None:
        """An object inside that may be left out."""
        if self.value.get(key) is None:
            self.asked.append(key)
            return None
        return self.child(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self.take(key, list)
        for entry in found:
            if not isinstance(entry, str):
                self._expected(key, "a list of texts", entry)
        return tuple(x for x in found if isinstance(x, str))

    def children(self, key: str) -> list[Fields]:
        return [self._inside(f"{key}[{i}]", entry) for i, entry in enumerate(self.objects(key))]

    def finish(self) -> None:
        """Report the keys that nobody asked for, here and inside."""
        for key in (k for k in self.value if k not in self.asked):
            self._wrong(key, "is not a known key", *suggest(key, self.asked, "known keys"))
        for inner in self.inner:
            inner.finish()

    def _inside(self, key: str, value: dict[str, Any], quiet: bool = False) -> Fields:
        made = Fields(value, f"{self.path}{key}.", [] if quiet else self.problems)
        self.inner.append(made)
        return made

    def _wrong(self, key: str, what: str, *more: str) -> None:
        self.problems.append("; ".join((f"`{self.path}{key}` {what}", *more)))

    def _expected(self, key: str, what: str, found: Any) -> None:
        self._wrong(key, f"should be {what}, found {json.dumps(found)[:60]}")


def _number(x: Any) -> TypeGuard[int | float]:
    return isinstance(x, int | float) and not isinstance(x, bool)
