"""Plots of the measurements: a roofline, and bars of the ratios to the best peer."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

from benchmarks.results import CopyRate, Results, Row
from runtime.cpu.roofline import Roofline

#: One colour for each family, in order.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")


def plot(results: Results, stem: Path) -> list[Path]:
    """Write ``STEM-SUITE-tTHREADS.png`` and ``.svg`` for each suite and number of threads; for a
    device, without the threads.

    Raises
    ------
    ImportError : matplotlib is missing.
    """
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    written = []
    for suite, threads in dict.fromkeys((r.suite, r.threads) for r in results.rows):
        rows = [r for r in results.rows if (r.suite, r.threads) == (suite, threads)]
        rows = [r for r in rows if r.median(r.ours) is not None]
        if not rows:
            continue
        height = max(5.0, 1.5 + 0.17 * len(rows))
        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(15, height), width_ratios=(3, 2), layout="constrained"
        )
        families = list(dict.fromkeys(r.family for r in rows))
        colours = {f: _COLOURS[n % len(_COLOURS)] for n, f in enumerate(families)}
        _roofline(left, rows, results.rooflines.get(threads) or results.copies, colours)
        _bars(right, rows, colours)
        device, end = results.about.get("device"), f"-t{threads}"
        shown = f"{threads} thread{'s' if threads != 1 else ''}"
        if device is not None:
            shown, end = device, ""
        figure.suptitle(f"Farkas, suite {suite}, {shown}")
        for suffix in (".png", ".svg"):
            path = stem.with_name(f"{stem.name}-{suite}{end}{suffix}")
            figure.savefig(path, dpi=120)
            written.append(path)
        pyplot.close(figure)
    return written


def _roofline(
    axes: Any, rows: list[Row], limit: Roofline | CopyRate | None, colours: dict[str, str]
) -> None:
    """Operations per second over operations per byte; hollow circles are the best peers."""
    counted = [r for r in rows if r.flops > 0 and r.family != "overhead"]
    points = [(r.flops / r.bytes, r) for r in counted]
    low = min([x for x, _ in points], default=0.1) / 2
    high = max([x for x, _ in points], default=100.0) * 2
    if isinstance(limit, Roofline):
        _levels(axes, limit, low, high)
    elif limit is not None:
        _bandwidth(axes, "copies", limit.bandwidth, [low, high])
    for family, colour in colours.items():
        own = [(x, r) for x, r in points if r.family == family]
        mine = [(x, r.flops / (r.median(r.ours) or math.inf) / 1e9) for x, r in own]
        best = [(x, r.flops / (r.median(r.best_peer) or math.inf) / 1e9)
                for x, r in own if r.best_peer]  # fmt: skip
        if mine:
            axes.scatter(*zip(*mine, strict=True), s=24, color=colour, label=family, zorder=3)
        if best:
            axes.scatter(
                *zip(*best, strict=True), s=36, facecolors="none", edgecolors=colour, zorder=2
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of inputs, weights and outputs")
    axes.set_ylabel("GFLOP/s")
    what = "roofline" if isinstance(limit, Roofline) else "operations"
    axes.set_title(f"{what}: filled Farkas, hollow the best peer", fontsize=10)
    if counted:
        axes.legend(fontsize=8, loc="lower right")


def _levels(axes: Any, roofline: Roofline, low: float, high: float) -> None:
    """The limits set by arithmetic and each level of memory."""
    levels = (("L2", roofline.l2), ("L3", roofline.l3), ("DRAM", roofline.dram))
    for name, bandwidth in levels:
        ridge = roofline.flops / bandwidth
        xs = [low, min(max(ridge, low), high), high]
        _bandwidth(axes, name, bandwidth, xs, roofline.flops)
    axes.annotate(
        f"{roofline.flops / 1e9:.0f} GFLOP/s", (high, roofline.flops / 1e9), color="#555555",
        fontsize=8, ha="right", xytext=(0, 3), textcoords="offset points",
    )  # fmt: skip


def _bandwidth(
    axes: Any, name: str, bandwidth: float, xs: list[float], most: float = math.inf
) -> None:
    """The limit set by a memory at some operations per byte, up to the peak."""
    ys = [min(x * bandwidth, most) / 1e9 for x in xs]
    axes.plot(xs, ys, color="#888888", linewidth=1)
    axes.annotate(
        f"{name} {bandwidth / 1e9:.0f} GB/s", (xs[0], ys[0]), color="#555555", fontsize=8,
        xytext=(2, 3), textcoords="offset points",
    )  # fmt: skip


def _bars(axes: Any, rows: list[Row], colours: dict[str, str]) -> None:
    """The speed relative to the best peer, or to fixed sizes where there is no peer."""
    compared = [r for r in rows if r.ratio is not None]
    values = [1 / r.ratio for r in compared if r.ratio]
    title = "times as fast as the best peer"
    if not compared and any(r.openness is not None for r in rows):
        compared = [r for r in rows if r.openness is not None]
        values = [1 / r.openness for r in compared if r.openness]
        title = "speed with open sizes, fixed sizes being 1"
    positions = range(len(compared))
    colour = [colours[r.family] for r in compared]
    axes.barh(positions, [v - 1 for v in values], left=1, color=colour, height=0.75)
    axes.axvline(1.0, color="#222222", linewidth=1)
    axes.set_yticks(list(positions), [r.name for r in compared], fontsize=6)
    axes.set_ylim(len(compared) - 0.4, -0.6)
    if values:
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(0.25, *values) / 1.1, max(4.0, *values) * 1.1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.2g}")
    axes.set_title(title, fontsize=10)
