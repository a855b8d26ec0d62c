"""Pieces of GitHub's markdown. What a spec says is text in it: it neither ends a cell nor is markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Text in a cell or a paragraph."""
    out = text.replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    for c in "|`*_[]@#":
        out = out.replace(c, f"\\{c}")
    return out


def code(text: str) -> str:
    """Text between backticks, and in a comment of HTML."""
    plain = text.replace("`", "'").replace("\n", " ").replace("|", "¦")
    return plain.replace("--", "- -") if "-->" in plain else plain


def fence(text: str) -> str:
    return text.replace("```", "'''")


def pre(lines: Iterable[str]) -> str:
    return "```text\n" + "\n".join(map(fence, lines)) + "\n```"


def details(title: str, body: str) -> str:
    """What is folded until a reader opens it."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Cells that are markup already; `right` are columns of numbers."""
    rule = ["---:" if k in right else "---" for k in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))
