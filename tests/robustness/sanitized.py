"""Kernels run under AddressSanitizer and UndefinedBehaviorSanitizer, many in one executable.

A small C program allocates every array with exactly its size, so that one element too far is
seen, fills it from a file, calls the kernels, and writes the outputs to a file.  Nothing of Python
runs under the sanitizers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from codegen.c.function import argument_order
from codegen.c.kernel_source import KernelSource
from codegen.c.kernel_unit import generate
from codegen.pipeline import CPU
from poly.ir.program import Program, Tensor
from poly.machine.cpu import Machine, host_machine
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.auto_schedule import auto_schedule
from runtime.common.arguments import shape_of
from runtime.cpu.toolchain import Toolchain
from runtime.reference.evaluate import run
from runtime.reference.verify import compare, random_inputs

FLAGS = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w")
#: Without optimisation no access disappears, and gcc takes a tenth of the time.
QUICK = (*FLAGS, "-O0")
OPTIMISED = (*FLAGS, "-O1", "-fno-var-tracking-assignments")

#: The C program: what to run comes from ``plan``, one number a line; see `_plan`.
MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void kernel(int32_t threads, const int64_t *sizes, void *const *tensors);
%(prototypes)s
static kernel *const kernels[] = {%(names)s};

static FILE *plan, *in, *out;

static int64_t number(void)
{
  long long n;
  if (fscanf(plan, "%%lld", &n) != 1) exit(3);
  return n;
}

int main(int argc, char **argv)
{
  if (argc != 4) return 3;
  plan = fopen(argv[1], "r"), in = fopen(argv[2], "rb"), out = fopen(argv[3], "wb");
  if (!plan || !in || !out) return 3;
  for (int64_t runs = number(); runs > 0; runs--) {
    int64_t k = number(), threads = number(), n_sizes = number();
    fprintf(stderr, "run %%lld: %(label)s %%lld\n", (long long)runs, (long long)k);
    int64_t *sizes = malloc(n_sizes * 8);
    for (int64_t s = 0; s < n_sizes; s++) sizes[s] = number();
    int64_t n = number();
    void **blocks = malloc(n * sizeof(void *)), **tensors = malloc(n * sizeof(void *));
    int64_t *bytes = malloc(n * 8), *results = malloc(n * 8);
    for (int64_t t = 0; t < n; t++) {
      /* bytes, element, whether aligned to 64, whether it has a content, whether it is an output */
      bytes[t] = number();
      int64_t element = number(), aligned = number(), content = number();
      results[t] = number();
      if (aligned) {
        if (posix_memalign(&blocks[t], 64, bytes[t])) return 3;
        tensors[t] = blocks[t];
      } else {
        /* Aligned to the element and no better; the end of the block is the end of the array. */
        blocks[t] = malloc(bytes[t] + element);
        tensors[t] = (char *)blocks[t] + element;
      }
      memset(tensors[t], 0xA5, bytes[t]);
      if (content && bytes[t] && fread(tensors[t], bytes[t], 1, in) != 1) return 3;
    }
    kernels[k]((int32_t)threads, sizes, tensors);
    for (int64_t t = 0; t < n; t++) {
      if (results[t] && bytes[t] && fwrite(tensors[t], bytes[t], 1, out) != 1) return 3;
      free(blocks[t]);
    }
    free(blocks), free(tensors), free(bytes), free(results), free(sizes);
  }
  return fclose(out) ? 3 : 0;
}
"""


@dataclass(frozen=True)
class Array:
    """One argument: its bytes in memory, or, if `content` is None, only how many there are."""

    size: int
    element: int
    content: bytes | None = None
    output: bool = False
    aligned: bool = False


@dataclass(frozen=True)
class Run:
    """One call: the kernel by its symbol, sizes, arrays in order."""

    symbol: str
    sizes: tuple[int, ...]
    arrays: tuple[Array, ...]
    threads: int


@dataclass
class Batch:
    """C files and calls of what they define; `check` runs all of them."""

    units: dict[str, str] = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def add(self, symbol: str, units: Mapping[str, str]) -> None:
        """Add a kernel, unless it is there already."""
        if symbol not in self.symbols:
            self.symbols.append(symbol)
            self.units |= units

    def execute(
        self,
        toolchain: Toolchain,
        folder: Path,
        flags: Sequence[str] = QUICK,
        runner: Sequence[str] = (),
    ) -> tuple[int, str, bytes]:
        """Build and run: the exit code, the error stream, and all outputs one after another.

        runner : the command that runs programs of the compiler's machine, if not this one
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = ", ".join(self.symbols)
        main = MAIN % {
            "prototypes": "\n".join(f"kernel {s};" for s in self.symbols),
            "names": names,
            "label": "kernel",
        }
        program = build(toolchain, {**self.units, "main.c": main}, folder, flags)
        contents = []
        lines = [len(self.runs)]
        for r in self.runs:
            lines += [self.symbols.index(r.symbol), r.threads, len(r.sizes), *r.sizes]
            lines.append(len(r.arrays))
            for a in r.arrays:
                given = a.content is not None
                lines += [a.size, a.element, int(a.aligned), int(given), int(a.output)]
                contents.append(a.content or b"")
        (folder / "plan").write_text("\n".join(map(str, lines)))
        (folder / "in").write_bytes(b"".join(contents))
        done = subprocess.run(
            [*runner, program, folder / "plan", folder / "in", folder / "out"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=600,
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "OMP_WAIT_POLICY": "passive"},
        )
        return done.returncode, done.stderr, (folder / "out").read_bytes()


def build(
    toolchain: Toolchain,
    units: Mapping[str, str],
    folder: Path,
    given: Sequence[str] = QUICK,
) -> Path:
    """Compile C files, by default under the sanitizers, and link them."""
    for name, text in units.items():
        (folder / name).write_text(text)
    flags = [*(f for f in toolchain.flags if f not in ("-O2", "-fPIC")), *given]

    def compile_one(name: str) -> None:
        _command([*toolchain.command, *flags, "-c", name, "-o", f"{name}.o"], folder)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(compile_one, units))
    objects = [f"{name}.o" for name in units]
    _command([*toolchain.command, *flags, *objects, "-o", "batch", "-lm"], folder)
    return folder / "batch"


def _command(line: Sequence[str], folder: Path) -> None:
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def available(toolchain: Toolchain, folder: Path) -> bool:
    """Whether the compiler has the sanitizers' libraries."""
    try:
        program = build(toolchain, {"main.c": "int main(void) { return 0; }"}, folder)
    except AssertionError:
        return False
    return subprocess.run([program]).returncode == 0


