"""Tables of the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.peers import PEERS
from benchmarks.results import BOUND_BY_MEMORY, OURS, CopyRate, Results, Row, geomean
from runtime.cpu.roofline import Roofline

Limit = Roofline | CopyRate | None

#: The smallest change of the ratio to the best peer that is highlighted.
NOTABLE = 0.05


def show(results: Results, console: Console) -> None:
    """Print everything: the rows by suite and threads, means by family, failures."""
    for suite, threads in dict.fromkeys((r.suite, r.threads) for r in results.rows):
        rows = [r for r in results.rows if (r.suite, r.threads) == (suite, threads)]
        roofline, copies = results.rooflines.get(threads), results.copies
        limit = roofline or copies
        device = "; ".join(str(x) for x in (results.about.get("device"), copies) if x)
        console.print()
        console.rule(f"suite {suite}, {roofline or device}", align="left")
        console.print(table(rows, limit))
        console.print(families(rows, limit))
        if any(r.memory or r.weights for r in rows):
            console.print(memory(rows))
    problems = [(r, n, m) for r in results.rows for n, m in r.failures.items()]
    if problems:
        console.print()
        console.rule("failures", align="left")
        for row, name, message in problems:
            console.print(Text(f"{row.name} ({row.threads} threads), {name}: {message}"))
    missing(results, console)


def missing(results: Results, console: Console) -> None:
    """Print the contenders that could not take part, and why."""
    for name, reason in results.missing.items():
        console.print(Text(f"missing: {name} ({reason}); pip install '.[bench]'"))


def _contenders(rows: list[Row]) -> list[str]:
    """The contenders with times, in the order of the tables."""
    return _ordered(dict.fromkeys(n for r in rows for n in r.times))


def _ordered(found: Iterable[str]) -> list[str]:
    order = list(PEERS)
    return sorted(found, key=lambda n: order.index(n) if n in order else len(order))


def table(rows: list[Row], limit: Limit) -> Table:
    """A line for each computation; times are medians in µs, the best peer's is bold."""
    names = _contenders(rows)
    symbolic = any(r.openness is not None for r in rows)
    narrow = any(r.narrowness is not None for r in rows)
    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("µs a call", no_wrap=True)
    for name in ("GF", *names):
        result.add_column(name, justify="right", no_wrap=True)
    roofline, copies = _either(limit)
    speed = ["%roof"] if roofline is not None else ["TFLOP/s", "GB/s"]
    speed += ["%copy"] if copies is not None else []
    more = ["open/fixed"] if symbolic else []
    more += ["narrow/wide"] if narrow else []
    for heading in ("ratio", "spread", *more, *speed, "cold s", "cached s"):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        best = row.best_peer
        cells = [Text(row.name), Text(f"{row.flops / 1e9:.3f}")]
        for name in names:
            style = "bold" if name == best else ""
            failed = "failed" if name in row.failures else "-"
            cells.append(Text(_micro(row.median(name)) or failed, style))
        cells += [_ratio(row.ratio), Text(_spread(row))]
        if symbolic:
            cells.append(_ratio(row.openness))
        if narrow:
            cells.append(_ratio(row.narrowness))
        if roofline is not None:
            cells.append(Text(_percent(row.roof(row.ours, roofline))))
        else:
            cells += [Text(_rate(row, 1e-12 * row.flops)), Text(_rate(row, 1e-9 * row.bytes))]
        if copies is not None:
            cells.append(Text(_percent(_share(row, row.ours, copies))))
        cold = row.compile.get(row.ours, [])
        cells.append(Text(f"{cold[0]:.2f}" if cold else ""))
        cells.append(Text(f"{min(cold[1:]):.2f}" if cold[1:] else ""))
        result.add_row(*cells)
    return result


def families(rows: list[Row], limit: Limit) -> Table:
    """Geometric means by family, and overall."""
    names = [n for n in _contenders(rows) if n not in OURS]
    result = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    result.add_column("geometric means", no_wrap=True)
    unit = "%copy" if isinstance(limit, CopyRate) else "%roof"
    narrow = any(r.narrowness is not None for r in rows)
    other = "narrow/wide" if narrow else "open/fixed"
    headings = ("kernels", "ahead", "ratio", unit, f"best's {unit}", other, "cold s")
    for heading in (*headings, *(f"to {n}" for n in names)):
        result.add_column(heading, justify="right", no_wrap=True)
    groups = {f: [r for r in rows if r.family == f] for f in dict.fromkeys(r.family for r in rows)}
    if len(groups) > 1:
        groups["all"] = rows
    for family, group in groups.items():
        ratios = [r.ratio for r in group if r.ratio is not None]
        own = best = None
        if limit is not None and (family != "all" or isinstance(limit, Roofline)):
            own = _mean(_share(r, r.ours, limit) for r in group)
            best = _mean(_share(r, r.best_peer, limit) for r in group if r.best_peer)
        cells = [
            Text(family),
            Text(str(len(group))),
            Text(f"{sum(x < 1 for x in ratios)}/{len(ratios)}" if ratios else ""),
            _ratio(geomean(ratios)),
            Text(_percent(own)),
            Text(_percent(best)),
            _ratio(_mean(r.narrowness if narrow else r.openness for r in group)),
            Text(_seconds(_mean(_cold(r) for r in group))),
        ]
        cells += [_ratio(_mean(_against(r, name) for r in group)) for name in names]
        result.add_row(*cells)
    return result


