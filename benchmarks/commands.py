"""Options and setup shared by the commands ``benchmarks`` and ``benchmarks.gpu``."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from benchmarks import report
from benchmarks.peers.base import Package
from benchmarks.results import Results, Row
from benchmarks.runner import commit

#: The width of tables that are written to a file.
WIDTH = 250

_Peer = TypeVar("_Peer", bound=Package)


def add_selection(
    parser: argparse.ArgumentParser,
    peers: Sequence[str],
    families: Sequence[str] | None = None,
    fewest: str = "+",
) -> None:
    """Add the options that select computations and peers.

    families : the known ones; None accepts any word
    fewest : number of peers, ``+`` for at least one and ``*`` for any
    """
    add = parser.add_argument
    add("--only", metavar="REGEX", default="", help="names that match anywhere")
    what = None if families else "families, as the tables call them"
    add("--family", nargs="+", choices=families, help=what)
    add("--peers", nargs=fewest, choices=peers, metavar="PEER",
        help=f"of {', '.join(peers)}; default: all")  # fmt: skip


def add_results(parser: argparse.ArgumentParser, stem: str) -> None:
    """Add the options for saving, plotting and comparing results.

    stem : the prefix of the names of pictures
    """
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="save the results")
    add("--plot", type=Path, metavar="STEM", help=f"write {stem}.png and .svg")
    add("--compare", type=Path, metavar="FILE", help="compare with earlier results")
    add("--show", type=Path, metavar="FILE", help="measure nothing, show earlier results")
    add("--list", action="store_true", help="measure nothing, list what there is")


def load_results(args: argparse.Namespace) -> tuple[Results | None, Results | None]:
    """Load the results to show, and those to compare with, before anything is measured.

    Raises
    ------
    SystemExit : with 2, after a message: a file cannot be read, or has no results.
    """
    found: list[Results | None] = []
    for path in (args.show, args.compare):
        try:
            found.append(None if path is None else Results.load(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"error: {path} has no results: {error}", file=sys.stderr)
            raise SystemExit(2) from None
    return found[0], found[1]


def make_console() -> Console:
    """The console for tables; wide where it is not a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def make_folders(args: argparse.Namespace) -> None:
    """Create the folders of the output files."""
    for path in (args.json, args.plot):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)


def taking_part(
    peers: Mapping[str, _Peer], wanted: Callable[[_Peer], bool]
) -> tuple[dict[str, str], dict[str, str]]:
    """The versions of the wanted and available contenders, and why the others are missing."""
    versions, missing = {}, {}
    for name, peer in peers.items():
        if wanted(peer):
            try:
                reason = peer.missing()
                version = peer.version() if reason is None else ""
            except Exception as error:  # installed but broken: a library is missing, say
                reason = f"{type(error).__name__}: {error}"
            if reason is None:
                versions[name] = version
            else:
                missing[name] = reason
    return versions, missing


def about(settings: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Identify a run: when, where, of which commit."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        **more,
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": commit(),
        "settings": dict(settings),
    }


def announce(
    results: Results, where: Iterable[str], console: Console, hidden: Sequence[str] = ()
) -> None:
    """Print where it runs and who takes part, except those that are `hidden`."""
    shown = ", ".join(f"{n} {v}" for n, v in results.versions.items() if n not in hidden)
    console.print(Text("; ".join([*where, shown])))
    report.missing(results, console)


def line(row: Row, head: str) -> Text:
    """One row as a line, printed before the table is complete."""
    times = ", ".join(f"{n} {1e6 * (row.median(n) or 0):.1f}" for n in row.times)
    ratio = f"; ratio {row.ratio:.2f}" if row.ratio else ""
    failed = "".join(f"; {n} FAILED: {m}" for n, m in row.failures.items())
    return Text(f"{head}, µs: {times}{ratio}{failed}")
