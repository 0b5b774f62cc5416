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
from farkas.tuning.job import LEAST, Job, Tell, check_budget, job_of
from farkas.tuning.measurer import Comparison
from farkas.tuning.tune_program import Tuned, tune_once
from farkas.views.explain import figures_of, roofline
from poly.errors import ArgumentError
from poly.ir.graph import Call
from runtime.common.random_arrays import random_array
from runtime.tuned.record import Winner

#: Seconds for a kernel, at least: with less, nothing is found.
SLICE = 8.0
#: Kernels with a smaller share of the network's time are left as they are; and the part of a
#: kernel's time that may be gained, at least.
SHARE, LEAST_GAIN = 0.02, 0.1
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
    earlier : the record that it had, None if there was none
    """

    origin: str
    count: int
    share: float
    found: Tuned
    earlier: Winner | None = None

    @property
    def is_new(self) -> bool:
        """Whether a faster schedule was found, and not before."""
        return self.found.winner.script != "" and self.found.winner != self.earlier

    @property
    def withdrawn(self) -> Winner:
        """The record that makes its schedule what it was."""
        w = self.found.winner
        return self.earlier or replace(w, script="", point=None, seconds=w.automatic)


@dataclass(frozen=True)
class TunedNetwork:
    """A network whose kernels were tuned.

    network : compiled with the fastest schedules
    kernels : those that were tuned, the one with the most to gain first
    before, after : seconds of a run, with the schedules that it had and with these
    kept : whether it is faster as a whole; if not, its kernels keep the schedules that they had
    """

    network: Network
    kernels: tuple[TunedKernelOf, ...]
    before: float
    after: float
    kept: bool

    @property
    def gain(self) -> float:
        """How many times as fast as before the network is."""
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
        if not lines:
            lines = ["no kernel was tuned: there was no time left, or none takes 2 % of a run"]
        to = f" to {seconds(self.after)}" if self.kept else "; it keeps the schedules that it had"
        return "\n".join([*lines, f"the network: {seconds(self.before)}{to}"])


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

    Kernels get time by their share of the network's, and by how far they are from the machine's
    roofline.  In the end the whole network is compared with what it was, and keeps the schedules
    that it had if it is not faster.

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
    earlier = compiled()
    if not earlier.is_whole:
        raise ArgumentError(
            "kernels of open sizes are not tuned: fix them with shapes={…}, as in "
            "shapes={'batch': 1}"
        )
    tell = progress or (lambda _: None)

    def tuned(job: Job, seconds: float) -> Tuned:
        return tune_once(job, seconds, seed, None, tell, again, executor)

    found = tuple(_tune_kernels(earlier, end, tuned))
    new = [k for k in found if k.is_new]
    after, kept = compiled(), False
    try:
        compared = _compare(earlier, after)
        kept = bool(new) and compared.is_faster(WHOLE)
    finally:  # also after Ctrl-C: what was not compared may be slower
        if not kept:
            _withdraw(new, earlier.origin.target)
    if new and not kept:
        after = compiled()
    return TunedNetwork(after, found, compared.seconds(0), compared.seconds(1), kept)


def _tune_kernels(
    network: Network, end: float, tune: Callable[[Job, float], Tuned]
) -> Iterator[TunedKernelOf]:
    """Tune the kernels of a network one by one, until the time is over, or Ctrl-C.

    end : as `time.monotonic` says it; tune : a job, for so many seconds
    """
    kernels, target = _kernels(network), network.origin.target
    for n, kernel in enumerate(kernels):
        left = end - time.monotonic()
        if left < (SLICE if n else LEAST):
            return
        job = kernel.job(target)
        earlier = None if job.file is None else job.file.winner(job.key)
        own = left * kernel.weight / sum(k.weight for k in kernels[n:])
        try:
            found = tune(job, min(left, max(SLICE, own)))
        except KeyboardInterrupt:  # while its winner was confirmed
            return
        yield TunedKernelOf(kernel.origin, kernel.count, kernel.share, found, earlier)
        if found.interrupted:
            return


def _withdraw(kernels: Sequence[TunedKernelOf], target: Target) -> None:
    """Let kernels have the schedules that they had."""
    tuned = target.runner.tuned
    if kernels and tuned is not None:
        tuned.file.add([k.withdrawn for k in kernels])


def _compiler(*given: Any) -> Callable[[], Network]:
    source, threads, shapes, target, cc, cache = given

    def compiled() -> Network:
        return compile_onnx(
            source, threads=threads, shapes=shapes, target=target, cc=cc, cache=cache
        )

    return compiled


@dataclass(frozen=True)
class _Kernel:
    """Calls of one kernel.

    share : of the network's time; roof : the part of it that the machine's roofline allows, 0 if
        that is not known
    """

    call: Call
    count: int
    share: float
    roof: float = 0.0

    @property
    def weight(self) -> float:
        """What it has to gain: the roofline is not an exact limit, so something always."""
        return self.share * max(LEAST_GAIN, 1.0 - self.roof)

    @property
    def origin(self) -> str:
        return self.call.origin

    def job(self, target: Target) -> Job:
        return job_of(self.call.program, False, {}, target, is_call=True)


def _kernels(network: Network) -> list[_Kernel]:
    """The kernels that are worth tuning, the one with the most to gain first."""
    model = network.compiled[0]
    # A profile is of one thread.
    limit = roofline(1) if network.origin.target.runner.has_roofline else None
    timings = network.profile(_inputs(network))
    whole = sum(t.seconds for t in timings)
    alike: dict[str, list[tuple[Call, float]]] = {}
    for node, t in zip(model.nodes, timings, strict=True):
        if isinstance(node, Call):
            alike.setdefault(node.program.form.digest, []).append((node, t.seconds))
    found: list[_Kernel] = []
    for same in alike.values():
        call, took = same[0][0], sum(s for _, s in same)
        figures = figures_of(call.program, took / len(same), limit)
        found.append(_Kernel(call, len(same), took / whole, figures.share or 0.0))
    return sorted((k for k in found if k.share >= SHARE), key=lambda k: -k.weight)


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