def memory(rows: list[Row]) -> Table:
    """Peak memory of each contender, its load time, and bytes of weights, for networks."""
    rows = [r for r in rows if r.memory or r.weights]
    weighed = any(r.weights for r in rows)
    names = _ordered({n: None for r in rows for n in (*r.memory, *r.compile)})
    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("MiB peak / s to load", no_wrap=True)
    for name in names:
        result.add_column(name, justify="right", no_wrap=True)
    if weighed:
        result.add_column("weights, MiB", justify="right", no_wrap=True)
    for row in rows:
        cells = [Text(row.name)]
        for name in names:
            peak, load = row.memory.get(name), row.compile.get(name)
            shown = f"{peak / 2**20:.0f}" if peak else "-"
            cells.append(Text(f"{shown} / {load[0]:.2f}" if load else shown))
        if weighed:
            held = row.weights.get(row.ours)
            cells.append(Text("" if held is None else f"{held / 2**20:.2f}"))
        result.add_row(*cells)
    return result


def compare(old: Results, new: Results, console: Console) -> None:
    """Print how Farkas changed between two runs, in time and in its ratio to the best peer.

    The ratio is decisive: the machine as a whole may have been slower.
    """
    before = {r.key: r for r in old.rows}
    result = Table(box=None, pad_edge=False, header_style="bold")
    result.add_column("compared with before", no_wrap=True)
    for heading in ("threads", "before µs", "now µs", "now/before", "ratio before", "ratio now"):
        result.add_column(heading, justify="right", no_wrap=True)
    changes, relative = [], []
    for row in new.rows:
        if row.key not in before:
            continue
        other = before[row.key]
        was, now = other.median(other.ours), row.median(row.ours)
        if was is None or now is None:
            continue
        changes.append(now / was)
        ratios = (other.ratio, row.ratio)
        if ratios[0] and ratios[1]:
            relative.append(ratios[1] / ratios[0])
        change = relative[-1] if ratios[0] and ratios[1] else changes[-1]
        style = "" if abs(change - 1) < NOTABLE else "green" if change < 1 else "red"
        result.add_row(
            Text(row.name, style), str(row.threads), _micro(was), _micro(now),
            Text(f"{now / was:.2f}", style), _ratio(ratios[0]), _ratio(ratios[1]),
        )  # fmt: skip
    console.print()
    console.print(result)
    if changes:
        text = f"geometric means: time {geomean(changes):.3f}"
        if relative:
            text += f", ratio to the best peer {geomean(relative):.3f}"
        console.print(f"{text} (below 1: better now)")
    else:
        console.print("nothing in common with the earlier run")


def finish(
    results: Results,
    earlier: Results | None,
    stem: Path | None,
    console: Console,
    more: Callable[[Results, Console], None] | None = None,
) -> None:
    """Print everything, compare with the results in a file, and write plots, as requested.

    more : prints additional tables of the results
    """
    show(results, console)
    if more is not None:
        more(results, console)
    if stem:
        try:
            from benchmarks.plot import plot

            for path in plot(results, stem):
                console.print(f"wrote {path}")
        except ImportError as error:
            console.print(Text(f"no plot: {error}; pip install '.[bench]'"))
    if earlier:
        compare(earlier, results, console)


# --- cells -------------------------------------------------------------------------------------


def _mean(values: Iterable[float | None]) -> float | None:
    return geomean(v for v in values if v is not None and v > 0)


def _either(limit: Limit) -> tuple[Roofline | None, CopyRate | None]:
    if isinstance(limit, CopyRate):
        return None, limit
    return limit, None


def _share(row: Row, contender: str, limit: Roofline | CopyRate) -> float | None:
    """The fraction of a limit that a contender reaches, where the row has that limit."""
    if isinstance(limit, CopyRate) and row.family not in BOUND_BY_MEMORY:
        return None
    return row.roof(contender, limit)


def _cold(row: Row) -> float | None:
    seconds = row.compile.get(row.ours)
    return seconds[0] if seconds else None


def _against(row: Row, name: str) -> float | None:
    mine, theirs = row.median(row.ours), row.median(name)
    return mine / theirs if mine and theirs else None


def _micro(seconds: float | None) -> str:
    if seconds is None:
        return ""
    value = seconds * 1e6
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _ratio(value: float | None) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:.2f}", "green" if value < 1 else "red" if value > 1.05 else "")


def _spread(row: Row) -> str:
    spread = row.spread
    return f"{spread[0]:.2f}-{spread[1]:.2f}" if spread and len(row.times[row.ours]) > 1 else ""


def _rate(row: Row, amount: float) -> str:
    """An amount per second of Farkas's time."""
    seconds = row.median(row.ours)
    return f"{amount / seconds:.3g}" if seconds and amount else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
