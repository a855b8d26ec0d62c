"""The blocks of the library: each says whose it is, and those that no model uses fit their ports as well."""

import re
from pathlib import Path

import pytest
from nnspec.ir.graph import walk
from nnspec.ir.parameters import count, state_shapes
from nnspec.lang.diagnostic import Diagnostics, Sink
from nnspec.library import ships
from nnspec.pipeline import front, load
from nnspec.stages.check import check

BLOCKS = Path(__file__).parents[2] / "specs" / "blocks"
FILES = sorted(p.stem for p in BLOCKS.glob("*.yaml"))


@pytest.fixture
def compile_text(tmp_path):
    """Inputs and graph as YAML -> the compiled spec, with the whole library in use."""
    def run(inputs, graph, outputs):
        path = tmp_path / "spec.yaml"
        use = ", ".join(FILES)
        path.write_text(f"nnspec: 1\nuse: [{use}]\ninputs: {{{inputs}}}\ngraph:\n  {graph.strip()}\noutputs: {outputs}\n")
        return front(path)
    return run


def outputs(found):
    root = found.graph.root
    return {n: str(root.type(v)) for n, v in root.outputs}


def helpers(tree):
    """Blocks that other blocks of their file use."""
    return {"read_memory"} & set(tree.keys())


@pytest.mark.parametrize("file", FILES)
def test_every_file_keeps_to_the_structure(file):
    """`front` does not check them again."""
    source, tree = load(BLOCKS / f"{file}.yaml")
    assert ships(source.name)
    sink = Sink()
    check(tree, sink, "library")
    sink.check()


@pytest.mark.parametrize("file", FILES)
def test_every_block_cites_its_paper(file):
    _, tree = load(BLOCKS / f"{file}.yaml")
    blocks = tree.get("blocks")
    for entry in blocks:
        about = entry.value.get("about").text
        assert entry.key.text in helpers(blocks) or re.search(r"arXiv:\d{4}\.\d{5}|\b(19|20)\d\d\b", about), entry.key.text


SCORES = {"additive_attention": (8, 8, {"hidden": 5}), "dot_attention": (8, 8, {}), "general_attention": (6, 8, {}),
          "scaled_dot_attention": (8, 8, {})}


@pytest.mark.parametrize("many", [False, True], ids=["one query", "many queries"])
@pytest.mark.parametrize("name", SCORES)
def test_scores_take_one_query_a_row_or_many(compile_text, name, many):
    q, m, settings = SCORES[name]
    extra = "".join(f", {k}: {v}" for k, v in settings.items())
    t = "T, " if many else ""
    found = compile_text(f'query: "float[B, {t}{q}]", memory: "float[B, S, {m}]", keep: "bool[B, S]", length: "int64[B]"',
                         f"read: {{block: {name}, query: query, memory: memory, keep: keep, length: length{extra}}}",
                         "{context: read.context, weights: read.weights}")
    assert outputs(found) == {"context": f"float[B, {t}{m}]", "weights": f"float[B, {t}S]"}


def test_masks_that_nobody_gives_leave_no_node(compile_text):
    found = compile_text('x: "float[B, S, 6]"', "mean: {block: mean_pooling, in: x}", "mean")
    assert [node.op.name for _, _, node in walk(found.graph.root) if hasattr(node.op, "name")] == ["mean"]


@pytest.mark.parametrize("name, given, kv", [("multi_head_attention", "", 6), ("multi_head_attention", ", kv_heads: 3", 3),
                                             ("grouped_query_attention", ", kv_heads: 2", 2), ("multi_query_attention", "", 1)])
def test_heads_may_share_keys(compile_text, name, given, kv):
    found = compile_text('x: "float[B, S, 24]"', f"a: {{block: {name}, in: x, heads: 6, causal: true{given}}}", "a")
    shapes = state_shapes(found.graph)
    assert shapes["a.query.weight"] == (24, 24) and shapes["a.key.weight"] == shapes["a.value.weight"] == (kv * 4, 24)
    assert shapes["a.output.bias"] == (24,) and outputs(found) == {"out": "float[B, S, 24]"}


