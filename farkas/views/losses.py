"""The losses of training, over its steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farkas.views.page import View
from farkas.views.plots import figure_view, format_of, new_figure, save_figure

#: The mean is of as many steps as fit this often into all of them.
_PARTS = 50


def losses_view(losses: Sequence[float]) -> View:
    """The curve for Jupyter.

    Raises
    ------
    ArgumentError : matplotlib is missing.
    """
    last = f", the last loss is {losses[-1]:.4g}" if losses else ""
    return figure_view(_drawn(losses), f"{len(losses)} steps{last}", "Losses")


def save_losses(losses: Sequence[float], path: str | os.PathLike[str]) -> Path:
    """Write the curve to a file, whose name ends in ``.png`` or ``.svg``.

    Raises
    ------
    ArgumentError : another end, or matplotlib is missing.
    FileError : the file cannot be written.
    """
    format_of(path)
    return save_figure(_drawn(losses), path)


def _drawn(losses: Sequence[float]) -> Any:
    """Each loss, the mean of the last ones, and a logarithmic axis where all are positive."""
    figure = new_figure(6, 3.2)
    axes = figure.subplots()
    values = np.asarray(losses, float)
    steps = np.arange(1, len(values) + 1)
    width = max(1, len(values) // _PARTS)
    axes.plot(steps, values, linewidth=0.8, alpha=0.35 if width > 1 else 1.0, color="C0")
    if width > 1:
        mean = np.convolve(values, np.full(width, 1 / width), "valid")
        axes.plot(steps[width - 1 :], mean, color="C0", label=f"mean of {width} steps")
        axes.legend(fontsize=7)
    if len(values) and values.min() > 0:
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3, which="both")
    return figure
