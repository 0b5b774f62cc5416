"""``farkas intrinsic``: instructions of CPUs, those of Farkas and those of users."""

from __future__ import annotations

import click

_EPILOG = """\b
Examples:
  farkas intrinsic check mine.toml
  farkas intrinsic check mine.toml --cc clang
  farkas intrinsic list
"""


@click.group("intrinsic", epilog=_EPILOG)
def intrinsic_group() -> None:
    """Check instructions of CPUs that you declare, or list those of Farkas."""


@intrinsic_group.command("check", epilog="\b\nExample:\n  farkas intrinsic check mine.toml\n")
@click.argument("file")
@click.option("--cc", metavar="PATH", help="The C compiler; default is $CC, gcc, clang or cc.")
def check_command(file: str, cc: str | None) -> int:
    """Compare each instruction of a TOML file with its meaning, on this machine.

    One that agrees is remembered, and may be used.  For one that differs, operands are printed for
    which it does.  Exits with 0 only if all agree.
    """
    from farkas.console.display import printable
    from farkas.intrinsics.intrinsic_file import check_file

    verdicts = check_file(file, cc)
    for verdict in verdicts:
        for line in str(verdict).splitlines():
            click.echo(printable(line))
    return 0 if all(v.passed for v in verdicts) else 1


@intrinsic_group.command("list", epilog="\b\nExample:\n  farkas intrinsic list\n")
def list_command() -> None:
    """List the instructions of Farkas, each with its meaning and what it needs."""
    from poly.ir.instruction_tables import VECTOR_INTRINSICS

    for i in VECTOR_INTRINSICS.values():
        click.echo(f"{i}  [{i.feature}]")
