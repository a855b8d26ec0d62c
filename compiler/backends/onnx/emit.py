"""`typed Graph -> ONNX`: nodes and shapes here, weights by the table of recipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from ... import __version__
from ...ir.graph import Argument, Graph
from ...ir.text import identity_hash, structure_hash
from ...lang.diagnostic import Diagnostics, diagnostic, suggest
from ...runtime.steps import Table
from .builder import OPSETS, Builder, Recipe, Store, Val, reach, reads, value_info
from .entries import Entry, Place, tensor
from .join import fuse
from .sizes import see, watch
from .walk import Walker

IR_VERSIONS = {"ort-cuda": 10, "ort-cpu": 10, "portable": 8}


@dataclass(frozen=True, eq=False)
class Emitted:
    """A model whose weights are still to be filled in.

    `model` has every node and small constant; `weights` says how each missing initializer is made from parameters, in file
    order, and `shapes` what those are. `outputs` maps the graph's output names to the model's: an output named like an input
    is `NAME.out` there. `sites` is the fusion report. `tables` are inputs beside those of the graph.
    """

    graph: Graph
    target: str
    dtype: str
    model: ModelProto
    weights: tuple[Recipe, ...]
    shapes: Mapping[str, tuple[int, ...]]
    inputs: tuple[Argument, ...]
    outputs: Mapping[str, str]
    sites: tuple[Mapping[str, Any], ...]
    tables: tuple[Table, ...] = ()

    @property
    def hashes(self) -> tuple[str, str]:
        """Structure and identity of the graph."""
        data = {p.key: p.value for p in self.model.metadata_props}
        return data["nnspec.structure"], data["nnspec.identity"]


def emit(graph: Graph, target: str, dtype: str = "float32", absent: Iterable[str] = (), spec: str = "",
         typical: Mapping[str, int] | None = None) -> Emitted:
    """The ONNX model of a graph for `ort-cpu`, `ort-cuda` or `portable`, in float32, float16 or bfloat16.

    Optional inputs in `absent` are left out. `spec` is the text of the spec, kept in the model's metadata. `typical` are sizes of free
    dimensions, by which the faster of two right forms is taken. Raises Diagnostics: `no-form` where the target cannot say an op,
    `unbound-dimension` where no input tells a size, `unknown-name` for `absent` and `typical`, `absent-value` for `absent`.
    """
    left_out = frozenset(absent)
    _check_names(graph, left_out, typical or {})
    store = Store(target, dtype, typical=typical or {})
    g = watch(Builder(store))
    inputs = tuple(a for a in graph.root.arguments if a.name not in left_out)
    names = {o: f"{o}.out" if any(a.name == o for a in graph.root.arguments) else o for o, _ in graph.root.outputs}
    store.names.update(a.name for a in inputs)
    store.names.update(names.values())
    for a in inputs:
        store.types[a.name] = a.type
        see(g, Val(a.name), a.type)
    walker = Walker(store)
    given: dict[str, Entry] = {a.name: Val(a.name) for a in inputs}
    made = walker.region(Place(g), graph.root, given, frozenset(names))
    for o, entry in made.items():
        _end(g, names[o], tensor(g, entry), walker)
    if walker.faults:
        raise Diagnostics(walker.faults)
    nodes, held = _single(store, *reach(g.nodes, names.values()))
    if target != "portable":
        nodes, held = reach(fuse(nodes, store, held, names.values()), names.values())       # without constants of what was joined
        _note_fused(nodes, walker.sites)
    tables = tuple(t for t, _ in store.tables.values() if t.name in held)
    inputs = (*inputs, *(Argument(t.name, type) for t, type in store.tables.values() if t in tables))
    made_here = {o for n in nodes for o in n.output}
    weights = tuple(r for r in store.recipes.values() if r.name in held and r.name not in made_here)
    constants = [t for t in store.initializers if t.name in held]
    model = _model(_body(graph, dtype, _direct(nodes, frozenset(names.values())), inputs, names, constants), target)
    _describe(model, graph, spec=spec, target=target, dtype=dtype)
    return Emitted(graph, target, dtype, model, weights, walker.parameters, inputs, names, tuple(walker.sites), tables)


def _body(graph: Graph, dtype: str, nodes: list[NodeProto], inputs: Iterable[Argument], names: Mapping[str, str],
          constants: list[TensorProto]) -> GraphProto:
    outputs = [value_info(names[o], graph.root.type(value), dtype) for o, value in graph.root.outputs]
    return helper.make_graph(nodes, graph.name, [value_info(a.name, a.type, dtype) for a in inputs], outputs, constants,
                             doc_string=graph.about)


def _describe(model: ModelProto, graph: Graph, **given: str) -> None:
    """The metadata of the file."""
    found = {"structure": structure_hash(graph), "identity": identity_hash(graph), "version": __version__}
    for key in ("spec", "structure", "identity", "version", "target", "dtype"):
        model.metadata_props.add(key=f"nnspec.{key}", value=(given | found)[key])


def _note_fused(nodes: Iterable[NodeProto], sites: list[dict[str, Any]]) -> None:
    """The sites whose node was joined with a neighbour say so."""
    joined = {p.value: n.op_type for n in nodes if n.op_type.startswith("Skip") for p in n.metadata_props if p.key == "nnspec.path"}
    for site in sites:
        site["form"] = joined.get(site["path"], site["form"])


def dimensions(graph: Graph) -> list[str]:
    """The free dimensions of a graph's inputs, in order."""
    return list(dict.fromkeys(s for a in graph.root.arguments for d in a.type.shape for s in sorted(d.symbols())))


