"""``farkas compile``, ``show``, ``check`` and ``diff``: commands on texts of comprehensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farkas.cli.exit_codes import complain, message_of
from farkas.cli.target_option import target_option
from farkas.cli.text_options import (
    dtype_option,
    expression_option,
    given_sizes,
    given_types,
    size_option,
    text_of,
)
from farkas.console.files import check_output, read_text_file, write_file
from farkas.targets.stages import STAGES, stage_text
from poly.errors import ArgumentError, FarkasError, IllegalScheduleError

if TYPE_CHECKING:
    from farkas.targets.base import Target
    from poly.ir.program import Program
    from poly.schedule.schedule import Schedule

#: The stages that are shown by default.
_USUAL = [name for name in STAGES if name != "loops"]

LEGAL, ILLEGAL, UNDECIDED = 0, 1, 2

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Request:
    """A program as the command line gives it."""

    text: str
    dtypes: tuple[str, ...]
    sizes: tuple[str, ...]
    name: str | None
    exact: bool
    intrinsics: tuple[str, ...] = ()

    def program(self) -> Program:
        from farkas.intrinsics.intrinsic_file import load_intrinsics
        from farkas.kernels.source_text import fix_sizes, match_dtypes, read_text

        for path in self.intrinsics:
            load_intrinsics(path)
        source = read_text(self.text)
        given = given_types(self.dtypes)
        if given is None and source.names:
            raise ArgumentError(
                f"the element types of {', '.join(source.names)} are not known: "
                f"pass --dtype float32, or --dtype {source.names[0]}=float32 for each"
            )
        program = source.program(match_dtypes(source, given), self.name)
        return fix_sizes(program, given_sizes(self.sizes))

    def schedule(self, wanted: str, program: Program, target: Target) -> Schedule:
        from farkas.targets.compile_program import schedule_for

        script = wanted if wanted in ("auto", "written") else read_text_file(wanted)
        return schedule_for(program, script, self.exact, target)


def program_options(command: _Command) -> _Command:
    """The options that determine how a program is read."""
    for option in (
        click.option("--exact", is_flag=True, help="Keep the written order of reductions."),
        click.option("--name", help="The program's name."),
        click.option(
            "--intrinsics",
            multiple=True,
            metavar="FILE",
            help="Instructions that schedules may use, see `farkas intrinsic`; repeatable.",
        ),
        size_option,
        dtype_option,
    ):
        command = option(command)
    return command


_SCHEDULE_HELP = "'auto', 'written', or the file of a schedule script."


# --- compile -------------------------------------------------------------------------------


@click.command(
    "compile",
    epilog="""\b
Examples:
  farkas compile conv.fk -o conv.c
  farkas compile -e 'ij,jk->ik' --dtype float32 --emit schedule -o matmul.sched
  farkas compile conv.fk --using my.sched --emit library -o conv.so
  farkas compile conv.fk --target cuda -o conv.cu
""",
)
@click.argument("file", required=False)
@expression_option
@click.option("-o", "--output", metavar="PATH", help="Output file; default is the standard output.")
@click.option(
    "--emit",
    type=click.Choice([*STAGES, "library"]),
    default="source",
    show_default=True,
    help="What to write: a stage, as `farkas show` has them, or a shared library.",
)
@click.option("--using", "wanted", default="auto", show_default=True, help=_SCHEDULE_HELP)
@click.option("--cc", metavar="PATH", help="The C compiler, for --emit library.")
@target_option
@program_options
def compile_command(
    file: str | None,
    expression: str | None,
    output: str | None,
    emit: str,
    wanted: str,
    cc: str | None,
    target: Target,
    **options: Any,
) -> None:
    """Compile a program, and write C or an earlier stage."""
    if emit == "library" and target.name != "cpu":
        raise click.UsageError(
            "--emit library is for --target cpu; the kernels of a GPU are compiled where they "
            "run, by fk.compile"
        )
    if emit == "library" and output is None:
        raise click.UsageError("--emit library needs -o PATH")
    if output is not None:
        check_output(output, file)
    request = _Request(text_of(file, expression), **options)
    from farkas.console.display import working

    with working("compiling"):
        program = request.program()
        schedule = request.schedule(wanted, program, target)
        if emit == "library":
            data = _library(program, schedule, cc)
        else:
            data = stage_text(emit, program, schedule, target).encode()
    if output is None:
        click.echo(data.decode())
    else:
        write_file(output, data if emit == "library" else data + b"\n")


def _library(program: Program, schedule: Schedule, cc: str | None) -> bytes:
    """The shared library of a schedule of a program."""
    from farkas.targets.compile_program import build
    from farkas.targets.find_target import cpu_target
    from runtime.cpu.loaded_kernel import LoadedKernel

    compiled = build(program, schedule, schedule.exact, cpu_target(cc, None))
    assert isinstance(compiled.loaded, LoadedKernel)
    return compiled.loaded.path.read_bytes()


# --- show ----------------------------------------------------------------------------------


@click.command(
    "show",
    epilog="""\b
