"""The roofline of this machine: peak multiply-add rate, and bandwidth of each memory level.

    python -m runtime.cpu.roofline [--threads 2]

Bandwidths are those of a triad ``a = b + 3 c``: three arrays, each touched once; the reads that the
hardware makes before it overwrites a line are not counted.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from poly.errors import ToolchainError
from poly.machine.cpu import Machine, host_machine
from runtime.cpu.compile_c import compile_shared
from runtime.cpu.toolchain import Toolchain, find_toolchain

_SOURCE = Path(__file__).with_name("roofline.c")

#: Vector multiply-adds in one repetition of ``multiply_add`` on each thread.
_CHAINS = 12


@dataclass(frozen=True)
class Roofline:
    """The limits of a computation on some number of threads.

    flops : operations per second; l2, l3, dram : bytes per second; l2_bytes, l3_bytes : sizes of
    the second-level cache of one core and of the shared one
    """

    threads: int
    flops: float
    l2: float
    l3: float
    dram: float
    l2_bytes: int
    l3_bytes: int

    @property
    def is_plausible(self) -> bool:
        """Whether the machine was quiet enough to measure: no level slower than the one below.

        A level less than half as fast as the next one was measured while its threads waited for
        something else.
        """
        rates = (self.l2, self.l3, self.dram)
        nearer = all(2 * a >= b for a, b in pairwise(rates))
        return nearer and min(rates) > 1e8 and self.flops > 1e8

    def best(self, other: Roofline) -> Roofline:
        """The faster of two measurements, rate by rate."""
        return replace(
            self,
            flops=max(self.flops, other.flops),
            l2=max(self.l2, other.l2),
            l3=max(self.l3, other.l3),
            dram=max(self.dram, other.dram),
        )

    def bandwidth(self, count: int) -> float:
        """Bytes per second for data of this size, from the nearest level that holds all of it."""
        if count <= self.l2_bytes:
            return self.l2
        return self.l3 if count <= self.l3_bytes else self.dram

    def seconds(self, flops: int, count: int) -> float:
        """The least time for this many operations on this many bytes."""
        return max(flops / self.flops, count / self.bandwidth(count))

    def __str__(self) -> str:
        parts = (f"{n} {b / 1e9:.0f}" for n, b in
                 (("L2", self.l2), ("L3", self.l3), ("DRAM", self.dram)))  # fmt: skip
        return (
            f"{self.threads} thread{'s' if self.threads > 1 else ''}: "
            f"{self.flops / 1e9:.0f} GFLOP/s, {', '.join(parts)} GB/s"
        )


def measure(threads: int, seconds: float = 0.1, turns: int = 7) -> Roofline:
    """Measure the roofline: the best of `turns` runs of about `seconds` each.

    Raises
    ------
    ToolchainError : there is no C compiler, or it failed, or it has no OpenMP for several threads.
    """
    machine, toolchain = host_machine(), find_toolchain()
    if threads > 1 and not toolchain.openmp:
        raise ToolchainError(f"{toolchain} has no OpenMP to measure {threads} threads with")
    with tempfile.TemporaryDirectory(prefix="farkas-roofline-") as folder:
        library = _build(toolchain, machine, Path(folder))
    lanes = machine.vector_bytes // 4

    def fma(repetitions: int) -> None:
        library.multiply_add(threads, repetitions)

    peak = 2 * lanes * _CHAINS * threads * _best_rate(fma, seconds, turns)
    own = int(0.6 * machine.l2) * threads
    shared = max(machine.l3 // 2, 2 * own)
    beyond = max(8 * machine.l3, 256 << 20)
    rates = [
        _triad(library, threads, machine, total, seconds, turns) for total in (own, shared, beyond)
    ]
    return Roofline(threads, peak, rates[0], rates[1], rates[2], machine.l2, machine.l3)


def _build(toolchain: Toolchain, machine: Machine, folder: Path) -> Any:
    lanes = (f"-DLANES={machine.vector_bytes // 4}",)
    out = folder / "roofline.so"
    compile_shared(toolchain, {"roofline.c": _SOURCE.read_text()}, lanes, out)
    library = ctypes.CDLL(str(out))
    library.multiply_add.argtypes = (ctypes.c_int32, ctypes.c_int64)
    library.multiply_add.restype = ctypes.c_float
    library.triad.argtypes = (ctypes.c_int32, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3)
    library.triad.restype = None
    return library


def _triad(
    library: Any, threads: int, machine: Machine, total: int, seconds: float, turns: int
) -> float:
    """Bytes per second of a triad on three arrays of `total` bytes together."""
    unit = 4 * threads * machine.vector_bytes
    count = max(total // 3 // unit, 1) * unit
    arrays = [np.ones(count // 4, np.float32) for _ in range(3)]
    pointers = [a.ctypes.data for a in arrays]
    vectors = count // machine.vector_bytes

    def run(repetitions: int) -> None:
        library.triad(threads, repetitions, vectors, *pointers)

    return 3 * count * _best_rate(run, seconds, turns)


def _best_rate(run: Callable[[int], None], seconds: float, turns: int) -> float:
    """Repetitions per second, in the best of `turns` runs."""

    def took(repetitions: int) -> float:
        start = time.perf_counter()
        run(repetitions)
        return time.perf_counter() - start

    repetitions = 1
    while (least := min(took(repetitions) for _ in range(3))) < seconds / 4:
        repetitions *= 2
    repetitions = max(1, round(repetitions * seconds / least))
    # If the machine was busy at first, too few repetitions seemed enough.
    while (least := min(took(repetitions) for _ in range(turns))) < seconds / 4:
        repetitions *= 4
    return repetitions / least


def main() -> None:
    parser = argparse.ArgumentParser(description="the roofline of this machine")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    for threads in parser.parse_args().threads:
        print(measure(threads))


if __name__ == "__main__":
    main()