def _check_names(graph: Graph, absent: frozenset[str], typical: Iterable[str]) -> None:
    known = {a.name: a.type.optional for a in graph.root.arguments}
    wrong = [diagnostic("unknown-name", f"the model has no input `{name}` to leave out", graph.root.origin.span,
                        help=suggest(name, known, "inputs")) for name in sorted(absent - set(known))]
    wrong += [diagnostic("absent-value", f"input `{name}` cannot be left out: it is not optional", graph.root.origin.span,
                         help=f"write `{name}: optional ...` in the spec's inputs")
              for name in sorted(absent & set(known)) if not known[name]]
    free = dimensions(graph)
    wrong += [diagnostic("unknown-name", f"the model has no free dimension `{name}` to have a typical size", graph.root.origin.span,
                         help=suggest(name, free, "dimensions")) for name in typical if name not in free]
    if wrong:
        raise Diagnostics(wrong)


def _end(g: Builder, name: str, value: Val | None, walker: Walker) -> None:
    """Give an output its name."""
    if value is None:
        walker.faults.append(diagnostic("absent-value", f"output `{name}` is absent when its optional input is left out",
                                        help="keep the input, or remove the output"))
        return
    g.path, g.line = name, ""
    g.op("Identity", value)
    g.nodes[-1].output[0] = name


def _direct(nodes: list[NodeProto], ends: frozenset[str]) -> list[NodeProto]:
    """Values that are read inside and are outputs too carry the output's name at once, and so do caches that a kernel writes: ONNX
    Runtime (1.31) keeps an Identity behind the first, which copies, and a cache would not be written where it is bound."""
    used = Counter(i for n in nodes for i in n.input)
    inner = {i for n in nodes for i in set(reads(n)) - set(n.input)}
    plain = {o for n in nodes for k, o in enumerate(n.output) if used[o] > 1 or k} - inner - ends
    names: dict[str, str] = {}
    kept = []
    for node in nodes:
        if node.op_type == "Identity" and node.output[0] in ends and node.input[0] in plain and node.input[0] not in names:
            names[node.input[0]] = node.output[0]
        else:
            kept.append(node)
    for node in kept:
        for told in (node.input, node.output):
            told[:] = [names.get(n, n) for n in told]
    return kept


def _single(store: Store, nodes: list[NodeProto], held: set[str]) -> tuple[list[NodeProto], set[str]]:
    """Store no parameter twice: where it is read as it is, a transposed copy becomes one Transpose node."""
    turned = []
    for r in store.recipes.values():
        if r.kind == "transpose" and r.name in held and store.made.get(("plain", r.parameters, ())) in held:
            plain = store.made["plain", r.parameters, ()]
            node = NodeProto(op_type="Transpose", input=[plain], output=[r.name], name=f"{plain}/Transpose")
            node.attribute.append(helper.make_attribute("perm", [1, 0]))
            node.metadata_props.add(key="nnspec.path", value=plain)
            node.metadata_props.add(key="namespace", value=plain.replace(".", "/"))
            turned.append(node)
            held = held - {r.name}
    return [*turned, *nodes], held


def _model(body: GraphProto, target: str) -> ModelProto:
    domains = sorted(_domains(body.node) - {""})
    opsets = [helper.make_opsetid("", OPSETS[target]), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSIONS[target], producer_name="nnspec",
                             producer_version=__version__)


def _domains(nodes: Iterable[NodeProto]) -> set[str]:
    found = set()
    for node in nodes:
        found.add(node.domain)
        for attribute in node.attribute:
            found |= _domains(attribute.g.node)
    return found
