"""Values moved and cut, against numpy and einops."""

import einops
import numpy as np
import pytest
from nnspec.ir.dimension import Dim
from nnspec.ops.layout import Concat, Expand, Flip, Pad, Rearrange, Slice, Split, Stack, Take
from nnspec.ops.patterns import parse_pattern
from support import check_op, fault, infer, run_onnx, run_torch

rng = np.random.default_rng(2)


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_joins_along_one_axis(axis):
    parts = [floats(*(n if i == axis % 3 else s for i, s in enumerate((3, 5, 1)))) for n in (2, 1, 4)]
    check_op(Concat(axis=axis), {"in": parts}, {"out": np.concatenate(parts, axis)})


def test_concat_adds_free_sizes():
    past, new = floats(2, 3, 5), floats(2, 4, 5)
    arrays, dims = {"in": [past, new]}, {"in.0": ("B", "M", 5), "in.1": ("B", "S", 5)}
    check_op(Concat(axis=1), arrays, {"out": np.concatenate([past, new], 1)}, dims=dims)
    assert str(infer(Concat(axis=1), arrays, dims)[2][0]) == "float[B, M + S, 5]"
    check_op(Concat(axis=1), {"in": [past[:, :0], new]}, {"out": new}, dims=dims)


def test_concat_keeps_other_dtypes():
    ids = [rng.integers(0, 9, (2, 3)), rng.integers(0, 9, (2, 1))]
    check_op(Concat(), {"in": ids}, {"out": np.concatenate(ids, -1)})
    check_op(Concat(), {"in": [i > 4 for i in ids]}, {"out": np.concatenate(ids, -1) > 4})


def test_concat_refuses_what_does_not_fit():
    wrong = fault(Concat(axis=1), {"in": [floats(2, 3), floats(4, 3)]})
    assert wrong.code == "shape-mismatch" and wrong.ports == {"in.0": "is [2, 3]", "in.1": "is [4, 3]"}
    assert fault(Concat(), {"in": [floats(2, 3), floats(3)]}).code == "rank-mismatch"
    assert fault(Concat(), {"in": [floats(2, 3), rng.integers(0, 9, (2, 3))]}).code == "dtype-mismatch"
    assert fault(Concat(), {"in": []}).code == "bad-attribute"
    assert fault(Concat(axis=2), {"in": [floats(2, 3)]}).attribute == "axis"


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack_makes_an_axis(axis):
    parts = [floats(2, 5) for _ in range(3)]
    check_op(Stack(axis=axis), {"in": parts}, {"out": np.stack(parts, axis)}, dims={f"in.{i}": ("B", 5) for i in range(3)})


def test_stack_refuses_different_shapes():
    assert fault(Stack(), {"in": [floats(2, 3), floats(2, 4)]}).code == "shape-mismatch"
    assert fault(Stack(axis=3), {"in": [floats(2, 3)]}).code == "shape-mismatch"


def test_split_by_widths():
    x = floats(2, 3, 7)
    want = dict(zip("012", np.split(x, [4, 5], -1), strict=True))
    check_op(Split(widths=(4, 1, 2)), {"in": x}, want, dims={"in": ("B", "S", 7)})
    check_op(Split(widths=(7,)), {"in": x}, {"0": x}, dims={"in": ("B", "S", 7)})
    check_op(Split(widths=(0, 7)), {"in": x}, {"0": x[..., :0], "1": x}, dims={"in": ("B", "S", 7)})


def test_split_into_equal_parts():
    x = floats(2, 6, 3)
    check_op(Split(into=3, axis=1), {"in": x}, dict(zip("012", np.split(x, 3, 1), strict=True)), dims={"in": ("B", 6, 3)})
    twice = infer(Split(into=2, axis=1), {"in": x}, {"in": ("B", 6, 3)})[2]
    assert [str(o) for o in twice] == ["float[B, 3, 3]"] * 2


def test_split_refuses_what_does_not_sum():
    x = floats(2, 7)
    assert "sum to 6, but the axis is 7" in fault(Split(widths=(4, 2)), {"in": x}).headline
    assert fault(Split(into=2), {"in": x}).code == "shape-mismatch"
    assert fault(Split(into=2), {"in": x}, {"in": (2, "S")}).code == "shape-mismatch"
    assert fault(Split(), {"in": x}).code == "bad-attribute"
    assert fault(Split(widths=(3, 4), into=2), {"in": x}).code == "bad-attribute"
    assert fault(Split(widths=(-1, 8)), {"in": x}).code == "bad-attribute"


