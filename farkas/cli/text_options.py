"""A text on the command line: from a file or an option, with its element types and sizes."""

from __future__ import annotations

import click

from farkas.console.files import read_text_file
from poly.errors import ArgumentError

expression_option = click.option(
    "-e", "--expression", metavar="TEXT", help="The program itself, in place of a file."
)
size_option = click.option(
    "--size", "sizes", multiple=True, metavar="N=NUMBER", help="Fix a size; repeatable."
)
dtype_option = click.option(
    "--dtype", "dtypes", multiple=True, metavar="[NAME=]TYPE",
    help="Element type of all inputs, or of one; repeatable.  A definition has its own.",
)  # fmt: skip


def text_of(file: str | None, expression: str | None) -> str:
    """The text of a file or of an expression, one of which is given."""
    if (file is None) == (expression is None):
        raise click.UsageError("give either a FILE (- for the standard input) or -e TEXT")
    return expression if expression is not None else read_text_file(file or "-")


def given_types(words: tuple[str, ...]) -> str | dict[str, str] | None:
    """Element types as the command line gives them: of all inputs, by name, or none."""
    if any("=" in word for word in words):
        given = {}
        for word in words:
            tensor, equals, dtype = word.partition("=")
            if not equals:
                raise ArgumentError("--dtype is given both for all inputs and by name")
            given[tensor.strip()] = dtype.strip()
        return given
    if len(words) > 1:
        raise ArgumentError("--dtype is given twice; say which input, as in --dtype A=float32")
    return words[0] if words else None


def given_sizes(words: tuple[str, ...], option: str = "--size") -> dict[str, int]:
    """Sizes as an option of the command line gives them."""
    return dict(_size(word, option) for word in words)


def _size(word: str, option: str) -> tuple[str, int]:
    name, equals, value = word.partition("=")
    try:
        if equals and len(value) < 40:
            return name.strip(), int(value)
    except ValueError:
        pass
    raise ArgumentError(f"{option} {word}: expected a name and a number, as in {option} N=512")
