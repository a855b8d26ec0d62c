import numpy as np
import pytest
from nnspec.runtime import ArtifactErrors
from nnspec.runtime.arguments import prepare
from nnspec.runtime.convert import narrow_bfloat16, widen_bfloat16
from nnspec.runtime.manifest import Input
from tiny import make_manifest


def good(rows=2, steps=5) -> dict:
    rng = np.random.default_rng(3)
    return {"tokens": rng.integers(0, 11, (rows, steps)), "residual": rng.standard_normal((rows, steps, 3), np.float32),
            "length": rng.integers(1, steps + 1, rows)}


def one(*, value, **fields):
    """What `x` becomes when it is the only input."""
    return prepare(make_manifest(inputs=(Input("x", **fields),)), {"x": value})["x"]


def refused(arrays, *inputs: Input):
    with pytest.raises(ArtifactErrors) as caught:
        prepare(make_manifest(inputs=inputs) if inputs else make_manifest(), arrays)
    assert {item.code for item in caught.value.items} == {"bad-inputs"}
    return caught.value.items


def test_good_arrays_pass_unchanged():
    arrays = good()
    made = prepare(make_manifest(), arrays)
    assert all(made[k] is arrays[k] for k in arrays)


def test_all_problems_at_once():
    arrays = good() | {"tokens": np.array([[1, 2, 99, 4, 5], [1, -7, 3, 4, 5]]), "length": np.array([9, 5]), "masc": np.ones(2),
                       "residual": np.ones((2, 5, 4), np.float32)}
    headlines = [i.headline for i in refused(arrays)]
    assert headlines == [
        "the model has no input `masc`",
        "axis 2 of input `residual` has length 4, expected 3",
        "input `tokens` has 99 at index [0, 2], which is above 10",
        "input `length` has 9 at row 0, which is above 5",
    ]


def test_names():
    arrays = good()
    arrays["token"] = arrays.pop("tokens")
    first, second = refused(arrays)
    assert first.headline == "the model has no input `token`"
    assert first.helps == ("did you mean `tokens`?",)
    assert second.headline == "input `tokens` is missing"
    assert second.notes == ("expected `tokens`: int64[B, S]",)


def test_ids_say_how_many():
    arrays = good() | {"tokens": np.array([[1, 2, 3, 4, -1], [11, 2, 3, 4, 5]])}
    (item,) = refused(arrays)
    assert item.headline == "input `tokens` has -1 at index [0, 4], which is negative"
    assert item.notes == ("ids of `tokens` lie in [0, 11)", "2 values in all are out of range")


@pytest.mark.parametrize(("length", "row", "value", "what"), [([5, 0, 6], 2, 6, "above 5"), ([5, -1, 3], 1, -1, "negative")])
def test_lengths_name_the_row(length, row, value, what):
    (item,) = refused(good(rows=3) | {"length": np.array(length)})
    assert f"{value} at row {row}" in item.headline
    assert what in item.headline


def test_length_zero_is_legal():
    assert prepare(make_manifest(), good(rows=3) | {"length": np.array([5, 0, 3])})["length"].tolist() == [5, 0, 3]


def test_bounds():
    (item,) = refused(good(steps=10))
    assert item.headline == "`S` is 10, but the model takes at most 9"
    assert item.notes == ("`S` is read from axis 1 of input `tokens`",)


def test_disagreeing_sizes_name_both_inputs():
    items = refused(good() | {"residual": np.ones((2, 4, 3), np.float32)})
    assert items[0].headline == "inputs `tokens` and `residual` disagree about `S`: 5 and 4"
    assert "axis 1 of `tokens`: int64[B, S]" in items[0].notes[0]
    assert "axis 1 of `residual`: float32[B, S, 3]" in items[0].notes[1]


def test_affine_dimensions_agree_with_plain_ones():
    image, rows = Input("image", "float32", ("B", "16*H")), Input("rows", "float32", ("H + 1",))
    made = prepare(make_manifest(inputs=(image, rows)), {"image": np.ones((2, 48), np.float32), "rows": np.ones(4, np.float32)})
    assert made["image"].shape == (2, 48)
    items = refused({"image": np.ones((2, 47), np.float32), "rows": np.ones(0, np.float32)}, image, rows)
    assert items[0].headline == "axis 1 of input `image` has length 47, which is not divisible by 16"
    assert items[1].headline == "axis 0 of input `rows` has length 0, which is not `H + 1` for any `H` from 0"
    items = refused({"image": np.ones((2, 48), np.float32), "rows": np.ones(3, np.float32)}, image, rows)
    assert items[0].headline == "inputs `image` and `rows` disagree about `H`: 3 and 2"


def test_rank():
    (item,) = refused(good() | {"tokens": np.array([1, 2, 3])})
    assert item.headline == "input `tokens` has 1 axis, expected 2"
    assert item.helps == ("a single row still needs its batch axis: `x[None]`",)


