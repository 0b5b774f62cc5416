"""``python -m benchmarks.gpu``: kernels on a GPU beside other libraries; see docs/gpu.md.

Every contender computes the same on the same arrays, which stay on the device.  Times are the
device's own, between events, with inputs that are not in its caches; results are first compared
with those of a CPU.  Each kernel and network has a fresh process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from benchmarks import commands, report
from benchmarks.gpu import goals, networks
from benchmarks.gpu.cases import FAMILIES, MODES, items
from benchmarks.gpu.clock import COPY, clock_of, copy_bandwidth
from benchmarks.gpu.peers import PEERS, GpuPeer
from benchmarks.gpu.worker import GpuSettings
from benchmarks.kernel import ELEMENT
from benchmarks.results import Results, Row
from benchmarks.runner import one_process, processors
from benchmarks.suites import Item
from benchmarks.task import UnavailableError
from benchmarks.worker import Job
from poly.errors import ArgumentError, FarkasError
from runtime.find_device import find_device
from runtime.gpu.device_names import read_name

#: Bytes that are copied to measure the bandwidth, on a device that is not a GPU.
TINY_COPY = 1 << 20
QUICK = GpuSettings(rounds=2, samples=5)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    add = found.add_argument
    add("--device", default="cuda", help="as for fk.compile: cuda, cuda:1, opencl, …")
    add("--dtype", nargs="+", choices=list(MODES), help="default: all that the device has")
    commands.add_selection(found, [n for n in PEERS if n != "farkas"], FAMILIES, fewest="*")
    add("--processes", type=int, default=1, help="fresh processes for each kernel (1)")
    add("--quick", action="store_true", help="fewer samples")
    add("--tiny", action="store_true", help="other kernels, for devices that are not GPUs")
    commands.add_results(found, "STEM-DTYPE")
    return found


def main() -> int:
    args = parser().parse_args()
    console = commands.make_console()
    shown, earlier = commands.load_results(args)
    if shown is not None:
        report.finish(shown, earlier, args.plot, console, goals.show)
        return 0
    chosen = items(args.tiny, args.only, args.family or FAMILIES)
    if args.list:
        for item in chosen:
            figures = f"{item.flops / 1e9:10.3f} GF {item.bytes / 1e6:9.3f} MB"
            console.print(f"{item.family:<12} {figures}  {item.name}")
        return 0
    if not chosen:
        print("error: nothing matches", file=sys.stderr)
        return 2
    commands.make_folders(args)
    settings = QUICK if args.quick else GpuSettings()
    settings = replace(settings, tiny=args.tiny)
    try:
        results = _begin(args, settings, console)
        modes = _modes(args, console)
    except (FarkasError, ImportError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="farkas-bench-") as folder:
        for mode in modes:
            for item in chosen:
                if item.family not in MODES[mode].families:
                    continue
                row = _measure(item, mode, args, settings, results, Path(folder))
                results.rows.append(row)
                console.print(commands.line(row, f"{mode} {row.name}"))
                if args.json:
                    results.save(args.json)
    report.finish(results, earlier, args.plot, console, goals.show)
    return 1 if any("farkas" in r.failures for r in results.rows) else 0


def _modes(args: argparse.Namespace, console: Console) -> list[str]:
    """The requested modes, by default all that the device supports.

    Raises
    ------
    ArgumentError : the device does not support a requested mode.
    """
    found = []
    for mode in args.dtype or MODES:
        try:
            if MODES[mode].rounds:
                find_device(f"{args.device},tf32")
            found.append(mode)
        except ArgumentError as error:
            if args.dtype:
                raise
            console.print(Text(f"without {mode}: {error}"))
    return found


def _begin(args: argparse.Namespace, settings: GpuSettings, console: Console) -> Results:
    """The results to fill: the contenders, and the device.

    Raises
    ------
    FarkasError : there is no such device, or something it needs is missing.
    ImportError : the library with the device's clock is missing.
    """
    named = read_name(args.device)
    if named.rounded:
        raise ArgumentError(f"--device {args.device}: use --dtype tf32 instead")
    device, kind = find_device(args.device), named.kind

    def wanted(peer: GpuPeer) -> bool:
        chosen = peer.ours or args.peers is None or peer.name in args.peers
        return kind in peer.kinds and chosen

    versions, missing = commands.taking_part(PEERS, wanted)
    name = repr(device).strip("<>")
    about = commands.about(settings.as_dict(), device=name, machine=str(device.machine))
    rate = copy_bandwidth(device, clock_of(device), TINY_COPY if settings.tiny else COPY)
    results = Results({**about, "copy_bandwidth": rate}, versions, missing, {})
    commands.announce(results, (name, str(results.copies)), console)
    return results


def _measure(
    item: Item,
    mode: str,
    args: argparse.Namespace,
    settings: GpuSettings,
    results: Results,
    folder: Path,
) -> Row:
    """Measure one kernel or network in fresh processes."""
    count = item.bytes * np.dtype(MODES[mode].element).itemsize // ELEMENT
    threads = len(os.sched_getaffinity(0))
    row = Row(mode, item.name, item.family, threads, item.flops, count)
    path = None
    if item.family == "network":
        try:
            path = str(networks.write(item.name, folder))
        except UnavailableError as reason:
            row.failures |= dict.fromkeys(results.versions, str(reason))
            return row
    job = Job(
        mode, item.name, threads, processors(threads), tuple(results.versions), "", path,
        module="benchmarks.gpu.worker", device=args.device, settings=settings.as_dict(),
    )  # fmt: skip
    for number in range(args.processes):
        left = tuple(p for p in job.peers if p not in row.failures)
        one_process(replace(job, number=number, peers=left), row, folder, lambda text: None)
    return row


if __name__ == "__main__":
    sys.exit(main())
