"""Every diagnostic code has a page in tests/diagnostics, and the output printed there is the real one.

A page is `# CODE`, prose, one ```yaml block (the file `spec.yaml`), any ```yaml file=NAME blocks beside it, and one
```text block with the exact output. A page whose first line is `command: none` is about something that no YAML alone
can cause: prose only. `command: show --streaming` asks for the step form of the spec.
`python tests/test_diagnostic_pages.py CODE...` rewrites the output of the pages named, for review.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from nnspec.explain import codes, page
from nnspec.lang.diagnostic import Diagnostics, Fault
from nnspec.model import Model
from nnspec.pipeline import front
from nnspec.render import render

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "tests" / "diagnostics"
STREAMING = "command: show --streaming"
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKERS = {"fault", "diagnostic", "Diagnostic", "OpFault", "ArtifactError", "explain", "_unreadable"}


def check(path: str, streaming: bool = False) -> str:
    """What the compiler prints about a spec."""
    try:
        compiled = front(path)
        if streaming:
            Model(compiled).step_form()
        return render(compiled.warnings + compiled.over)
    except Diagnostics as found:
        return render(found.items)


def blocks(text: str) -> tuple[dict[str, str], list[str]]:
    """The files and the outputs of a page."""
    found = BLOCK.findall(text)
    return {name or "spec.yaml": body for kind, name, body in found if kind == "yaml"}, [b for k, _, b in found if k == "text"]


def output(files: dict[str, str], folder: Path, streaming: bool = False) -> str:
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body, encoding="utf-8", newline="")
    return check("spec.yaml", streaming)


def raw(code: str) -> str:
    return (PAGES / f"{code}.md").read_text(encoding="utf-8")


def used_codes() -> set[str]:
    """The codes that the packages make diagnostics with: string constants passed first."""
    found = set()
    for file in [*(ROOT / "compiler").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {t.id: n.value.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
                     for t in n.targets if isinstance(t, ast.Name)}
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            first = call.args[0]
            value = first.value if isinstance(first, ast.Constant) else constants.get(getattr(first, "id", ""))
            if name in MAKERS and isinstance(value, str):
                found.add(value)
    return found


@pytest.mark.parametrize("code", codes())
def test_page(code, tmp_path, monkeypatch):
    text = raw(code)
    lines = text.splitlines()
    first = lines[0].startswith("command: ")
    assert lines[first] == f"# {code}"
    prose = BLOCK.sub("", "\n".join(lines[first + 1 :]))
    assert len(prose.split()) >= 10
    if lines[0] == "command: none":
        return
    files, outputs = blocks(text)
    assert "spec.yaml" in files and len(outputs) == 1
    monkeypatch.chdir(tmp_path)
    assert output(files, tmp_path, lines[0] == STREAMING) == outputs[0]
    assert f"error[{code}]" in outputs[0] or f"warning[{code}]" in outputs[0]


def test_codes_and_pages_agree():
    used = used_codes()
    assert {"duplicate-key", "yaml-syntax", "bad-expression", "bad-artifact", "shape-mismatch"} <= used
    assert sorted(used - set(codes())) == [], "codes without a page"
    assert sorted(set(codes()) - used) == [], "pages of codes that nothing raises"


def test_explain_prints_the_page():
    assert page("duplicate-key") == raw("duplicate-key")
    assert page("file-not-utf8").startswith("# file-not-utf8\n")


def test_explain_suggests_a_code():
    with pytest.raises(Fault) as found:
        page("duplicate-keys")
    assert found.value.diagnostic.code == "unknown-code"
    assert found.value.diagnostic.helps == ("did you mean `duplicate-key`?",)


@pytest.mark.parametrize("code", ["../__init__", "", "duplicate-key.md"])
def test_explain_opens_nothing_but_pages(code):
    with pytest.raises(Fault):
        page(code)


def rewrite(code: str) -> None:
    text = raw(code)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = output(blocks(text)[0], Path(folder), text.startswith(STREAMING))
    fresh = re.sub(r"^```text\n.*?^```$", lambda _: f"```text\n{found}```", text, flags=re.MULTILINE | re.DOTALL)
    (PAGES / f"{code}.md").write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(name)
