"""A manifest that somebody edited: it loads and gives the same tokens, or says what is wrong; nothing else ever comes out."""

import copy
import json

import nnspec
import numpy as np
import pytest
from nnspec.runtime import ArtifactError, manifest, steps
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate

SIZES = {"gpt2": {"vocab": 43, "width": 16, "layers": 1, "heads": 2, "positions": 64},
         "llama-3-8b": {"vocab": 47, "width": 32, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 20},
         "mistral-7b": {"vocab": 47, "width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 20, "window": 5},
         "luong": {"source_vocab": 31, "target_vocab": 37, "embed": 6, "hidden": 8, "layers": 1}}
REPORTS = ("sites", "certificate", "proof", "quantization")           # of which nothing depends on the inside
LOST = object()


@pytest.fixture(scope="module", params=SIZES)
def made(request, tmp_path_factory):
    """The name of a model, its folder, and the manifest in it."""
    folder = tmp_path_factory.mktemp(request.param)
    nnspec.load(request.param, sizes=SIZES[request.param]).export(folder, init=3, form="step", certify="none")
    return request.param, folder, json.loads((folder / manifest.NAME).read_text())


def places(value, at=()):
    """Every key of an object, and every entry of a list, from the top to the leaves."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        if key not in REPORTS:
            yield from places(inner, (*at, key))


def others(old, k, count):
    """What may stand there instead: nothing, other numbers, names and kinds that the file has elsewhere; some of them for each place."""
    several = [None, 0, -1, 1, 2, 10 ** 12, True, False, "", "B", "N", "C", "R", "1", "x" * 64, [], ["B"], {}, 1.5, *steps.KINDS,
               *steps.DTYPES, *manifest.FORMS]
    near = {bool: lambda: [not old], int: lambda: [old + 1, old - 1], str: lambda: [old + "x"],
            list: lambda: [old[::-1], old + old[:1], old[1:]], dict: lambda: [dict(list(old.items())[1:])]}.get(type(old), list)()
    return [LOST, *near, *(several[(k + 5 * n) % len(several)] for n in range(count))]


def edited(value, place, new):
    changed = copy.deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if new is LOST:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return changed


def run(name, folder):
    rng = np.random.default_rng(4)
    rows = [rng.integers(1, 30, n) for n in (4, 13, 1)]
    inputs = {"source": rng.integers(0, 31, (3, 7)), "source_length": np.array([7, 2, 5])} if name == "luong" else {}
    return [t.tolist() for t in generate(decoder(folder, threads=1), rows, inputs, max_new_tokens=7, beams=2).tokens]


def edits(value, count):
    for k, place in enumerate(places(value)):
        old = value
        for key in place:
            old = old[key]
        for new in others(old, k, count):
            if new is LOST or json.dumps(new) != json.dumps(old):
                yield place, new, edited(value, place, new)


def test_every_edit_is_harmless_or_told(made):
    name, folder, value = made
    want, count = run(name, folder), {"same": 0, "told": 0}
    for place, new, changed in edits(value, 6):
        (folder / manifest.NAME).write_text(json.dumps(changed))
        try:
            assert run(name, folder) == want, (place, new)
            count["same"] += 1
        except ArtifactError as error:
            assert error.code == "bad-artifact" and all(x.headline for x in error.items), (place, new)
            count["told"] += 1
    assert count["same"] and count["told"] > 500
    (folder / manifest.NAME).write_text(json.dumps(dict(reversed(value.items())), indent=7))       # the order and blanks are free
    assert run(name, folder) == want


def test_what_is_made_to_look_whole_is_told_too(made):
    """Edits whose checksum is made again, as by another program: whatever is wrong is found, at the latest when it runs."""
    name, folder, value = made
    seen, wrong = set(), []
    for place, new, changed in edits(value, 2):
        if "sha256" in changed:
            (folder / manifest.NAME).write_text(json.dumps(changed | {"sha256": manifest.digest(changed)}))
            try:
                run(name, folder)
                seen.add("runs")
            except ArtifactError as error:
                seen.add(error.code)
            except Exception as error:
                wrong.append((place, new, repr(error)))
    assert not wrong
    assert {"runs", "bad-artifact"} <= seen <= {"runs", "bad-artifact", "bad-inputs", "run-failed"}


@pytest.mark.parametrize(("path", "new", "told"), [
    (("outputs", 0, "shape", 0), 2, "output `logits` of `manifest.json` is [2, "),
    (("inputs", 0, "shape", 0), 3, "input `tokens` of `manifest.json` is [3, N]"),
    (("outputs", 0, "name"), "scores", "output `scores` of `manifest.json` is float32; in `model.onnx` it does not exist"),
])
def test_shapes_and_names_are_held_against_the_file(made, path, new, told):
    name, folder, value = made
    changed = edited(value, path, new)
    if name == "luong":
        return
    (folder / manifest.NAME).write_text(json.dumps(changed | {"sha256": manifest.digest(changed)}))
    with pytest.raises(ArtifactError) as caught:
        decoder(folder)
    assert any(x.headline.startswith(told) for x in caught.value.items), str(caught.value)


def test_the_ids_that_a_model_takes_are_kept(made):
    """A smaller number would leave tokens out without a word."""
    name, folder, value = made
    place = next(k for k, x in enumerate(value["inputs"]) if x["ids_below"])
    changed = edited(value, ("inputs", place, "ids_below"), value["inputs"][place]["ids_below"] - 1)
    with pytest.raises(ArtifactError, match="is not what was exported"):
        manifest.decode(json.dumps(changed))
