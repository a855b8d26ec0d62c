"""Foreign files against the rules of `checkpoint:`: tied tensors, prefixes, ignored ones, and what a mismatch says."""

import nnspec
import numpy as np
import pytest
import torch
import zoo
from nnspec.checkpoints import weight_file
from nnspec.checkpoints.weight_names import fitting
from nnspec.checkpoints.weights import open_weights
from nnspec.lang.diagnostic import Diagnostics
from safetensors.torch import save_file

SPEC = """
nnspec: 1
name: small
inputs: {ids: "int64[B, S]"}
graph:
  embed: {op: embedding, in: ids, entries: 11, width: 6}
  layers: {repeat: 4, op: linear, in: embed, width: 6}
  wide: {op: linear, in: layers, width: 10, bias: false}
  narrow: {op: linear, in: wide, width: 6}
  head: {op: linear, in: narrow, weight: embed.weight, bias: false}
outputs: {head: head}
checkpoint:
  prefix: [model., base.]
  ignore: ["h.{i}.mask", "*.counter", "old.*.scale.{i}"]
  tensors:
    embed.weight: [table, head.weight]
    "layers.{i}.weight": {from: "h.{i}.w", as: "i o -> o i"}
    "layers.{i}.bias": "h.{i}.b"
    wide.weight: wide
    narrow.weight: {from: narrow, as: "i o -> o i"}
    narrow.bias: narrow_bias
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC.lstrip())
    return nnspec.load(tmp_path / "spec.yaml")


def tensors(prefix="", **changes):
    made = {"table": torch.randn(11, 6), "wide": torch.randn(10, 6), "narrow": torch.randn(10, 6), "narrow_bias": torch.randn(6)}
    made |= {f"h.{i}.{n}": torch.randn(*shape) for i in range(4) for n, shape in (("w", (6, 6)), ("b", (6,)))}
    return {prefix + n: t for n, t in (made | changes).items() if t is not None}


def load(model, folder, held):
    save_file(held, folder / "w.safetensors")
    return model.module(weights=folder / "w.safetensors").state_dict()


def wrong(model, folder, held):
    with pytest.raises(Diagnostics) as found:
        load(model, folder, held)
    assert {d.code for d in found.value.items} == {"checkpoint-mismatch"}
    return found.value.items


@pytest.mark.parametrize("prefix", ["", "model.", "base."])
def test_names_may_have_one_of_the_prefixes(model, tmp_path, prefix):
    held = tensors(prefix)
    state = load(model, tmp_path, held)
    assert state["embed.weight"].equal(held[f"{prefix}table"])
    for i in range(4):
        assert state[f"layers.{i}.weight"].equal(held[f"{prefix}h.{i}.w"].T)


def test_only_some_names_may_have_it(model, tmp_path):
    held = tensors("model.") | {"head.weight": torch.randn(11, 6)}
    held["narrow"] = held.pop("model.narrow")
    del held["model.table"]
    state = load(model, tmp_path, held)
    assert state["embed.weight"].equal(held["head.weight"]) and state["narrow.weight"].equal(held["narrow"].T)


def test_a_prefix_that_the_spec_does_not_name(model, tmp_path):
    (item,) = wrong(model, tmp_path, tensors("net."))
    assert item.helps == ("the file's names begin with `net.`: write `prefix: net.` under `checkpoint:`",)


def test_what_is_ignored(model, tmp_path):
    load(model, tmp_path, tensors("model.") | {"model.h.2.mask": torch.ones(3), "old.a.scale.7": torch.ones(3), "x.counter": torch.ones(2)})
    (item,) = wrong(model, tmp_path, tensors(**{"h.x.mask": torch.ones(3), "old.a.b.scale.7": torch.ones(2), "counter": torch.ones(1),
                                               "a.b.counter": torch.ones(1)}))
    assert item.headline.endswith("does not fit the model: 4 unexpected")


@pytest.mark.parametrize("other", ["head.weight", "model.head.weight", "base.table"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_twice_and_equal(model, tmp_path, other, dtype):
    held = {n: t.to(dtype) for n, t in tensors().items()}
    held["table"][2, 3] = float("nan")                       # which no comparison of numbers finds equal
    assert load(model, tmp_path, held | {other: held["table"].clone()})["embed.weight"][0].equal(held["table"][0].float())


@pytest.mark.parametrize("chunk", [7, 1 << 22])
def test_tied_twice_and_different(model, tmp_path, monkeypatch, chunk):
    """Every byte counts, wherever it is: +0 and -0 differ."""
    monkeypatch.setattr(weight_file, "CHUNK", chunk)
    for at in ((0, 0), (1, 1), (10, 5)):
        held = tensors()
        held["table"][at] = 0.0
        other = held["table"].clone()
        other[at] = -0.0
        (item,) = wrong(model, tmp_path, held | {"head.weight": other})
        assert item.headline.startswith("`table` and `head.weight` are tied in the spec, but two different matrices in ")
        assert item.notes == (f"the first difference is at {list(at)}: 0.0 in `table`, -0.0 in `head.weight`",)
        assert item.labels[0].span.text == "embed.weight"


@pytest.mark.parametrize("there", [("table", "own"), ("table",), ("own",)])
def test_the_first_of_several_names(tmp_path, there):
    """Two tensors of one model in some files, one in others; both are known."""
    (tmp_path / "spec.yaml").write_text(SPEC.lstrip().replace("embed.weight: [table, head.weight]", "embed.weight: {first: [own, table]}"))
    held = tensors() | {"own": torch.randn(11, 6)}
    held = {n: t for n, t in held.items() if n in there or n not in ("own", "table")}
    state = load(nnspec.load(tmp_path / "spec.yaml"), tmp_path, held)
    assert state["embed.weight"].equal(held["own" if "own" in there else "table"])


def test_names_are_either_one_tensor_or_a_first(tmp_path):
    for given, said in (("{from: table, first: [own, table]}", "not both"), ("{first: {a: b}}", "a foreign name")):
        (tmp_path / "spec.yaml").write_text(SPEC.lstrip().replace("[table, head.weight]", given))
        with pytest.raises(Diagnostics) as found:
            nnspec.load(tmp_path / "spec.yaml")
        assert said in found.value.items[0].headline


def test_tied_twice_in_other_shapes_or_dtypes(model, tmp_path):
    held = tensors()
    for other, said in ((held["table"].double(), "float64 [11, 6]"), (held["table"].T.contiguous(), "float32 [6, 11]")):
        (item,) = wrong(model, tmp_path, held | {"head.weight": other})
        assert item.notes == (f"`table` is float32 [11, 6], `head.weight` {said}",)


def test_tied_and_in_no_file(model, tmp_path):
    (item,) = wrong(model, tmp_path, tensors(table=None))
    assert item.notes == ("missing: `table` [11, 6] (or `head.weight`), for `embed.weight`",)


def test_one_error_lists_all_with_the_pattern_that_fits(model, tmp_path):
    changes = {"wide": torch.randn(6, 10), "narrow": torch.randn(6, 10), "narrow_bias": torch.randn(1, 6, 1), "h.1.b": None, "h.2.b": None,
               "h.1.bias": torch.randn(6), "h.2.bias": torch.randn(6), "h.3.w": torch.randn(6, 7)}
    (item,) = wrong(model, tmp_path, tensors(**changes))
    assert item.headline == f"`{tmp_path / 'w.safetensors'}` does not fit the model: 2 missing, 2 unexpected, 4 of another shape"
    assert sorted(item.notes) == sorted((
        "missing: `h.{1..2}.b` [6], for `layers.{i}.bias`; nearest in the file: `h.{1..2}.bias`",
        "unexpected: `h.{1..2}.bias` [6]",
        'another shape: `wide` should be [10, 6], is [6, 10], matches if transposed: write `as: "i o -> o i"`',
        "another shape: `h.3.w` should be [6, 6], is [6, 7]",
        "another shape: `narrow` should be [10, 6], is [6, 10], matches if transposed: write no `as:`",
        'another shape: `narrow_bias` should be [6], is [1, 6, 1]: write `as: "o i k -> (o i k)"`',
    ))


@pytest.mark.parametrize(("wanted", "found", "pattern", "fits"), [
    ((4, 3), (3, 4), None, "i o -> o i"), ((4, 3), (3, 5), None, None),
    ((12, 3), (3, 12), "(s o) i -> s o i", "i (s o) -> s o i"), ((3, 12), (12, 3), "i (s o) -> s o i", "(s o) i -> s o i"),
    ((5, 3, 2), (2, 3, 5), None, "k i o -> o i k"), ((5, 3, 3), (3, 3, 5), None, None), ((4, 3), (4, 3, 1), None, "o i k -> o (i k)"),
    ((4, 6), (4, 2, 3), None, "o i k -> o (i k)"), ((8, 3), (4, 2, 3), None, "o i k -> (o i) k"), ((6,), (2, 3), None, "o i -> (o i)"),
    ((4, 3), (4, 4), None, None), ((), (1,), None, None), ((2, 3, 4, 5, 6), (6, 5, 4, 3, 2), None, None)])
def test_the_pattern_that_fits(wanted, found, pattern, fits):
    assert fitting(wanted, found, pattern) == fits


@pytest.mark.parametrize("value", ['[]', '[a, a]', '[a, [b]]', '{from: []}', '{as: "i o -> o i"}', '[a, ""]'])
def test_wrong_names(tmp_path, value):
    (tmp_path / "spec.yaml").write_text(SPEC.lstrip().replace("[table, head.weight]", value))
    with pytest.raises(Diagnostics, match="a tensor is a foreign name, a list of names"):
        nnspec.load(tmp_path / "spec.yaml")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_widened_exactly_and_kept_where_they_are_wanted(model, tmp_path, dtype):
    held = {n: t.to(dtype) for n, t in tensors().items()}
    state = load(model, tmp_path, held)
    assert state["wide.weight"].dtype == torch.float32 and state["wide.weight"].equal(held["wide"].float())
    name, bits = str(dtype).removeprefix("torch."), np.uint16
    target = "ort-cuda" if dtype == torch.bfloat16 else "ort-cpu"
    model.export(tmp_path / "out", weights=tmp_path / "w.safetensors", dtype=name, target=target, certify="none")
    kept = b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())
    assert held["table"].view(torch.int16).numpy().view(bits).tobytes() in kept


@pytest.mark.parametrize("name", ["g2p", "luong", "minilm", "hard/tied", "hard/mamba", "hard/moe"])
def test_a_module_made_around_a_file_is_the_module_that_was_saved(tmp_path, name):
    """It is made without a start of its own: nothing of it may be left as it was allocated."""
    saved = zoo.stirred(name)
    save_file({k: v.contiguous() for k, v in saved.state_dict().items()}, tmp_path / "w.safetensors")
    made = zoo.model(name).module(weights=tmp_path / "w.safetensors")
    assert [(n, p.requires_grad) for n, p in made.named_parameters()] == [(n, p.requires_grad) for n, p in saved.named_parameters()]
    assert not made.training and [*made.buffers()] == []
    sizes = {d: n for d, n in zip(zoo.free(name), (3, 7, 5, 4), strict=False)}
    arrays = zoo.draw(name, sizes, short=False)
    want = zoo.run(saved, arrays, zoo.outputs(name))
    for key, found in zoo.run(made, arrays, zoo.outputs(name)).items():
        np.testing.assert_array_equal(found, want[key])


def test_the_file_may_be_read_while_it_is_open(model, tmp_path):
    held = tensors()
    save_file(held, tmp_path / "w.safetensors")
    with open_weights(tmp_path / "w.safetensors") as file:
        loader = model.loader(file)
        np.testing.assert_array_equal(loader("layers.3.weight"), held["h.3.w"].numpy().T)
        assert loader.names["embed.weight"] == "table"
