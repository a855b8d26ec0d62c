"""A folder with a config.json: the config, and the family of specs that it belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..lang.diagnostic import Diagnostics, Fault, Label, Sink, diagnostic, fault, suggest
from ..lang.json_syntax import parse_json
from ..lang.tree import Mapping, Scalar, Sequence, Tree, kind, plain
from ..library import CONFIGS, MODELS, find, is_model
from ..stages.parse import parse, read_source
from .config import BAD, null
from .fit import Fitted, fit

CONFIG = "config.json"
UNKNOWN = "unknown-family"
HARMLESS = CONFIGS / "harmless.yaml"
_TYPES = re.compile(r"^  model_type:[ \t]*(.*?)[ \t]*(?:#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Foreign:
    """A checkpoint made elsewhere."""

    folder: Path
    config: Mapping
    family: Path

    @property
    def kind(self) -> str:
        """Such as `llama (LlamaForCausalLM)`."""
        named, made = self.config.get("model_type"), self.config.get("architectures")
        classes = ", ".join(filter(None, map(_word, made))) if isinstance(made, Sequence) else ""
        return f"{_word(named) or 'unknown'}{f' ({classes})' if classes else ''}"

    def fit(self, tree: Mapping, name: str | None, sink: Sink) -> Fitted:
        """The family's checked tree as the config has it. Errors go to `sink`."""
        with sink.catch():
            _check_type(tree, self.config, self.family)
        return fit(tree, self.config, name or self.folder.resolve().name or "model", harmless(), sink)


def opened(path: str | Path, family: str | Path | None = None) -> Foreign | None:
    """The checkpoint in a folder; None for a spec. Raises Diagnostics (`bad-config`, `unknown-family`)."""
    folder = Path(path)
    if folder.name == CONFIG and folder.is_file():
        raise Diagnostics([diagnostic("bad-path", f"`{path}` is the config of a checkpoint, and no spec",
                                      help=f"give its folder: {folder.parent}")])
    if not str(path) or not folder.is_dir() or folder.suffix in (".yaml", ".yml"):
        if family is not None:
            raise Diagnostics([diagnostic("bad-path", f"`{path}` is no folder with a {CONFIG}, which a family is for")])
        return None
    if not (folder / CONFIG).is_file():
        if is_model(str(path)) and family is None:          # a model of the library, and a folder that has its name by chance
            return None
        raise Diagnostics([diagnostic(BAD, f"`{folder}` holds no {CONFIG}", help=(
            f"a folder stands for a checkpoint with its {CONFIG}; for a spec name the YAML file",))])
    try:
        source = read_source(folder / CONFIG)
        tree = parse_json(source, BAD)
        if not isinstance(tree, Mapping):
            raise fault(BAD, f"`{source.name}` is {kind(tree)}, and an object was expected", tree.span)
        return Foreign(folder, tree, find(family) if family is not None else _family(tree))
    except Fault as wrong:
        raise Diagnostics([wrong.diagnostic]) from None


@cache
def families() -> dict[str, str]:
    """model_type -> the library's model that is its family."""
    found = {}
    for path in sorted(MODELS.glob("*.yaml")):
        said = _TYPES.search(path.read_text(encoding="utf-8"))
        for name in re.findall(r"[\w.-]+", said[1]) if said else ():
            found[name] = path.stem
    return found


@cache
def harmless() -> tuple[str, ...]:
    """Keys of configs that no model reads when it computes."""
    listed = plain(parse(read_source(HARMLESS)))
    assert isinstance(listed, dict)
    return tuple(str(name) for group in listed.values() for name in group)


def _word(tree: Tree | None) -> str:
    """A name of the config, where it is one and no other text."""
    return tree.text if isinstance(tree, Scalar) and not null(tree) and re.fullmatch(r"[\w.-]+", tree.text) else ""


def _family(config: Mapping) -> Path:
    named = config.get("model_type")
    if not isinstance(named, Scalar) or null(named):
        raise fault(BAD, "the config has no `model_type`", named.span if named else config.span.part(0, 1),
                    help="name the family with `--family FILE`")
    known = families()
    if named.text not in known:
        raise fault(UNKNOWN, f"no family of the library is of model_type `{named.text}`", named.span, help=(
            *(h if h.startswith("did") else f"known: {', '.join(sorted(known))}" for h in suggest(named.text, known)[:1]),
            "write one in YAML and give it with `--family FILE`: see `Add a family in YAML` in specs/FAMILIES.md"))
    return MODELS / f"{known[named.text]}.yaml"


def _check_type(tree: Mapping, config: Mapping, family: Path) -> None:
    """Raises Fault where a family is of another `model_type`."""
    checkpoint, named = tree.get("checkpoint"), config.get("model_type")
    own = checkpoint.get("model_type") if isinstance(checkpoint, Mapping) else None
    if not isinstance(checkpoint, Mapping) or "config" not in checkpoint:
        raise fault(UNKNOWN, f"`{family}` is no family: it has no `checkpoint: config:`", tree.span.part(0, 1),
                    help="specs/FAMILIES.md says how to write one")
    if own is None or not isinstance(named, Scalar) or null(named):
        return
    types = [own] if isinstance(own, Scalar) else [s for s in own if isinstance(s, Scalar)]
    if named.text not in {t.text for t in types}:
        raise fault(UNKNOWN, f"the config is of model_type `{named.text}`, and the family of {', '.join(f'`{t.text}`' for t in types)}",
                    named.span, Label(own.span, "said here"), help=f"where the family fits, add `{named.text}` to its `model_type:`")
