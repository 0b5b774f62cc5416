"""``python -m benchmarks.gpu``: kernels on a GPU beside other libraries; see docs/gpu.md.

Everybody computes the same on the same arrays, which stay on the device.  What is timed is the
device's own time between events, with inputs that are not in its caches; results are compared with
numpy's first.  Each kernel has a fresh process.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks import commands, report
from benchmarks.gpu.cases import FAMILIES, TOLERANCE, suite
from benchmarks.gpu.peers import PEERS, GpuPeer
from benchmarks.gpu.worker import GpuSettings
from benchmarks.kernel import Kernel
from benchmarks.results import Results, Row
from benchmarks.runner import one_process, processors
from benchmarks.worker import Job
from poly.errors import FarkasError
from runtime.devices import find_device

QUICK = GpuSettings(rounds=2, samples=5)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    add = found.add_argument
    add("--device", default="cuda", help="as fk.compile calls it: cuda, cuda:1, opencl, …")
    add("--dtype", nargs="+", choices=list(TOLERANCE), default=list(TOLERANCE))
    commands.add_selection(found, [n for n in PEERS if n != "farkas"], FAMILIES, fewest="*")
    add("--processes", type=int, default=1, help="fresh processes for each kernel (1)")
    add("--quick", action="store_true", help="fewer samples")
    add("--tiny", action="store_true", help="other kernels, for devices that are no GPU")
    commands.add_results(found, "STEM-DTYPE")
    return found


def main() -> int:
    args = parser().parse_args()
    console = commands.make_console()
    if args.show:
        report.finish(Results.load(args.show), args.compare, args.plot, console)
        return 0
    kernels = [k for k in suite(args.tiny) if re.search(args.only, k.name) and k.text is not None]
    kernels = [k for k in kernels if not args.family or k.family in args.family]
    if args.list:
        for k in kernels:
            figures = f"{k.flops / 1e9:10.3f} GF {k.bytes / 1e6:9.3f} MB"
            console.print(f"{k.family:<12} {figures}  {k.name}")
        return 0
    if not kernels:
        print("error: nothing matches", file=sys.stderr)
        return 2
    commands.make_folders(args)
    settings = QUICK if args.quick else GpuSettings()
    settings = replace(settings, tiny=args.tiny)
    try:
        results = _begin(args, settings, console)
    except FarkasError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="farkas-bench-") as folder:
        for dtype in args.dtype:
            for kernel in kernels:
                row = _measure(kernel, dtype, args, settings, results, Path(folder))
                results.rows.append(row)
                console.print(commands.line(row, f"{dtype} {row.name}"))
                if args.json:
                    results.save(args.json)
    report.finish(results, args.compare, args.plot, console)
    return 1 if any("farkas" in r.failures for r in results.rows) else 0


def _begin(args: argparse.Namespace, settings: GpuSettings, console: Console) -> Results:
    """Who takes part, and on what.

    Raises
    ------
    FarkasError : there is no such device, or something missing that it needs.
    """
    device = find_device(args.device)
    kind = args.device.partition(":")[0]

    def wanted(peer: GpuPeer) -> bool:
        chosen = peer.ours or args.peers is None or peer.name in args.peers
        return kind in peer.kinds and chosen

    versions, missing = commands.taking_part(PEERS, wanted)
    name = repr(device).strip("<>")
    about = commands.about(settings.as_dict(), device=name, machine=str(device.machine))
    results = Results(about, versions, missing, {})
    commands.announce(results, (name,), console)
    return results


def _measure(
    kernel: Kernel,
    dtype: str,
    args: argparse.Namespace,
    settings: GpuSettings,
    results: Results,
    folder: Path,
) -> Row:
    """One kernel in fresh processes."""
    count = kernel.bytes if dtype == "float32" else kernel.bytes // 2
    threads = len(os.sched_getaffinity(0))
    row = Row(dtype, kernel.name, kernel.family, threads, kernel.flops, count)
    job = Job(
        dtype, kernel.name, threads, processors(threads), tuple(results.versions), "",
        module="benchmarks.gpu.worker", device=args.device, settings=settings.as_dict(),
    )  # fmt: skip
    for number in range(args.processes):
        left = tuple(p for p in job.peers if p not in row.failures)
        one_process(replace(job, number=number, peers=left), row, folder, lambda text: None)
    return row


if __name__ == "__main__":
    sys.exit(main())
