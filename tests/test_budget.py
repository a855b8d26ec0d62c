"""`budget:` of specs and `--budget` of commands: what is exceeded, by how much, and who is to blame."""

import nnspec
import pytest
from nnspec.cli import main

DECODER = """
nnspec: 1
sizes: {{width: 8, vocab: 29, layers: 3}}
use: [attention, ffn, layers]
inputs: {{tokens: "int64[B, S <= 64]"}}
graph:
  embed: {{op: embedding, in: tokens, entries: vocab, width: width}}
  layers:
    repeat: layers
    block: pre_norm_layer
    in: embed
    norm: {{op: layer_norm}}
    attention: {{block: multi_head_attention, heads: 2, causal: true}}
    ffn: {{block: plain_ffn, hidden: 40}}
  logits: {{op: linear, in: layers, weight: embed.weight, bias: false}}
outputs: [logits]
budget: {budget}
"""
POSITION = 3 * 2 * 8                    # numbers that a cache keeps of one position: keys and values of 3 layers


@pytest.fixture
def spec(tmp_path):
    def write(budget: str) -> str:
        path = tmp_path / "spec.yaml"
        path.write_text(DECODER.format(budget=budget))
        return str(path)
    return write


@pytest.fixture
def run(capsys):
    def go(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        told = capsys.readouterr()
        return int(done.value.code or 0), told.out, told.err
    return go


@pytest.mark.parametrize("name", ["parameters", "active_parameters", "weight_bytes", "flops", "decode_flops", "cache_bytes",
                                  "activation_bytes", "total_bytes"])
def test_every_metric_is_limited_exactly(spec, name):
    """The limit that `cost` gives is kept, and one less is exceeded, with the number, the limit and what is largest."""
    found = nnspec.load(spec("{}")).cost("float16")
    value = {"active_parameters": found.active, "activation_bytes": found.peak.bytes}.get(name) or getattr(found, name)
    assert nnspec.load(spec(f"{{{name}: {value}}}")).over == ()
    (over,) = nnspec.load(spec(f"{{{name}: {value - 1}}}")).over
    assert over.code == "over-budget" and f"{value:,}" in over.headline and f"{value - 1:,}" in over.headline
    most = [int(note.split()[0].replace(",", "")) for note in over.notes]
    assert most == sorted(most, reverse=True) and 0 < most[0] <= value and len(most) <= 3


@pytest.mark.parametrize(("at", "have"), [
    ("{B: 3, S: 50, dtype: float32}", 3 * 50 * POSITION * 4), ("{S: 7}", 7 * POSITION * 2), ("{B: 2}", 2 * 64 * POSITION * 2),
    ("{S: layers * 2, dtype: bfloat16}", 6 * POSITION * 2)])
def test_a_limit_holds_at_its_sizes(spec, at, have):
    (over,) = nnspec.load(spec(f"{{cache_bytes: {{limit: {have - 1}, at: {at}}}}}")).over
    assert over.headline.startswith(f"the model has {have:,} bytes of cache at ")
    assert over.notes[0].split()[1].startswith("layers.{i}.attention")
    assert nnspec.load(spec(f"{{cache_bytes: {{limit: {have}, at: {at}}}}}")).over == ()


def test_limits_are_expressions_and_amounts(spec):
    assert nnspec.load(spec("{parameters: 10 ** 6 * width, weight_bytes: 2MiB, flops: 1G}")).over == ()
    over = nnspec.load(spec("{parameters: 12 * layers, weight_bytes: 1KiB}")).over
    assert [d.headline.rpartition(" ")[2] for d in over] == ["36", "1,024"]


@pytest.mark.parametrize(("budget", "code", "told"), [
    ("{flop: 3}", "unknown-key", "`budget` has no key `flop`"), ("{flops: [3]}", "bad-attribute", "a budget is a number"),
    ("{flops: -3}", "bad-attribute", "a budget is a number"), ("{flops: wide}", "unknown-name", "no size is called `wide`"),
    ("{flops: {at: {B: 1}}}", "missing-key", "has no `limit`"), ("{flops: {limit: 3, of: 3}}", "unknown-key", "a budget has no key `of`"),
    ("{flops: {limit: 3, at: 3}}", "bad-attribute", "`at` maps"),
    ("{flops: {limit: 3, at: {T: 3}}}", "unknown-name", "no free dimension `T`"),
    ("{flops: {limit: 3, at: {S: 65}}}", "bad-attribute", "`S` is at most 64"),
    ("{flops: {limit: 3, at: {dtype: int8}}}", "bad-attribute", "`int8` is no dtype"),
    ("{flops: {limit: 3, at: {dtype: [a]}}}", "bad-attribute", "`dtype` is the name of a dtype")])
def test_a_wrong_budget_is_pointed_at(spec, budget, code, told):
    with pytest.raises(nnspec.Diagnostics) as found:
        nnspec.load(spec(budget))
    (item,) = found.value.items
    text = item.labels[0].span.source.text.splitlines()[item.labels[0].span.line - 1]
    assert item.code == code and told in item.headline and text.startswith("budget: ")


def test_all_that_is_wrong_is_told_at_once(spec):
    with pytest.raises(nnspec.Diagnostics) as found:
        nnspec.load(spec("{flop: 3, flops: {limit: 3, at: {T: 3}}}"))
    assert [d.code for d in found.value.items] == ["unknown-key", "unknown-name"]


@pytest.mark.parametrize("command", [["validate"], ["cost"], ["export", "-o", "OUT", "--no-weights"]])
def test_budget_of_a_command(spec, run, tmp_path, command):
    path, out = spec("{}"), tmp_path / "out"
    words = [path, *(str(out) if w == "OUT" else w for w in command[1:])]
    code, _, err = run(command[0], *words, "--budget", "cache_bytes=1k@B=2,S=50,dtype=float32", "--budget", "parameters=1M")
    assert code == 1 and f"the model has {2 * 50 * POSITION * 4:,} bytes of cache at B=2 S=50 in float32, and its budget is 1,000" in err
    assert "parameters" not in err and not out.exists()
    assert run(command[0], *words, "--budget", "cache_bytes=1GiB@S=50")[0] == 0


@pytest.mark.parametrize("command", ["validate", "cost"])
def test_a_command_refuses_a_wrong_budget(spec, run, command):
    for text, told in (("cach_bytes=3", "`budget` has no key `cach_bytes`"), ("flops=3@T=3", "no free dimension `T`"),
                       ("flops=3@S=65", "`S` is at most 64"), ("flops=x", "is not NAME=LIMIT"), ("flops=3@S", "is not DIM=N")):
        code, _, err = run(command, spec("{}"), "--budget", text)
        assert code == 2 and told in err and "Traceback" not in err


def test_cost_prints_first_and_holds_every_column(spec, run):
    code, out, err = run("cost", spec("{flops: 1}"), "--at", "S=8", "--at", "S=32", "--budget", f"cache_bytes={8 * POSITION * 2}")
    assert code == 1 and "S=8" in out and "cache" in out
    assert err.count("error[over-budget]") == 2 and "bytes of cache at B=1 S=32" in err and "FLOPs of a pass" in err


def test_a_budget_of_what_there_is_not(spec, run):
    code, _, err = run("validate", "bert-base", "--budget", "decode_flops=1G")
    assert code == 2 and "error[cannot-stream]" in err and "the model has no axis that is causal" in err
