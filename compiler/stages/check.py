"""`Tree -> Tree`: hold a composed file against the structure of the language; what comes out is safe to decode.

The rules are data (`lang/structure.py`, JSON Schema); this module gives each violation its span and its words. References
between definitions are queued, not followed, so that depth and size cost no stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Literal, TypeVar

from ..lang.diagnostic import Diagnostic, Label, Sink, diagnostic, nearest, suggest
from ..lang.spec import TARGETS
from ..lang.structure import CONTROL_OF, SCALARS, definitions
from ..lang.tree import Entry, Mapping, Scalar, Sequence, Tree, kind

T = TypeVar("T", bound=Tree)
_FORMS = {"object": "a mapping", "array": "a list", "string": "one value"}


def check(tree: T, sink: Sink, file: Literal["model", "library"] = "model") -> T:
    """The tree itself; all violations of a model file, or of a file of blocks, go to `sink`, one for each place."""
    validators = _validators()
    seen: set[tuple[int, int]] = set()
    queue: list[tuple[Tree, Any, str, Entry | None]] = [(tree, _plain(tree), file, None)]
    for at, instance, name, under in queue:
        for error in validators[name].iter_errors(instance):
            place, entry, holder = _locate(at, under, error.path)
            if error.validator == "$ref":
                queue.append((place, error.instance, error.validator_value.rpartition("/")[2], entry))
                continue
            for d in _explain(error, place, entry, holder):
                key = (id(d.labels[0].span.source), d.labels[0].span.start)
                if key not in seen:
                    seen.add(key)
                    sink.add(d)
    return tree


@cache
def _validators() -> dict[str, Any]:
    """One validator for each definition. jsonschema takes 60 ms to import, which only those who check pay."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    schemas = definitions()
    names = {f"#/$defs/{n}": schemas[n] for n in ("name", "key", "port")}
    plain_text = {f"#/$defs/{n}" for n, s in schemas.items() if "string" in s.get("type", ())} - set(names)

    def queued(validator: Any, target: str, instance: Any, schema: Any) -> Iterator[Any]:
        if target in names:
            yield from validator.descend(instance, names[target])
        elif not (isinstance(instance, str) and target in plain_text):
            yield ValidationError("queued")

    kind_of_validator = extend(Draft202012Validator, {"$ref": queued})
    return {name: kind_of_validator(schema) for name, schema in schemas.items()}


def _plain(tree: Tree) -> Any:
    """The tree as dicts, lists and strings, with None for a value that is not there."""
    if isinstance(tree, Scalar):
        return tree.text if tree.text or tree.quoted else None
    if isinstance(tree, Sequence):
        return [_plain(item) for item in tree]
    return {e.key.text: _plain(e.value) for e in tree}


def _locate(tree: Tree, entry: Entry | None, path: Iterable[str | int]) -> tuple[Tree, Entry | None, Mapping | None]:
    """The value at a path, the entry it is the value of (for an item of a list, of the list), and the mapping of that."""
    holder = None
    for part in path:
        if isinstance(tree, Mapping) and isinstance(part, str):
            entry = tree.entry(part)
            assert entry is not None
            holder, tree = tree, entry.value
        elif isinstance(tree, Sequence) and isinstance(part, int):
            tree = tree.items[part]
    return tree, entry, holder


def _explain(error: Any, tree: Tree, entry: Entry | None, holder: Mapping | None) -> Iterator[Diagnostic]:
    """The diagnostics of one violation at `tree`, which is the value of `entry`, a key of `holder`."""
    rule, schema = error.validator, error.schema
    if "propertyNames" in error.schema_path:
        yield _bad_name(error, tree, entry)
    elif rule == "additionalProperties":
        yield from _unknown_keys(schema, tree, entry)
    elif rule == "required":
        yield from _missing_keys(schema, tree, entry)
    elif rule == "type":
        yield _wrong_form(error, tree, entry)
    elif rule == "enum":
        yield diagnostic("bad-version", "this is not version 1 of the language", tree.span, help="write `nnspec: 1`")
    elif rule == "not":
        yield _misplaced(error, entry, holder)
    elif rule == "anyOf" and "dependentSchemas" in error.schema_path:
        assert isinstance(tree, Mapping)
        at = tree.entry(error.schema_path[1])
        assert at is not None
        yield _no_meaning(at.key, tree=tree)
    elif rule == "anyOf":
        yield _no_target(tree, entry)
    elif rule in ("minItems", "minProperties"):
        yield diagnostic("bad-spec", f"{_name(entry)} is empty", _point(tree, entry))
    else:
        raise AssertionError(f"no words for a violation of `{rule}`")


def _unknown_keys(schema: Any, tree: Tree, entry: Entry | None) -> Iterator[Diagnostic]:
    assert isinstance(tree, Mapping)
    known = schema["properties"]
    for e in tree:
        key = e.key.text
        if key not in known and not key.startswith("x-"):
            free = [k for k in known if k not in tree]
            yield diagnostic("unknown-key", f"{_noun(schema, entry)} has no key `{key}`", e.key.span,
                             Label(entry.key.span, "in this") if entry else None, help=suggest(key, free, "keys"))


