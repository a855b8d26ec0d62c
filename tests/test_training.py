"""Modules train: the copy task is learnt, exported, and decoded right by ONNX Runtime."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import copy_task  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", copy_task.SIZES)
def test_a_copy_task_is_learnt(name, tmp_path, capsys):
    """More than 99 % of the tokens of unseen sequences, decoded greedily from the exported graph."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert copy_task.learn(name, tmp_path / "artifact") > 0.99
    finally:
        torch.set_num_threads(threads)
    assert "decoded by ONNX Runtime on new sequences" in capsys.readouterr().out
