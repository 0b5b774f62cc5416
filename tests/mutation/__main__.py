"""``python -m tests.mutation [--count N] [--seed N] …``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.judge import BAD, Judge, Outcome
from tests.mutation.mutants import Mutant, mutants


def main() -> int:
    """Make mutants, judge them, and print what no mutant may do, and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep all outcomes")
    parser.add_argument("--only", type=int, nargs="+", help="the mutants of these numbers")
    parser.add_argument("--work", type=Path, help="keep downloaded packages and the cache here")
    parser.add_argument("--keep", type=Path, help="write the mutants as files to this folder")
    parser.add_argument("--sanitize", action="store_true", help="run what runs under sanitizers")
    arguments = parser.parse_args()
    numbers = arguments.only or range(arguments.count)
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        every = mutants(arguments.seed, numbers, folder_in(work, "packages"))
        outcomes = run(every, folder_in(work, "cache"), arguments)
    print(dict(Counter(o.kind for o in outcomes).most_common()))
    if arguments.json:
        told = [o.as_json() for o in sorted(outcomes, key=lambda o: o.number)]
        arguments.json.write_text(json.dumps(told, indent=1))
    return int(any(o.kind in BAD for o in outcomes))


def folder_in(work: Path, name: str) -> Path:
    """A folder of our own."""
    (work / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    return work / name


def run(every: Iterator[Mutant], cache: Path, arguments: argparse.Namespace) -> list[Outcome]:
    """Judge mutants with so many judges at once."""
    lock = threading.Lock()
    outcomes: list[Outcome] = []

    def work_off() -> None:
        with Judge(cache, sanitize=arguments.sanitize) as judge:
            while True:
                with lock:
                    mutant = next(every, None)
                if mutant is None:
                    return
                if arguments.keep:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    (arguments.keep / f"{mutant.number}.onnx").write_bytes(mutant.data)
                begin = time.perf_counter()
                outcome = judge(mutant)
                took = time.perf_counter() - begin
                with lock:
                    outcomes.append(outcome)
                    if outcome.kind in BAD or took > 15:
                        print(f"{len(outcomes)} ({took:.1f} s) {outcome}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for job in [pool.submit(work_off) for _ in range(arguments.jobs)]:
            job.result()
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
