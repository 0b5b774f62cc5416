"""CUDA kernels on a CPU: slow, for checking them without a GPU; see `cuda_on_cpu.h`."""

from __future__ import annotations

import ctypes
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource
from codegen.gpu.printers import CudaPrinter
from poly.errors import ArgumentError, ToolchainError
from runtime.common.arguments import Array, address, aligned, span_of
from runtime.common.cache import Cache, digest
from runtime.cpu.shared_library import LIBRARY
from runtime.cpu.toolchain import first_lines, run_command
from runtime.gpu.device import Device
from runtime.gpu.device_names import EMULATOR
from runtime.gpu.interop import HOST

#: The header that replaces CUDA's, and the one that replaces its tensor cores.
HEADER = Path(__file__).with_name("cuda_on_cpu.h")
TENSOR_CORES = Path(__file__).with_name("tensor_cores_on_cpu.h")
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-unknown-pragmas",
    "-Wno-maybe-uninitialized",
    "-Wno-tautological-compare",  # a program may compare an element with itself
)
_TIMEOUT = 120.0
_SHARED = re.compile(r"__shared__ (?:__align__\(\d+\) )?(.+?) ?(\w+)((?:\[[^][]*\])*);")


def on_cpu(*sources: GpuSource) -> str:
    """The C++ text of kernels, with a launch function for each.

    Shared arrays are references to arrays of their block, so that a sanitizer sees their bounds,
    and which blocks share them.
    """
    spaces = (f"namespace fk_{n} {{\n{_kernels(s)}\n}}" for n, s in enumerate(sources))
    headers = [HEADER, TENSOR_CORES] if any("fk_sums" in s.text for s in sources) else [HEADER]
    return "\n".join([*(h.read_text(encoding="utf-8") for h in headers), *spaces])


def _kernels(source: GpuSource) -> str:
    shared: list[str] = []

    def reference(found: re.Match[str]) -> str:
        c, name, shape = found.groups()
        shared.append(f"sizeof({c}{shape})")
        array = f"fk_shared[{len(shared) - 1}]"
        if not shape:
            return f"{c} &{name} = *({c} *){array};"
        return f"{c} (&{name}){shape} = *({c} (*){shape}){array};"

    text = _SHARED.sub(reference, source.text)
    count = len(shared)
    parts = [text, f"static const size_t fk_bytes[] = {{{', '.join([*shared, '0'])}}};"]
    tensors = (*source.program.tensors.values(), *source.workspace)  # these may overlap
    dtypes = {t.name: CudaPrinter.types[t.dtype.name] for t in tensors}
    for kernel in source.kernels:
        given = [f"c->sizes[{n}]" for n in range(len(kernel.sizes))]
        given += [f"({dtypes[t]} *)c->tensors[{n}]" for n, t in enumerate(kernel.tensors)]
        block = ", ".join(map(str, kernel.block))
        parts.append(
            f"struct {kernel.symbol}_call {{ const int64_t *sizes; void *const *tensors; }};\n"
            f"static void {kernel.symbol}_thread(void *argument) {{\n"
            f"  const {kernel.symbol}_call *c = (const {kernel.symbol}_call *)argument; (void)c;\n"
            f"  {kernel.symbol}({', '.join(given)});\n}}\n"
            f'extern "C" int {kernel.symbol}_launch(const int64_t *sizes, void *const *tensors,\n'
            f"    const int64_t *grid, int backwards) {{\n"
            f"  const int64_t block[3] = {{{block}}};\n"
            f"  {kernel.symbol}_call c = {{sizes, tensors}};\n"
            f"  return fk_launch({kernel.symbol}_thread, &c, grid, block, fk_bytes, {count},\n"
            f"                   backwards);\n}}\n"
        )
    return "\n".join(parts)


#: A library keeps block and thread indices in global variables, and devices with the same text
#: share a library.
_RUNNING = threading.Lock()


class CpuDevice(Device):
    """Run the threads of a block one after the other, forwards or backwards.  It has no streams.

    folder : of a cache for compiled code; backwards : start with the last thread and block

    Raises
    ------
    CacheError : the folder cannot be used.
    """

    name, dialect = EMULATOR, "cuda"
    dlpack = (HOST, 0)
    is_timed = False
    #: Whether compiler warnings are errors, as in the tests.
    strict = False
    _cache: Cache

    def __init__(self, folder: Path, compiler: str = "g++", backwards: bool = False) -> None:
        super().__init__()
        self.compiler, self.backwards = compiler, backwards
        self._cache = Cache(folder)

    def __repr__(self) -> str:
        return f"<CpuDevice {self.name}>"

    def build(self, *sources: GpuSource) -> ctypes.CDLL:
        text = on_cpu(*sources)
        key = digest(EMULATOR, text, self.compiler, *_FLAGS)
        entry = self._cache.get_or_build(key, lambda: {LIBRARY: self._compile(text)})
        return ctypes.CDLL(str(entry.file(LIBRARY)))

    def _compile(self, text: str) -> bytes:
        if shutil.which(self.compiler) is None:
            raise ToolchainError(f"{self.name} needs a C++ compiler: no {self.compiler}")
        with self._cache.workspace() as folder:
            kernels, library = folder / "kernels.cpp", folder / LIBRARY
            kernels.write_text(text, encoding="utf-8")
            files = ("-o", str(library), str(kernels), "-lm")
            command = (self.compiler, *_FLAGS, "-shared", "-fPIC", *files)
            done = run_command(command, str(folder), _TIMEOUT)
            if done.code != 0 or (self.strict and "warning" in done.errors):
                raise ToolchainError(f"{self.compiler} failed:\n{first_lines(done.errors)}")
            return library.read_bytes()

    def allocate(self, count: int) -> Array:
        buffer = aligned((count,), np.dtype(np.uint8), 64)
        buffer.fill(0xFF)  # elements that are never written are NaN, or -1
        return buffer

    def free(self, handle: Array) -> None:
        pass  # Python frees it

    def part(self, handle: Array, start: int, count: int) -> Array:
        return handle[start : start + count]

    def write(self, handle: Array, array: Array, stream: None) -> None:
        handle[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)

    def read(self, handle: Array, array: Array, stream: None) -> None:
        array[...] = handle[: array.nbytes].view(array.dtype).reshape(array.shape)

    def copy(self, to: Array, origin: Array, count: int, stream: None) -> None:
        to[:count] = origin[:count]

    def wait(self, stream: None) -> None:
        pass

    def stream(self, value: Any) -> None:
        if value is not None:
            raise ArgumentError(f"{self.name} has no streams")

    def locate(self, handle: Array) -> tuple[str, int]:
        memory, start, _ = span_of(handle)
        return str(memory), start

    def launch(
        self,
        module: ctypes.CDLL,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        handles: Sequence[Array],
        stream: None,
    ) -> None:
        function = module[f"{kernel.symbol}_launch"]
        pointers = (ctypes.c_void_p * max(1, len(handles)))(*map(address, handles))
        values = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        with _RUNNING:
            failed = function(values, pointers, (ctypes.c_int64 * 3)(*grid), int(self.backwards))
        if failed:
            raise ToolchainError(f"{kernel.symbol}: threads of a block wait at different barriers")
