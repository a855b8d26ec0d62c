"""`typed Graph -> Python source` that needs only torch."""

from __future__ import annotations

import re
import textwrap

from ...ir.graph import Graph
from ...lang.diagnostic import Diagnostics, Fault
from .layout import WIDTH, fold
from .regions import symbols
from .writer import ClassText, Writer, escape

IMPORTS = (
    (r"\bmath\.", "import math"),
    (r"\btorch\.(?!nn\b|Tensor\b)", "import torch"),
    (r"\bF\.", "import torch.nn.functional as F"),
)


def generate(graph: Graph) -> str:
    """A standalone Python file: one nn.Module class for each distinct block, the model last.

    The model's `forward` takes the inputs by name (optional ones default to None) and returns the output, or a dict
    of outputs by name when there are several. Keys of `state_dict()` are the paths of the graph's parameters.
    Raises Diagnostics where a parameter's initial value depends on an input.
    """
    return source_and_class(graph)[0]


def source_and_class(graph: Graph) -> tuple[str, str]:
    """The file and the name of the model's class."""
    try:
        writer, cls = _write(graph, frozenset())
        if writer.locals & writer.helpers.keys():            # a local may not hide a function of the file
            writer, cls = _write(graph, frozenset(writer.helpers))
    except Fault as found:
        raise Diagnostics([found.diagnostic]) from None
    parts = [*(h.split("\n") for h in writer.helpers.values()), *(c.lines for c in writer.finished)]
    body = "\n\n\n".join(["\n".join(_folded(lines)) for lines in parts])
    return f"{_head(graph, body)}\n\n\n{body}\n", cls.name


def _write(graph: Graph, reserved: frozenset[str]) -> tuple[Writer, ClassText]:
    writer = Writer(reserved)
    root = graph.root
    cls = ClassText(writer.class_name(graph.name))
    writer.write(cls, root, tuple(o for o, _ in root.outputs), symbols(root), root=True)
    return writer, cls


def _folded(lines: list[str]) -> list[str]:
    """Lines of at most WIDTH columns; those of docstrings are filled as text."""
    out: list[str] = []
    text = False
    for line in lines:
        quotes = line.count('"""')
        pad = line[: len(line) - len(line.lstrip())]
        if len(line) <= WIDTH:
            out.append(line)
        elif text or quotes:
            out += textwrap.wrap(line.strip().removesuffix('"""'), WIDTH, initial_indent=pad, subsequent_indent=pad)
            out += [f'{pad}"""'] if line.endswith('"""') else []
        else:
            out += fold(line)
        text ^= quotes % 2 == 1
    return out


def _head(graph: Graph, body: str) -> str:
    """Module docstring and the imports that the body uses."""
    about = textwrap.wrap(f"{escape(graph.name)}: {escape(graph.about or graph.root.about) or 'a PyTorch module.'}", WIDTH - 6)
    first = about[0]
    first = first[:-1] + '\\"' if first.endswith('"') and len(about) < 2 else first
    doc = f'"""{first}"""' if len(about) < 2 else "\n".join([f'"""{first}', *about[1:], '"""'])
    lines = [text for pattern, text in IMPORTS if re.search(pattern, body)]
    names = [n for n, pattern in (("Tensor", r"\bTensor\b"), ("nn", r"\bnn\.")) if re.search(pattern, body)]
    plain = [line for line in lines if not line.startswith("import torch")]
    torch = [line for line in lines if line.startswith("import torch")]
    later = f"from torch import {', '.join(names)}" if names else ""
    groups = ["\n".join(plain), "\n".join([*torch, later]).strip()]
    return "\n\n".join([doc, *(g for g in groups if g)])
