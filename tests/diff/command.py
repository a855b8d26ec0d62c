"""`nnspec diff` as a program calls it."""

import json

import pytest
from nnspec.cli import main


def diff(capsys, *arguments):
    """Its exit code, and what it says on both streams."""
    with pytest.raises(SystemExit) as ended:
        main(["diff", *arguments])
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def onnx_layer(run, *arguments):
    """What it says in JSON of ONNX models."""
    code, out, err = run(*arguments, "-f", "json")
    assert code == 0, err
    return json.loads(out)["layers"]["onnx"]
