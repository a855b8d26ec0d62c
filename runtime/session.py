"""An artifact folder opened in ONNX Runtime: files checked, device proven, calls checked before they run."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import prepare, prepare_tensors
from .convert import widen_bfloat16
from .errors import ArtifactError, check, suggest
from .manifest import NAME, NO_WEIGHTS, STEP, DataFile, Input, Manifest, ModelFile, Output, read
from .origin import explain, plain

if TYPE_CHECKING:
    import onnxruntime

# Joins a sum and a layer norm into a kernel that takes 5 times as long as the two on the CPU (ONNX Runtime 1.31, f32).
SLOWER_ON_CPU = ["SkipLayerNormFusion"]
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
MOST_THREADS = 1024
SMALL = 1 << 22                   # parameters of steps whose nodes need not share memory: 4 % of a token's time, for tens of MiB at most
_FATAL, _WARNING = 4, 2
_AGAIN = "copy the folder again, or export the model again"
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


class Artifact:
    """A model ready to run; `open` makes it. Calls may come from several threads at once."""

    def __init__(self, folder: Path, manifest: Manifest, session: onnxruntime.InferenceSession):
        self.folder, self.manifest, self._session = folder, manifest, session
        self.provider: str = session.get_providers()[0]
        self.inputs: tuple[Input, ...] = manifest.inputs
        self.outputs: tuple[Output, ...] = manifest.outputs
        self._types = {x.name: x.type for x in session.get_inputs()}
        self._bfloat16 = "bfloat16" in {x.dtype for x in manifest.inputs} | {x.dtype for x in manifest.outputs}

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(x.name for x in xs) for xs in (self.inputs, self.outputs))
        return f"<Artifact {self.manifest.name} on {self.provider}: {inputs} -> {outputs}>"

    def __call__(self, /, **arrays: Any) -> dict[str, np.ndarray]:
        """Run the model on named arrays (numpy or nested lists); bfloat16 results come back as float32.

        Raises `ArtifactErrors` (code `bad-inputs`) with everything wrong about the arrays, `ArtifactError` (code `run-failed`)
        with the node's path and line when ONNX Runtime fails.
        """
        feeds = self.feeds(arrays)
        names = [x.held for x in self.outputs]
        try:
            values = self._run_values(names, feeds) if self._bfloat16 else self._session.run(names, feeds)
        except Exception as error:  # ONNX Runtime's errors have no common class of their own
            raise explain("run-failed", "the model fails on these inputs", self._model, error) from None
        return {x.name: value for x, value in zip(self.outputs, values, strict=True)}

    def on_device(self, /, **tensors: Any) -> dict[str, onnxruntime.OrtValue]:
        """Run the model on tensors where they are: `OrtValue`s, or what speaks DLPack, such as contiguous PyTorch tensors.

        Nothing is copied from the device: results are `OrtValue`s there, which `torch.from_dlpack` takes. Dtypes must be those of the
        manifest; ids and lengths are not checked, as that would copy them. On CUDA the work that makes the tensors must be done
        (`torch.cuda.synchronize()`). Raises as calls do.
        """
        given = _shared(tensors)
        kinds = {name: (_dtype(v.data_type()), tuple(v.shape())) for name, v in given.items()}
        feeds: dict[str, Any] = {**prepare_tensors(self.manifest, kinds), **given}
        self._absent(feeds)
        binding = self._session.io_binding()
        try:
            for name, value in feeds.items():
                if isinstance(value, np.ndarray):
                    binding.bind_cpu_input(name, value)
                elif value is not None:
                    binding.bind_ortvalue_input(name, value)
            for x in self.outputs:
                binding.bind_output(x.held, "cuda" if self.provider == PROVIDERS["cuda"] else "cpu")
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's errors have no common class of their own
            raise explain("run-failed", "the model fails on these tensors", self._model, error) from None
        return {x.name: value for x, value in zip(self.outputs, binding.get_outputs(), strict=True)}

    def feeds(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """What ONNX Runtime is given for these arrays: checked, in the model's dtypes, absent inputs filled in. Raises as calls do."""
        feeds: dict[str, Any] = dict(prepare(self.manifest, arrays))
        self._absent(feeds)
        return feeds

    def end_profile(self) -> Path:
        """Stop profiling and return the JSON file written; the artifact must have been opened with `profile`."""
        return Path(self._session.end_profiling())

    @property
    def _model(self) -> Path:
        return self.folder / self.manifest.model.file

    def _absent(self, feeds: dict[str, Any]) -> None:
        problems = []
        for x in self.inputs:
            if x.name in feeds or x.name not in self._types:
                continue
            if self._types[x.name].startswith("optional("):
                feeds[x.name] = None
            else:
                problems.append(ArtifactError("bad-inputs", f"input `{x.name}` is missing",
                                              "it is optional in the spec, but this model was exported with it"))
        check(problems)

    def _run_values(self, names: list[str], feeds: dict[str, Any]) -> list[np.ndarray]:
        from onnxruntime import OrtValue

        bits = {x.name for x in self.inputs if x.dtype == "bfloat16"}
        values = {k: OrtValue.ortvalue_from_numpy_with_onnx_type(v, _BFLOAT16) if k in bits else OrtValue.ortvalue_from_numpy(v)
                  for k, v in feeds.items() if v is not None}
        return [_numpy(v) for v in self._session.run_with_ort_values(names, values)]


