"""NVRTC and nvcc: find, identify and run them."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from poly.errors import ToolchainError
from runtime.cpu.toolchain import first_lines, run_command

_OPTIONS = ("--std=c++17",)
_TIMEOUT = 300.0


class Nvrtc:
    """NVIDIA's compiler as a library.

    path : of ``libnvrtc.so``

    Raises
    ------
    OSError, AttributeError : the library cannot be loaded, or is not NVRTC.
    """

    def __init__(self, path: Path | str) -> None:
        # NVRTC looks for its builtins by name only, so they are loaded first.
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins))
        self._library = library = ctypes.CDLL(str(path))
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", known)
        self.version, self.architectures = f"{major.value}.{minor.value}", tuple(known)
        size = os.stat(path).st_size if os.path.exists(path) else 0
        # The version does not distinguish updates.
        self.identity = f"NVRTC {self.version} ({size} bytes)"

    def lacks(self, arch: str) -> str:
        """Why it cannot compile for an architecture; empty if it can."""
        if int(re.sub(r"\D", "", arch)) in self.architectures:
            return ""
        known = ", ".join(f"sm_{n}" for n in self.architectures)
        return f"NVRTC {self.version} does not compile for {arch}, only for {known}"

    def compile(self, text: str, arch: str, flags: Sequence[str] = ()) -> tuple[bytes, str]:
        """A cubin, and the log of ptxas.  Raises `ToolchainError` with the compiler's output."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu",
                   0, None, None)  # fmt: skip
        try:
            options = (f"--gpu-architecture={arch}", *_OPTIONS, *flags, "--ptxas-options=-v")
            words = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            code = self._library.nvrtcCompileProgram(program, len(options), words)
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if code != 0:
                said = log.strip() or self._explain(code)
                raise ToolchainError(f"NVRTC {self.version} failed:\n{first_lines(said)}")
            return self._read(program, "CUBIN"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, data)
        return data.raw

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._library[name](*arguments)
        if code != 0:
            raise ToolchainError(f"{name} failed: {self._explain(code)}")

    def _explain(self, code: int) -> str:
        return str(self._library.nvrtcGetErrorString(code).decode())


class Nvcc:
    """NVIDIA's compiler as a program, which also needs a C++ compiler."""

    def __init__(self, path: str) -> None:
        self.path = path
        done = run_command((path, "--version"), None, 30)
        lines = done.output.strip().splitlines()
        if done.code != 0 or not lines:
            raise ToolchainError(f"{path} does not say its version: {first_lines(done.errors)}")
        self.identity = f"nvcc {lines[-1]}"

    def lacks(self, arch: str) -> str:
        """Empty: nvcc itself reports architectures that it does not support."""
        return ""

    def compile(self, text: str, arch: str, flags: Sequence[str] = ()) -> tuple[bytes, str]:
        """A cubin, and the log of ptxas.  Raises `ToolchainError` with the compiler's output."""
        with tempfile.TemporaryDirectory(prefix="farkas-") as folder:
            Path(folder, "kernels.cu").write_text(text, encoding="utf-8")
            files = ("-o", "kernels.cubin", "kernels.cu")
            options = ("-cubin", f"-arch={arch}", *_OPTIONS, *flags, "-Xptxas", "-v")
            done = run_command((self.path, *options, *files), folder, _TIMEOUT)
            if done.code is None:
                raise ToolchainError(f"{self.path} took longer than {_TIMEOUT:.0f} s")
            if done.code != 0:
                said = first_lines(done.errors or done.output)
                raise ToolchainError(f"{self.path} failed:\n{said}")
            return Path(folder, "kernels.cubin").read_bytes(), done.errors


@functools.cache
def find_nvrtc() -> Nvrtc | None:
    """The first NVRTC found: from pip packages, from a toolkit, from the system; or None."""
    for path in _libraries():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError, ToolchainError):
            continue  # another one may work
    return None


@functools.cache
def find_nvcc() -> Nvcc | None:
    """The nvcc on the search path, else that of a toolkit; None if none runs."""
    named = shutil.which("nvcc")
    inside = (str(root / "bin" / "nvcc") for root in _toolkits())
    for path in ([named] if named else []) + [p for p in inside if os.access(p, os.X_OK)]:
        try:
            return Nvcc(path)
        except ToolchainError:
            continue
    return None


def _libraries() -> Iterator[Path | str]:
    """Candidate paths of NVRTC."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            found = [p for p in Path(folder).glob(pattern) if ".alt." not in p.name]
            yield from sorted(found, reverse=True)
    for root in _toolkits():
        yield root / "lib64" / "libnvrtc.so"
    named = ctypes.util.find_library("nvrtc")
    if named is not None:
        yield named


def _toolkits() -> list[Path]:
    """The folders of CUDA toolkits."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return [Path(p) for p in (*named, "/usr/local/cuda") if p]
