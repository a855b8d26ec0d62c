"""Generation: a batch is its rows alone, the cache changes nothing, seeds, limits, and what is told as it comes."""

import itertools
import json
import time

import nnspec
import numpy as np
import pytest
from nnspec.runtime import ArtifactError, ArtifactErrors
from nnspec.runtime.decoder import decoder
from nnspec.runtime.generate import generate, prompts, scores_output, stream
from nnspec.runtime.text import generate_text, tokenizer

GPT = {"vocab": 43, "width": 24, "layers": 2, "heads": 3, "positions": 64}
LLAMA = {"vocab": 47, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 44}
SEQ2SEQ = {"source_vocab": 31, "target_vocab": 37, "embed": 6, "hidden": 8}
MODELS = {"gpt2": GPT, "mistral-7b": LLAMA | {"window": 5}, "luong": SEQ2SEQ | {"layers": 2}, "additive-seq2seq": SEQ2SEQ | {"align": 5}}
PLAIN, TRANSLATORS = ("gpt2", "mistral-7b"), ("luong", "additive-seq2seq")
SAMPLED = {"temperature": 1.3, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2, "seed": 11}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A whole and a step model of each, with the same weights, which are larger than at the start of training."""
    made = {}
    for name, sizes in MODELS.items():
        made[name] = folder = tmp_path_factory.mktemp(name)
        model = nnspec.load(name, sizes=sizes)
        module = model.module(seed=3)
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(5 if name in PLAIN else 2)
        for form in ("full", "step"):
            model.export(folder / form, weights=module, form=form, certify="none")
    return made


@pytest.fixture(scope="module")
def opened(folders):
    return {name: decoder(folder / "step", threads=1) for name, folder in folders.items()}


def given(name, rows=3):
    """Prompts of unequal lengths, and the inputs of the prefix model."""
    rng = np.random.default_rng(4)
    made = [rng.integers(1, 37, n) for n in (4, 13, 1)[:rows]]
    if name in PLAIN:
        return made, {}
    return made, {"source": rng.integers(0, 31, (rows, 7)), "source_length": np.array([7, 2, 5])[:rows]}


def tokens(made):
    return [t.tolist() for t in made.tokens]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_is_the_whole_model_run_again_and_again(folders, opened, name):
    whole, (rows, inputs) = nnspec.runtime.open(folders[name] / "full", threads=1), given(name)
    got = generate(opened[name], rows, inputs, max_new_tokens=12)
    assert len({t for row in tokens(got) for t in row}) > 3
    for row, prompt in enumerate(rows):
        ids = prompt.tolist()
        for _ in range(12):
            arrays = {"tokens" if name in PLAIN else "target": np.array([ids])} | {k: v[row:row + 1] for k, v in inputs.items()}
            ids.append(int(whole(**arrays)["logits"][0, -1].argmax()))
        assert ids == prompt.tolist() + got.tokens[row].tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("settings", [{}, SAMPLED, {"beams": 3, "length_penalty": 0.6}], ids=["greedy", "sampled", "beams"])
def test_rows_do_not_depend_on_the_batch(opened, name, settings):
    rows, inputs = given(name)
    stop = [int(t[3]) for t in generate(opened[name], rows, inputs, max_new_tokens=9, **settings).tokens][:2]
    together = generate(opened[name], rows, inputs, max_new_tokens=20, stop=stop, **settings)
    assert "stop" in together.reasons
    for row in range(3):
        one = {k: v[row:row + 1] for k, v in inputs.items()}
        alone = generate(opened[name], [rows[row]], one, max_new_tokens=20, stop=stop, **settings)
        assert (tokens(alone)[0], alone.reasons[0]) == (tokens(together)[row], together.reasons[row])
    turned = generate(opened[name], rows[::-1], {k: v[::-1] for k, v in inputs.items()}, max_new_tokens=20, stop=stop, **settings)
    assert tokens(turned) == tokens(together)[::-1]


def test_seeds(opened):
    rows, _ = given("gpt2")
    first = generate(opened["gpt2"], rows, max_new_tokens=15, **SAMPLED)
    assert tokens(first) == tokens(generate(opened["gpt2"], rows, max_new_tokens=15, **SAMPLED))
    assert tokens(first) != tokens(generate(opened["gpt2"], rows, max_new_tokens=15, **SAMPLED | {"seed": 12}))
    same = generate(opened["gpt2"], [rows[0]] * 3, max_new_tokens=15, **SAMPLED | {"seed": [11, 12, 11]})
    assert tokens(same)[0] == tokens(same)[2] == tokens(first)[0] != tokens(same)[1]
    free = [tokens(generate(opened["gpt2"], rows, max_new_tokens=15, temperature=3.0)) for _ in range(2)]
    assert free[0] != free[1]


def test_temperature_zero_and_one_candidate_are_greedy(opened):
    rows, _ = given("gpt2")
    greedy = tokens(generate(opened["gpt2"], rows, max_new_tokens=9))
    for settings in ({"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-4, "top_k": 0}):
        assert tokens(generate(opened["gpt2"], rows, max_new_tokens=9, **settings)) == greedy


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_are_rolled(opened, side):
    rows, _ = given("gpt2")
    ids, keep = np.full((3, 15), 42), np.zeros((3, 15), bool)
    for k, row in enumerate(rows):
        at = slice(15 - len(row), None) if side == "left" else slice(len(row))
        ids[k, at], keep[k, at] = row, True
    made = generate(opened["gpt2"], ids, keep=keep.astype(int), max_new_tokens=9)
    assert tokens(made) == tokens(generate(opened["gpt2"], rows, max_new_tokens=9))
    assert [p.tolist() for p in made.prompts] == [r.tolist() for r in rows]


def test_beams_as_many_as_there_are_hypotheses_find_the_best(folders, opened):
    whole = nnspec.runtime.open(folders["gpt2"] / "full", threads=1)
    prompt = [5, 9, 30]
    made = generate(opened["gpt2"], prompt, max_new_tokens=2, beams=43)
    every = np.array([[*prompt, a, b] for a, b in itertools.product(range(43), repeat=2)])
    logits = whole(tokens=every)["logits"].astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    score = (logp[np.arange(len(every)), 2, every[:, 3]] + logp[np.arange(len(every)), 3, every[:, 4]]) / 2
    assert made.tokens[0].tolist() == every[score.argmax(), 3:].tolist()
    np.testing.assert_allclose(made.scores, [score.max()], rtol=1e-5)


def test_what_is_told_as_it_comes(opened):
    rows, _ = given("gpt2")
    plain = generate(opened["gpt2"], rows, max_new_tokens=10)
    stop = int(plain.tokens[0][2])
    told = []
    made = generate(opened["gpt2"], rows, max_new_tokens=10, stop=stop, callback=told.append)
    assert told == list(stream(opened["gpt2"], rows, max_new_tokens=10, stop=stop))
    assert [[t[row] for t in told if t[row] is not None] for row in range(3)] == tokens(made)
    assert made.tokens[0][-1] == stop and made.reasons[0] == "stop"
    filled = made.array(pad=42)
    assert filled.shape == (3, max(map(len, made.tokens))) and (filled[0, len(made.tokens[0]):] == 42).all()
    first = itertools.islice(stream(opened["gpt2"], [7], max_new_tokens=60), 2)
    assert [t for (t,) in first] == generate(opened["gpt2"], [7], max_new_tokens=2).tokens[0].tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_alignments_are_collected(folders, opened, beams):
    """Of the tokens that came: those of the whole model for the same sequence."""
    rows, inputs = given("additive-seq2seq")
    made = generate(opened["additive-seq2seq"], rows, inputs, max_new_tokens=6, beams=beams, collect=["alignment"])
    whole = nnspec.runtime.open(folders["additive-seq2seq"] / "full", threads=1)
    for row, prompt in enumerate(rows):
        target = np.array([[*prompt, *made.tokens[row]]])
        want = whole(target=target, **{k: v[row:row + 1] for k, v in inputs.items()})["alignment"][0, len(prompt) - 1:-1]
        np.testing.assert_allclose(made.collected["alignment"][row], want, rtol=1e-4, atol=1e-6)


def test_start_forced_and_least(opened):
    d, (_, inputs) = opened["luong"], given("luong")
    plain = generate(d, inputs=inputs, decoder_start=3, max_new_tokens=8)
    assert [p.tolist() for p in plain.prompts] == [[3]] * 3
    assert tokens(plain) == tokens(generate(d, [[3]] * 3, inputs, max_new_tokens=8))
    made = generate(d, inputs=inputs, decoder_start=3, max_new_tokens=8, forced_bos=21, forced_eos=22)
    assert all(t[0] == 21 and t[-1] == 22 and len(t) == 8 for t in tokens(made))
    stop = int(plain.tokens[0][0])
    late = generate(d, inputs=inputs, decoder_start=3, max_new_tokens=8, min_new_tokens=4, stop=stop)
    assert all(stop not in t[:4] for t in tokens(late))
    assert not {stop} & {t for row in tokens(generate(d, inputs=inputs, decoder_start=3, max_new_tokens=8, suppress=[stop])) for t in row}


@pytest.mark.parametrize("beams", [1, 3])
def test_forced_and_suppressed_tokens_are_those_of_each_row(opened, beams):
    rows = [[5], [1, 2, 3], [8]]
    alone = [generate(opened["gpt2"], [r], max_new_tokens=4, beams=beams).tokens[0].tolist() for r in rows]
    settings = {"forced_bos": 7, "begin_suppress": sorted({t for row in alone for t in row} - {7}), "max_new_tokens": 4, "beams": beams}
    want = [generate(opened["gpt2"], [r], **settings).tokens[0].tolist() for r in rows]
    assert tokens(generate(opened["gpt2"], rows, **settings)) == want
    assert want[0][0] == want[2][0] == 7 != want[1][0] and want[0] != [7, *alone[0][1:]]


def test_a_temperature_near_zero_is_greedy(opened):
    want = tokens(generate(opened["gpt2"], [1, 2, 3], max_new_tokens=6))
    for temperature in (1e-6, 1e-30, 1e-300):
        assert tokens(generate(opened["gpt2"], [1, 2, 3], max_new_tokens=6, temperature=temperature, seed=4)) == want


def test_one_output_may_be_collected_by_its_name(opened):
    made = generate(opened["gpt2"], [1, 2, 3], max_new_tokens=2, collect="logits")
    assert made.collected["logits"][0].shape == (2, 43)


WRONG = [
    ({"ids": [1, 43]}, "row 0 has the id 43 at index 1"), ({"ids": [[1], [2, -1]]}, "row 1 has the id -1 at index 1"),
    ({"ids": []}, "prompt"), ({"ids": [[1], []]}, "the prompt of row 1 is empty"), ({"ids": [1.5]}, "row 0 is float64"),
    ({"ids": [1, [2]]}, "numbers and rows at once"), ({"ids": ["a"]}, "holds text"), ({"ids": None}, "there is no prompt"),
    ({"max_new_tokens": 63}, "would read 65 tokens of row 0, and takes at most 64"),
    ({"ids": [3] * 65}, "would read 68 tokens of row 0"), ({"ids": [3] * 64, "max_new_tokens": 2}, "would read 65 tokens of row 0"),
    ({"max_new_tokens": 0}, "`max_new_tokens` is 0"),
    ({"temprature": 1}, "no setting `temprature`"), ({"top_p": 0}, "`top_p` is 0"), ({"top_k": 1.5}, "`top_k` is 1.5"),
    ({"temperature": -1}, "`temperature` is -1"), ({"stop": [3, 99]}, r"`stop` has the id 99, and ids lie in \[0, 43\)"),
    ({"temperature": float("nan")}, "`temperature` is nan"), ({"seed": [1, 2]}, "`seed` has 2 entries, and the batch 1 rows"),
    ({"beams": 2, "top_k": 3}, "beam search does not sample"), ({"early_stopping": "soon"}, "`early_stopping` is 'soon'"),
    ({"beams": 2, "callback": print}, "no `callback`"), ({"logits": "scores"}, "no output `scores`"),
    ({"collect": ["attention"]}, "`attention`"),
    ({"keep": [[1, 1]]}, "`keep` has shape"), ({"keep": [[1, 0, 1]]}, "a hole in row 0"),
    ({"inputs": {"source": [[1]]}}, "takes no `source`"),
    ({"seed": -1, "top_k": 3}, "`seed` is -1, expected"), ({"seed": "a"}, "`seed` is 'a'"), ({"stop": "a"}, "`stop` has the id 'a'"),
    ({"suppress": 50}, "`suppress` has the id 50"), ({"keep": [[1], [1, 1]]}, "`keep` has shape"),
    ({"stop": [True]}, "`stop` has the id True"),
    ({"ids": "1 2"}, "the ids are str"), ({"ids": 5}, "the ids are int"), ({"ids": iter([1])}, "the ids are list_iterator"),
    ({"ids": [2 ** 70]}, "row 0 has a number beyond 64 bits"),
    ({"temperature": float("inf")}, "`temperature` is inf"), ({"repetition_penalty": float("inf")}, "`repetition_penalty` is inf"),
    ({"suppress": range(43)}, "no token is left"), ({"suppress": range(40), "begin_suppress": [40, 41, 42]}, "no token is left"),
    ({"suppress": range(42), "stop": 42, "min_new_tokens": 1}, "no token is left"),
    ({"suppress": [5, 6], "forced_eos": 6}, "`forced_eos` is 6, which `suppress` bars"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[next(iter(w)) + str(k) for k, (w, _) in enumerate(WRONG)])
def test_what_is_refused_before_anything_runs(opened, monkeypatch, wrong, told):
    monkeypatch.setattr(opened["gpt2"]._step._session, "run_with_iobinding", None)
    with pytest.raises(ArtifactError, match=told):
        generate(opened["gpt2"], **{"ids": [1, 2, 3], "max_new_tokens": 4, **wrong})


def test_everything_wrong_is_told_at_once(opened):
    with pytest.raises(ArtifactErrors) as caught:
        generate(opened["gpt2"], [[1, 50], [60]], max_new_tokens=4, top_p=2, stop=77)
    assert len(caught.value.items) == 4
    with pytest.raises(ArtifactErrors) as caught:                     # and what only follows from another is not
        generate(opened["gpt2"], [[1], [2]], max_new_tokens=4, decoder_start=50, seed="a")
    assert len(caught.value.items) == 2


def test_without_a_bound_the_number_of_tokens_is_asked_for(opened):
    with pytest.raises(ArtifactError, match="how many tokens"):
        generate(opened["luong"], inputs=given("luong")[1], decoder_start=1)
    assert len(generate(opened["gpt2"], [1, 2, 3]).tokens[0]) == 61
    with pytest.raises(ArtifactError, match="2 prompts, and the inputs have 3 rows"):
        generate(opened["luong"], [[1], [2]], given("luong")[1], max_new_tokens=2)


@pytest.mark.parametrize("settings", [{}, SAMPLED, {"beams": 3}], ids=["greedy", "sampled", "beams"])
def test_a_prompt_as_long_as_the_bound_gives_one_token(folders, opened, settings):
    """The scores behind a full prompt need no further position."""
    rows = [np.random.default_rng(5).integers(0, 43, n) for n in (64, 60)]
    made = generate(opened["gpt2"], rows, **settings)
    assert [len(t) for t in made.tokens] == [1, 1] and made.reasons == ("length", "length")
    if settings != SAMPLED:
        whole = nnspec.runtime.open(folders["gpt2"] / "full", threads=1)
        assert tokens(made) == [[int(whole(tokens=[row])["logits"][0, -1].argmax())] for row in rows]
    short = generate(opened["gpt2"], rows[1:], max_new_tokens=5, **settings)
    assert len(short.tokens[0]) == 5
    with pytest.raises(ArtifactError, match="would read 65 tokens of row 0") as found:
        generate(opened["gpt2"], rows[1:], max_new_tokens=6, **settings)
    assert found.value.helps == ("ask for at most 5 new tokens, or shorten the prompt",)


def test_inputs_of_the_prefix_are_checked_by_it(opened):
    with pytest.raises(ArtifactError, match="not rectangular"):
        generate(opened["luong"], [[1], [2]], {"source": [[1, 2], [3]], "source_length": [2, 1]}, max_new_tokens=2)


def test_models_that_take_more_than_tokens_are_refused(tmp_path):
    (tmp_path / "spec.yaml").write_text("""
