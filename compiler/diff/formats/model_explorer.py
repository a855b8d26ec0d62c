"""Both graphs and what corresponds, as files for Model Explorer: https://github.com/google-ai-edge/model-explorer

`base.json` and `head.json` are each a `GraphCollection` of one `Graph` (input_graph.ts); `sync_navigation.json` is a
`SyncNavigationData` (sync_navigation.ts). Every body of a repeat is shown once. The mapping is whole, so that a node without a partner
is one that came or went, and is highlighted as that.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...compiled import Compiled
from ...files import write_text
from ...ir.graph import ARGUMENT, Branch, Graph, Node, Region, Repeat, Scan, Value, bodies
from ...ir.parameters import makers
from ...lang.diagnostic import Diagnostics, diagnostic
from ..html.trees import Row, rows
from ..report import Outline, Report, Side
from .words import value

FILES = ("base.json", "head.json", "sync_navigation.json")
INPUTS, OUTPUTS = "GraphInputs", "GraphOutputs"               # no nodes of a spec are called so
GROUP = "___group___"                           # behind a namespace: the id of its group
COLORS = {"changed": "#fff3c4", "renamed": "#e3ebff", "moved": "#e3ebff", "added": "#d9f2dd", "removed": "#fbdcd9"}
Source = tuple[str, str]                        # the id of a node, and of one of its outputs


@dataclass
class Picture:
    """One graph: its nodes, the attributes of its groups, and which outlines each id stands for."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    found: dict[str, list[tuple[Outline, str]]] = field(default_factory=lambda: defaultdict(list))       # by pattern

    def ids(self, o: Outline) -> list[str]:
        """The ids that stand for some of the copies of an outline."""
        return [i for other, i in self.found.get(o.where.pattern, ()) if o.where.meets(other.where)]

    def draw(self, graph: Graph, outlines: Sequence[Outline]) -> None:
        """The whole model, its inputs and outputs as nodes."""
        root = graph.root
        inputs: dict[Value, list[Source]] = {}
        for k, a in enumerate(root.arguments):
            inputs[Value(ARGUMENT, k)] = [(f"{INPUTS}/{a.name}", "0")]
            self.nodes.append({"id": f"{INPUTS}/{a.name}", "label": a.name, "namespace": INPUTS, "attrs": [_pair("type", str(a.type))],
                               "outputsMetadata": [_output("0", str(a.type))]})
        given = self.region(root, outlines, (), inputs)
        for name, v in root.outputs:
            self.nodes.append({"id": f"{OUTPUTS}/{name}", "label": name, "namespace": OUTPUTS, "attrs": [_pair("type", str(root.type(v)))],
                               "incomingEdges": _edges([("in", given.get(v, []))])})

    def region(self, region: Region, outlines: Sequence[Outline], space: tuple[str, ...],
               given: Mapping[Value, list[Source]]) -> dict[Value, list[Source]]:
        """Draws the nodes of a region; gives what each of its values comes from."""
        values = dict(given)
        owners = makers(region)
        shown = [n for n in region.nodes if n.id not in owners]
        for node, o in zip(shown, outlines, strict=True):
            if bodies(node):
                self.control(region, node, o, (*space, o.name), values)
            else:
                self.leaf(region, node, o, space, values, owners)
        return values

    def leaf(self, region: Region, node: Node, o: Outline, space: tuple[str, ...], values: dict[Value, list[Source]],
             owners: Mapping[int, Node]) -> None:
        me = "/".join((*space, o.name))
        self.found[o.where.pattern].append((o, me))
        own = {i for i, maker in owners.items() if maker is node}
        ports = [(port, [s for v in _values(given) if v.node not in own for s in values.get(v, [])])
                 for port, given in node.inputs.items()]
        self.nodes.append({
            "id": me, "label": f"{o.name}: {o.what}", "namespace": "/".join(space), "incomingEdges": _edges(ports),
            "attrs": [_pair("op", o.what), *_attributes(o)],
            "inputsMetadata": [{"id": str(k), "attrs": [_pair("__tensor_tag", port)]}
                               for k, (port, sources) in enumerate(ports) if sources],
            "outputsMetadata": [_output(str(k), str(t), name) for k, (name, t) in enumerate(zip(node.outputs, node.types, strict=True))]})
        values |= {Value(node.id, k): [(me, str(k))] for k in range(len(node.outputs))}
        values |= {Value(i, 0): [(me, str(len(node.outputs)))] for i in own}              # a parameter of it that another one reads

    def control(self, region: Region, node: Node, o: Outline, space: tuple[str, ...], values: dict[Value, list[Source]]) -> None:
        """A block, or the bodies of a repeat, a branch or a scan: each in a group."""
        many = o.children if isinstance(node.op, Repeat | Branch) else (o,)
        self.group(o, space, o.what)
        ends: list[dict[str, list[Source]]] = []
        for k, (body, inside) in enumerate(zip(bodies(node), many, strict=True)):
            here = space if len(many) == 1 else (*space, inside.name)
            if inside is not o:
                self.group(inside, here, f"{o.what}, copies {inside.name}")
            start = {Value(ARGUMENT, n): self.port(node, a.name, k, values, ends) for n, a in enumerate(body.arguments)}
            made = self.region(body, inside.children, here, start)
            ends.append({name: made.get(v, []) for name, v in body.outputs})
        last = ends[node.op.schedule[-1]] if isinstance(node.op, Repeat) else None
        for k, name in enumerate(node.outputs):
            plain = name.removeprefix("all.").removeprefix("last.")
            from_ = [last] if last is not None and plain == name else ends
            values[Value(node.id, k)] = _once(s for e in from_ for s in e.get(plain, []))

    def port(self, node: Node, name: str, body: int, values: Mapping[Value, list[Source]], ends: Sequence[Mapping[str, list[Source]]]
             ) -> list[Source]:
        """What an argument of a body reads: what the node is given, and what copies of the bodies before it carry on."""
        op = node.op
        carried = op.carry.get(name) if isinstance(op, Repeat | Scan) else None
        before: list[Source] = []
        outer = True
        if isinstance(op, Repeat) and carried is not None:
            outer = op.schedule[0] == body
            last = {op.schedule[i - 1] for i, b in enumerate(op.schedule) if b == body and i} - {body}
            before = [s for j in sorted(last) if j < len(ends) for s in ends[j].get(carried, [])]
        own = [s for v in _values(node.inputs.get(name)) for s in values.get(v, [])] if outer or not before else []
        return _once([*own, *before])

    def group(self, o: Outline, space: tuple[str, ...], what: str) -> None:
        name = "/".join(space)
        self.groups.setdefault(name, {"what": what} | {p["key"]: p["value"] for p in _attributes(o)})
        self.found[o.where.pattern].append((o, name + GROUP))


