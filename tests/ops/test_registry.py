"""What every op of the registry must have."""

import inspect

import pytest
from nnspec.ops.base import Op
from nnspec.ops.registry import FAMILIES, OPS


def defines(cls, name):
    """Whether the op, or a base of its family, says it."""
    return any(name in base.__dict__ for base in cls.__mro__ if issubclass(base, Op) and base is not Op)


@pytest.mark.parametrize("cls", OPS.values(), ids=OPS)
def test_every_op_is_whole(cls):
    assert inspect.cleandoc(cls.__doc__ or "").endswith((".", ")", "`")), "a docstring says what it is"
    assert defines(cls, "torch")
    assert defines(cls, "onnx") or defines(cls, "forms")
    assert all(f.metadata["doc"] for f in cls.attributes().values() if f.metadata), "every attribute says what it is"
    assert cls.__dataclass_params__.frozen


def test_names_are_unique():
    assert len(OPS) == sum(len(family) for family in FAMILIES)
