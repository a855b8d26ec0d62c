"""Renames that the user knows, as if the head had `renamed_from:` on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..compiled import Compiled
from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic, suggest
from ..lang.tree import Mapping as TreeMapping
from ..lang.tree import Scalar, kind
from ..stages.parse import load
from .migration.keymap import opened_keymap
from .tree import Change, graphs, put
from .tree import Path as Keys


def read_map(path: Path) -> dict[str, str]:
    """A file of renames, `OLD: NEW` a line, or a key map, of which they are `renames:`. Raises Diagnostics."""
    out = {}
    tree = load(path)[1]
    if "keymap" in tree:
        given = opened_keymap(path).get("renames")
        tree = given if isinstance(given, TreeMapping) else TreeMapping((), tree.span)
    for e in tree:
        if not isinstance(e.value, Scalar):
            raise Diagnostics([diagnostic("bad-spec", f"`{e.key.text}` became a name, not {kind(e.value)}", e.value.span,
                                          help="write `OLD: NEW`")])
        out[e.key.text] = e.value.text
    return out


def renamed(base: Compiled, head: Compiled, names: Mapping[str, str]) -> Compiled:
    """The head with the renames `old: new` declared at every node of the new name, in the model and in every block. A name may stand
    behind that of its block, `layer.attn: layer.self_attn`. Raises Diagnostics for names that are not there."""
    wrong: list[Diagnostic] = []
    tree, files = head.spec.tree, list(head.files)
    old_graphs = [g for t in (base.spec.tree, *(f.tree for f in base.files)) for g in graphs(t)]
    for old, new in names.items():
        there = [at for at, g in old_graphs if _named(at, g, old)]
        hits = 0
        scopes = {_scope(at) for at in there}
        near = any(_named(at, g, new) and _scope(at) in scopes for t in (tree, *(f.tree for f in files)) for at, g in graphs(t))
        for k, t in enumerate((tree, *(f.tree for f in files))):
            for at, graph in graphs(t) if there else ():
                if _named(at, graph, new) and (_scope(at) in scopes or not near):          # else it moved to another block
                    made = _declared(t, at, new.rpartition(".")[2], old.rpartition(".")[2])
                    t, hits = made, hits + 1
            if k == 0:
                tree = t
            else:
                files[k - 1] = files[k - 1]._replace(tree=t)
        if not hits:
            known = {e.key.text for t in (head.spec.tree, *(f.tree for f in head.files)) for _, g in graphs(t) for e in g}
            which, name = ("base", old) if not there else ("head", new)
            known = {e.key.text for _, g in old_graphs for e in g} if not there else known
            wrong.append(diagnostic("unknown-name", f"no graph of the {which} has `{name}`", note=f"for `--map {old}={new}`",
                                    help=suggest(name.rpartition(".")[2], known, "nodes")))
    if wrong:
        raise Diagnostics(wrong)
    return replace(head, spec=replace(head.spec, tree=tree), files=tuple(files))


def _scope(at: Keys) -> str:
    """The block that a graph is of; empty for the model."""
    return at[1] if at[0] == "blocks" else ""


def _named(at: Keys, graph: TreeMapping, name: str) -> bool:
    block, _, node = name.rpartition(".")
    return node in graph and (not block or _scope(at) == block)


def _declared(tree: TreeMapping, at: Keys, new: str, old: str) -> TreeMapping:
    key = Scalar("renamed_from", tree.span)
    return put(tree, Change((*at, new, "renamed_from"), None, Scalar(old, tree.span), None, key))
