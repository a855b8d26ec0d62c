"""Models of the library against each other: every tensor is told once, numbers sum, layouts hold."""

import jsonschema
import pytest
from nnspec.diff.compare import compare
from nnspec.diff.formats.annotations import github, junit
from nnspec.diff.formats.as_json import data, schema
from nnspec.diff.formats.markdown import markdown
from nnspec.diff.formats.text import text
from nnspec.diff.sources import opened
from nnspec.ir.parameters import state_shapes

PAIRS = [("luong", "minilm"), ("roberta-base", "t5-small"), ("gpt2", "mixtral-8x7b"), ("qwen3-0.6b", "mixtral-8x7b"), ("gemma2-2b", "gpt2"),
         ("g2p", "additive-seq2seq"), ("vit-base-patch16-224", "bert-base"), ("llama-3-8b", "mistral-7b")]


@pytest.mark.parametrize("a, b", PAIRS)
def test_two_models_of_the_library(a, b):
    base, head = opened(a), opened(b)
    r = compare(base, head, (a, b))
    for side, graph, statuses in (("base", base.graph, {"new"}), ("head", head.graph, {"dropped"})):
        told = [p for t in r.tensors if t.status not in statuses for p in getattr(t, side).paths()]
        assert sorted(told) == sorted(state_shapes(graph)), side
    for m in r.metrics:
        if m.delta is not None and all(m.name in e.deltas for e in r.edits):
            assert sum(e.deltas[m.name] for e in r.edits) == m.delta, m.name
    jsonschema.Draft202012Validator(schema()).validate(data(r))
    assert r.changed and all(len(line) <= 110 for line in text(r, full=False).splitlines())
    assert markdown([r]).count("\n| ") > len(r.edits) and github([r]).count("\n") == len(r.edits) and "testsuite" in junit([r])
