"""The edits of a comparison, made one after another on the base, give the head: nothing of the head is taken on trust."""

import pytest
from hypothesis import given
from nnspec.diff.groups import explicit, grouped
from nnspec.diff.replay import replay
from nnspec.diff.tree import canonical, declared, put
from nnspec.ir.text import identity_hash, structure_hash
from nnspec.lang.diagnostic import Sink
from nnspec.lang.tree import plain
from nnspec.pipeline import typed
from nnspec.stages.check import check

from .pairs import GPT2, compiled
from .test_pairs import BASES, HEADS
from .test_properties import FEW, SPECS, spec_renamed, written


def built(tree, source):
    sink = Sink()
    check(tree, sink)
    sink.check()
    return typed(source, tree, sink)[1]


def applied(base, head):
    """Every change of the edits on the base's tree, the last one too, which a comparison takes from the head itself."""
    tree = explicit(canonical(base, head))
    for step in replay(base, head)[0]:
        for change in step.group.changes:
            tree = put(tree, change)
    return tree


def hold(base, head):
    graph = built(applied(base, head), base.spec.source)
    assert structure_hash(graph) == structure_hash(head.graph) and identity_hash(graph) == identity_hash(head.graph)
    ours, theirs = explicit(canonical(base, head)), explicit(canonical(head, base))
    for group in grouped(ours, theirs, declared(head)):
        for change in group.changes:
            ours = put(ours, change)
    assert plain(ours) == plain(theirs)                     # every key, those that change nothing too


@pytest.mark.parametrize("pair", HEADS)
def test_the_edits_of_a_pair_make_its_head_and_those_back_its_base(pair):
    base, head = compiled(BASES.get(pair, GPT2)), compiled(HEADS[pair])
    hold(base, head)
    hold(head, base)


@FEW
@given(SPECS, SPECS)
def test_the_edits_make_the_head(one, two):
    hold(compiled(written(one)), compiled(written(two)))
    hold(compiled(written(one)), compiled(written(spec_renamed(two))))