def _missing_keys(schema: Any, tree: Tree, entry: Entry | None) -> Iterator[Diagnostic]:
    assert isinstance(tree, Mapping)
    missing = [k for k in schema["required"] if k not in tree]
    words = " and ".join(f"`{k}:`" for k in missing)
    help = {"a spec": "a model needs `inputs:`, `graph:` and `outputs:`", "a block file": "a file that is used needs `blocks:`"}
    if not any(nearest(k, missing) for e in tree if (k := e.key.text) not in schema["properties"]):    # else: an unknown key
        at = entry.key.span if entry else tree.span.part(0, 1)
        yield diagnostic("missing-key", f"{_noun(schema, entry)} has no {words}", at, help=help.get(schema["title"], ()))


def _wrong_form(error: Any, tree: Tree, entry: Entry | None) -> Diagnostic:
    types = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
    forms = [word for t, word in _FORMS.items() if t in types or (t == "string" and set(types) & set(SCALARS))]
    wanted = " or ".join(filter(None, (", ".join(forms[:-1]), forms[-1])))
    what = _name(entry) if entry is None or tree is entry.value else f"an item of {_name(entry)}"
    about = error.schema.get("description", "").rstrip(".")
    note = f"it says: {about[:1].lower()}{about[1:]}" if about and not about.startswith("`") else about
    if error.instance is None:
        return diagnostic("bad-spec", f"{what} has no value", _point(tree, entry), note=note or (),
                          help=f"write {wanted}, or delete the key")
    return diagnostic("bad-spec", f"{what} is {wanted}, not {kind(tree)}", tree.span, note=note or ())


def _bad_name(error: Any, tree: Tree, entry: Entry | None) -> Diagnostic:
    assert isinstance(tree, Mapping)
    at = tree.entry(error.instance)
    assert at is not None
    if error.validator == "not":
        return diagnostic("bad-name", f"`{at.key.text}` is a word of the language and no name under {_name(entry)}", at.key.span)
    return diagnostic("bad-name", f"`{at.key.text}` cannot be a name under {_name(entry)}", at.key.span,
                      help="names are lower-case letters, digits and `_`, and start with a letter")


def _misplaced(error: Any, entry: Entry | None, holder: Mapping | None) -> Diagnostic:
    """A key that another key of its mapping rules out, or its place does."""
    assert entry is not None and holder is not None
    key = entry.key
    if "dependentSchemas" not in error.schema_path:
        return _no_meaning(key)
    other = error.schema_path[1]
    if key.text in CONTROL_OF:
        return _no_meaning(key, other)
    also = holder.entry(other)
    label = Label(also.key.span, "beside this") if also else None
    if other == "scan" and key.text in TARGETS:
        return diagnostic("bad-node", f"`scan:` names the block that it runs, and takes no `{key.text}:`", key.span, label)
    return diagnostic("bad-node", f"a node says `{other}:` or `{key.text}:`, not both", key.span, label)


def _no_meaning(key: Scalar, control: str = "", tree: Mapping | None = None) -> Diagnostic:
    """A key without the control that it goes with; `tree` is the node, where a misspelt control is looked for."""
    if key.text not in CONTROL_OF:
        return diagnostic("bad-node", f"`{key.text}:` cannot stand here", key.span,
                          help=f"`{key.text}:` goes in a node, beside `op:`, `block:` or `slot:`")
    headline = f"`{key.text}:` has no meaning {f'in a {control}' if control else 'here'}"
    meant = next(((e.key, near) for e in tree or () if (near := nearest(e.key.text, CONTROL_OF[key.text]))), None)
    if meant:
        return diagnostic("bad-node", headline, key.span, Label(meant[0].span, f"is this `{meant[1]}`?"))
    by = " or ".join(f"`{c}:`" for c in CONTROL_OF[key.text])
    return diagnostic("bad-node", headline, key.span, help=f"`{key.text}` goes with {by}")


def _no_target(tree: Tree, entry: Entry | None) -> Diagnostic:
    assert isinstance(tree, Mapping) and entry is not None
    meant = next(((e.key, near) for e in tree if (near := nearest(e.key.text, (*TARGETS, "scan")))), None)
    headline = f"node `{entry.key.text}` says neither `op:`, `block:` nor `slot:`"
    if meant:
        return diagnostic("bad-node", headline, meant[0].span, Label(entry.key.span, "this node"),
                          help=f"did you mean `{meant[1]}`?")
    return diagnostic("bad-node", headline, entry.key.span,
                      help="a node is one of `{op: NAME, ...}`, `{block: NAME, ...}`, `{slot: NAME, ...}`")


def _noun(schema: Any, entry: Entry | None) -> str:
    title = schema.get("title", "this")
    return f"block `{entry.key.text}`" if title == "a block" and entry else title


def _name(entry: Entry | None) -> str:
    return f"`{entry.key.text}:`" if entry else "the spec"


def _point(tree: Tree, entry: Entry | None) -> Any:
    """Where to point at something empty: its key, for the value has no characters."""
    return entry.key.span if entry and not tree.span.text else tree.span
