"""``farkas tune``: search for faster schedules of a text or of a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farkas.cli.text_options import (
    dtype_option,
    expression_option,
    given_sizes,
    given_types,
    size_option,
    text_of,
)
from farkas.console.files import check_output
from poly.errors import TuningError

if TYPE_CHECKING:
    from rich.console import Console

    from farkas.tuning.job import Progress

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _budget(ctx: click.Context, option: click.Parameter, value: str) -> float:
    """Seconds from ``90``, ``90s``, ``5m`` or ``1h``."""
    from farkas.tuning.job import check_budget

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip()) if len(value) < 40 else None
    if match is None or match[2] not in _UNITS:
        raise click.BadParameter("expected seconds or minutes, as in 60s or 5m", ctx, option)
    try:
        return check_budget(float(match[1]) * _UNITS[match[2]])
    except TuningError as error:
        raise click.BadParameter(str(error), ctx, option) from None


@click.command(
    "tune",
    epilog="""\b
Examples:
  farkas tune -e 'ij,ik,il->jkl' --dtype float32 --size I=211 --size J=17 --size K=19 --size L=23
  farkas tune conv.fk --budget 2m --plot conv.svg
  farkas tune mobilenet.onnx --budget 5m --threads 2
  farkas tune --export records.jsonl
""",
)
@click.argument("file", required=False)
@expression_option
@click.option(
    "--budget", callback=_budget, default="60s", show_default=True, metavar="TIME",
    help="How long to search: 90s, 5m or 1h.",
)  # fmt: skip
@click.option("--trials", type=click.IntRange(1), help="Schedules to measure at most.")
@dtype_option
@size_option
@click.option(
    "--at", multiple=True, metavar="N=NUMBER",
    help="Measure with this size, which the kernel leaves open; repeatable.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224",
    help="Shape of an input of a network, or size of a dynamic dimension; repeatable.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads; default is all.")
@click.option("--exact", is_flag=True, help="Keep the written order of reductions.")
@click.option("--again", is_flag=True, help="Go on with what was tuned before.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@click.option("--plot", metavar="FILE.svg", help="Draw the best time over trials and seconds.")
@click.option(
    "--target", default="cpu", show_default=True, metavar="NAME",
    help="Where it is to run: cpu, cuda, opencl, …; an emulator only checks schedules.",
)  # fmt: skip
@click.option("--cc", metavar="PATH", help="The C compiler; default is $CC, gcc, clang or cc.")
@click.option("--export", "exported", metavar="FILE", help="Write this machine's records.")
@click.option("--import", "imported", metavar="FILE", help="Add records of this machine.")
def tune_command(
    file: str | None, expression: str | None, exported: str | None, imported: str | None,
    cc: str | None, target: str, **options: Any,
) -> int:  # fmt: skip
    """Search for schedules that are faster than the automatic ones, by measuring them.

    Every schedule that is tried is checked against the dependences, and its results are compared.
    The fastest is recorded, if it is not so by chance, and used from then on wherever the same
    program is compiled on this machine.  Ctrl-C ends the search and keeps the best.
    """
    if exported is not None or imported is not None:
        if file is not None or expression is not None:
            raise click.UsageError("--export and --import take no program")
        return _exchange(cc, target, exported, imported)
    if options["plot"] is not None:
        from farkas.views.plots import format_of

        format_of(options["plot"])
        check_output(options["plot"], file)
    from farkas.console.display import stderr_console

    with Table(stderr_console()) as table:
        if file is not None and file.endswith(".onnx"):
            made = _tune_network(file, cc, target, table, options)
        else:
            made = _tune_text(text_of(file, expression), cc, target, table, options)
    click.echo(str(made))
    if options["plot"] is not None:
        click.echo(f"written   {made.plot(options['plot'])}")
    return 0


def _tune_text(
    text: str, cc: str | None, target: str, table: Table, options: dict[str, Any]
) -> Any:
    from farkas.kernels.tune_kernel import tune

    made = tune(
        text, dtypes=given_types(options["dtypes"]), sizes=given_sizes(options["sizes"]),
        at=given_sizes(options["at"], "--at"), budget=options["budget"], trials=options["trials"],
        threads=options["threads"], exact=options["exact"], again=options["again"],
        seed=options["seed"], target=target, cc=cc, progress=table.show,
    )  # fmt: skip
    if made.winner.script:
        click.echo(f"{made.script}\n")
    return made


def _tune_network(
    path: str, cc: str | None, target: str, table: Table, options: dict[str, Any]
) -> Any:
    from farkas.cli.run import parse_shape
    from farkas.networks.tune_network import tune_onnx

    for name in ("dtypes", "sizes", "at", "trials", "exact"):
        if options[name]:
            raise click.UsageError(f"--{name.removesuffix('s')} is for texts, not for networks")
    return tune_onnx(
        Path(path), budget=options["budget"], threads=options["threads"],
        shapes=dict(map(parse_shape, options["shapes"])) or None, again=options["again"],
        seed=options["seed"], target=target, cc=cc, progress=table.show,
    )  # fmt: skip


def _exchange(cc: str | None, target: str, exported: str | None, imported: str | None) -> int:
    """Write records to a file, or add those of one."""
    from farkas.tuning.exchange import export_records, import_records

    if imported is not None:
        added, known, problems = import_records(imported, cc, target=target)
        for problem in problems:
            click.echo(f"left out: {problem}", err=True)
        rest = f", {_records(known)} no faster than this machine's" if known else ""
        click.echo(f"added     {_records(added)}{rest}")
    if exported is not None:
        count = export_records(exported, cc, target=target)
        click.echo(f"written   {_records(count)} to {exported}")
    return 0


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


class Table:
    """What tuning does, line by line; on a terminal, one line that is written over."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, transient=True) if console.is_terminal else None
        self._last = 0.0

    def __enter__(self) -> Table:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(_rows(progress))
        elif progress.seconds < self._last or progress.seconds >= self._last + 5.0:
            self._last = progress.seconds
            self._console.print(_line(progress))


def _line(p: Progress) -> str:
    return (
        f"{p.name}: {p.seconds:.0f} of {p.budget:.0f} s, {p.trials} schedules measured, best "
        f"{1 / p.best:.2f} times as fast"
    )


def _rows(p: Progress) -> Any:
    """A small table of how far tuning has come."""
    from rich.table import Table as RichTable

    from farkas.console.display import seconds

    rows = RichTable.grid(padding=(0, 2))
    done = min(1.0, p.seconds / p.budget)
    bar = "━" * round(30 * done)
    for label, value in (
        (p.name, f"{bar:<30} {p.seconds:.0f} of {p.budget:.0f} s"),
        ("measured", f"{p.trials} schedules, {p.failed} of them failed"),
        ("illegal", f"{p.illegal:.1%} of those drawn, refused before they were compiled"),
        ("best", f"{1 / p.best:.2f} times as fast as {seconds(p.automatic)}"),
        ("now", p.what[: 3 * 60]),
    ):
        rows.add_row(f"[bold]{label}[/bold]", value)
    return rows
