"""The CUDA text on the CPU in processes of its own, plain and under two sanitizers.

Each launch is a process of its own, in which nothing of Python runs: it reads the arguments from a
file, and writes what has become of the arrays to another.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource
from runtime.cpu.toolchain import run_command
from runtime.gpu.emulator import CpuDevice, on_cpu
from runtime.gpu.memory_pool import DeviceBuffer, Pool

#: What g++ calls each sanitizer, and what else it is told.
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread",),
}
#: Seconds that a launch may take: threads of each of thousands of blocks are the host's, in turn.
LONGEST = 900.0
_FLAGS = ("-std=c++17", "-O1", "-g", "-fno-strict-aliasing", "-w")
#: The code of a process of which a sanitizer has something to say, and of threads that wait at
#: different barriers.
_REPORTED, _DIVERGED = 66, 71

#: Its arguments: a file with numbers (kernel, order, grid, count and values of sizes, count and
#: bytes of arrays, how far behind 16 bytes they begin) and the arrays; one for the arrays as they
#: are afterwards.
_MAIN = r"""
extern "C" const char *__asan_default_options() { return "detect_leaks=0:exitcode=%(reported)d"; }
extern "C" const char *__ubsan_default_options() { return "exitcode=%(reported)d"; }
extern "C" const char *__tsan_default_options() { return "exitcode=%(reported)d"; }
typedef int fk_kernel(const int64_t *, void *const *, const int64_t *, int);
static fk_kernel *const fk_kernels[] = {%(launches)s};
static FILE *fk_request;
static int64_t fk_number() {
  int64_t n;
  if (fread(&n, sizeof n, 1, fk_request) != 1) exit(3);
  return n;
}
int main(int argc, char **argv) {
  if (argc != 3 || !(fk_request = fopen(argv[1], "rb"))) return 3;
  const int64_t kernel = fk_number(), backwards = fk_number();
  int64_t grid[3], sizes[64], bytes[64];
  void *tensors[64];
  for (int n = 0; n < 3; n++) grid[n] = fk_number();
  const int64_t given = fk_number();
  for (int64_t n = 0; n < given; n++) sizes[n] = fk_number();
  const int64_t count = fk_number();
  for (int64_t n = 0; n < count; n++) bytes[n] = fk_number();
  const int64_t skew = fk_number();
  for (int64_t n = 0; n < count; n++) {
    tensors[n] = (char *)malloc(bytes[n] + skew) + skew;
    if (fread(tensors[n], 1, bytes[n], fk_request) != (size_t)bytes[n]) return 3;
  }
  const int wrong = fk_kernels[kernel](sizes, tensors, grid, (int)backwards);
  FILE *results = fopen(argv[2], "wb");
  for (int64_t n = 0; n < count; n++)
    if (fwrite(tensors[n], 1, bytes[n], results) != (size_t)bytes[n]) return 3;
  return fclose(results) ? 3 : wrong == 1 ? %(diverged)d : wrong;
}
"""


class ExactMemory(Pool):
    """Gives buffers of exactly what is asked for, each of them new: one byte too far is seen."""

    def take(self, count: int, stream: Hashable) -> DeviceBuffer:
        count = max(count, 1)
        return DeviceBuffer(self, self._allocate(count), count, stream)

    def give(self, handle: Any, count: int, stream: Hashable, lent: bool) -> None:
        self._free(handle)


class ChildDevice(CpuDevice):
    """A CPU that keeps what goes wrong in `reports`, a line for each launch.

    sanitizer : ``address``: accesses outside of arrays; ``thread``: accesses that nothing orders;
        empty: none, and faults cannot harm the tests
    skew : all arrays begin so many bytes behind a multiple of 16
    """

    def __init__(
        self, folder: Path, sanitizer: str = "", backwards: bool = False, skew: int = 0
    ) -> None:
        super().__init__(folder, backwards=backwards)
        self.skew = skew
        self.pool = ExactMemory(self.allocate, self.free)
        self.work, self.sanitizer = folder, sanitizer
        self.reports: list[str] = []
        self._together: tuple[Sequence[GpuSource], Any] = ((), None)

    def prepare(self, sources: Sequence[GpuSource]) -> None:
        """Compile several programs at once, which takes less time than one by one."""
        self._together = (sources, self._built(sources))

    def build(self, *given: GpuSource) -> Any:
        (source,) = given
        sources, module = self._together
        return module if any(source is s for s in sources) else self._built([source])

    def _built(self, sources: Sequence[GpuSource]) -> tuple[Path, list[str]]:
        symbols = [k.symbol for s in sources for k in s.kernels]
        launches = ", ".join(f"fk_{n}::{k.symbol}_launch" for n, s in enumerate(sources)
                             for k in s.kernels)  # fmt: skip
        main = _MAIN % {"reported": _REPORTED, "diverged": _DIVERGED, "launches": launches}
        text = on_cpu(*sources) + main
        return built(text, Path(mkdtemp(dir=self.work)), self.sanitizer), symbols

    def launch(
        self,
        module: Any,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        handles: Sequence[Any],
        stream: Any,
    ) -> None:
        program, symbols = module
        request, results = program.with_name("request"), program.with_name("results")
        results.unlink(missing_ok=True)
        numbers = [symbols.index(kernel.symbol), int(self.backwards), *grid, len(sizes), *sizes]
        numbers += [len(handles), *(b.nbytes for b in handles), self.skew]
        head = np.asarray(numbers, np.int64).tobytes()
        request.write_bytes(b"".join([head, *(b.tobytes() for b in handles)]))
        done = run_command((str(program), str(request), str(results)), None, LONGEST)
        if done.code == _DIVERGED:
            self.reports.append("threads of a block wait at different barriers")
        elif done.code != 0:
            said = [n for n in done.errors.splitlines() if "Sanitizer: " in n or "runtime err" in n]
            self.reports += said[:1] or [f"code {done.code}: {done.errors[:500]}"]
        if not results.exists():
            return
        data, position = results.read_bytes(), 0
        for b in handles:
            b[:] = np.frombuffer(data, np.uint8, b.nbytes, position)
            position += b.nbytes


def built(text: str, folder: Path, sanitizer: str) -> Path:
    """A program made of C++ text under a sanitizer."""
    (folder / "kernels.cpp").write_text(text, encoding="utf-8")
    flags = (*_FLAGS, *SANITIZERS.get(sanitizer, ()))
    done = run_command(("g++", *flags, "-o", "kernels", "kernels.cpp", "-lm"), str(folder), 120.0)
    assert done.code == 0, done.errors
    return folder / "kernels"


@functools.cache
def why_not(sanitizer: str) -> str:
    """Why nothing runs under a sanitizer here; "" if it does."""
    with TemporaryDirectory() as folder:
        try:
            program = built("int main() { return 0; }", Path(folder), sanitizer)
        except AssertionError as error:
            return f"g++ has no library for it: {error}"
        done = run_command((str(program),), None, 120.0)
    return done.errors or f"code {done.code}" if done.code else ""
