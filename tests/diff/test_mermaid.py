"""The picture of a comparison that forges draw."""

import re

import pytest
from nnspec.diff.formats.markdown import markdown
from nnspec.diff.formats.mermaid import MOST, mermaid

from .pairs import GPT2, MODERN, NORM, edited, report


def parts(text):
    """Labels by id, edges, and the class of each id; every line is one of a few forms."""
    labels, edges, classes = {}, [], {}
    for line in text.splitlines():
        if found := re.fullmatch(r'\s+(?:subgraph )?(n\d+)\["([^"<>]*)"\]', line):
            labels[found[1]] = found[2]
        elif found := re.fullmatch(r"  (n\d+) --> (n\d+)", line):
            edges.append((found[1], found[2]))
        elif found := re.fullmatch(r"  class ([n\d,]+) (\w+)", line):
            classes |= dict.fromkeys(found[1].split(","), found[2])
        else:
            assert re.fullmatch(r"flowchart TB|  end|  classDef \w+ [#\w:,-]+", line), line
    return labels, edges, classes


def test_what_changed_is_marked():
    labels, edges, classes = parts(mermaid(report(GPT2, MODERN)))
    assert {labels[k]: kind for k, kind in classes.items()} == {
        "− placed: learned_positions": "removed", "~ layers: x16 pre_norm_layer": "changed", "~ norm: rms_norm": "changed",
        "~ attention_norm: rms_norm": "changed", "~ ffn_norm: rms_norm": "changed", "~ attention: multi_head_attention": "changed",
        "~ ffn: gated_ffn": "changed"}
    at = {v: k for k, v in labels.items()}
    assert (at["~ ffn_norm: rms_norm"], at["~ ffn: gated_ffn"]) in edges and (at["~ norm: rms_norm"], at["logits: linear"]) in edges
    assert all(a in labels and b in labels for a, b in edges) and len(labels) <= MOST


@pytest.mark.parametrize("base, head", [(GPT2, GPT2), (GPT2, edited(GPT2, *NORM))])
def test_a_comment_holds_it_where_something_changed(base, head):
    made = markdown([report(base, head)])
    assert made.count("```mermaid") == (base != head) and made.count("```") == 2 * (base != head)


def test_a_model_of_many_nodes_shows_the_parts_that_changed_or_nothing():
    many = edited(GPT2, "in: placed\n -> in: far\n", "  layers:\n -> " + "".join(
        f"  a{k}: {{op: activate, in: {'placed' if k == 0 else f'a{k - 1}'}, function: relu}}\n" for k in range(MOST))
        + "  far: {op: dropout, in: a39, rate: 0.1}\n  layers:\n")
    inside = mermaid(report(many, edited(many, "activation: gelu_tanh -> activation: gelu")))
    assert "a17" not in parts(inside)[0].values() and "~ ffn: plain_ffn" in parts(inside)[0].values()
    assert mermaid(report(many, edited(many, "width: 768 -> width: 780"))) == ""
