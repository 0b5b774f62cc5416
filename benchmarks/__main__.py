"""``python -m benchmarks``: measure, show, keep, compare."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchmarks import report
from benchmarks.measure import QUICK, Settings
from benchmarks.peers import PEERS
from benchmarks.results import OURS, OURS_IN, Results
from benchmarks.runner import Plan, commit, measure_item, processors
from benchmarks.suites import SUITES, Item, items_of
from poly.machine import host_machine
from runtime.roofline import measure as measure_roofline
from runtime.toolchain import cpu_identity, find_toolchain

#: Of tables that are written to a file.
_WIDTH = 250

_EPILOG = "suites: " + "; ".join(f"{name}: {what}" for name, what in SUITES.items())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("python -m benchmarks", description=__doc__, epilog=_EPILOG)
    add = found.add_argument
    add("--suite", nargs="+", choices=[*SUITES, "all"], default=["K", "E"])
    add("--threads", nargs="+", type=int, help="default: every processor")
    add("--only", metavar="REGEX", default="", help="names that match anywhere")
    add("--family", nargs="+", help="families, as the tables call them")
    add("--peers", nargs="+", choices=[n for n in PEERS if n not in OURS], metavar="PEER",
        help=f"of {', '.join(n for n in PEERS if n not in OURS)}; default: all")  # fmt: skip
    add("--processes", type=int, help="fresh processes for each computation (3; quick: 1)")
    add("--quick", action="store_true", help="one process, short turns, no inductor")
    add("--prune", type=float, default=2.0, metavar="TIMES",
        help="after the first process, leave out peers so many times slower than the best",
    )  # fmt: skip
    add("--no-memory", action="store_true", help="do not measure the memory of networks")
    add("--json", type=Path, metavar="FILE", help="keep the results")
    add("--plot", type=Path, metavar="STEM", help="write STEM-SUITE-tN.png and .svg")
    add("--compare", type=Path, metavar="FILE", help="compare with earlier results")
    add("--show", type=Path, metavar="FILE", help="measure nothing, show earlier results")
    add("--list", action="store_true", help="measure nothing, list what there is")
    return found


def main() -> int:
    args = parser().parse_args()
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDTH
    if args.show:
        report.finish(Results.load(args.show), args.compare, args.plot, console)
        return 0
    cores = len(os.sched_getaffinity(0))
    threads = args.threads or [cores]
    for count in threads:
        if not 1 <= count <= cores:
            print(f"error: {count} threads, but there are {cores} processors", file=sys.stderr)
            return 2
    names = list(SUITES) if "all" in args.suite else args.suite
    items = [i for n in names for i in items_of(n, args.only)]
    if args.family:
        items = [i for i in items if i.family in args.family]
    if args.list:
        for item in items:
            figures = f"{item.flops / 1e9:8.3f} GF {item.bytes / 1e6:9.3f} MB"
            console.print(f"{item.suite:<9} {item.family:<12} {figures}  {item.name}")
        return 0
    if not items:
        print("error: nothing matches", file=sys.stderr)
        return 2
    for path in (args.json, args.plot):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    results = _begin(args, threads, console)
    with tempfile.TemporaryDirectory(prefix="farkas-bench-") as folder:
        settings = QUICK if args.quick else Settings()
        plan = Plan(
            tuple(results.versions),
            args.processes or (1 if args.quick else 3),
            args.prune,
            settings,
            Path(folder),
            memory=not args.no_memory,
        )
        _measure(items, threads, plan, results, args.json, console)
    report.finish(results, args.compare, args.plot, console)
    wrong = [r for r in results.rows if any(n in OURS for n in r.failures)]
    return 1 if wrong else 0


def _begin(args: argparse.Namespace, threads: list[int], console: Console) -> Results:
    """Who takes part, and the roofline of an idle machine."""
    versions, missing = {}, {}
    for name, peer in PEERS.items():
        if name not in OURS and args.peers and name not in args.peers:
            continue
        if args.quick and not args.peers and name == "inductor":
            continue
        reason = peer.missing()
        if reason is None:
            versions[name] = peer.version()
        else:
            missing[name] = reason
    busy = os.getloadavg()[0]
    if busy > 0.5:
        console.print(f"warning: the machine is busy (load {busy:.1f}); wait, or trust nothing")
    machine = host_machine()
    rooflines = {}
    for count in threads:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, processors(count))
        try:
            rooflines[count] = measure_roofline(count)
        finally:
            os.sched_setaffinity(0, before)
        console.print(f"roofline, {rooflines[count]}")
    about = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "processor": cpu_identity(),
        "machine": str(machine),
        "compiler": str(find_toolchain()).partition(" at ")[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": commit(),
        "load": busy,
        "settings": asdict(QUICK if args.quick else Settings()),
    }
    results = Results(about, versions, missing, rooflines)
    shown = ", ".join(f"{n} {v}" for n, v in versions.items() if n not in OURS[1:])
    console.print(Text(f"{about['machine']}; {about['compiler']}; {shown}"))
    report.missing(results, console)
    return results


def _measure(
    items: list[Item],
    threads: list[int],
    plan: Plan,
    results: Results,
    keep: Path | None,
    console: Console,
) -> None:
    """Fill the results, and keep them after every row."""
    status = Console(stderr=True)
    total, done = len(items) * len(threads), 0
    with status.status("measuring") as shown:
        for count in threads:
            for item in items:
                done += 1
                ours = OURS_IN.get(item.suite, OURS[:2])
                chosen = [p for p in plan.peers if p in ours or p not in OURS]
                if item.suite == "symbolic":
                    # Open and fixed sizes are compared with each other, not with peers.
                    chosen = [p for p in chosen if p in ours]

                def tell(text: str, done: int = done) -> None:
                    shown.update(f"{done}/{total} {text}")

                row = measure_item(item, count, replace(plan, peers=tuple(chosen)), tell)
                results.rows.append(row)
                if not console.is_terminal:
                    console.print(Text(f"{done}/{total} {_line(results, len(results.rows) - 1)}"))
                if keep:
                    results.save(keep)


def _line(results: Results, index: int) -> str:
    """One row in a line, while the table is not there yet."""
    row = results.rows[index]
    times = ", ".join(f"{n} {1e6 * (row.median(n) or 0):.1f}" for n in row.times)
    ratio = f"; ratio {row.ratio:.2f}" if row.ratio else ""
    failed = "".join(f"; {n} FAILED: {m}" for n, m in row.failures.items())
    return f"{row.name} ({row.threads} threads), µs: {times}{ratio}{failed}"


if __name__ == "__main__":
    sys.exit(main())