def _values(given: Any) -> tuple[Value, ...]:
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _once(sources: Iterable[Source]) -> list[Source]:
    return list(dict.fromkeys(sources))


def _pair(key: str, text: str) -> dict[str, str]:
    return {"key": key, "value": text}


def _output(number: str, type_: str, name: str = "") -> dict[str, Any]:
    return {"id": number, "attrs": [_pair("tensor_shape", type_), *([_pair("tensor_name", name)] if name else [])]}


def _attributes(o: Outline) -> list[dict[str, str]]:
    found = [_pair(k, value(v)) for k, v in o.attributes.items()]
    return [*found, *([_pair("parameters", f"{o.parameters:,}")] if o.parameters else [])]


def _edges(ports: Iterable[tuple[str, list[Source]]]) -> list[dict[str, Any]]:
    """Edges into a node, whose inputs are numbered."""
    return [{"sourceNodeId": node, "sourceNodeOutputId": output, "targetNodeInputId": str(k)}
            for k, (_, sources) in enumerate(ports) for node, output in sources]


def pictures(base: Compiled, head: Compiled, report: Report) -> tuple[Picture, Picture]:
    """Both graphs, without what changed."""
    out = []
    for spec, side in ((base, report.base), (head, report.head)):
        made = Picture()
        assert side is not None
        made.draw(spec.graph, side.outline)
        out.append(made)
    return out[0], out[1]


