"""Fourteen hard architectures: each validates without a warning, and its outputs have the shapes that the papers give."""

from pathlib import Path

import pytest
from nnspec.ir.graph import Branch, Repeat, Scan, walk
from nnspec.ir.parameters import parameter_table, state_shapes
from nnspec.pipeline import front

HARD = Path(__file__).parent / "hard"
OUTPUTS = {
    "albert": {"hidden": "float[B, S, 24]"},
    "gemma2": {"logits": "float[B, S, 53]"},
    "luong": {"logits": "float[B, T, 41]", "weights": "float[B, T, S]", "feed": "float[B, 12]"},
    "mamba": {"logits": "float[B, S, 31]", "state": "float[B, 16, 5]"},
    "memory-network": {"logits": "float[B, 33]", "weights": "float[3, B, N]"},
    "mla": {"logits": "float[B, S, 59]"},
    "moe": {"logits": "float[B, S, 47]"},
    "openelm": {"logits": "float[B, S, 67]"},
    "padding": {"logits": "float[B, S, 23]"},
    "pointer": {"logits": "float[B, T, S]", "contexts": "float[B, T, 14]"},
    "t5": {"logits": "float[B, T, 61]"},
    "tied": {"logits": "float[B, T, 29]"},
    "transformer-xl": {"logits": "float[B, S, 43]", "memory": "float[3, B, M, 24]"},
    "vit": {"logits": "float[B, 11]", "sequence": "float[B, H*W + 1, 24]"},
}


def compile_hard(name):
    return front(HARD / f"{name}.yaml")


def control(graph, kind):
    """The first repeat, scan or branch of a graph."""
    return next(node for _, _, node in walk(graph.root) if isinstance(node.op, kind))


def ops(graph, name):
    return [node for _, _, node in walk(graph.root) if getattr(node.op, "name", "") == name]


def test_all_fourteen_are_there():
    assert {path.stem for path in HARD.glob("*.yaml")} == set(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_the_shapes_of_the_architecture(name):
    found = compile_hard(name)
    root = found.graph.root
    assert {n: str(root.type(v)) for n, v in root.outputs} == OUTPUTS[name]
    assert not found.warnings


def test_luong_feeds_its_output_back_and_stacks_cells_of_two_widths():
    graph = compile_hard("luong").graph
    assert control(graph, Scan).op.carry == {"state": "state", "cell": "cell", "feed": "feed"}
    assert control(graph, Repeat).op.schedule == (0, 1)
    shapes = state_shapes(graph)
    assert shapes["decoder.stack.0.weight_ih"] == (48, 22) and shapes["decoder.stack.1.weight_ih"] == (48, 12)


def test_gemma_has_a_window_in_every_other_layer():
    repeat = control(compile_hard("gemma2").graph, Repeat)
    assert repeat.op.schedule == (0, 1, 0, 1, 0)
    windows = [next(n.op.window for n in _walk_ops(body, "attention")) for body in repeat.op.bodies]
    assert windows == [6, None]


def _walk_ops(region, name):
    return [node for _, _, node in walk(region) if getattr(node.op, "name", "") == name]


def test_t5_has_one_table_a_stack_and_no_bias_over_the_encoder():
    graph = compile_hard("t5").graph
    tables = [e.path for e in parameter_table(graph) if e.path.endswith("table")]
    assert tables == ["encoder_bias.table", "decoder_bias.table"]
    sites = ops(graph, "attention")
    assert [(n.op.causal, n.inputs["score_bias"] is not None) for n in sites] == [(False, True), (True, True), (False, False)]
    assert all(n.op.scale == 1 for n in sites)


def test_albert_owns_one_layer_a_group():
    graph = compile_hard("albert").graph
    assert control(graph, Repeat).op.share == (0,) * 6 + (6,) * 6
    owners = {path.split(".")[1] for path in state_shapes(graph) if path.startswith("layers.")}
    assert owners == {"0", "6"}


def test_mla_caches_the_latent_and_one_rope_key():
    caches = ops(compile_hard("mla").graph, "cache")
    assert [str(n.types[0]) for n in caches] == ["float[B, S, 10]", "float[B, 1, S, 4]"]


def test_moe_routes_the_last_layers_through_experts():
    graph = compile_hard("moe").graph
    assert control(graph, Repeat).op.schedule == (0, 0, 1, 1, 1)
    branch = control(graph, Branch)
    assert branch.op.route and branch.op.schedule == (0,) * 6
    shapes = state_shapes(graph)
    assert shapes["layers.1.ffn.up.weight"] == (36, 16) and shapes["layers.4.ffn.mix.5.up.weight"] == (20, 16)


def test_transformer_xl_hands_on_a_memory_as_long_as_it_got():
    repeat = control(compile_hard("transformer-xl").graph, Repeat)
    assert dict(zip(repeat.outputs, map(str, repeat.types), strict=True))["memory"] == "float[B, M, 24]"
    assert repeat.op.each["memory"] == (0, 1, 2)


def test_memory_network_writes_where_the_next_hop_reads():
    each = control(compile_hard("memory-network").graph, Repeat).op.each
    assert each["read"] == (0, 1, 2) and each["write"] == (1, 2, 3)


def test_vit_takes_images_whose_sides_sixteen_divides():
    graph = compile_hard("vit").graph
    assert str(graph.root.arguments[0].type) == "float[B, 3, 16*H, 16*W]"


def test_mamba_starts_from_the_logarithms_of_one_to_the_state():
    entry = next(e for e in parameter_table(compile_hard("mamba").graph) if e.path == "a_log")
    assert entry.start is None and entry.shape == (16, 5)
    assert control(compile_hard("mamba").graph, Scan).op.extent == compile_hard("mamba").graph.root.arguments[0].type.shape[1]


def test_tied_models_own_one_table():
    shapes = state_shapes(compile_hard("tied").graph)
    assert [path for path, shape in shapes.items() if 29 in shape] == ["source_embed.weight"]


def test_openelm_has_another_body_in_every_layer_that_differs():
    graph = compile_hard("openelm").graph
    assert control(graph, Repeat).op.schedule == (0, 1, 2, 3)
    shapes = state_shapes(graph)
    assert [shapes[f"layers.{i}.attention.query.weight"][0] for i in range(4)] == [48, 48, 64, 80]
    assert [shapes[f"layers.{i}.ffn.up.weight"][0] for i in range(4)] == [64, 128, 192, 384]


def test_padding_reaches_attention_as_a_length_and_bounds_the_input():
    graph = compile_hard("padding").graph
    assert [(b.symbol, b.limit) for b in graph.bounds] == [("S", 1024)]
    attention = ops(graph, "attention")[0]
    assert attention.inputs["length"] is not None and attention.inputs["keep"] is None
