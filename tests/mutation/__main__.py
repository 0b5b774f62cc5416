"""``python -m tests.mutation [--count N] [--seed N] [--jobs N] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.judge import BAD, Judge, Outcome
from tests.mutation.mutants import mutants


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
    arguments = parser.parse_args()
    numbers = arguments.only or range(arguments.count)
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        outcomes = run(arguments.seed, numbers, work, arguments.jobs, arguments.keep)
    print(dict(Counter(o.kind for o in outcomes).most_common()))
    if arguments.json:
        told = [o.as_json() for o in sorted(outcomes, key=lambda o: o.number)]
        arguments.json.write_text(json.dumps(told, indent=1))
    return int(any(o.kind in BAD for o in outcomes))


def run(
    seed: int, numbers: range | list[int], work: Path, jobs: int, keep: Path | None
) -> list[Outcome]:
    """Judge mutants with so many judges at once."""
    packages, cache = work / "packages", work / "cache"
    for folder in (packages, cache, *([keep] if keep else [])):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    every = mutants(seed, list(numbers), packages)
    lock = threading.Lock()
    outcomes: list[Outcome] = []

    def work_off() -> None:
        with Judge(cache) as judge:
            while True:
                with lock:
                    mutant = next(every, None)
                if mutant is None:
                    return
                if keep:
                    (keep / f"{mutant.number}.onnx").write_bytes(mutant.data)
                begin = time.perf_counter()
                outcome = judge(mutant)
                took = time.perf_counter() - begin
                with lock:
                    outcomes.append(outcome)
                    if outcome.kind in BAD or took > 15:
                        print(f"{len(outcomes)} ({took:.1f} s) {outcome}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(work_off) for _ in range(jobs)]:
            job.result()
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
