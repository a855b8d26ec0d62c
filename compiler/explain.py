"""The page of each diagnostic code: what it means, how to fix it, and an example."""

from __future__ import annotations

from importlib.resources import files

from .lang.diagnostic import fault, suggest

_FRONT = "command: "                # a first line that says what makes the page's output


def codes() -> list[str]:
    """All codes that have a page, sorted."""
    return sorted(f.name.removesuffix(".md") for f in files("nnspec.pages").iterdir() if f.name.endswith(".md"))


def page(code: str) -> str:
    """The page of `code` as Markdown. Raises `Fault` `unknown-code`."""
    known = codes()
    if code not in known:
        raise fault("unknown-code", f"there is no diagnostic `{code}`", help=suggest(code, known, "codes"))
    text = files("nnspec.pages").joinpath(f"{code}.md").read_text(encoding="utf-8")
    return (text.partition("\n")[2] if text.startswith(_FRONT) else text).lstrip("\n")
