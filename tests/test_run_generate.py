"""`nnspec run --generate`: the tokens are those of the runtime, as ids or as text; attention as text and as a picture."""

import struct

import nnspec
import numpy as np
import pytest
import zoo
from nnspec.cli import main
from nnspec.runtime.decoder import decoder
from nnspec.runtime.text import generate_ids

WORDS = [f"w{i}" for i in range(43)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A decoder, and an encoder-decoder that tells where it looks."""
    made = {}
    for name in ("gpt2", "additive-seq2seq"):
        made[name] = tmp_path_factory.mktemp(name)
        zoo.model(name).export(made[name], weights=zoo.stirred(name), form="step", certify="none")
    return made


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["run", *map(str, arguments)])
    return stopped.value.code


def test_ids_come_out(folders, capsys):
    assert run(folders["gpt2"], "--generate", "--ids", "5,3,9", "--ids", "7", "--max-new", 6, "--stop", 40) == 0
    want = generate_ids(decoder(folders["gpt2"]), [[5, 3, 9], [7]], max_new_tokens=6, stop=[40])
    said = [line.rsplit(" (", 1)[0].split() for line in capsys.readouterr().out.splitlines()]
    assert [list(map(int, row)) for row in said] == [t.tolist() for t in want.tokens]
    assert len(want.tokens[0]) == 6


def test_samples_follow_the_seed(folders, capsys):
    said = []
    for seed in (1, 1, 2):
        assert run(folders["gpt2"], "--generate", "--ids", "5 3 9", "--max-new", 20, "--temperature", 1.5, "--seed", seed) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_text_comes_out(folders, capsys, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    made = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    assert run(folders["gpt2"], "--generate", "--text", "w5 w3 w9", "--tokenizer", tmp_path, "--max-new", 4) == 0
    want = generate_ids(decoder(folders["gpt2"]), [[5, 3, 9]], max_new_tokens=4).tokens[0]
    assert capsys.readouterr().out.split() == [WORDS[t] for t in want]


def test_attention_is_told_and_drawn(folders, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ("--generate", "--ids", "5,3,9,4", "--start", 1, "--max-new", 5, "--attention", "--plot", tmp_path / "a.png")
    assert run(folders["additive-seq2seq"], *arguments) == 0
    made = generate_ids(decoder(folders["additive-seq2seq"]), [[5, 3, 9, 4]], decoder_start=1, max_new_tokens=5, collect=["alignment"])
    weights = made.collected["alignment"][0]
    assert weights.shape == (5, 4) and np.allclose(weights.sum(1), 1, atol=1e-5)
    lines = capsys.readouterr().out.splitlines()[2:-1]
    assert [(line.split()[0], line.split()[2]) for line in lines] == [
        (str(t), "5394"[int(row.argmax())]) for t, row in zip(made.tokens[0], weights, strict=True)]
    data = (tmp_path / "a.png").read_bytes()
    wide, high = struct.unpack(">II", data[16:24])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and wide > 300 and high > 300


@pytest.mark.parametrize(("arguments", "said"), [
    (("--ids", "1"), "`--ids` goes with `--generate`"),
    (("--generate", "--ids", "1,x"), "is not a list of whole numbers"),
    (("--generate", "--text", "hello"), "`--text` goes with `--tokenizer FILE`"),
    (("--generate", "--ids", "99"), "has the id 99"),
    (("--generate", "--ids", "1", "--attention"), "has no output with weights over its source"),
    (("--generate",), "there is no prompt"),
    (("--generate", "--ids", "1", "--random", "B=2"), "`--random` does not go with `--generate`"),
    (("--generate", "--ids", "1", "-o", "a.npz"), "`--output` does not go with `--generate`"),
    (("--generate", "--ids", "1", "--profile"), "`--profile` does not go with `--generate`"),
    (("--generate", "--ids", "1", "--plot", "a.txt"), "`a.txt` is no picture"),
    (("--generate", "--ids", "1", "--plot", "nowhere/a.png"), "there is no folder `nowhere`"),
    (("--generate", "--ids", "9" * 30), "has a number beyond 64 bits"),
    (("--generate", "--ids", "1", "--max-new", 2000), "takes at most 1024"),
    (("--generate", "--ids", "1", "--text", "a", "--tokenizer", "/none"), "no file"),
])
def test_wrong_calls_are_told(folders, capsys, arguments, said):
    assert run(folders["gpt2"], *arguments) == 2
    assert said in capsys.readouterr().err


def test_a_source_from_a_file(folders, capsys, tmp_path):
    source, length = np.array([[5, 3, 9, 4], [7, 8, 1, 0], [2, 0, 0, 0]]), np.array([4, 3, 1])
    np.savez(tmp_path / "in.npz", source=source, source_length=length)
    folder = folders["additive-seq2seq"]
    assert run(folder, "--generate", "--inputs", tmp_path / "in.npz", "--start", 1, "--max-new", 5) == 0
    want = generate_ids(decoder(folder), [source[b, :n].tolist() for b, n in enumerate(length)], decoder_start=1, max_new_tokens=5)
    said = [line.rsplit(" (", 1)[0].split() for line in capsys.readouterr().out.splitlines()]
    assert [list(map(int, row)) for row in said] == [t.tolist() for t in want.tokens]
    assert run(folder, "--generate", "--start", 1) == 2
    assert "input `source` is missing" in capsys.readouterr().err


def test_a_picture_is_over_the_source_of_the_file(folders, capsys, tmp_path):
    np.savez(tmp_path / "in.npz", source=np.array([[5, 3, 9, 4], [7, 8, 1, 0]]), source_length=np.array([4, 3]))
    arguments = ("--inputs", tmp_path / "in.npz", "--ids", "1,6", "--ids", "2", "--max-new", 2, "--attention")
    assert run(folders["additive-seq2seq"], "--generate", *arguments) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if "source tokens" in line]
    assert said == ["weights over 4 source tokens: 5 3 9 4", "weights over 3 source tokens: 7 8 1"]


def test_weights_of_heads_are_averaged(capsys, tmp_path):
    (tmp_path / "spec.yaml").write_text('''
nnspec: 1
use: [attention]
inputs: {source: "int64[B, S]", source_length: "int64[B]", target: "int64[B, T]"}
graph:
  keys: {op: embedding, in: source, entries: 31, width: 12}
  embed: {op: embedding, in: target, entries: 37, width: 12}
  mixed: {block: multi_head_attention, in: embed, heads: 3, causal: true}
  query_heads: {op: rearrange, in: mixed, as: "b t (h d) -> b h t d", h: 3}
  key_heads: {op: rearrange, in: keys, as: "b s (h d) -> b h s d", h: 3}
  read: {op: attention, query: query_heads, key: key_heads, value: key_heads, length: source_length}
  joined: {op: rearrange, in: read.out, as: "b h t d -> b t (h d)"}
  logits: {op: linear, in: joined, width: 37}
outputs: {logits: logits, look: read.weights}
''')
    nnspec.load(tmp_path / "spec.yaml").export(tmp_path / "step", init=2, form="step", certify="none")
    assert run(tmp_path / "step", "--generate", "--ids", "5,3", "--ids", "7,8,1", "--start", 1, "--max-new", 2, "--attention") == 0
    made = generate_ids(decoder(tmp_path / "step"), [[5, 3], [7, 8, 1]], decoder_start=1, max_new_tokens=2, collect=["look"])
    assert made.collected["look"][0].shape == (2, 3, 3)
    want = [f"{row.max():4.2f}" for weights in made.collected["look"] for row in weights.mean(1)]
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if "|" in line] == want


@pytest.mark.parametrize("name", ["gpt2", "additive-seq2seq"])
def test_a_step_runs_on_random_inputs(folders, capsys, name):
    for sizes, shape in (((), "[2, 5, "), (("--random", "B=3,N=9"), "[3, 9, ")):
        assert run(folders[name], *sizes) == 0
        assert shape in next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("logits"))
    if name == "gpt2":
        for sizes, said in (("N=9,C=8", "needs 9 at least"), ("N=2000", "`N` is 2000, but the model takes at most 1024")):
            assert run(folders[name], "--random", sizes) == 2
            assert said in capsys.readouterr().err


@pytest.mark.parametrize(("name", "path", "rows"), [("gpt2", "layers.1.attention", [5, 6, 7]), ("t5-small", "decoder.0.cross", [8, 9])])
def test_attention_of_a_model_of_the_library(capsys, tmp_path, name, path, rows):
    """Of a decoder over its own tokens, the last new one not among them; of an encoder-decoder over its source."""
    zoo.model(name).export(tmp_path, init=0, form="step", certify="none", attention=(path,))
    start = [] if name == "gpt2" else ["--start", 1]
    ids = ",".join(map(str, rows))
    assert run(tmp_path, "--generate", "--ids", ids, *start, "--max-new", 3, "--attention") == 0
    first, head, *lines = capsys.readouterr().out.splitlines()
    new = first.split()[:3]
    over = [*map(str, rows), *(new[:2] if name == "gpt2" else [])]
    assert head == f"  weights over {len(over)} source tokens: {' '.join(over)}"
    assert [line.split()[0] for line in lines] == new


def test_characters_without_a_shape_are_told(folders, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    Tokenizer(WordLevel({f"日{i}": i for i in range(43)}, unk_token="日0")).save(str(tmp_path / "tokenizer.json"))
    arguments = ("--ids", "5,3", "--start", 1, "--max-new", 2, "--tokenizer", tmp_path, "--plot", tmp_path / "a.png")
    assert run(folders["additive-seq2seq"], "--generate", *arguments) == 0
    said = capsys.readouterr().err
    assert "warning[missing-glyphs]" in said and "no 日" in said and "UserWarning" not in said


def test_a_whole_model_does_not_generate(capsys, tmp_path):
    zoo.model("gpt2").export(tmp_path, init=0, certify="none")
    assert run(tmp_path, "--generate", "--ids", "1") == 2
    assert "--form step" in capsys.readouterr().err
