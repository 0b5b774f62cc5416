"""Compile a program to a loaded kernel: the requested schedule, its text, the compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from codegen.c.kernel_source import KernelSource
from codegen.gpu.emit import GpuSource
from farkas.targets.base import Target
from poly.errors import ArgumentError, IllegalScheduleError, ScheduleError
from poly.ir.program import Program
from poly.schedule.schedule import Schedule
from poly.strategy.common.tactic import Choice
from runtime.cpu.loaded_kernel import LoadedKernel
from runtime.gpu.gpu_program import GpuProgram

#: Forms of a schedule request: None, the tuned one, or else the automatic one; ``"auto"``,
#: ``"written"``, a script, a schedule, or a function from the written order to a schedule.
ScheduleLike = str | Schedule | Callable[[Schedule], Schedule] | None


@dataclass(frozen=True)
class Compiled:
    """One program as written, its schedule, its text, and the function made from it.

    The schedule may be of another program, see `Target.prepare`.

    order : the schedule, or what makes it when it is asked for
    choices, fallbacks : of an automatic schedule, see `codegen.pipeline.Generated`
    """

    program: Program
    order: Schedule | Callable[[], Schedule]
    source: KernelSource | GpuSource
    loaded: LoadedKernel | GpuProgram
    target: Target
    choices: tuple[Choice, ...] = ()
    fallbacks: tuple[tuple[str, str], ...] = ()

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which it runs."""
        return self.order if isinstance(self.order, Schedule) else self.order()


def schedule_for(program: Program, wanted: ScheduleLike, exact: bool, target: Target) -> Schedule:
    """The requested schedule of a program.

    The automatic one is of the program that `Target.prepare` returns.  A script is replayed from
    the written order of the program, or of the prepared one if it uses statements and loops that
    only the latter has; so are the steps of a schedule that was made for the same program with
    other sizes or element types.

    Raises
    ------
    ScheduleError : a step that makes no sense for this program.
    IllegalScheduleError : a step that would break a dependence.
    ArgumentError : `wanted` has none of the forms of `ScheduleLike`.
    """
    if wanted is None or wanted == "auto":
        return target.automatic(program, exact, tuned=wanted is None).schedule
    if isinstance(wanted, Schedule) and wanted.exact == exact and wanted.program == program:
        return wanted
    written = Schedule.of(program, exact)
    if wanted == "written":
        return written
    if isinstance(wanted, (str, Schedule)):
        return _replayed(written, wanted, target)
    if not callable(wanted):
        raise ArgumentError(
            f"schedule is a {type(wanted).__name__}, expected 'auto', 'written', a script, "
            "a Schedule or a function of one"
        )
    made = wanted(written)
    if not isinstance(made, Schedule) or made.program != program or made.exact != exact:
        raise ScheduleError("the schedule function did not return a schedule of its argument")
    return made


def _replayed(written: Schedule, wanted: str | Schedule, target: Target) -> Schedule:
    """A script's schedule of the program as written, else of the prepared program."""
    prepared = target.prepare(written.program, written.exact)
    if isinstance(wanted, Schedule) and (wanted.program, wanted.exact) == (prepared, written.exact):
        return wanted
    try:
        return written.replay(str(wanted))
    except IllegalScheduleError:
        raise
    except ScheduleError as error:
        if prepared == written.program:
            raise
        try:
            return Schedule.of(prepared, written.exact).replay(str(wanted))
        except IllegalScheduleError:
            raise
        except ScheduleError:
            raise error from None


def build(program: Program, wanted: ScheduleLike, exact: bool, target: Target) -> Compiled:
    """Schedule, generate, compile (or find in the cache) and load a program.

    Raises
    ------
    ScheduleError, IllegalScheduleError, ArgumentError : see `schedule_for`.
    ToolchainError : the compiler failed.
    CacheError : the result cannot be stored.
    """
    target.runner.prepare()
    if wanted in (None, "auto"):
        made = target.automatic(program, exact, tuned=wanted is None)
        loaded = target.runner.load(made.source)
        return Compiled(
            program, made.schedule, made.source, loaded, target, made.choices, made.fallbacks
        )
    schedule = schedule_for(program, wanted, exact, target)
    source = target.emit(schedule, program)
    return Compiled(program, schedule, source, target.runner.load(source), target)
