"""`tune_onnx`: search for faster schedules of a network's kernels."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farkas.console.display import seconds
from farkas.networks.compile_onnx import compile_onnx
from farkas.networks.network import Network
from farkas.targets.base import Target
from farkas.targets.find_target import CacheLike, CompilerLike
from farkas.tuning.job import Job, Tell, check_budget, job_of
from farkas.tuning.measurer import Comparison
from farkas.tuning.tune_program import Tuned, tune_once
from poly.errors import ArgumentError
from poly.ir.graph import Call
from runtime.common.random_arrays import random_array
from runtime.tuned.record import Winner

#: Seconds for a kernel, at least: with less, nothing is found.
SLICE = 8.0
#: Kernels with a smaller share of the network's time are left as they are.
SHARE = 0.02
#: Rounds in which the network is compared with what it was, and the least calls of each.
LEAST_ROUNDS, MOST_ROUNDS, LEAST_CALLS = 12, 40, 3
#: What counts as faster, as a whole: each kernel is by more, the others take the same time.
WHOLE = 0.98
#: Seconds of a network's calls in a round, and of all rounds, where that is more.
TURN, COMPARING = 0.02, 2.0


@dataclass(frozen=True)
class TunedKernelOf:
    """A kernel of a network.

    origin : its first node; count : calls; share : of the network's time, on one thread
    """

    origin: str
    count: int
    share: float
    found: Tuned


@dataclass(frozen=True)
class TunedNetwork:
    """A network whose kernels were tuned.

    network : compiled with the fastest schedules
    kernels : those that were tuned, the one with the largest share first
    before, after : seconds of a run, with automatic schedules and with these
    kept : whether it is faster as a whole; if not, its kernels keep their automatic schedules
    """

    network: Network
    kernels: tuple[TunedKernelOf, ...]
    before: float
    after: float
    kept: bool

    @property
    def gain(self) -> float:
        """How many times as fast the network is."""
        return self.before / self.after if self.kept else 1.0

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Write the best times over trials and over seconds to a file, as PNG or SVG.

        Raises
        ------
        ArgumentError : the name ends in neither .png nor .svg, or matplotlib is missing.
        FileError : the file cannot be written.
        """
        from farkas.views.tuning import save_plot

        return save_plot({k.origin: k.found for k in self.kernels}, path)

    def __str__(self) -> str:
        lines = [
            f"{k.share:5.1%}  {k.count:3} x  {_outcome(k.found.winner):<28} {k.origin}"
            for k in self.kernels
        ]
        whole = f"the network: {seconds(self.before)} to {seconds(self.after)}"
        if not self.kept:
            whole += "; this is no gain, so the automatic schedules stay"
        return "\n".join([*lines, whole])


def _outcome(winner: Winner) -> str:
    if not winner.script:
        return f"{seconds(winner.automatic)}, not beaten"
    return f"{seconds(winner.automatic)} to {seconds(winner.seconds)} ({winner.gain:.2f})"