@pytest.mark.parametrize(("value", "dtype", "want"), [
    ([[1, 2]], "int64", np.int64), ([[1, 2]], "int32", np.int32), ([[1, 2.5]], "float32", np.float32),
    ([[1, 2]], "float32", np.float32),
    ([[1, 2.5]], "float16", np.float16), ([[True, False]], "bool", np.bool_), (np.ones((1, 2), np.int32), "int64", np.int64),
    (np.ones((1, 2), np.uint8), "int32", np.int32), (np.ones((1, 2), np.float32), "float16", np.float16),
    (np.ones((1, 2), np.float16), "float32", np.float32),
])
def test_quiet_casts(value, dtype, want):
    made = one(value=value, dtype=dtype, shape=(1, 2))
    assert made.dtype == want
    assert made.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(("value", "dtype", "part"), [
    (np.ones((1, 2)), "float32", 'is float64, expected float32'),
    (np.ones((1, 2), np.int64), "float32", "is int64, expected float32"),
    (np.ones((1, 2), np.int64), "int32", "does not fit int32"),
    ([[1, 2**40]], "int32", "does not fit int32"),
    ([[1.5, 2]], "int64", "is float64, expected int64"),
    ([[1, 0]], "bool", "is int64, expected bool"),
    (np.ones((1, 2), np.bool_), "int64", "is bool, expected int64"),
    ([[1, 2], [3]], "int64", "rows have different lengths"),
    ([["a", "b"]], "int64", "not numbers"),
    (None, "int64", "is NoneType"),
    (np.array([[1.0, 70000.0]], np.float32), "float16", "70000.0 at index [0, 1], which is too large for float16"),
    ([[1e300, 1.0]], "float32", "too large for float32"),
])
def test_refused_values(value, dtype, part):
    (item,) = refused({"x": value}, Input("x", dtype, (1, 2)))
    assert part in item.headline
    assert item.notes == (f"expected `x`: {dtype}[1, 2]",)


def test_empty_lists_take_the_dtype():
    assert one(value=[], dtype="int64", shape=("B",)).dtype == np.int64


def test_optional_inputs_may_be_absent_or_none():
    manifest = make_manifest(inputs=(Input("x", "int64", ("B",), optional=True),))
    assert prepare(manifest, {}) == {} == prepare(manifest, {"x": None})


def test_bfloat16_rounds_to_nearest_even_like_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.standard_normal(999), [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.00390625, 1.01171875, 3e38]])
    values = values.astype(np.float32)
    want = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(widen_bfloat16(narrow_bfloat16(values)), want.astype(np.float32))
    np.testing.assert_array_equal(one(value=want[:3], dtype="bfloat16", shape=(3,)), want[:3].view(np.uint16))
    assert narrow_bfloat16(np.float32(1.5)).shape == ()


def test_sizes_that_the_model_cannot_be_run_with():
    x = Input("x", "float32", ("B", "2*S + 1"), least={"B": 1, "S": 3})
    found = [i.headline for i in refused({"x": np.ones((0, 5), np.float32)}, x)]
    assert found == ["`B` is 0, but the model needs at least 1", "`S` is 2, but the model needs at least 3"]
    assert prepare(make_manifest(inputs=(x,)), {"x": np.ones((1, 7), np.float32)})["x"].shape == (1, 7)


def test_ids_below_a_size_of_the_call():
    inputs = (Input("x", "float32", ("B", "S")), Input("at", "int64", ("B",), ids_below="S + 1"))
    x = np.ones((2, 4), np.float32)
    assert prepare(make_manifest(inputs=inputs), {"x": x, "at": np.array([0, 4])})["at"].tolist() == [0, 4]
    (item,) = refused({"x": x, "at": np.array([5, -1])}, *inputs)
    assert item.headline == "input `at` has 5 at row 0, which is above 4"
    assert item.notes[0] == "ids of `at` lie in [0, S + 1), and `S + 1` = 5"


def test_neutral_inputs_that_are_left_out_hide_nothing():
    inputs = (Input("x", "float32", ("B", "S")), Input("keep", "bool", ("B", "S"), optional=True, neutral=True),
              Input("length", "int64", ("B",), length_of="S", optional=True, neutral=True))
    x = np.ones((2, 3), np.float32)
    made = prepare(make_manifest(inputs=inputs), {"x": x, "length": None})
    assert made["keep"].tolist() == [[True] * 3] * 2 and made["length"].tolist() == [3, 3] and made["length"].dtype == np.int64
    given = prepare(make_manifest(inputs=inputs), {"x": x, "length": [1, 2]})
    assert given["length"].tolist() == [1, 2] and given["keep"].all()


def test_an_input_with_a_fill_may_be_left_out():
    inputs = (Input("x", "float32", ("B", "S")), Input("kind", "int64", ("B", "S"), ids_below=5, optional=True, neutral=True, fill=3))
    x = np.ones((2, 3), np.float32)
    assert prepare(make_manifest(inputs=inputs), {"x": x})["kind"].tolist() == [[3] * 3] * 2
    assert prepare(make_manifest(inputs=inputs), {"x": x, "kind": [[1, 2, 0]] * 2})["kind"].tolist() == [[1, 2, 0]] * 2


def test_a_neutral_input_whose_size_nothing_tells():
    inputs = (Input("x", "float32", ("B",)), Input("keep", "bool", ("B", "S"), optional=True, neutral=True))
    assert [i.headline for i in refused({"x": np.ones(2, np.float32)}, *inputs)] == [
        "input `keep` is missing, and no other input tells its size"]
