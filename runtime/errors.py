"""Problems of an artifact or of a call, as plain data; the command line turns them into diagnostics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class ArtifactError(Exception):
    """One problem: a code, a headline, notes (facts) and helps (what to do)."""

    def __init__(self, code: str, headline: str, notes: str | Iterable[str] = (), helps: str | Iterable[str] = ()):
        self.code = code
        self.headline = headline
        self.notes = (notes,) if isinstance(notes, str) else tuple(notes)
        self.helps = (helps,) if isinstance(helps, str) else tuple(helps)
        super().__init__(f"{code}: {headline}")

    @property
    def items(self) -> tuple[ArtifactError, ...]:
        return (self,)

    def __str__(self) -> str:
        return "\n".join(_text(item) for item in self.items)


class ArtifactErrors(ArtifactError):
    """Every problem of one call; it carries the code and headline of the first."""

    def __init__(self, items: Sequence[ArtifactError]):
        first = items[0]
        super().__init__(first.code, first.headline, first.notes, first.helps)
        self._items = tuple(items)

    @property
    def items(self) -> tuple[ArtifactError, ...]:
        return self._items


def check(items: Sequence[ArtifactError]) -> None:
    """Raise `ArtifactErrors` when there is any problem."""
    if items:
        raise ArtifactErrors(items)


def suggest(name: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    """A help line for an unknown name: the nearest match, else what there is."""
    known = list(known)
    found = get_close_matches(name, known, n=1, cutoff=0.6)
    if found:
        return (f"did you mean `{found[0]}`?",)
    return (f"{what}: {', '.join(f'`{k}`' for k in known)}",) if known else ()


def _text(item: ArtifactError) -> str:
    notes = "".join(f"\n  note: {n}" for n in item.notes)
    return f"{item.code}: {item.headline}{notes}" + "".join(f"\n  help: {h}" for h in item.helps)
