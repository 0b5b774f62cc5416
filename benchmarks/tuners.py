"""``python -m benchmarks.tuners --tvm PYTHON``: tuned for as long as TVM's MetaSchedule is.

The workloads are TVM's own, see `benchmarks.tvm_workloads`.
Both tune on the same threads for the same time on the wall, one after the other; then the best of
each is called in turns, each in a process of its own, and the results are compared.

PYTHON is an interpreter that has ``apache-tvm[meta-schedule,popen-pool]``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import farkas as fk
from benchmarks.results import geomean
from benchmarks.tvm_workloads import Workload, workloads
from farkas.console.display import seconds
from runtime.common.arguments import default_threads

WORKER = Path(__file__).with_name("tvm_worker.py")
#: Processes of each in which both are timed, and seconds in each.
ROUNDS, TURN = 3, 0.4


class TvmError(Exception):
    """It raised, or crashed."""


@dataclass(frozen=True)
class Tvm:
    """TVM, in an interpreter of its own."""

    python: str
    threads: int

    def run(self, *words: object, limit: float | None = None) -> str:
        """What the worker prints last; "" if it was killed at the limit.

        Raises
        ------
        TvmError : it failed.
        """
        environment = {**os.environ, "TVM_NUM_THREADS": str(self.threads)}
        command = [self.python, str(WORKER), *map(str, words)]
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
            process.communicate()
            return ""
        if process.returncode:
            last = err.strip().rpartition("\n")[2]
            raise TvmError(f"TVM failed in {words[0]}, exit code {process.returncode}: {last}")
        return out.strip().rpartition("\n")[2]


def compare(w: Workload, tvm: Tvm, budget: float, folder: Path) -> float | None:
    """Tune a workload with both, print a line, and return our time over theirs; None if TVM has
    none."""
    began = time.monotonic()
    tuned = fk.tune(w.text, budget=budget, threads=tvm.threads)
    ours_took = time.monotonic() - began
    try:
        tvm.run("tune", w.name, w.number, folder, limit=budget)
        trials = json.loads(tvm.run("build", w.name, w.number, folder))["trials"]
    except TvmError as error:
        print(f"{w!s:<8} {error}", flush=True)
        return None
    if not trials:
        print(f"{w!s:<8} TVM measured nothing in {budget:.0f} s", flush=True)
        return None
    shapes = json.loads((folder / "shapes.json").read_text())
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes][:-1]
    kernel = tuned.kernel
    automatic = fk.compile(w.text, threads=tvm.threads, schedule="auto")
    arrays = [
        a.reshape([int(str(e)) for e in t.shape])
        for a, t in zip(given, kernel.program.inputs, strict=True)
    ]
    rounds: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        own = [_time(partial(k, *arrays)) for k in (kernel, automatic)]
        theirs = statistics.median(json.loads(tvm.run("time", folder, TURN)))
        rounds.append((own[0], own[1], theirs))
    expected, got = np.load(folder / "result.npy"), kernel(*arrays)
    limit = 1e-4 * float(np.abs(expected).max())
    same = float(np.abs(got.reshape(expected.shape) - expected).max()) <= limit
    ours, auto, theirs = (statistics.median(r[k] for r in rounds) for k in range(3))
    print(
        f"{w!s:<8} {seconds(ours):>8} {seconds(auto):>8} untuned {seconds(theirs):>8} TVM   "
        f"{ours / theirs:5.2f}  untuned {auto / theirs:5.2f}   {len(tuned.found.history)} and "
        f"{trials} schedules, {ours_took:.0f} and {budget:.0f} s{'' if same else '   DIFFERENT'}",
        flush=True,
    )
    return ours / theirs


def _time(call: Callable[[], object]) -> float:
    call()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - began < TURN:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.tuners", description=__doc__)
    add = parser.add_argument
    add("--tvm", required=True, metavar="PYTHON", help="an interpreter that has TVM")
    add("--budget", type=float, default=60.0, metavar="SECONDS", help="for each, and each tuner")
    add("--only", default="", metavar="RE", help="workloads that match, as in 'GMM|C2D 1'")
    args = parser.parse_args()
    tvm = Tvm(args.tvm, default_threads())
    found = []
    for w in workloads():
        if re.search(args.only, str(w)):
            with tempfile.TemporaryDirectory() as folder:
                found.append(compare(w, tvm, args.budget, Path(folder)))
    ratios = [r for r in found if r is not None]
    if ratios:
        print(f"geomean {geomean(ratios):.3f} of TVM's time, of {len(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
