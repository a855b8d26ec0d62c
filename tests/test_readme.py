"""The README's commands and snippets do what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
LANGUAGE = (ROOT / "specs" / "README.md").read_text()


def nnspec(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "nnspec", *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def blocks(text, kind):
    """Fenced blocks whose fence says `kind`."""
    found, inside = [], False
    for line in text.splitlines():
        if line.startswith("```") and not inside:
            found.append((line[3:], []))
            inside = True
        elif line.startswith("```"):
            inside = False
        elif inside:
            found[-1][1].append(line)
    return ["\n".join(lines) for name, lines in found if name == kind]


def test_python_snippets_run(tmp_path):
    (snippet,) = blocks(TEXT, "python")
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "class Gpt2(nn.Module)" in done.stdout and done.stdout.endswith("(1, 3, 100)\n")


def test_the_spec_that_is_read_is_the_library_s():
    shown, _ = blocks(TEXT, "yaml")
    def plain(text):
        return [line for line in (re.sub(r"\s+#.*", "", x).strip() for x in text.splitlines()) if line]

    file = plain((ROOT / "specs/models/additive-seq2seq.yaml").read_text())
    assert plain(shown) == file[file.index(plain(shown)[0]):][:len(plain(shown))]


def test_the_author_s_commands(tmp_path):
    assert "parameters  124,439,808" in nnspec("show", "gpt2", cwd=tmp_path).stdout
    assert nnspec("compile", "gpt2", "-o", "gpt2.py", cwd=tmp_path).returncode == 0
    compile((tmp_path / "gpt2.py").read_text(), "gpt2.py", "exec")
    assert nnspec("explain", "shape-mismatch", cwd=tmp_path).returncode == 0


def test_the_error_shown_is_the_error_given(tmp_path):
    (tmp_path / "my.yaml").write_text(blocks(TEXT, "yaml")[1])
    done = nnspec("validate", "my.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert f"$ nnspec validate my.yaml\n{done.stderr}" in TEXT, done.stderr


def test_the_deployer_s_commands(tmp_path):
    command = [c for b in blocks(TEXT, "") for c in b.splitlines() if c.startswith("nnspec run")]
    assert nnspec("export", "g2p", "--init", "3", "-o", "out/", cwd=tmp_path).returncode == 0
    done = nnspec(*shlex.split(command[0].split("#")[0])[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "logits" in done.stdout


@pytest.mark.parametrize("snippet", blocks(LANGUAGE, "yaml"), ids=lambda s: s.splitlines()[0][:30])
def test_language_snippets_are_yaml(snippet):
    from nnspec.lang.source import Source
    from nnspec.stages.parse import parse
    assert parse(Source("snippet", re.sub(r"^( *)(\w+): \1?\.\.\.$", "", snippet, flags=re.M)))


def test_the_variant_is_the_library_s():
    (shown,) = [b for b in blocks(LANGUAGE, "yaml") if b.startswith("base:")]
    plain = "\n".join(re.sub(r"\s+#.*", "", line) for line in shown.splitlines())
    assert plain in (ROOT / "specs/variants/gpt2-rotary.yaml").read_text()
    assert nnspec("validate", "specs/variants/gpt2-rotary.yaml", cwd=ROOT).returncode == 0