SLICES = [({"start": 1, "stop": 4}, slice(1, 4)), ({"start": 2}, slice(2, None)), ({"stop": -1}, slice(None, -1)),
          ({"start": -3}, slice(-3, None)), ({"first": 2}, slice(0, 2)), ({"last": 2}, slice(-2, None)),
          ({"start": 1, "stop": -1, "step": 2}, slice(1, -1, 2)), ({"step": 3}, slice(None, None, 3)),
          ({"start": -4, "stop": -2}, slice(-4, -2)), ({"first": 0}, slice(0, 0)), ({"last": 0}, slice(7, 7)),
          ({"start": 3, "stop": 3}, slice(3, 3))]


@pytest.mark.parametrize(("settings", "key"), SLICES)
@pytest.mark.parametrize("axis", [1, -1, 0])
def test_slice_cuts(settings, key, axis):
    x = floats(7, 7, 7)
    index = tuple(key if i == axis % 3 else slice(None) for i in range(3))
    for named in (None, {"in": tuple("S" if i == axis % 3 else 7 for i in range(3))}):
        check_op(Slice(axis=axis, **settings), {"in": x}, {"out": x[index]}, dims=named)


@pytest.mark.parametrize(("settings", "key"), SLICES)
def test_slice_takes_sizes_as_dimensions(settings, key):
    x = floats(2, 7)
    sizes = {name: n if name == "step" else Dim.const(n) for name, n in settings.items()}
    check_op(Slice(axis=1, **sizes), {"in": x}, {"out": x[:, key]}, dims={"in": ("B", "S")})


@pytest.mark.parametrize("m", [0, 1, 3])
def test_slice_last_of_a_free_size(m):
    class Memory(Slice):
        signature = "in: [*b], past: [*p] -> [*c]"

    x, past = floats(2, 4 + m, 5), floats(2, m)
    dims = {"in": ("B", "C", 5), "past": ("B", "M")}
    op = Memory(axis=1, last=Dim.symbol("M"))
    check_op(op, {"in": x, "past": past}, {"out": x[:, 4:]}, dims=dims)
    assert str(infer(op, {"in": x, "past": past}, dims)[2][0]) == "float[B, M, 5]"
    check_op(Memory(axis=1, first=Dim.symbol("M")), {"in": x, "past": past}, {"out": x[:, :m]}, dims=dims)
    check_op(Memory(axis=1, start=Dim.symbol("M")), {"in": x, "past": past}, {"out": x[:, m:]}, dims=dims)


def test_slice_beyond_a_free_axis_raises_when_run():
    with pytest.raises(RuntimeError):
        run_torch(Slice(axis=0, first=5), {"in": floats(3, 2)}, {"in": ("S", 2)})
    with pytest.raises(RuntimeError):
        run_torch(Slice(axis=0, last=5), {"in": floats(3, 2)}, {"in": ("S", 2)})


def test_slice_refuses_what_is_outside():
    x = floats(3, 7)
    assert fault(Slice(axis=1, stop=8), {"in": x}).code == "shape-mismatch"
    assert fault(Slice(axis=1, last=8), {"in": x}).code == "shape-mismatch"
    assert fault(Slice(axis=1, start=4, stop=2), {"in": x}).code == "shape-mismatch"
    assert fault(Slice(axis=2, stop=1), {"in": x}).code == "shape-mismatch"
    assert fault(Slice(axis=1, first=2, last=2), {"in": x}).code == "bad-attribute"
    assert fault(Slice(axis=1), {"in": x}).code == "bad-attribute"
    assert fault(Slice(axis=1, start=0, step=-1), {"in": x}).help == "`flip` reverses an axis"


@pytest.mark.parametrize(("axis", "at"), [(0, 1), (1, 0), (1, -1), (-1, 2)])
def test_take_removes_the_axis(axis, at):
    x = floats(2, 5, 3)
    check_op(Take(axis=axis, at=at), {"in": x}, {"out": np.take(x, at, axis)}, dims={"in": ("B", "S", "D")})


def test_take_refuses_an_entry_that_is_not_there():
    assert fault(Take(axis=1, at=5), {"in": floats(2, 5)}).attribute == "at"
    assert fault(Take(axis=1, at=-6), {"in": floats(2, 5)}).code == "shape-mismatch"


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_pad_adds_a_value(axis):
    x = floats(2, 3, 1)
    widths = [(2, 1) if i == axis % 3 else (0, 0) for i in range(3)]
    check_op(Pad(axis=axis, before=2, after=1, value=-1.5), {"in": x}, {"out": np.pad(x, widths, constant_values=-1.5)},
             dims={"in": ("B", "S", "D")})
    check_op(Pad(axis=axis, before=2, after=1), {"in": x}, {"out": np.pad(x, widths)})


def test_pad_by_a_free_size():
    class Like(Pad):
        signature = "in: [*b], like: [*c] -> [*d]"

    x, like = floats(2, 3, 5), floats(4)
    op = Like(axis=1, before=Dim.symbol("M"), after=Dim.const(1))
    dims = {"in": ("B", "S", 5), "like": ("M",)}
    check_op(op, {"in": x, "like": like}, {"out": np.pad(x, [(0, 0), (4, 1), (0, 0)])}, dims=dims)
    assert str(infer(op, {"in": x, "like": like}, dims)[2][0]) == "float[B, M + S + 1, 5]"


