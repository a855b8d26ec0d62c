"""Typical sizes of a step form, whose dimensions are those of its two models."""

import pytest
import zoo
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime import manifest


@pytest.mark.parametrize("typical", [{"N": 1}, {"C": 2048}, {"S": 9, "N": 4}, {"B": 1}])
def test_of_either_model(tmp_path, typical):
    """`N` and `C` are of the steps alone, `S` of the memory that both have."""
    zoo.model("bart-base").export(tmp_path / "out", init=1, form="step", certify="none", typical=typical)
    assert manifest.read(tmp_path / "out").prefix


def test_the_axis_of_the_steps_is_no_dimension_of_theirs(tmp_path):
    with pytest.raises(Diagnostics) as refused:
        zoo.model("bart-base").export(tmp_path / "out", init=1, form="step", certify="none", typical={"T": 9, "Q": 3})
    assert [d.headline for d in refused.value.items] == [f"the step form has no free dimension `{k}` to have a typical size" for k in "TQ"]
    assert "along `T`, steps have `N` positions of a chunk, and `C` slots of a cache" in refused.value.items[0].helps
    assert not (tmp_path / "out").exists()
