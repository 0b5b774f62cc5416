"""The results of quantising as text: a table of the nodes, and the network as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farkas.console.display import printable, seconds, size_text

#: With more rows, those that are alike share a line.
MOST_ROWS = 30
_MOST_NAMES = 3
_HEAD = f"{'error alone':>12} {'float32':>9} {'8 bits':>9} {'gain':>9}  {'stays':<8} nodes"


@dataclass(frozen=True)
class Row:
    """Nodes that one kernel computes in float32.

    nodes : operator and name of each; error : in percent, when they alone are quantised; together :
    the number of kernels that were quantised for that; wide, narrow : seconds in float32 and in 8
    bits; shared : whether kernels in 8 bits compute other nodes, too; kept : why they stay in
    float32, else empty
    """

    nodes: tuple[tuple[str, str], ...]
    error: float
    together: int
    wide: float
    narrow: float
    shared: bool
    kept: str = ""

    @property
    def operators(self) -> str:
        """The operators, each once."""
        return ", ".join(dict.fromkeys(operator for operator, _ in self.nodes))

    @property
    def label(self) -> str:
        """The first nodes by name."""
        shown = [f"{o} '{printable(n)}'" for o, n in self.nodes[:_MOST_NAMES]]
        more = len(self.nodes) - len(shown)
        return ", ".join([*shown, *([f"{more} more"] if more else [])])


def table(rows: Sequence[Row], every: bool = False) -> str:
    """A line for each row or, if these are many and not `every` one is wanted, for rows alike."""
    if every or len(rows) <= MOST_ROWS:
        lines = [_line(row, row.label) for row in rows]
    else:
        kept = sorted((r for r in rows if r.kept), key=lambda r: -r.error)[: MOST_ROWS // 2]
        lines = [_line(row, row.label) for row in kept]
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if row not in kept:
                groups.setdefault((row.operators, row.kept), []).append(row)
        for own in sorted(groups.values(), key=lambda g: -sum(r.wide for r in g)):
            count = f"{len(own)} kernels of " if len(own) > 1 else ""
            lines.append(_line(_sum(own), count + own[0].operators if count else own[0].label))
    return "\n".join([_HEAD, *lines, *_notes(rows)])


def change(before: float, after: float) -> str:
    """How the time of a run changes."""
    if after <= before:
        return f"{_time(before)} -> {_time(after)}, {before / after:.2f} times as fast"
    slower = 100 * (after / before - 1)
    return f"{_time(before)} -> {_time(after)}, slower by {slower:.0f} %"


def sizes(before: int, after: int) -> str:
    """How the size of the file changes."""
    return f"{size_text(before)} -> {size_text(after)}"


def percent(value: float) -> str:
    """A drop or an error with as many digits as matter."""
    return f"{value:.3g} %"


def _line(row: Row, label: str) -> str:
    gain = row.wide - row.narrow
    shown = f"{'-' if gain < 0 else ''}{_time(abs(gain))}"
    error = ("<= " if row.together > 1 else "") + percent(row.error)
    narrow = _time(row.narrow) + ("*" if row.shared else "")
    columns = f"{error:>12} {_time(row.wide):>9} {narrow:>9} {shown:>9}"
    return f"{columns}  {row.kept:<8} {label}"


def _time(value: float) -> str:
    """Seconds; kernels may be shorter than what `seconds` shows."""
    return f"{value * 1e6:.1f} µs" if value < 1e-5 else seconds(value)


def _sum(rows: Sequence[Row]) -> Row:
    return Row(
        rows[0].nodes,
        max(r.error for r in rows),
        max(r.together for r in rows),
        sum(r.wide for r in rows),
        sum(r.narrow for r in rows),
        any(r.shared for r in rows),
        rows[0].kept,
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = ["times are of one thread; nodes of a line are one kernel in float32"]
    if any(r.shared for r in rows):
        notes.append("* a kernel in 8 bits computes nodes of several lines; its time is divided")
    if any(r.together > 1 for r in rows):
        notes.append("<= the error of neighbours that were quantised together")
    return notes
