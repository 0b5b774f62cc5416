"""CUDA kernels on a CPU: slow, for checking them where there is no GPU; see `cuda_on_cpu.h`."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from codegen.gpu import GpuKernel, GpuSource
from codegen.spelling import C_TYPES
from poly.errors import ToolchainError
from runtime.arguments import Array, aligned
from runtime.toolchain import first_lines, run_command

#: The header that stands in for CUDA.
HEADER = Path(__file__).with_name("cuda_on_cpu.h")
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    "-Wno-maybe-uninitialized",
)
_TIMEOUT = 120.0
_SHARED = re.compile(r"__shared__ (.+?) ?(\w+)((?:\[[^][]*\])*);")


def on_cpu(*sources: GpuSource) -> str:
    """The C++ text of kernels with a function for each that launches it.

    What a block shares are references to arrays of that block: a sanitizer sees where each ends,
    and which blocks have the same.
    """
    spaces = (f"namespace fk_{n} {{\n{_kernels(s)}\n}}" for n, s in enumerate(sources))
    return "\n".join([HEADER.read_text(encoding="utf-8"), *spaces])


def _kernels(source: GpuSource) -> str:
    shared: list[str] = []

    def reference(found: re.Match[str]) -> str:
        c, name, shape = found.groups()
        shared.append(f"sizeof({c}{shape})")
        return f"{c} (&{name}){shape} = *({c} (*){shape})fk_shared[{len(shared) - 1}];"

    text = _SHARED.sub(reference, source.text)
    count = len(shared)
    parts = [text, f"static const size_t fk_bytes[] = {{{', '.join([*shared, '0'])}}};"]
    for kernel in source.kernels:
        dtypes = {t.name: C_TYPES[t.dtype.name] for t in source.program.tensors.values()}
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


class CpuDevice:
    """Threads of a block one after the other, in one order or backwards."""

    dialect = "cuda"

    def __init__(self, folder: Path, compiler: str = "g++", backwards: bool = False) -> None:
        self.folder, self.compiler, self.backwards = folder, compiler, backwards

    def build(self, source: GpuSource) -> ctypes.CDLL:
        # A library that is loaded already is not loaded again from the same path.
        folder = Path(mkdtemp(dir=self.folder))
        text, library = folder / "kernels.cpp", folder / "kernels.so"
        text.write_text(on_cpu(source), encoding="utf-8")
        command = (self.compiler, *_FLAGS, "-shared", "-fPIC", "-o", str(library), str(text), "-lm")
        done = run_command(command, str(self.folder), _TIMEOUT)
        if done.code != 0 or "warning" in done.errors:
            raise ToolchainError(f"{self.compiler} failed:\n{first_lines(done.errors)}")
        return ctypes.CDLL(str(library))

    def empty(self, count: int) -> Array:
        buffer = aligned((count,), np.dtype(np.uint8), 64)
        buffer.fill(0xFF)  # what nobody writes is no number, or -1
        return buffer

    def write(self, buffer: Array, array: Array) -> None:
        buffer[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)

    def read(self, buffer: Array, array: Array) -> None:
        array[...] = buffer[: array.nbytes].view(array.dtype).reshape(array.shape)

    def launch(
        self,
        module: ctypes.CDLL,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        buffers: Sequence[Any],
    ) -> None:
        function = module[f"{kernel.symbol}_launch"]
        pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
        values = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        if function(values, pointers, (ctypes.c_int64 * 3)(*grid), int(self.backwards)):
            raise ToolchainError(f"{kernel.symbol}: threads of a block wait at different barriers")
