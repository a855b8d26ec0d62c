"""Optional inputs of the prefix model: left out at run time or of the files, they are what the whole graph does without them."""

from itertools import chain, combinations

import nnspec
import numpy as np
import pytest
import stepping
import zoo
from nnspec.lang.diagnostic import Diagnostics
from nnspec.runtime import ArtifactError
from nnspec.runtime.decoder import decoder
from nnspec.runtime.manifest import read
from nnspec.stages.stream import step_form

HEAD = """
nnspec: 1
use: [attention]
inputs:
  source: int64[B, S]
  tokens: int64[B, T]
"""
BODY = """
graph:
  memory: {op: embedding, in: source, entries: 31, width: 8}
  embed: {op: embedding, in: tokens, entries: 31, width: 8}
  state: {op: gru, in: embed, hidden: 8}
  q: {op: rearrange, in: state, as: "b t d -> b 1 t d"}
"""
CASES = {
    "a mask and a length that only steps read": (("length", "keep"), True, """
  k: {op: rearrange, in: memory, as: "b s d -> b 1 s d"}
  cross: {op: attention, query: q, key: k, value: k, length: length}
  y: {op: rearrange, in: cross, as: "b h t d -> b t (h d)"}
  near: {op: einsum, in: [state, memory], as: "b t d, b s d -> b t s"}
  weights: {op: softmax, in: near, keep: keep}
  z: {op: einsum, in: [weights, memory], as: "b t s, b s d -> b t d"}
"""),
    "masks that are joined": (("length", "keep"), True, """
  inside: {op: length_mask, in: length, like: memory}
  seen: {op: and, in: [inside, keep]}
  near: {op: einsum, in: [state, memory], as: "b t d, b s d -> b t s"}
  y: {op: softmax, in: near, keep: seen}
  z: {op: mean, in: memory, axis: 1, keep: keep}
"""),
    "masks of which one is enough": (("length", "keep"), False, """
  inside: {op: length_mask, in: length, like: memory}
  seen: {op: or, in: [inside, keep]}
  near: {op: einsum, in: [state, memory], as: "b t d, b s d -> b t s"}
  y: {op: softmax, in: near, keep: seen}
  z: {op: softmax, in: near, keep: keep}
"""),
    "a mask that hides": (("keep",), False, """
  hidden: {op: not, in: keep}
  near: {op: einsum, in: [state, memory], as: "b t d, b s d -> b t s"}
  y: {op: softmax, in: near, keep: hidden}
  z: {op: softmax, in: near}
"""),
    "kinds, with a number for what is left out": (("kinds", "keep"), True, """
  kind: {op: fill_absent, in: kinds, value: 2}
  table: {op: embedding, in: kind, entries: 3, width: 8}
  keyed: {op: add, in: [memory, table]}
  y: {op: einsum, in: [state, keyed], as: "b t d, b s d -> b t s"}
  z: {op: softmax, in: y, keep: keep}
"""),
    "in the steps of a loop": (("length", "keep", "kinds"), True, """
  loop: {scan: step, along: T, each: {one: embed}, carry: {held: 0}, memory: memory, keep: keep, length: length, kinds: kinds}
  y: {op: linear, in: loop.held, width: 5}
  z: {op: square, in: loop.weights}
"""),
}
STEP = """
blocks:
  step:
    inputs:
      one: "float[B, 8]"
      held: "float[B, 8]"
      memory: "float[B, S, 8]"
      keep: "optional bool[B, S]"
      length: "optional int64[B]"
      kinds: "optional int64[B, S]"
    graph:
      query: {op: add, in: [one, held]}
      kind: {op: fill_absent, in: kinds, value: 1}
      table: {op: embedding, in: kind, entries: 3, width: 8}
      keyed: {op: add, in: [memory, table]}
      read: {block: dot_attention, query: query, memory: keyed, keep: keep, length: length}
    outputs: {held: read.context, weights: read.weights}
"""
CASES["a loop over the memory, for every position"] = (("length",), True, """
  near: {op: einsum, in: [state, memory], as: "b t d, b s d -> b t s"}
  loop: {scan: add_up, along: S, each: {one: near}, carry: {held: zeros}, length: length}
  zeros: {op: full, shape: [B, T], value: 0}
  y: {op: square, in: loop.last.held}
  z: {op: identity, in: near}
blocks:
  add_up:
    inputs: {one: "float[B, T]", held: "float[B, T]"}
    graph:
      small: {op: scale, in: held, by: 0.5}
      sum: {op: add, in: [one, small]}
    outputs: {held: sum}
""")
CASES["a state to start from"] = (("start",), False, """
  again: {op: gru, in: state, hidden: 8, state: start}
  y: {op: einsum, in: [again, memory], as: "b t d, b s d -> b t s"}
  z: {op: square, in: again}
""")
TYPES = {"start": "float[1, B, 8]", "length": "int64[B]", "keep": "bool[B, S]", "kinds": "int64[B, S]"}
ROWS, LENGTH, MEMORY = 3, 7, 5


