"""Compile CUDA text to machine code, by NVRTC or nvcc; needs neither a driver nor a GPU.

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
    """A compiler from CUDA text to machine code."""

    @property
    def identity(self) -> str:
        """Everything that affects the machine code made from a text; part of cache keys."""

    def lacks(self, arch: str) -> str:
        """Why it cannot compile for an architecture; empty if it can."""

    def compile(self, text: str, arch: str, flags: Sequence[str] = ()) -> tuple[bytes, str]:
        """A cubin, and the log of ptxas.  Raises `ToolchainError` with the compiler's output."""


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel, as reported by ptxas.

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

    data : the file; arch : the architecture it runs on, e.g. ``sm_90``; log : of ptxas
    compiler : its name and version; kernels : the resources of each, by symbol
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

    NVRTC is used if it supports the architecture, else nvcc.  Kernels that spill are compiled once
    more with as many registers as a single block can have: ptxas prefers a few spills to fewer
    concurrent blocks (NVRTC 13.0, sm_80 and sm_90).

    flags : compiler options such as ``--fmad=false``, which both compilers have

    Raises
    ------
    ArgumentError : `arch` is not the name of an architecture.
    ToolchainError : there is no compiler for it, or it failed.
    CacheError : see `runtime.common.cache.Cache.keep`.
    """
    if not _ARCHITECTURE.match(arch):
        raise ArgumentError(f"{arch!r} is not a CUDA architecture; use sm_80, sm_90, …")
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
    ToolchainError : there is none, or none that supports it.
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


# --- the log of ptxas ---------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def read_resources(log: str) -> dict[str, Resources]:
    """The resources of each kernel, from the log of ptxas with ``-v``.

    Functions that kernels call are included only through the kernels' registers.
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
