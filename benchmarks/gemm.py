"""GEMM with the automatic schedule beside numpy, in one run.

    python benchmarks/gemm.py [--threads 2] [--processes 3] [sizes …]

Each size is measured in fresh processes, alternating the two, with a pause before each so that
no idle thread pool of the other still spins.  The table gives medians and the ratio of times
(below 1: Farkas is faster).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable


def measure(size: int, threads: int, rounds: int = 5, calls: int = 9) -> dict[str, float]:
    """Median seconds of one call of each, over alternating rounds, in this process."""
    import numpy as np

    import farkas as fk

    rng = np.random.default_rng(0)
    a = rng.standard_normal((size, size), dtype=np.float32)
    b = rng.standard_normal((size, size), dtype=np.float32)
    kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]", threads=threads)
    error = float(np.abs(kernel(a, b) - a @ b).max() / np.abs(a @ b).max())
    if error > 1e-4:
        raise SystemExit(f"wrong result: relative error {error:.1e}")
    contenders: dict[str, Callable[[], object]] = {
        "farkas": lambda: kernel(a, b),
        "numpy": lambda: a @ b,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        order = list(contenders) if turn % 2 == 0 else list(contenders)[::-1]
        for name in order:
            time.sleep(0.1)
            contenders[name]()
            for _ in range(calls):
                start = time.perf_counter()
                contenders[name]()
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="GEMM beside numpy, medians and ratios")
    parser.add_argument("sizes", nargs="*", type=int, default=[512, 1024, 2048])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.threads)))
        return
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(args.threads)}
    print(f"{'size':>6} {'farkas ms':>10} {'numpy ms':>10} {'ratio':>7}   ({args.threads} threads)")
    for size in args.sizes:
        runs = []
        for _ in range(args.processes):
            command = [sys.executable, __file__, "--one", str(size), "--threads", str(args.threads)]
            out = subprocess.run(command, env=environment, capture_output=True, check=True)
            runs.append(json.loads(out.stdout))
        farkas = statistics.median(r["farkas"] for r in runs)
        numpy = statistics.median(r["numpy"] for r in runs)
        ratio = statistics.median(r["farkas"] / r["numpy"] for r in runs)
        print(f"{size:>6} {farkas * 1e3:>10.2f} {numpy * 1e3:>10.2f} {ratio:>7.2f}")


if __name__ == "__main__":
    main()
