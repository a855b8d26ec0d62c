"""Specs written in tests, as graphs ready for a backend."""

import textwrap

import pytest
from nnspec.pipeline import front


@pytest.fixture
def compiled(tmp_path):
    def make(text, name="spec"):
        path = tmp_path / f"{name}.yaml"
        path.write_text("nnspec: 1\nname: " + name + "\n" + textwrap.dedent(text))
        return front(path).lowered()
    return make
