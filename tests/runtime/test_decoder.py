"""The state of a step model: written in place, grown, reordered, read in pieces."""

import json

import nnspec
import numpy as np
import onnx
import pytest
from nnspec.runtime import ArtifactError, ArtifactErrors, manifest
from nnspec.runtime import decoder as module
from nnspec.runtime.buffer import Buffer, sized
from nnspec.runtime.convert import widen_bfloat16
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate
from onnx import TensorProto, helper

GPT = {"vocab": 43, "width": 24, "layers": 2, "heads": 3, "positions": 96}
LLAMA = {"vocab": 47, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 44}
SEQ2SEQ = {"source_vocab": 31, "target_vocab": 37, "embed": 6, "hidden": 8}
MODELS = {"gpt2": GPT, "mistral-7b": LLAMA | {"window": 5}, "luong": SEQ2SEQ | {"layers": 2}, "additive-seq2seq": SEQ2SEQ | {"align": 5}}
TRANSLATORS = ("luong", "additive-seq2seq")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, sizes in MODELS.items():
        made[name] = tmp_path_factory.mktemp(name)
        nnspec.load(name, sizes=sizes).export(made[name], init=2, form="step", certify="none")
    return made


@pytest.fixture(scope="module")
def opened(folders):
    return {name: decoder(folder, threads=1) for name, folder in folders.items()}


def begin(d, rows=3, seed=0, **more):
    rng = np.random.default_rng(seed)
    if d.manifest.prefix is None:
        return d.start(rows, **more)
    return d.start(**more, source=rng.integers(0, 31, (rows, 7)), source_length=np.array([7, 2, 5])[:rows])


def ids(rows, count, seed=1):
    return np.random.default_rng(seed).integers(0, 37, (rows, count))


def step(running, tokens, length=None):
    return running.step(length, **{running.decoder.stream.chunk[0]: tokens})


@pytest.mark.parametrize("name", ["gpt2", "mistral-7b"])
def test_caches_are_written_where_they_are_bound(folders, opened, name):
    """The output of a cache is of the node that writes into its input, with no copy behind it, and the memory bound is the memory
    written."""
    graph = onnx.load(folders[name] / "model.onnx", load_external_data=False).graph
    makers = {o: n for n in graph.node for o in n.output}
    states = [s for s in opened[name].stream.states if s.kind in ("append", "ring")]
    held = {x.name: x.held for x in opened[name].manifest.outputs}
    assert len(states) == 4
    for state in states:
        writer = makers[held[state.name]]
        assert writer.op_type == {"gpt2": "GroupQueryAttention", "mistral-7b": "TensorScatter"}[name] and state.name in writer.input
    running = begin(opened[name], 2)
    memory = {s.name: running._states[s.name].array for s in states}
    step(running, ids(2, 5))
    for state in states:
        assert running._states[state.name].array is memory[state.name]
        filled = np.moveaxis(memory[state.name], state.axis, 0)
        assert (filled[:5] != 0).any(axis=(1, 2, 3)).all() and not filled[5:].any()


