"""The parent process: starts a fresh process for every computation, and collects its report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Settings
from benchmarks.results import OURS, Row
from benchmarks.suites import Item, models_of
from benchmarks.task import UnavailableError
from benchmarks.worker import Job

ROOT = Path(__file__).resolve().parent.parent

#: Seconds after which a process is killed.
TIMEOUT = 1800.0
_TOOK_LONGER = f"it took longer than {TIMEOUT:.0f} s"


@dataclass(frozen=True)
class Plan:
    """The settings of all measurements.

    Attributes
    ----------
    peers : contenders, in order
    processes : fresh processes for each computation
    prune : peers that were slower than this many times the best are not measured again
    settings : of each process
    folder : for caches and files of networks during the run
    memory : whether the peak memory of networks is measured
    """

    peers: tuple[str, ...]
    processes: int
    prune: float
    settings: Settings
    folder: Path
    memory: bool = True


def measure_item(
    item: Item, threads: int, plan: Plan, tell: Callable[[str], None] = lambda text: None
) -> Row:
    """Measure one computation in fresh processes."""
    row = Row(item.suite, item.name, item.family, threads, item.flops, item.bytes)
    path = None
    models = models_of(item.suite)
    if models is not None:
        tell(f"{item.name}: making weights")
        try:
            path = str(models.write(item.name, plan.folder))
        except UnavailableError as reason:
            row.failures |= dict.fromkeys(plan.peers, str(reason))
            return row
    job = Job(
        item.suite, item.name, threads, processors(threads), plan.peers, "", path,
        settings=plan.settings.as_dict(),
    )  # fmt: skip
    for number in range(plan.processes):
        left = tuple(p for p in plan.peers if p not in row.failures)
        peers = _worth_it(row, left, plan.prune) if number else left
        one_process(replace(job, number=number, peers=peers), row, plan.folder, tell)
    if models is not None and plan.memory:
        for name in row.times:
            tell(f"{item.name}: memory of {name}")
            lines, _ = start(replace(job, peers=(name,), settings=None), plan.folder)
            for line in lines:
                if "memory" in line:
                    row.memory[name] = line["memory"]
    return row


def _worth_it(row: Row, peers: Sequence[str], prune: float) -> tuple[str, ...]:
    """Farkas, and the peers that were not far slower than the best."""
    best = row.best_peer
    limit = prune * (row.median(best) or 0.0) if best else float("inf")
    return tuple(p for p in peers if p in OURS or (row.median(p) or float("inf")) <= limit)


def one_process(job: Job, row: Row, folder: Path, tell: Callable[[str], None]) -> None:
    """Run a job, and again without any contender that kills the process; `row` gets the report."""
    while job.peers:
        tell(f"{job.name}: process {job.number + 1}, {job.threads} threads")
        lines, death = start(job, folder)
        for line in lines:
            if "prepared" in line:
                row.compile.setdefault(line["prepared"], []).append(line["seconds"])
                if line.get("weights") is not None:
                    row.weights[line["prepared"]] = line["weights"]
                if line["difference"] is not None:
                    row.differences[line["prepared"]] = line["difference"]
            elif "failed" in line:
                row.failures[line["failed"]] = line["message"]
            elif "peak" in line:
                row.memory[line["peak"]] = line["memory"]
            elif "times" in line:
                for name, seconds in line["times"].items():
                    row.times.setdefault(name, []).append(seconds)
        if death is None:
            return
        at = next((line["at"] for line in reversed(lines) if "at" in line), "start")
        taken = {x["prepared"]: x["seconds"] for x in lines if "prepared" in x}
        if at == "timing" and death == _TOOK_LONGER and taken:
            # Too little time was left: the others get more without the contender that took most.
            at = max(taken, key=lambda name: taken[name])
            death = f"{death}, of which {taken[at]:.0f} s until its first call"
        if at not in job.peers:
            for name in job.peers:
                row.failures.setdefault(name, f"the process died at {at}: {death}")
            return
        row.failures.setdefault(at, f"the process died: {death}")
        job = replace(job, peers=tuple(p for p in job.peers if p not in row.failures))


def start(job: Job, folder: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Run one process; returns the lines of its report, and why it died if it did."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        report = Path(work, "report")
        report.touch()
        order = Path(work, "job.json")
        order.write_text(replace(job, report=str(report)).to_json())
        process = subprocess.Popen(
            [sys.executable, "-m", job.module, str(order)],
            cwd=ROOT,
            env=environment(job.threads, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
            death = None if process.returncode == 0 else _death(process.returncode, errors)
        except subprocess.TimeoutExpired:
            _end(process)
            death = _TOOK_LONGER
        except BaseException:
            _end(process)
            raise
        return [json.loads(line) for line in report.read_text().splitlines()], death


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that was started here, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _death(code: int, errors: str) -> str:
    """The cause of a process's end, as text."""
    last = next((x for x in reversed(errors.splitlines()) if x.strip()), "")
    if code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}: {last[:300]}"


def environment(threads: int, folder: Path) -> dict[str, str]:
    """The environment of a process: its thread count for libraries, and caches of our own."""
    count = str(threads)
    # One for each number of threads, so that every first process finds them empty.
    caches = {
        "FARKAS_CACHE_DIR": f"farkas-{threads}",
        "TORCHINDUCTOR_CACHE_DIR": f"inductor-{threads}",
    }
    for name in caches.values():
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "PJRT_NPROC": count,
        "NPROC": count,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **{variable: str(folder / name) for variable, name in caches.items()},
    }


def processors(threads: int) -> tuple[int, ...]:
    """This many processors that the process may use, on different cores as far as possible.

    Raises
    ------
    ValueError : there are too few.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise ValueError(f"{threads} threads were requested, but there are {len(allowed)}")
    first: dict[str, int] = {}
    for number in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            core = siblings.read_text()
        except OSError:
            core = str(number)
        first.setdefault(core, number)
    rest = [n for n in allowed if n not in first.values()]
    return tuple([*first.values(), *rest][:threads])


def commit() -> str:
    """The commit of the checkout, with a + if it was changed; empty where there is none."""
    try:
        line = ("git", "describe", "--always", "--dirty=+", "--abbrev=12")
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