def test_pad_other_dtypes():
    ids = rng.integers(0, 9, (2, 3))
    check_op(Pad(axis=1, after=2, value=7), {"in": ids}, {"out": np.pad(ids, [(0, 0), (0, 2)], constant_values=7)},
             targets=("ort-cpu", "ort-cuda", "portable"))
    check_op(Pad(axis=1, before=1, value=1), {"in": ids > 4}, {"out": np.pad(ids > 4, [(0, 0), (1, 0)], constant_values=True)},
             targets=("ort-cpu", "ort-cuda", "portable"))
    assert fault(Pad(axis=1, after=1, value=0.5), {"in": ids}).attribute == "value"
    assert fault(Pad(axis=1, after=1, value=2), {"in": ids > 4}).attribute == "value"
    assert fault(Pad(axis=1, before=-1), {"in": ids}).attribute == "before"


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_flip_reverses(axis, length):
    x = floats(2, length, 3)
    check_op(Flip(axis=axis), {"in": x}, {"out": np.flip(x, axis)}, dims={"in": ("B", "S", 3)})


PATTERNS = [
    ("b s (h d) -> b h s d", (2, 5, 12), {"h": 3}, ("B", "S", 12)),
    ("b s (h d) -> b h s d", (2, 5, 12), {"h": 3, "d": 4}, ("B", "S", 12)),
    ("b h s d -> b s (h d)", (2, 3, 5, 4), {}, ("B", 3, "S", 4)),
    ("b c h w -> b (h w) c", (2, 3, 5, 4), {}, ("B", 3, "H", "W")),
    ("b s d -> b 1 s d", (2, 5, 3), {}, ("B", "S", 3)),
    ("b 1 s d -> b s d", (2, 1, 5, 3), {}, ("B", 1, "S", 3)),
    ("b s d -> (b s) d", (2, 5, 3), {}, ("B", "S", 3)),
    ("(b k) s d -> b k s d", (6, 5, 3), {"k": 3}, (6, "S", 3)),
    ("... (g d) -> g ... d", (2, 5, 6), {"g": 2}, ("B", "S", 6)),
    ("b ... d -> b d ...", (2, 5, 4, 3), {}, ("B", "S", 4, 3)),
    ("b ... -> b (...)", (2, 5, 4), {}, ("B", 5, 4)),
    ("b ... -> b (...)", (2,), {}, ("B",)),
    ("b h1 s -> s b h1", (2, 5, 4), {}, ("B", 5, "S")),
    ("s d -> s d", (5, 4), {}, ("S", 4)),
    ("a b -> 1 b 1 a 1", (2, 3), {}, ("A", "C")),
    ("b (x y) (z w) -> (x z) b (w y)", (2, 6, 12), {"x": 2, "w": 3}, ("B", 6, 12)),
    ("(h s d) i -> s (h d) i", (24, 3), {"h": 2, "s": 3}, (24, "I")),
    ("b 1 (h d) 1 -> h (b d)", (2, 1, 6, 1), {"h": 3}, ("B", 1, 6, 1)),
]


@pytest.mark.parametrize(("text", "shape", "sizes", "named"), PATTERNS)
def test_rearrange_is_einops(text, shape, sizes, named):
    x = floats(*shape)
    want = einops.rearrange(x, text, **sizes)
    for dims in (None, {"in": named}):
        check_op(Rearrange(pattern=text, sizes=tuple(sizes.items())), {"in": x}, {"out": want}, dims=dims)


def test_rearrange_of_axes_without_entries():
    x = floats(2, 0, 12)
    dims, heads = {"in": ("B", "M", 12)}, Rearrange(pattern="b s (h d) -> b h s d", sizes=(("h", 3),))
    check_op(heads, {"in": x}, {"out": x.reshape(2, 3, 0, 4)}, dims=dims)
    check_op(Rearrange(pattern="b s d -> d (b s)"), {"in": x}, {"out": x.reshape(12, 0)}, dims=dims)


def test_rearrange_splits_a_free_axis():
    class Split(Rearrange):
        signature = "in: [*b], like: [*c] -> [*d]"

    x, like = floats(2, 6, 5), floats(3)
    check_op(Split(pattern="b (g k) d -> b k g d", sizes=(("k", 2),)), {"in": x, "like": like},
             {"out": einops.rearrange(x, "b (g k) d -> b k g d", k=2)}, dims={"in": ("B", 6, 5), "like": ("G",)})


