"""config.json against the section of its family: `Section, Tree -> [Change]`, or everything that the family does not know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from ..ir.evaluate import evaluate
from ..lang.diagnostic import Label, Sink, fault, nearest, suggest
from ..lang.expression import parse_expression
from ..lang.source import Span
from ..lang.tree import Mapping, Scalar, Sequence, Tree, kind
from .patterns import cycle
from .section import Change, Choice, Key, Later, Section, number, same, words

UNKNOWN = "unknown-config-key"
UNSUPPORTED = "unsupported-config"
MISSING = "missing-config-key"
BAD = "bad-config"
MARK = "model_type"                              # an object with it is a config itself, of a part of the model


def match_config(section: Section, config: Mapping, harmless: Iterable[str], sink: Sink, sizes: Tree | None = None) -> Matched:
    """The changes that a config makes to the spec of its family; what the family does not know goes to `sink`.

    `harmless` are keys that no model reads when it computes, `sizes` those of the family.
    """
    written = {e.key.text: e.value for e in sizes} if isinstance(sizes, Mapping) else {}
    matcher = Matched(config, sink, written)
    matcher.section(section)
    harmless = tuple(harmless)
    inner = {f"{e.key.text}.{name}" for e in config if isinstance(e.value, Mapping) and MARK in e.value for name in harmless}
    unknown(section, config, {*harmless, *inner, *matcher.covered}, sink)
    sink.check()
    return matcher


@dataclass
class Matched:
    """What a config says, as changes of the spec."""

    config: Mapping
    sink: Sink
    sizes: dict[str, Tree] = dataclass_field(default_factory=dict)          # the family's, then those of the changes
    changes: list[Change] = dataclass_field(default_factory=list)
    covered: set[str] = dataclass_field(default_factory=set)
    later: list[Later] = dataclass_field(default_factory=list)

    def section(self, section: Section) -> None:
        self.covered.update(section.names())
        for key in section.keys:
            with self.sink.catch():
                self.key(key, section)

    def key(self, key: Key, section: Section) -> None:
        found = self.find(key)
        if key.require:
            self.required(key, found, section)
        elif key.pattern is not None and (key.choice("null") is None or (found and not null(found[1]))):
            self.pattern(key, found)
        else:
            self.valued(key, found)

    def find(self, key: Key) -> tuple[str, Tree] | None:
        """The spelling that the config has, and its value; null counts as absent, unless the key chooses by it."""
        there = [(name, tree) for name in key.spellings if (tree := lookup(self.config, name)) is not None]
        said = [(name, tree) for name, tree in there if not null(tree)]
        for name, tree in said[1:]:
            if not equal(tree, said[0][1]):
                raise fault(BAD, f"`{said[0][0]}` and `{name}` are two spellings of one key, and differ", tree.span,
                            Label(said[0][1].span, "the other"), help="delete the one that is not meant")
        return said[0] if said else there[0] if there and key.choice("null") else None

    def valued(self, key: Key, found: tuple[str, Tree] | None) -> None:
        name, tree = found or (key.spellings[0], key.default)
        null_choice = key.choice("null")
        if tree is None and null_choice is not None:
            return self.choose(null_choice)
        if tree is None and key.at:
            return None
        if tree is None:
            raise fault(MISSING, f"the config has no `{key.name.text}`, and the family has no default for it", self.config.span.part(0, 1),
                        Label(key.name.span, "the family names it here"),
                        help="add it to config.json with the value that the weights were trained with")
        value = single(tree)
        choice = (key.choice(value.text) or self.formula(key, value)) if value is not None else None
        if choice is not None:
            return self.choose(choice)
        if key.at:
            return self.put(key, name, tree, found is not None)
        if key.size is None:
            raise self.unsupported(key, name, tree)
        return self.size(key, key.size, name, tree, found is not None)

    def formula(self, key: Key, value: Scalar) -> Choice | None:
        """The choice whose expression over the sizes gives the number; the sizes are those that the keys before it say."""
        wanted = number(value.text)
        if wanted is None:
            return None
        given = (c for c in key.choose if c.formula)
        return next((c for c in given if isinstance(n := self.evaluated(c.value), int | float) and math.isclose(n, wanted)), None)

    def evaluated(self, given: Scalar, inside: tuple[str, ...] = ()) -> object:
        def find(name: str, span: Span) -> Any:
            tree = self.sizes.get(name)
            if not isinstance(tree, Scalar) or name in inside:
                raise fault(BAD, f"`{given.text}` cannot be known here: `{name}` is no number", span)
            return self.evaluated(tree, (*inside, name))
        return evaluate(parse_expression(given.text, given.span), find)

    def choose(self, choice: Choice) -> None:
        self.changes += choice.changes
        self.sizes |= {c.path.text.removeprefix("sizes."): c.value for c in choice.changes if c.path.text.startswith("sizes.")}
        if choice.config is not None:
            self.section(choice.config)

    def size(self, key: Key, size: Scalar, name: str, tree: Tree, given: bool) -> None:
        value = tree
        if given:
            number_text = numeric(tree)
            if number_text is None:
                raise fault(UNSUPPORTED, f"`{name}` is {shown(tree)}, and a number was expected", tree.span,
                            Label(key.name.span, f"it is the size `{size.text}`"),
                            help=suggest_values(key) if key.choose else ())
            value = number_text
        path = Scalar(f"sizes.{size.text}", size.span)
        self.changes.append(Change("set", path, value))
        self.sizes[size.text] = value

    def put(self, key: Key, name: str, tree: Tree, given: bool) -> None:
        """The value itself, or our word for it, at the paths."""
        if key.words:
            word = single(tree)
            found = dict(key.words).get(word.text) if word is not None else None
            if found is None:
                raise self.unsupported(key, name, tree)
            self.changes += [Change("put", at, found) for at in key.at]
            return
        value = tree if not given or (isinstance(tree, Scalar) and tree.text in ("true", "false")) else numeric(tree)
        if value is None:
            raise fault(UNSUPPORTED, f"`{name}` is {shown(tree)}, and a number, true or false was expected", tree.span,
                        Label(key.name.span, f"it goes to `{key.at[0].text}`"), help=suggest_values(key) if key.choose else ())
        self.changes += [Change("put", at, value) for at in key.at]

    def required(self, key: Key, found: tuple[str, Tree] | None, section: Section) -> None:
        if found is None:
            return
        value = single(found[1])
        if value is None or not any(same(value.text, r.text) for r in key.require):
            formulas = [r for r in key.require if not words(r.text, section.sizes)]
            if value is None or number(value.text) is None or not formulas:
                raise self.unsupported(key, *found)
            self.later.append(Later(f"`{found[0]}` is {value.text}", float(value.text), tuple(formulas), value.span))

    def pattern(self, key: Key, found: tuple[str, Tree] | None) -> None:
        assert key.pattern is not None
        tree = found[1] if found else key.default
        if tree is None:
            raise fault(MISSING, f"the config has no `{key.name.text}`, and the family has no default for it", self.config.span.part(0, 1),
                        Label(key.name.span, "the family names it here"))
        listed = tree.items if isinstance(tree, Sequence) else (tree,)
        items = dict((word.text, item) for word, item in key.items)
        for word in listed:
            if not isinstance(word, Scalar) or word.text not in items:
                near = suggest(word.text, items, "kinds") if isinstance(word, Scalar) else ()
                self.sink.add(fault(UNSUPPORTED, f"the family has no {shown(word)} in `{key.name.text}`", word.span,
                                    Label(key.name.span, "the kinds that it has"), help=near).diagnostic)
                return
        path = key.pattern.text if key.pattern.text.startswith(("graph.", "blocks.")) else f"graph.{key.pattern.text}"
        made = cycle([items[w.text] for w in listed if isinstance(w, Scalar)], tree.span)
        layers = len(listed) if found and isinstance(tree, Sequence) else None
        self.changes.append(Change("pattern", Scalar(path, key.pattern.span), made, layers))

    def unsupported(self, key: Key, name: str, tree: Tree) -> Exception:
        self.covered.update(name for c in key.choose if c.config is not None for name, _ in c.config.deep())       # not an error on top
        known = [*(c.value.text for c in key.choose), *(r.text for r in key.require), *(word for word, _ in key.words)]
        values = ", ".join(f"`{k}`" for k in known)
        value = single(tree)
        near = nearest(value.text, known) if value else None
        text = value.text if value else "..."
        return fault(UNSUPPORTED, f"`{name}` is {shown(tree)}, which the family does not support", tree.span,
                     Label(key.name.span, f"it knows {values}"),
                     help=[*([f"did you mean `{near}`?"] if near and near != text else []),
                           *([f"a family may add it: `choose: {{{text}: {{set: {{PATH: VALUE}}}}}}`"] if key.choose else [])])


def suggest_values(key: Key) -> tuple[str, ...]:
    return (f"or one of {', '.join(c.value.text for c in key.choose)}",)


def unknown(section: Section, config: Mapping, covered: set[str], sink: Sink) -> None:
    """Report every key of the config that nothing names."""
    deep = dict(section.deep())
    for name, key, value in leaves(config, covered):
        if name in deep and deep[name] is not None:
            owner, choice = deep[name]                                                    # type: ignore[misc]
            sink.add(fault(UNKNOWN, f"`{name}` has a meaning only where `{owner.name.text}` is `{choice.value.text}`", key.span,
                           Label(choice.value.span, "named in this choice"), help=f"delete `{name}` from the config").diagnostic)
            continue
        near = nearest(name, deep)
        helps = [*([f"did you mean `{near}`?"] if near else []),
                 f"where it changes nothing, add it to the family: `config: {{ignore: [{name}]}}`",
                 *([f"where only one value is supported: `{name}: {{require: {_short(value)}}}`"] if isinstance(value, Scalar) else [])]
        sink.add(fault(UNKNOWN, f"the family does not know the config key `{name}`", key.span, help=helps).diagnostic)


def leaves(tree: Mapping, covered: set[str], above: str = "") -> Iterator[tuple[str, Scalar, Tree]]:
    """The dotted name, key and value of everything that is not null and that no covered name holds."""
    for e in tree:
        name = above + e.key.text
        if name in covered or null(e.value):
            continue
        inside = f"{name}."
        if isinstance(e.value, Mapping) and any(c.startswith(inside) for c in covered):
            yield from leaves(e.value, covered, inside)
        else:
            yield name, e.key, e.value


def lookup(config: Mapping, name: str) -> Tree | None:
    """The value at a dotted name."""
    tree: Tree | None = config
    for part in name.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def null(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and tree.text == "null" and not tree.quoted


def single(tree: Tree) -> Scalar | None:
    """A value as one scalar: a list of one counts as its element."""
    if isinstance(tree, Sequence) and len(tree) == 1:
        tree = tree.items[0]
    return tree if isinstance(tree, Scalar) else None


def numeric(tree: Tree) -> Tree | None:
    """A number, or a list of numbers, as a spec writes it; of an object (`id2label`) the number of its entries."""
    if isinstance(tree, Mapping):
        return Scalar(str(len(tree)), tree.span)
    if isinstance(tree, Sequence):
        parts = [p for x in tree if (p := numeric(x)) is not None]
        return Sequence(tuple(parts), tree.span, True) if parts and len(parts) == len(tree) else None
    value = number(tree.text) if isinstance(tree, Scalar) and not tree.quoted else None
    if value is None or not math.isfinite(value) or not isinstance(tree, Scalar):
        return None
    return Scalar(tidy(tree.text), tree.span)


def tidy(text: str) -> str:
    """The number in its shortest form: `1e-05` is 1e-5, `500000.0` is 5e5, `0.10` is 0.1."""
    if text.lstrip("-").isdigit():
        return text
    value = float(text)
    digits, _, power = f"{value!r}".partition("e")
    if not power and value.is_integer() and abs(value) < 1e16:
        whole = str(int(value))
        zeros = len(whole) - len(whole.rstrip("0"))
        return f"{whole[:-zeros]}e{zeros}" if zeros > 2 and len(whole) - zeros == 1 else whole if zeros < 3 else f"{int(value)}"
    return digits.removesuffix(".0") + (f"e{int(power)}" if power else "")


def equal(a: Tree, b: Tree) -> bool:
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return same(a.text, b.text)
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return len(a) == len(b) and all(map(equal, a, b))
    return (isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys()
            and all(equal(e.value, b.get(e.key.text) or e.value) for e in a))


def shown(tree: Tree) -> str:
    """A value in a message."""
    value = single(tree)
    if value is None:
        return kind(tree)
    return f'the text `"{_short(value)}"`' if value.quoted and number(value.text) is not None else f"`{_short(value)}`"


def _short(tree: Tree) -> str:
    text = (tree.text or '""') if isinstance(tree, Scalar) else "..."
    return text if len(text) <= 40 else f"{text[:37]}..."