# --- programs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What one run of a program must give, within an error relative to the largest value."""

    label: str
    outputs: tuple[tuple[str, np.ndarray, np.ndarray], ...]  # name, values, where written
    relative: float


@cache
def source_of(
    program: Program, *, auto: bool = True, exact: bool = False, machine: Machine | None = None
) -> KernelSource:
    """The kernel of a program, generated once for all sizes that it is run at."""
    if not auto:
        return generate(Schedule.of(program, exact), written=program)
    machine = machine or host_machine()
    prepared = Schedule.of(CPU.prepare(program, machine, exact), exact)
    return generate(auto_schedule(prepared, machine), written=program)


class Sweep:
    """Programs with sizes, run under the sanitizers and compared with the reference."""

    def __init__(self) -> None:
        self.batch = Batch()
        self.expected: list[Expected] = []

    def add(self, program: Program, sizes: Mapping[str, int], seed: int = 0) -> None:
        """Add one program at one size, with its automatic schedule."""
        self.add_source(source_of(program), sizes, seed=seed)

    def add_source(
        self,
        source: KernelSource,
        sizes: Mapping[str, int],
        threads: Sequence[int] = (1, 2),
        inputs: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        """Add one kernel at one size."""
        program = source.program
        arrays = {**random_inputs(program, sizes, seed), **(inputs or {})}
        result = run(program, arrays, sizes)
        outputs = tuple(
            (t.name, result.values[t.name], result.written[t.name]) for t in program.outputs
        )
        at = ", ".join(f"{n}={v}" for n, v in sizes.items())
        label = f"{source.symbol} ({at})\n{program}"
        self.batch.add(source.symbol, {f"{source.symbol}.c": source.text})
        passed = tuple(
            _argument(t, program, source, arrays, sizes)
            for t in argument_order(program, source.workspace)
        )
        for count in threads:
            run_sizes = tuple(sizes[s] for s in program.sizes)
            self.batch.runs.append(Run(source.symbol, run_sizes, passed, count))
            self.expected.append(Expected(label, outputs, _tolerance(program)))

    def check(
        self,
        toolchain: Toolchain,
        folder: Path,
        flags: Sequence[str] = QUICK,
        runner: Sequence[str] = (),
    ) -> None:
        """Run everything: nothing is reported, and all results are right."""
        code, errors, data = self.batch.execute(toolchain, folder, flags, runner)
        assert code == 0, f"{self._blame(errors)}\n{errors[-6000:]}"
        position = 0
        for expected in self.expected:
            for name, values, written in expected.outputs:
                end = position + values.nbytes
                got = np.frombuffer(data[position:end], values.dtype).reshape(values.shape)
                position = end
                found = compare(name, got, values, written)
                good = found.mismatched == 0 and found.max_rel <= expected.relative
                assert good, f"{expected.label}\n{found}"
        assert position == len(data)

    def _blame(self, errors: str) -> str:
        """The run during which something was reported."""
        begun = sum(line.startswith("run ") for line in errors.splitlines())
        return self.expected[begun - 1].label if begun else "nothing was run"


def _argument(
    tensor: Tensor,
    program: Program,
    source: KernelSource,
    arrays: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
) -> Array:
    name, size = tensor.name, tensor.dtype.bytes
    for extent in shape_of(tensor, sizes):
        size *= extent
    outputs = {t.name for t in program.outputs}
    return Array(
        size,
        tensor.dtype.bytes,
        np.ascontiguousarray(arrays[name]).tobytes() if name in arrays else None,
        name in outputs,
        name in {t.name for t in source.workspace},
    )


def _tolerance(program: Program) -> float:
    """Sums may be reassociated; 16-bit values are rounded at each step."""
    floats = [t.dtype.bits for t in program.tensors.values() if t.dtype.is_float]
    return {16: 0.05, 32: 2e-4, 64: 1e-10}.get(min(floats, default=64), 0.0)