nnspec: 1
name: features
inputs: {frames: "float[B, S, 5]"}
graph:
  state: {op: gru, in: frames, hidden: 7}
  logits: {op: linear, in: state, width: 11}
outputs: {logits: logits}
""")
    nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "step", init=0, form="step", certify="none")
    with pytest.raises(ArtifactError, match="a step does not take them alone"):
        generate(decoder(tmp_path / "step"), [1], max_new_tokens=2)


def test_scores_that_are_not_numbers_are_told(opened, monkeypatch):
    session = opened["gpt2"]._step._session
    run = session.run_with_iobinding

    def poisoned(binding):
        run(binding)
        for value in binding.get_outputs():
            if value.shape()[-1] == 43:
                value.update_inplace(np.full(value.shape(), next(filled), np.float32))
    filled = iter([np.nan] * 3 + [np.inf] * 3)
    monkeypatch.setattr(session, "run_with_iobinding", poisoned)
    for settings in ({}, {"top_k": 3}, {"beams": 2}) * 2:
        with pytest.raises(ArtifactError, match="the scores of row 0 are not numbers"):
            generate(opened["gpt2"], [1], max_new_tokens=3, **settings)


def test_which_output_holds_the_scores(opened):
    d = opened["additive-seq2seq"]
    entry = next(x for x in d.chunk if x.name == "target")
    assert scores_output(d, None, entry).name == scores_output(d, "logits", entry).name == "logits"
    with pytest.raises(ArtifactError, match="no output holds scores"):
        scores_output(d, "alignment", entry)


def test_prompts_of_every_kind():
    for ids in ([3, 4], np.array([3, 4]), [[3, 4]], np.array([[3, 4]], np.int32), (3, 4), [np.array([3, 4])]):
        assert [p.tolist() for p in prompts(ids, None, None, None)] == [[3, 4]]
    assert [p.tolist() for p in prompts([[3], [4, 5]], None, 9, 2)] == [[9, 3], [9, 4, 5]]


def test_python_takes_less_than_a_third_of_a_millisecond_a_token(tmp_path):
    sizes = {"vocab": 32000, "width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 16}
    nnspec.load("llama-3-8b", sizes=sizes).export(tmp_path, init=0, form="step", certify="none")
    opened = decoder(tmp_path, threads=1)
    run, inside, outside = opened._step._session.run_with_iobinding, [], []

    def timed(binding):
        start = time.perf_counter()
        run(binding)
        inside.append(time.perf_counter() - start)
    opened._step._session.run_with_iobinding = timed
    for _ in range(5):
        inside.clear()
        start = time.perf_counter()
        generate(opened, [1, 2, 3], max_new_tokens=100)
        outside.append((time.perf_counter() - start - sum(inside)) / 100)
    assert min(outside) < 0.3e-3


@pytest.fixture
def words(tmp_path):
    """A tokenizer of words, as its file."""
    pytest.importorskip("tokenizers")
    vocabulary = {"<s>": 0, **{f"w{k}": k for k in range(1, 31)}}
    made = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<s>"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    return tmp_path


def test_text(opened, words):
    read = tokenizer(words)
    told = []
    texts, made = generate_text(opened["gpt2"], read, ["w3 w4", "w5 w6 w7"], max_new_tokens=6, callback=told.append,
                                suppress=[0, *range(31, 43)])
    assert tokens(made) == tokens(generate(opened["gpt2"], [[3, 4], [5, 6, 7]], max_new_tokens=6, suppress=[0, *range(31, 43)]))
    assert texts == [" ".join(f"w{t}" for t in row) for row in tokens(made)]
    assert ["".join(t[row] for t in told) for row in range(2)] == texts
    source = {"source": np.array([[3, 4, 0], [5, 6, 7]]), "source_length": np.array([2, 3])}
    _, made = generate_text(opened["luong"], read, ["w3 w4", "w5 w6 w7"], decoder_start=1, max_new_tokens=6)
    assert tokens(made) == tokens(generate(opened["luong"], inputs=source, decoder_start=1, max_new_tokens=6))


def test_tokenizers_that_cannot_be_read(words, monkeypatch):
    with pytest.raises(ArtifactError, match="file-not-found"):
        tokenizer(words / "other.json")
    (words / "bad.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is not a tokenizer"):
        tokenizer(words / "bad.json")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ArtifactError, match="missing-package") as caught:
        tokenizer(words)
    assert "pip install tokenizers" in str(caught.value)
