"""The rules: one id for each kind of change, what it touches, and the id of its inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["function", "names", "training", "interface", "mapping"]


@dataclass(frozen=True)
class Rule:
    """`effect`: `function` changes what is computed, `names` only paths, `training` only how it trains, `interface` what goes in and out,
    `mapping` how foreign weight files are read. `explains` are rules that follow from this one and are not told beside it."""

    id: str
    mirror: str
    effect: Effect
    text: str
    explains: tuple[str, ...] = ()


SHAPES = ("node.width-changed", "node.attribute-changed", "attention.head-width-changed", "attention.scale-changed")
INSIDE = ("node.added", "node.removed", "node.rewired", "node.renamed", "node.swapped", "block.renamed", *SHAPES)


def _pair(a: str, b: str, effect: Effect, text: str, explains: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Two rules, each the inverse of the other."""
    return Rule(a, b, effect, text, explains), Rule(b, a, effect, text, explains)


def _same(id: str, effect: Effect, text: str, explains: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """A rule that is its own inverse."""
    return (Rule(id, id, effect, text, explains),)


_ALL = (
    *_same("width.changed", "function", "the width of the model",
          ("attention.heads-changed", "attention.kv-heads-changed", "ffn.hidden-changed", *SHAPES)),
    *_same("norm.placement-changed", "function", "where norms stand beside the residual", INSIDE),
    *_same("position.type-changed", "function", "how positions are told", (*INSIDE, "interface.input-bound-changed")),
    *_same("ffn.type-changed", "function", "the kind of feed-forward block", ("ffn.hidden-changed", "ffn.activation-changed", *INSIDE)),
    *_same("attention.type-changed", "function", "the kind of attention", INSIDE),
    *_same("norm.type-changed", "function", "the kind of norm", ("norm.eps-changed", "node.attribute-changed")),
    *_same("attention.heads-changed", "function", "heads of attention", ("attention.kv-heads-changed", *SHAPES)),
    *_same("attention.kv-heads-changed", "function", "heads of keys and values", SHAPES),
    *_same("attention.head-width-changed", "function", "width of a head", ("attention.scale-changed", *SHAPES)),
    *_same("attention.window-changed", "function", "keys that a query sees", ("node.attribute-changed",)),
    *_same("attention.causal-changed", "function", "whether a query sees later keys"),
    *_same("attention.scale-changed", "function", "scale of the scores"),
    *_same("attention.softcap-changed", "function", "soft cap of the scores"),
    *_pair("position.added", "position.removed", "function", "how positions are told", ("node.added", "node.removed", "node.rewired")),
    *_same("position.theta-changed", "function", "base of the rotary frequencies"),
    *_same("position.scaling-changed", "function", "scaling of the rotary frequencies"),
    *_same("position.layout-changed", "function", "pairs that a rotary embedding turns"),
    *_same("position.table-resized", "function", "rows of the table of positions", SHAPES),
    *_pair("norm.added", "norm.removed", "function", "a norm", ("node.rewired",)),
    *_same("norm.eps-changed", "function", "eps of norms"),
    *_same("norm.offset-changed", "function", "offset of norm weights"),
    *_same("ffn.hidden-changed", "function", "inner width of the feed-forward block", SHAPES),
    *_same("ffn.activation-changed", "function", "activation"),
    *_pair("bias.added", "bias.removed", "function", "biases"),
    *_same("moe.experts-changed", "function", "number of experts", SHAPES),
    *_same("moe.top-k-changed", "function", "experts that a row goes to", SHAPES),
    *_pair("stack.count-increased", "stack.count-decreased", "function", "number of copies", SHAPES),
    *_pair("block.added", "block.removed", "function", "a copy inside the stack", SHAPES),
    *_same("block.moved", "function", "order of copies"),
    *_same("block.shifted", "names", "numbers of copies"),
    *_same("block.swapped", "function", "a block", INSIDE),
    *_same("block.renamed", "names", "name of a block"),
    *_pair("weights.tied", "weights.untied", "function", "one tensor for two uses", ("bias.added", "bias.removed")),
    *_pair("weights.shared", "weights.unshared", "function", "parameters that copies share"),
    *_same("embedding.rows-changed", "function", "entries of an embedding", SHAPES),
    *_pair("parameter.added", "parameter.removed", "function", "a parameter"),
    *_pair("node.added", "node.removed", "function", "a node", ("node.rewired",)),
    *_same("node.swapped", "function", "op of a node", ("node.attribute-changed",)),
    *_same("node.rewired", "function", "what a node reads"),
    *_same("node.width-changed", "function", "a width", ("node.attribute-changed",)),
    *_same("node.attribute-changed", "function", "an attribute"),
    *_same("node.respelled", "names", "the same, written in another way"),
    *_same("node.moved", "names", "nodes in another block", ("block.renamed",)),
    *_same("node.renamed", "names", "name of a node", ("block.renamed",)),
    *_pair("interface.input-added", "interface.input-removed", "interface", "an input"),
    *_pair("interface.optional-input-added", "interface.optional-input-removed", "interface", "an optional input"),
    *_pair("interface.output-added", "interface.output-removed", "interface", "an output"),
    *_same("interface.input-changed", "interface", "type of an input"),
    *_same("interface.input-bound-changed", "interface", "bound of a free dimension"),
    *_same("interface.output-changed", "interface", "type of an output"),
    *_same("training.dropout-changed", "training", "dropout"),
    *_same("training.init-changed", "training", "how parameters start"),
    *_same("training.trainable-changed", "training", "which parameters train"),
    *_same("checkpoint.mapping-changed", "mapping", "how foreign weights are read"),
    *_same("model.changed", "function", "something that cannot be told apart"),
)
RULES: dict[str, Rule] = {r.id: r for r in _ALL}
RANK = {r: k for k, r in enumerate(RULES)}              # the first of several rules is what an edit is called


def mirror(rule: str) -> str:
    """The rule of the change back."""
    return RULES[rule].mirror
