"""What runs in the process that measures: kernels beside the automatic schedule's, in turns.

A kernel that crashes, hangs or writes where it must not takes this process along, and nothing else.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.c.kernel_source import KernelSource
from runtime.common.arguments import undetermined
from runtime.common.cache import Cache
from runtime.cpu.loaded_kernel import LoadedKernel, load_kernel
from runtime.cpu.toolchain import Toolchain
from runtime.reference.verify import compare, random_inputs

#: The greatest difference from the automatic schedule's results, relative to the largest one:
#: sums in another order are rounded otherwise.
TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-9}
#: A kernel that takes this many times as long as the automatic schedule's is not measured further.
HOPELESS = 3.0
#: Calls shorter than this many seconds are timed in groups.
SAMPLE = 1e-4

Call = Callable[[], Any]


@dataclass(frozen=True)
class Setup:
    """What all kernels of a process are called with.

    source : of the automatic schedule; seed : of the random inputs
    """

    source: KernelSource
    toolchain: Toolchain
    cache: Cache
    threads: int
    sizes: Mapping[str, int]
    seed: int

    @property
    def key(self) -> str:
        """What tells it from others on the same machine."""
        return repr((self.source.text, self.threads, sorted(self.sizes.items()), self.seed))


@dataclass(frozen=True)
class Turns:
    """Kernels to measure in turns with the automatic schedule's.

    rounds : turns of each; turn : seconds of each turn, at least
    """

    sources: Sequence[KernelSource]
    rounds: int
    turn: float


@dataclass(frozen=True)
class Measured:
    """Seconds per call in each round, first of the automatic schedule's; or why there are none."""

    automatic: tuple[float, ...]
    others: tuple[tuple[float, ...] | str, ...]


class _Bench:
    """The automatic schedule's kernel, its results, and what it was called with."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        program = setup.source.program
        #: Arrays by name, and the sizes that no array determines.
        self._given: dict[str, Any] = {**random_inputs(program, setup.sizes, setup.seed)}
        self._given |= {n: setup.sizes[n] for n in undetermined(program) if n in setup.sizes}
        self.kernel = self._load(setup.source)
        self._expected = self._results(self.kernel)
        copies = tuple(x.copy() for x in self._expected)
        self._out = copies if len(copies) > 1 else copies[0]
        self.call = self._call(self.kernel)
        self.once = min(_once(self.call) for _ in range(2))
        self._checked: dict[str, Call | str] = {}

    def _load(self, source: KernelSource) -> LoadedKernel:
        s = self.setup
        return load_kernel(source, s.toolchain, s.cache, s.threads)

    def _results(self, kernel: LoadedKernel) -> tuple[np.ndarray, ...]:
        found = kernel(**self._given)
        return found if isinstance(found, tuple) else (found,)

    def _call(self, kernel: LoadedKernel) -> Call:
        # All write to the same arrays, so that where these lie makes no difference.
        given, out = self._given, self._out
        return lambda: kernel(**given, out=out)

    def checked(self, source: KernelSource) -> Call | str:
        """A call of a kernel whose results are right, else what is wrong with it."""
        if source.text not in self._checked:
            self._checked[source.text] = self._check(source)
        return self._checked[source.text]

    def _check(self, source: KernelSource) -> Call | str:
        kernel = self._load(source)
        got = self._results(kernel)
        for tensor, array, expected in zip(
            source.program.outputs, got, self._expected, strict=True
        ):
            found = compare(tensor.name, array, expected)
            limit = TOLERANCE[max(2, array.itemsize)] if tensor.dtype.is_float else 0.0
            if found.mismatched or found.max_rel > limit:
                return f"wrong result: {found}"
        call = self._call(kernel)
        took = min(_once(call) for _ in range(2))
        if took > HOPELESS * self.once:
            return f"{took / self.once:.3g} times as long"
        return call


_BENCHES: dict[str, _Bench] = {}


def measure(setup: Setup, turns: Turns | KernelSource) -> Measured | str:
    """Measure kernels in turns, or check that one is right: "" if it is."""
    bench = _bench(setup)
    if isinstance(turns, KernelSource):
        found = bench.checked(turns)
        return found if isinstance(found, str) else ""
    calls = [bench.checked(s) for s in turns.sources]
    right = [c for c in calls if not isinstance(c, str)]
    times = _in_turns([bench.call, *right], turns.rounds, turns.turn)
    rest = iter(times[1:])
    return Measured(times[0], tuple(c if isinstance(c, str) else next(rest) for c in calls))


def _bench(setup: Setup) -> _Bench:
    if setup.key not in _BENCHES:
        _BENCHES.clear()  # arrays may be large
        _BENCHES[setup.key] = _Bench(setup)
    return _BENCHES[setup.key]


def _once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _in_turns(calls: Sequence[Call], rounds: int, turn: float) -> list[tuple[float, ...]]:
    """Seconds per call of each, for each round; every other one is in reverse order."""
    times: list[list[float]] = [[] for _ in calls]
    gc.disable()
    try:
        for number in range(rounds):
            order = range(len(calls)) if number % 2 == 0 else reversed(range(len(calls)))
            for n in order:
                times[n].append(_turn(calls[n], turn))
    finally:
        gc.enable()
    return [tuple(t) for t in times]


def _turn(call: Call, turn: float) -> float:
    """Seconds per call: the median of samples after one that warms the caches."""
    group = max(1, round(SAMPLE / max(_once(call), 1e-7)))
    samples: list[float] = []
    began = time.perf_counter()
    while not samples or time.perf_counter() - began < turn:
        start = time.perf_counter()
        for _ in range(group):
            call()
        samples.append((time.perf_counter() - start) / group)
    return float(np.median(samples))
