"""``--target``: texts for a CPU or a GPU, for which neither device nor compiler is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from farkas.targets.compile_program import ScheduleLike
    from poly.ir.program import Program
    from poly.machine.gpu import GpuMachine
    from poly.schedule.schedule import Schedule

_Command = TypeVar("_Command", bound=Callable[..., Any])

CPU = "cpu"


def _checked(ctx: click.Context, option: click.Parameter, name: str) -> str:
    """The name of a target for texts."""
    from poly.errors import ArgumentError

    try:
        if name != CPU:
            _gpu(name)
    except ArgumentError as error:
        raise click.BadParameter(str(error), ctx, option) from None
    return name


def target_option(command: _Command) -> _Command:
    """The option ``--target``, which arrives as `target`."""
    option = click.option(
        "--target",
        metavar="NAME",
        callback=_checked,
        default=CPU,
        show_default=True,
        help="For what: cpu, cuda, opencl, or a CUDA device as cuda-emulator:sm_90 or "
        "cuda-emulator:sm_90,tf32; no GPU is needed, nor anything of CUDA or OpenCL.",
    )
    return option(command)


@dataclass(frozen=True)
class TextTarget:
    """What texts are made for: ``cpu``, or a GPU, of which nothing is known but its name."""

    name: str = CPU

    @property
    def language(self) -> str:
        """What highlights the text."""
        return "c" if self.name == CPU else "cpp"

    def schedule(self, program: Program, wanted: ScheduleLike, exact: bool) -> Schedule:
        """The schedule that was asked for.

        Raises as `farkas.targets.compile_program.schedule_for`.
        """
        from farkas.targets.compile_program import schedule_for

        if self.name == CPU or wanted not in (None, "auto"):
            return schedule_for(program, wanted, exact)
        from farkas.targets.prepare import automatic_on_gpu

        dialect, machine = _gpu(self.name)
        return automatic_on_gpu(program, exact, machine, dialect)[0]

    def text(self, schedule: Schedule, program: Program) -> str:
        """The C, CUDA C or OpenCL C of a schedule of a program, or of what is prepared of it.

        Raises
        ------
        ScheduleError : the schedule has what the target has not.
        """
        if self.name == CPU:
            from codegen.c.kernel_unit import generate

            return generate(schedule, written=program).text
        from codegen.gpu.emit import generate_gpu

        return generate_gpu(schedule, _gpu(self.name)[0], written=program).text


def _gpu(name: str) -> tuple[str, GpuMachine]:
    """The dialect of a GPU, and what is known of it.

    Raises
    ------
    ArgumentError : there is no such target, or there has to be a device to know.
    """
    from poly.errors import ArgumentError
    from poly.machine.gpu import ANY
    from runtime.gpu.device_names import EMULATOR, OPENCL, emulated, read_name

    found = read_name(name)
    if found.kind == EMULATOR:
        return "cuda", emulated(found)
    if found.which:
        raise ArgumentError(
            f"texts are not for {name!r}, one device among others; did you mean {found.kind!r}?"
        )
    if found.rounded:
        raise ArgumentError(
            f"{name!r} says nothing of the device; did you mean {f'{EMULATOR}:sm_90,tf32'!r}?"
        )
    return ("opencl" if found.kind == OPENCL else "cuda"), ANY
