"""CUDA text to machine code, by NVRTC or nvcc; needs neither a driver nor a GPU.

>>> compile_cubin(source.text, "sm_90").kernels["fk_mm_0"].registers
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from poly.errors import ArgumentError, ToolchainError
from runtime.common.cache import Cache, digest
from runtime.cuda.toolkit import Nvcc, Nvrtc, find_nvcc, find_nvrtc

_ARCHITECTURE = re.compile(r"sm_\d+[af]?\Z")
_BOUNDS = re.compile(r"(__launch_bounds__\(\d+)\)(\s+(\w+)\()")
_BINARY, _LOG = "kernels.cubin", "log.txt"


class CudaCompiler(Protocol):
    """What makes machine code of CUDA text."""

    @property
    def identity(self) -> str:
        """Everything that decides which machine code a text becomes; part of cache keys."""

    def lacks(self, arch: str) -> str:
        """Why it cannot compile for an architecture; empty if it can."""

    def compile(self, text: str, arch: str, flags: Sequence[str] = ()) -> tuple[bytes, str]:
        """A cubin, and what ptxas said.  Raises `ToolchainError` with the compiler's words."""


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, as ptxas says.

    registers : of a thread
    stack_bytes, spill_store_bytes, spill_load_bytes : of a thread, in local memory
    shared_bytes : of a block
    """

    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class Cubin:
    """Machine code of some kernels.

    data : the file; arch : what it runs on, e.g. ``sm_90``; log : what ptxas said
    compiler : which one, and its version; kernels : what each takes, by symbol
    """

    data: bytes
    arch: str
    log: str
    compiler: str
    kernels: Mapping[str, Resources]


def compile_cubin(
    text: str, arch: str, cache: Cache | None = None, flags: Sequence[str] = ()
) -> Cubin:
    """Compile CUDA text for one architecture such as ``sm_90``.

    NVRTC is taken if there is one that knows the architecture, else nvcc.  Of kernels that spill
    ptxas is asked once more, for as many registers as one block alone can have: it would rather
    spill a few than have fewer blocks at once (NVRTC 13.0, sm_80 and sm_90).

    flags : options of the compiler, such as ``--fmad=false``, which both have

    Raises
    ------
    ArgumentError : `arch` is no name of an architecture.
    ToolchainError : there is no compiler for it, or it failed.
    CacheError : as `runtime.common.cache.Cache.keep`.
    """
    if not _ARCHITECTURE.match(arch):
        raise ArgumentError(f"{arch!r} is no CUDA architecture; they are called sm_80, sm_90, …")
    compiler = find_cuda_compiler(arch)
    if cache is None:
        data, log = _compile(compiler, text, arch, flags)
    else:
        key = digest("cubin without spills", text, arch, compiler.identity, *flags)
        entry = cache.get(key)
        if entry is None:
            data, log = _compile(compiler, text, arch, flags)
            cache.keep(key, {_BINARY: data, _LOG: log.encode(), "kernels.cu": text.encode()})
        else:
            data, log = entry.read(_BINARY), entry.read(_LOG).decode()
    return Cubin(data, arch, log, compiler.identity, read_resources(log))


def _compile(
    compiler: CudaCompiler, text: str, arch: str, flags: Sequence[str]
) -> tuple[bytes, str]:
    first = compiler.compile(text, arch, flags)
    spills = _spills(first[1])
    if not any(spills.values()):
        return first

    def alone(bounds: re.Match[str]) -> str:
        return f"{bounds[1]}, 1){bounds[2]}" if spills.get(bounds[3]) else bounds[0]

    second = compiler.compile(_BOUNDS.sub(alone, text), arch, flags)
    return min(first, second, key=lambda made: sum(_spills(made[1]).values()))


def _spills(log: str) -> dict[str, int]:
    """Bytes that each kernel spills."""
    return {name: r.spill_store_bytes for name, r in read_resources(log).items()}


def find_cuda_compiler(arch: str) -> CudaCompiler:
    """The compiler for an architecture.

    Raises
    ------
    ToolchainError : there is none, or none that knows it.
    """
    compilers: list[Nvrtc | Nvcc] = [c for c in (find_nvrtc(), find_nvcc()) if c is not None]
    if not compilers:
        raise ToolchainError(
            "there is no CUDA compiler: pip install nvidia-cuda-nvrtc, or install the CUDA "
            "toolkit and put nvcc on the search path"
        )
    reasons = []
    for compiler in compilers:
        reason = compiler.lacks(arch)
        if not reason:
            return compiler
        reasons.append(reason)
    raise ToolchainError(f"{'; '.join(reasons)}; install a newer or older nvidia-cuda-nvrtc")


# --- what ptxas says ----------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def read_resources(log: str) -> dict[str, Resources]:
    """What each kernel takes, from what ptxas says with ``-v``.

    Of functions that kernels call nothing is said here but through the kernels' registers.
    """
    found: dict[str, dict[str, int]] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
            found[entry] = {}
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _SPILLS.search(line)) and function in found:
            names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            found[function].update(zip(names, map(int, match.groups()), strict=True))
        elif entry and (match := _REGISTERS.search(line)):
            found[entry]["registers"] = int(match[1])
            shared = _SHARED.search(line)
            found[entry]["shared_bytes"] = int(shared[1]) if shared else 0
    return {name: Resources(**values) for name, values in found.items()}