@pytest.mark.parametrize("name", MODELS)
def test_capacity_grows_and_changes_nothing(opened, name):
    tokens = ids(3, 90)
    small, large = begin(opened[name], capacity=8), begin(opened[name], capacity=128)
    for at in range(0, 90, 9):
        a, b = (step(r, tokens[:, at:at + 9]) for r in (small, large))
        for key in a:
            np.testing.assert_allclose(a[key], b[key], rtol=1e-4, atol=1e-5)
    assert large.capacity == 128 and small.capacity == (96 if name == "gpt2" else 128)       # doubled from 8, up to the bound


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", [[2, 0, 1], [1, 1, 1], [0, 2, 2], [2, 1], [0, 0, 1, 1, 2, 2]])
def test_reordered_rows_go_on_as_their_source(opened, name, order):
    d = opened[name]
    first, second, third = ids(3, 7), ids(len(order), 1, 2), ids(len(order), 3, 3)
    moved, still = begin(d), begin(d)
    for running in (moved, still):
        step(running, first, [7, 3, 5])
        step(running, ids(3, 1, 4))                                 # single positions have memory of their own
    moved.reorder(order)
    assert moved.past.tolist() == (still.past[order]).tolist()
    for tokens in (second, third):
        got = step(moved, tokens)
        for row, source in enumerate(order):
            alone = begin(d)
            step(alone, first, [7, 3, 5])
            step(alone, ids(3, 1, 4))
            want = step(alone, np.repeat(second[row][None], 3, 0))
            if tokens is third:
                want = step(alone, np.repeat(third[row][None], 3, 0))
            for key in got:
                np.testing.assert_allclose(got[key][row], want[key][source], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_last_position_of_each_row(opened, name, monkeypatch):
    d, tokens, length = opened[name], ids(3, 50), np.array([50, 0, 33])
    chunk = {d.stream.chunk[0]: tokens}
    whole = begin(d).step(length, **chunk)
    monkeypatch.setattr(module, "PIECE", 16)
    running = begin(d)
    last = running.extend(length, **chunk)
    assert running.past.tolist() == length.tolist() and set(last) == set(whole)
    for key, value in last.items():
        assert not value[1].any()
        for row in (0, 2):
            np.testing.assert_allclose(value[row], whole[key][row, length[row] - 1], rtol=1e-4, atol=1e-5)
    assert set(begin(d).extend(length, ["logits"], **chunk)) == {"logits"}


def test_results_are_not_overwritten_by_the_next_step(opened):
    running = begin(opened["gpt2"])
    first = step(running, ids(3, 1))["logits"]
    before = first.copy()
    step(running, ids(3, 1, 5))
    np.testing.assert_array_equal(first, before)


def test_outputs_whose_size_is_not_known_before(opened, monkeypatch):
    tokens = ids(3, 1)
    want = [step(begin(opened["additive-seq2seq"]), t) for t in (tokens, ids(3, 4))]
    monkeypatch.setattr("nnspec.runtime.bound.sized", lambda shape, sizes: None)
    for got, right in zip([step(begin(opened["additive-seq2seq"]), t) for t in (tokens, ids(3, 4))], want, strict=True):
        assert set(got) == {"logits", "alignment"}
        for key in got:
            np.testing.assert_array_equal(got[key], right[key])


def test_a_decoder_says_what_it_is(opened):
    assert repr(opened["luong"]) == "<Decoder luong along T: target -> logits, alignment>"


def test_going_back(opened):
    running, tokens = begin(opened["gpt2"]), ids(3, 9)
    want = step(running, tokens)["logits"]
    running.forget([4, 4, 4])
    np.testing.assert_allclose(step(running, tokens[:, 4:])["logits"], want[:, 4:], rtol=1e-4, atol=1e-5)
    with pytest.raises(ArtifactError, match="cannot go back"):
        begin(opened["mistral-7b"]).forget([0, 0, 0])


def test_what_is_refused_before_anything_runs(opened, folders):
    running = begin(opened["gpt2"])
    step(running, ids(3, 90))
    for call, told in ((lambda: step(running, ids(3, 7)), "row 0 would have 97 positions, and the model takes at most 96"),
                       (lambda: step(running, ids(2, 1), [1, 1]), "2 rows, and the batch 3"),
                       (lambda: step(running, np.full((3, 1), 43)), "has 43 at index"),
                       (lambda: running.step(token=ids(3, 1)), "no input `token`")):
        with pytest.raises(ArtifactErrors, match=told):
            call()
    assert running.past.tolist() == [90] * 3
    with pytest.raises(ArtifactError, match="takes no `source`"):
        opened["gpt2"].start(source=[[1]])
    with pytest.raises(ArtifactError, match="`rows` is 2"):
        opened["luong"].start(2, source=ids(3, 4) % 31, source_length=[1, 2, 3])
    for rows in (None, 0, "3", 1.5):
        with pytest.raises(ArtifactError, match="how many rows"):
            opened["gpt2"].start(rows)


@pytest.mark.parametrize(("call", "told"), [
    (lambda r: r.reorder([0, 3]), r"`rows` is \[0, 3\]"), (lambda r: r.reorder([-1, 0]), r"expected rows of the batch, in \[0, 3\)"),
    (lambda r: r.reorder([]), r"`rows` is \[\]"), (lambda r: r.reorder(1), "`rows` has 0 axes"),
    (lambda r: r.reorder(["a"]), "`rows` holds text"), (lambda r: r.forget([1]), "for each of 3 rows"),
    (lambda r: r.forget([-1, 0, 0]), r"`past` is \[-1, 0, 0\]"), (lambda r: r.forget([0.5, 1, 1]), "`past` is float64"),
    (lambda r: step(r, ids(3, 2), "a"), "`new_length` holds text"), (lambda r: step(r, ids(3, 2), [0.5, 1, 1]), "`new_length` is float64"),
])
def test_rows_and_lengths_that_cannot_be(opened, call, told):
    running = begin(opened["gpt2"])
    step(running, ids(3, 2))
    before = {k: v.read().copy() for k, v in running._states.items()}
    with pytest.raises(ArtifactError, match=told):
        call(running)
    assert running.past.tolist() == [2, 2, 2] and all(np.array_equal(v.read(), before[k]) for k, v in running._states.items())


def test_a_step_form_without_weights_is_told(tmp_path):
    nnspec.load("gpt2", sizes=GPT).export(tmp_path, form="step", no_weights=True)
    assert manifest.read(tmp_path).stream is not None
    with pytest.raises(ArtifactError, match="has no weights, so it cannot run"):
        decoder(tmp_path)


def test_a_memory_that_all_rows_share(tmp_path):
    (tmp_path / "spec.yaml").write_text('''
nnspec: 1
use: [attention]
inputs: {bank: "float[S, 8]", tokens: "int64[B, T]"}
graph:
  embed: {op: embedding, in: tokens, entries: 31, width: 8}
  mixed: {block: multi_head_attention, in: embed, heads: 2, causal: true}
  key: {op: linear, in: bank, width: 8}
  scores: {op: einsum, in: [mixed, key], as: "b t m, s m -> b t s"}
  weights: {op: softmax, in: scores}
  read: {op: einsum, in: [weights, key], as: "b t s, s m -> b t m"}
  logits: {op: linear, in: read, width: 31}
outputs: [logits]
''')
    model = nnspec.load(tmp_path / "spec.yaml")
    made = model.export(tmp_path / "step", init=3, form="step")
    assert made.certificate["status"] == "passed"
    model.export(tmp_path / "full", init=3, certify="none")
    bank, tokens = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32), ids(3, 6) % 31
    want, d = module.open(tmp_path / "full")(bank=bank, tokens=tokens)["logits"], decoder(tmp_path / "step")
    np.testing.assert_allclose(d.start(3, bank=bank).step(tokens=tokens)["logits"], want, rtol=1e-4, atol=1e-6)
    running = d.start(3, bank=bank)
    running.reorder([2, 0])
    np.testing.assert_allclose(running.step(tokens=tokens[[2, 0]])["logits"], want[[2, 0]], rtol=1e-4, atol=1e-6)
    alone = [generate(d, [row], {"bank": bank}, max_new_tokens=4).tokens[0].tolist() for row in ([1, 2], [3])]
    assert [t.tolist() for t in generate(d, [[1, 2], [3]], {"bank": bank}, max_new_tokens=4).tokens] == alone
    with pytest.raises(ArtifactError, match="how many rows"):
        d.start(bank=bank)