def test_rearrange_source_is_readable(monkeypatch):
    written = []
    monkeypatch.setattr("support.compile", lambda text, *a: written.append(text) or compile(text, *a), raising=False)
    run_torch(Rearrange(pattern="b s (h d) -> b h s d", sizes=(("h", 3),)), {"in": floats(2, 5, 12)}, {"in": ("B", "S", 12)})
    assert "in_.unflatten(2, (3, 4)).transpose(1, 2)" in written[0]
    run_torch(Rearrange(pattern="b h s d -> b s (h d)"), {"in": floats(2, 3, 5, 4)}, {"in": ("B", 3, "S", 4)})
    assert "in_.transpose(1, 2).flatten(2, 3)" in written[1]


REFUSED = [
    ("b s d", "has no single `->`"), ("b s -> b s -> b", "has no single `->`"), ("b s d -> b d", "`s` on one side only"),
    ("b s d -> b s d e", "`e` on one side only"), ("b b d -> b d", "`b` twice"), ("b (s d -> b s d", "without its `)`"),
    ("b ((s d)) -> b s d", "has `(` where"), ("b s * -> b s", "has `*` where"), ("b (... d) -> b ... d", "inside `( )`"),
    ("... ... -> ...", "`...` twice"), ("b s, d -> b s d", "no `,`"), ("b 2 -> b", "has `2` where"),
]


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_rearrange_refuses_what_is_no_pattern(text, says):
    wrong = fault(Rearrange(pattern=text), {"in": floats(2, 5, 4)})
    assert wrong.code == "bad-attribute" and wrong.attribute == "as" and says in wrong.headline


def test_rearrange_refuses_what_does_not_fit():
    x = floats(2, 5, 12)
    assert fault(Rearrange(pattern="b s -> s b"), {"in": x}).code == "rank-mismatch"
    assert fault(Rearrange(pattern="a b c d ... -> a b c d ..."), {"in": x}).code == "rank-mismatch"
    assert "which 5 does not divide" in fault(Rearrange(pattern="b s (h d) -> b h s d", sizes=(("h", 5),)), {"in": x}).headline
    assert "`h` and `d`" in fault(Rearrange(pattern="b s (h d) -> b h s d"), {"in": x}).headline
    assert fault(Rearrange(pattern="b s d -> b d s", sizes=(("d", 13),)), {"in": x}).code == "shape-mismatch"
    assert fault(Rearrange(pattern="b 1 d -> b d"), {"in": x}).code == "shape-mismatch"
    assert fault(Rearrange(pattern="b s d -> b d s", sizes=(("heads", 3),)), {"in": x}).attribute == "heads"
    pairs = Rearrange(pattern="b (s k) d -> b s k d", sizes=(("k", 2),))
    assert fault(pairs, {"in": x}, {"in": ("B", "S", 12)}).code == "shape-mismatch"


def test_patterns_are_read_once():
    assert parse_pattern("b (h d) 1 ... -> ... b h d").inputs == (("b", ("h", "d"), (), "..."),)


def test_expand_repeats():
    class Like(Expand):
        signature = "in: [*b], like: [*c] -> [*d]"

    x, like = floats(1, 1, 5), floats(3, 4)
    b, s = Dim.symbol("B"), Dim.symbol("S")
    dims = {"like": ("B", "S")}
    check_op(Like(shape=(b, s, 5)), {"in": x, "like": like}, {"out": np.broadcast_to(x, (3, 4, 5))}, dims=dims)
    check_op(Like(shape=(b, 2, 1, s, 5)), {"in": x, "like": like}, {"out": np.broadcast_to(x, (3, 2, 1, 4, 5))}, dims=dims)
    key = floats(2, 1, 4, 5)
    check_op(Expand(shape=(b, 3, s, 5)), {"in": key}, {"out": np.broadcast_to(key, (2, 3, 4, 5))}, dims={"in": ("B", 1, "S", 5)})
    check_op(Expand(shape=(b, 1, s, 5)), {"in": key}, {"out": key}, dims={"in": ("B", 1, "S", 5)})


def test_expand_refuses_what_does_not_broadcast():
    x = floats(2, 3)
    assert fault(Expand(shape=(2, 4)), {"in": x}).code == "shape-mismatch"
    assert fault(Expand(shape=(3,)), {"in": x}).code == "rank-mismatch"
    assert fault(Expand(shape=(Dim.symbol("B"), 3)), {"in": x}).code == "shape-mismatch"


def test_half_precision_moves_unchanged():
    x = floats(2, 5, 12).astype(np.float16)
    op = Rearrange(pattern="b s (h d) -> b h s d", sizes=(("h", 3),))
    got = run_onnx(op, {"in": x.astype(np.float32)}, {"in": ("B", "S", 12)}, dtype="float16")["out"]
    assert got.dtype == np.float16 and (got == einops.rearrange(x, "b s (h d) -> b h s d", h=3)).all()
