"""Goals of the project for kernels on a GPU, compared with the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.results import BOUND_BY_MEMORY, Results, Row, geomean

#: In place of a peer: the speed of a copy on the device.
COPY = "copy"


@dataclass(frozen=True)
class Goal:
    """A minimum speed relative to a contender, as the geometric mean over families.

    mode : the suite of the rows; peer : a contender, or `COPY`
    """

    what: str
    mode: str
    families: tuple[str, ...]
    peer: str
    wanted: float


GOALS = (
    Goal("products beside cuBLAS", "float32", ("matmul",), "torch", 0.8),
    Goal("products beside cuBLAS", "float16", ("matmul",), "torch", 0.7),
    *(
        Goal("bound by memory, beside a copy", mode, BOUND_BY_MEMORY, COPY, 0.85)
        for mode in ("float32", "float16")
    ),
    *(
        Goal("fused einsums beside torch.compile", mode, ("custom",), "compile", 1.2)
        for mode in ("float32", "float16")
    ),
)


def rows_of(goal: Goal, results: Results) -> list[Row]:
    """The rows that a goal is about."""
    return [r for r in results.rows if r.suite == goal.mode and r.family in goal.families]


def speeds(goal: Goal, results: Results) -> dict[str, float]:
    """Farkas's relative speed by row; rows without measurements are left out."""
    found = {}
    for row in rows_of(goal, results):
        mine = row.median(row.ours)
        if goal.peer == COPY:
            copies = results.copies
            theirs = copies.seconds(row.flops, row.bytes) if copies else None
        else:
            theirs = row.median(goal.peer)
        if mine and theirs:
            found[row.name] = theirs / mine
    return found


def table(results: Results, goals: Sequence[Goal] = GOALS) -> Table:
    """A line for each goal: the goal and the measurement.

    A goal is judged by the measured rows only; "of" is the total number of computations.
    """
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("goals", "type"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("measured", "of", "wanted", "mean", "least", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("least of", no_wrap=True)
    for goal in goals:
        rows = rows_of(goal, results)
        if not rows:
            continue
        found = speeds(goal, results)
        mean = geomean(found.values())
        cells = [goal.what, goal.mode, str(len(found)), str(len(rows)), f"{goal.wanted:.2f}"]
        if mean is None:
            shown.add_row(*cells, "", "", "not measured", "")
            continue
        met = mean >= goal.wanted
        least = min(found, key=found.__getitem__)
        verdict = Text("met" if met else "missed", "green" if met else "red")
        shown.add_row(*cells, f"{mean:.2f}", f"{found[least]:.2f}", verdict, Text(least))
    return shown


def show(results: Results, console: Console) -> None:
    """Print the goals with results; none for small kernels, which have no goals."""
    shown = table(results)
    tiny = results.about.get("settings", {}).get("tiny", False)
    if shown.row_count and not tiny:
        console.print()
        console.rule("goals, in times the speed of whom they name", align="left")
        console.print(shown)