Examples:
  farkas show conv.fk
  farkas show -e 'C[i,j] +=! A[i,k] * B[k,j]' --dtype float32 --stage schedule
  echo 'B[i] max=! A[i,j]' | farkas show - --dtype int8 --stage source
  farkas show conv.fk --target opencl --stage tree --stage source
""",
)
@click.argument("file", required=False)
@expression_option
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=click.Choice(list(STAGES)),
    help="Stage to show; repeatable.  Default is all but the loops.  "
    + "  ".join(f"{name}: {stage.about}" for name, stage in STAGES.items()),
)
@click.option("--using", "wanted", default="auto", show_default=True, help=_SCHEDULE_HELP)
@target_option
@program_options
def show_command(
    file: str | None,
    expression: str | None,
    stages: tuple[str, ...],
    wanted: str,
    target: Target,
    **options: Any,
) -> None:
    """Show a program on its way to C, stage by stage."""
    request = _Request(text_of(file, expression), **options)
    chosen = [s for s in STAGES if s in stages] or _USUAL
    from farkas.console.display import code, stdout_console, working

    with working("compiling"):
        program = request.program()
        schedule = request.schedule(wanted, program, target)
        texts = {name: stage_text(name, program, schedule, target) for name in chosen}
    if not stages and texts["rewritten"] == texts["program"]:
        del texts["rewritten"]
    console = stdout_console()
    for number, (name, text) in enumerate(texts.items()):
        if len(texts) > 1:
            console.print(f"{'' if number == 0 else chr(10)}# {name}", style="bold")
        code(console, text or "(as written)", STAGES[name].language)


# --- check ---------------------------------------------------------------------------------


@click.command(
    "check",
    epilog="""\b
Examples:
  farkas check conv.fk my.sched
  farkas check conv.fk - < my.sched && echo legal
""",
)
@click.argument("program")
@click.argument("script")
@click.option("--tree", is_flag=True, help="Show the loops of a legal schedule.")
@target_option
@program_options
def check_command(program: str, script: str, tree: bool, target: Target, **options: Any) -> int:
    """Say whether a schedule script is legal for a program.

    \b
    Exit codes:
      0  legal
      1  illegal: the message names two instances that would run in the wrong order
      2  not decided: a step makes no sense, could not be decided, or a file is no good
    """
    if program == script == "-":
        raise click.UsageError("only one of PROGRAM and SCRIPT can be the standard input")
    from farkas.console.display import working
    from farkas.targets.compile_program import schedule_for

    try:
        request = _Request(read_text_file(program), **options)
        text = read_text_file(script)
        with working("checking"):
            wanted = text if text.strip() else "written"
            schedule = schedule_for(request.program(), wanted, request.exact, target)
    except IllegalScheduleError as error:
        click.echo(message_of(error))
        return ILLEGAL
    except FarkasError as error:
        complain(message_of(error))
        return UNDECIDED
    steps = "1 step" if len(schedule.steps) == 1 else f"{len(schedule.steps)} steps"
    click.echo(f"legal: {steps}")
    if tree:
        click.echo(schedule.show)
    return LEGAL


# --- diff ----------------------------------------------------------------------------------


@click.command(
    "diff",
    epilog="""\b
Examples:
  farkas diff conv.fk auto my.sched
  farkas diff conv.fk old.sched new.sched || echo they differ
  farkas diff conv.fk auto my.sched --target cuda
""",
)
@click.argument("program")
@click.argument("one")
@click.argument("other")
@target_option
@program_options
def diff_command(program: str, one: str, other: str, target: Target, **options: Any) -> int:
    """Show what differs between two schedules of a program, as unified diffs of script and loops.

    ONE and OTHER are 'auto', 'written', or files of scripts.  Exits with 0 if they are the same, 1
    if they differ, 2 on an error.
    """
    from farkas.console.display import working

    try:
        request = _Request(read_text_file(program), **options)
        with working("comparing"):
            parsed = request.program()
            schedules = [request.schedule(wanted, parsed, target) for wanted in (one, other)]
    except FarkasError as error:
        complain(message_of(error))
        return UNDECIDED
    found = schedules[0].diff(schedules[1])
    if found:
        click.echo(str(found))
    return 1 if found else 0
