"""What runs in the process that measures: kernels beside the automatic schedule's, in turns.

A kernel that crashes, hangs or writes where it must not takes this process along, and nothing else.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from farkas.targets.base import Runner
from runtime.common.arguments import ALIGNMENT, aligned_copy, undetermined
from runtime.reference.verify import compare, random_inputs
from runtime.tuned.record import WRONG

#: The greatest difference from the automatic schedule's results, relative to the largest one:
#: sums in another order are rounded otherwise.
TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-9}
#: A kernel that takes this many times as long as the automatic schedule's is not measured further.
SLOW = 3.0
#: Calls a kernel so often.
Call = Callable[[int], None]


@dataclass(frozen=True)
class Setup:
    """What all kernels of a process are called with.

    source : of the automatic schedule; runner : loads and calls kernels
    seed : of the random inputs
    """

    source: Any
    runner: Runner
    sizes: Mapping[str, int]
    seed: int

    @property
    def key(self) -> str:
        """What tells it from others on the same machine."""
        threads = self.runner.threads
        return repr((self.source.text, threads, sorted(self.sizes.items()), self.seed))


@dataclass(frozen=True)
class Turns:
    """Kernels to measure in turns with the automatic schedule's.

    rounds : turns of each; turn : seconds of each turn, at least
    """

    sources: Sequence[Any]
    rounds: int
    turn: float


@dataclass(frozen=True)
class Timed:
    """Seconds per call in each round, first of the automatic schedule's; or why there are none."""

    automatic: tuple[float, ...]
    others: tuple[tuple[float, ...] | str, ...]


class _Bench:
    """The automatic schedule's kernel, its results, and what it was called with."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        program = setup.source.program
        #: Arrays by name, and the sizes that no array determines.
        inputs = random_inputs(program, setup.sizes, setup.seed)
        self._given: dict[str, Any] = setup.runner.sent(inputs)
        self._given |= {n: setup.sizes[n] for n in undetermined(program) if n in setup.sizes}
        self.kernel = setup.runner.load(setup.source)
        found = self._on_host(self._results(self.kernel))
        self._expected = {n: a.copy() for n, a in found.items()}
        # They begin where a cache line does, as a kernel's own results and what networks pass on:
        # where whole lines are stored, that may take twice as long as beside it.
        places = {n: aligned_copy(a, ALIGNMENT) for n, a in found.items()}
        out = tuple(setup.runner.sent(places).values())
        self._out = out if len(out) > 1 else out[0]
        self.call = self._call(self.kernel)
        self.once = self.roughly(self.call)
        self._checked: dict[str, Call | str] = {}

    def _results(self, kernel: Any) -> dict[str, Any]:
        found = kernel(**self._given)
        arrays = found if isinstance(found, tuple) else (found,)
        outputs = self.setup.source.program.outputs
        return {t.name: a for t, a in zip(outputs, arrays, strict=True)}

    def _on_host(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return self.setup.runner.on_host(arrays)

    def _call(self, kernel: Any) -> Call:
        # All write to the same arrays, so that where these lie makes no difference.
        return self.setup.runner.repeated(kernel, self._given, self._out)

    def checked(self, source: Any) -> Call | str:
        """A call of a kernel whose results are right, else what is wrong with it."""
        if source.text not in self._checked:
            self._checked[source.text] = self._check(source)
        return self._checked[source.text]

    def keep(self, texts: Set[str]) -> None:
        """Let go of other kernels, and of the memory that these have on a device; not of what is
        wrong with others.
        """
        kept = self._checked.items()
        self._checked = {t: c for t, c in kept if t in texts or isinstance(c, str)}

    def _check(self, source: Any) -> Call | str:
        kernel = self.setup.runner.load(source)
        got = self._on_host(self._results(kernel))
        for tensor in source.program.outputs:
            array = got[tensor.name]
            found = compare(tensor.name, array, self._expected[tensor.name])
            limit = TOLERANCE[max(2, array.itemsize)] if tensor.dtype.is_float else 0.0
            if found.mismatched or found.max_rel > limit:
                return f"{WRONG}{found}"
        call = self._call(kernel)
        took = self.roughly(call)
        if self.setup.runner.tuned is not None and took > SLOW * self.once:
            return f"{took / self.once:.3g} times as long"
        return call

    def seconds(self, call: Call, count: int) -> float:
        """Seconds per call of so many."""
        start = time.perf_counter()
        call(count)
        self.setup.runner.wait()
        return (time.perf_counter() - start) / count

    def _group(self, seconds: float) -> int:
        """How many calls of so many seconds are timed at once."""
        return max(1, round(self.setup.runner.sample / max(seconds, 1e-7)))

    def roughly(self, call: Call) -> float:
        """Seconds per call, of two or, if these are short, a group."""
        first = self.seconds(call, 1)
        return min(first, self.seconds(call, self._group(first)))

    def in_turns(self, calls: Sequence[Call], rounds: int, turn: float) -> list[tuple[float, ...]]:
        """Seconds per call of each, for each round; every other one is in reverse order."""
        times: list[list[float]] = [[] for _ in calls]
        gc.disable()
        try:
            for number in range(rounds):
                order = range(len(calls)) if number % 2 == 0 else reversed(range(len(calls)))
                for n in order:
                    times[n].append(self._turn(calls[n], turn))
        finally:
            gc.enable()
        return [tuple(t) for t in times]

    def _turn(self, call: Call, turn: float) -> float:
        """Seconds per call: the median of samples after one that warms the caches."""
        group = self._group(self.seconds(call, 1))
        samples: list[float] = []
        began = time.perf_counter()
        while not samples or time.perf_counter() - began < turn:
            samples.append(self.seconds(call, group))
        return float(np.median(samples))


_BENCHES: dict[str, _Bench] = {}


def measure(setup: Setup, turns: Any) -> Timed | str:
    """Measure kernels in turns, or check that one is right: "" if it is.

    turns : `Turns`, or the one kernel
    """
    bench = _bench(setup)
    if not isinstance(turns, Turns):
        found = bench.checked(turns)
        return found if isinstance(found, str) else ""
    bench.keep({s.text for s in turns.sources})
    calls = [bench.checked(s) for s in turns.sources]
    right = [c for c in calls if not isinstance(c, str)]
    times = bench.in_turns([bench.call, *right], turns.rounds, turns.turn)
    rest = iter(times[1:])
    return Timed(times[0], tuple(c if isinstance(c, str) else next(rest) for c in calls))


def _bench(setup: Setup) -> _Bench:
    if setup.key not in _BENCHES:
        _BENCHES.clear()  # arrays may be large
        _BENCHES[setup.key] = _Bench(setup)
    return _BENCHES[setup.key]
