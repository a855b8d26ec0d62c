"""The manifest of an artifact folder: what the model is, which files it needs, and what its inputs must satisfy."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .dimension import Dimension, parse
from .errors import ArtifactError, check
from .fields import Fields
from .steps import DTYPES, Shape, Stream, read_stream, stream_problems

VERSION = 1
NAME = "manifest.json"
FULL, NO_WEIGHTS, STEP, GENAI = FORMS = ("full", "no-weights", "step", "genai")
FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class ModelFile:
    """The ONNX graph, beside the manifest."""

    file: str
    sha256: str


@dataclass(frozen=True)
class DataFile:
    """A file of weights, beside the manifest; `bytes` is its length."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Output:
    """A result: entries of `shape` are lengths or polynomials over dimension names. `value` is its name in the model file
    where that is another one (an output that is called like an input)."""

    name: str
    dtype: str
    shape: Shape
    value: str | None = None

    @property
    def held(self) -> str:
        return self.value or self.name


@dataclass(frozen=True)
class Input:
    """An argument: `bounds` are largest sizes, `least` smallest ones (others may be 0); ids lie in [0, ids_below), which is a
    number or a dimension such as `S + 1`; lengths lie in [0, size of `length_of`]. An optional input that is `neutral` may be
    left out: `fill` in every place, whole lengths, or a mask that is true throughout stand for it."""

    name: str
    dtype: str
    shape: Shape
    bounds: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    ids_below: int | str | None = None
    length_of: str | None = None
    optional: bool = False
    neutral: bool = False
    fill: int | None = None

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(parse(entry) for entry in self.shape)

    def ids(self, sizes: Mapping[str, int]) -> int | None:
        """What ids lie below for these sizes; None where they may be anything."""
        return None if self.ids_below is None else parse(self.ids_below).size(sizes)


