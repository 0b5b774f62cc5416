"""The best time over trials and over seconds of tuning, as a picture."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farkas.console.files import write_file
from farkas.views.page import View
from poly.errors import ArgumentError
from poly.show.markup import Markup

if TYPE_CHECKING:
    from farkas.tuning.tune_program import Tuned

#: The formats of files, by the ends of their names.
FORMATS = ("png", "svg")


def tuning_view(found: Mapping[str, Tuned]) -> View:
    """The picture of what was tuned, by name, for Jupyter.

    Raises
    ------
    ArgumentError : matplotlib is missing.
    """
    image = _drawn(found, "svg").decode()
    lines = [f"{name}: {len(t.history)} trials, {t.winner.gain:.2f}" for name, t in found.items()]
    return View(Markup(image[image.index("<svg") :]), "\n".join(lines), "Tuned")


def save_plot(found: Mapping[str, Tuned], path: str | os.PathLike[str]) -> Path:
    """Write the picture to a file, whose name ends in ``.png`` or ``.svg``.

    Raises
    ------
    ArgumentError : another end, or matplotlib is missing.
    FileError : the file cannot be written.
    """
    name = os.fspath(path)
    form = Path(name).suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise ArgumentError(f"{name}: the name of a plot ends in .png or .svg")
    write_file(name, _drawn(found, form))
    return Path(name)


def _drawn(found: Mapping[str, Tuned], form: str) -> bytes:
    try:
        figure_type = import_module("matplotlib.figure").Figure
    except ImportError:
        raise ArgumentError(
            "plots need matplotlib: pip install '.[tune]' in a clone of Farkas, or pip install "
            "matplotlib"
        ) from None
    figure = figure_type(figsize=(9, 3.2), layout="constrained")
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
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=120)
    return buffer.getvalue()


def _curve(axes: Any, x: Sequence[float], best: Sequence[float], name: str) -> None:
    axes.step([*x], [*best], where="post", label=name)
