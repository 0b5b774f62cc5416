"""``farkas grad``: the gradient of a text, as a text."""

from __future__ import annotations

import click

from farkas.cli.text_options import (
    dtype_option,
    expression_option,
    given_sizes,
    given_types,
    size_option,
    text_of,
)
from farkas.console.files import check_output, write_file


@click.command(
    "grad",
    epilog="""\b
Examples:
  farkas grad -e 'ij,jk->ik' --dtype float32 --wrt A
  farkas grad softmax.fk --values -o backward.fk
  farkas grad loss.fk --wrt W --wrt b | farkas compile - -o step.c
  farkas grad heat.fk --recompute U=25
""",
)
@click.argument("file", required=False)
@expression_option
@click.option("--wrt", multiple=True, metavar="NAME", help="An input; repeatable.  Default: all.")
@click.option("--of", multiple=True, metavar="NAME", help="An output; repeatable.  Default: all.")
@click.option("--values", is_flag=True, help="With the program's own outputs first.")
@click.option("--forward", is_flag=True, help="What outputs change by along a change of inputs.")
@click.option(
    "--recompute", multiple=True, metavar="NAME[=STEPS]",
    help="Keep the state of every so many steps only; repeatable.",
)  # fmt: skip
@dtype_option
@size_option
@click.option("-o", "--output", metavar="FILE", help="Write to a file.")
def grad_command(
    file: str | None, expression: str | None, wrt: tuple[str, ...], of: tuple[str, ...],
    values: bool, forward: bool, recompute: tuple[str, ...], dtypes: tuple[str, ...],
    sizes: tuple[str, ...], output: str | None,
) -> None:  # fmt: skip
    """Print the gradient of the program in FILE (- for the standard input) as a program.

    It has a tensor dA for each input A of --wrt, and takes a gradient dY for each output Y of --of
    that is not a scalar.
    """
    from farkas.kernels.gradients import grad, jvp, value_and_grad
    from farkas.kernels.source_text import parse

    if values and forward:
        raise click.UsageError("--values and --forward do not go together")
    if output is not None:
        check_output(output, file)
    text = text_of(file, expression)
    program = parse(text, dtypes=given_types(dtypes), sizes=given_sizes(sizes))
    if forward and recompute:
        raise click.UsageError("--forward keeps nothing: --recompute does not go with it")
    named = wrt or None, of or None
    if forward:
        made = f"{jvp(program, *named)}\n"
    else:
        how = value_and_grad if values else grad
        made = f"{how(program, *named, recompute=_steps(recompute))}\n"
    if output is None:
        click.echo(made, nl=False)
    else:
        write_file(output, made.encode())


def _steps(recompute: tuple[str, ...]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for given in recompute:
        name, _, steps = given.partition("=")
        if "=" in given and not steps.isdecimal():
            raise click.UsageError(f"--recompute {given}: expected NAME or NAME=STEPS")
        found[name] = int(steps) if steps else None
    return found
