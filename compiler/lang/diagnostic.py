"""Diagnostics as data. `render.py` alone turns them into text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from .source import Span


@dataclass(frozen=True)
class Label:
    """A span and what to say about it; an empty text only underlines."""

    span: Span
    text: str = ""


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `labels[0]` is where it is wrong; the others are where the expectation came from."""

    code: str
    headline: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"


class Diagnostics(Exception):
    """Raised with everything that is wrong with an input, in source order."""

    def __init__(self, items: Iterable[Diagnostic]):
        once: dict[object, Diagnostic] = {}
        for d in items:
            once.setdefault(_cause(d), d)
        self.items = tuple(sorted(once.values(), key=_order))
        super().__init__("; ".join(f"{_where(d)}{d.code}: {d.headline}" for d in self.items))


class CheckFailed(Diagnostics):
    """What a check of a right spec found: on the command line the export fails and exits 1."""


class Fault(Exception):
    """One error, raised deep inside a stage; the nearest `Sink.catch` records it and the stage goes on."""

    def __init__(self, diagnostic: Diagnostic):
        self.diagnostic = diagnostic
        super().__init__(diagnostic.headline)


class Sink:
    """Collects the diagnostics of a run, so that a stage can report all of them at once."""

    def __init__(self) -> None:
        self.items: list[Diagnostic] = []

    def add(self, diagnostic: Diagnostic) -> None:
        self.items.append(diagnostic)

    @contextmanager
    def catch(self) -> Iterator[None]:
        """Record a `Fault` raised inside the `with` block and continue after it."""
        try:
            yield
        except Fault as fault:
            self.add(fault.diagnostic)

    @property
    def errors(self) -> list[Diagnostic]:
        return [d for d in self.items if d.severity == "error"]

    @property
    def warnings(self) -> list[Diagnostic]:
        return [d for d in self.items if d.severity == "warning"]

    def check(self) -> None:
        """Raise `Diagnostics` when an error was recorded."""
        if self.errors:
            raise Diagnostics(self.items)


def diagnostic(code: str, headline: str, *labels: Label | Span | None, note: str | Iterable[str] = (),
               help: str | Iterable[str] = (), severity: Literal["error", "warning"] = "error") -> Diagnostic:
    """Build a diagnostic; labels may be plain spans, notes and helps single strings, None labels are dropped."""
    made = tuple(x if isinstance(x, Label) else Label(x) for x in labels if x is not None)
    lines = lambda x: (x,) if isinstance(x, str) else tuple(x)  # noqa: E731
    return Diagnostic(code, headline, made, lines(note), lines(help), severity)


def fault(code: str, headline: str, *labels: Label | Span | None, note: str | Iterable[str] = (),
          help: str | Iterable[str] = ()) -> Fault:
    """A `Fault` around a new error diagnostic: `raise fault("code", "headline", span)`."""
    return Fault(diagnostic(code, headline, *labels, note=note, help=help))


# Words of other frameworks and papers, and what this language calls them.
ELSEWHERE = {
    "transpose": "rearrange", "permute": "rearrange", "reshape": "rearrange", "view": "rearrange", "flatten": "rearrange",
    "dense": "linear", "fc": "linear", "cat": "concat", "bmm": "matmul", "lookup": "embedding", "masked_fill": "mask_fill",
    "relu2": "relu_squared", "swish": "silu", "batch_matmul": "matmul", "mask": "keep", "attention_mask": "keep", "attn_mask": "keep",
    "lengths": "length", "out_features": "width", "units": "width", "d_model": "width", "embedding_dim": "width", "hidden_size": "hidden",
    "num_embeddings": "entries", "vocab_size": "entries", "num_heads": "heads", "n_heads": "heads", "head_dim": "head_width",
    "kernel_size": "kernel", "dropout": "rate", "p": "rate", "dim": "axis", "keepdim": "keep_axis", "num_layers": "layers",
    "bidirectional": "direction", "epsilon": "eps", "is_causal": "causal", "multihead_attention": "multi_head_attention",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely was meant to be, also when it is another framework's word for it."""
    plain = {k.lower(): k for k in known}
    meant = ELSEWHERE.get(name.lower(), "")
    if meant in plain:
        return plain[meant]
    found = get_close_matches(name.lower(), list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def suggest(name: str, known: Iterable[str], what: str = "names") -> tuple[str, ...]:
    """A help line for an unknown name: the nearest match, else the whole list when it is short."""
    known = list(dict.fromkeys(known))
    found = nearest(name, known)
    if found:
        return (f"did you mean `{found}`?",)
    if not known:
        return ()
    shown = sorted(known)
    return (f"known {what}: {', '.join(shown[:24])}{', ...' if len(shown) > 24 else ''}",)


def with_label(d: Diagnostic, label: Label) -> Diagnostic:
    """The diagnostic with one more secondary label, unless it has it already."""
    return d if label in d.labels else replace(d, labels=(*d.labels, label))


def _cause(d: Diagnostic) -> object:
    """The same for findings that say the same of the same place, whatever led there."""
    return (d.code, d.headline, str(d.labels[0].span)) if d.labels else d


def _where(d: Diagnostic) -> str:
    return f"{d.labels[0].span}: " if d.labels else ""


def _order(d: Diagnostic) -> tuple[str, int]:
    return (d.labels[0].span.source.name, d.labels[0].span.start) if d.labels else ("", -1)
