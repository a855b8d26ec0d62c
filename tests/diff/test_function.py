"""Whether a function changed does not depend on the rules: what none of them sees is told all the same."""

import dataclasses
from dataclasses import replace

import pytest
from nnspec.diff.graphs import regions
from nnspec.diff.graphs.function import same_function
from nnspec.diff.rules import RULES
from nnspec.ir.graph import Control, Graph
from nnspec.pipeline import front

from .pairs import GPT2, edited, report
from .test_pairs import BASES, HEADS
from .test_properties import SMALL

TRAINING = {("parameter", "init"), ("parameter", "trainable"), ("dropout", "rate")}
BY_TYPES = {"width", "entries", "shape"}            # of other weights, which no single attribute can change alone


def others(value):
    """Other values of an attribute."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    return {"relu": ["gelu"], "gelu_tanh": ["gelu"], "gelu": ["relu"], "silu": ["relu"], "half": ["interleaved"]}.get(value, []) \
        if isinstance(value, str) else []


def variants(region):
    """(op, field, the region with that attribute changed) of everything that a region holds."""
    for k, node in enumerate(region.nodes):
        if isinstance(node.op, Control):
            bodies = node.op.bodies
            for j, body in enumerate(bodies):
                for op, name, made in variants(body):
                    both = (*bodies[:j], made, *bodies[j + 1:])
                    new = replace(node.op, bodies=both) if "bodies" in {f.name for f in dataclasses.fields(node.op)} \
                        else replace(node.op, body=made)
                    yield op, name, replace(region, nodes=(*region.nodes[:k], replace(node, op=new), *region.nodes[k + 1:]))
            continue
        for f in dataclasses.fields(node.op):
            for value in others(getattr(node.op, f.name)):
                new = replace(node, op=replace(node.op, **{f.name: value}))
                yield node.op.name, f.name, replace(region, nodes=(*region.nodes[:k], new, *region.nodes[k + 1:]))


@pytest.mark.parametrize("name", ["gpt2", "mistral-7b", "t5-small", "luong"])
def test_every_attribute_of_every_op_is_of_the_function_but_those_of_training(name):
    graph = front(name).graph
    assert same_function(graph, graph)
    seen = 0
    for op, field, root in variants(graph.root):
        if field not in BY_TYPES:
            seen += 1
            assert same_function(graph, Graph(graph.name, root)) == ((op, field) in TRAINING), (op, field)
    assert seen > 10


def blind(monkeypatch):
    """Rules that see nothing of the function."""
    tell = regions._Comparison.tell
    monkeypatch.setattr(regions._Comparison, "tell",
                        lambda self, rule, *more: tell(self, rule, *more) if RULES[rule].effect != "function" else None)


@pytest.mark.parametrize("pair", HEADS)
def test_what_no_rule_sees_is_told(pair, monkeypatch):
    blind(monkeypatch)
    r = report(BASES.get(pair, GPT2), HEADS[pair])
    assert r.verdict.function == "changed" and any(f.rule == "model.changed" for e in r.edits for f in e.consequences)
    assert r.level == "breaking" or r.verdict.checkpoint == "exact"
    if pair in (11, 12, 13):
        assert r.verdict.checkpoint == "silent"


def test_an_unseen_change_beside_one_of_training_is_told(monkeypatch):
    head = edited(SMALL, "act: one of relu | gelu = relu -> act: one of relu | gelu = gelu", "width: 5} -> width: 5, trainable: false}")
    blind(monkeypatch)
    r = report(SMALL, head)
    assert r.verdict.function == "changed" and r.verdict.checkpoint == "silent"
    assert sorted(e.rule for e in r.edits) == ["model.changed", "training.trainable-changed"]


@pytest.mark.parametrize("changes, same", [
    (("[in, two] -> [two, in]",), True), (("go -> went",), True), (("layer -> mine",), True),
    (("width: 5} -> width: 5, init: zeros}",), True),
    (("{x: -> {z:", "in: x -> in: z"), True), (("[B, S, w] -> [B, T, w]", "bool[B, S] -> bool[B, T]"), True),
    (("{y: y} -> {y: y, z: stack}",), True), (("in: go -> in: one", "width: 3 * w -> width: w"), False),
    (("repeat: n, -> repeat: n, share: i % 2,",), False), (("in: stack, width -> in: x, width",), False), (("n: 4 -> n: 5",), False),
    (("width: 5} -> width: 5, bias: false}",), False),
])
def test_the_same_function_written_in_another_way(changes, same):
    from .pairs import compiled
    a, b = compiled(SMALL).graph, compiled(edited(SMALL, *changes)).graph
    assert same_function(a, b) == same_function(b, a) == same


def test_a_block_around_nodes_and_a_tensor_in_two_places():
    from .pairs import compiled
    flat = edited(SMALL, "  y: {op: linear, in: stack, width: 5}\n -> "
                  "  a: {op: linear, in: stack, width: 8}\n  b: {op: linear, in: a, width: 8}\n  y: {op: linear, in: b, width: 8}\n")
    wrapped = edited(flat, "  a: {op: linear, in: stack, width: 8}\n  b: {op: linear, in: a, width: 8}\n -> "
                     "  b: {block: two, in: stack}\n", "graph:\n  stack -> "
                     "  two:\n    inputs: {in: \"float[B, S, W]\"}\n    graph:\n      a: {op: linear, in: in, width: W}\n"
                     "      b: {op: linear, in: a, width: W}\ngraph:\n  stack")
    tied = edited(flat, "in: a, width: 8} -> in: a, weight: a.weight}")
    other = edited(flat, "in: b, width: 8} -> in: b, weight: a.weight}")
    graphs = [compiled(x).graph for x in (flat, wrapped, tied, other)]
    assert same_function(graphs[0], graphs[1])
    assert not any(same_function(x, y) for x, y in ((graphs[0], graphs[2]), (graphs[2], graphs[3]), (graphs[0], graphs[3])))