@dataclass(frozen=True)
class Part:
    """Another model of the folder."""

    model: ModelFile
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    sites: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Manifest:
    """`form` says what the model is: whole, without its weights, a step with its `stream` and perhaps a `prefix` model, or a decoder
    for ONNX Runtime GenAI: P positions before, N new ones, `total` of both. `structure` and `identity` are the graph's hashes; `sites`
    the fusion report; `certificate` None when skipped; `proof`, of the kernels on CUDA, None when not asked for;
    `quantization` what integer weights changed, None where there are none."""

    name: str
    form: str
    target: str
    dtype: str
    producer: str
    model: ModelFile
    data: tuple[DataFile, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    structure: str
    identity: str
    parameters: int
    sites: tuple[Mapping[str, Any], ...] = ()
    certificate: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None
    prefix: Part | None = None
    stream: Stream | None = None
    quantization: Mapping[str, Any] | None = None

    @property
    def prefixed(self) -> Manifest | None:
        """The prefix model as a manifest of its own."""
        if self.prefix is None:
            return None
        part = self.prefix
        return replace(self, model=part.model, inputs=part.inputs, outputs=part.outputs, sites=part.sites, prefix=None, stream=None)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(x.name for x in self.inputs)

    @property
    def least(self) -> dict[str, int]:
        """The smallest size of each dimension that has one."""
        return {name: n for x in self.inputs for name, n in x.least.items()}

    @property
    def free_names(self) -> tuple[str, ...]:
        """The dimension names of the inputs, in order of first use."""
        return tuple(dict.fromkeys(d.name for x in self.inputs for d in x.dimensions if d.name))


def read(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of an artifact folder (or the manifest file itself).

    Raises `ArtifactErrors` (code `bad-artifact`) with every problem found in it.
    """
    path = _path(folder)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    return decode(text, str(path))


def decode(text: str, origin: str = NAME) -> Manifest:
    """Check the JSON text of a manifest and build it; `origin` names the file in errors. Raises as `read` does."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("bad-artifact", f"`{origin}` is not a manifest: {error}",
                            helps="export the model again") from None
    version = value.get("nnspec") if isinstance(value, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise ArtifactError("bad-artifact", f"`{origin}` is not a manifest of version {VERSION}",
                            notes=f'expected a JSON object with `"nnspec": {VERSION}`, found {_short(version)}',
                            helps="export the model with this version of nnspec")
    top = Fields(value, "", [])
    manifest = _manifest(top)
    if not top.problems:
        _consistent(manifest, top.problems)
    if not top.problems and value.get("sha256", found := digest(value)) != found:
        top.problems.append("it is not what was exported: its `sha256` is that of other contents")
    check([ArtifactError("bad-artifact", f"`{origin}`: {p}") for p in top.problems])
    return manifest


def encode(manifest: Manifest) -> str:
    """The JSON text of a manifest, the same bytes for equal manifests. Raises `ArtifactErrors` when it is not valid."""
    fields = {"nnspec": VERSION, **{k: _plain(getattr(manifest, k)) for k in manifest.__dataclass_fields__}}
    try:
        fields["sha256"] = digest(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ArtifactError("bad-artifact", f"the manifest of `{manifest.name}` cannot be written: {error}") from None
    decode(text)
    return text


def digest(fields: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest's JSON object without its `sha256`, in whatever order and spacing it is written."""
    told = {k: v for k, v in fields.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def write(path: str | os.PathLike[str], manifest: Manifest) -> Path:
    """Write a manifest into a folder, or to a file, in one step, so that a reader never sees half of it."""
    target, text = _path(path), encode(manifest)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target


def _manifest(top: Fields) -> Manifest:
    top.take("nnspec", int)
    top.take("sha256", str, None, optional=True)
    model = top.child("model")
    made = Manifest(
        name=top.text("name"), form=top.one_of("form", FORMS), target=top.text("target"), dtype=top.one_of("dtype", FLOATS),
        producer=top.text("producer"), model=ModelFile(model.file("file"), model.sha256("sha256")),
        data=tuple(DataFile(d.file("file"), d.count("bytes"), d.sha256("sha256")) for d in top.children("data")),
        inputs=_inputs(top), outputs=_outputs(top),
        structure=top.text("structure"), identity=top.text("identity"), parameters=top.count("parameters"),
        sites=tuple(top.objects("sites")), certificate=top.take("certificate", dict, None, optional=True),
        proof=top.take("proof", dict, None, optional=True),
        prefix=_part(top.maybe("prefix")), stream=read_stream(top.maybe("stream")),
        quantization=top.take("quantization", dict, None, optional=True),
    )
    top.finish()
    return made


def _inputs(top: Fields) -> tuple[Input, ...]:
    return tuple(_input(x) for x in top.children("inputs"))


def _outputs(top: Fields) -> tuple[Output, ...]:
    return tuple(Output(x.text("name"), x.one_of("dtype", DTYPES), x.shape("shape"), x.take("value", str, None, optional=True))
                 for x in top.children("outputs"))


def _part(x: Fields | None) -> Part | None:
    if x is None:
        return None
    model = x.child("model")
    return Part(ModelFile(model.file("file"), model.sha256("sha256")), _inputs(x), _outputs(x), tuple(x.objects("sites")))


def _input(x: Fields) -> Input:
    return Input(
        name=x.text("name"), dtype=x.one_of("dtype", DTYPES), shape=x.shape("shape", solvable=True), bounds=x.bounds("bounds"),
        least=x.bounds("least"), ids_below=x.below("ids_below"), length_of=x.take("length_of", str, None, optional=True),
        optional=x.take("optional", bool, False, optional=True), neutral=x.take("neutral", bool, False, optional=True),
        fill=x.take("fill", int, None, optional=True),
    )


def _consistent(m: Manifest, problems: list[str]) -> None:
    for what, names in (("inputs", m.input_names), ("outputs", tuple(x.name for x in m.outputs)),
                        ("data", tuple(d.file for d in m.data))):
        problems += [f"`{what}` names `{n}` twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    for x in m.inputs:
        below = parse(x.ids_below).name if x.ids_below is not None else None
        for name in (*x.bounds, *x.least, *(n for n in (x.length_of, below) if n)):
            if name not in m.free_names:
                problems.append(f"input `{x.name}` speaks of dimension `{name}`, which no input has")
        if (x.ids_below is not None or x.length_of is not None) and not x.dtype.startswith("int"):
            problems.append(f"input `{x.name}` is {x.dtype}, but only integers are ids or lengths")
        if x.neutral and not (x.optional and (x.dtype == "bool" or x.length_of or x.fill is not None)):
            problems.append(f"input `{x.name}` is neutral, but only optional masks, lengths and inputs with a fill are")
    if m.stream is None and m.form == STEP or m.stream is not None and m.form not in (STEP, NO_WEIGHTS):
        problems.append(f"`stream` belongs to the form {STEP}, and the form is {m.form}")
    if m.stream is not None:
        inputs, outputs = ({x.name: (x.dtype, x.shape) for x in told} for told in (m.inputs, m.outputs))
        problems += stream_problems(m.stream, inputs, outputs, [x.name for x in m.prefix.outputs] if m.prefix else [])


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {k: _plain(getattr(value, k)) for k in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _path(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" and not path.is_dir() else path / NAME


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    folder = path.parent
    if path.exists():
        return ArtifactError("bad-artifact", f"`{path}` cannot be read: {error}")
    if not folder.exists():
        return ArtifactError("bad-artifact", f"no folder `{folder}`", helps="name the folder that `nnspec export -o` wrote")
    if not folder.is_dir():
        return ArtifactError("bad-artifact", f"`{folder}` is a file, not an artifact folder",
                             notes=f"an artifact is the folder that holds `{NAME}`")
    return ArtifactError("bad-artifact", f"`{folder}` holds no `{NAME}`", notes="an artifact is opened through its manifest",
                         helps="the manifest is written last: if an export was cut off, run it again")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [k for k, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"duplicate key `{next(n for n in names if names.count(n) > 1)}`")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
