"""``python -m benchmarks``: measure, show, save and compare."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks import commands, report, tuned
from benchmarks.measure import QUICK, Settings
from benchmarks.narrow import goals
from benchmarks.peers import PEERS, Peer
from benchmarks.results import OURS, OURS_IN, Results, Row
from benchmarks.runner import Plan, measure_item, processors
from benchmarks.suites import SUITES, Item, items_of
from poly.machine.cpu import host_machine
from runtime.cpu.roofline import measure as measure_roofline
from runtime.cpu.toolchain import cpu_identity, find_toolchain

#: The suite of `benchmarks.compile_time`, which measures no calls.
COMPILE = "compile"
#: The suite of `benchmarks.tuned`, which has options of its own.
TUNED = "tuned"
_EPILOG = "suites: " + "; ".join(
    f"{name}: {what}"
    for name, what in {
        **SUITES,
        COMPILE: "how long networks take to compile, alone",
        TUNED: "what tuning gains, alone, with options of its own",
    }.items()
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("python -m benchmarks", description=__doc__, epilog=_EPILOG)
    add = found.add_argument
    add("--suite", nargs="+", choices=[*SUITES, COMPILE, "all"], default=["K", "E"])
    add("--threads", nargs="+", type=int, help="default: every processor")
    commands.add_selection(found, [n for n in PEERS if n not in OURS])
    add("--processes", type=int, help="fresh processes for each computation (3; quick: 1)")
    add("--quick", action="store_true", help="one process, short turns, no slow compilers")
    add("--prune", type=float, default=2.0, metavar="TIMES",
        help="after the first process, leave out peers this many times slower than the best",
    )  # fmt: skip
    add("--no-memory", action="store_true", help="do not measure the memory of networks")
    add("--against", type=Path, metavar="FOLDER",
        help="suite compile: another checkout, whose Farkas is measured in turns",
    )  # fmt: skip
    commands.add_results(found, "STEM-SUITE-tN")
    return found


def main() -> int:
    if sys.argv[1:3] == ["--suite", TUNED]:
        return tuned.main(sys.argv[3:])
    args = parser().parse_args()
    console = commands.make_console()
    if COMPILE in args.suite:
        return _compile(args, console)
    shown, earlier = commands.load_results(args)
    if shown is not None:
        report.finish(shown, earlier, args.plot, console, goals.show)
        return 0
    cores = len(os.sched_getaffinity(0))
    threads = args.threads or [cores]
    for count in threads:
        if not 1 <= count <= cores:
            print(f"error: {count} threads, but only {cores} processors", file=sys.stderr)
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
    commands.make_folders(args)
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
    report.finish(results, earlier, args.plot, console, goals.show)
    return 1 if any(map(_is_wrong, results.rows)) else 0


def _is_wrong(row: Row) -> bool:
    """Whether Farkas failed; what it refuses in suite narrow counts as missing there."""
    failures = [m for n, m in row.failures.items() if n in OURS]
    if row.suite in goals.SUITES:
        failures = [m for m in failures if not m.startswith(goals.REFUSALS)]
    return bool(failures)


def _compile(args: argparse.Namespace, console: Console) -> int:
    """Suite compile; raises SystemExit where it is asked for with another one."""
    from benchmarks.compile_time import run
    from benchmarks.compile_time.networks import networks

    cores = len(os.sched_getaffinity(0))
    threads = (args.threads or [cores])[0]
    against = args.against.resolve() if args.against else None
    problem = (
        "suite compile runs alone"
        if args.suite != [COMPILE]
        else f"{threads} threads, but only {cores} processors"
        if not 1 <= threads <= cores
        else f"{against} has no Farkas"
        if against and not (against / "farkas" / "__init__.py").is_file()
        else ""
    )
    try:
        shown, earlier = (run.load(p) if p else [] for p in (args.show, args.compare))
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"no earlier results: {error}"
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    if args.list:
        console.print("\n".join(n.name for n in networks()))
        return 0
    commands.make_folders(args)
    rows = shown
    if not rows:
        peers = [p for p in run.PEERS if p in (args.peers or run.PEERS)]
        peers = [p for p in peers if PEERS[p].missing() is None]
        rounds = args.processes or (1 if args.quick else 3)
        rows = run.measure(args.only, threads, rounds, peers, against, console)
    if args.json:
        run.save(rows, args.json)
    run.show(rows, earlier, console)
    return 1 if any({"farkas"} & r.failures.keys() for r in rows) else 0


def _begin(args: argparse.Namespace, threads: list[int], console: Console) -> Results:
    """The versions of the contenders, and the roofline of an idle machine."""

    def wanted(peer: Peer) -> bool:
        if args.peers:
            return peer.ours or peer.name in args.peers
        return not (peer.tunes or (args.quick and peer.is_slow))

    versions, missing = commands.taking_part(PEERS, wanted)
    busy = os.getloadavg()[0]
    if busy > 0.5:
        console.print(f"warning: the machine is busy (load {busy:.1f}): wait until it is idle")
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
    compiler = str(find_toolchain()).partition(" at ")[0]
    about = commands.about(
        (QUICK if args.quick else Settings()).as_dict(),
        processor=cpu_identity(),
        machine=str(machine),
        compiler=compiler,
        load=busy,
    )
    results = Results(about, versions, missing, rooflines)
    commands.announce(results, (str(machine), compiler), console, hidden=OURS[1:])
    return results


def _measure(
    items: list[Item],
    threads: list[int],
    plan: Plan,
    results: Results,
    keep: Path | None,
    console: Console,
) -> None:
    """Fill the results, and save them after every row."""
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
                    head = f"{done}/{total} {row.name} ({row.threads} threads)"
                    console.print(commands.line(row, head))
                if keep:
                    results.save(keep)


if __name__ == "__main__":
    sys.exit(main())
