"""The best time over trials and over seconds of tuning, as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farkas.views.page import View
from farkas.views.plots import figure_view, format_of, new_figure, save_figure

if TYPE_CHECKING:
    from farkas.tuning.tune_program import Tuned


def tuning_view(found: Mapping[str, Tuned]) -> View:
    """The picture of what was tuned, by name, for Jupyter.

    Raises
    ------
    ArgumentError : matplotlib is missing.
    """
    lines = [f"{name}: {len(t.history)} trials, {t.winner.gain:.2f}" for name, t in found.items()]
    return figure_view(_drawn(found), "\n".join(lines), "Tuned")


def save_plot(found: Mapping[str, Tuned], path: str | os.PathLike[str]) -> Path:
    """Write the picture to a file, whose name ends in ``.png`` or ``.svg``.

    Raises
    ------
    ArgumentError : another end, or matplotlib is missing.
    FileError : the file cannot be written.
    """
    format_of(path)
    return save_figure(_drawn(found), path)


def _drawn(found: Mapping[str, Tuned]) -> Any:
    figure = new_figure(9, 3.2)
    over_trials, over_seconds = figure.subplots(1, 2, sharey=True)
    for name, tuned in found.items():
        best = list(accumulate((min(1.0, m.trial.ratio) for m in tuned.history), min, initial=1.0))
        _curve(over_trials, range(len(best)), best, name)
        _curve(over_seconds, [0.0, *(m.seconds for m in tuned.history)], best, name)
    for axes, label in ((over_trials, "schedules measured"), (over_seconds, "seconds")):
        axes.set_xlabel(label)
        axes.axhline(1.0, linewidth=0.8, color="#7f7f7f")
        axes.grid(alpha=0.3)
    over_trials.set_ylabel("time, automatic schedule = 1")
    over_trials.set_ylim(0, 1.08)
    if len(found) > 1:
        over_seconds.legend(fontsize=7)
    return figure


def _curve(axes: Any, x: Sequence[float], best: Sequence[float], name: str) -> None:
    axes.step([*x], [*best], where="post", label=name)