def open(folder: str | os.PathLike[str], device: str = "cpu", *, threads: int | None = None, spin: bool = False,
         allow_fallback: bool = False, profile: str | os.PathLike[str] | None = None, verify: bool = False) -> Artifact:
    """Open an artifact folder on `cpu` or `cuda`.

    `threads` per operator (None: ONNX Runtime's choice), `spin` lets idle threads burn time for latency, `profile` is the prefix
    of a profile's file, `verify` hashes the weight files as well. Raises `ArtifactError`: `bad-artifact` (manifest, missing or
    changed files, no weights), `load-failed` (with the node's path and line), `device-not-active` (unless `allow_fallback`: see
    `.provider`), `cannot-write` (no folder for the profile).
    """
    if device not in PROVIDERS:
        raise ArtifactError("device-not-active", f"no device `{device}`", helps=suggest(device, PROVIDERS, "devices"))
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ArtifactError("load-failed", f"`threads` cannot be {threads}", f"expected a number from 1 to {MOST_THREADS}")
    manifest, folder = read(folder), _folder(folder)
    if manifest.form == NO_WEIGHTS:
        raise ArtifactError("bad-artifact", f"`{folder}` has no weights, so it cannot run",
                            "it was exported with `--no-weights`, to be looked at",
                            "export it again with `--weights FILE`, or with random ones: `--init SEED`")
    check(_files(folder, manifest, verify))
    return load(folder, manifest, device, threads=threads, spin=spin, allow_fallback=allow_fallback, profile=profile)


def load(folder: Path, manifest: Manifest, device: str = "cpu", *, threads: int | None = None, spin: bool = False,
         allow_fallback: bool = False, profile: str | os.PathLike[str] | None = None) -> Artifact:
    """One model of a folder whose files have been checked; see `open`."""
    options = _options(threads, spin, profile)
    options.enable_mem_reuse = manifest.form != STEP or manifest.parameters > SMALL
    session = _session(folder / manifest.model.file, device, options)
    artifact = Artifact(folder, manifest, session)
    if artifact.provider != PROVIDERS[device] and not allow_fallback:
        raise _not_active(device, artifact.provider)
    check(_agreement(manifest, session))
    return artifact


def _folder(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path if path.is_dir() else path.parent


def _files(folder: Path, manifest: Manifest, verify: bool) -> list[ArtifactError]:
    problems = []
    files: list[ModelFile | DataFile] = [manifest.model, *([manifest.prefix.model] if manifest.prefix else []), *manifest.data]
    for file in files:
        path, size = folder / file.file, getattr(file, "bytes", None)
        if not path.is_file():
            problems.append(ArtifactError("bad-artifact", f"`{path}` is missing", f"`{NAME}` of this folder asks for it",
                                          "move or copy an artifact as a whole folder"))
        elif size is not None and path.stat().st_size != size:
            problems.append(ArtifactError("bad-artifact", f"`{path}` has {path.stat().st_size:,} bytes, expected {size:,}",
                                          f"the size is recorded in `{NAME}`", _AGAIN))
        elif (size is None or verify) and _sha256(path) != file.sha256:
            problems.append(ArtifactError("bad-artifact", f"`{path}` is not the file that was exported",
                                          f"its sha256 differs from the one in `{NAME}`", _AGAIN))
    return problems


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _options(threads: int | None, spin: bool, profile: str | os.PathLike[str] | None) -> onnxruntime.SessionOptions:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL  # every error is raised; the log would only say it twice
    options.intra_op_num_threads = threads or 0
    for pool in ("intra", "inter"):
        options.add_session_config_entry(f"session.{pool}_op.allow_spinning", "1" if spin else "0")
    if profile is not None:
        if not Path(profile).absolute().parent.is_dir():  # ONNX Runtime would lose the profile without a word
            raise ArtifactError("cannot-write", f"no folder `{Path(profile).parent}` for the profile")
        options.enable_profiling, options.profile_file_prefix = True, os.fspath(profile)
    return options


def _session(model: Path, device: str, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    import onnxruntime

    providers = list(dict.fromkeys([PROVIDERS[device], PROVIDERS["cpu"]]))
    try:
        with _quiet() if device == "cuda" else contextlib.nullcontext():
            return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0,
                                                disabled_optimizers=SLOWER_ON_CPU if device == "cpu" else None)
    except Exception as error:  # ONNX Runtime's errors have no common class of their own
        raise explain("load-failed", f"`{model}` cannot be loaded", model, error) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Load the CUDA libraries of installed wheels; keep what ONNX Runtime prints about missing ones off the terminal."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # a build without CUDA only warns; the device is read from the session
            onnxruntime.preload_dlls()
            yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)


