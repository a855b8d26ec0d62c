"""Names in the emitted source: classes, and attributes that hold modules and parameters."""

from __future__ import annotations

import keyword
import re

from .source import Py

SEGMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+")
# what every nn.Module has, and the methods of the emitted classes: an attribute of that name would hide it or be refused
TAKEN = frozenset({
    "T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu", "cuda",
    "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer", "get_extra_state", "get_parameter",
    "get_submodule", "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers", "named_children", "named_modules",
    "named_parameters", "parameters", "register_backward_hook", "register_buffer", "register_forward_hook",
    "register_forward_pre_hook", "register_full_backward_hook", "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook", "register_module", "register_parameter",
    "register_state_dict_post_hook", "register_state_dict_pre_hook", "requires_grad_", "reset_parameters", "set_extra_state",
    "set_submodule", "share_memory", "state_dict", "to", "to_empty", "train", "training", "type", "xpu", "zero_grad",
})


def camel(name: str) -> str:
    """A class name: `pre_norm_layer` -> `PreNormLayer`, `llama-3-8b` -> `Llama38b`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    text = "".join(w[:1].upper() + w[1:] for w in words)
    return text if text[:1].isalpha() else f"Model{text}"


def segments(path: str) -> list[str]:
    """The parts of a path, each an identifier or a number; nothing else gets into the source."""
    parts = path.split(".") if path else []
    for part in parts:
        if not SEGMENT.fullmatch(part):
            raise ValueError(f"`{part}` in the path `{path}` is not a name")
    return parts


def clashes(segment: str) -> bool:
    return segment in TAKEN


def held(base: Py, segment: str, parameter: bool = False) -> Py:
    """Source that reads a child module, or a parameter, of the module `base`."""
    if segment.isdigit():
        return Py(f"{base}[{segment}]")
    if clashes(segment):
        return Py(f'{base}.{"_parameters" if parameter else "_modules"}["{segment}"]')
    return Py(f'getattr({base}, "{segment}")') if keyword.iskeyword(segment) else Py(f"{base}.{segment}")


def reach(path: str, parameter: bool = False) -> Py:
    """Source that reads what lies at `path` below `self`."""
    parts, here = segments(path), Py("self")
    for k, part in enumerate(parts):
        here = held(here, part, parameter and k == len(parts) - 1)
    return here


def hold(path: str, value: str, parameter: bool = False) -> str:
    """The statement that puts a module or parameter at `path` below `self`."""
    outer, _, last = path.rpartition(".")
    base = reach(outer)
    segments(last)
    if clashes(last):
        return f'{base}.{"_parameters" if parameter else "_modules"}["{last}"] = {value}'
    if keyword.iskeyword(last) or last.isdigit():
        return f'{base}.{"register_parameter" if parameter else "add_module"}("{last}", {value})'
    return f"{base}.{last} = {value}"
