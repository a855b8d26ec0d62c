"""Bounds of free dimensions: what an axis may be at most, and what is no bound."""

import pytest
from nnspec.lang.diagnostic import Diagnostics
from nnspec.pipeline import front

SPEC = "nnspec: 1\nname: bound\nsizes: {most: 9}\ninputs: {{x: '{}'}}\ngraph: {{y: {{op: mean, in: x, axis: 1}}}}\noutputs: {{y: y}}\n"


def compiled(tmp_path, type):
    (tmp_path / "spec.yaml").write_text(SPEC.replace("{most: 9}", "{{most: 9}}").format(type))
    return front(tmp_path / "spec.yaml").graph


@pytest.mark.parametrize(("type", "limit"), [("float[B, S <= 9]", 9), ("float[B, 2*S <= 2 * most]", 9), ("float[B, 2*S <= 19]", 9),
                                             ("float[B, 3*S + 1 <= most]", 2)])
def test_a_bound_on_an_axis_bounds_its_free_dimension(tmp_path, type, limit):
    (bound,) = compiled(tmp_path, type).bounds
    assert (bound.symbol, bound.limit) == ("S", limit)


@pytest.mark.parametrize("type", ["float[B, S*T <= 9]", "float[B, most <= 9]", "float[B, 4*S <= 3]", "float[B, S // 2 <= 3]"])
def test_an_axis_without_one_free_dimension_or_room_for_it_has_no_bound(tmp_path, type):
    with pytest.raises(Diagnostics) as found:
        compiled(tmp_path, type)
    assert [d.code for d in found.value.items] == ["bad-type"]
    assert "no bound" in found.value.items[0].headline