def _not_active(device: str, active: str) -> ArtifactError:
    return ArtifactError(
        "device-not-active", f"device `{device}` was asked for, but the model runs on {active}",
        (f"requested: {PROVIDERS[device]}", f"active: {active}"),
        ('install ONNX Runtime with its CUDA libraries: pip install "onnxruntime-gpu[cuda,cudnn]"; nvidia-smi shows the driver',
         "to accept the other device, open with allow_fallback=True (--allow-fallback)"))


def _agreement(manifest: Manifest, session: onnxruntime.InferenceSession) -> list[ArtifactError]:
    problems = []
    pairs: tuple[tuple[str, Sequence[Input | Output], list[Any], list[Any]], ...] = (
        ("input", manifest.inputs, [*session.get_inputs(), *session.get_overridable_initializers()], session.get_inputs()),
        ("output", manifest.outputs, session.get_outputs(), []))
    for what, listed, held, needed in pairs:
        kinds = {x.name: _dtype(x.type) for x in held}
        shapes = {x.name: x.shape for x in held}
        for x in listed:
            name = x.held if isinstance(x, Output) else x.name
            if kinds.get(name) != x.dtype:
                found = f"is {kinds[name]}" if name in kinds else "does not exist"
                problems.append(f"{what} `{x.name}` of `{NAME}` is {x.dtype}; in `{manifest.model.file}` it {found}")
            elif not _alike(x.shape, shapes[name]):
                problems.append(f"{what} `{x.name}` of `{NAME}` is {_axes(x.shape)}; "
                                f"in `{manifest.model.file}` it is {_axes(shapes[name])}")
        problems += [f"{what} `{x.name}` of `{manifest.model.file}` is not in `{NAME}`"
                     for x in needed if x.name not in {y.name for y in listed}]
    return [ArtifactError("bad-artifact", p, helps="export the model again") for p in problems]


def _alike(told: Sequence[int | str], held: Sequence[int | str | None]) -> bool:
    """Whether two shapes are of one rank, with the same numbers and plain names where the model says any."""
    return len(told) == len(held) and all(b is None or a == b or _made(a) and _made(b) for a, b in zip(told, held, strict=True))


def _made(size: int | str) -> bool:
    """Whether a size is made of several, or names them all in one."""
    return not isinstance(size, int) and (not size.isidentifier() or size == "total")


def _axes(shape: Sequence[int | str | None]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _dtype(kind: str) -> str:
    """`optional(tensor(float))` -> `float32`."""
    name = kind.rsplit("(", 1)[-1].rstrip(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


def _shared(tensors: Mapping[str, Any]) -> dict[str, onnxruntime.OrtValue]:
    """The tensors as ONNX Runtime's, in the same memory; None is left out."""
    from onnxruntime import OrtValue

    problems, made = [], {}
    for name, tensor in tensors.items():
        try:
            if tensor is not None:
                made[name] = tensor if isinstance(tensor, OrtValue) else OrtValue.from_dlpack(_Bits.of(tensor))
        except Exception as error:  # whatever the tensor's library raises
            problems.append(ArtifactError(
                "bad-inputs", f"input `{name}` is no tensor that can be shared",
                (f"found {type(tensor).__name__}, expected an OrtValue, or a contiguous tensor with DLPack and without gradient",
                 f"its library or ONNX Runtime says: {plain(error).partition('. ')[0]}"),
                "make it so with `.detach().contiguous()`"))
    check(problems)
    return made


class _Bits:
    """Booleans of PyTorch as bytes: ONNX Runtime does not read DLPack's own kind for them, and is told by `dtype`."""

    dtype = np.dtype(bool)

    def __init__(self, tensor: Any):
        import torch
        self.tensor = tensor.view(torch.uint8)

    def __dlpack__(self) -> Any:
        return self.tensor.__dlpack__()

    @classmethod
    def of(cls, tensor: Any) -> Any:
        return cls(tensor) if str(getattr(tensor, "dtype", "")) == "torch.bool" else tensor


def _numpy(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.element_type() != _BFLOAT16:
        return value.numpy()
    shape = value.shape()
    held = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape, dtype=np.int64)))
    return widen_bfloat16(np.frombuffer(held, np.uint16).reshape(shape))