def test_a_carry_that_starts_at_zeros_of_the_size_of_the_memory(tmp_path):
    """What has been added up along T, for every entry of a memory of free size."""
    (tmp_path / "spec.yaml").write_text('''
nnspec: 1
inputs: {bank: "float[B, S, 8]", tokens: "int64[B, T]"}
graph:
  embed: {op: embedding, in: tokens, entries: 31, width: 8}
  near: {op: einsum, in: [embed, bank], as: "b t m, b s m -> b t s"}
  total: {op: cumsum, in: near, axis: 1}
outputs: [total]
''')
    model = nnspec.load(tmp_path / "spec.yaml")
    made = model.export(tmp_path / "step", init=3, form="step", along="T")
    assert made.certificate["status"] == "passed"
    model.export(tmp_path / "full", init=3, certify="none")
    bank, tokens = np.random.default_rng(1).normal(size=(3, 5, 8)).astype(np.float32), ids(3, 6) % 31
    want = module.open(tmp_path / "full")(bank=bank, tokens=tokens)["total"]
    running = decoder(tmp_path / "step").start(bank=bank)
    np.testing.assert_allclose(running.step(tokens=tokens[:, :4])["total"], want[:, :4], rtol=1e-4, atol=1e-6)
    order = [2, 0]
    running.reorder(order)
    np.testing.assert_allclose(running.step(tokens=tokens[order, 4:])["total"], want[order, 4:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("change", "told"), [
    (lambda s, m: s["states"][1].update(shape=["B", "C", 8]), "differs from the input of its name in dtype or shape"),
    (lambda s, m: s["states"][1].update(dtype="float16"), "differs from the input of its name in dtype or shape"),
    (lambda s, m: s["states"][1].update(name="x"), "names `x`, which is no input"),
    (lambda s, m: s["states"][1].update(batch=7), "its rows on axis 7"),
    (lambda s, m: s["states"][1].update(axis=0), "positions on axis 0"),
    (lambda s, m: s["states"][1].update(axis=None), "is of the kind ring, with positions on axis None"),
    (lambda s, m: s["states"][1].update(capacity="Z"), "the capacity Z"),
    (lambda s, m: s["states"][1].update(window=None), "the window None"),
    (lambda s, m: s["states"][1].update(kind="append"), "the window 5"),
    (lambda s, m: s["states"][1].update(start="x"), "takes `x` from"),
    (lambda s, m: s["states"].pop(1), "is not of the chunk, nor fixed, nor a state"),
    (lambda s, m: s["states"].pop(0), "has 0 states of the kind clock"),
    (lambda s, m: m["outputs"].pop(-1), "is no output of"),
    (lambda s, m: s.update(fixed=["tokens"]), "takes `tokens` from the prefix model"),
    (lambda s, m: s.update(limit=0), "`stream.limit` is 0"),
    (lambda s, m: s.update(chunk=["token"]), "names `token`, which is no input"),
    (lambda s, m: m.update(form="full"), "belongs to the form step"),
    (lambda s, m: m.update(stream=None), "belongs to the form step"),
])
def test_a_changed_state_is_found_before_it_runs(folders, tmp_path, change, told):
    value = json.loads((folders["mistral-7b"] / "manifest.json").read_text())
    change(value["stream"], value)
    with pytest.raises(ArtifactError, match=told):
        manifest.decode(json.dumps(value))


def test_bfloat16_is_bound_by_address(tmp_path):
    """ONNX Runtime reads and writes the bits: `state' = state + 1` in bfloat16, through float32."""
    import onnxruntime
    info, bf16 = helper.make_tensor_value_info, TensorProto.BFLOAT16
    nodes = [helper.make_node("Cast", ["state"], ["wide"], to=TensorProto.FLOAT), helper.make_node("Add", ["wide", "one"], ["sum"]),
             helper.make_node("Cast", ["sum"], ["next"], to=bf16)]
    graph = helper.make_graph(nodes, "bf16", [info("state", bf16, ["B", 3]), info("one", TensorProto.FLOAT, [])],
                              [info("next", bf16, ["B", 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    state, binding = Buffer.of(numbers, "bfloat16"), session.io_binding()
    start = state.numbers().copy()
    np.testing.assert_allclose(start, numbers, rtol=2 ** -8)
    state.bind_input(binding, "state")
    state.bind_output(binding, "next")
    binding.bind_cpu_input("one", np.ones((), np.float32))
    for _ in range(2):
        session.run_with_iobinding(binding)
    np.testing.assert_allclose(state.numbers(), start + 2, rtol=2 ** -6)
    state.write(np.zeros((2, 3), np.uint16))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(widen_bfloat16(state.read()), np.ones((2, 3), np.float32))


def test_sizes_of_shapes():
    assert sized(("B", "N", 5, "2*S + 1"), {"B": 3, "N": 2, "S": 4}) == (3, 2, 5, 9)
    assert sized(("B", "T"), {"B": 3}) is None and sized(("S*S",), {"S": 2}) is None
