"""What a comparison tells beside the specs, each where it is asked for: the key map, claims that were run, the ONNX layer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pipeline import Compiled
from . import file_layer
from .lock import Lock
from .migration.keys import key_map
from .replay import replay
from .report import LEVELS, Report


@dataclass(frozen=True)
class Asked:
    """What the user asked for: the key map, told or written to a file, claims run (with `weights` of the base, a file), how a `checkpoint`
    fits, the ONNX layer (of exported sides always, of two specs with `onnx`) for a `provider` of ONNX Runtime and in `dtype`. `loose`
    sizes may name dimensions that no side has; `explorer` is a folder for Model Explorer's files."""

    keys: bool = False
    run: bool = False
    weights: Path | None = None
    written: Path | None = None
    checkpoint: Path | None = None
    loose: bool = False
    explorer: Path | None = None
    onnx: bool = False
    provider: str = ""
    dtype: str = ""

    @property
    def graphs(self) -> bool:
        """Whether both graphs are needed, which a lock file lacks."""
        return self.followed or self.onnx or self.explorer is not None

    @property
    def followed(self) -> bool:
        """Whether every tensor is followed."""
        return self.keys or self.run or self.written is not None

    def __call__(self, labels: tuple[str, str], a: Compiled, b: Compiled, report: Report) -> dict[str, Any]:
        """The layers, as JSON has them. Raises Diagnostics for weights that do not fit, and files that are no exports of ours."""
        out: dict[str, Any] = {}
        if self.checkpoint is not None:
            out["checkpoint"] = self.held(a, b, report)
        if self.followed:
            steps = replay(a, b)[0] if report.edits else []
            made = key_map(a.graph, b.graph, steps, report.edits)
            if self.keys:
                out["keys"] = made.data()
            if self.run:
                out["verify"] = self.checked(a, b, made, report)
        if self.onnx or any(_exported(label) for label in labels):
            from .exported.onnx_layer import onnx_layer
            out["onnx"] = onnx_layer(*labels, a, b, self.provider, self.dtype)
        if self.explorer is not None:
            from .formats.model_explorer import write_model_explorer
            write_model_explorer(self.explorer, a, b, report)
        if self.written is not None:
            from ..files import write_text
            from .migration.keymap import keymap_text
            write_text(self.written, keymap_text(made, report, self.written))
        return out

    def held(self, a: Compiled | Lock, b: Compiled | Lock, report: Report) -> dict[str, Any]:
        """The weight file against both sides. Raises Diagnostics (`bad-weights`)."""
        assert self.checkpoint is not None
        return file_layer.file_layer(self.checkpoint, a, b, bool(report.verdict.silent))

    def checked(self, a: Compiled, b: Compiled, keys: Any, report: Report) -> list[dict[str, Any]]:
        """The claims of the key map, run. Raises Diagnostics for weights that do not fit."""
        from ..checkpoints.weights import open_weights
        from ..model import Model
        from .migration.verify import verify
        with ExitStack() as stack:
            read = None
            if self.weights is not None:
                loader = Model(a).loader(stack.enter_context(open_weights(self.weights)))
                read = lambda name: loader(name, whole=False)  # noqa: E731
            return [{**c.data(), "text": str(c)} for c in verify(a.graph, b.graph, keys, report.edits, read)]


def _exported(label: str) -> bool:
    path = Path(label)
    return path.suffix == ".onnx" or (path / "model.onnx").is_file()


def broken(report: Report) -> list[str]:
    """Claims of the report that did not hold when they were run."""
    return [c["text"] for c in report.layers.get("verify", ()) if c["holds"] is False]


def differs(report: Report) -> bool:
    """Whether anything at all is different, of the specs or of the files exported from them."""
    return report.changed or found_level(report) >= 0


def found_level(report: Report) -> int:
    """The worst level of the ONNX layer's findings, as a place in LEVELS; -1 where there are none."""
    return max((LEVELS.index(f["level"]) for f in report.layers.get("onnx", {}).get("findings", ())), default=-1)