def test_grouped_heads_must_say_how_many(compile_text):
    with pytest.raises(Diagnostics) as caught:
        compile_text('x: "float[B, S, 24]"', "a: {block: grouped_query_attention, in: x, heads: 6}", "a")
    assert [d.code for d in caught.value.items] == ["unresolved-setting"]


def test_heads_attend_over_a_memory_of_another_width(compile_text):
    found = compile_text('x: "float[B, T, 24]", memory: "float[B, M, 10]", length: "int64[B]"',
                         "a: {block: multi_head_attention, in: x, memory: memory, length: length, heads: 3}", "a")
    assert state_shapes(found.graph)["a.key.weight"] == (24, 10) and outputs(found) == {"out": "float[B, T, 24]"}


def test_heads_that_do_not_divide_the_width_say_so(compile_text):
    with pytest.raises(Diagnostics) as caught:
        compile_text('x: "float[B, S, 512]"', "a: {block: multi_head_attention, in: x, heads: 12}", "a")
    found, = caught.value.items
    assert found.code == "indivisible" and "512" in found.headline and "12" in found.headline


FILLS = """norm: {op: layer_norm}
    attention: {block: multi_head_attention, heads: 3, score_bias: bias}
    ffn: {block: plain_ffn, hidden: 20}"""


NORMS = {"pre_norm_layer": 2, "post_norm_layer": 2, "sandwich_layer": 4, "residual_post_norm_layer": 2, "norm_residual_layer": 2,
         "parallel_layer": 1, "parallel_norms_layer": 2}


@pytest.mark.parametrize("name, norms", NORMS.items())
def test_layers_differ_in_their_norms_only(compile_text, name, norms):
    found = compile_text('tokens: "int64[B, S]", x: "float[B, S, 12]"', f"""
  bias: {{block: alibi, like: tokens, heads: 3}}
  out:
    block: {name}
    in: x
    {FILLS}""", "out")
    assert outputs(found) == {"out": "float[B, S, 12]"}
    assert count(found.graph) == norms * 24 + 4 * (12 * 12 + 12) + (12 * 20 + 20) + (20 * 12 + 12)


@pytest.mark.parametrize("name", ["pre_norm_decoder_layer", "post_norm_decoder_layer"])
def test_decoder_layers_cross_to_a_memory(compile_text, name):
    found = compile_text('tokens: "int64[B, T]", x: "float[B, T, 12]", memory: "float[B, S, 8]"', f"""
  bias: {{block: t5_bias, like: tokens, heads: 3, both_ways: false}}
  out:
    block: {name}
    in: x
    cross: {{block: multi_head_attention, heads: 3, memory: memory}}
    {FILLS}""", "out")
    assert outputs(found) == {"out": "float[B, T, 12]"} and state_shapes(found.graph)["out.cross.key.weight"] == (12, 8)


@pytest.mark.parametrize("node, shape", [
    ("{block: max_pooling, in: x, length: length}", "float[B, 12]"), ("{block: mean_pooling, in: x, keep: keep}", "float[B, 12]"),
    ("{block: attention_pooling, in: x, hidden: 7, length: length, keep: keep}", "float[B, 12]"),
    ("{block: learned_positions, in: x, entries: 64, keep: keep}", "float[B, S, 12]"),
    ("{block: offset_positions, in: x, entries: 64, offset: 2, keep: keep}", "float[B, S, 12]"),
    ("{block: sinusoidal_positions, in: x, layout: halves, keep: keep}", "float[B, S, 12]"),
    ("{block: gated_ffn, in: x, hidden: 20, dropout: 0.1}", "float[B, S, 12]"),
    ("{block: first_pooling, in: x}", "float[B, 12]"),
])
def test_blocks_over_a_row(compile_text, node, shape):
    found = compile_text('x: "float[B, S, 12]", keep: "bool[B, S]", length: "optional int64[B]"', f"out: {node}", "out")
    assert outputs(found) == {"out": shape}


def test_a_bridge_joins_the_directions(compile_text):
    found = compile_text('x: "float[B, S, 6]"', """
  encoder: {op: gru, in: x, hidden: 5, direction: both}
  start: {block: bridge, in: encoder.state, width: 7}""", "start")
    assert outputs(found) == {"out": "float[B, 7]"} and state_shapes(found.graph)["start.start.weight"] == (7, 10)
