"""The stand-in device as a shared library under the names of the CUDA libraries, compiled once for an ONNX Runtime."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
LIBRARIES = ("libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libcudnn.so.9")
INSTALL = "install g++, and the headers with `pip install 'nnspec[prove]'`"


class Missing(Exception):
    """Why no stand-in can be made here; `help` says what to install."""

    def __init__(self, why: str, help: str = INSTALL):
        super().__init__(why)
        self.help = help


def standin() -> Path:
    """The folder of the libraries, for LD_LIBRARY_PATH. Raises `Missing`."""
    compiler, provider, headers = _compiler(), _provider(), _headers()
    key = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes() + f"{provider}{provider.stat().st_mtime_ns}".encode())
    folder = _cache() / f"device-{key.hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "libraries"
            made.mkdir()
            _compile(compiler, headers, provider, made / "device.so")
            for name in LIBRARIES:
                (made / name).symlink_to("device.so")
            try:
                made.rename(folder)
            except OSError:                       # another process was faster
                if not folder.exists():
                    raise
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nnspec"


def _compiler() -> str:
    found = shutil.which("g++")
    if found is None or shutil.which("nm") is None:
        raise Missing("there is no g++ here")
    return found


def _provider() -> Path:
    """ONNX Runtime's library for CUDA."""
    spec = importlib.util.find_spec("onnxruntime")
    path = Path(spec.origin).parent / "capi" / "libonnxruntime_providers_cuda.so" if spec and spec.origin else None
    if path is None or not path.exists():
        raise Missing("this ONNX Runtime has no CUDA provider", "install `onnxruntime-gpu` in place of `onnxruntime` (Linux on x86-64)")
    return path


def _headers() -> Path:
    """The folder of cuda_runtime_api.h, from the wheels of CUDA 13."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        folder = Path(root) / "cu13" / "include"
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt" / "host_defines.h").exists():
            return folder
    raise Missing("the headers of CUDA 13 are not installed")


def _compile(compiler: str, headers: Path, provider: Path, out: Path) -> None:
    source = SOURCE.read_text(encoding="utf-8")
    rest = out.with_suffix(".rest.cpp")
    written = set(re.findall(r"\b(cu\w+)\(", source))
    rest.write_text('extern "C" {\n' + "\n".join(_plain(n) for n in sorted(_called(provider) - written)) + "\n}\n", encoding="utf-8")
    command = [compiler, "-O1", "-w", "-shared", "-fPIC", f"-I{headers}", str(SOURCE), str(rest), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing("g++ does not compile the stand-in device: " + (done.stderr.strip().splitlines() or ["no message"])[0])


def _called(provider: Path) -> set[str]:
    """The functions of CUDA that ONNX Runtime links to, and those of cuDNN, which it finds by name."""
    names = subprocess.run(["nm", "-D", "--undefined-only", str(provider)], capture_output=True, text=True, check=True).stdout
    linked = set(re.findall(r"\bU (_*cu\w+)", names))
    return linked | {n.decode() for n in re.findall(rb"(?<=\0)cudnn[A-Z]\w+(?=\0)", provider.read_bytes())}


def _plain(name: str) -> str:
    """A function that succeeds and does nothing; those that make something give a block of zeros for it."""
    if "Create" in name or name in ("cudaGraphInstantiate", "cudaLibraryLoadData", "cudaLibraryGetKernel", "cudaStreamEndCapture"):
        at = "b" if name == "cudaStreamEndCapture" else "a"
        return f"int {name}(void** a, void** b) {{ static char made[1024]; *{at} = made; return 0; }}"
    return f"long {name}() {{ return 0; }}"
