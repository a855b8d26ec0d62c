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


def _rules() -> list[Rule]:
    pairs = lambda a, b, effect, text, explains=(): [  # noqa: E731
        Rule(a, b, effect, text, explains), Rule(b, a, effect, text, explains)]
    same = lambda id, effect, text, explains=(): [Rule(id, id, effect, text, explains)]  # noqa: E731
    return [
        *same("width.changed", "function", "the width of the model",
              ("attention.heads-changed", "attention.kv-heads-changed", "ffn.hidden-changed", *SHAPES)),
        *same("norm.placement-changed", "function", "where norms stand beside the residual", INSIDE),
        *same("position.type-changed", "function", "how positions are told", (*INSIDE, "interface.input-bound-changed")),
        *same("ffn.type-changed", "function", "the kind of feed-forward block", ("ffn.hidden-changed", "ffn.activation-changed", *INSIDE)),
        *same("attention.type-changed", "function", "the kind of attention", INSIDE),
        *same("norm.type-changed", "function", "the kind of norm", ("norm.eps-changed", "node.attribute-changed")),
        *same("attention.heads-changed", "function", "heads of attention", ("attention.kv-heads-changed", *SHAPES)),
        *same("attention.kv-heads-changed", "function", "heads of keys and values", SHAPES),
        *same("attention.head-width-changed", "function", "width of a head", ("attention.scale-changed", *SHAPES)),
        *same("attention.window-changed", "function", "keys that a query sees", ("node.attribute-changed",)),
        *same("attention.causal-changed", "function", "whether a query sees later keys"),
        *same("attention.scale-changed", "function", "scale of the scores"),
        *same("attention.softcap-changed", "function", "soft cap of the scores"),
        *pairs("position.added", "position.removed", "function", "how positions are told", ("node.added", "node.removed", "node.rewired")),
        *same("position.theta-changed", "function", "base of the rotary frequencies"),
        *same("position.scaling-changed", "function", "scaling of the rotary frequencies"),
        *same("position.layout-changed", "function", "pairs that a rotary embedding turns"),
        *same("position.table-resized", "function", "rows of the table of positions", SHAPES),
        *pairs("norm.added", "norm.removed", "function", "a norm", ("node.rewired",)),
        *same("norm.eps-changed", "function", "eps of norms"),
        *same("norm.offset-changed", "function", "offset of norm weights"),
        *same("ffn.hidden-changed", "function", "inner width of the feed-forward block", SHAPES),
        *same("ffn.activation-changed", "function", "activation"),
        *pairs("bias.added", "bias.removed", "function", "biases"),
        *same("moe.experts-changed", "function", "number of experts", SHAPES),
        *same("moe.top-k-changed", "function", "experts that a row goes to", SHAPES),
        *pairs("stack.count-increased", "stack.count-decreased", "function", "number of copies", SHAPES),
        *pairs("block.added", "block.removed", "function", "a copy inside the stack", ("block.shifted", *SHAPES)),
        *same("block.moved", "function", "order of copies", ("block.shifted",)),
        *same("block.shifted", "names", "numbers of copies"),
        *same("block.swapped", "function", "a block", INSIDE),
        *same("block.renamed", "names", "name of a block"),
        *pairs("weights.tied", "weights.untied", "function", "one tensor for two uses", ("bias.added", "bias.removed")),
        *pairs("weights.shared", "weights.unshared", "function", "parameters that copies share"),
        *same("embedding.rows-changed", "function", "entries of an embedding", SHAPES),
        *pairs("parameter.added", "parameter.removed", "function", "a parameter"),
        *pairs("node.added", "node.removed", "function", "a node", ("node.rewired",)),
        *same("node.swapped", "function", "op of a node", ("node.attribute-changed",)),
        *same("node.rewired", "function", "what a node reads"),
        *same("node.width-changed", "function", "a width", ("node.attribute-changed",)),
        *same("node.attribute-changed", "function", "an attribute"),
        *same("node.respelled", "names", "the same, written in another way"),
        *same("node.renamed", "names", "name of a node", ("block.renamed",)),
        *pairs("interface.input-added", "interface.input-removed", "interface", "an input"),
        *pairs("interface.optional-input-added", "interface.optional-input-removed", "interface", "an optional input"),
        *pairs("interface.output-added", "interface.output-removed", "interface", "an output"),
        *same("interface.input-changed", "interface", "type of an input"),
        *same("interface.input-bound-changed", "interface", "bound of a free dimension"),
        *same("interface.output-changed", "interface", "type of an output"),
        *same("training.dropout-changed", "training", "dropout"),
        *same("training.init-changed", "training", "how parameters start"),
        *same("training.trainable-changed", "training", "which parameters train"),
        *same("checkpoint.mapping-changed", "mapping", "how foreign weights are read"),
        *same("model.changed", "function", "something that cannot be told apart"),
    ]


RULES: dict[str, Rule] = {r.id: r for r in _rules()}
RANK = {r: k for k, r in enumerate(RULES)}              # the first of several rules is what an edit is called


def mirror(rule: str) -> str:
    """The rule of the change back."""
    return RULES[rule].mirror
