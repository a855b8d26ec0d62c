"""A small twin of a large model: the same bodies, each run once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .graph import Branch, Call, Control, Graph, Node, Region, Repeat, Scan


def twin(graph: Graph) -> Graph:
    """The graph with one copy of each distinct body of its repeats; what reads single copies keeps all of them."""
    return replace(graph, root=_region(graph.root))


def _region(region: Region) -> Region:
    read = region.uses()
    return replace(region, nodes=tuple(_node(n, {n.outputs[v.output] for v in read if v.node == n.id}) for n in region.nodes))


def _node(node: Node, used: set[str]) -> Node:
    op = node.op
    if isinstance(op, Call | Scan):
        return replace(node, op=replace(op, body=_region(op.body)))
    if isinstance(op, Branch):
        return replace(node, op=replace(op, bodies=tuple(map(_region, op.bodies))))
    if not isinstance(op, Repeat):
        return node
    made = replace(op, bodies=tuple(map(_region, op.bodies)))
    if op.each or any(o.startswith("all.") for o in used):
        return replace(node, op=made)
    kept = [op.schedule.index(k) for k in dict.fromkeys(op.schedule)]
    return replace(node, op=replace(made, schedule=tuple(op.schedule[i] for i in kept), share=tuple(range(len(kept)))))


@dataclass(frozen=True)
class Times:
    """How many copies in the `whole` root one in the root of its `small` twin stands for, by path."""

    whole: Region
    small: Region

    def __call__(self, path: str) -> int:
        whole, small, times = self.whole, self.small, 1
        while True:
            near = [n for n in small.nodes if isinstance(n.op, Control) and (path == n.name or path.startswith(f"{n.name}."))]
            if not near:
                return times
            node = max(near, key=lambda n: len(n.name))
            other = next(n for n in whole.nodes if n.name == node.name)
            path = path[len(node.name) + 1:]
            if isinstance(node.op, Call | Scan):
                small, whole = node.op.body, other.op.body
            elif isinstance(node.op, Repeat | Branch):
                step, _, path = path.partition(".")
                if not step.isdecimal():
                    return times
                body = node.op.schedule[int(step)]
                if len(node.op.schedule) != len(other.op.schedule):
                    times *= other.op.schedule.count(body)
                small, whole = node.op.bodies[body], other.op.bodies[body]
