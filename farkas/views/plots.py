"""Figures of matplotlib, as files and in Jupyter."""

from __future__ import annotations

import io
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from farkas.console.files import write_file
from farkas.views.page import View
from poly.errors import ArgumentError
from poly.show.markup import Markup

#: The formats of files, by the ends of their names.
FORMATS = ("png", "svg")


def new_figure(width: float, height: float) -> Any:
    """An empty figure of matplotlib, in inches.

    Raises
    ------
    ArgumentError : matplotlib is missing.
    """
    try:
        figure_type = import_module("matplotlib.figure").Figure
    except ImportError:
        raise ArgumentError(
            "plots need matplotlib: pip install '.[tune]' in a clone of Farkas, or pip install "
            "matplotlib"
        ) from None
    return figure_type(figsize=(width, height), layout="constrained")


def figure_view(figure: Any, text: str, title: str) -> View:
    """A figure for Jupyter, with a text for a terminal."""
    image = _bytes(figure, "svg").decode()
    return View(Markup(image[image.index("<svg") :]), text, title)


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of a file of a plot.

    Raises
    ------
    ArgumentError : the name ends in neither ``.png`` nor ``.svg``.
    """
    form = Path(path).suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise ArgumentError(f"{os.fspath(path)}: the name of a plot ends in .png or .svg")
    return form


def save_figure(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure to a file, see `format_of`.

    Raises
    ------
    ArgumentError : another end.
    FileError : the file cannot be written.
    """
    write_file(os.fspath(path), _bytes(figure, format_of(path)))
    return Path(path)


def _bytes(figure: Any, form: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=120)
    return buffer.getvalue()