def load(folder, names, body):
    inputs = "".join(f"  {n}: optional {TYPES[n]}\n" for n in names)
    path = folder / "spec.yaml"
    path.write_text(HEAD + inputs + BODY + body.lstrip("\n") + "outputs: [y, z]\n" + (STEP if "scan: step" in body else ""))
    return nnspec.load(path)


def draw(names):
    rng = np.random.default_rng(7)
    made = {"source": rng.integers(0, 31, (ROWS, MEMORY)), "tokens": rng.integers(0, 31, (ROWS, LENGTH)),
            "length": np.array([5, 2, 3]), "keep": rng.random((ROWS, MEMORY)) < 0.6, "kinds": rng.integers(0, 3, (ROWS, MEMORY)),
            "start": rng.normal(size=(1, ROWS, 8)).astype(np.float32)}
    made["keep"][:, 0] = True
    return {k: v for k, v in made.items() if k in ("source", "tokens", *names)}


@pytest.mark.parametrize("name", CASES)
def test_left_out_of_the_files(tmp_path, name):
    names, _, body = CASES[name]
    model, whole = load(tmp_path, names, body), draw(names)
    module = zoo.stir(model.module(seed=1))
    full = stepping.call(module, model.graph, whole)
    for absent in chain(*(combinations(names, n + 1) for n in range(len(names)))):
        given = {k: v for k, v in whole.items() if k not in absent}
        want = stepping.call(module, model.graph, given)
        assert any(not np.allclose(want[k], full[k], atol=1e-3) for k in want), "what is left out matters"
        form = step_form(model.lowered, "T", frozenset(absent))
        assert set(absent) <= set(form.dropped)
        for way in stepping.WAYS:
            zoo.close(stepping.TorchStepper(form, module)(given, LENGTH, way), want, 1e-4, 1e-6, f"PyTorch, {way}")
        made = model.export(tmp_path / "step", weights=module, form="step", along="T", without=absent)
        assert made.certificate["status"] == "passed"
        assert not set(absent) & {x.name for x in made.prefix.inputs}
        zoo.close(stepping.run_decoder(decoder(tmp_path / "step", threads=1), given, LENGTH, "ragged chunks")[0], want, 1e-4, 1e-6, "ONNX")
        with pytest.raises(ArtifactError, match="the model has no input"):
            decoder(tmp_path / "step").start(**{k: v for k, v in whole.items() if k != "tokens"})


@pytest.mark.parametrize("name", CASES)
def test_left_out_when_it_runs(tmp_path, name):
    """What is neutral may be missing, and then hides nothing; the rest is asked for, never guessed."""
    names, neutral, body = CASES[name]
    model, whole = load(tmp_path, names, body), draw(names)
    module = zoo.stir(model.module(seed=1))
    model.export(tmp_path / "step", weights=module, form="step", along="T", certify="none")
    assert {x.name: x.neutral for x in read(tmp_path / "step").prefix.inputs if x.optional} == dict.fromkeys(names, neutral)
    opened = decoder(tmp_path / "step", threads=1)
    for absent in chain(*(combinations(names, n) for n in range(len(names) + 1))):
        given = {k: v for k, v in whole.items() if k not in absent}
        want = stepping.call(module, model.graph, given)
        if neutral or not absent:
            zoo.close(stepping.run_decoder(opened, given, LENGTH, "ragged chunks")[0], want, 1e-4, 1e-6, str(absent))
        else:
            with pytest.raises(ArtifactError, match="exported with it"):
                stepping.run_decoder(opened, given, LENGTH, "ragged chunks")


def test_a_mask_of_the_stream_says_nothing_of_the_others(tmp_path):
    """`more` is of the steps, which do without it: that it is turned round does not make `keep` one that must be given."""
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + "  keep: optional bool[B, S]\n  more: optional bool[B, T]\n" + BODY + """
  near: {op: einsum, in: [state, memory], as: "b t d, b s d -> b t s"}
  z: {op: softmax, in: near, keep: keep}
  off: {op: not, in: more}
  one: {op: linear, in: state, width: 1}
  flat: {op: rearrange, in: one, as: "b t 1 -> b t"}
  y: {op: mask_fill, in: flat, keep: off, value: 0}
outputs: [y, z]
""")
    made = nnspec.load(path).export(tmp_path / "step", init=0, form="step", along="T")
    assert made.certificate["status"] == "passed" and made.stream.dropped == ("more",)
    assert [x.neutral for x in made.prefix.inputs if x.name == "keep"] == [True]


def test_outputs_made_of_nothing_else_are_told(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + "  keep: optional bool[B, S]\n" + BODY + "  hidden: {op: not, in: keep}\noutputs: [state, hidden]\n")
    model = nnspec.load(path)
    with pytest.raises(Diagnostics) as found:
        model.export(tmp_path / "step", init=0, form="step", along="T", without=("keep",))
    (one,) = found.value.items
    assert one.notes == ("output `hidden` is made of nothing but inputs that are left out",)
    assert path.read_text().splitlines()[one.labels[0].span.line - 1].startswith("  hidden:")
    assert not (tmp_path / "step").exists()
