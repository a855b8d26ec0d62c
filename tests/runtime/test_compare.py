import numpy as np
import pytest
from nnspec.runtime.compare import compare, measure

RNG = np.random.default_rng(11)


def reference() -> dict[str, np.ndarray]:
    return {"a": np.random.default_rng(3).standard_normal((3, 5), np.float32), "ids": np.arange(7)}


def moved(index, by) -> dict[str, np.ndarray]:
    made = {k: v.copy() for k, v in reference().items()}
    made["a"][index] += by
    return made


def test_equal_within_tolerance():
    scale = float(np.abs(reference()["a"]).max())
    assert compare(moved((1, 2), 0.5e-3 * scale), reference(), rtol=1e-3, atol=0) == []
    assert compare(moved((1, 2), 0.5e-3), reference(), rtol=0, atol=1e-3) == []


def test_values_that_differ_name_the_worst():
    got = moved((2, 4), 0.25)
    (difference,) = compare(got, reference(), rtol=1e-4, atol=1e-5)
    assert (difference.name, difference.kind) == ("a", "values")
    summary = difference.summary
    assert summary.worst == (2, 4)
    assert summary.max_abs == pytest.approx(0.25, rel=1e-5)
    assert summary.max_rel == pytest.approx(0.25 / np.abs(reference()["a"]).max(), rel=1e-5)
    assert summary.got == pytest.approx(summary.want + 0.25, rel=1e-5)
    assert "[2, 4]" in difference.text


def test_no_broadcasting_and_no_kinds():
    want = reference()
    got = {"a": want["a"][None], "ids": want["ids"].astype(np.float32), "more": want["a"]}
    assert [(d.name, d.kind) for d in compare(got, want, 1, 1)] == [("a", "shape"), ("ids", "dtype"), ("more", "unexpected")]
    assert [(d.name, d.kind) for d in compare({"a": want["a"].astype(np.float64)}, want, 0, 0)] == [("ids", "missing")]
    with pytest.raises(ValueError, match="cannot be compared"):
        measure(want["a"], want["a"][0])


def test_integers_are_exact():
    got = reference() | {"ids": np.array([0, 1, 2, 3, 4, 6, 5])}
    (difference,) = compare(got, reference(), rtol=10, atol=10)
    assert difference.kind == "values"
    assert difference.text == "`ids` is 6 at [5], the reference 5; 2 of 7 differ"
    large = {"n": np.array([2**60 + 1])}, {"n": np.array([2**60])}
    assert len(compare(*large, rtol=1, atol=1)) == 1


@pytest.mark.parametrize(("left", "right", "same"), [
    (np.nan, np.nan, True), (np.inf, np.inf, True), (np.inf, -np.inf, False), (np.nan, 1.0, False), (1.0, np.nan, False),
    (np.nan, np.inf, False), (np.inf, 3e38, False),
])
def test_nan_and_inf_must_agree(left, right, same):
    got, want = (np.array([[1.0, value, 2.0]], np.float32) for value in (left, right))
    found = compare({"x": got}, {"x": want}, rtol=1e-5, atol=1e-5)
    assert [d.kind for d in found] == ([] if same else ["nonfinite"])
    summary = measure(got, want)
    assert summary.nonfinite == (None if same else (0, 1))
    assert summary.scale == 2.0
    assert summary.max_abs == 0.0


def test_a_zero_reference_and_empty_arrays():
    assert measure(np.array([1e-9]), np.array([0.0])).max_rel == np.inf
    assert measure(np.array([0.0]), np.array([0.0])).max_rel == 0
    assert measure(np.empty((0, 3)), np.empty((0, 3))).worst is None
    assert measure(np.array(np.nan), np.array(np.nan)).worst is None


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_that_fill_masked_scores_have_no_scale(dtype):
    """Beside a -3.4e38, an error of one would be below any relative tolerance; float16 has another lowest number."""
    want = np.array([[1.0, 2.0, np.finfo(np.float32).min]], np.float32)
    right, wrong = np.array([[1.0, 2.0, 0.0]], dtype), np.array([[1.0, 3.0, 0.0]], dtype)
    right[0, 2] = wrong[0, 2] = np.finfo(dtype).min
    assert compare({"x": right}, {"x": want}, rtol=1e-5, atol=1e-5) == []
    (difference,) = compare({"x": wrong}, {"x": want}, rtol=1e-5, atol=1e-5)
    assert difference.kind == "values" and difference.summary.max_rel == 0.5 and difference.summary.scale == 2
    for other in (0.0, -np.inf, np.finfo(dtype).max):
        moved = right.copy()
        moved[0, 2] = other
        assert [d.kind for d in compare({"x": moved}, {"x": want}, rtol=1e-5, atol=1e-5)] == ["nonfinite"]
