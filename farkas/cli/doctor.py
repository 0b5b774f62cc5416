"""``farkas doctor``: whether a network's nodes can be compiled, without compiling anything."""

from __future__ import annotations

import click

from farkas.cli.run import parse_shape


@click.command(
    "doctor",
    epilog="""\b
Examples:
  farkas doctor network.onnx
  farkas doctor bert.onnx --shape batch=1 --nodes
""",
)
@click.argument("model")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Shape of an input, or size of a dynamic dimension; repeatable.",
)  # fmt: skip
@click.option("--nodes", is_flag=True, help="A line for every node.")
def doctor_command(model: str, shapes: tuple[str, ...], nodes: bool) -> int:
    """Say for every node of an ONNX network whether and how it is compiled.

    All problems are listed at once, and what would compile it.  Exits with 0 if there is none, else
    with 1.
    """
    from rich.table import Table

    from farkas.console.display import printable, stdout_console
    from frontends.onnx import examine, open_model

    found = examine(open_model(model), dict(map(parse_shape, shapes)))
    console = stdout_console()
    for port in found.inputs:
        click.echo(f"input       {printable(str(port))}")
    table = Table("operator", "nodes", "how", "operations", "MiB moved", box=None, pad_edge=False)
    for (operator, how), count in sorted(found.counts.items()):
        own = [n for n in found.nodes if (n.operator, n.how) == (operator, how)]
        work, moved = sum(n.work for n in own), sum(n.bytes for n in own)
        amounts = (f"{work:.2g}", f"{moved / 2**20:.2g}") if work else ("", "")
        table.add_row(operator, str(count), how, *amounts)
    console.print(table)
    if nodes:
        for node in found.nodes:
            click.echo(f"node        {node}  {' '.join(node.types)}")
    for problem in found.problems:
        click.echo(f"problem     {problem}")
    for label, value in compiler_rows():
        click.echo(f"{label:<11} {printable(value)}")
    count = len(found.problems)
    click.echo("all nodes can be compiled" if not count else f"{count} nodes cannot be compiled")
    return 1 if count else 0


def compiler_rows() -> list[tuple[str, str]]:
    """What would compile a network here, and what would share its loops, each with a label."""
    from poly.errors import ToolchainError
    from runtime.cpu.openmp_pool import threads_of
    from runtime.cpu.toolchain import find_toolchain

    try:
        found = find_toolchain()
        return [("compiler", str(found)), ("threads", threads_of(found))]
    except ToolchainError as error:
        return [("compiler", f"none: {error}")]