def tune_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    *,
    budget: float = 180.0,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    again: bool = False,
    seed: int = 0,
    target: str | Target = "cpu",
    cc: CompilerLike = None,
    cache: CacheLike = None,
    progress: Tell | None = None,
    executor: Executor | None = None,
) -> TunedNetwork:
    """Search for faster schedules of a network's kernels; `compile_onnx` finds them from then on.

    Kernels get time by their share of the network's.  In the end the whole network is compared with
    what it was, and keeps its automatic schedules if it is not faster.

    Parameters
    ----------
    source, threads, shapes, target, cc, cache : as for `compile_onnx`; all shapes have to be fixed
    budget : seconds
    again, seed, progress, executor : as for `farkas.tune`

    Raises
    ------
    ArgumentError : shapes are open.
    TuningError : a budget that makes no sense.
    ModelError, ToolchainError, CacheError : as for `compile_onnx`.
    """
    end = time.monotonic() + check_budget(budget)
    compiled = _compiler(source, threads, shapes, target, cc, cache)
    before = compiled()
    if not before.is_whole:
        raise ArgumentError(
            "kernels of open sizes are not tuned: fix them with shapes={…}, as in "
            "shapes={'batch': 1}"
        )
    tell = progress or (lambda _: None)
    found: list[TunedKernelOf] = []
    kernels = _kernels(before)
    for n, kernel in enumerate(kernels):
        job = kernel.job(before.origin.target)
        left = end - time.monotonic()
        rest = sum(k.share for k in kernels[n:])
        own = max(SLICE, left * kernel.share / rest)
        if own > left:
            break
        tuned = tune_once(job, own, seed, None, tell, again, executor)
        found.append(TunedKernelOf(kernel.origin, kernel.count, kernel.share, tuned))
    after = compiled()
    compared = _compare(before, after)
    kept = compared.is_faster(WHOLE)
    if not kept and any(k.found.winner.script for k in found):
        assert job.file is not None, "what won was timed"
        job.file.add([replace(k.found.winner, script="", point=None) for k in found])
        after = compiled()
    return TunedNetwork(after, tuple(found), compared.seconds(0), compared.seconds(1), kept)


def _compiler(*given: Any) -> Callable[[], Network]:
    source, threads, shapes, target, cc, cache = given

    def compiled() -> Network:
        return compile_onnx(
            source, threads=threads, shapes=shapes, target=target, cc=cc, cache=cache
        )

    return compiled


@dataclass(frozen=True)
class _Kernel:
    """Calls of one kernel."""

    call: Call
    count: int
    share: float

    @property
    def origin(self) -> str:
        return self.call.origin

    def job(self, target: Target) -> Job:
        return job_of(self.call.program, False, {}, target, is_call=True)


def _kernels(network: Network) -> list[_Kernel]:
    """The kernels that are worth tuning, the one with the largest share of the time first."""
    model = network.compiled[0]
    timings = network.profile(_inputs(network))
    whole = sum(t.seconds for t in timings)
    calls = [n for n in model.graph.nodes if isinstance(n, Call)]
    by_origin = {c.origin: c for c in calls}
    alike: dict[str, list[tuple[Call, float]]] = {}
    for t in timings:
        call = by_origin.get(t.origin)
        if call is not None:
            alike.setdefault(call.program.form.digest, []).append((call, t.seconds))
    found = [
        _Kernel(same[0][0], len(same), sum(s for _, s in same) / whole) for same in alike.values()
    ]
    return sorted((k for k in found if k.share >= SHARE), key=lambda k: -k.share)


def _inputs(network: Network) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {p.name: random_array(rng, p.dtype.numpy, tuple(p.at({}))) for p in network.inputs}


def _compare(before: Network, after: Network) -> Comparison:
    """Seconds of both networks, in turns."""
    inputs = _inputs(before)
    after.run(inputs)
    once = min(_seconds(before, inputs) for _ in range(LEAST_CALLS))
    calls = max(LEAST_CALLS, round(TURN / once))
    count = min(MOST_ROUNDS, max(LEAST_ROUNDS, round(COMPARING / (2 * calls * once))))
    rounds = [tuple(_round(before, after, inputs, n, calls)) for n in range(count)]
    half = count // 2
    return Comparison((tuple(rounds[:half]), tuple(rounds[half:])))  # type: ignore[arg-type]


def _round(
    before: Network, after: Network, inputs: Mapping[str, Any], number: int, calls: int
) -> Iterator[float]:
    took: dict[int, float] = {}
    pair = list(enumerate((before, after)))
    for which, network in pair if number % 2 == 0 else reversed(pair):
        network.run(inputs)
        took[which] = statistics.median(_seconds(network, inputs) for _ in range(calls))
    yield took[0]
    yield took[1]


def _seconds(network: Network, inputs: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    network.run(inputs)
    return time.perf_counter() - start