def model_explorer(base: Compiled, head: Compiled, report: Report) -> dict[str, Any]:
    """The files by their names, as plain data."""
    old, new = pictures(base, head, report)
    found = rows(report)
    everything = [r for top in found for r in top.walk()]
    _mark(old, new, found, report)
    entries = _entries(old, new, everything)
    sync = {"type": "sync_navigation", "mappingEntries": entries, "disableMappingFallback": True, "showDiffHighlights": True}
    return dict(zip(FILES, (_collection(old, report.base, "base"), _collection(new, report.head, "head"), sync), strict=True))


def _collection(picture: Picture, side: Side | None, which: str) -> dict[str, Any]:
    """One side; the ids of graphs must differ, or both panes show the same one."""
    assert side is not None
    graph = {"id": f"{side.name} ({which})", "nodes": picture.nodes, "groupNodeAttributes": picture.groups}
    return {"label": f"{side.label} ({which})", "graphs": [graph]}


def _edited(found: Sequence[Row], above: Sequence[int] = ()) -> Iterator[tuple[Row, Sequence[int]]]:
    """Every row that changed, with the edits that did it: its own, or those of the block around it."""
    for row in found:
        edits = row.edits or above
        if row.mark != "same":
            yield row, edits
        yield from _edited(row.children, edits)


def _mark(old: Picture, new: Picture, found: Sequence[Row], report: Report) -> None:
    """Colours nodes that changed and says by which edits; groups say it too."""
    for picture, side in ((old, "base"), (new, "head")):
        nodes = {n["id"]: n for n in picture.nodes}
        for row, edits in _edited(found):
            o = getattr(row, side)
            said = "; ".join(report.edits[n - 1].title for n in edits) or row.mark
            for i in picture.ids(o) if o is not None else ():
                if i in nodes:
                    nodes[i]["style"] = {"backgroundColor": COLORS[row.mark]}
                    nodes[i]["attrs"] = [*(a for a in nodes[i]["attrs"] if a["key"] != row.mark), _pair(row.mark, said)]
                else:
                    picture.groups[i.removesuffix(GROUP)][row.mark] = said


def _entries(old: Picture, new: Picture, found: Sequence[Row]) -> list[dict[str, list[str]]]:
    """What corresponds. A node stands in one entry alone: several copies that became one body, or the other way round, are together."""
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(x: tuple[int, str]) -> tuple[int, str]:
        parent.setdefault(x, x)
        while parent[x] != x:
            x = parent[x]
        return x

    for left, right in _partners(old, new, found):
        parent[root((1, right))] = root((0, left))
    groups: dict[tuple[int, str], dict[str, list[str]]] = {}
    for x in parent:
        entry = groups.setdefault(root(x), {"leftNodeIds": [], "rightNodeIds": []})
        entry["rightNodeIds" if x[0] else "leftNodeIds"].append(x[1])
    return list(groups.values())


def _partners(old: Picture, new: Picture, found: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in found:
        if row.base is not None and row.head is not None:
            a, b = ([*dict.fromkeys(p.ids(o))] for p, o in ((old, row.base), (new, row.head)))
            for left in a:
                for right in b:
                    if left.endswith(GROUP) == right.endswith(GROUP):
                        yield left, right
    theirs = {n["id"] for n in new.nodes}
    shared = [n["id"] for n in old.nodes if n["namespace"] in (INPUTS, OUTPUTS) and n["id"] in theirs]
    ends = {i.partition("/")[0] + GROUP for i in shared}
    yield from ((i, i) for i in (*shared, *sorted(ends)))


def write_model_explorer(folder: Path, base: Compiled, head: Compiled, report: Report) -> None:
    """Write the files to a folder, which is made where it is not there. Raises Diagnostics (`cannot-write`)."""
    texts = {name: json.dumps(data, indent=1, ensure_ascii=False) + "\n" for name, data in model_explorer(base, head, report).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise Diagnostics([diagnostic("cannot-write", f"`{folder}` cannot be made: {wrong.strerror}",
                                      help="give a folder that is there, or can be made")]) from None
    for name, text in texts.items():
        write_text(folder / name, text)
