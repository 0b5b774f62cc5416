"""Goals of the project for narrow types, compared with the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.results import Results, Row, geomean

#: The suites of these goals.
SUITES = ("narrow", "narrow-networks")
#: How a message begins where Farkas says that it cannot compile something yet.
REFUSALS = ("UnsupportedModelError", "UnsupportedError", "the process died: it took longer")

PRODUCTS = ("matmul", "custom")
CONVOLUTIONS = ("resnet50", "mbv2_pw", "mbv2_dw")
#: In family custom: neither a product of two factors nor a convolution.
_NEITHER = ("attn",)
_GROUPED = ("gconv",)


@dataclass(frozen=True)
class Goal:
    """A greatest ratio of Farkas's time to another.

    what : in the table
    suite, element : of the rows; an empty element means all
    kind : ``product``, ``convolution``, or empty for all rows
    beside_wide : the other time is that of Farkas on float32, not that of the best peer
    each : every row is to keep it, not only the geometric mean
    """

    what: str
    suite: str
    element: str
    kind: str
    beside_wide: bool
    wanted: float
    each: bool = False


GOALS = (
    Goal("int8 products, each", "narrow", "int8", "product", False, 1.0, True),
    Goal("int8 convolutions, each", "narrow", "int8", "convolution", False, 1.0, True),
    *(Goal(f"kernels in {e}", "narrow", e, "", False, 0.9)
      for e in ("int8", "bfloat16", "float16")),
    Goal("all kernels", "narrow", "", "", False, 0.9),
    Goal("int8 products over float32", "narrow", "int8", "product", True, 0.40),
    Goal("int8 convolutions over float32", "narrow", "int8", "convolution", True, 0.40),
    Goal("bfloat16 products over float32", "narrow", "bfloat16", "product", True, 0.65),
    Goal("float16 over float32, each", "narrow", "float16", "", True, 1.05, True),
    Goal("networks", "narrow-networks", "", "", False, 0.95),
    Goal("networks, each", "narrow-networks", "", "", False, 1.2, True),
)  # fmt: skip


def kind(row: Row) -> str:
    """``product``, ``convolution``, or empty, of a row of a kernel."""
    family = row.family.partition(" ")[0]
    if row.name.startswith(_GROUPED) or family in CONVOLUTIONS:
        return "convolution"
    return "product" if family in PRODUCTS and not row.name.startswith(_NEITHER) else ""


def rows_of(goal: Goal, results: Results) -> list[Row]:
    """The rows that a goal is about."""
    rows = [r for r in results.rows if r.suite == goal.suite]
    if goal.suite == "narrow":
        rows = [r for r in rows if goal.element in ("", r.family.rpartition(" ")[2])]
        rows = [r for r in rows if not goal.kind or kind(r) == goal.kind]
    return rows


def ratios(goal: Goal, results: Results) -> dict[str, float]:
    """The ratios by row; rows without measurements are left out."""
    found = {}
    for row in rows_of(goal, results):
        ratio = row.narrowness if goal.beside_wide else row.ratio
        if ratio is not None:
            found[row.name] = ratio
    return found


def table(results: Results, goals: Sequence[Goal] = GOALS) -> Table:
    """A line for each goal that rows are about.

    What Farkas does not compile, or gets wrong, is counted as missing: then a goal is not met.
    """
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("goals", no_wrap=True)
    for heading in ("beside", "measured", "missing", "wanted", "mean", "worst", "kept by", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("worst of", no_wrap=True)
    for goal in goals:
        rows = rows_of(goal, results)
        if not rows:
            continue
        found = ratios(goal, results)
        missing = sum(row.median(row.ours) is None for row in rows)
        beside = "float32" if goal.beside_wide else "the best"
        cells = [goal.what, beside, str(len(found)), str(missing), f"{goal.wanted:.2f}"]
        mean = geomean(found.values())
        if mean is None:
            verdict = Text("missed", "red") if missing else Text("not measured")
            shown.add_row(*cells, "", "", "", verdict, "")
            continue
        worst = max(found, key=found.__getitem__)
        met = not missing and (found[worst] if goal.each else mean) <= goal.wanted
        verdict = Text("met" if met else "missed", "green" if met else "red")
        kept = f"{sum(r <= goal.wanted for r in found.values())}/{len(found)}"
        shown.add_row(*cells, f"{mean:.2f}", f"{found[worst]:.2f}", kept, verdict, Text(worst))
    return shown


def show(results: Results, console: Console) -> None:
    """Print the goals that were measured; none for other suites."""
    shown = table(results)
    if shown.row_count:
        console.print()
        console.rule("goals for narrow types: Farkas's time over another", align="left")
        console.print(shown)
